"""The ledger never counts less than what left, gives the same bytes again, and refuses what would pass the budget."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import dpvalue as dpv
from dpvalue.privacy import accounting
from dpvalue.privacy.ledger import Charge, Ledger

BUDGET = dpv.Privacy(epsilon=1.0, delta=1e-5)


def gaussian(multiplier: float, releases: int = 1, unit: str = "party", neighbours: str = "zero_out") -> Charge:
    return Charge("gaussian", multiplier, releases, 0.5, unit, neighbours)


def laplace(epsilon: float) -> Charge:
    return Charge("laplace", 1 / epsilon, 1, 0.5, "party", "zero_out")


def never() -> bytes:
    raise AssertionError("nothing may be drawn")


def test_the_same_request_gets_the_same_bytes_and_another_one_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", BUDGET)
    first = ledger.release(0, "a", laplace(0.5), lambda: b"noisy")
    assert first == b"noisy"
    assert Ledger(tmp_path / "ledger").release(0, "a", laplace(0.5), never) == b"noisy"
    with pytest.raises(dpv.DpvalueError, match="was asked for differently before"):
        ledger.release(0, "b", laplace(0.1), never)
    assert ledger.spent == pytest.approx(0.5, abs=1e-3)
    assert len(ledger.entries()) == 1


def test_what_would_pass_the_budget_is_refused_across_rounds_and_purposes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", BUDGET)
    multiplier = accounting.noise_multiplier(1.0, 1e-5, 4)
    for number in range(3):
        ledger.release(number, "x", gaussian(multiplier), lambda: b"")
    other = Ledger(tmp_path / "ledger", purpose="another")
    other.release(0, "y", gaussian(multiplier), lambda: b"")
    assert other.spent == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(dpv.BudgetExceeded) as refused:
        other.release(1, "y", gaussian(multiplier), never)
    assert refused.value.spent == pytest.approx(1.0, abs=1e-6)
    assert refused.value.asked == pytest.approx(accounting.epsilon(multiplier, 1e-5, 1))
    assert refused.value.left == pytest.approx(0.0, abs=1e-6)
    assert "is left" in str(refused.value)
    assert len(other.entries()) == 4


def test_a_mixture_is_counted_by_composition_not_by_adding_up(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", dpv.Privacy(1.97, 1e-5))
    ledger.release(0, "x", laplace(1.0), lambda: b"")
    multiplier = accounting.noise_multiplier(1.0, 1e-5, 1)
    ledger.release(1, "x", gaussian(multiplier), lambda: b"")  # 1 + 1 > 1.97, but together they spend less
    assert 1.8 < ledger.spent < 1.97
    with pytest.raises(dpv.BudgetExceeded):
        ledger.release(2, "x", laplace(0.5), never)


def test_a_pure_budget_takes_laplace_alone(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", dpv.Privacy(1.0, delta=0))
    ledger.release(0, "x", laplace(1.0), lambda: b"")
    with pytest.raises(dpv.BudgetExceeded):
        ledger.release(1, "x", laplace(0.01), never)
    other = Ledger(tmp_path / "other", dpv.Privacy(1.0, delta=0))
    with pytest.raises(dpv.BudgetExceeded):
        other.release(0, "x", gaussian(1e6), never)


@pytest.mark.parametrize(
    ("budget", "asked", "factor"),
    [
        (("party", "zero_out"), ("party", "zero_out"), 1.0),
        (("party", "replace"), ("party", "zero_out"), 0.5),
        (("party", "zero_out"), ("party", "replace"), 2.0),
        (("record", "zero_out"), ("party", "zero_out"), 0.5),
        (("record", "replace"), ("party", "replace"), 1.0),
        (("record", "zero_out"), ("person", "replace"), 1.0),
        (("person", "zero_out"), ("party", "zero_out"), 0.5),
    ],
)
def test_charges_are_converted_to_the_budgets_unit_and_relation(budget: Any, asked: Any, factor: float) -> None:
    assert gaussian(3.0, 1, *asked).multiplier_for(*budget) == pytest.approx(3.0 * factor)


@pytest.mark.parametrize(("budget", "asked"), [("party", "record"), ("party", "person"), ("person", "record")])
def test_a_smaller_unit_promises_a_larger_one_nothing(budget: str, asked: str, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", dpv.Privacy(1.0, 1e-5, unit=budget))
    with pytest.raises(dpv.DpvalueError, match=f"budget is per {budget}: a release that protects one {asked}"):
        ledger.release(0, "x", gaussian(100.0, 1, asked), never)


def test_a_failed_draw_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", BUDGET)
    with pytest.raises(AssertionError, match="nothing may be drawn"):
        ledger.release(0, "a", laplace(0.5), never)
    assert ledger.entries() == []
    assert ledger.release(0, "a", laplace(0.5), lambda: b"later") == b"later"


def test_tampering_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, BUDGET)
    heads = [ledger.head()]
    for number in range(4):
        ledger.release(number, "x", laplace(0.1), lambda: b"bytes")
        heads.append(ledger.head())
        if number == 1:
            with sqlite3.connect(path) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copy(path, tmp_path / "backup")
    assert ledger.verify() == 4
    for head in heads:
        ledger.verify(head)
    old = Ledger(tmp_path / "backup")
    assert old.verify(heads[2]) == 2
    with pytest.raises(dpv.DpvalueError, match="does not continue the kept head"):
        old.verify(heads[4])
    with pytest.raises(dpv.DpvalueError, match="head must be what"):
        ledger.verify("yesterday")
    for change in (
        "UPDATE entries SET charge = replace(charge, '10.0', '99.0') WHERE number = 2",
        "UPDATE entries SET bytes = x'00' WHERE number = 3",
        "DELETE FROM entries WHERE number = 2",
    ):
        shutil.copy(path, tmp_path / "copy")
        for suffix in ("-wal", "-shm"):
            if Path(f"{path}{suffix}").exists():
                shutil.copy(f"{path}{suffix}", tmp_path / f"copy{suffix}")
        with sqlite3.connect(tmp_path / "copy") as database:
            database.execute(change)
        with pytest.raises(dpv.DpvalueError, match="has been altered, or is missing"):
            Ledger(tmp_path / "copy").verify()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET charge = '{' WHERE number = 1",
        "UPDATE entries SET charge = '[]' WHERE number = 1",
        "UPDATE entries SET charge = '{\"law\": 3}' WHERE number = 1",
        "UPDATE entries SET bytes = 'text' WHERE number = 1",
        "UPDATE entries SET purpose = x'00ff' WHERE number = 1",
        "UPDATE budget SET settings = '{'",
        "UPDATE budget SET settings = '[1]'",
        "DELETE FROM budget",
    ],
)
def test_damaged_cells_are_one_line(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path, BUDGET).release(0, "x", laplace(0.1), lambda: b"made")
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
    for touch in (
        lambda: Ledger(path).verify(),
        lambda: [Ledger(path).release(0, "x", laplace(0.1), lambda: b"made"), Ledger(path).verify()],
    ):
        with pytest.raises(dpv.DpvalueError) as caught:
            touch()
        assert "\n" not in str(caught.value)


def test_a_changed_budget_does_not_continue_a_kept_head(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger(path, BUDGET)
    empty = ledger.head()
    ledger.release(0, "x", laplace(0.1), lambda: b"made")
    head = ledger.head()
    with closing(sqlite3.connect(path)) as database:
        (settings,) = database.execute("SELECT settings FROM budget").fetchone()
        database.execute("UPDATE budget SET settings = ?", (settings.replace('"epsilon": 1.0', '"epsilon": 100.0'),))
        database.commit()
    changed = Ledger(path)
    assert changed.budget.epsilon == 100
    for kept in (head, empty, None):
        with pytest.raises(dpv.DpvalueError, match=r"altered|does not continue"):
            changed.verify(kept)


def test_a_person_in_several_parties_is_charged_for_each() -> None:
    budget = dpv.Privacy(1.0, 0.0, "person", parties_per_person=5)
    charge = Charge("laplace", 10.0, 1, 1.0, "party", "zero_out")
    assert charge.releases_for(budget) == 5
    assert charge.releases_for(dpv.Privacy(1.0, 0.0, "party")) == 1
    assert Charge("laplace", 10.0, 5, 1.0, "person", "zero_out").releases_for(budget) == 5
    assert "per person in at most 5 parties" in budget.terms


def test_a_party_charge_on_a_persons_ledger(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", dpv.Privacy(1.0, 0.0, "person", parties_per_person=5))
    one = Charge("laplace", 20.0, 1, 1.0, "party", "zero_out")
    ledger.release(0, "x", one, lambda: b"")
    assert ledger.spent == pytest.approx(2 * 5 / 20)  # a step of replace for the party, in each of five parties
    ledger.release(1, "x", one, lambda: b"")
    with pytest.raises(dpv.BudgetExceeded):
        ledger.release(2, "x", one, lambda: b"")


@pytest.mark.parametrize("purpose", [7, None, b"x", "", " ", "a\nb", "\ud800"])
def test_a_purpose_is_a_text(purpose: Any, tmp_path: Path) -> None:
    with pytest.raises(dpv.DpvalueError, match="purpose must be a text"):
        Ledger(tmp_path / "ledger", BUDGET, purpose)


def test_bad_files_and_budgets_are_refused_in_one_line(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger", BUDGET)
    (tmp_path / "text").write_text("no ledger at all, but long enough to be read as a header by mistake" * 20)
    for path, budget, message in (
        (tmp_path / "ledger", dpv.Privacy(2.0), "budget must be the one that the ledger was started with"),
        (tmp_path / "missing", None, "there is no ledger at"),
        (tmp_path / "nowhere" / "ledger", BUDGET, "the folder of the ledger does not exist"),
        (tmp_path / "text", None, "is not a ledger, or is damaged"),
        (tmp_path / "new", dpv.Privacy(accounting="poisson"), "must have accounting='composition'"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message) as refused:
            Ledger(path, budget)
        assert "\n" not in str(refused.value)


def test_concurrent_processes_do_not_overspend(tmp_path: Path) -> None:
    """Eight processes ask for a tenth of the budget, twenty times each: ten get it."""
    path = tmp_path / "ledger"
    Ledger(path, dpv.Privacy(1.0, delta=0))
    children = []
    for child in range(8):
        pid = os.fork()
        if pid == 0:
            ledger = Ledger(path, purpose=f"process {child}")
            for number in range(20):
                try:
                    ledger.release(number, "x", laplace(0.1), lambda: b"x")
                except dpv.BudgetExceeded:
                    continue
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    ledger = Ledger(path)
    assert len(ledger.entries()) == 10
    assert ledger.spent == pytest.approx(1.0)
    ledger.verify()


def test_two_processes_with_the_same_request_get_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger(path, BUDGET)
    reader, writer = os.pipe()
    children = []
    for _ in range(6):
        pid = os.fork()
        if pid == 0:
            os.write(writer, Ledger(path).release(0, "x", laplace(0.1), lambda: os.urandom(16)))
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    found = os.read(reader, 16 * 6)
    assert {found[16 * i : 16 * i + 16] for i in range(6)} == {found[:16]}
    assert len(Ledger(path).entries()) == 1


def test_killed_at_any_point_it_never_counts_less_than_what_left(tmp_path: Path) -> None:
    """A child releases and tells what it got through a pipe, until it is killed; 220 times: what it told is stored.

    Every third time a torn tail is added to the log as well, as a crash of the machine would leave one.
    """
    path = tmp_path / "ledger"
    Ledger(path, dpv.Privacy(50.0, delta=0))
    generator = random.Random(0)
    told: dict[int, bytes] = {}
    for kill in range(220):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            ledger = Ledger(path)
            number = len(ledger.entries())
            while True:
                made = ledger.release(number, f"request {number}", laplace(0.001), lambda: os.urandom(8))
                os.write(writer, number.to_bytes(8, "big") + made)
                number += 1
        os.close(writer)
        time.sleep(generator.uniform(0.0, 0.04))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        data = b""
        while piece := os.read(reader, 65536):
            data += piece
        os.close(reader)
        for start in range(0, len(data) - len(data) % 16, 16):
            told[int.from_bytes(data[start : start + 8], "big")] = data[start + 8 : start + 16]
        log = Path(f"{path}-wal")
        if kill % 3 == 0 and log.exists():
            with log.open("ab") as file:
                file.write(os.urandom(generator.randrange(1, 5000)))
    ledger = Ledger(path)
    entries = ledger.entries()
    assert ledger.verify() == len(entries)
    assert len(told) > 20
    assert {entry.round for entry in entries} >= set(told)
    assert ledger.spent == pytest.approx(0.001 * len(entries))
    for number, made in told.items():
        assert ledger.release(number, f"request {number}", laplace(0.001), never) == made


def test_the_command_line_shows_and_verifies(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "dpvalue"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, "ledger", *arguments], capture_output=True, text=True, timeout=120, check=False)

    path = tmp_path / "ledger"
    ledger = Ledger(path, BUDGET)
    ledger.release(0, "x", laplace(0.25), lambda: b"")
    shown = run("show", str(path))
    assert shown.returncode == 0
    assert "budget: epsilon = 1, delta = 1e-05 per party, neighbours zero_out" in shown.stdout
    assert "spent: epsilon = 0.25" in shown.stdout
    assert f"head: {ledger.head()}" in shown.stdout
    verified = run("verify", str(path), "--head", ledger.head())
    assert "1 entries, all digests right, and the kept head is among them" in verified.stdout
    for arguments in (["show", str(tmp_path / "missing")], ["verify", str(path), "--head", "9:" + "a" * 64]):
        refused = run(*arguments)
        assert refused.returncode == 2
        assert len(refused.stderr.strip().splitlines()) == 1
