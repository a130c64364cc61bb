"""A semivalue and a game of one's own, by public names only: no file of the package is touched."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dpvalue as dpv
from dpvalue import games
from tests.datasets import classification

Coalitions = NDArray[np.bool_]
Numbers = NDArray[np.float64]

HALF = games.Semivalue("early", lambda n: np.where(np.arange(n) < n // 2, n / (n // 2), 0.0))
"""All weight on coalitions of less than half of the others, the same on each size."""


def name_of(semivalue: str | games.Semivalue) -> str:
    return semivalue if isinstance(semivalue, str) else semivalue.name


class Quota(games.Game):
    """Players vote with weights; a coalition that has the quota is worth 1."""

    def __init__(self, weights: list[int], quota: int) -> None:
        self.n, self.weights, self.quota, self.asked = len(weights), np.array(weights), quota, 0

    def worth(self, coalitions: Coalitions) -> Numbers:
        self.asked += len(coalitions)
        return np.asarray(coalitions @ self.weights >= self.quota, dtype=np.float64)


class Sum(Quota):
    """A coalition is worth the sum of its weights; so what a player is worth is known without asking."""

    def worth(self, coalitions: Coalitions) -> Numbers:
        self.asked += len(coalitions)
        return np.asarray(coalitions @ self.weights, dtype=np.float64)

    def exact(self, semivalue: games.Semivalue) -> Numbers:
        return self.weights.astype(np.float64)


def by_definition(game: games.Game, semivalue: games.Semivalue) -> list[float]:
    """The mean over sizes of the others, by weight, of the mean marginal over coalitions of that size."""
    n, p = game.n, semivalue.position_weights(game.n)

    def v(players: tuple[int, ...]) -> float:
        return float(game.worth(np.isin(np.arange(n), players)[None])[0])

    values = []
    for player in range(n):
        others = [other for other in range(n) if other != player]
        joined = [np.mean([v((*some, player)) - v(some) for some in combinations(others, size)]) for size in range(n)]
        values.append(float(np.mean(p * joined)))
    return values


@pytest.mark.parametrize("semivalue", [HALF, "shapley", "banzhaf", "beta(4,1)", "loo"], ids=name_of)
def test_a_game_of_ones_own_is_valued_exactly(semivalue: Any) -> None:
    game = Quota([4, 3, 2, 1, 1, 1], 7)
    found = games.value_game(game, semivalue=semivalue)
    np.testing.assert_allclose(found.values, by_definition(game, dpv.semivalue(semivalue)), atol=1e-12)
    assert (found.std_errors == 0).all()


@pytest.mark.parametrize("semivalue", [HALF, "shapley", "banzhaf"], ids=name_of)
def test_a_game_of_ones_own_is_sampled(semivalue: Any) -> None:
    game = Quota([4, 3, 2, 1, 1, 1], 7)
    exact, found = (games.value_game(game, 6, semivalue, permutations, seed=1) for permutations in (None, 2000))
    assert (np.abs(found.values - exact.values) <= 4 * found.std_errors + 1e-12).all()
    assert (found.std_errors > 0).any()


def test_a_game_of_many_players_is_sampled_and_leaving_one_out_takes_one_question_a_player() -> None:
    game = Quota([1] * 200, 150)
    found = games.value_game(game, permutations=40)
    assert found.values.sum() == pytest.approx(1.0)
    game.asked = 0
    assert games.value_game(game, semivalue="loo").values.tolist() == [0.0] * 200
    assert game.asked == 201
    with pytest.raises(dpv.DpvalueError, match="permutations must be given for n > 16"):
        games.value_game(game)


def test_a_game_that_knows_a_faster_way_is_not_asked() -> None:
    game = Sum(list(range(30)), 0)
    found = games.value_game(game, semivalue=HALF)
    assert found.values.tolist() == list(range(30))
    assert game.asked == 0
    np.testing.assert_allclose(games.value_game(game, permutations=3).values, range(30))
    assert game.asked > 0


def test_a_semivalue_of_ones_own_values_data() -> None:
    train, test = classification(20)
    result = dpv.value(
        train, test, semivalues=(HALF, "shapley"), privacy=dpv.Privacy(8.0), noise="fast", progress=False
    )
    assert list(result.frame().columns)[:4] == ["party", "size", "early", "early_mc_error"]
    assert np.isfinite(result.values["early"]).all()
    assert (result.noise_std(2)["early"] > 0).all()
    assert dpv.tasks.removal_curve(result, semivalue="early").mean[0] == pytest.approx(
        dpv.tasks.removal_curve(result, semivalue="shapley").mean[0]
    )


def test_what_a_game_must_be() -> None:
    class Wrong(Quota):
        def worth(self, coalitions: Coalitions) -> Numbers:
            return super().worth(coalitions)[:1]

    with pytest.raises(dpv.DpvalueError, match="worth must return one number per coalition"):
        games.value_game(Wrong([1, 2], 2))
    with pytest.raises(dpv.DpvalueError, match="n must be 2 for this game, or left out; got 3"):
        games.value_game(Quota([1, 2], 2), 3)
    with pytest.raises(dpv.DpvalueError, match="the n of a game must be a whole number of at least 1, got 0"):
        games.value_game(Quota([], 2))
    with pytest.raises(dpv.DpvalueError, match="n must be given with a function"):
        games.value_game(len)
