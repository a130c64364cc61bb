"""The file of a ledger: SQLite with a fixed schema, and entries in a chain of digests.

Every transaction compares the schema with the expected one, which excludes triggers and views, and checks every digest.
The chain starts at the terms with their random salt and covers every entry with its bytes. A written entry is read back
before the commit.

A digest is no signature: whoever can write the file can recompute all digests, restore an earlier file, or remove the
last entries. Only a head stored elsewhere detects this.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

from dpvalue.display import one_line
from dpvalue.errors import DpvalueError
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.holders import Terms
from dpvalue.storage import write_whole
from dpvalue.stored import TEXT, build, list_of, parse_json, read_text

FORMAT_VERSION = 4

ADDED, RESERVED, RELEASE = "parties", "reserved", "release"

_WAIT_SECONDS = 600.0

_MOST_BYTES = 2**28  # in one cell: SQLite has a limit of 10^9; longer content is stored in pieces

_COLUMNS = "number, kind, purpose, round, request, charge, time, bytes, digest"

_TABLES = (
    "CREATE TABLE ledger (format INTEGER NOT NULL, terms TEXT NOT NULL, digest TEXT NOT NULL)",
    """CREATE TABLE entries (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    purpose TEXT NOT NULL,
    round INTEGER NOT NULL,
    request TEXT NOT NULL,
    charge TEXT NOT NULL,
    time TEXT NOT NULL,
    bytes BLOB NOT NULL,
    digest TEXT NOT NULL,
    UNIQUE (kind, purpose, round)
)""",
    """CREATE TABLE pieces (
    entry INTEGER NOT NULL, piece INTEGER NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (entry, piece)
)""",
)

Stored = TypeVar("Stored", "Charge", "Terms", Privacy)

Row = tuple[int, str, str, int, str, str, str]


@dataclass(frozen=True)
class Entry:
    """One row of the ledger; `digest` covers the row, its bytes and the previous digest.

    An entry that adds parties has no charge. A reservation has the charge of `round` rounds of its purpose, whose
    releases then have no further cost.
    """

    number: int
    kind: str
    purpose: str
    round: int
    request: str
    charge: Charge | None
    time: str
    digest: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class LedgerFile:
    """An open ledger, in a transaction with an exclusive lock; `open_file` makes it.

    Attributes:
        path: the file.
        terms: the terms of the ledger.
        entries: all entries, checked.
    """

    path: Path
    terms: Terms
    entries: tuple[Entry, ...]
    _database: sqlite3.Connection

    def content(self, entry: Entry) -> bytes:
        """Return the bytes of an entry."""
        (first,) = self._database.execute("SELECT bytes FROM entries WHERE number = ?", (entry.number,)).fetchone()
        return _join_pieces(self._database, entry.number, first)

    def append(self, kind: str, purpose: str, round_: int, request: str, charge: Charge | None, content: bytes) -> None:
        """Write an entry and read it back; raise unless it is stored exactly and is the only new entry."""
        text = json.dumps(None if charge is None else asdict(charge))
        day = datetime.now(UTC).date().isoformat()  # the time of day would reveal how long private steps took
        row: Row = (len(self.entries) + 1, kind, purpose, round_, request, text, day)
        digest = _digest(_head(self.terms, self.entries), row, content)
        pieces = [content[at : at + _MOST_BYTES] for at in range(_MOST_BYTES, len(content), _MOST_BYTES)]
        whole = (*row, content[:_MOST_BYTES], digest)
        self._database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", whole)
        for number, piece in enumerate(pieces, start=1):
            self._database.execute("INSERT INTO pieces VALUES (?, ?, ?)", (row[0], number, piece))
        (count,) = self._database.execute("SELECT count(*) FROM entries NOT INDEXED").fetchone()
        written = self._database.execute(f"SELECT {_COLUMNS} FROM entries WHERE number = ?", row[:1]).fetchone()
        if count != row[0] or written != whole or _join_pieces(self._database, row[0], written[-2]) != content:
            raise DpvalueError(f"the ledger {str(self.path)!r} did not store an entry: nothing was released")


def create_file(path: Path, terms: Terms, head: Path | None) -> None:
    """Create an empty ledger with mode 0600, and its head file; raise if a file exists."""
    for file in (path, *(() if head is None else (head,))):
        _require_free(file)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except (OSError, ValueError) as error:  # a name with a zero byte is a bad value
        raise DpvalueError(f"the ledger {str(path)!r} cannot be created: {error}") from None
    with _transaction(path) as database:
        for statement in _TABLES:
            database.execute(statement)
        cells = FORMAT_VERSION, json.dumps(asdict(terms)), _chain_start(terms)
        database.execute("INSERT INTO ledger VALUES (?, ?, ?)", cells)
    if head is not None:
        write_head(head, f"0:{_chain_start(terms)}")


@contextmanager
def open_file(path: Path, terms: Terms | None = None) -> Iterator[LedgerFile]:
    """Open a ledger with an exclusive lock and check it; `terms` are the expected terms, None for any."""
    with _transaction(path) as database:
        _require_format(path, database)
        rows = database.execute("SELECT terms, digest FROM ledger").fetchall()
        if len(rows) != 1:
            raise DpvalueError(f"{str(path)!r} is damaged: it must hold one budget, and holds {len(rows)}")
        stored_terms = _parse_cell(Terms, rows[0][0], "its budget")
        if _chain_start(stored_terms) != rows[0][1] or stored_terms != (terms or stored_terms):
            raise DpvalueError(f"the budget of the ledger {str(path)!r} has been altered")
        yield LedgerFile(path, stored_terms, _read_entries(path, stored_terms, database), database)


def head_of(file: LedgerFile) -> str:
    """Return the head of the chain: the number of entries and the last digest."""
    return f"{len(file.entries)}:{_head(file.terms, file.entries)}"


def _chain_start(terms: Terms) -> str:
    """Return the start of the chain: a digest of the terms, so that a change of them is detected."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, asdict(terms)]).encode()).hexdigest()


@contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection with an exclusive lock. It commits at the end and rolls back after an error.

    There is no write-ahead log: committed entries are in the file itself.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        database = sqlite3.connect(uri, timeout=_WAIT_SECONDS, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise DpvalueError(f"the ledger {str(path)!r} cannot be opened: {error}") from None
    try:
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON", "journal_mode = DELETE", "synchronous = EXTRA"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")
    except (sqlite3.Error, UnicodeDecodeError) as error:  # of a damaged schema SQLite quotes bytes that are no text
        raise DpvalueError(f"{str(path)!r} is not a ledger, or is damaged or locked: {one_line(str(error))}") from None
    finally:
        database.close()  # rolls back unless committed


def _require_format(path: Path, database: sqlite3.Connection) -> None:
    """Raise unless the file holds the tables of a ledger of this format and nothing else."""
    schema = _schema(database)
    if ("table", "ledger") not in {(kind, name) for kind, name, *_ in schema}:
        raise DpvalueError(f"{str(path)!r} is not a ledger: it is empty or another file")
    versions = database.execute("SELECT format FROM ledger").fetchall()
    if versions and versions != [(FORMAT_VERSION,)]:
        raise DpvalueError(
            f"{str(path)!r} must be a ledger of format {FORMAT_VERSION}, got {versions[0][0]}: CHANGELOG.md explains "
            "how to carry over the spending of an older one"
        )
    if schema != _expected_schema():
        raise DpvalueError(
            f"the ledger {str(path)!r} has been altered: it must hold the tables of a ledger and nothing else, no "
            "trigger, view or index"
        )


