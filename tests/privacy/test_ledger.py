"""The ledger never counts less than what left, gives the same bytes again, and refuses what would pass the budget."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.privacy import accounting
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.holders import Holding
from dpvalue.privacy.ledger import Ledger

BUDGET = dpv.Privacy(epsilon=1.0, delta=1e-5)


def gaussian(multiplier: float, releases: int = 1, unit: str = "party", neighbours: str = "zero_out") -> Charge:
    return Charge("gaussian", multiplier, releases, 0.5, unit, neighbours)


def laplace(epsilon: float) -> Charge:
    return Charge("laplace", 1 / epsilon, 1, 0.5, "party", "zero_out")


def never() -> bytes:
    raise AssertionError("nothing may be drawn")


def test_the_same_request_gets_the_same_bytes_and_another_one_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    first = ledger.release(0, "a", laplace(0.5), lambda: b"noisy")
    assert first == b"noisy"
    assert Ledger(tmp_path / "ledger").release(0, "a", laplace(0.5), never) == b"noisy"
    with pytest.raises(dpv.DpvalueError, match="was already requested with other settings"):
        ledger.release(0, "b", laplace(0.1), never)
    assert ledger.spent_epsilon == pytest.approx(0.5, abs=1e-3)
    assert len(ledger.entries()) == 1


def test_what_would_pass_the_budget_is_refused_across_rounds_and_purposes(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    multiplier = accounting.noise_multiplier(1.0, 1e-5, 4)
    for number in range(3):
        ledger.release(number, "x", gaussian(multiplier), lambda: b"")
    other = Ledger(tmp_path / "ledger", purpose="another")
    other.release(0, "y", gaussian(multiplier), lambda: b"")
    assert other.spent_epsilon == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(dpv.BudgetExceeded) as refused:
        other.release(1, "y", gaussian(multiplier), never)
    assert refused.value.spent_epsilon == pytest.approx(1.0, abs=1e-6)
    assert refused.value.requested_epsilon == pytest.approx(accounting.epsilon(multiplier, 1e-5, 1))
    assert refused.value.remaining_epsilon == pytest.approx(0.0, abs=1e-6)
    assert "is left" in str(refused.value)
    assert len(other.entries()) == 4


def test_a_mixture_is_counted_by_mu(tmp_path: Path) -> None:
    """A pure epsilon counts as mu = -2 Phi^-1(1 / (1 + e^epsilon)): sound where noise depends on earlier answers."""
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(8.0, 1e-5), "me")
    ledger.release(0, "x", laplace(1.0), lambda: b"")
    assert ledger.spent_epsilon == pytest.approx(1.0)  # pure so far
    multiplier = accounting.noise_multiplier(1.0, 1e-5, 1)
    ledger.release(1, "x", gaussian(multiplier), lambda: b"")
    mu = (accounting.mu_of_pure(1.0) ** 2 + multiplier**-2) ** 0.5
    assert ledger.spent_epsilon == pytest.approx(accounting.epsilon_of_mu(mu, 1e-5))
    small = Ledger.create(tmp_path / "small", dpv.Privacy(1.97, 1e-5), "me")
    small.release(0, "x", laplace(1.0), lambda: b"")
    with pytest.raises(dpv.BudgetExceeded):  # privacy loss distributions would allow it, for levels fixed in advance
        small.release(1, "x", gaussian(multiplier), never)
    small.release(1, "x", laplace(0.97), lambda: b"")
    assert small.spent_epsilon == pytest.approx(1.97)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 12.0])
def test_what_is_pure_is_gaussian_with_that_mu(epsilon: float) -> None:
    """The trade-off of epsilon-DP, max(0, 1 - e^eps a, e^-eps (1 - a)), lies above that of mu-GDP, and touches it."""
    mu = accounting.mu_of_pure(epsilon)
    errors = np.linspace(1e-6, 1 - 1e-6, 20001)
    pure = np.maximum(0, np.maximum(1 - np.exp(epsilon) * errors, np.exp(-epsilon) * (1 - errors)))
    normal = stats.norm()
    assert (normal.cdf(normal.ppf(1 - errors) - mu) <= pure + 1e-12).all()
    meet = 1 / (1 + np.exp(epsilon))
    assert normal.cdf(normal.ppf(1 - meet) - mu) == pytest.approx(meet)
    assert normal.cdf(normal.ppf(1 - meet) - 0.99 * mu) > meet  # a smaller mu would claim too much


def test_a_pure_budget_takes_laplace_alone(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(1.0, delta=0), "me")
    ledger.release(0, "x", laplace(1.0), lambda: b"")
    with pytest.raises(dpv.BudgetExceeded):
        ledger.release(1, "x", laplace(0.01), never)
    other = Ledger.create(tmp_path / "other", dpv.Privacy(1.0, delta=0), "me")
    with pytest.raises(dpv.BudgetExceeded):
        other.release(0, "x", gaussian(1e6), never)


@pytest.mark.parametrize(
    ("budget", "asked", "factor"),
    [
        ("zero_out", "zero_out", 1.0),
        ("replace", "zero_out", 0.5),
        ("zero_out", "replace", 2.0),
        ("replace", "replace", 1.0),
    ],
)
@pytest.mark.parametrize("unit", ["party", "record", "person"])
def test_charges_are_converted_to_the_budgets_relation(
    unit: str, budget: str, asked: str, factor: float, tmp_path: Path
) -> None:
    charge = gaussian(3.0, 1, unit, asked)
    assert charge.multiplier_for(budget) == pytest.approx(3.0 * factor)
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(9.0, 1e-5, unit, budget), "me")
    ledger.release(0, "x", charge, lambda: b"")
    assert ledger.spent_epsilon == pytest.approx(accounting.epsilon(3.0 * factor, 1e-5, 1))


@pytest.mark.parametrize("budget", ["party", "record", "person"])
@pytest.mark.parametrize("asked", ["party", "record", "person"])
def test_a_charge_for_another_unit_is_refused(budget: str, asked: str, tmp_path: Path) -> None:
    """Larger or smaller: what a release of rows or parties promises a person, a ledger does not know."""
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(1.0, 1e-5, unit=budget), "me")
    if budget == asked:
        ledger.release(0, "x", gaussian(100.0, 1, asked), lambda: b"")
        return
    for work in (lambda: ledger.release(0, "x", gaussian(100.0, 1, asked), never),
                 lambda: ledger.reserve(3, gaussian(100.0, 1, asked)),
                 lambda: ledger.require_room(3, gaussian(100.0, 1, asked))):  # fmt: skip
        with pytest.raises(dpv.DpvalueError, match=f"budget is per {budget}, and this release protects each {asked}"):
            work()
    assert ledger.entries() == []


def test_a_charge_that_does_not_count_all_parties_of_a_person_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", dpv.Privacy(1.0, 1e-5, "person", parties_per_person=2), "me")
    with pytest.raises(dpv.DpvalueError, match="must count all 2 parties of a person, got 3 releases"):
        ledger.release(0, "x", gaussian(100.0, 3, "person"), never)
    ledger.release(0, "x", gaussian(100.0, 4, "person"), lambda: b"")


def test_a_failed_draw_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", BUDGET, "me")
    with pytest.raises(AssertionError, match="nothing may be drawn"):
        ledger.release(0, "a", laplace(0.5), never)
    assert ledger.entries() == []
    assert ledger.release(0, "a", laplace(0.5), lambda: b"later") == b"later"


def test_an_old_copy_is_found_by_a_head_that_was_kept(tmp_path: Path) -> None:
    path, head = tmp_path / "ledger", tmp_path / "elsewhere"
    ledger = Ledger.create(path, BUDGET, "me", head=head)
    heads = [ledger.head()]
    for number in range(4):
        ledger.release(number, "x", laplace(0.1), lambda: b"bytes")
        heads.append(ledger.head())
        assert head.read_text().strip() == heads[-1]
        if number == 1:
            shutil.copy(path, tmp_path / "backup")
    for one in heads:
        assert ledger.verify(one) == 4
    assert Ledger(tmp_path / "backup").verify(heads[2]) == 2  # nothing tells, without the head
    with pytest.raises(dpv.DpvalueError, match="does not contain the stored head"):
        Ledger(tmp_path / "backup").verify(heads[4])
    with pytest.raises(dpv.DpvalueError, match="head must be what"):
        ledger.verify("yesterday")
    shutil.copy(tmp_path / "backup", path)
    with pytest.raises(dpv.DpvalueError, match="does not contain the stored head"):
        Ledger(path, head=head)
    head.unlink()
    with pytest.raises(dpv.DpvalueError, match="does not exist: without it a rollback"):
        Ledger(path, head=head)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET charge = replace(charge, '10.0', '99.0') WHERE number = 2",
        "UPDATE entries SET charge = '{' WHERE number = 1",
        "UPDATE entries SET charge = '{\"law\": 3}' WHERE number = 1",
        "UPDATE entries SET bytes = x'00' WHERE number = 2",
        "UPDATE entries SET bytes = 'text' WHERE number = 1",
        "UPDATE entries SET purpose = x'00ff' WHERE number = 1",
        "UPDATE entries SET round = 7 WHERE number = 1",
        "UPDATE entries SET time = '1999' WHERE number = 1",
        "UPDATE entries SET kind = 'parties' WHERE number = 1",
        "DELETE FROM entries WHERE number = 1",
        "UPDATE ledger SET terms = '{'",
        "UPDATE ledger SET terms = '[1]'",
        "UPDATE ledger SET terms = replace(terms, '1.0', '100.0')",
        "UPDATE ledger SET format = 2",
        "DELETE FROM ledger",
        "DROP TABLE entries",
        "DROP TABLE ledger",
    ],
)
def test_an_altered_ledger_serves_nothing_and_releases_nothing(statement: str, tmp_path: Path) -> None:
    """Whoever opens it is told, in one line; and so is one who had it open before."""
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, BUDGET, "me")
    for number in range(2):
        ledger.release(number, "x", laplace(0.1), lambda: b"made")
    with closing(sqlite3.connect(path)) as database:
        database.execute(statement)
        database.commit()
    touches: list[Any] = [lambda: Ledger(path)]
    if "ledger SET" not in statement and "FROM ledger" not in statement and "TABLE ledger" not in statement:
        touches += [
            lambda: ledger.release(0, "x", laplace(0.1), never),
            lambda: ledger.release(2, "x", laplace(0.1), never),
            lambda: ledger.spent_epsilon,
        ]
    for touch in touches:
        with pytest.raises(dpv.DpvalueError) as caught:
            touch()
        assert "\n" not in str(caught.value)


def test_no_file_becomes_a_fresh_budget(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger.create(path, BUDGET, "me")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    ledger.release(0, "x", laplace(0.9), lambda: b"made" * 5000)
    whole = path.read_bytes()
    for content in (b"", b"not a ledger at all" * 400, whole[:100], whole[: len(whole) // 2], whole[:-4096]):
        path.write_bytes(content)
        for touch in (
            lambda: Ledger(path),
            lambda: ledger.release(1, "y", laplace(0.9), never),
            lambda: ledger.spent_epsilon,
        ):
            with pytest.raises(dpv.DpvalueError) as caught:
                touch()
            assert "\n" not in str(caught.value)
        with pytest.raises(dpv.DpvalueError, match="already exists"):
            Ledger.create(path, BUDGET, "me")
    path.unlink()
    for touch in (lambda: Ledger(path), lambda: ledger.release(1, "y", laplace(0.9), never)):
        with pytest.raises(dpv.DpvalueError):
            touch()
    assert not path.exists()


def test_two_ledgers_of_the_same_terms_start_their_chains_elsewhere(tmp_path: Path) -> None:
    heads = {Ledger.create(tmp_path / str(number), BUDGET, "me").head() for number in range(5)}
    assert len(heads) == 5


@pytest.mark.parametrize("purpose", [7, None, b"x", "", " ", "a\nb", "\ud800"])
def test_a_purpose_is_a_text(purpose: Any, tmp_path: Path) -> None:
    with pytest.raises(dpv.DpvalueError, match="purpose must be printable text"):
        Ledger.create(tmp_path / "ledger", BUDGET, "me", purpose=purpose)


def test_bad_files_and_budgets_are_refused_in_one_line(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "ledger", BUDGET, "me")
    person = dpv.Privacy(unit="person")
    for given, message in (
        ((tmp_path / "ledger", BUDGET, "me"), "already exists"),
        ((tmp_path / "nowhere" / "ledger", BUDGET, "me"), "the folder of the ledger does not exist"),
        ((tmp_path / "new", dpv.Privacy(accounting="poisson"), "me"), "must have accounting='composition'"),
        ((tmp_path / "new", BUDGET, " "), "name must be printable text"),
        ((tmp_path / "new", BUDGET, "me", ("a",), "who"), "person needs unit person"),
        (
            (tmp_path / "new", person, "me", ("a",)),
            "must be given for unit party and no other",
        ),
        ((tmp_path / "new", BUDGET, "me", "everybody"), "parties must be names, or 'rows' without a party_column"),
    ):
        path, budget, name, *whom = given
        parties, column = [*whom, None, None][:2]
        with pytest.raises(dpv.DpvalueError, match=message) as refused:
            Ledger.create(path, budget, name, parties=parties, person=column)
        assert "\n" not in str(refused.value)
        assert not (tmp_path / "new").exists()
    with pytest.raises(dpv.DpvalueError, match="there is no ledger at"):
        Ledger(tmp_path / "missing")


def test_a_ledger_of_sites_is_not_one_of_their_rows(tmp_path: Path) -> None:
    """Eight sites, then their 400 rows as parties: what a site's rows spend together is not what one of them does."""
    rows, site = Holding("rows", None), Holding(("a", "b"), None)
    sites = Ledger.create(tmp_path / "sites", BUDGET, "me", parties=["a", "b"])
    each = Ledger.create(tmp_path / "each", BUDGET, "me")
    sites.require_holding(site, BUDGET)
    each.require_holding(rows, BUDGET)
    with pytest.raises(dpv.DpvalueError, match="is for named parties, and this run is on rows as parties"):
        sites.require_holding(rows, BUDGET)
    with pytest.raises(dpv.DpvalueError, match="is for rows, and this run is on named parties"):
        each.require_holding(site, BUDGET)
    more = Holding(("a", "c"), None)
    with pytest.raises(dpv.DpvalueError, match="'c' is not a party of the ledger 'me'"):
        sites.require_holding(more, BUDGET)
    sites.add_parties(["c"])
    sites.require_holding(more, BUDGET)
    assert Ledger(tmp_path / "sites").parties == ("a", "b", "c")
    assert sites.spent_epsilon == 0
    for names in (["a"], ["c"], []):
        with pytest.raises(dpv.DpvalueError, match="names must be"):
            sites.add_parties(names)
    with pytest.raises(dpv.DpvalueError, match="added only to a ledger of named parties"):
        each.add_parties(["x"])


