"""Detection of corrupted units: the AUC of values, ceilings on the AUC, and the efficiency of a method.

The AUC is the probability that a corrupted unit has a lower value than a clean one. The ceilings are for units that
release independently, without a trusted curator who mixes units before the noise. If the set of corrupted units is
exchangeable given public values, turning a clean unit into a corrupted one is two steps of `zero_out` (one of
`replace`). So eps-DP releases have no expected AUC above

    e^(2 eps) / (1 + e^(2 eps))    (zero_out),        e^eps / (1 + e^eps)    (replace),

For mu-GDP releases the ceilings are Phi(sqrt(2) mu) and Phi(mu / sqrt(2)). For one Laplace release of one number per
unit they are 1 - e^(-2 eps) (1 + eps) / 2 and 1 - e^(-eps) (2 + eps) / 4. All neglect delta and bound the mean over
runs.

A trusted curator who mixes units before the noise can exceed them: for two contributions in [-1, 1], x_1 - x_2 plus one
Laplace variable is eps-DP and separates a clean unit at 1 from a corrupted one at -1 with probability
1 - e^(-2 eps) / 2 (`replace`: 1 - e^(-eps) / 2). At eps = 1 that is 0.932, above 0.881.
"""

from __future__ import annotations

from math import exp, log

import numpy as np
from numpy.typing import ArrayLike

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError, require_choice, require_number, require_positive
from dpvalue.privacy.budget import NEIGHBOURS
from dpvalue.privacy.laws import find_law

__all__ = [
    "auc",
    "ceiling",
    "efficiency",
    "epsilon_of_ceiling",
    "expected_auc",
    "gaussian_ceiling",
    "laplace_ceiling",
    "precision_at",
]


def precision_at(values: ArrayLike, corrupted: ArrayLike, k: int) -> float:
    """Return the share of corrupted parties among the k with the lowest values.

    Args:
        values: the values of the parties (n,).
        corrupted: which parties are corrupted (n,).
        k: the number of parties with the lowest values.

    Returns:
        a share between 0 and 1.

    Raises:
        DpvalueError: lists of different lengths, or k above the number of parties.

    Example:
        >>> precision_at([0.3, -0.1, 0.2, 0.1], [False, True, False, False], 2)
        0.5
    """
    scores, bad = np.asarray(values, dtype=float), np.asarray(corrupted, dtype=bool)
    if scores.ndim != 1 or scores.shape != bad.shape:
        raise DpvalueError(f"values and corrupted must be one per party, got {scores.shape} and {bad.shape}")
    require_number("k", k, f"between 1 and {len(bad)}", 1 <= k <= len(bad))
    return float(bad[np.argsort(scores, kind="stable")[:k]].mean())


def auc(values: ArrayLike, corrupted: ArrayLike) -> float:
    """Return the probability that a corrupted party has a lower value than a clean one; ties count half.

    Args:
        values: the values of the parties (n,).
        corrupted: which parties are corrupted (n,).

    Returns:
        a probability; 0.5 is chance.

    Raises:
        DpvalueError: lists of different lengths, values that are not finite, or parties of one kind alone.

    Example:
        >>> auc([0.3, -0.1, 0.2], [False, True, False])
        1.0
    """
    scores, bad = np.asarray(values, dtype=float), np.asarray(corrupted, dtype=bool)
    if scores.ndim != 1 or scores.shape != bad.shape:
        raise DpvalueError(f"values and corrupted must be one per party, got {scores.shape} and {bad.shape}")
    if not np.isfinite(scores).all():
        raise DpvalueError("values must be finite to be ranked, got NaN or infinity")
    clean = int((~bad).sum())
    if clean in (0, len(bad)):
        raise DpvalueError(f"corrupted must hold both kinds, got {clean} clean of {len(bad)}")
    ordered = np.sort(scores[bad])
    below = np.searchsorted(ordered, scores[~bad], "left") + np.searchsorted(ordered, scores[~bad], "right")
    return float(below.sum() / (2 * clean * len(ordered)))


def ceiling(epsilon: float, neighbours: str = "zero_out") -> float:
    """Return the largest expected AUC from independent epsilon-DP releases of units, without a trusted curator.

    Args:
        epsilon: of the budget.
        neighbours: "zero_out" or "replace".

    Returns:
        an AUC.

    Raises:
        DpvalueError: an unknown relation.

    Example:
        >>> [round(ceiling(epsilon), 3) for epsilon in (1, 2)]
        [0.881, 0.982]
    """
    return 1 / (1 + exp(-_steps(neighbours) * epsilon))


def is_useful(limit: float) -> bool:
    """Return whether a ceiling is informative: it does not round to 1."""
    return limit < 0.9995


