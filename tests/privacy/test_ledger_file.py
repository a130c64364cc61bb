"""What was done to the file of a ledger is noticed, or is said to need a head; and is never a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.privacy import ledger_file
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.ledger import Ledger

BUDGET = dpv.Privacy(1.0, 1e-5)
TENTH = Charge("laplace", 10.0, 1, 0.5, "party", "zero_out")


def never() -> bytes:
    raise AssertionError("nothing may be drawn")


@pytest.fixture(name="path")
def made_ledger(tmp_path: Path) -> Path:
    """A ledger with three releases of a tenth of the budget each."""
    ledger = Ledger.create(tmp_path / "my.ledger", BUDGET, "me", parties=["a"])
    for number in range(3):
        ledger.release(number, str(number), TENTH, lambda: b"made")
    return tmp_path / "my.ledger"


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as database:
        yield database
        database.commit()


def refused(*work: Callable[[], object], match: str = "") -> None:
    for one in work:
        with pytest.raises(dpv.DpvalueError, match=match) as caught:
            one()
        assert "\n" not in str(caught.value)


FORGETS = "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries WHERE number = NEW.number; END"
ALTERED = (
    FORGETS,
    "CREATE TRIGGER t AFTER INSERT ON entries BEGIN UPDATE entries SET charge = 'null' WHERE number = NEW.number; END",
    "CREATE TRIGGER t BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END",
    "CREATE TRIGGER t AFTER UPDATE ON ledger BEGIN SELECT 1; END",
    "CREATE VIEW sums AS SELECT count(*) FROM entries",
    "ALTER TABLE entries RENAME TO kept; CREATE VIEW entries AS SELECT * FROM kept WHERE number < 2",
    "CREATE INDEX i ON entries (purpose)",
    "CREATE TABLE other (x)",
    "ALTER TABLE entries ADD COLUMN more TEXT DEFAULT ''",
    "CREATE UNIQUE INDEX i ON entries (request)",
    "DROP TABLE pieces",
)


@pytest.mark.parametrize("statements", ALTERED)
def test_anything_added_to_the_schema_is_refused_on_every_open(statements: str, path: Path) -> None:
    """By whoever opens it, and by whoever had it open: before a release is drawn."""
    ledger = Ledger(path)
    with opened(path) as database:
        database.executescript(statements)
    refused(
        lambda: Ledger(path),
        lambda: ledger.release(0, "0", TENTH, never),
        lambda: ledger.release(3, "3", TENTH, never),
        lambda: ledger.reserve(2, TENTH),
        lambda: ledger.add_parties(["x"]),
        lambda: ledger.spent_epsilon,
        lambda: ledger.verify(),
        match="has been altered",
    )


@pytest.mark.parametrize("statement", ALTERED[:3])
def test_an_entry_that_was_not_kept_releases_nothing(
    statement: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written is read again before it is committed, whatever it was that changed it."""
    ledger = Ledger(path)
    monkeypatch.setattr(ledger_file, "_require_format", lambda path, database: None)
    with opened(path) as database:
        database.execute(statement)
    refused(
        lambda: ledger.release(3, "x", TENTH, lambda: b"drawn"),
        lambda: Ledger(path, "two").reserve(2, TENTH),
        match="did not store an entry: nothing was released",
    )
    assert len(ledger.entries()) == 3


def cut(path: Path) -> None:
    with opened(path) as database:
        database.execute("DELETE FROM entries WHERE number = 3")


def rewrite(path: Path) -> None:
    """Make the last entry cheaper, and its digest anew, as whoever may write the file can."""
    ledger = Ledger(path)
    cheap = json.dumps(asdict(TENTH) | {"noise_multiplier": 1000.0})
    with opened(path) as database:
        row = list(database.execute("SELECT * FROM entries WHERE number = 3").fetchone())
        row[5] = cheap
        digest = ledger_file._digest(ledger.entries()[1].digest, tuple(row[:7]), row[7])
        database.execute("UPDATE entries SET charge = ?, digest = ? WHERE number = 3", (cheap, digest))


