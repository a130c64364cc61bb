"""One signature for every entry point: a `Settings`, or its fields as keywords."""

from __future__ import annotations

import inspect
from dataclasses import fields, replace
from typing import Any, get_type_hints

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.planning.settings import EntryKeywords, SettingsKeywords
from tests.datasets import classification

ENTRIES = [dpv.value, dpv.release, dpv.plan, dpv.audit, dpv.membership_attack, dpv.baselines.public_loss]


def test_keywords_are_the_fields() -> None:
    assert list(SettingsKeywords.__annotations__) == [field.name for field in fields(dpv.Settings)]
    assert get_type_hints(SettingsKeywords) == get_type_hints(dpv.Settings)
    assert EntryKeywords.__annotations__.keys() - SettingsKeywords.__annotations__ == {"target", "groups", "persons"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_help_shows_every_field_with_its_default(entry: Any) -> None:
    shown = inspect.signature(entry).parameters
    default = dpv.Settings()
    changed = {"audit": {"learning_rate"}, "membership_attack": {"permutations", "noise"}}.get(entry.__name__, set())
    for field in fields(dpv.Settings):
        assert (shown[field.name].default == getattr(default, field.name)) == (field.name not in changed)
        assert shown[field.name].annotation == field.type
    reads_data = entry is not dpv.membership_attack
    for name in ("target", "groups", "persons"):
        assert (name in shown) == reads_data
        assert not reads_data or shown[name].default is None


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_an_unknown_keyword_is_refused(entry: Any) -> None:
    with pytest.raises(TypeError, match="unknown setting 'permutation'; the settings are model, privacy"):
        entry(*classification(30, 2, 2), permutation=3)
    with pytest.raises(dpv.DpvalueError, match="settings must be a Settings"):
        entry(*classification(30, 2, 2), {"seed": 3})


def test_an_attack_on_rows_takes_no_groups() -> None:
    with pytest.raises(TypeError, match="unknown setting 'groups'"):
        dpv.membership_attack(*classification(30, 2, 2), groups=[0, 1])  # type: ignore[call-arg]


def test_settings_and_keywords_are_the_same_run_and_keywords_win() -> None:
    private, public = classification(30, 2, 2)
    given: dict[str, Any] = {"privacy": dpv.Privacy(4.0), "noise": "fast", "seed": 5, "clip": 1.0, "projection": None}
    settings = dpv.Settings(**given)
    first = dpv.value(private, public, settings, progress=False).values["shapley"]
    keywords = dpv.value(private, public, progress=False, **given)
    np.testing.assert_array_equal(first, keywords.values["shapley"])
    other = dpv.value(private, public, settings, seed=6, progress=False).values["shapley"]
    assert not np.array_equal(first, other)


def test_what_was_left_open_follows_the_privacy() -> None:
    settings = dpv.Settings()
    assert settings.resolved_schedule.kind == "replay"
    assert replace(settings, privacy=None).resolved_schedule.kind == "independent"


def test_a_plan_is_carried_out_without_choosing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = classification(30, 2, 2)
    settings = dpv.Settings(privacy=dpv.Privacy(4.0), noise="fast", seed=5)
    expected = dpv.value(private, public, settings, semivalues="banzhaf", progress=False)
    plan = dpv.plan(private, public, settings)
    for name in ("runs.run", "runs.plan", "auditing.canaries"):
        monkeypatch.setattr(f"dpvalue.{name}.choose", pytest.fail)
    result = plan.value(private, semivalues="banzhaf", progress=False)
    np.testing.assert_array_equal(result.values["banzhaf"], expected.values["banzhaf"])
    np.testing.assert_array_equal(plan.release(private, progress=False).rows, expected.table.rows)
    with pytest.raises(dpv.DpvalueError, match="the sizes that the run was planned for"):
        plan.release((private[0][1:], private[1][1:]), progress=False)
    with pytest.raises(dpv.DpvalueError, match="utility must be given to dpvalue"):
        dpv.plan(30).release(private)
