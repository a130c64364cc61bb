"""One number a party: the game of one variable says what the game of models says, and of many parties what walks do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.games.semivalues import semivalue, semivalues
from dpvalue.games.solving import _walk, estimate_values
from dpvalue.methods import few as few_module
from dpvalue.methods.few import MANY, FewGame, LineGame
from dpvalue.methods.scores import AdditiveGame
from dpvalue.methods.sums import TableGame
from dpvalue.streams import Purpose
from tests.datasets import classification, regression

ENGINE = dpv.Local(device="cpu", dtype="float64")


def games(n: int, metric: str = "loss", classes: int = 2, **given: Any) -> tuple[LineGame, TableGame]:
    """The same table as both games."""
    data = regression(n, test=60) if metric == "mse" else classification(n, classes=classes, features=4, test=60)
    private, public = data
    settings: dict[str, Any] = {"model": "linear" if metric == "mse" else "logistic", "engine": ENGINE, **given}
    settings |= {"privacy": dpv.Privacy(2.0), "projection": dpv.Projection(1), "noise": "fast"}
    table = dpv.release(private, public, progress=False, **settings)
    line = table.game(dpv.Utility(*public, metric=metric), ENGINE)
    assert isinstance(line, LineGame)
    return line, TableGame(line.walker, line.evaluate, line.rows)


@pytest.mark.parametrize(("metric", "classes"), [("loss", 3), ("accuracy", 2), ("accuracy", 3), ("mse", 0)])
def test_walks_and_leave_one_out_are_those_of_the_models(metric: str, classes: int) -> None:
    line, whole = games(60, metric, classes)
    orders = np.stack([np.random.default_rng(seed).permutation(60) for seed in range(5)])
    expected = whole.walk(orders)
    assert np.abs(expected).max() > 1e-3
    assert np.abs(line.walk(orders) - expected).max() < 1e-6 * np.abs(expected).max() + 1e-12
    alone = whole.leave_one_out()
    assert np.abs(line.leave_one_out() - alone).max() <= 1e-6 * np.abs(alone).max()
    far = torch.linspace(-30, 40, 60, dtype=torch.float64)[:, None]  # beyond what was tabulated before
    moved, other = line.with_rows(far), whole.with_rows(far)
    assert np.abs(moved.walk(orders) - other.walk(orders)).max() < 1e-5 * np.abs(other.walk(orders)).max()


def test_what_a_game_gets_does_not_depend_on_games_before_it() -> None:
    """Tables of the line are shared by games of other rows, which may reach farther."""
    orders = np.stack([np.random.default_rng(seed).permutation(40) for seed in range(3)])
    first, _ = games(40)
    walked, left_out = first.walk(orders), first.leave_one_out()
    again, _ = games(40)
    for factor in (0.3, 1.1, 5.0):
        again.with_rows(factor * again.rows).walk(orders)
    np.testing.assert_array_equal(again.walk(orders), walked)
    np.testing.assert_array_equal(again.leave_one_out(), left_out)


def test_of_equal_outputs_the_first_class_wins() -> None:
    """At the start all outputs are zero: there the model says the first class, and a hair further another."""
    line, whole = games(40, "accuracy", 3)
    nobody = np.zeros((1, 40), dtype=bool)
    assert float(whole.worth(nobody)[0]) == pytest.approx(line._line.over(0.0, 0.0)(np.zeros(1))[0])


@pytest.mark.parametrize("name", ["shapley", "banzhaf", "beta(4,1)", "beta(1,16)"])
def test_expectations_are_what_walks_estimate(name: str) -> None:
    line, _ = games(MANY)
    kind = semivalue(name)
    known = line.direct_estimate(kind)
    assert known is not None
    walked = _walk(line, (kind,), 3000, None, 1, Purpose.REPLAY, lambda *progress: None).estimates[name]
    off = (known.values - walked.values) / walked.std_errors
    assert 0.85 < float(np.sqrt(np.mean(off**2))) < 1.15
    assert abs(float(off.mean())) < 0.2
    assert float(np.corrcoef(known.values, walked.values)[0, 1]) > 0.9


def test_shapley_values_sum_to_what_everybody_is_worth() -> None:
    for n in (MANY, 4 * MANY):
        line, whole = games(n)
        found = estimate_values(line, semivalues(("shapley", "loo")), 1000, 0.1, 0)
        assert found.walks == 0
        worth = whole.worth(np.array([[False] * n, [True] * n]))
        values, errors = found.estimates["shapley"].values, found.estimates["shapley"].std_errors
        assert abs(values.sum() - (worth[1] - worth[0])) < 2e-6 * abs(worth[1] - worth[0]) + errors.sum()
        assert errors.sum() < 1e-4 * np.abs(values).sum()
        assert np.abs(found.estimates["loo"].values - whole.leave_one_out()).max() < 1e-9


def test_what_has_steps_or_weights_of_its_own_is_walked() -> None:
    line, _ = games(MANY, "accuracy")
    found = estimate_values(line, semivalues("shapley"), 40, 1e-9, 0)
    assert found.walks == 40
    smooth, _ = games(MANY)
    own = dpv.Semivalue("first", lambda n: np.concatenate([[n], np.zeros(n - 1)]))
    assert estimate_values(smooth, (own,), 40, 1e-9, 0).walks == 40
    few, _ = games(200)
    assert estimate_values(few, semivalues("shapley"), 40, 1e-9, 0).walks == 40


def test_banzhaf_values_of_many_parties_are_numbers() -> None:
    """Their weights underflow far from the middle; a party that was only seen there has the value 0, not none."""
    line, _ = games(3 * MANY, "accuracy")
    found = estimate_values(line, semivalues("banzhaf"), 20, 1e-9, 0).estimates["banzhaf"]
    assert np.isfinite(found.values).all()


def test_a_million_parties() -> None:
    line, _ = games(MANY)
    many = line.with_rows((line.rows / 1000).repeat(1000, 1))
    found = estimate_values(many, semivalues(("shapley", "banzhaf", "beta(4,1)")), 1000, 0.1, 0)
    assert found.walks == 0
    whole, nobody = many.worth(np.stack([np.ones(10**6, dtype=bool), np.zeros(10**6, dtype=bool)]))
    assert abs(found.estimates["shapley"].values.sum() - (whole - nobody)) < 1e-6


def few(n: int, m: int) -> FewGame:
    private, public = classification(400, classes=3, features=6, test=80)
    settings: dict[str, Any] = {"privacy": dpv.Privacy(8.0), "projection": dpv.Projection(m, "classes")}
    table = dpv.release(private, public, noise="fast", progress=False, engine=ENGINE, **settings)
    game = table.game(dpv.Utility(*public), ENGINE)
    assert isinstance(game, FewGame)
    drawn = torch.from_numpy(np.random.default_rng(0).integers(400, size=n))
    return game.with_rows(game.rows[drawn] * (400 / n))


@pytest.mark.parametrize("m", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["shapley", "banzhaf", "beta(4,1)"])
def test_expectations_in_few_dimensions_are_what_walks_estimate(
    m: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    game, kind = few(1000, m), semivalue(name)
    assert game.direct_estimate(kind) is None  # so few are walked
    monkeypatch.setitem(few_module.MANY_ROWS, m, 1000)
    known = game.direct_estimate(kind)
    assert known is not None
    walked = _walk(game, (kind,), 300, None, 1, Purpose.REPLAY, lambda *progress: None).estimates[name]
    off = (known.values - walked.values) / walked.std_errors
    assert 0.85 < float(np.sqrt(np.mean(off**2))) < 1.25
    assert abs(float(off.mean())) < 0.2
    assert float(np.corrcoef(known.values, walked.values)[0, 1]) > 0.9


def test_values_of_many_parties_in_two_dimensions_sum_to_what_all_are_worth() -> None:
    game = few(200_000, 2)
    found = estimate_values(game, semivalues(("shapley", "loo")), 1000, 0.1, 0)
    assert found.walks == 0
    worth = game.worth(np.array([[False] * game.n, [True] * game.n]))
    values, errors = found.estimates["shapley"].values, found.estimates["shapley"].std_errors
    assert abs(float(values.sum() - (worth[1] - worth[0]))) < 1e-5 * abs(float(worth[1] - worth[0]))
    assert float(errors.sum()) < 1e-5 * abs(float(worth[1] - worth[0]))
    nobody = game.with_rows(torch.cat([game.rows, torch.zeros(1, 2, dtype=torch.float64)]))
    known = nobody.direct_estimate(semivalue("shapley"))
    assert known is not None
    assert known.values[-1] == 0


def constant(outputs: Any, labels: Any) -> float:
    return 0.0


def test_steps_and_functions_of_ones_own_are_walked() -> None:
    private, public = classification(400, classes=3, features=6, test=80)
    settings: dict[str, Any] = {"privacy": dpv.Privacy(8.0), "projection": dpv.Projection(2, "classes")}
    table = dpv.release(private, public, noise="fast", progress=False, engine=ENGINE, **settings)
    for metric in ("accuracy", "auc", constant):
        assert type(table.game(dpv.Utility(*public, metric=metric), ENGINE)) is TableGame


def test_an_additive_game_is_valued_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every semivalue of 300,000 scores is the score: nothing is walked, and no coalition is asked for."""
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(300_000, 1)))
    for name in ("walk", "worth"):
        monkeypatch.setattr(AdditiveGame, name, lambda *given: pytest.fail("it was walked"))
    kinds = semivalues(("shapley", "banzhaf", "beta(4,1)", "loo"))
    found = estimate_values(AdditiveGame(scores), kinds, 1000, 0.1, 0)
    assert (found.walks, found.converged) == (0, True)
    for estimate in found.estimates.values():
        np.testing.assert_allclose(estimate.values, scores[:, 0].numpy(), rtol=1e-9)
        assert not estimate.std_errors.any()
