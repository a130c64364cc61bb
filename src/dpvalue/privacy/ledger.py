"""What was ever released of one owner's data, on the owner's disk, and what is left of the budget.

A release and its charge are written in one transaction, synced to disk before the caller gets the bytes. So the ledger
never counts less than what left; a crash before that loses a release that nobody has seen. The same request again gets
the same bytes back, never a fresh draw of noise; a different request in the same slot is refused, and so is whatever
would exceed the budget.

What releases cost together is decided by the filter of `dpvalue.privacy.charges`, which is sound for requests and noise
levels that depend on earlier answers. Budgets are for one unit and one neighbouring relation. A release for a larger
unit, or for the other relation, is charged at what it costs in the budget's terms; one for a smaller unit promises the
budget's unit nothing: refused.

It fails closed: whoever opens it checks every digest. They are chained from a random salt, the budget and whom it
protects, over every entry with its bytes; a missing, empty, truncated or altered file is an error, and only `create`
starts a budget. An old copy that is put back whole is noticed by a head file, kept on another disk; an old copy of both
is not, nor is an owner who starts a second ledger for the same data.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from dpvalue.durable import write_whole
from dpvalue.errors import DpvalueError, require_count
from dpvalue.names import require_names
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.charges import Charge, require_room, spent
from dpvalue.privacy.holders import ROWS, Holding, Terms, require_holding
from dpvalue.stored import build, parse_json, read_text

FORMAT_VERSION = 3
_WAIT_SECONDS = 600.0
_ADDED, _RESERVED, _RELEASE = "parties", "reserved", "release"
Stored = TypeVar("Stored", "Charge", "Terms", Privacy)
_SCHEMA = """
CREATE TABLE ledger (format INTEGER NOT NULL, terms TEXT NOT NULL);
CREATE TABLE entries (
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
);
"""
_PIECES = """
CREATE TABLE IF NOT EXISTS pieces (
    entry INTEGER NOT NULL, piece INTEGER NOT NULL, bytes BLOB NOT NULL, PRIMARY KEY (entry, piece)
);
"""
_MOST_BYTES = 2**28  # in one cell: SQLite has a limit of 10^9, and what is longer stands in pieces
_COLUMNS = "number, kind, purpose, round, request, charge, time, bytes, digest"


@dataclass(frozen=True)
class Entry:
    """One row of the ledger; `digest` is over it, its bytes and the digest before it.

    One that adds parties is free. One that reserves is charged for all rounds of a purpose (`round` says how many); the
    releases of these rounds then cost nothing more.
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


