"""The paper's two measures of the uncertainty of values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError, require_choice, require_count, require_positive
from dpvalue.protocol.schedule import Schedule
from dpvalue.streams import Purpose, require_seed, stream
from dpvalue.values.result import Result

__all__ = ["estimation_uncertainty", "mean_adjusted_variance"]


def mean_adjusted_variance(result: Result, semivalue: str | None = None) -> Floats:
    """Return s_j^2 / |mu_j| of each party (paper, sec:exp_increased_k); its figure shows the mean over parties.

    mu_j is the value and s_j^2 = sum_t (m_t - mu_j)^2 / (k (k - 1)), as if the marginals were independent. Free:
    post-processing of the result.

    Args:
        result: the values.
        semivalue: which of its semivalues; None is the first.

    Returns:
        one number for each party (n,).

    Raises:
        DpvalueError: an unknown semivalue.

    Example:
        >>> walked = dpv.value(train, test, privacy=None, permutations=20, progress=False)  # as in `dpvalue.Result`
        >>> mean_adjusted_variance(walked).shape
        (240,)
    """
    estimate = result.estimates[result.name_of(semivalue)]
    return np.asarray(estimate.sample_variances / np.abs(estimate.values))


def estimation_uncertainty(
    models: Tensor,
    gradients: Tensor,
    utility: Callable[[Tensor], Tensor],
    *,
    schedule: Schedule,
    noise_std: float,
    learning_rate: float,
    repeats: int = 200,
    seed: int = 0,
) -> float:
    """Return Var[psi_j | the models before party j] (paper, equ:estimation_uncertainty), the variance due to noise.

    The k models before the party and its clipped gradients there are fixed; only the noise of its releases is redrawn,
    `repeats` times. No guarantee: it reads clipped gradients without noise, for public or simulated data.

    Args:
        models: the models before the party, one row a permutation (k, d).
        gradients: its clipped gradients at them (k, d).
        utility: takes models (b, d), returns V of each (b,).
        schedule: a paper kind; "optimal" is taken at the variance of `gradients`.
        noise_std: of one release, per coordinate.
        learning_rate: alpha.
        repeats: how many times the noise is drawn; at least 2.
        seed: of that noise.

    Returns:
        the variance.

    Raises:
        DpvalueError: tensors of different shapes, or a number out of range.

    Example:
        >>> models, gradients = torch.zeros(8, 2), torch.ones(8, 2)
        >>> own, mean = (
        ...     estimation_uncertainty(models, gradients, lambda theta: theta.sum(1), schedule=Schedule(kind),
        ...                            noise_std=1.0, learning_rate=0.1)
        ...     for kind in ("independent", "running-mean")
        ... )
        >>> 0 < own < mean
        True
    """
    if models.dim() != 2 or models.shape != gradients.shape:
        raise DpvalueError(
            f"models and gradients must both be (k, d), got {tuple(models.shape)} and {tuple(gradients.shape)}"
        )
    require_choice("schedule", schedule.kind, ("independent", "running-mean", "optimal", "decaying"))
    require_positive("noise_std", noise_std)
    require_positive("learning_rate", learning_rate)
    require_count("repeats", repeats, least=2)
    require_seed(seed)
    k = len(models)
    ratio = float(gradients.double().var(0).mean()) / noise_std**2 if schedule.kind == "optimal" else 0.0
    mix = torch.from_numpy(schedule.matrix(k, ratio)).to(models)
    first = schedule.first_valued(k)
    psi = np.empty(repeats)
    start = utility(models[first:])
    for repeat in range(repeats):
        noise = torch.from_numpy(stream(seed, Purpose.RENOISE, repeat).standard_normal(tuple(models.shape)))
        releases = gradients + noise_std * noise.to(models)
        marginals = utility(models[first:] - learning_rate * (mix @ releases)) - start
        psi[repeat] = float(marginals.to(models).mean())
    return float(psi.var(ddof=1))
