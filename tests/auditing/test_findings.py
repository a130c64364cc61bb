"""Lower bounds from trials: below the truth of a known mechanism, near it with many trials, above a false claim."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import dpvalue as dpv
from dpvalue.auditing.findings import epsilon_bound, mu_bound, rate_above


@pytest.mark.parametrize(("count", "trials"), [(0, 50), (7, 50), (25, 50), (49, 50), (50, 50)])
def test_clopper_pearson_against_scipy(count: int, trials: int) -> None:
    interval = stats.binomtest(count, trials, alternative="less").proportion_ci(0.99, method="exact")
    assert rate_above(count, trials, 0.01) == pytest.approx(interval.high)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_a_gaussian_pair_is_never_overrated_and_nearly_reached(mu: float) -> None:
    generator = np.random.default_rng(0)
    over, best = 0, 0.0
    for _ in range(100):
        found = mu_bound(generator.normal(mu, 1, 2000), generator.normal(0, 1, 2000), alpha=0.05)
        over += found > mu
        best = max(best, found)
    assert over <= 12  # 5 are expected at most; 13 or more has a probability below 0.002
    assert best > 0.75 * mu
    many = mu_bound(generator.normal(mu, 1, 400_000), generator.normal(0, 1, 400_000), alpha=1e-4)
    assert 0.93 * mu < many < mu


def test_a_laplace_pair_is_nearly_reached_at_delta_zero() -> None:
    generator = np.random.default_rng(1)
    present, absent = generator.laplace(1, 1, 400_000), generator.laplace(0, 1, 400_000)
    assert 0.93 < epsilon_bound(present, absent, 0.0, 1e-4) < 1.0


def test_both_directions_count() -> None:
    # Scores that are never low when present, and often when absent: only the second direction proves anything.
    generator = np.random.default_rng(2)
    present = generator.uniform(0.5, 1, 5000)
    absent = np.where(generator.random(5000) < 0.5, generator.uniform(0, 0.5, 5000), generator.uniform(0.5, 1, 5000))
    assert epsilon_bound(present, absent, 0.0, 1e-4) > 4


def test_a_delta_is_allowed_for() -> None:
    generator = np.random.default_rng(3)
    present = np.where(generator.random(20_000) < 0.05, 9.0, generator.normal(0, 1, 20_000))
    absent = generator.normal(0, 1, 20_000)
    assert epsilon_bound(present, absent, 0.0, 1e-4) > 2
    assert epsilon_bound(present, absent, 0.06, 1e-4) < 0.1


def test_equal_worlds_prove_nothing() -> None:
    generator = np.random.default_rng(4)
    same = generator.normal(0, 1, (2, 3000))
    assert epsilon_bound(same[0], same[1], 1e-5, 1e-4) == 0.0
    assert mu_bound(same[0], same[1], 1e-4) == 0.0


def test_too_few_trials() -> None:
    with pytest.raises(dpv.DpvalueError, match="must be at least 100, got 99"):
        mu_bound(np.zeros(99), np.zeros(200), 0.1)