def _schema(database: sqlite3.Connection) -> list[tuple[str, ...]]:
    return sorted(database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"), key=repr)


@cache
def _expected_schema() -> list[tuple[str, ...]]:
    """The schema that SQLite stores for the tables of a ledger."""
    with closing(sqlite3.connect(":memory:")) as database:
        for statement in _TABLES:
            database.execute(statement)
        return _schema(database)


def _read_entries(path: Path, terms: Terms, database: sqlite3.Connection) -> tuple[Entry, ...]:
    """All entries; raises unless each has the digest of the chain."""
    entries: list[Entry] = []
    rows = database.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY number")
    for place, (*row, first, digest) in enumerate(rows.fetchall(), start=1):
        content = _join_pieces(database, place, first)
        number, kind, purpose, round_, request, charge, time = row
        intact = isinstance(content, bytes) and number == place
        if not intact or _digest(_head(terms, entries), tuple(row), content) != digest:
            raise DpvalueError(f"entry {place} of the ledger {str(path)!r} has been altered, or is missing")
        names: list[str] = []
        if kind == ADDED:
            names = parse_json(content.decode(errors="replace"), f"entry {place}")
            list_of(TEXT)(f"entry {place}", names)
        cost = None if kind == ADDED else _parse_cell(Charge, charge, f"entry {place}")
        entries.append(Entry(number, kind, purpose, round_, request, cost, time, digest, tuple(names)))
    return tuple(entries)


def _join_pieces(database: sqlite3.Connection, entry: int, first: bytes) -> bytes:
    """The bytes of an entry, whose first piece is in the row of the entry."""
    if not isinstance(first, bytes) or len(first) < _MOST_BYTES:
        return first
    pieces = database.execute("SELECT bytes FROM pieces WHERE entry = ? ORDER BY piece", (entry,)).fetchall()
    return b"".join([first, *(piece for (piece,) in pieces if isinstance(piece, bytes))])


def _head(terms: Terms, entries: tuple[Entry, ...] | list[Entry]) -> str:
    return entries[-1].digest if entries else _chain_start(terms)


def _digest(previous: str, row: tuple[object, ...], content: bytes) -> str:
    content_hash = hashlib.sha256(content).hexdigest()
    return hashlib.sha256(json.dumps([previous, *map(str, row), content_hash]).encode()).hexdigest()


def _parse_cell(kind: type[Stored], text: object, what: str) -> Stored:
    """The `Charge` of a cell, or the `Terms` with their budget."""
    try:
        stored = parse_json(str(text), what)
        if kind is Terms and isinstance(stored, dict):
            names = stored.get("parties")
            parties = tuple(names) if isinstance(names, list) else names
            stored = {**stored, "budget": build(Privacy, what, stored.get("budget")), "parties": parties}
        return build(kind, what, stored)
    except DpvalueError:  # not JSON, not an object, or not of its fields
        raise DpvalueError(f"the ledger is damaged: {what} cannot be read") from None


_HEAD = re.compile(r"[0-9]{1,18}:[0-9a-f]{64}")


def is_head(text: str) -> bool:
    """Return whether a text has the form of `Ledger.head`."""
    return _HEAD.fullmatch(text) is not None


def require_head(file: LedgerFile, head: str) -> None:
    """Raise unless a head is in the chain."""
    if not is_head(head):
        raise DpvalueError(f"head must be what `head` printed, like 3:0f..., got {head!r}")
    count, _, digest = head.partition(":")
    digests = [_chain_start(file.terms), *(entry.digest for entry in file.entries)]
    if int(count) >= len(digests) or digests[int(count)] != digest:
        raise DpvalueError(
            f"the ledger {str(file.path)!r} does not contain the stored head: entries were removed, or it was rolled "
            "back to an older copy"
        )


def is_file(path: Path) -> bool:
    """Return whether there is a file at a path; False for an invalid path."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or a folder that may not be entered
        return False


def _require_free(path: Path) -> None:
    """Raise unless a file can be created here."""
    try:
        folder, exists = path.parent.is_dir(), path.exists() or path.is_symlink()
    except (OSError, ValueError) as error:  # a name that is too long, or a folder that may not be entered
        raise DpvalueError(f"no file can be created at {str(path)!r}: {error}") from None
    if not folder:
        raise DpvalueError(f"the folder of the ledger does not exist: {str(path.parent)!r}")
    if exists:
        raise DpvalueError(f"{str(path)!r} already exists: a ledger is created once")


def write_head(file: Path, head: str) -> None:
    """Write a head file, whole or not at all."""
    try:
        write_whole(file, head.encode() + b"\n")
    except OSError as error:
        raise DpvalueError(f"the head file {str(file)!r} cannot be written: {error.strerror}") from None


def read_head(file: Path) -> str:
    """Return the head in a head file."""
    if not is_file(file):
        raise DpvalueError(
            f"head file {str(file)!r} does not exist: without it a rollback of the ledger is not detected"
        )
    return read_text(file).strip()