def gaussian_ceiling(mu: float, neighbours: str = "zero_out") -> float:
    """Return the largest expected AUC from independent mu-GDP releases of units.

    Args:
        mu: of the releases.
        neighbours: "zero_out" or "replace".

    Returns:
        an AUC.

    Raises:
        DpvalueError: an unknown relation.

    Example:
        >>> round(gaussian_ceiling(0.2), 3)
        0.611
    """
    return _largest_auc("gaussian", mu, neighbours)


def laplace_ceiling(epsilon: float, neighbours: str = "zero_out") -> float:
    """Return the largest expected AUC from one Laplace release of one number per unit.

    Args:
        epsilon: of the release.
        neighbours: "zero_out" or "replace".

    Returns:
        an AUC.

    Raises:
        DpvalueError: an unknown relation.

    Example:
        >>> round(laplace_ceiling(1.0), 3)
        0.865
    """
    return _largest_auc("laplace", epsilon, neighbours)


def epsilon_of_ceiling(auc: float, neighbours: str = "zero_out") -> float:
    """Return the epsilon below which no independent releases of units reach this expected AUC.

    Args:
        auc: an AUC above 0.5 and below 1.
        neighbours: "zero_out" or "replace".

    Returns:
        epsilon.

    Raises:
        DpvalueError: an AUC out of range, or an unknown relation.

    Example:
        >>> round(epsilon_of_ceiling(0.881), 2)
        1.0
    """
    require_number("auc", auc, "above 0.5 and below 1", 0.5 < auc < 1)
    return log(auc / (1 - auc)) / _steps(neighbours)


def efficiency(auc: float, epsilon: float, neighbours: str = "zero_out") -> float:
    """Return (AUC - 0.5) / (ceiling - 0.5), the share of the ceiling that a method reaches.

    Args:
        auc: the AUC of the method.
        epsilon: the epsilon of the budget.
        neighbours: "zero_out" or "replace".

    Returns:
        1 at the ceiling, 0 at chance.

    Raises:
        DpvalueError: an epsilon that is not positive, or an unknown relation.

    Example:
        >>> round(efficiency(0.69, 1.0), 2)
        0.5
    """
    require_positive("epsilon", epsilon)
    return (auc - 0.5) / (ceiling(epsilon, neighbours) - 0.5)


def expected_auc(
    clean: Floats, bad: Floats, law: str, scale: float | Floats, bad_scale: float | Floats | None = None
) -> float:
    """Return the expected AUC of the scores of clean and bad units plus noise of a law and scale.

    Exact in the noise: the mean over all pairs of P(clean score + noise > bad score + noise). Scales may be one number
    or one per score; `bad_scale` is that of the bad ones where it differs.

    Args:
        clean: scores of clean units.
        bad: scores of bad units.
        law: "gaussian", "laplace", or another law's name.
        scale: of the noise.
        bad_scale: of the noise of bad units; None is `scale`.

    Returns:
        an AUC.

    Raises:
        DpvalueError: an unknown law, or scales of which some are zero.

    Example:
        >>> round(expected_auc(np.array([1.0]), np.array([-1.0]), "gaussian", 1.0), 3)
        0.921
    """
    return float(pairwise_auc(clean, bad, law, scale, scale if bad_scale is None else bad_scale).mean())


def pairwise_auc(clean: Floats, bad: Floats, law: str, scale: float | Floats, bad_scale: float | Floats) -> Floats:
    """Return P(clean score + noise > bad score + noise) for each pair, (clean, bad); ties count half."""
    shift = np.subtract.outer(clean, bad)
    first, second = np.asarray(scale, dtype=float), np.asarray(bad_scale, dtype=float)
    if first.ndim or second.ndim:  # single numbers, the common case, need no broadcasting
        first, second = np.broadcast_to(first, clean.shape)[:, None], np.broadcast_to(second, bad.shape)[None, :]
    if not (first > 0).all() or not (second > 0).all():
        if (first > 0).any() or (second > 0).any():
            raise DpvalueError("noise scales must be all zero or all positive")
        return np.asarray(np.sign(shift) / 2 + 0.5)
    return find_law(law).wins(shift, first, second)


def _largest_auc(law: str, distance: float, neighbours: str) -> float:
    """P(two units stay in order) at their largest distance; `distance` is one step in scales of the noise."""
    return float(find_law(law).wins(np.array(_steps(neighbours) * distance), np.ones(()), np.ones(())))


def _steps(neighbours: str) -> float:
    """The number of steps of the relation that exchange two units."""
    require_choice("neighbours", neighbours, NEIGHBOURS)
    return 2.0 if neighbours == "zero_out" else 1.0