def test_a_ledger_of_persons_is_bound_to_their_ids(tmp_path: Path) -> None:
    budget = dpv.Privacy(unit="person", parties_per_person=2)
    ledger = Ledger.create(tmp_path / "ledger", budget, "me", person="patient")
    ledger.require_holding(Holding(("a",), "patient"), budget)
    with pytest.raises(
        dpv.DpvalueError, match="accepts only runs with --unit person --person patient --parties-per-person 2"
    ):
        ledger.require_holding(Holding(("a",), None), dpv.Privacy(unit="party"))
    with pytest.raises(dpv.DpvalueError, match="has person ids in the column 'patient'; this run has them in 'visit'"):
        ledger.require_holding(Holding(("a",), "visit"), budget)
    with pytest.raises(dpv.DpvalueError, match="parties_per_person must be that of the ledger 'me', 2; got 1"):
        ledger.require_holding(Holding(("a",), "patient"), dpv.Privacy(unit="person"))
    records = Ledger.create(tmp_path / "records", dpv.Privacy(unit="record"), "me")
    records.require_holding(Holding("rows", "x"), dpv.Privacy(unit="record"))
    with pytest.raises(dpv.DpvalueError, match="is per record, and this run protects each person"):
        records.require_holding(Holding("rows", "x"), budget)


