"""Estimate semivalues from marginals: weighted means over permutations, with Monte Carlo errors.

All semivalues share the marginals of a walk; only the position weights p differ. The estimate is
psi_j = (1/k) sum_t p(r_t) m_t (paper, eq:semivalue_estimator). A semivalue with all weight on one position
(leave-one-out) uses only the permutations with the party there; without any, the value is NaN.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import isqrt

import numpy as np

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.games.semivalues import Semivalue

FIELDS = ("values", "std_errors", "counts", "sample_variances")


@dataclass(frozen=True, eq=False)
class Estimate:
    """The values of one semivalue, with their errors; each a number for each party.

    Attributes:
        values: the values (n,).
        std_errors: their Monte Carlo errors; zeros where nothing was sampled.
        counts: number of marginals of non-zero weight behind each value.
        sample_variances: the paper's s_j^2, the variance of the mean for independent marginals.

    Example:
        >>> estimate = dpv.games.value_game(lambda players: len(players) ** 2, 3)
        >>> estimate.values.round(6).tolist(), estimate.std_errors.tolist()
        ([3.0, 3.0, 3.0], [0.0, 0.0, 0.0])
    """

    values: Floats
    std_errors: Floats
    counts: Ints
    sample_variances: Floats


class _Moments:
    """Running count, mean and sum of squared deviations, per party."""

    def __init__(self, n: int) -> None:
        self.count = np.zeros(n, dtype=np.int64)
        self.mean = np.zeros(n)
        self.squares = np.zeros(n)

    def add(self, samples: Floats, is_used: Bools | bool = True) -> None:
        self.count += is_used
        with np.errstate(invalid="ignore", over="ignore"):  # an infinite utility shows in the values
            shift = np.where(is_used, samples - self.mean, 0.0)
            self.mean += shift / np.maximum(self.count, 1)
            self.squares += np.where(is_used, shift * (samples - self.mean), 0.0)

    def variance_of_mean(self) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.count > 1, self.squares / (self.count * (self.count - 1.0)), np.nan)


class Estimator:
    """Collects the marginals of permutations, in order, and estimates one semivalue.

    Args:
        semivalue: the semivalue.
        n: number of parties.
        correlated: total number of permutations k, if their marginals share noise (`running-mean` and similar). Errors
            are then those of about sqrt(k) batch means (NaN for a semivalue with one position, whose marginals are too
            few). None: the permutations are independent.
    """

    def __init__(self, semivalue: Semivalue, n: int, correlated: int | None = None) -> None:
        self.weights = semivalue.position_weights(n)
        self._single = np.count_nonzero(self.weights) == 1
        self._samples = _Moments(n)
        self._weighted_counts = np.zeros(n, dtype=np.int64)
        self._total = correlated
        self._count = 0
        self._batch = _Moments(n)
        self._batches = _Moments(n)

    def add(self, permutations: Ints, marginals: Floats) -> None:
        """Add marginals[t, r], the marginal of party permutations[t, r]."""
        for order, row in zip(permutations, marginals, strict=True):
            has_weight = self.weights > 0
            sample = np.empty(len(order))
            is_used = np.empty(len(order), dtype=bool)
            sample[order] = row if self._single else self.weights * row
            is_used[order] = has_weight
            self._weighted_counts += is_used
            self._samples.add(sample, is_used if self._single else True)
            self._count += 1
            if self._total is not None and not self._single:
                self._add_to_batch(sample, self._total)

    def _add_to_batch(self, sample: Floats, total: int) -> None:
        batches = max(2, isqrt(total))
        self._batch.add(sample)
        if self._count * batches // total > (self._count - 1) * batches // total:
            self._batches.add(self._batch.mean)
            self._batch = _Moments(len(sample))

    @property
    def estimate(self) -> Estimate:
        """The estimate so far."""
        naive = self._samples.variance_of_mean()
        variance = naive if self._total is None else self._batches.variance_of_mean()
        counts = self._weighted_counts
        # Banzhaf's weights underflow far from the middle: a marginal there counts, with weight zero.
        counts_seen = counts if self._single else self._samples.count
        return Estimate(
            values=np.where(counts_seen > 0, self._samples.mean, np.nan),
            std_errors=np.sqrt(variance),
            counts=counts.copy(),
            sample_variances=naive,
        )


def warn_if_not_finite(estimates: dict[str, Estimate]) -> None:
    """Warn if an estimated value is not finite: the utility overflowed during a walk."""
    for name, estimate in estimates.items():
        bad = int((~np.isfinite(estimate.values) & (estimate.counts > 0)).sum())
        if bad:
            warnings.warn(
                f"{bad} of {len(estimate.values)} values of {name!r} are not finite, as the utility overflowed: "
                "scale the features, or give a smaller learning_rate",
                UserWarning,
                stacklevel=3,
            )


def exact_estimate(values: Floats, evaluations: int) -> Estimate:
    """Return an estimate without Monte Carlo error, from `evaluations` marginals per party."""
    n = len(values)
    return Estimate(values, np.zeros(n), np.full(n, evaluations, dtype=np.int64), np.zeros(n))
