"""Valuing a fixed table: a true coalition game, whose exact answers are known."""

from __future__ import annotations

import dataclasses
from itertools import permutations as orders_of
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from tests.datasets import classification, flipped_breast_cancer

SETTINGS: dict[str, Any] = {
    "clip": 1.0, "learning_rate": 0.2, "noise": "fast", "progress": False, "projection": None,
}  # fmt: skip
ENGINE = dpv.Local(dtype="float64")


def table_of(n: int, **settings: Any) -> tuple[dpv.Table, Any]:
    train, test = classification(n)
    return dpv.release(train, test, engine=ENGINE, **{**SETTINGS, **settings}), test


def utility_of(table: dpv.Table, test: Any) -> Any:
    """V of a set of parties, by a model of its own."""

    def v(members: tuple[int, ...]) -> float:
        theta = table.initial - table.learning_rate * table.rows[list(members)].sum(0)
        rows = theta.view(3, 5)
        logits = torch.tensor(test[0]) @ rows[:, :4].T + rows[:, 4]
        return -float(torch.nn.functional.cross_entropy(logits, torch.tensor(test[1])))

    return v


@pytest.mark.parametrize("semivalue", ["shapley", "banzhaf", "beta(4,1)", "loo"])
def test_a_table_of_few_parties_is_the_game_of_its_sums(semivalue: str) -> None:
    table, test = table_of(6)
    found = table.value(test, semivalues=semivalue, engine=ENGINE, progress=False)
    expected = dpv.games.value_game(utility_of(table, test), 6, semivalue)
    np.testing.assert_allclose(found.values[semivalue], expected.values, atol=1e-12)
    assert found.walks == 0
    assert found.converged


def test_walks_over_a_table_are_marginals_of_that_game() -> None:
    """All 24 permutations of 4 parties together give the exact Shapley values."""
    table, test = table_of(4)
    orders = np.array(list(orders_of(range(4))))
    marginals = table.game(dpv.Utility(*test), ENGINE).walk(orders)
    values = np.array([marginals[orders == party].mean() for party in range(4)])
    np.testing.assert_allclose(values, dpv.games.value_game(utility_of(table, test), 4).values, atol=1e-12)


def test_what_a_table_knows_faster_is_what_its_worths_say() -> None:
    """Walks and leave-one-out, beside those that any game has."""
    table, test = table_of(9)
    game = table.game(dpv.Utility(*test), ENGINE)
    orders = np.array([np.random.default_rng(seed).permutation(9) for seed in range(5)])
    np.testing.assert_allclose(game.walk(orders), dpv.games.Game.walk(game, orders), atol=1e-12)
    np.testing.assert_allclose(game.leave_one_out(), dpv.games.Game.leave_one_out(game), atol=1e-12)
    other = game.with_rows(2 * game.rows)
    twice = dataclasses.replace(table, learning_rate=2 * table.learning_rate).game(dpv.Utility(*test), ENGINE)
    np.testing.assert_allclose(other.walk(orders), twice.walk(orders), atol=1e-12)


@pytest.mark.parametrize("privacy", [None, dpv.Privacy(epsilon=3.0)])
def test_shapley_sums_to_the_value_of_all(privacy: dpv.Privacy | None) -> None:
    table, test = table_of(40, privacy=privacy, schedule="replay")
    found = table.value(test, engine=ENGINE, permutations=25, progress=False)
    v = utility_of(table, test)
    assert found.values["shapley"].sum() == pytest.approx(v(tuple(range(40))) - v(()), abs=1e-10)


def test_leave_one_out_is_exact() -> None:
    table, test = table_of(30)
    found = table.value(test, semivalues=("loo", "shapley"), permutations=20, engine=ENGINE, progress=False)
    v = utility_of(table, test)
    everyone = tuple(range(30))
    expected = [v(everyone) - v(everyone[:j] + everyone[j + 1 :]) for j in range(30)]
    np.testing.assert_allclose(found.values["loo"], expected, atol=1e-12)
    assert (found.std_errors["loo"] == 0).all()
    assert (found.counts["loo"] == 1).all()


def test_it_stops_when_the_errors_are_small_enough_and_says_so() -> None:
    table, test = table_of(30, privacy=dpv.Privacy(epsilon=30.0))
    loose = table.value(test, tolerance=0.5, permutations=2000, engine=ENGINE, progress=False)
    tight = table.value(test, tolerance=0.1, permutations=2000, engine=ENGINE, progress=False)
    assert 20 <= loose.walks < tight.walks < 2000
    for found, tolerance in ((loose, 0.5), (tight, 0.1)):
        assert found.converged
        assert found.std_errors["shapley"].max() <= tolerance * found.values["shapley"].std()
    capped = table.value(test, tolerance=1e-9, permutations=30, engine=ENGINE, progress=False)
    assert capped.walks == 30
    assert not capped.converged


def test_the_standard_error_is_the_spread_over_seeds() -> None:
    table, test = table_of(20)
    runs = [
        table.value(test, tolerance=1e-9, permutations=25, seed=s, engine=ENGINE, progress=False) for s in range(120)
    ]
    spread = np.std([run.values["shapley"] for run in runs], axis=0)
    claimed = np.mean([run.std_errors["shapley"] for run in runs], axis=0)
    assert np.median(claimed / spread) == pytest.approx(1.0, abs=0.1)


