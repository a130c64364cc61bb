"""Whether several runs agree on who is worth most."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError, require_number


@dataclass(frozen=True, eq=False)
class Stability:
    """How well runs agree, over all pairs of them.

    Attributes:
        spearman: the rank correlation of each pair.
        overlap: the share of the top k of one run that is in the top k of the other.
        k: how many are called top.

    Example:
        >>> rank_stability([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]], k=1).overlap.tolist()
        [1.0]
    """

    spearman: Floats
    overlap: Floats
    k: int

    def __repr__(self) -> str:
        return f"Stability({self})"

    def __str__(self) -> str:
        return (
            f"Spearman {self.spearman.mean():.3f} (lowest {self.spearman.min():.3f}), "
            f"top {self.k} shared {self.overlap.mean():.0%} (lowest {self.overlap.min():.0%}), "
            f"over {len(self.spearman)} pairs of runs"
        )


def rank_stability(runs: Sequence[ArrayLike], k: int = 10) -> Stability:
    """Return how well the values of several runs agree on ranks and on who is among the highest k.

    Args:
        runs: the values of each run, of the same parties in the same order.
        k: how many of the highest are compared.

    Returns:
        the agreement of all pairs of runs.

    Raises:
        DpvalueError: fewer than two runs, values that are not finite, or k above the number of parties.

    Example:
        >>> print(rank_stability([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]], k=1))
        Spearman 0.500 (lowest 0.500), top 1 shared 100% (lowest 100%), over 1 pairs of runs
    """
    values = [np.asarray(run, dtype=float) for run in runs]
    if len(values) < 2 or len({vector.shape for vector in values}) != 1 or values[0].ndim != 1:
        raise DpvalueError("runs must be at least two, with the values of the same parties each")
    if not all(np.isfinite(vector).all() for vector in values):
        raise DpvalueError("runs must hold finite values, got NaN or infinity")
    require_number("k", k, f"between 1 and {len(values[0])}", 1 <= k <= len(values[0]))
    from scipy.stats import spearmanr

    tops = [set(np.argsort(-vector, kind="stable")[:k].tolist()) for vector in values]
    pairs = list(itertools.combinations(range(len(values)), 2))
    return Stability(
        np.array([float(spearmanr(values[i], values[j]).statistic) for i, j in pairs]),
        np.array([len(tops[i] & tops[j]) / k for i, j in pairs]),
        k,
    )
