"""The plan: the design's ceilings, and that it is what a run then spends."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue import detection
from dpvalue.planning.situation import Expectation
from dpvalue.runs.plan import advice
from tests.datasets import classification, flipped_breast_cancer


@pytest.mark.parametrize(
    ("epsilon", "ceiling", "gaussian"), [(1, 0.881, 0.663), (2, 0.982, 0.782), (4, 0.9997, 0.922), (8, 1.0, 0.994)]
)
def test_ceilings(epsilon: float, ceiling: float, gaussian: float) -> None:
    found = dpv.plan(800, privacy=dpv.Privacy(epsilon=epsilon, delta=5e-5))
    assert found.limits.ceiling == pytest.approx(ceiling, abs=6e-4)
    assert found.limits.gaussian_ceiling == pytest.approx(gaussian, abs=6e-4)
    replaced = dpv.plan(800, privacy=dpv.Privacy(epsilon=epsilon, delta=5e-5, neighbours="replace"))
    assert replaced.limits.ceiling == pytest.approx(1 / (1 + np.exp(-epsilon)))
    assert (replaced.limits.gaussian_ceiling or 0) < (found.limits.gaussian_ceiling or 0)


@pytest.mark.parametrize("schedule", ["replay", "running-mean", "decaying", "independent"])
def test_the_plan_is_what_a_run_spends(schedule: str) -> None:
    train, test = classification(9)
    privacy = dpv.Privacy(epsilon=2.0)
    planned = dpv.plan(9, privacy=privacy, schedule=schedule, permutations=12, parameters=15, projection=None)
    run = dpv.release(
        train, test, privacy=privacy, schedule=schedule, permutations=12, clip=0.5, learning_rate=0.1, progress=False,
        projection=None,
    )  # fmt: skip
    assert planned.guarantee is not None
    assert run.guarantee.releases == planned.guarantee.releases
    assert run.guarantee.noise_multiplier == pytest.approx(planned.guarantee.noise_multiplier)
    np.testing.assert_allclose(run.noise_std, 0.5 * (planned.table_noise or 0.0))
    assert planned.costs.table_bytes == run.rows.numel() * 4
    assert f"releases: {planned.guarantee.releases} per party" in str(planned)


def test_bad_input() -> None:
    with pytest.raises(dpv.DpvalueError, match="parties must be a whole number of at least 2"):
        dpv.plan(1)
    with pytest.raises(dpv.DpvalueError, match="parties must be"):
        dpv.plan("many")
    with pytest.raises(dpv.DpvalueError, match=r"auc must be above 0\.5 and below 1, got 1\.5"):
        dpv.plan(5, auc=1.5)
    with pytest.raises(dpv.DpvalueError, match="parameters must be"):
        dpv.plan(5, parameters=0)


@pytest.fixture(name="public")
def made_public() -> Any:
    return flipped_breast_cancer(300)[1]


def test_both_mechanisms_are_stated_so_that_they_can_be_compared() -> None:
    found = dpv.plan(800)
    assert found.limits.laplace is not None
    assert found.limits.gaussian is not None
    assert (found.limits.laplace.delta, found.limits.laplace.mu) == (0.0, None)
    assert found.limits.laplace.advantage == pytest.approx(0.39, abs=5e-3)
    assert found.limits.gaussian.advantage == pytest.approx(0.12, abs=5e-3)
    assert found.limits.laplace_ceiling == pytest.approx(0.865, abs=5e-4)
    for part in (
        "pure",
        "mu = 0.298",
        "advantage 0.39",
        "advantage 0.12",
        "at most 0.881 without a trusted curator",
    ):
        assert part in str(found)
    several = dpv.plan(800, schedule="running-mean")
    assert several.limits.laplace is None
    assert several.limits.laplace_ceiling is None
    pure = dpv.plan(800, privacy=dpv.Privacy(delta=0))
    assert pure.limits.gaussian is None
    assert pure.guarantee is not None
    assert pure.guarantee.releases == 1
    assert dpv.plan(np.int64(800)).sizes.parties == 800
    with pytest.raises(dpv.DpvalueError, match="delta = 0 needs one release of one number"):
        dpv.plan(800, privacy=dpv.Privacy(delta=0), schedule="running-mean")


def test_without_data_a_wanted_auc_has_a_lower_bound() -> None:
    found = dpv.plan(800, privacy=dpv.Privacy(0.1), auc=0.881)
    assert found.epsilon_needed == pytest.approx(1.0, abs=2e-3)
    assert "AUC 0.881 needs epsilon = 1 or more without a trusted curator" in str(found)
    assert "cannot work" in found.advice
    assert "unit='record'" in found.advice
    assert found.expected_auc is None
    assert found.efficiency is None
    assert found.guarantee is None  # one number or all directions: open without a utility
    assert "needs a utility" in str(found)


@pytest.mark.slow
def test_records_speak_for_a_party_together(public: Any) -> None:
    """No bound on finding records bounds finding parties; with a utility the plan knows."""
    record = dpv.Privacy(unit="record")
    blind = dpv.plan(10, privacy=record, records=45, auc=0.95)
    assert blind.epsilon_needed is None
    assert "give a utility to see which epsilon" in str(blind)
    given: dict[str, Any] = {"privacy": record, "records": 45, "preprocess": StandardScaler()}
    with pytest.raises(dpv.DpvalueError, match="the refit game is planned by its agreement with retraining"):
        dpv.plan(10, public, auc=0.95, **given)
    seen = dpv.plan(10, public, auc=0.95, game="steps", **given)
    assert (seen.epsilon_needed or 9.0) < 0.5
    assert "expected AUC for parties with half of their labels wrong" in str(seen)
    shared = dpv.plan(10, privacy=dpv.Privacy(unit="person", parties_per_person=5), records=45)
    assert shared.limits.laplace is not None
    assert shared.limits.laplace_ceiling is None
    everyone = np.zeros(300, dtype=int)
    train, _, _ = flipped_breast_cancer(300)
    found = dpv.plan(train, groups=np.arange(300) % 3, persons=everyone, privacy=dpv.Privacy(unit="person"))
    assert found.sizes.units == 1  # a person in more parties than accounted for counts in the first, and stops nobody


@pytest.mark.slow
def test_a_few_public_rows_do_not_promise_much() -> None:
    """Labels that have nothing to do with the features: on average nothing is expected, however few rows there are."""
    expected = []
    for seed in range(12):
        generator = np.random.default_rng(seed)
        noise = generator.normal(size=(40, 4)), generator.integers(2, size=40)
        expected.append(dpv.plan(100, noise, privacy=dpv.Privacy(8.0), seed=seed).expected_auc or 0.0)
    assert np.mean(expected) < 0.58


@pytest.mark.slow
def test_small_budgets_are_not_thrown_away(public: Any) -> None:
    found = dpv.plan(300, public, privacy=dpv.Privacy(0.02), preprocess=StandardScaler())
    assert found.projection is not None
    assert (found.efficiency or 0.0) > 0.8


def test_with_a_utility_the_plan_is_the_choice_of_the_run(public: Any) -> None:
    train, test, _ = flipped_breast_cancer(300)
    planned = dpv.plan(train, test, preprocess=StandardScaler(), seed=4)
    table = dpv.release(train, test, preprocess=StandardScaler(), seed=4, noise="fast", progress=False)
    assert planned.projection == table.projection
    assert planned.expected_auc == table.expected_auc
    assert planned.guarantee is not None
    assert planned.guarantee.noise_multiplier == table.guarantee.noise_multiplier
    assert planned.costs.table_bytes == table.rows.numel() * 4
    assert (planned.costs.memory_bytes or 0) > 5 * table.rows.numel() * 4
    assert planned.efficiency == pytest.approx((planned.expected_auc or 0) / 0.3808 - 0.5 / 0.3808, abs=1e-3)
    assert "Laplace (chosen)" in str(planned)
    assert "can work" in planned.advice


@pytest.mark.slow
def test_the_epsilon_for_a_wanted_auc_gives_it(public: Any) -> None:
    found = dpv.plan(300, public, preprocess=StandardScaler(), auc=0.75)
    assert found.epsilon_needed is not None
    reached = dpv.plan(300, public, privacy=dpv.Privacy(found.epsilon_needed), preprocess=StandardScaler())
    assert reached.expected_auc == pytest.approx(0.75, abs=0.01)
    generator = np.random.default_rng(0)
    noise = generator.normal(size=(60, 3)), np.arange(60) % 2
    hopeless = dpv.plan(300, noise, auc=0.95)
    assert hopeless.epsilon_needed == float("inf")
    assert "out of reach at any epsilon" in str(hopeless)


@pytest.mark.slow
def test_advice_names_what_would_work(public: Any) -> None:
    train, _, _ = flipped_breast_cancer(300)
    settings: dict[str, Any] = {"privacy": dpv.Privacy(0.1), "preprocess": StandardScaler()}
    rows = dpv.plan(train, public, **settings)
    assert "cannot work: values would be close to random. AUC 0.75 needs epsilon = " in rows.advice
    sites = dpv.plan(train, public, groups=np.arange(300) % 6, game="steps", **settings)
    assert "With unit='record' and the same epsilon, the expected AUC is" in sites.advice
    refits = dpv.plan(train, public, groups=np.arange(300) % 6, **settings)
    assert "cannot work: its AUC ceiling is 0.55." in refits.advice
    assert "protect records (unit='record')" in refits.advice
    weak = dpv.plan(train, public, privacy=dpv.Privacy(0.35), preprocess=StandardScaler())
    assert "is weak" in weak.advice
    claimed = dpv.plan(9, privacy=dpv.Privacy(accounting="poisson"), schedule="running-mean", permutations=50)
    assert f"epsilon = {claimed.epsilon:.4g} per party" in claimed.advice


@pytest.mark.parametrize("unit", ["party", "record", "person"])
@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
def test_the_plan_reads_well_at_every_budget(unit: str, neighbours: str) -> None:
    """No limit that is none, no promise for any method, and no sentence that starts in its middle."""
    for epsilon in (0.01, 0.1, 0.3, 1.0, 4.0, 8.0, 40.0):
        for wanted in (None, 0.8):
            privacy = dpv.Privacy(epsilon, unit=unit, neighbours=neighbours)
            text = str(dpv.plan(10, privacy=privacy, records=50, auc=wanted))
            assert "1.000" not in text
            assert not re.search(r"(any|no|whatever the) method", text)
            assert not re.search(r"[.:;] (Or|And|But)\b", text)
            assert text.endswith(".")
            if detection.ceiling(epsilon, neighbours) > 0.9995:
                assert "no useful limit at this budget" in text


def test_advice_where_nothing_reaches_the_wanted_auc() -> None:
    """Out of reach at any epsilon: the advice says so, and what else can be done stands on its own."""
    budget = dpv.Privacy(0.1)
    ruled_out = replace(dpv.plan(10, privacy=budget), expected=Expectation(0.52, 0.01))
    assert advice(ruled_out, float("inf"), None) == (
        "epsilon = 0.1 per party cannot work: values would be close to random. No epsilon gives AUC 0.75 with this "
        "utility and model. Alternative: value data sets (groups=) and protect their records (unit='record'). "
        "Noise then shrinks with the size of a party."
    )
    records = advice(replace(ruled_out, privacy=replace(budget, unit="record")), float("inf"), None)
    assert records.endswith("No epsilon gives AUC 0.75 with this utility and model.")
    assert advice(ruled_out, 3.0, None).count("AUC 0.75 needs epsilon = 3.") == 1


def test_the_plan_reads_no_private_row(public: Any) -> None:
    train, _, _ = flipped_breast_cancer(300)
    junk = np.full_like(train[0], np.nan), np.full(300, "?")
    first, second = (dpv.plan(one, public, preprocess=StandardScaler()) for one in (train, junk))
    assert first.expected_auc == second.expected_auc
    # Memory and time are measured: they are of this process, as it is.
    texts = [re.sub(r"(?s)\nmemory: about .*?\ntime:[^\n]*", "", str(one)) for one in (first, second)]
    assert texts[0] == texts[1]
    assert "time:" not in texts[0]
