r"""Laws of noise: each defines its scale, samplers, privacy loss and likelihood.

The *scale* is the standard deviation for Gaussian noise and b for Laplace noise. The noise multiplier is scale /
sensitivity. The *loss* of releases is their joint privacy parameter: mu of GDP, or epsilon for a pure law. Arguments,
files and ledgers name a law by a string; `register_law` adds a law.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.errors import DpvalueError, require_choice, require_count, require_positive
from dpvalue.privacy import accounting
from dpvalue.privacy.samplers import Bits, discrete_gaussian, discrete_laplace

Releases = Sequence[tuple[str, float, int]]
"""Triples (law, noise multiplier, number of releases)."""


@dataclass(frozen=True)
class Sampling:
    """The samplers of a law.

    Attributes:
        std: the standard deviation of noise of scale 1.
        fill: fills a tensor with noise of scale 1 from a torch generator; for simulations.
        numbers: returns an array of noise of scale 1 from a NumPy generator; for the error of values.
        discrete: takes a source of uniform words, bits and a count; returns whole numbers of scale 2^bits, sampled
            exactly.
    """

    std: float
    fill: Callable[[Tensor, torch.Generator], Tensor]
    numbers: Callable[[np.random.Generator, tuple[int, ...]], Floats]
    discrete: Callable[[Bits, int, int], Ints]


@dataclass(frozen=True)
class Law:
    """A law of noise, symmetric around zero and independent for each number of a release.

    Formal guarantee: the guarantees of releases with this noise rest on `loss`, and on `sampling.discrete` following
    the law that `loss` assumes.

    Attributes:
        name: the name in `Privacy(mechanism=)`, in lower case.
        sampling: the samplers.
        loss: takes a noise multiplier and a number of releases; returns their joint loss.
        noise_multiplier: takes epsilon, delta and a number of releases; returns the noise multiplier of each release.
        advantage: takes the loss and the number of releases; returns the total variation between neighbours.
        loss_distribution: takes dp-accounting's module of loss distributions and a noise multiplier; returns the
            distribution of one release.
        wins: takes a shift and two scales; returns P(shift + L > L') for independent noise L and L' of these scales.
        log_ratio: takes a release x, means a and b, and a scale; returns log p(x | a) - log p(x | b), number by number.
        pure: whether the loss is epsilon, at delta = 0; else it is mu.
        scalar: whether it protects only one release of one number.
        automatic: whether mechanism "auto" may choose it.
    """

    name: str
    sampling: Sampling
    loss: Callable[[float, int], float]
    noise_multiplier: Callable[[float, float, int], float]
    advantage: Callable[[float, int], float]
    loss_distribution: Callable[[Any, float], Any]
    wins: Callable[[Floats, Floats, Floats], Floats]
    log_ratio: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    pure: bool = False
    scalar: bool = False
    automatic: bool = False

    def mu(self, multiplier: float) -> float:
        """Return a mu for which one release is mu-GDP."""
        loss = self.loss(multiplier, 1)
        return accounting.mu_of_pure(loss) if self.pure else loss

    def epsilon(self, loss: float, delta: float) -> float:
        """Return the epsilon of releases with this loss, at a delta."""
        return loss if self.pure else accounting.epsilon_of_mu(loss, delta)


def _gaussian_wins(shift: Floats, first: Floats, second: Floats) -> Floats:
    return np.asarray(torch.special.ndtr(torch.as_tensor(shift / np.hypot(first, second))).numpy())


GAUSSIAN = Law(
    name="gaussian",
    sampling=Sampling(
        std=1.0,
        fill=lambda out, generator: out.normal_(generator=generator),
        numbers=lambda generator, shape: generator.standard_normal(shape),
        discrete=discrete_gaussian,
    ),
    loss=lambda multiplier, releases: sqrt(releases) / multiplier,
    noise_multiplier=accounting.noise_multiplier,
    advantage=lambda mu, releases: accounting.gaussian_advantage(mu),
    loss_distribution=lambda pld, multiplier: pld.from_gaussian_mechanism(multiplier),
    wins=_gaussian_wins,
    log_ratio=lambda x, a, b, scale: (x - (a + b) / 2) * (a - b) / scale**2,
    automatic=True,
)
"""k releases with noise multiplier s are mu-GDP with mu = sqrt(k) / s, for vectors of any size."""


def _exponential_difference(out: Tensor, generator: torch.Generator) -> Tensor:
    return out.exponential_(generator=generator).sub_(torch.empty_like(out).exponential_(generator=generator))


def _laplace_wins(shift: Floats, first: Floats, second: Floats) -> Floats:
    """One minus P(L - L' > |shift|) = (a^2 e^(-t/a) - b^2 e^(-t/b)) / (2 (a^2 - b^2)), for scales a and b.

    For nearly equal scales this is 0 / 0, and the formula for equal scales is used: e^(-t) (2 + t) / 4.
    """
    far, middle = np.abs(shift), np.sqrt(first * second)
    tail = np.exp(-far / middle) * (2 + far / middle) / 4
    differ = np.abs(first - second) > 1e-3 * middle
    if differ.any():
        a, b = np.where(differ, first, 2.0), np.where(differ, second, 1.0)
        apart = (a**2 * np.exp(-far / a) - b**2 * np.exp(-far / b)) / (2 * (a**2 - b**2))
        tail = np.where(differ, apart, tail)
    return np.asarray(np.where(shift > 0, 1 - tail, tail))


LAPLACE = Law(
    name="laplace",
    sampling=Sampling(
        std=2**0.5,
        fill=_exponential_difference,
        numbers=lambda generator, shape: generator.laplace(size=shape),
        discrete=discrete_laplace,
    ),
    loss=lambda multiplier, releases: releases / multiplier,
    noise_multiplier=lambda epsilon, delta, releases: releases / epsilon,
    advantage=accounting.laplace_advantage,
    loss_distribution=lambda pld, multiplier: pld.from_laplace_mechanism(multiplier),
    wins=_laplace_wins,
    log_ratio=lambda x, a, b, scale: ((x - b).abs() - (x - a).abs()) / scale,
    pure=True,
    scalar=True,
    automatic=True,
)
"""One release of one number with noise multiplier s is epsilon-DP with epsilon = 1 / s."""

LAWS = {law.name: law for law in (GAUSSIAN, LAPLACE)}
"""All laws by name; `register_law` adds one."""


def register_law(law: Law) -> None:
    """Register a law under its name, for `Privacy(mechanism=)`, files and ledgers.

    A file or ledger that names the law can be read only where the law is registered.
    """
    if not (law.name.isidentifier() and law.name.islower()) or law.name in ("auto", *LAWS):
        raise DpvalueError(f"the name of a law must be a new lower-case word, got {law.name!r}")
    LAWS[law.name] = law


def find_law(name: str) -> Law:
    """Return the law with this name."""
    require_choice("law", name, LAWS)
    return LAWS[name]


def pure_loss(releases: Releases) -> float:
    """Return the joint epsilon of releases of one unit's data at delta = 0; infinite unless all laws are pure."""
    losses = (LAWS[law].loss(multiplier, count) if LAWS[law].pure else inf for law, multiplier, count in releases)
    return sum(losses, 0.0)


def mu_loss(releases: Releases) -> float:
    """Return a mu for which releases of one unit's data are jointly mu-GDP."""
    return sqrt(sum(count * LAWS[law].mu(multiplier) ** 2 for law, multiplier, count in releases))


def total_epsilon(releases: Releases, delta: float) -> float:
    """Return the joint epsilon of releases of one unit's data at this delta.

    Formal guarantee: any adaptive sequence of these releases is (epsilon, delta)-DP; the numerical composition of
    dp-accounting errs on the safe side. Pure laws alone, with delta = 0, add up their epsilons.

    Args:
        releases: triples (law, noise scale / sensitivity, number of releases).
        delta: delta; 0 only if all laws are pure.

    >>> round(total_epsilon([("laplace", 1.0, 1), ("laplace", 2.0, 1)], 0.0), 3)
    1.5
    """
    for name, multiplier, count in releases:
        require_choice("releases", name, LAWS)
        require_positive("noise multiplier", multiplier)
        require_count("releases", count)
    pure = pure_loss(releases)
    if not releases or (delta == 0 and pure < inf):
        return pure
    accounting.require_delta(delta)
    if not any(LAWS[name].pure for name, _, _ in releases):
        return accounting.epsilon_of_mu(mu_loss(releases), delta)
    from dp_accounting.pld import privacy_loss_distribution as pld

    parts = [LAWS[name].loss_distribution(pld, multiplier).self_compose(count) for name, multiplier, count in releases]
    return min(pure, float(reduce(lambda left, right: left.compose(right), parts).get_epsilon_for_delta(delta)))
