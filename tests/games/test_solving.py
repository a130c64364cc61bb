"""Known answers: exact by enumeration, within four standard errors by sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.games.solving import FunctionGame, ListedGame, estimate_values, value_game

Game = Callable[[tuple[int, ...]], float]


def shoes(players: tuple[int, ...]) -> float:
    """Three left shoes (0, 1, 2) and two right ones: pairs are worth 1."""
    left = sum(player < 3 for player in players)
    return float(min(left, len(players) - left))


def majority(players: tuple[int, ...]) -> float:
    return float(len(players) > 2)


def airport(players: tuple[int, ...]) -> float:
    return float(max((8, 11, 13, 18)[player] for player in players)) if players else 0.0


KNOWN = [
    (shoes, "shapley", [7 / 30] * 3 + [0.65] * 2),
    (shoes, "banzhaf", [0.3125] * 3 + [0.6875] * 2),
    (shoes, "loo", [0.0] * 3 + [1.0] * 2),
    (shoes, "beta(4,1)", [41 / 210] * 3 + [5 / 14] * 2),
    (shoes, "beta(16,1)", [1316 / 14535] * 3 + [41 / 285] * 2),
    (majority, "shapley", [1 / 4] * 4),
    (majority, "banzhaf", [0.375] * 4),
    (airport, "shapley", [2.0, 3.0, 4.0, 9.0]),
    (airport, "banzhaf", [1.0, 1.75, 2.75, 7.75]),
    (airport, "loo", [0.0, 0.0, 0.0, 5.0]),
]


@pytest.mark.parametrize(("game", "semivalue", "expected"), KNOWN)
def test_enumeration_is_exact(game: Game, semivalue: str, expected: list[float]) -> None:
    found = value_game(game, len(expected), semivalue)
    np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-9)
    assert (found.std_errors == 0).all()


@pytest.mark.parametrize(("game", "semivalue", "expected"), KNOWN)
def test_sampling_is_within_four_standard_errors(game: Game, semivalue: str, expected: list[float]) -> None:
    found = value_game(game, len(expected), semivalue, permutations=2000, seed=1)
    assert (np.abs(found.values - expected) <= 4 * found.std_errors + 1e-12).all()
    assert (found.std_errors < 0.25).all()


def test_standard_errors_are_the_spread_over_seeds() -> None:
    runs = [value_game(shoes, 5, "banzhaf", permutations=100, seed=seed) for seed in range(300)]
    spread = np.std([run.values for run in runs], axis=0)
    claimed = np.mean([run.std_errors for run in runs], axis=0)
    np.testing.assert_allclose(claimed, spread, rtol=0.15)


def test_sampling_is_unbiased() -> None:
    runs = np.array([value_game(shoes, 5, "beta(4,1)", permutations=20, seed=seed).values for seed in range(500)])
    expected = value_game(shoes, 5, "beta(4,1)").values
    assert (np.abs(runs.mean(0) - expected) < 4 * runs.std(0) / np.sqrt(500)).all()


def test_a_custom_semivalue_of_pairs() -> None:
    """All weight on joining one other player."""
    second = dpv.Semivalue("second", lambda n: np.array([0.0, n] + [0.0] * (n - 2)))
    np.testing.assert_allclose(value_game(shoes, 5, second).values, [0.5, 0.5, 0.5, 0.75, 0.75], atol=1e-12)


def test_a_party_never_sampled_at_a_weighted_position_is_nan() -> None:
    found = value_game(airport, 4, "loo", permutations=1, seed=0)
    assert found.counts.sum() == 1
    assert np.isnan(found.values[found.counts == 0]).all()
    assert np.isfinite(found.values[found.counts == 1]).all()


def test_many_players_must_be_sampled() -> None:
    with pytest.raises(dpv.DpvalueError, match="permutations must be given"):
        value_game(majority, 17)
    assert value_game(majority, 17, permutations=3).values.sum() == pytest.approx(1.0)


def test_shapley_values_of_every_sampled_permutation_add_up() -> None:
    assert value_game(airport, 4, permutations=7).values.sum() == pytest.approx(18.0)


@pytest.mark.parametrize(("game", "semivalue", "expected"), KNOWN)
def test_a_list_of_worths_is_a_game(game: Game, semivalue: str, expected: list[float]) -> None:
    n = len(expected)
    worths = [game(tuple(player for player in range(n) if mask >> player & 1)) for mask in range(2**n)]
    listed = ListedGame(worths)
    np.testing.assert_allclose(value_game(listed, semivalue=semivalue).values, expected, atol=1e-9)
    by_list, by_function = (value_game(either, n, semivalue, permutations=30, seed=2) for either in (listed, game))
    np.testing.assert_array_equal(by_list.values, by_function.values)
    np.testing.assert_allclose(listed.leave_one_out(), value_game(game, n, "loo").values)


@pytest.mark.parametrize("worths", [[], [1.0], [0.0, 1.0, 2.0], [[0.0, 1.0], [1.0, 2.0]]])
def test_a_list_of_worths_has_one_for_each_coalition(worths: list[Any]) -> None:
    with pytest.raises(dpv.DpvalueError, match="worths must be 2\\^n numbers"):
        ListedGame(worths)


def test_a_function_is_asked_once_for_a_coalition_in_a_batch() -> None:
    asked: list[tuple[int, ...]] = []

    def v(players: tuple[int, ...]) -> float:
        asked.append(players)
        return float(len(players))

    value_game(v, 4, permutations=20)
    assert len(set(asked)) == len(asked) <= 16


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few coalitions fit at once."""
    whole = [value_game(shoes, 5, "banzhaf", permutations) for permutations in (None, 45)]
    left_out = FunctionGame(shoes, 5).leave_one_out()
    monkeypatch.setattr("dpvalue.games.solving._MOST_CELLS", 11)
    pieces = [value_game(shoes, 5, "banzhaf", permutations) for permutations in (None, 45)]
    for expected, found in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(FunctionGame(shoes, 5).leave_one_out(), left_out)


def test_an_estimate_is_exact_where_that_is_cheap_and_walks_to_its_tolerance_elsewhere() -> None:
    game, kinds = FunctionGame(shoes, 5), (dpv.semivalue("loo"), dpv.semivalue("shapley"))
    all_of_them = estimate_values(game, kinds, 7, 0.1, seed=0)  # 35 coalitions along walks, 32 in all
    assert (all_of_them.walks, all_of_them.converged) == (0, True)
    walked = estimate_values(game, kinds, 6, 0.1, seed=0)
    assert (walked.walks, walked.converged) == (6, False)
    assert walked.estimates["loo"].values.tolist() == [0.0, 0.0, 0.0, 1.0, 1.0]
    many = FunctionGame(lambda players: sum(players) ** 2 / 100, 20)
    loose, tight = (estimate_values(many, kinds, 2000, tolerance, seed=0) for tolerance in (0.2, 0.1))
    assert 20 <= loose.walks < tight.walks < 2000
    for valued, tolerance in ((loose, 0.2), (tight, 0.1)):
        shapley = valued.estimates["shapley"]
        assert list(valued.estimates) == ["loo", "shapley"]
        assert valued.converged
        assert shapley.std_errors.max() <= tolerance * shapley.values.std()


@pytest.mark.parametrize(("n", "permutations", "seed"), [(0, None, 0), (3, 0, 0), (3, 2.5, 0), (3, 5, -1)])
def test_bad_input(n: int, permutations: int, seed: int) -> None:
    with pytest.raises(dpv.DpvalueError, match="must be"):
        value_game(majority, n, "shapley", permutations, seed)
