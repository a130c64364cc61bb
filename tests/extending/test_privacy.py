"""What a user adds from outside, by public names alone: a law of noise, and a clipping rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.privacy.clipping import RULES, ClippingRule, find_rule, register_rule
from dpvalue.privacy.laws import LAPLACE, LAWS, Law, Sampling, find_law, register_law
from tests.datasets import classification

TRAIN, TEST = classification(40)
COARSEST = 2.0**20  # the fewest steps that noise on a grid is wide


def laplace_tail(shift: Any) -> Any:
    return np.exp(-shift) * (2 + shift) / 4


def pure_sum(epsilon_each: float, releases: int) -> float:
    return epsilon_each * releases


# Laplace noise with twice the scale: another convention of what a scale is, so that every use of it shows.
DOUBLE = Law(
    name="double",
    sampling=Sampling(
        std=2 * sqrt(2),
        fill=lambda out, generator: LAPLACE.sampling.fill(out, generator).mul_(2),
        numbers=lambda generator, shape: generator.laplace(scale=2.0, size=shape),
        discrete=lambda words, bits, count: LAPLACE.sampling.discrete(words, bits + 1, count),
    ),
    loss=lambda multiplier, releases: pure_sum(1 / (2 * multiplier), releases),
    noise_multiplier=lambda epsilon, delta, releases: releases / (2 * epsilon),
    advantage=dpv.privacy.accounting.laplace_advantage,
    loss_distribution=lambda pld, multiplier: pld.from_laplace_mechanism(2 * multiplier),
    wins=lambda shift, first, second: LAPLACE.wins(shift, 2 * first, 2 * second),
    log_ratio=lambda seen, here, there, scale: ((seen - there).abs() - (seen - here).abs()) / (2 * scale),
    pure=True,
    scalar=True,
)
TWIN = replace(LAWS["gaussian"], name="twin", automatic=False)


def clip_each(vectors: torch.Tensor, norm: float) -> torch.Tensor:
    """Half as long as the norm, and no longer: a rule that wastes room."""
    return find_rule("flat").clip(vectors, norm / 2)


HALF = ClippingRule("half", clip_each, lambda excess: np.maximum(2 * excess, 1.0))


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    for law in (DOUBLE, TWIN):
        register_law(law)
    register_rule(HALF)
    yield
    for law in (DOUBLE, TWIN):
        del LAWS[law.name]
    del RULES[HALF.name]


@pytest.mark.parametrize("noise", ["fast", "secure"])
def test_a_law_from_outside_is_planned_run_saved_and_charged(noise: str, tmp_path: Path) -> None:
    privacy = dpv.Privacy(2.0, mechanism="double")
    plan = dpv.plan(len(TRAIN[1]), TEST, privacy=privacy)
    assert plan.guarantee is not None
    assert (plan.guarantee.mechanism, plan.guarantee.law, plan.guarantee.mu, plan.guarantee.delta) == (
        "Double",
        "double",
        None,
        0.0,
    )
    assert plan.guarantee.noise_multiplier == pytest.approx(0.25)
    assert "Double (chosen): delta = 0, pure, noise multiplier 0.25, attacker's advantage 0.63" in str(plan)
    assert plan.expected_auc is not None

    ledger = None
    if noise == "secure":
        ledger = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(2.0, delta=0), "me")
    result = dpv.value(TRAIN, TEST, privacy=privacy, noise=noise, ledger=ledger, progress=False, permutations=40)
    assert result.guarantee.law == "double"
    assert "Mechanism: " in str(result.guarantee)
    assert result.guarantee.epsilon_under("replace") == pytest.approx(4.0)
    # Twice the scale at half the multiplier: the noise is that of the Laplace mechanism.
    usual = dpv.value(TRAIN, TEST, privacy=replace(privacy, mechanism="laplace"), progress=False, permutations=40)
    assert result.guarantee.advantage == pytest.approx(usual.guarantee.advantage)
    np.testing.assert_allclose(result.table.noise_std, usual.table.noise_std)
    assert result.table.expected_auc == pytest.approx(usual.table.expected_auc)
    # Around the same rows: how far noise moves values depends on where it has put them.
    beside = replace(usual.table, rows=result.table.rows).value(TEST, progress=False, permutations=40)
    spread, usual_spread = (found.noise_std(draws=40)["shapley"] for found in (result, beside))
    assert spread.mean() == pytest.approx(usual_spread.mean(), rel=0.1)

    result.save(tmp_path / "result")
    assert isinstance(loaded := dpv.load(tmp_path / "result"), dpv.Result)
    assert loaded.guarantee == result.guarantee
    if ledger is not None:
        assert ledger.spent_epsilon == pytest.approx(2.0)
        assert [entry.charge.law for entry in ledger.entries() if entry.charge is not None] == ["double"]
        with pytest.raises(dpv.BudgetExceeded):
            dpv.value(TRAIN, TEST, privacy=privacy, ledger=dpv.Ledger(ledger.path, "more"), progress=False)


def test_simulated_noise_of_a_law_from_outside_is_drawn_by_it() -> None:
    settings: dict[str, Any] = {
        "schedule": "running-mean", "permutations": 4, "projection": None, "clip": 1.0, "noise": "fast",
        "progress": False,
    }  # fmt: skip
    twin, gaussian = (
        dpv.value(TRAIN, TEST, privacy=dpv.Privacy(2.0, mechanism=name), **settings) for name in ("twin", "gaussian")
    )
    np.testing.assert_array_equal(twin.values["shapley"], gaussian.values["shapley"])
    assert twin.guarantee == replace(gaussian.guarantee, mechanism="Twin")
    one, other = (
        replace(run.guarantee, noise=replace(run.guarantee.noise, simulation=False)) for run in (twin, gaussian)
    )  # what the same releases spend where the noise is secure
    assert dpv.privacy.total_epsilon([one], 5e-5) == pytest.approx(2.0, rel=1e-6)
    assert dpv.privacy.total_epsilon([one, other], 5e-5) == pytest.approx(dpv.privacy.total_epsilon([other] * 2, 5e-5))


@pytest.mark.slow
def test_an_audit_attacks_a_law_from_outside_by_its_own_likelihood() -> None:
    settings: dict[str, Any] = {
        "parties": 40, "utility": TEST, "runs": 100, "noise": "fast", "progress": False,
        "projection": dpv.Projection(1, steps=16),
    }  # fmt: skip
    sound, usual = (
        dpv.audit(privacy=dpv.Privacy(1.0, mechanism=name, delta=0), **settings) for name in ("double", "laplace")
    )
    assert 0.4 < sound.bound <= 1.0
    assert sound.bound == pytest.approx(usual.bound, abs=0.1)  # the same seeds, noise and scores, but for their scale
    # A law that says it is twice as wide as it is spends twice what it claims.
    too_narrow = replace(DOUBLE, name="narrow", sampling=replace(DOUBLE.sampling, fill=LAPLACE.sampling.fill))
    register_law(too_narrow)
    try:
        found = dpv.audit(privacy=dpv.Privacy(1.0, mechanism="narrow", delta=0), **settings)
    finally:
        del LAWS["narrow"]
    assert found.bound > 1.0
    assert not found.holds


def test_auto_never_chooses_a_law_or_rule_from_outside() -> None:
    assert dpv.Privacy().laws == ("gaussian", "laplace")
    assert dpv.Privacy(delta=0).laws == ("laplace",)
    assert dpv.Privacy(mechanism="twin").vector_law == "twin"
    assert dpv.Privacy(mechanism="double").vector_law is None


def test_a_law_is_held_to_what_it_says_it_protects() -> None:
    with pytest.raises(dpv.DpvalueError, match="delta must be positive for Twin noise, got 0"):
        dpv.Privacy(delta=0, mechanism="twin")
    with pytest.raises(dpv.DpvalueError, match="accounting='poisson' is for Gaussian noise, got mechanism='twin'"):
        dpv.Privacy(mechanism="twin", accounting="poisson")
    with pytest.raises(dpv.DpvalueError, match="mechanism='double' needs one release of one number"):
        dpv.value(TRAIN, TEST, privacy=dpv.Privacy(mechanism="double"), projection=None, progress=False)


def test_a_file_of_a_law_that_is_not_known_here_is_refused(tmp_path: Path) -> None:
    table = dpv.release(
        TRAIN, TEST, privacy=dpv.Privacy(mechanism="twin"), noise="fast", projection=None, clip=1.0, progress=False
    )
    table.save(tmp_path / "table")
    twin = LAWS.pop("twin")
    try:
        with pytest.raises(dpv.DpvalueError, match="mechanism must be one of Gaussian, Laplace, Double, got"):
            dpv.load(tmp_path / "table")
        with pytest.raises(dpv.DpvalueError, match="mechanism must be one of auto, gaussian, laplace, double; got"):
            dpv.Privacy(mechanism="twin")
    finally:
        LAWS["twin"] = twin


@pytest.mark.parametrize("name", ["gaussian", "auto", "Toy", "two words", ""])
def test_a_name_is_new_and_survives_files(name: str) -> None:
    with pytest.raises(dpv.DpvalueError, match="the name of a law must be a new lower-case word"):
        register_law(replace(TWIN, name=name))
    assert find_law("twin") is TWIN


@pytest.mark.parametrize("name", ["gaussian", "laplace", "double", "twin"])
def test_all_that_a_law_says_is_of_one_law(name: str) -> None:
    """Samplers, standard deviation, order, likelihood and cost are compared with each other."""
    law, count = find_law(name), 200_000
    generator = np.random.default_rng(1)
    drawn = law.sampling.fill(torch.empty(count, dtype=torch.float64), torch.Generator().manual_seed(1)).numpy()
    words = (
        law.sampling.discrete(lambda size: generator.integers(0, 2**64, size, dtype=np.uint64), 20, count) / COARSEST
    )
    for numbers in (drawn, law.sampling.numbers(generator, (count,)), words):
        assert numbers.std() == pytest.approx(law.sampling.std, rel=0.02)
        first, second = numbers.reshape(2, -1)
        for shift, other in ((-1.3, 1.0), (0.4, 1.0), (2.0, 1.0), (-0.7, 3.0), (1.1, 0.2)):
            measured = float((shift + first > other * second).mean())
            expected = float(law.wins(np.array(shift), np.array(1.0), np.array(other)))
            assert expected == pytest.approx(measured, abs=5 * sqrt(0.25 / len(first)))
    # At the noise multiplier for a budget, the loss is the budget's, and the attacker's advantage is that of the
    # likelihood ratio between neighbours that are one sensitivity apart.
    multiplier = law.noise_multiplier(1.5, 1e-5, 1)
    loss = law.loss(multiplier, 1)
    assert law.epsilon(loss, 1e-5) == pytest.approx(1.5)
    here, there, scale = torch.ones(1), torch.zeros(1), torch.tensor(multiplier)
    favours = [law.log_ratio(torch.from_numpy(drawn * multiplier + at), here, there, scale) > 0 for at in (1.0, 0.0)]
    measured = float(favours[0].double().mean() - favours[1].double().mean())
    assert law.advantage(loss, 1) == pytest.approx(measured, abs=0.01)


def test_a_clipping_rule_from_outside_bounds_what_leaves_and_is_rehearsed() -> None:
    privacy = dpv.Privacy(8.0, mechanism="gaussian")
    table = dpv.release(TRAIN, TEST, privacy=privacy, clip_rule="half", noise="fast", progress=False)
    usual = dpv.release(TRAIN, TEST, privacy=privacy, clip_rule="flat", noise="fast", progress=False)
    assert table.expected_auc is not None
    assert usual.expected_auc is not None
    assert table.expected_auc < usual.expected_auc  # the same noise on half the signal
    free = dpv.release(TRAIN, TEST, privacy=None, clip=0.5, clip_rule="half", schedule="replay", progress=False)
    assert 0.1 < float(free.rows.norm(dim=1).max()) <= 0.25
    with pytest.raises(dpv.DpvalueError, match="the name of a clipping rule must be new, got 'flat'"):
        register_rule(replace(HALF, name="flat"))


@pytest.mark.parametrize("name", ["flat", "normalise", "half"])
def test_a_rule_on_lengths_is_the_rule_on_vectors(name: str) -> None:
    rule, norm = find_rule(name), 0.7
    vectors = np.random.default_rng(0).normal(size=(500, 3)) * np.geomspace(1e-3, 10, 500)[:, None]
    clipped = rule.clip(torch.from_numpy(vectors), norm)
    divisors = rule.divisor(np.linalg.norm(vectors, axis=1) / norm)
    np.testing.assert_allclose(clipped.numpy(), vectors / divisors[:, None], rtol=1e-10)
    assert (clipped.norm(dim=1) <= norm).all()
    bad = torch.tensor([[1.0, inf, 0.0], [torch.nan, 1.0, 1.0]], dtype=torch.float64)
    assert not rule.clip(bad, norm).any()
