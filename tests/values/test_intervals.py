"""Intervals: the rule, what it covers, and who can be told apart by it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.arrays import Bools, Floats
from dpvalue.methods.refitting import RefitGame
from dpvalue.privacy.laws import find_law
from dpvalue.values.comparison import compare, groups
from dpvalue.values.intervals import NoiseDraws, default_draws, ranks
from dpvalue.values.payouts import share_out, split
from tests.datasets import Arrays, classification

SETTINGS: dict[str, Any] = {"noise": "fast", "progress": False}


def renoised(draws: Floats, estimate: Floats | None = None, errors: Floats | None = None) -> NoiseDraws:
    """Draws around an estimate, without Monte Carlo errors."""
    middle = draws.mean(0) if estimate is None else estimate
    return NoiseDraws(middle, middle, draws, np.zeros(len(middle)) if errors is None else errors, seed=0)


@pytest.fixture(name="data", scope="module")
def made_data() -> tuple[Arrays, Arrays]:
    return classification(240, seed=3)


@pytest.fixture(name="result", scope="module")
def made_result(data: tuple[Arrays, Arrays]) -> dpv.Result:
    """Six parties of 5 to 75 records."""
    sites = np.repeat(list("abcdef"), [5, 20, 40, 50, 50, 75])
    return dpv.value(
        *data, groups=sites, semivalues=("shapley", "loo"), privacy=dpv.Privacy(2.0, unit="record"), **SETTINGS
    )


def test_the_rule_is_what_it_says() -> None:
    draws = np.array([[1.0, 4.0], [3.0, 4.0], [5.0, 4.0]])
    found = renoised(draws, estimate=np.array([2.0, 4.0])).values()
    np.testing.assert_allclose(found.low, [2 - (2.2 * 2 + 1), 4])  # sd 2, off by 1
    np.testing.assert_allclose(found.high, [2 + (2.2 * 2 + 1), 4])
    wide = renoised(draws, estimate=np.array([2.0, 4.0])).values(level=0.99)
    np.testing.assert_allclose(wide.high[0], 2 + 2.2 * 2.5758293 / 1.9599640 * 2 + 1)
    for level in (0.0, 1.0, 95, float("nan")):
        with pytest.raises(dpv.DpvalueError, match="level must be above 0 and below 1"):
            renoised(draws).values(level)


def test_how_far_draws_are_off_is_measured_by_the_same_walks() -> None:
    """A value that was walked further than its draws differs from their mean by chance, which is no noise."""
    draws = np.array([[1.0], [2.0], [3.0]])
    found = NoiseDraws(np.array([7.0]), np.array([2.0]), draws, np.zeros(1), seed=0).values()
    np.testing.assert_allclose([found.low[0], found.high[0]], [7 - 2.2, 7 + 2.2])


@pytest.mark.parametrize("game", ["steps", "refit"])
def test_monte_carlo_errors_are_part_of_all_intervals(data: tuple[Arrays, Arrays], game: str) -> None:
    result = dpv.value(*data, privacy=None, groups=np.arange(240) % 20, permutations=30, game=game, **SETTINGS)
    errors, found = result.std_errors["shapley"], result.intervals()
    assert (errors > 0).all()
    np.testing.assert_allclose(found.high - found.estimate, 2.2 * errors)
    assert (result.noise_std()["shapley"] == 0).all()
    ranked = result.noise_draws()["shapley"].ranks()
    assert (ranked.low < ranked.high).any()
    pay = result.shares(100.0)
    in_doubt = pay.low < pay.high
    assert in_doubt[found.estimate > 0].all()
    assert game == "refit" or in_doubt.all()
    noisy = np.random.default_rng(0).normal(0, 3, (4000, 1))
    both = renoised(noisy, errors=np.array([4.0])).values()
    assert both.high[0] - both.estimate[0] == pytest.approx(2.2 * 5, rel=0.03)  # in quadrature


def test_without_privacy_and_without_sampling_nothing_is_in_doubt(data: tuple[Arrays, Arrays]) -> None:
    result = dpv.value(*data, privacy=None, schedule="replay", groups=np.arange(240) % 5, **SETTINGS)
    assert result.walks == 0
    found = result.intervals()
    assert (found.low == found.estimate).all()
    assert (found.high == found.estimate).all()
    assert len(result.groups()) == 5
    assert result.compare(0, 1).confidence == 1.0
    assert (result.shares(9.0).low == result.shares(9.0).high).all()


def test_ranks_are_whole_and_within_the_parties() -> None:
    generator = np.random.default_rng(0)
    middle = np.array([3.0, 2.0, 1.9, -50.0])
    found = renoised(middle + generator.normal(0, 0.2, (50, 4)), estimate=middle).ranks()
    assert found.estimate.tolist() == [1, 2, 3, 4]
    assert found.low.tolist() == [1, 1, 1, 4]
    assert found.high.tolist() == [1, 4, 4, 4]  # widened to whole numbers
    np.testing.assert_array_equal(ranks(np.array([[1.0, 1.0, 2.0], [np.nan, 0.0, 5.0]])), [[2, 3, 1], [np.nan, 2, 1]])


def gaps(values: Floats) -> Floats:
    return np.asarray(values[..., :-1] - values[..., 1:])


@pytest.mark.parametrize("tables", [12, pytest.param(60, marks=pytest.mark.slow)])
def test_intervals_cover_what_there_would_be_without_noise(
    data: tuple[Arrays, Arrays], result: dpv.Result, tables: int
) -> None:
    """Values, differences, ranks and payouts of noisy tables made of one; percentiles of draws cover less."""
    table, semivalues = result.table, ("shapley", "loo")
    law, rows = find_law(table.guarantee.law), table.rows
    truth = table.value(data[1], semivalues=semivalues, progress=False).values
    covered: dict[str, list[Bools]] = {"value": [], "difference": [], "rank": [], "payout": [], "percentile": []}
    for seed in range(tables):
        drawn = law.sampling.numbers(np.random.default_rng(seed), tuple(rows.shape)) / law.sampling.std
        noisy = replace(table, rows=rows + torch.from_numpy(table.noise_std[:, None] * drawn).to(rows), seed=seed)
        valued = noisy.value(data[1], semivalues=semivalues, progress=False)
        for name, true in truth.items():
            found = valued.noise_draws(draws=30)[name]
            shares = share_out(table.names, found, 1.0)
            for kind, interval, at in (
                ("value", found.values(), true), ("difference", found.interval(gaps), gaps(true)),
                ("rank", found.ranks(), ranks(true)), ("payout", shares, split(true, 1.0)),
            ):  # fmt: skip
                covered[kind].append((interval.low - 1e-12 <= at) & (at <= interval.high + 1e-12))
            low, high = np.quantile(found.draws, [0.025, 0.975], axis=0)
            covered["percentile"].append((low <= true) & (true <= high))
    pooled = {kind: float(np.mean(hits)) for kind, hits in covered.items()}
    for kind in ("value", "difference", "rank", "payout"):
        assert pooled[kind] >= 0.92, pooled
        assert np.mean(covered[kind], axis=0).min() >= 0.85, kind
    assert pooled["value"] > pooled["percentile"] + 0.02, pooled


def test_draws_are_made_once(result: dpv.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    again = replace(result)
    spread = again.noise_std()
    assert again.noise_draws()["shapley"].draws.shape == (30, 6)
    from dpvalue.values import noisy as module

    monkeypatch.setattr(module, "draw_noise", None)  # nobody may ask for it again
    np.testing.assert_array_equal(spread["loo"], again.noise_draws(30)["loo"].noise_std)
    again.verdict()
    with pytest.raises(TypeError):
        again.noise_draws(29)
    with pytest.raises(dpv.DpvalueError, match="draws must be a whole number of at least 2"):
        again.noise_draws(1)


@pytest.mark.parametrize(
    ("parties", "walks", "draws"), [(8, 0, 30), (12, 0, 20), (16, 0, 20), (8, 40, 20), (20_000, 40, 10), (10**6, 40, 4)]
)
def test_how_many_draws_there_are(parties: int, walks: int, draws: int) -> None:
    assert default_draws(parties, walks) == draws


def test_a_loaded_result_takes_its_utility_again(
    result: dpv.Result, data: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    result.save(tmp_path / "file")
    loaded = dpv.load(tmp_path / "file")
    assert isinstance(loaded, dpv.Result)
    assert loaded.table.sizes.tolist() == [5, 20, 40, 50, 50, 75]
    for ask in (loaded.intervals, loaded.groups, loaded.verdict):
        with pytest.raises(dpv.DpvalueError, match="utility must be given"):
            ask()
    np.testing.assert_array_equal(loaded.intervals(utility=data[1]).low, result.intervals().low)
    other = classification(240, seed=4)[1]
    assert (loaded.intervals(utility=other).low != result.intervals().low).all()  # nor is it taken for the one before
    assert str(loaded.verdict(utility=data[1])) == str(result.verdict())
    assert loaded.frame(noise=True, utility=data[1], pay=10.0).equals(result.frame(noise=True, pay=10.0))


def test_a_comparison_says_what_its_interval_does() -> None:
    generator = np.random.default_rng(0)
    middle = np.array([1.0, 0.5, 0.45])
    found = renoised(middle + generator.normal(0, 0.05, (400, 3)), estimate=middle)
    apart, alike = (compare(("a", "b", "c"), found, *pair, 0.95) for pair in (("b", "a"), ("b", "c")))
    assert apart.distinguishable
    assert apart.confidence > 0.99999
    assert apart.difference == -0.5
    assert str(apart).startswith("a is worth more than b with a confidence of more than 99.9%: b minus a is -0.5 (95%")
    assert not alike.distinguishable
    assert str(alike).startswith("b and c cannot be distinguished: their values differ by 0.05 (95% interval -0.")
    edge = compare(("a", "b", "c"), found, "b", "c", alike.confidence)  # just at that level it leaves out 0
    assert edge.low == pytest.approx(0, abs=1e-9)
    for names, message in ((("a", "z"), "party must be one of 'a', 'b', 'c'; got 'z'"), (("a", "a"), "'a' twice")):
        with pytest.raises(dpv.DpvalueError, match=message):
            compare(("a", "b", "c"), found, *names, 0.95)


def test_no_two_of_a_group_can_be_told_apart() -> None:
    """Neighbours cannot, in a chain of six, but its ends can: no group holds both."""
    generator = np.random.default_rng(0)
    middle = np.array([5.0, 0.4, 0.3, 0.2, 0.1, 0.0, np.nan])
    found = renoised(middle + generator.normal(0, 0.05, (200, 7)), estimate=middle)
    names = tuple("abcdefg")
    grouped = groups(names, found, 0.95)
    assert sum(grouped, ()) == names  # from the highest down, everyone once
    assert grouped[0] == ("a",)
    assert grouped[-1] == ("g",)
    assert len(grouped) > 3
    for group in grouped:
        for one in group:
            assert not any(compare(names, found, one, other, 0.95).distinguishable for other in group if other != one)
    for above, below in pairwise(grouped[:-1]):
        assert any(compare(names, found, below[0], other, 0.95).distinguishable for other in above)


def test_where_data_may_be_anything_intervals_are_those_of_what_it_may_be() -> None:
    """Fresh noise counts where it moves values more, and up to twice as much."""
    generator = np.random.default_rng(3)
    middle, without = np.zeros(1), generator.normal(0, 1.0, (4000, 1))
    for noise, expected in ((0.3, 1.0), (1.5, 1.5), (5.0, 2.0)):
        draws = generator.normal(0, noise, (4000, 1))
        found = NoiseDraws(middle, middle, draws, np.zeros(1), 0, without).values()
        assert found.high[0] == pytest.approx(2.2 * expected, rel=0.08)
    off = NoiseDraws(middle, middle, draws, np.zeros(1), 0, without + 3.0).values()
    assert off.high[0] == pytest.approx(2.2 * 2.0 + 3.0, rel=0.08)


def test_of_the_refit_game_intervals_hold_what_data_may_be(result: dpv.Result) -> None:
    found = result.noise_draws(6)["shapley"]
    assert found.noise_free is not None
    assert (found.noise_free.std(0) > 0).all()
    game = result.game()
    assert isinstance(game, RefitGame)
    first, again, other = (game.without_noise(np.random.default_rng(seed)) for seed in (0, 0, 1))
    everyone = np.ones((1, game.n), dtype=bool)
    assert first.worth(everyone) == again.worth(everyone) != other.worth(everyone)