@pytest.mark.parametrize("change", [cut, rewrite])
def test_a_cut_end_and_a_chain_made_anew_are_noticed_by_a_head_alone(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    path, head = tmp_path / "my.ledger", tmp_path / "elsewhere"
    ledger = Ledger.create(path, BUDGET, "me", head=head)
    for number in range(3):
        ledger.release(number, "x", TENTH, lambda: b"made")
    change(path)
    assert Ledger(path).spent_epsilon < 0.25  # as the docs say: nothing tells, without the head
    refused(
        lambda: Ledger(path, head=head),
        lambda: ledger.release(3, "y", TENTH, never),  # it had the ledger open
        lambda: ledger.spent_epsilon,
        lambda: Ledger(path).verify(head.read_text().strip()),
        match="does not contain the stored head",
    )


def test_the_head_never_goes_back(tmp_path: Path) -> None:
    """Three processes release at once: an earlier head does not replace a later one."""
    path, head = tmp_path / "my.ledger", tmp_path / "elsewhere"
    Ledger.create(path, dpv.Privacy(90.0, 1e-5), "me", head=head)
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            ledger = Ledger(path, purpose=f"process {child}", head=head)
            for number in range(6):
                ledger.release(number, "x", TENTH, lambda: b"x")
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    assert head.read_text().strip() == Ledger(path, head=head).head()
    assert len(Ledger(path).entries()) == 18


@pytest.mark.parametrize(
    "change", [("1.0", "100.0"), ('"me"', '"you"'), ('"rows"', '"rowz"'), ('"rows"', "[1]"), ("1.0", "1e999")]
)
def test_the_budget_of_a_ledger_without_entries_is_checked(change: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "new.ledger"
    ledger = Ledger.create(path, BUDGET, "me")
    with opened(path) as database:
        database.execute("UPDATE ledger SET terms = replace(terms, ?, ?)", change)
    refused(lambda: Ledger(path), lambda: ledger.release(0, "x", TENTH, never), match="altered|cannot be read")


def test_another_ledger_in_its_place_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "my.ledger", BUDGET, "me")
    Ledger.create(tmp_path / "other", BUDGET, "me")
    shutil.copy(tmp_path / "other", tmp_path / "my.ledger")
    refused(lambda: ledger.release(0, "x", TENTH, never), lambda: ledger.spent_epsilon, match="has been altered")


def test_an_older_format_is_refused_and_says_where_to_read_on(path: Path) -> None:
    with opened(path) as database:
        database.executescript("ALTER TABLE ledger DROP COLUMN digest; UPDATE ledger SET format = 3")
    refused(lambda: Ledger(path), match=r"must be a ledger of format 4, got 3: CHANGELOG\.md explains how")


@pytest.mark.parametrize("trials", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_bytes_that_were_changed_at_random_give_no_traceback_and_no_budget(
    trials: int, path: Path, tmp_path: Path
) -> None:
    """Either one line, or the very same entries; a release is drawn only behind all of these."""
    generator = random.Random(trials)
    whole, entries = path.read_bytes(), Ledger(path).entries()
    empty = tmp_path / "empty.ledger"
    Ledger.create(empty, BUDGET, "me")
    same, lines = 0, set()
    for trial in range(trials):
        content = bytearray(empty.read_bytes() if trial % 4 == 0 else whole)
        start = generator.randrange(len(content)) if trial % 3 else generator.randrange(120)
        for place in range(start, min(start + generator.choice([1, 1, 4, 64]), len(content))):
            content[place] = generator.randrange(256)
        if trial % 10 == 9:
            content = content[: generator.randrange(len(content))]
        damaged = tmp_path / "damaged"
        damaged.write_bytes(content)
        before = [] if trial % 4 == 0 else entries
        try:
            ledger = Ledger(damaged)
            assert ledger.entries() == before
            assert ledger.budget == BUDGET
            ledger.release(7, "7", TENTH, lambda: b"more")
            assert Ledger(damaged).entries()[: len(before)] == before
            assert len(ledger.entries()) == len(before) + 1
        except dpv.DpvalueError as error:
            lines.add(str(error).count("\n"))
            continue
        same += 1
    assert lines == {0}
    assert trials / 10 < same < trials * 9 / 10


def here(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_commands_say_in_one_line_what_is_wrong_with_a_file(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "text").write_text("no ledger")
    broken = tmp_path / "broken"
    shutil.copy(path, broken)
    with opened(broken) as database:
        database.execute(FORGETS)
    wrong = [
        *(("ledger", command, file) for command in ("show", "verify") for file in ("binary", "text", "broken", ".")),
        ("ledger", "add", "broken", "--party", "x"),
        ("ledger", "show", "x" * 5000),
        ("ledger", "verify", "my.ledger", "--head", "binary"),
        ("ledger", "verify", "my.ledger", "--head", "text"),
        ("ledger", "verify", "my.ledger", "--head", "\u00b2:" + "0" * 64),
        ("ledger", "verify", "my.ledger", "--head", "9" * 5000 + ":" + "0" * 64),
        ("ledger", "verify", "my.ledger", "--head", "1:" + "0" * 64),
        ("ledger", "add", "my.ledger", "--party", "x", "--head", "binary"),
        ("ledger", "new", "x" * 5000, "--name", "me"),
        ("ledger", "new", "new.ledger", "--name", "me", "--head", "x" * 5000),
        ("ledger", "new", "nowhere/new.ledger", "--name", "me"),
    ]
    refused(lambda: Ledger("a\0b"), lambda: Ledger.create("a\0b", BUDGET, "me"), match="a.x00b")
    monkeypatch.chdir(tmp_path)
    for arguments in wrong:
        done = here(*arguments)
        assert done.exit_code == 2, (arguments[:2], done.output, done.exception)
        assert done.stderr.startswith("error: "), done.stderr
        assert done.stderr.count("\n") == 1
    assert not (tmp_path / "new.ledger").exists()
