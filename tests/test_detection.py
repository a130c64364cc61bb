"""AUC, ceilings and efficiency: closed forms beside simulation, and that no mechanism passes its ceiling."""

from __future__ import annotations

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue import detection
from dpvalue.privacy import accounting


def test_auc_counts_pairs_and_halves_ties() -> None:
    corrupted = np.array([True, True, False, False])
    assert detection.auc([0.0, 1.0, 2.0, 3.0], corrupted) == 1.0
    assert detection.auc([3.0, 2.0, 1.0, 0.0], corrupted) == 0.0
    assert detection.auc([1.0, 1.0, 1.0, 1.0], corrupted) == 0.5
    generator = np.random.default_rng(0)
    scores, bad = generator.integers(6, size=200).astype(float), generator.random(200) < 0.3
    pairs = np.subtract.outer(scores[~bad], scores[bad])
    assert detection.auc(scores, bad) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def test_bad_scores_are_refused() -> None:
    for values, corrupted, message in (
        ([1.0, 2.0], [True], "one per party"),
        ([1.0, np.nan], [True, False], "values must be finite"),
        ([1.0, 2.0], [True, True], "corrupted must hold both kinds, got 0 clean of 2"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message):
            detection.auc(values, corrupted)


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_ceilings_are_in_order_and_invert(epsilon: float, neighbours: str) -> None:
    any_method = detection.ceiling(epsilon, neighbours)
    laplace = detection.laplace_ceiling(epsilon, neighbours)
    assert 0.5 < laplace < any_method < 1
    assert detection.epsilon_of_ceiling(any_method, neighbours) == pytest.approx(epsilon)
    assert detection.efficiency(any_method, epsilon, neighbours) == pytest.approx(1.0)
    assert detection.efficiency(0.5, epsilon, neighbours) == 0.0


@pytest.mark.parametrize(("neighbours", "found"), [("zero_out", 0.932), ("replace", 0.816)])
def test_a_curator_who_mixes_units_before_the_noise_passes_the_ceiling(neighbours: str, found: float) -> None:
    """One number for two units, x1 - x2 + Laplace noise, is epsilon-DP and tells which of them is at -1."""
    epsilon, generator = 1.0, np.random.default_rng(2)
    scale = (1.0 if neighbours == "zero_out" else 2.0) / epsilon
    places = (-1.0, 0.0, 1.0)
    moves = [abs(a - b) for a in places for b in places if neighbours == "replace" or b == 0]
    assert max(moves) / scale == epsilon  # how far one unit moves the number, over the scale of the noise
    clean_first = 1.0 - -1.0 + generator.laplace(0, scale, 200_000)
    reached = (clean_first > 0).mean()
    assert reached == pytest.approx(found, abs=2e-3)
    assert reached > detection.ceiling(epsilon, neighbours) + 0.05


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_expected_auc_is_the_mean_over_noise(law: str) -> None:
    generator = np.random.default_rng(1)
    clean, bad = generator.normal(0.5, 1, 40), generator.normal(-0.3, 1, 30)
    draw = generator.laplace if law == "laplace" else generator.normal
    labels = np.arange(70) >= 40
    scores = np.concatenate([clean, bad])
    measured = [detection.auc(scores + draw(0, 0.8, 70), labels) for _ in range(3000)]
    error = np.std(measured) / 3000**0.5
    assert abs(detection.expected_auc(clean, bad, law, 0.8) - np.mean(measured)) < 4 * error
    assert abs(detection.expected_auc(clean, bad, law, 0.9) - np.mean(measured)) > 4 * error
    assert detection.expected_auc(clean, bad, law, 0.0) == pytest.approx(detection.auc(scores, labels))


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
def test_parties_at_the_ends_of_what_is_allowed_reach_their_ceilings(neighbours: str) -> None:
    """Clean parties at +C, corrupted ones at -C: as far apart as a release can be."""
    ends = np.array([1.0]), np.array([-1.0])
    sensitivity = 2.0 if neighbours == "replace" else 1.0
    for epsilon in (0.5, 2.0):
        laplace = detection.expected_auc(*ends, "laplace", sensitivity / epsilon)
        assert laplace == pytest.approx(detection.laplace_ceiling(epsilon, neighbours))
        mu = accounting.mu_of_budget(epsilon, 5e-5)
        gaussian = detection.expected_auc(*ends, "gaussian", sensitivity / mu)
        assert gaussian == pytest.approx(detection.gaussian_ceiling(mu, neighbours))
