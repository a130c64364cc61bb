"""Runs through a ledger: charged once, answered again for nothing, and said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dpvalue as dpv
from dpvalue.privacy.ledger import Ledger
from tests.datasets import classification

BUDGET = dpv.Privacy(1.0, 1e-5)
SETTINGS: dict[str, Any] = {"progress": False, "engine": dpv.Local(dtype="float64")}


@pytest.mark.parametrize("schedule", ["replay", "lagged", "running-mean"])
def test_a_run_is_charged_and_run_again_for_nothing(schedule: str, tmp_path: Path) -> None:
    train, test = classification(8)
    budget = dpv.Privacy(2.0, 1e-5)
    ledger = Ledger.create(tmp_path / "ledger", budget, "me")
    settings: dict[str, Any] = {
        **SETTINGS, "ledger": ledger, "privacy": dpv.Privacy(1.0, 1e-5, mechanism="gaussian"), "schedule": schedule,
        "permutations": 100, "semivalues": ("shapley", "banzhaf"),
    }  # fmt: skip
    first = dpv.value(train, test, **settings)
    assert ledger.spent_epsilon == pytest.approx(1.0, abs=1e-6)
    entries = ledger.entries()
    assert sum(entry.charge.releases for entry in entries if entry.charge) == first.guarantee.releases
    again = dpv.value(train, test, **settings)
    assert torch.equal(first.table.rows, again.table.rows)
    for name in ("shapley", "banzhaf"):
        np.testing.assert_array_equal(first.values[name], again.values[name])
        np.testing.assert_array_equal(first.std_errors[name], again.std_errors[name])
    assert ledger.entries() == entries
    with pytest.raises(dpv.DpvalueError, match="was already requested with other settings"):
        dpv.value(train, test, **{**settings, "privacy": dpv.Privacy(0.5, 1e-5, mechanism="gaussian")})
    other = Ledger(tmp_path / "ledger", purpose="another question")
    with pytest.raises(dpv.BudgetExceeded):
        dpv.value(train, test, **{**settings, "ledger": other, "privacy": dpv.Privacy(1.9, 1e-5, mechanism="gaussian")})
    assert ledger.entries() == entries


def test_a_run_that_died_between_rounds_goes_on_from_what_was_stored(tmp_path: Path) -> None:
    train, test = classification(8)
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    settings: dict[str, Any] = {
        **SETTINGS, "ledger": ledger, "privacy": dpv.Privacy(1.0, 1e-5, mechanism="gaussian"), "projection": None,
        "schedule": dpv.Schedule("replay", rounds=3, probes=4),
    }  # fmt: skip

    class Died(Exception):  # noqa: N818
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise Died

    with pytest.raises(Died):
        dpv.release(train, test, **{**settings, "progress": stop})
    stored = [entry.digest for entry in ledger.entries()]
    assert len(stored) == 2
    table = dpv.release(train, test, **settings)
    assert [entry.digest for entry in ledger.entries()][:2] == stored
    assert len(ledger.entries()) == 3
    assert torch.equal(table.rows, dpv.release(train, test, **settings).rows)


def test_other_private_rows_get_the_same_answer_to_the_same_question(tmp_path: Path) -> None:
    """A retry after the data has changed: the old bytes, and no second look at the data."""
    train, test = classification(8)
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    first = dpv.release(train, test, ledger=ledger, **SETTINGS)
    second = dpv.release((train[0] + 1, train[1]), test, ledger=ledger, **SETTINGS)
    assert torch.equal(first.rows, second.rows)
    assert len(ledger.entries()) == 1


def first_positions(n: int) -> Any:
    return np.where(np.arange(n) < n // 2, 2.0, 0.0)


def last_positions(n: int) -> Any:
    return first_positions(n)[::-1].copy()


def test_ledgers_are_for_secure_private_runs(tmp_path: Path) -> None:
    train, test = classification(8)
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    for settings, message in (
        ({"ledger": "file"}, "ledger must be a Ledger, got 'file'"),
        ({"ledger": ledger, "privacy": None}, "ledger must not be given without privacy"),
        ({"ledger": ledger, "noise": "fast"}, "ledger needs noise='secure'"),
        ({"ledger": ledger, "privacy": dpv.Privacy(accounting="poisson")}, "ledger needs accounting='composition'"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.value(train, test, **{**SETTINGS, **settings})
    early, late = (dpv.Semivalue("mine", weights) for weights in (first_positions, last_positions))
    kept = Ledger.create(tmp_path / "kept", dpv.Privacy(2.0, 1e-5), "me")
    walks: dict[str, Any] = {**SETTINGS, "ledger": kept, "schedule": "independent", "permutations": 2}
    dpv.value(train, test, semivalues=early, **walks)
    for kind, utility in (
        (late, test),
        (early, dpv.Utility(*test, l2=0.5)),
        (early, dpv.Utility(*test, metric="accuracy")),
    ):
        with pytest.raises(dpv.DpvalueError, match="was already requested with other settings"):
            dpv.value(train, utility, semivalues=kind, **walks)
    metric = dpv.Utility(*test, metric=lambda outputs, labels: 0.0)
    with pytest.raises(dpv.DpvalueError, match="metric must not be a callable"):
        dpv.value(train, metric, ledger=ledger, schedule="independent", permutations=2, **SETTINGS)
    with pytest.raises(dpv.DpvalueError, match="is per party, and this run protects each record"):
        dpv.value(train, test, groups=[0, 1] * 4, ledger=ledger, privacy=dpv.Privacy(0.1, unit="record"), **SETTINGS)
    assert ledger.entries() == []


def test_the_guarantee_names_the_budget_of_the_ledger(tmp_path: Path) -> None:
    train, test = classification(8)
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(3.0, 1e-5, neighbours="replace"), "me")
    result = dpv.value(train, test, ledger=ledger, **SETTINGS)
    sentence = str(result.guarantee)
    assert "for this run only" not in sentence
    assert "within epsilon = 3, delta = 1e-05 per party, neighbours replace" in sentence
    result.save(tmp_path / "result")
    assert dpv.load(tmp_path / "result").table.guarantee == result.guarantee  # type: ignore[union-attr]
    assert "for this run only" in str(dpv.value(train, test, **SETTINGS).guarantee)


@pytest.mark.slow
def test_screening_is_charged_to_the_same_budget(tmp_path: Path) -> None:
    train, test = classification(30)
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me", purpose="screening")
    half = dpv.Privacy(0.5, 1e-5)
    first = dpv.baselines.public_loss(train, test, privacy=half, ledger=ledger)
    again = dpv.baselines.public_loss(train, test, privacy=half, ledger=ledger)
    np.testing.assert_array_equal(first.scores, again.scores)
    assert "charged to a ledger" in str(first.guarantee)
    assert [entry.purpose for entry in ledger.entries()] == ["screening"]
    with pytest.raises(dpv.DpvalueError, match="was already requested with other settings"):
        dpv.baselines.public_loss(train, test, privacy=dpv.Privacy(0.4, 1e-5), ledger=ledger)
    values = Ledger(tmp_path / "ledger", purpose="values")
    with pytest.raises(dpv.BudgetExceeded):
        dpv.value(train, test, privacy=dpv.Privacy(0.8, 1e-5, mechanism="laplace"), ledger=values, **SETTINGS)
    dpv.value(train, test, privacy=half, ledger=values, **SETTINGS)
    assert ledger.spent_epsilon <= 1.0 + 1e-9


def test_sites_and_their_rows_are_not_charged_as_strangers(tmp_path: Path) -> None:
    """A run on eight sites, then one on their rows as separate parties: refused, and not added up either."""
    train, test = classification(40)
    site = np.arange(40) % 8
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(2.0, 1e-5), "me", parties=range(8))
    sites = dpv.value(train, test, groups=site, ledger=ledger, **SETTINGS)
    rows = Ledger(tmp_path / "ledger", "rows")
    with pytest.raises(dpv.DpvalueError, match="is for named parties, and this run is on rows as parties"):
        dpv.value(train, test, ledger=rows, **SETTINGS)
    assert len(ledger.entries()) == 1
    alone = dpv.value(train, test, **SETTINGS)
    with pytest.raises(dpv.DpvalueError, match="must have the same parties"):
        dpv.privacy.total_epsilon([sites.guarantee, alone.guarantee], 1e-5)
    assert dpv.privacy.total_epsilon([alone.guarantee, alone.guarantee], 1e-5) < 2.01


def test_new_rows_and_new_people_never_cause_a_refusal(tmp_path: Path) -> None:
    train, test = classification(60)
    frame = pd.DataFrame(train[0], columns=list("abcd")).assign(label=train[1], site=np.arange(60) % 3)
    frame["who"] = np.arange(60) // 4
    public = pd.DataFrame(test[0], columns=list("abcd")).assign(label=test[1])
    budget = dpv.Privacy(9.0, 1e-5, unit="person", parties_per_person=3)
    ledger = Ledger.create(tmp_path / "ledger", budget, "me", person="who")
    settings: dict[str, Any] = {**SETTINGS, "target": "label", "groups": "site", "persons": "who"}
    for number, some in enumerate((frame, frame[:48], frame.assign(who=np.arange(60) + 100))):
        purpose = Ledger(tmp_path / "ledger", f"visit {number}")
        privacy = dpv.Privacy(2.0, 1e-5, unit="person", parties_per_person=3)
        assert dpv.value(some, public, ledger=purpose, privacy=privacy, **settings).guarantee.charged.person == "who"
    renamed = frame.rename(columns={"who": "visit"})
    with pytest.raises(dpv.DpvalueError, match="has person ids in the column 'who'; this run has them in 'visit'"):
        dpv.value(renamed, public, ledger=ledger, privacy=privacy, **{**settings, "persons": "visit"})


def test_an_answer_that_is_returned_again_says_so(tmp_path: Path) -> None:
    train, test = classification(8)
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    first = dpv.value(train, test, ledger=ledger, **SETTINGS)
    assert "returned again" not in str(first.guarantee)
    again = dpv.value((train[0] + 1, train[1]), test, ledger=Ledger(tmp_path / "ledger"), **SETTINGS)
    day = ledger.entries()[0].time[:10]
    assert f"first charged on {day} and are returned again: other rows of the same size would" in str(again.guarantee)
    np.testing.assert_array_equal(first.values["shapley"], again.values["shapley"])


def test_what_can_fail_for_public_reasons_fails_before_the_first_charge(tmp_path: Path) -> None:
    train, test = classification(8)
    budget = dpv.Privacy(1e9, 1e-5)
    ledger = Ledger.create(tmp_path / "ledger", budget, "me")
    huge: dict[str, Any] = {**SETTINGS, "privacy": dpv.Privacy(1e8, 1e-5, mechanism="gaussian"), "ledger": ledger}
    for settings, message in (
        ({"semivalues": "shaply"}, "semivalue must be one of"),
        ({"model": "forest"}, "model must be"),
        ({"projection": None, "clip": 1.0, "schedule": dpv.Schedule("replay", rounds=2)}, "too small for exact sums"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.value(train, test, **{**huge, **settings})
        assert ledger.entries() == []