def test_value_with_replay_is_release_then_value() -> None:
    train, test = classification(12)
    whole = dpv.value(train, test, semivalues=("shapley", "loo"), seed=3, engine=ENGINE, **SETTINGS)
    table = dpv.release(train, test, seed=3, engine=ENGINE, **SETTINGS)
    parts = table.value(test, semivalues=("shapley", "loo"), engine=ENGINE, progress=False)
    for name in ("shapley", "loo"):
        assert (whole.values[name] == parts.values[name]).all()


def test_lagged_walks_with_the_mean_of_earlier_rounds() -> None:
    """Rounds by hand: releases with a naive loop, values from walks over the mean of the rounds before."""
    n, rounds, probes, seed = 6, 3, 4, 2
    train, test = classification(n)
    settings: dict[str, Any] = {**SETTINGS, "privacy": dpv.Privacy(epsilon=9.0), "engine": ENGINE, "seed": seed}
    schedule = dpv.Schedule("lagged", rounds=rounds, probes=probes)
    found = dpv.value(train, test, schedule=schedule, permutations=rounds * probes, **settings)

    from dpvalue.privacy.noise import FastNoise
    from dpvalue.streams import Purpose, permutations

    std = found.guarantee.noise_multiplier or 0.0
    x, y = torch.tensor(train[0]), torch.tensor(train[1])

    def gradient(j: int, theta: torch.Tensor) -> torch.Tensor:
        theta = theta.clone().requires_grad_()
        logits = theta.view(3, 5) @ torch.cat([x[j], torch.ones(1, dtype=x.dtype)])
        (g,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, y[j]), theta)
        return g / max(1.0, float(g.norm()))

    releases: list[torch.Tensor] = []
    marginals: list[list[float]] = [[] for _ in range(n)]
    zero = torch.zeros(15, dtype=torch.float64)
    for number in range(rounds):
        table = torch.stack(releases).mean(0) if releases else None
        total = torch.zeros(n, 15, dtype=torch.float64)
        for order in permutations(seed, Purpose.PERMUTATION, number * probes, probes, n).tolist():
            members: tuple[int, ...] = ()
            for j in order:
                theta = zero if table is None else -0.2 * table[list(members)].sum(0)
                total[j] += gradient(j, theta) / probes
                if table is not None:
                    v = utility_of(found.table.__class__(**{**vars(found.table), "rows": table}), test)
                    marginals[j].append(v((*members, j)) - v(members))
                members = (*members, j)
        drawn = torch.cat([FastNoise(seed).rows(number, np.array([party]), zero, "gaussian", 0) for party in range(n)])
        releases.append(total + std * drawn)
    torch.testing.assert_close(found.table.rows, torch.stack(releases).mean(0), rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.values["shapley"], [np.mean(m) for m in marginals], atol=1e-10)
    assert found.walks == (rounds - 1) * probes


def test_correlated_schedules_take_their_errors_from_batch_means() -> None:
    """Marginals that share noise: s / sqrt(k) would claim far too little of what moves the mean."""
    from dpvalue.games.estimates import Estimator

    rng = np.random.default_rng(0)
    n, k = 5, 400
    naive, batched, means = [], [], []
    for _ in range(100):
        drift = np.repeat(rng.normal(0, 1, (20, n)), 20, axis=0)  # noise shared by 20 permutations in a row
        marginals = drift + rng.normal(0, 0.5, (k, n))
        estimator = Estimator(dpv.semivalue("shapley"), n, correlated=k)
        estimator.add(np.tile(np.arange(n), (k, 1)), marginals)
        naive.append(np.sqrt(estimator.estimate.sample_variances))
        batched.append(estimator.estimate.std_errors)
        means.append(estimator.estimate.values)
    spread = np.std(means)
    assert np.mean(batched) == pytest.approx(spread, rel=0.15)
    assert np.mean(naive) < 0.4 * spread


@pytest.mark.parametrize(("schedule", "shared"), [("running-mean", True), ("lagged", True), ("independent", False)])
def test_a_run_uses_batch_means_where_noise_is_shared(schedule: str, shared: bool) -> None:
    train, test = classification(6)
    found = dpv.value(train, test, schedule=schedule, permutations=100, semivalues=("shapley", "loo"), **SETTINGS)
    naive = np.sqrt(found.sample_variances["shapley"])
    assert np.array_equal(found.std_errors["shapley"], naive) != shared
    assert np.isnan(found.std_errors["loo"]).all() == shared  # too few of them for batches


def test_replay_finds_flipped_labels_under_privacy() -> None:
    """The quality of the whole path at a budget where the noise leaves something to find."""
    from sklearn.metrics import roc_auc_score
    from sklearn.preprocessing import StandardScaler

    scores = []
    for seed in range(3):
        train, test, flipped = flipped_breast_cancer(seed=seed)
        found = dpv.value(
            train, test, privacy=dpv.Privacy(epsilon=16.0), preprocess=StandardScaler(), noise="fast", seed=seed,
            permutations=100, progress=False,
        )  # fmt: skip
        scores.append(roc_auc_score(flipped, -found.values["shapley"]))
    assert np.mean(scores) > 0.8