class Ledger:
    """The ledger of one owner: a SQLite file, safe for several processes at once; made by `Ledger.create`.

    Formal guarantee: all bytes ever returned by `release` are together (epsilon, delta)-DP as its budget says, for
    requests and noise levels that may depend on earlier ones, if each was made with the noise of its charge and from
    the data of those whom the ledger protects.

    Args:
        path: the file.
        purpose: names the slots of what is released through this object; another purpose has slots of its own, under
            the same budget.
        head: a file, best on another disk, that keeps the head of the chain: an old copy of the ledger is noticed.

    Example:
        >>> ledger = Ledger.create("north.ledger", Privacy(epsilon=1.0, unit="record"), name="north")
        >>> result = dpv.value(train, test, groups=sites, ledger=ledger,  # data as in `dpvalue.Result`
        ...                    privacy=Privacy(epsilon=0.5, unit="record"), progress=False)
        >>> round(ledger.spent, 3), len(ledger.entries())
        (0.5, 1)
    """

    def __init__(self, path: str | Path, purpose: str = "value", head: str | Path | None = None) -> None:
        self.path, self.purpose, self._head_file = Path(path), purpose, None if head is None else Path(head)
        self.returned: dict[int, str] = {}
        if not isinstance(purpose, str) or not purpose.strip() or not purpose.isprintable():
            raise DpvalueError(f"purpose must be a text that can be printed, got {purpose!r}")
        if not self.path.is_file():
            raise DpvalueError(f"there is no ledger at {str(path)!r}: dpvalue ledger new (Ledger.create) makes one")
        self.terms = self._terms()
        self.verify(None if self._head_file is None else _kept(self._head_file))

    @classmethod
    def create(
        cls,
        path: str | Path,
        budget: Privacy,
        name: str,
        *,
        parties: Sequence[str | int] | str | None = None,
        person: str | None = None,
        purpose: str = "value",
        head: str | Path | None = None,
    ) -> Ledger:
        """Start a ledger; the only way to. Raises if there is a file already.

        Args:
            path: the file to make, readable by its owner alone.
            budget: the whole budget, for one unit and relation; it cannot be changed later.
            name: of the holder.
            parties: for unit "party", whom it protects: their names (`add_parties` adds some), or "rows".
            person: for unit "person", the name of the column of ids.
            purpose: as in `Ledger`.
            head: a file to keep the head of the chain in; it must not exist either.

        Returns:
            the ledger, open.

        Raises:
            DpvalueError: a file that is there already, or a budget that does not fit the parties.

        Example:
            >>> ledger = Ledger.create("new.ledger", Privacy(epsilon=1.0), name="north", parties=["north"])
            >>> ledger.spent, ledger.parties
            (0.0, ('north',))
        """
        path = Path(path)
        if parties is None and budget.unit == "party":
            parties = ROWS
        named = parties if parties is None or isinstance(parties, str) else tuple(dict.fromkeys(map(str, parties)))
        if isinstance(named, tuple):
            require_names("names of parties", named)
        terms = Terms(name, budget, named, person, secrets.token_hex(16))
        if not path.parent.is_dir():
            raise DpvalueError(f"the folder of the ledger does not exist: {str(path.parent)!r}")
        for file in (path, *(() if head is None else (Path(head),))):
            if file.exists():
                raise DpvalueError(f"there is a file already at {str(file)!r}: a ledger is started once")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        except OSError as error:
            raise DpvalueError(f"the ledger {str(path)!r} cannot be made: {error.strerror}") from None
        with _transaction(path) as database:
            for statement in _SCHEMA.split(";"):
                database.execute(statement)
            database.execute("INSERT INTO ledger VALUES (?, ?)", (FORMAT_VERSION, json.dumps(asdict(terms))))
        if head is not None:
            _keep(Path(head), f"0:{_start(terms)}")
        return cls(path, purpose, head)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, purpose={self.purpose!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Name the file: what is pickled or copied opens the ledger anew, with all checks."""
        return Ledger, (self.path, self.purpose, self._head_file)

    def under(self, purpose: str) -> Ledger:
        """Return the same ledger with slots of another name, under the same budget.

        Args:
            purpose: the other name.

        Returns:
            the same file, under another purpose.

        Raises:
            DpvalueError: a purpose that cannot be printed, or a ledger that was altered.

        Example:
            >>> ledger = Ledger.create("two.ledger", Privacy(epsilon=1.0), name="north")
            >>> ledger.under("spring study").purpose
            'spring study'
        """
        return Ledger(self.path, purpose, self._head_file)

    @property
    def budget(self) -> Privacy:
        """What may be spent in all."""
        return self.terms.budget

    def _terms(self) -> Terms:
        with _transaction(self.path) as database:
            if not database.execute("SELECT name FROM sqlite_master WHERE name = 'ledger'").fetchone():
                raise DpvalueError(f"{str(self.path)!r} holds no ledger: it was emptied, or is something else")
            rows = database.execute("SELECT format, terms FROM ledger").fetchall()
        if len(rows) != 1:
            raise DpvalueError(f"{str(self.path)!r} is damaged: it must hold one budget, and holds {len(rows)}")
        version, stored = rows[0]
        if version != FORMAT_VERSION:
            raise DpvalueError(f"{str(self.path)!r} must be a ledger of format {FORMAT_VERSION}, got {version}")
        return _parsed(Terms, stored, "its budget")

    def require_for(self, holding: Holding, privacy: Privacy) -> None:
        """Raise unless a run is on data of those whom the ledger protects; for public reasons only."""
        require_holding(self.terms, self.parties, holding, privacy)

    @property
    def parties(self) -> tuple[str, ...] | str | None:
        """Whom a ledger per party protects, with those that were added."""
        if self.terms.parties is None or isinstance(self.terms.parties, str):
            return self.terms.parties
        return self.terms.parties + tuple(name for entry in self.entries() for name in entry.names)

    def add_parties(self, names: Sequence[str | int]) -> None:
        """Add parties, who must hold data of nobody that is there; written into the chain, and free.

        Args:
            names: of the new parties.

        Raises:
            DpvalueError: a ledger that is not for named parties, or a name that is there.

        Example:
            >>> ledger = Ledger.create("more.ledger", Privacy(epsilon=1.0), name="holder", parties=["north"])
            >>> ledger.add_parties(["south"])
            >>> ledger.parties
            ('north', 'south')
        """
        if self.parties is None or isinstance(self.parties, str):
            raise DpvalueError("parties can be added to a ledger of named parties alone")
        added = tuple(dict.fromkeys(map(str, names)))
        known = [name for name in added if name in self.parties]
        if known or not added:
            raise DpvalueError(f"names must be new, got {known[0]!r}" if known else "names must be given")
        require_names("names of parties", (*self.parties, *added))
        with _transaction(self.path) as database:
            entries = self._verified(database)
            count = sum(entry.kind == _ADDED for entry in entries)
            head = self._append(database, entries, (_ADDED, "", count, "", "null"), json.dumps(added).encode())
        self._keep_head(head)

    def release(self, round_: int, request: str, charge: Charge, make: Callable[[], bytes]) -> bytes:
        """Return the bytes of a slot: those stored for the same request, or else those that `make` makes now.

        Args:
            round_: the slot, with the ledger's purpose.
            request: a digest of everything that the release depends on but the private data and the noise.
            charge: what it costs.
            make: makes the release, with fresh noise; called at most once, and only if the budget allows it.

        What is returned again, and when it was charged, is in `returned` by round: other rows of the same size would
        get the same bytes.
        """
        require_count("round", round_, least=0)
        with _transaction(self.path) as database:
            entries = self._verified(database)
            earlier = database.execute(
                "SELECT request, time, bytes, number FROM entries WHERE kind = ? AND purpose = ? AND round = ?",
                (_RELEASE, self.purpose, round_),
            ).fetchone()
            if earlier is not None:
                if earlier[0] != request:
                    raise DpvalueError(
                        f"round {round_} of {self.purpose!r} was asked for differently before: another question needs "
                        "a purpose of its own, and is charged"
                    )
                self.returned[round_] = earlier[1]
                return _whole(database, earlier[3], earlier[2])
            if not self._is_reserved(entries, round_, charge):
                require_room(costs(entries), charge, self.budget)
            made = make()
            cells = _RELEASE, self.purpose, round_, request, json.dumps(asdict(charge))
            head = self._append(database, entries, cells, made)
        self._keep_head(head)
        return made  # after the commit: the disk has it

    def _append(self, database: sqlite3.Connection, entries: list[Entry], cells: tuple[Any, ...], made: bytes) -> str:
        """Write an entry; return the head of the chain with it."""
        row = len(entries) + 1, *cells, datetime.now(UTC).date().isoformat()
        digest = _digest(entries[-1].digest if entries else _start(self.terms), row, made)
        pieces = [made[at : at + _MOST_BYTES] for at in range(_MOST_BYTES, len(made), _MOST_BYTES)]
        database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, made[:_MOST_BYTES], digest))
        if pieces:
            database.execute(_PIECES)
        for number, piece in enumerate(pieces, start=1):
            database.execute("INSERT INTO pieces VALUES (?, ?, ?)", (row[0], number, piece))
        return f"{row[0]}:{digest}"

    def _keep_head(self, head: str) -> None:
        if self._head_file is not None:
            _keep(self._head_file, head)

    def require_room(self, rounds: int, charge: Charge) -> None:
        """Raise if those of the rounds 0, ..., rounds - 1 that are not stored yet would exceed the budget."""
        entries = self.entries()
        if any((entry.kind, entry.purpose) == (_RESERVED, self.purpose) for entry in entries):
            return
        stored = {entry.round for entry in entries if (entry.kind, entry.purpose) == (_RELEASE, self.purpose)}
        missing = rounds - len(stored & set(range(rounds)))
        if missing:
            require_room(costs(entries), replace(charge, releases=missing * charge.releases), self.budget)

    def reserve(self, rounds: int, charge: Charge) -> None:
        """Charge all rounds of this purpose at once, before the first: other questions cannot use up their room.

        The same again changes nothing; what is reserved is never given back. One round needs no reserve.
        """
        if rounds == 1:
            return
        whole = replace(charge, releases=rounds * charge.releases)
        with _transaction(self.path) as database:
            entries = self._verified(database)
            own = [entry for entry in entries if entry.purpose == self.purpose and entry.kind != _ADDED]
            if own:
                if (own[0].kind, own[0].round, own[0].charge) != (_RESERVED, rounds, whole):
                    raise DpvalueError(f"the rounds of {self.purpose!r} were asked for differently before")
                return
            require_room(costs(entries), whole, self.budget)
            cells = _RESERVED, self.purpose, rounds, "", json.dumps(asdict(whole))
            head = self._append(database, entries, cells, b"")
        self._keep_head(head)

    def _is_reserved(self, entries: list[Entry], round_: int, charge: Charge) -> bool:
        """Whether a round was charged for before; raises for one beyond, or at another cost."""
        for entry in entries:
            if (entry.kind, entry.purpose) == (_RESERVED, self.purpose):
                if round_ >= entry.round or entry.charge != replace(charge, releases=entry.round * charge.releases):
                    raise DpvalueError(f"round {round_} of {self.purpose!r} is not what was reserved")
                return True
        return False

    def stored(self, round_: int) -> tuple[bytes, str] | None:
        """Return the bytes of a round of this purpose and the digest of their entry; None if there are none."""
        with _transaction(self.path) as database:
            self._verified(database)
            found = database.execute(
                "SELECT number, bytes, digest FROM entries WHERE kind = ? AND purpose = ? AND round = ?",
                (_RELEASE, self.purpose, round_),
            ).fetchone()
            return None if found is None else (_whole(database, found[0], found[1]), found[2])

    def require_same(self, round_: int, request: str) -> None:
        """Raise if a round of this purpose was asked for by another request."""
        for entry in self.entries():
            if (entry.kind, entry.purpose, entry.round) == (_RELEASE, self.purpose, round_):
                if entry.request != request:
                    raise DpvalueError(f"round {round_} of {self.purpose!r} was asked for differently before")
                return

    def require_entry(self, digest: str) -> None:
        """Raise unless an entry with this digest is in the chain: else an old copy of the ledger was put back."""
        if all(entry.digest != digest for entry in self.entries()):
            raise DpvalueError(
                f"the ledger {str(self.path)!r} lacks an entry that a coordinator has seen: an old copy was put back"
            )

    @property
    def spent(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        return spent(costs(self.entries()), self.budget)

    def entries(self) -> list[Entry]:
        """Return all entries, without their bytes; every digest is checked.

        Returns:
            the entries, in order.

        Raises:
            DpvalueError: a ledger that was altered.

        Example:
            >>> Ledger.create("empty.ledger", Privacy(epsilon=1.0), name="north").entries()
            []
        """
        with _transaction(self.path) as database:
            return self._verified(database)

    def head(self) -> str:
        """Return the head of the chain, to be kept elsewhere: the number of entries and the last digest.

        Returns:
            a text such as 3:0f...

        Raises:
            DpvalueError: a ledger that was altered.

        Example:
            >>> Ledger.create("head.ledger", Privacy(epsilon=1.0), name="north").head()[:2]
            '0:'
        """
        entries = self.entries()
        return f"{len(entries)}:{entries[-1].digest if entries else _start(self.terms)}"

    def verify(self, head: str | None = None) -> int:
        """Check every digest, and that a head kept elsewhere is in the chain; return the number of entries.

        Args:
            head: what `head` returned before; None checks the digests alone.

        Returns:
            the number of entries.

        Raises:
            DpvalueError: a ledger that was altered, or one that does not continue the head.

        Example:
            >>> ledger = Ledger.create("kept.ledger", Privacy(epsilon=1.0), name="north")
            >>> ledger.verify(ledger.head())
            0
        """
        entries = self.entries()
        digests = [_start(self.terms), *(entry.digest for entry in entries)]
        if head is not None:
            count, _, digest = head.partition(":")
            if not count.isdigit() or len(digest) != 64:
                raise DpvalueError(f"head must be what `head` printed, like 3:0f..., got {head!r}")
            if int(count) >= len(digests) or digests[int(count)] != digest:
                raise DpvalueError(
                    f"the ledger {str(self.path)!r} does not continue the kept head: entries were removed, or an old "
                    "copy was put back"
                )
        return len(entries)

    def _verified(self, database: sqlite3.Connection) -> list[Entry]:
        """All entries; raises unless each has the digest that the chain gives it."""
        entries, previous = [], _start(self.terms)
        rows = database.execute(f"SELECT {_COLUMNS} FROM entries ORDER BY number")
        for place, (*row, first, digest) in enumerate(rows.fetchall(), start=1):
            made = _whole(database, place, first)
            if not isinstance(made, bytes) or row[0] != place or _digest(previous, tuple(row), made) != digest:
                raise DpvalueError(f"entry {place} of the ledger {str(self.path)!r} has been altered, or is missing")
            number, kind, purpose, round_, request, charge, time = row
            names = tuple(parse_json(made.decode(), f"entry {place}")) if kind == _ADDED else ()
            cost = None if kind == _ADDED else _parsed(Charge, charge, f"entry {place}")
            entries.append(Entry(number, kind, purpose, round_, request, cost, time, digest, names))
            previous = digest
        return entries


def costs(entries: Sequence[Entry]) -> list[Charge]:
    """Return what entries cost: those that reserve, and releases that nothing was reserved for."""
    reserved = {entry.purpose for entry in entries if entry.kind == _RESERVED}
    return [
        entry.charge
        for entry in entries
        if entry.charge is not None and (entry.kind == _RESERVED or entry.purpose not in reserved)
    ]


@contextmanager
def _transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection of its own, for this process alone, that holds the only right to write until it is left.

    No log beside the file: what was committed is in the file itself, and cannot be lost with something else.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode=rw"
        database = sqlite3.connect(uri, timeout=_WAIT_SECONDS, isolation_level=None, uri=True)
    except sqlite3.Error as error:
        raise DpvalueError(f"the ledger {str(path)!r} cannot be opened: {error}") from None
    try:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA synchronous = EXTRA")
        database.execute("BEGIN IMMEDIATE")
        yield database
        database.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        raise DpvalueError(f"{str(path)!r} is not a ledger, or is damaged or locked: {error}") from None
    finally:
        database.close()  # what was not committed is undone


def _whole(database: sqlite3.Connection, entry: int, first: bytes) -> bytes:
    """The bytes of an entry, of which the first piece stands in it."""
    if not isinstance(first, bytes) or len(first) < _MOST_BYTES:
        return first
    if not database.execute("SELECT name FROM sqlite_master WHERE name = 'pieces'").fetchone():
        return first
    found = database.execute("SELECT bytes FROM pieces WHERE entry = ? ORDER BY piece", (entry,)).fetchall()
    return b"".join([first, *(piece for (piece,) in found if isinstance(piece, bytes))])


def _start(terms: Terms) -> str:
    """Where the chain starts: what the ledger is for, so that it cannot be changed unnoticed."""
    return hashlib.sha256(json.dumps([FORMAT_VERSION, asdict(terms)]).encode()).hexdigest()


def _digest(previous: str, row: tuple[object, ...], made: bytes) -> str:
    content = hashlib.sha256(made).hexdigest()
    return hashlib.sha256(json.dumps([previous, *map(str, row), content]).encode()).hexdigest()


def _parsed(kind: type[Stored], text: object, what: str) -> Stored:
    """What a cell holds, as a `Charge`, or as `Terms` with their budget."""
    try:
        stored = parse_json(str(text), what)
        if kind is Terms and isinstance(stored, dict):
            named = stored.get("parties")
            parties = tuple(named) if isinstance(named, list) else named
            stored = {**stored, "budget": build(Privacy, what, stored.get("budget")), "parties": parties}
        return build(kind, what, stored)
    except DpvalueError:  # not JSON, not an object, or not of its fields
        raise DpvalueError(f"the ledger is damaged: {what} cannot be read") from None


def _keep(file: Path, head: str) -> None:
    """Write a head file, whole or not at all."""
    try:
        write_whole(file, head.encode() + b"\n")
    except OSError as error:
        raise DpvalueError(f"the head file {str(file)!r} cannot be written: {error.strerror}") from None


def _kept(file: Path) -> str:
    if not file.is_file():
        raise DpvalueError(f"there is no head file {str(file)!r}: without it an old copy of the ledger is not noticed")
    return read_text(file).strip()
