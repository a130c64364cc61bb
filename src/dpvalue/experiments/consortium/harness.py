"""How well a method's values agree with what retraining says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from dpvalue.arrays import Array, Floats
from dpvalue.errors import DpvalueError
from dpvalue.experiments.consortium.cells import Named
from dpvalue.experiments.consortium.truth import Values

ZERO = 1e-6
"""Values that differ by less than this part of the largest are the same."""


@dataclass(frozen=True, eq=False)
class IntervalScores:
    """For each party a lower and an upper end of what its value is said to lie between."""

    lower: Floats
    upper: Floats


@dataclass(frozen=True, eq=False)
class CellOutcome:
    """What one method said of one problem.

    Attributes:
        method: its name.
        cell: of the problem.
        seed: of the problem.
        epsilon: per record; None without privacy.
        values: what it says.
        intervals: of the Shapley values, if it has them.
        noise_free: the Shapley values of the same job without noise, which intervals should hold, if known.
        seconds: how long it took.
    """

    method: str
    cell: Named
    seed: int
    epsilon: float | None
    values: Values
    intervals: IntervalScores | None = None
    noise_free: Floats | None = None
    seconds: float = 0.0


@dataclass(frozen=True)
class MethodScores:
    """How well values agree with the truth; a mean over problems is a mean of these.

    Attributes:
        spearman: rank correlation of Shapley values; 0 if all values of one side are the same.
        pearson: correlation of Shapley values.
        sign: share of the parties whose Shapley value has the true sign, of those with a true value other than zero.
        loo_spearman: rank correlation of leave-one-out values.
        payout_error: the part of the money that goes to the wrong parties: half the sum of differences of shares.
        sure: how many values differ from zero by more than their interval, and have a true value other than zero;
            None without intervals.
        sure_right: how many of them have the true sign.
        coverage: share of the intervals that hold the noise-free value, or None.
        covers_truth: share of the intervals that hold the true value, or None.
    """

    spearman: float
    pearson: float
    sign: float
    loo_spearman: float
    payout_error: float
    sure: int | None = None
    sure_right: int | None = None
    coverage: float | None = None
    covers_truth: float | None = None


Key = tuple[str, int, str, float]
"""The name of a cell, a seed, a method, and epsilon: 0 means without privacy."""


@dataclass(frozen=True)
class Scored:
    """How well one method did on one problem."""

    key: Key
    scores: MethodScores
    values: tuple[float, ...]
    seconds: float

    @property
    def intervals(self) -> bool:
        """Whether it has intervals."""
        return self.scores.sure is not None


def score(
    values: Floats,
    loo: Floats,
    truth: Values,
    intervals: IntervalScores | None = None,
    noise_free: Floats | None = None,
) -> MethodScores:
    """Compare Shapley and leave-one-out values with true ones.

    Args:
        values: the Shapley values.
        loo: the leave-one-out values.
        truth: what retraining says.
        intervals: of the Shapley values.
        noise_free: the Shapley values of the same job without noise.
    """
    if not len(values) == len(loo) == len(truth.shapley):
        raise DpvalueError(f"values must be of {len(truth.shapley)} parties, got {len(values)} and {len(loo)}")
    said, true = _signs(values), _signs(truth.shapley)
    agreed = MethodScores(
        spearman=spearman(values, truth.shapley),
        pearson=pearson(values, truth.shapley),
        sign=float((said == true)[true != 0].mean()) if true.any() else 1.0,
        loo_spearman=spearman(loo, truth.loo),
        payout_error=float(np.abs(shares(values) - shares(truth.shapley)).sum() / 2),
    )
    if intervals is None:
        return agreed
    sure = ((intervals.lower > 0) | (intervals.upper < 0)) & (true != 0)
    return MethodScores(
        agreed.spearman, agreed.pearson, agreed.sign, agreed.loo_spearman, agreed.payout_error,
        sure=int(sure.sum()),
        sure_right=int((said == true)[sure].sum()),
        coverage=None if noise_free is None else _covered(intervals, noise_free),
        covers_truth=_covered(intervals, truth.shapley),
    )  # fmt: skip


def judge(outcome: CellOutcome, truth: Values) -> MethodScores:
    """Return the scores of an outcome."""
    return score(outcome.values.shapley, outcome.values.loo, truth, outcome.intervals, outcome.noise_free)


def shares(values: ArrayLike) -> Floats:
    """Return each party's share of a payout: as its value if that is positive, else nothing.

    If no value is positive all get the same.

    >>> shares([3.0, -1.0, 1.0]).tolist()
    [0.75, 0.0, 0.25]
    """
    paid = np.maximum(np.asarray(values, dtype=np.float64), 0)
    return np.asarray(paid / paid.sum()) if paid.any() else np.full(len(paid), 1 / len(paid))


def pearson(one: ArrayLike, other: ArrayLike) -> float:
    """Return the correlation; 0 if all numbers of one side are the same, or one is not finite.

    >>> pearson([1, 2, 3], [5, 5, 5])
    0.0
    """
    a, b = (np.asarray(side, dtype=np.float64) for side in (one, other))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return 0.0
    a, b = a - a.mean(), b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def spearman(one: ArrayLike, other: ArrayLike) -> float:
    """Return the correlation of ranks; ties share the mean of theirs.

    >>> round(spearman([1, 2, 3, 4], [10, 20, 40, 30]), 3)
    0.8
    """
    return pearson(_ranks(one), _ranks(other))


def _ranks(values: ArrayLike) -> Floats:
    """Ranks; values that only rounding tells apart, as a copy's and its original's, are ties."""
    given = np.asarray(values, dtype=np.float64)
    if not np.isfinite(given).all():
        return np.zeros(len(given))
    near = ZERO * np.abs(given).max()
    less = (given[:, None] - given > near).sum(1)
    same = (np.abs(given[:, None] - given) <= near).sum(1)
    return np.asarray(less + (same - 1) / 2, dtype=np.float64)


def _signs(values: Floats) -> Array:
    """1, -1, or 0 for what is zero up to rounding."""
    return np.where(np.abs(values) <= ZERO * np.abs(values).max(initial=0), 0, np.sign(values))


def _covered(intervals: IntervalScores, target: Floats) -> float:
    return float(((intervals.lower <= target) & (target <= intervals.upper)).mean())
