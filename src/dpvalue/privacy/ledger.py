"""What was ever released of one owner's data, on the owner's disk, and what is left of the budget.

A release and its charge are written in one transaction, synced to disk before the caller gets the bytes. So the ledger
never counts less than what left; a crash before that loses a release that nobody has seen. The same request again gets
the same bytes back, never a fresh draw of noise; a different request in the same slot is refused, and so is whatever
would pass the budget. Entries are chained by digests: whoever has kept the head of the chain elsewhere notices a
removed tail, an altered entry, or an old copy put back.

The filter: releases of Gaussian noise are mu-GDP together with mu^2 = sum of their mu^2, whatever was asked in between;
with Laplace noise among them, privacy loss distributions are composed (`accounting.total_epsilon`).

The chain starts at the budget, so that a changed budget is noticed as well.

Budgets are for one unit and one neighbouring relation. A release for a larger unit, or for the other relation, is
charged at what it costs in the budget's terms; one for a smaller unit promises the budget's unit nothing: refused.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from dpvalue.errors import BudgetExceeded, DpvalueError, require_choice, require_count, require_positive
from dpvalue.privacy import accounting
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.stored import build, parse_json

FORMAT_VERSION = 2
_WAIT_SECONDS = 600.0
Stored = TypeVar("Stored", "Charge", Privacy)
_SCHEMA = """
CREATE TABLE budget (format INTEGER NOT NULL, settings TEXT NOT NULL);
CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    purpose TEXT NOT NULL,
    round INTEGER NOT NULL,
    request TEXT NOT NULL,
    charge TEXT NOT NULL,
    time TEXT NOT NULL,
    bytes BLOB NOT NULL,
    digest TEXT NOT NULL,
    UNIQUE (purpose, round)
);
"""


@dataclass(frozen=True)
class Charge:
    """What one entry costs.

    Attributes:
        law: "gaussian" or "laplace".
        noise_multiplier: noise scale / sensitivity.
        releases: how many such releases the entry stands for: of a party, or of all parties that hold a person.
        sensitivity: how far one unit moves a release, where all parties have the same; else the largest.
        unit: what is protected.
        neighbours: under which relation.
    """

    law: str
    noise_multiplier: float
    releases: int
    sensitivity: float
    unit: str
    neighbours: str

    def __post_init__(self) -> None:
        require_choice("law", self.law, accounting.LAWS)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("releases", self.releases)
        require_positive("sensitivity", self.sensitivity)
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)

    @property
    def noise_scale(self) -> float:
        """The scale of the noise."""
        return self.noise_multiplier * self.sensitivity

    def releases_for(self, budget: Privacy) -> int:
        """Return how many releases a unit of the budget is in: a person may be in several parties of the charge."""
        spread = budget.parties_per_person if (self.unit, budget.unit) == ("party", "person") else 1
        return self.releases * spread

    def multiplier_for(self, unit: str, neighbours: str) -> float:
        """Return the noise multiplier of the same release for another unit and relation.

        A contribution is at most C long. Replacing it by another moves a release by up to 2C, by zero up to C. One
        record (or person) of a larger unit may turn its contribution into any other: a step of "replace" for the larger
        unit.
        """
        sizes = {"record": 0, "person": 1, "party": 2}
        if sizes[self.unit] < sizes[unit]:
            raise DpvalueError(
                f"the ledger's budget is per {unit}: a release that protects one {self.unit} promises a {unit} nothing"
            )
        moved = 2.0 if neighbours == "replace" or sizes[self.unit] > sizes[unit] else 1.0
        own = 2.0 if self.neighbours == "replace" else 1.0
        return self.noise_multiplier * own / moved


@dataclass(frozen=True)
class Entry:
    """One row of the ledger; `digest` is over it, its bytes and the digest before it."""

    number: int
    purpose: str
    round: int
    request: str
    charge: Charge
    time: str
    digest: str


class Ledger:
    """The ledger of one owner: a SQLite file, safe for several processes at once.

    Formal guarantee: all bytes ever returned by `release` are together (epsilon, delta)-DP as its budget says, for
    requests that may depend on earlier ones, if each was made with the noise of its charge.

    Args:
        path: the file; made if there is none, for which a budget is needed.
        budget: the whole budget; it cannot be changed later. None: the one in the file.
        purpose: names the slots of what is released through this object; another purpose has slots of its own, under
            the same budget.
    """

    def __init__(self, path: str | Path, budget: Privacy | None = None, purpose: str = "value") -> None:
        self.path, self.purpose = Path(path), purpose
        if not isinstance(purpose, str) or not purpose.strip() or not purpose.isprintable():
            raise DpvalueError(f"purpose must be a text that can be printed, got {purpose!r}")
        if budget is not None and budget.accounting != "composition":
            raise DpvalueError("budget must have accounting='composition': a ledger counts every release")
        if not self.path.exists() and budget is None:
            raise DpvalueError(f"there is no ledger at {str(path)!r}: give its budget to start one")
        if not self.path.parent.is_dir():
            raise DpvalueError(f"the folder of the ledger does not exist: {str(self.path.parent)!r}")
        self.budget = self._open(budget)

    def _open(self, budget: Privacy | None) -> Privacy:
        with self._transaction() as database:
            if not database.execute("SELECT name FROM sqlite_master WHERE name = 'entries'").fetchone():
                if budget is None:
                    raise DpvalueError(f"{str(self.path)!r} holds no ledger: give its budget to start one")
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute("INSERT INTO budget VALUES (?, ?)", (FORMAT_VERSION, json.dumps(asdict(budget))))
                return budget
            found = database.execute("SELECT format, settings FROM budget").fetchall()
        if len(found) != 1:
            raise DpvalueError(f"{str(self.path)!r} is damaged: it must hold one budget, and holds {len(found)}")
        version, settings = found[0]
        if version != FORMAT_VERSION:
            raise DpvalueError(f"{str(self.path)!r} must be a ledger of format {FORMAT_VERSION}, got {version}")
        stored = _parsed(Privacy, settings, "its budget")
        if budget is not None and budget != stored:
            raise DpvalueError(f"budget must be the one that the ledger was started with, {stored}; got {budget}")
        return stored

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own, for this process alone, that holds the only right to write until it is left."""
        try:
            database = sqlite3.connect(self.path, timeout=_WAIT_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise DpvalueError(f"the ledger {str(self.path)!r} cannot be opened: {error}") from None
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise DpvalueError(f"{str(self.path)!r} is not a ledger, or is damaged or locked: {error}") from None
        finally:
            database.close()  # what was not committed is undone

    def release(self, round_: int, request: str, charge: Charge, make: Callable[[], bytes]) -> bytes:
        """Return the bytes of a slot: those stored for the same request, or else those that `make` makes now.

        Args:
            round_: the slot, with the ledger's purpose.
            request: a digest of everything that the release depends on but the private data and the noise.
            charge: what it costs.
            make: makes the release, with fresh noise; called at most once, and only if the budget allows it.
        """
        require_count("round", round_, least=0)
        with self._transaction() as database:
            found = database.execute(
                "SELECT request, bytes FROM entries WHERE purpose = ? AND round = ?", (self.purpose, round_)
            ).fetchone()
            if found is not None:
                list(_entries(database))  # nothing is served from a damaged ledger
                if found[0] != request:
                    raise DpvalueError(
                        f"round {round_} of {self.purpose!r} was asked for differently before: another question needs "
                        "a purpose of its own, and is charged"
                    )
                if not isinstance(found[1], bytes):
                    raise DpvalueError(f"the ledger {str(self.path)!r} is damaged: what it kept is not bytes")
                return found[1]
            entries = list(_entries(database))
            self._require_room(entries, charge)
            made = make()
            number = len(entries) + 1
            row = number, self.purpose, round_, request, json.dumps(asdict(charge)), datetime.now(UTC).isoformat()
            digest = _digest(entries[-1].digest if entries else self._start, row, made)
            database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, made, digest))
        return made  # after the commit: the disk has it

    def require_room(self, rounds: int, charge: Charge) -> None:
        """Raise if the rounds 0, ..., rounds - 1 that are not stored yet would pass the budget: before any is made."""
        entries = self.entries()
        stored = {entry.round for entry in entries if entry.purpose == self.purpose}
        missing = rounds - len(stored & set(range(rounds)))
        if missing:
            self._require_room(entries, replace(charge, releases=missing * charge.releases))

    def _require_room(self, entries: list[Entry], charge: Charge) -> None:
        before = [entry.charge for entry in entries]
        spent, after = self._epsilon(before), self._epsilon([*before, charge])
        if after > self.budget.epsilon * (1 + 1e-9):
            raise BudgetExceeded(spent=spent, asked=self._epsilon([charge]), left=max(0.0, self.budget.epsilon - spent))

    def _epsilon(self, charges: list[Charge]) -> float:
        """What charges spend together, in the budget's terms."""
        budget = self.budget
        releases = [
            (one.law, one.multiplier_for(budget.unit, budget.neighbours), one.releases_for(budget)) for one in charges
        ]
        if budget.delta == 0 and any(law == "gaussian" for law, _, _ in releases):
            return float("inf")
        return accounting.total_epsilon(releases, budget.delta)

    @property
    def spent(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        return self._epsilon([entry.charge for entry in self.entries()])

    def entries(self) -> list[Entry]:
        """Return all entries, without their bytes."""
        with self._transaction() as database:
            return list(_entries(database))

    def head(self) -> str:
        """Return the head of the chain, to be kept elsewhere: the number of entries and the last digest."""
        entries = self.entries()
        return f"{len(entries)}:{entries[-1].digest if entries else self._start}"

    @property
    def _start(self) -> str:
        """Where the chain starts: the budget, so that it cannot be changed unnoticed."""
        whole = json.dumps([FORMAT_VERSION, asdict(self.budget)])
        return hashlib.sha256(whole.encode()).hexdigest()

    def verify(self, head: str | None = None) -> int:
        """Check every digest, and that a head kept elsewhere is in the chain; return the number of entries."""
        previous, digests = self._start, [self._start]
        with self._transaction() as database:
            rows = database.execute(
                "SELECT number, purpose, round, request, charge, time, bytes, digest FROM entries ORDER BY number"
            ).fetchall()
        for place, (*row, made, digest) in enumerate(rows, start=1):
            if not isinstance(made, bytes) or row[0] != place or _digest(previous, tuple(row), made) != digest:
                raise DpvalueError(f"entry {place} of the ledger {str(self.path)!r} has been altered, or is missing")
            previous = digest
            digests.append(digest)
        if head is not None:
            count, _, digest = head.partition(":")
            if not count.isdigit() or len(digest) != 64:
                raise DpvalueError(f"head must be what `head` printed, like 3:0f..., got {head!r}")
            if int(count) >= len(digests) or digests[int(count)] != digest:
                raise DpvalueError(
                    f"the ledger {str(self.path)!r} does not continue the kept head: entries were removed, or an old "
                    "copy was put back"
                )
        return len(rows)


def _entries(database: sqlite3.Connection) -> Iterator[Entry]:
    rows = database.execute("SELECT number, purpose, round, request, charge, time, digest FROM entries ORDER BY number")
    for number, purpose, round_, request, charge, time, digest in rows:
        if not all(isinstance(text, str) for text in (purpose, request, time, digest)):  # SQLite takes any type
            raise DpvalueError(f"the ledger is damaged: entry {number} cannot be read")
        yield Entry(number, purpose, round_, request, _parsed(Charge, charge, f"entry {number}"), time, digest)


def _parsed(kind: type[Stored], text: object, what: str) -> Stored:
    """What a cell holds, as a `Charge` or a `Privacy`."""
    try:
        return build(kind, what, parse_json(str(text), what))
    except DpvalueError:  # not JSON, not an object, or not of its fields
        raise DpvalueError(f"the ledger is damaged: {what} cannot be read") from None


def _digest(previous: str, row: tuple[object, ...], made: bytes) -> str:
    content = hashlib.sha256(made).hexdigest()
    return hashlib.sha256(json.dumps([previous, *map(str, row), content]).encode()).hexdigest()