def test_concurrent_processes_do_not_overspend(tmp_path: Path) -> None:
    """Eight processes ask for a tenth of the budget, twenty times each: ten get it."""
    path = tmp_path / "ledger"
    Ledger.create(path, dpv.Privacy(1.0, delta=0), "me")
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
    assert ledger.spent_epsilon == pytest.approx(1.0)
    ledger.verify()


def test_two_processes_with_the_same_request_get_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    Ledger.create(path, BUDGET, "me")
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


@pytest.mark.slow
def test_killed_at_any_point_it_never_counts_less_than_what_left(tmp_path: Path) -> None:
    """A child releases and tells what it got through a pipe, until it is killed; 220 times: what it told is stored."""
    path = tmp_path / "ledger"
    Ledger.create(path, dpv.Privacy(50.0, delta=0), "me")
    generator = random.Random(0)
    told: dict[int, bytes] = {}
    for _ in range(220):
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
        # At a random time, in half of the cases once something has left: time alone is too short on a busy machine.
        data = os.read(reader, 16) if generator.random() < 0.5 else b""
        time.sleep(generator.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while piece := os.read(reader, 65536):
            data += piece
        os.close(reader)
        for start in range(0, len(data) - len(data) % 16, 16):
            told[int.from_bytes(data[start : start + 8], "big")] = data[start + 8 : start + 16]
    ledger = Ledger(path)
    entries = ledger.entries()
    assert ledger.verify() == len(entries)
    assert len(told) > 20
    assert {entry.round for entry in entries} >= set(told)
    assert ledger.spent_epsilon == pytest.approx(0.001 * len(entries))
    for number, made in told.items():
        assert ledger.release(number, f"request {number}", laplace(0.001), never) == made


def test_the_command_line_shows_and_verifies(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "dpvalue"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([command, "ledger", *arguments], capture_output=True, text=True, timeout=120, check=False)

    path = tmp_path / "ledger"
    ledger = Ledger.create(path, BUDGET, "me")
    ledger.release(0, "x", laplace(0.25), lambda: b"")
    shown = run("show", str(path))
    assert shown.returncode == 0
    assert "budget: epsilon = 1, delta = 1e-05 per party, neighbours zero_out" in shown.stdout
    assert "spent: epsilon = 0.25" in shown.stdout
    assert f"head: {ledger.head()}" in shown.stdout
    verified = CliRunner().invoke(app, ["ledger", "verify", str(path), "--head", ledger.head()])
    assert verified.exit_code == 0
    assert "1 entry, all digests valid, and the stored head is among them" in verified.stdout
    for arguments in (["show", str(tmp_path / "missing")], ["verify", str(path), "--head", "9:" + "a" * 64]):
        refused = CliRunner().invoke(app, ["ledger", *arguments])
        assert refused.exit_code == 2
        assert len(refused.stderr.strip().splitlines()) == 1


def test_what_is_long_stands_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of SQLite holds a gigabyte at most; here a piece holds ten bytes."""
    monkeypatch.setattr("dpvalue.privacy.ledger_file._MOST_BYTES", 10)
    made = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(5.0, unit="record"), "me")
    charge = Charge("gaussian", 20.0, 1, 1.0, "record", "zero_out")
    contents = [bytes(range(length)) for length in (0, 9, 10, 11, 20, 57)]
    for number, content in enumerate(contents):
        assert made.release(number, "asked", charge, lambda content=content: content) == content  # type: ignore[misc]
    again = dpv.Ledger(tmp_path / "ledger")
    for number, content in enumerate(contents):
        assert again.release(number, "asked", charge, lambda: b"fresh") == content
        stored = again.stored_release(number)
        assert stored is not None
        assert stored[0] == content
    for change in (
        "UPDATE pieces SET bytes = x'00' WHERE entry = 6 AND piece = 2", "DELETE FROM pieces WHERE piece = 5",
        "INSERT INTO pieces VALUES (5, 9, x'00')", "DROP TABLE pieces",
    ):  # fmt: skip
        (tmp_path / "altered").write_bytes((tmp_path / "ledger").read_bytes())
        with sqlite3.connect(tmp_path / "altered") as database:
            database.execute(change)
        with pytest.raises(dpv.DpvalueError, match="has been altered"):
            dpv.Ledger(tmp_path / "altered")
