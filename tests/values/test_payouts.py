"""Shares of a total: they sum to it, nobody pays, and records are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.values.intervals import NoiseDraws
from dpvalue.values.payouts import amount, share_out, split
from tests.datasets import classification

SETTINGS: dict[str, Any] = {"noise": "fast", "progress": False}


@pytest.fixture(name="result", scope="module")
def made_result() -> dpv.Result:
    sites = np.repeat(["north", "south", "east", "west"], [10, 30, 40, 40])
    train, test = classification(120)
    return dpv.value(train, test, groups=sites, privacy=dpv.Privacy(2.0, unit="record"), **SETTINGS)


def test_payouts_sum_to_the_total_and_follow_values(result: dpv.Result) -> None:
    shares, values = result.shares(total=100_000), result.values["shapley"]
    assert shares.payouts.sum() == pytest.approx(100_000)
    positive = values > 0
    np.testing.assert_allclose(shares.payouts[positive] / values[positive], 100_000 / values[positive].sum())
    assert (shares.payouts[~positive] == 0).all()
    assert ((shares.low >= 0) & (shares.low <= shares.payouts)).all()
    assert ((shares.high <= 100_000) & (shares.high >= shares.payouts)).all()
    double = result.shares(total=200_000)
    np.testing.assert_allclose(double.high, 2 * shares.high)
    assert str(shares).splitlines()[0].startswith(f"{shares.names[0]}: {shares.payouts[0]:,.0f} (")
    assert shares.frame()["party"].tolist() == list(result.table.names)
    assert (result.shares(100, level=0.5).high <= result.shares(100).high).all()


def test_nobody_is_paid_less_than_nothing_or_more_than_all() -> None:
    values = np.array([3.0, 1.0])
    draws = values + np.random.default_rng(0).normal(0, 5, (50, 2))
    shares = share_out(("a", "b"), NoiseDraws(values, values, draws, np.zeros(2), 0), 100.0)
    assert shares.low.tolist() == [0, 0]
    assert shares.high.tolist() == [100, 100]


def test_who_may_be_worth_something_may_be_paid() -> None:
    """A value of -0.2 ± 0.1: hardly a draw is above zero, and the interval of the payout is that of the value."""
    values = np.array([3.0, -0.2])
    noise = np.random.default_rng(0).normal(0, 1, (50, 2))
    draws = values + 0.1 * (noise - noise.mean(0)) / noise.std(0, ddof=1)
    found = NoiseDraws(values, values, draws, np.zeros(2), 0)
    shares = share_out(("a", "b"), found, 100.0)
    assert shares.payouts.tolist() == [100, 0]
    assert shares.low[1] == 0
    assert shares.high[1] == pytest.approx(100 / 3 * found.values().high[1], abs=0.1)
    assert shares.high[1] > 0.5


def test_whoever_harms_gets_nothing_and_pays_nothing() -> None:
    assert split(np.array([3.0, -2.0, 1.0]), 100).tolist() == [75.0, 0.0, 25.0]
    draws = np.array([[3.0, -2.0, 1.0], [3.0, 2.0, 1.0], [-1.0, -1.0, -1.0]])
    assert split(draws, 90).sum(-1).tolist() == [90.0, 90.0, 90.0]
    assert split(draws, 90)[2].tolist() == [30.0, 30.0, 30.0]  # it says nothing of who has earned it


FINITE = "must be finite"


@pytest.mark.parametrize(
    ("values", "message"),
    [([-1.0, 0.0], "at least one value must be above zero"), ([1.0, np.nan], FINITE), ([1.0, np.inf], FINITE)],
)
def test_what_cannot_be_shared_by_is_refused(result: dpv.Result, values: list[float], message: str) -> None:
    found = np.array(values)
    with pytest.raises(dpv.DpvalueError, match=message):
        share_out(("a", "b"), NoiseDraws(found, found, np.array([found, found]), np.zeros(2), 0), 10.0)
    four = np.array([*values, values[0], values[0]])
    estimate = replace(result.estimates["shapley"], values=four)
    with pytest.raises(dpv.DpvalueError, match=message):
        replace(result, estimates={"shapley": estimate}).frame(pay=10.0)


@pytest.mark.parametrize("total", [0, -5, float("nan"), float("inf"), "100"])
def test_a_total_is_a_positive_amount(result: dpv.Result, total: Any) -> None:
    with pytest.raises(dpv.DpvalueError, match="total must be positive"):
        result.shares(total)
    with pytest.raises(dpv.DpvalueError, match="pay must be positive"):
        result.frame(pay=total)


def test_sizes_and_payouts_are_columns(result: dpv.Result) -> None:
    frame = result.frame(noise=True, pay=1000)
    sizes = dict(zip(frame["party"], frame["size"], strict=True))
    assert sizes == {"north": 10, "south": 30, "east": 40, "west": 40}
    np.testing.assert_allclose(frame["shapley_per_record"] * frame["size"], frame["shapley"])
    assert frame["payout"].sum() == pytest.approx(1000)
    assert frame["payout_high"].tolist() == result.shares(1000).high.tolist()
    assert frame["shapley_low"].tolist() == result.intervals().low.tolist()
    plain = result.frame(pay=1000)
    assert plain["payout"].tolist() == frame["payout"].tolist()
    assert "payout_low" not in plain
    assert "payout" not in result.frame(noise=True)


def test_sizes_are_persons_where_these_are_protected() -> None:
    train, test = classification(60)
    who = np.arange(60) // 3  # three records each
    result = dpv.value(
        train, test, groups=np.arange(60) // 30, persons=who, privacy=dpv.Privacy(8.0, unit="person"), **SETTINGS
    )
    assert result.table.sizes.tolist() == [10, 10]
    assert "shapley_per_person" in result.frame()
    assert "shapley_per_record" not in result.frame()


def test_single_rows_have_a_size_and_no_value_per_record() -> None:
    train, test = classification(20)
    frame = dpv.value(train, test, privacy=None, permutations=5, **SETTINGS).frame()
    assert frame["size"].tolist() == [1] * 20
    assert "shapley_per_record" not in frame


def test_a_semivalue_must_not_be_called_like_a_column() -> None:
    with pytest.raises(dpv.DpvalueError, match="must not be called 'payout'"):
        dpv.semivalue(dpv.Semivalue("payout", np.ones))


def test_amounts_have_the_decimals_that_a_total_calls_for() -> None:
    assert [amount(1234.567, total) for total in (100_000, 5000, 1)] == ["1,235", "1,234.57", "1,234.5670"]
