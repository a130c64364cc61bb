"""What parties may be called: names stay what they are, and two that a person takes for one are refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.coordinator.releases import sorted_names
from dpvalue.coordinator.roster import Member, Roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.data.parties import number_groups
from dpvalue.names import look_of, party_label, require_name, require_names
from dpvalue.party.policy import KnownCoordinator, Policy
from dpvalue.protocol.archive import Key
from dpvalue.protocol.job import Simulation
from dpvalue.protocol.messages import Release
from tests.federation import Files, simulated, write_files

AGREE = (
    ("north", "North"), ("north", "NORTH "), ("north", "\uff2e\uff4f\uff52\uff54\uff48"), ("no rth", "no  rth"),
    ("stra\u00dfe", "STRASSE"), ("caf\u00e9", "cafe\u0301"), ("ab", "a\u200bb"), ("ab", "a\ufe0fb"), ("7", "007"),
    ("7", "+7"), ("0", "-0"), ("7", "\u0667"), ("7.0", "7"), ("\ufb01t", "fit"), ("\u01c4", "d\u017e"),
)  # fmt: skip
DIFFER = (
    "north",
    "south",
    "n orth",
    "7",
    "-7",
    "70",
    "7a",
    "m\u00fcnchen",
    "munchen",
    "\u5317\u4eac",
    "\u041c\u043e\u0441\u043a\u0432\u0430",
)
MIXED = ("n\u043erth", "\u0391BC", "\u5317\u041c", "\u05d0b", "\uac00\u3042", "5 \u00b5g")
TOGETHER = (
    "\u6771\u4eac Tokyo \u30bf\u30ef\u30fc \u306e",
    "\uc11c\uc6b8 Seoul \u6f22",
    "\u5317\u4eac \u3105 B",
    "\u041a\u043b\u0438\u043d\u0438\u043a\u0430 7-\u0411",
    "S\u00e3o Tom\u00e9",
    "\u03b1\u03b2\u03b3",
)


@pytest.mark.parametrize(("one", "other"), AGREE)
def test_names_that_look_alike_agree(one: str, other: str) -> None:
    assert look_of(one) == look_of(other)
    with pytest.raises(dpv.DpvalueError, match=r"must be clearly different, got"):
        require_names("names", [one, "another", other])


def test_names_that_differ_do_not_agree() -> None:
    require_names("names", DIFFER)
    require_names("names", ["a" * 401, "A" * 401])  # too long for a look
    assert len({look_of(name) for name in DIFFER}) == len(DIFFER)


def test_names_that_mix_scripts_are_refused() -> None:
    for name in MIXED:
        with pytest.raises(dpv.DpvalueError, match="names must not mix scripts, got"):
            require_name("names", name)
    for name in (*TOGETHER, *DIFFER):
        require_name("names", name)


def test_a_whole_number_is_one_only_if_it_is_written_so() -> None:
    """Labels are one to one with names; what was a number before in this form still is, in the order of before."""
    texts = ["7", "-7", "0", "-0", "007", "00", "+7", "7.0", "1" * 15, "1" * 16, "\u0667", "1_0", " 7", "7\n", "-", ""]
    names = [party_label(text) for text in texts]
    assert [str(name) for name in names] == texts
    assert [name for name in names if isinstance(name, int)] == [7, -7, 0, int("1" * 15)]
    labels = np.array(["b", "10", "9", "-1", "007", "a"], dtype=object)
    assert number_groups(labels)[0] == (-1, 9, 10, "007", "a", "b")
    assert sorted_names(["007", "b", "-0", "5"]) == ["5", "-0", "007", "b"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path, {"east": 40, "west": 25})


def here(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_study_of_odd_numbers_as_names_is_valued(files: Files, tmp_path: Path) -> None:
    """Names like 007 and -0 crashed it, or dropped a party."""
    job = files.job()
    job.save(tmp_path / "study.job")
    answers = {name: Release.from_bytes(files.agent(name).answer(job.to_bytes())) for name in files.sizes}
    for name, own in (("007", "east"), ("-0", "west")):
        replace(answers[own], party=name).save(tmp_path / f"{own}.release")
    command = ("value", tmp_path / "study.job", "--out", tmp_path / "out", "--test", files.public)
    done = here(*command, tmp_path / "east.release", tmp_path / "west.release")
    assert done.exit_code == 0, (done.output, done.exception)
    table = dpv.load(tmp_path / "out" / "table.safetensors")
    assert isinstance(table, dpv.Table)
    assert table.names == ("-0", "007")
    assert sorted(line.split(",")[0] for line in (tmp_path / "out" / "values.csv").read_text().splitlines()) == [
        "'-0", "007", "party",
    ]  # fmt: skip
    answers["east"].save(tmp_path / "7.release")
    replace(answers["east"], party="7", numbers=answers["east"].numbers * 0.9).save(tmp_path / "7.release")
    late = here(*command, tmp_path / "7.release")
    assert "rejected: names of parties must be clearly different, got '007' and '7'" in late.output


def test_a_coordinator_takes_no_name_that_agrees_or_mixes(files: Files, tmp_path: Path) -> None:
    job = files.job()
    coordinator = Coordinator(tmp_path / "study", job.to_bytes())
    releases = [Release.from_bytes(files.agent(name).answer(job.to_bytes())) for name in files.sizes]
    assert not coordinator.receive(replace(releases[0], party="North").to_bytes()).why
    for one, why in (
        ("north", "different"),
        ("NORTH", "different"),
        ("\uff2eorth", "different"),
        ("s\u043euth", "mix scripts"),
    ):
        assert why in coordinator.receive(replace(releases[1], party=one).to_bytes()).why
    assert coordinator.participants == ["North"]
    with pytest.raises(dpv.DpvalueError, match="must be clearly different"):
        dpv.combine(job, [replace(releases[0], party="7"), replace(releases[1], party="007")])


def frame() -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(0).normal(size=(8, 2)), columns=["a", "b"]).assign(y=[0, 1] * 4)


@pytest.mark.parametrize("pair", [("north", "North"), ("a", "\uff41"), ("n\u043erth", "south")])
def test_every_door_refuses_two_names_that_agree_and_one_that_mixes(
    pair: tuple[str, str], files: Files, tmp_path: Path
) -> None:
    first, second = pair
    groups = [first, second] * 4
    key, other = Key.new().public, Key.new().public
    budget = dpv.Privacy(1.0)
    ledger = dpv.Ledger.create(tmp_path / "of", budget, "holder", parties=["south-west"])
    agent = files.agent("east")
    both: dict[str, Any] = {"X": frame()[["a", "b"]], "y": frame()["y"]}
    doors: dict[str, Callable[[], Any]] = {
        "value": lambda: dpv.value(frame(), frame(), target="y", groups=groups, progress=False),
        "Parties": lambda: dpv.Parties(**both, groups=groups),
        "plan": lambda: dpv.plan(dpv.Parties(**both, groups=groups)),
        "a ledger": lambda: dpv.Ledger.create(tmp_path / "new", budget, "holder", parties=pair),
        "parties of a ledger": lambda: ledger.add_parties(pair),
        "a roster": lambda: Roster((Member(first, key), Member(second, other))),
        "a policy": lambda: Policy(coordinators=(KnownCoordinator(first, key), KnownCoordinator(second, other))),
        "a simulation": lambda: Simulation(0, pair),
        "a simulated job": lambda: simulated(files)[0].job(pair),
    }
    if "n\u043erth" in pair:
        doors |= {"a party": lambda: dpv.Party(first, **both), "an agent": lambda: replace(agent, name=first)}
    for door in doors.values():
        with pytest.raises(dpv.DpvalueError, match=r"must be clearly different|must not mix scripts"):
            door()
    assert not (tmp_path / "new").exists()
    ledger.add_parties(["east"])
    assert ledger.parties == ("south-west", "east")


def test_commands_refuse_them_in_one_line(files: Files, tmp_path: Path) -> None:
    seven = files.own("east").rename(tmp_path / "007.csv")
    for name in ("7.csv", "\uff17.csv", "North.csv", "north.csv", "n\u043erth.csv"):
        (tmp_path / name).write_bytes(seven.read_bytes())
    options = ("--test", files.public, "--target", "label", "--epsilon", "1", "--yes", "--out", tmp_path / "out")
    for names in (
        ("007.csv", "7.csv"),
        ("7.csv", "\uff17.csv"),
        ("North.csv", "north.csv"),
        ("7.csv", "n\u043erth.csv"),
        ("7.csv", "7.csv", "north.csv"),
    ):
        for command in (("run",), ("check",)):
            given = options if command == ("run",) else options[:4]
            done = here(*command, *(tmp_path / name for name in names), *given)
            assert done.exit_code == 2, (names, done.output)
            assert done.stderr.count("\n") == 1, done.stderr
            assert "must be clearly different" in done.stderr or "must not mix scripts" in done.stderr
    grouped = pd.read_csv(seven).assign(site=["north", "North"] * 20)
    grouped.to_csv(tmp_path / "grouped.csv", index=False)
    done = here("run", tmp_path / "grouped.csv", "--group", "site", *options)
    assert done.stderr == "error: names of parties must be clearly different, got 'North' and 'north'\n"
    assert here("ledger", "new", tmp_path / "l", "--name", "x", "--party", "a", "--party", "A").exit_code == 2
    assert not (tmp_path / "l").exists()
    mixed = ("party", "answer", tmp_path / "no.job", seven, "--name", "n\u043erth", "--ledger", tmp_path / "own")
    here("ledger", "new", tmp_path / "own", "--name", "x", "--unit", "record")
    assert "party must not mix scripts" in here(*mixed).stderr
    assert not (tmp_path / "out").exists()
