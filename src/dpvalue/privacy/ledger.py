"""The privacy ledger: all releases of one owner's data and their charges, stored on the owner's disk.

A release and its charge are written in one transaction and synced to disk before the caller gets the bytes. So the
ledger never counts less than what was released. A crash before the sync loses a release that no one has seen. The same
request gets the same bytes again, without fresh noise. A different request in the same slot, and a release beyond the
budget, are refused.

The filter of `dpvalue.privacy.charges` composes charges; it is sound for requests and noise levels that depend on
earlier releases. A budget is for one unit and one neighbouring relation. A release under the other relation is charged
its cost under the budget's relation. A release for another unit is refused (`dpvalue.privacy.holders`).

A ledger fails closed: opening it checks the schema and every digest (`dpvalue.privacy.ledger_file`). A missing, empty
or altered file is an error, and only `create` starts a budget. Rollback to an old copy, truncation and a recomputed
chain are detected only by a head file on another disk. Rollback of both files, and a second ledger for the same data,
are not detected.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpvalue.errors import DpvalueError, require_count
from dpvalue.privacy import ledger_entries
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.charges import Charge, require_room, spent_epsilon
from dpvalue.privacy.holders import Holding, Terms, new_terms, require_holding, require_new, require_unit
from dpvalue.privacy.ledger_file import (
    ADDED,
    RELEASE,
    RESERVED,
    Entry,
    LedgerFile,
    create_file,
    head_of,
    is_file,
    open_file,
    read_head,
    require_head,
    write_head,
)


class Ledger:
    """The ledger of one owner: a SQLite file, safe for several processes; `Ledger.create` makes it.

    Formal guarantee: all bytes that `release` ever returned are together (epsilon, delta)-DP as the budget says, also
    if requests and noise levels depend on earlier releases, provided that each release has the noise of its charge and
    reads only data that the ledger protects. The ledger accepts only runs with its own unit. It assumes

    - unit "record": nothing more. A row is in one party of a run, and each run is charged.
    - unit "person": that the ids in the ledger's column identify the same persons in all runs. A person in more than
      `parties_per_person` parties of a run counts in the first of them by name.
    - unit "party", rows as parties: nothing more.
    - unit "party", named parties: that a name stands for the same rows in all runs. The holder guarantees this; other
      rows under the same name are not detected. With a `party_column`, the assumption is about that column, and parties
      by anything else are refused.

    A remote party has its own ledger, which has its name (or, per party, lists it). With persons in at most h parties,
    each of its releases counts h times. So h parties with ledgers of the same budget keep it jointly, for a person in
    all of them. No party sees the ids of another: the parties guarantee each other that no person is in more than h.

    Args:
        path: the file.
        purpose: the name of the slots of this object's releases; each purpose has its own slots under the one budget.
        head: a file that stores the head of the chain, to detect rollback; best on another disk.

    Example:
        >>> ledger = Ledger.create("north.ledger", Privacy(epsilon=1.0, unit="record"), name="north")
        >>> result = dpv.value(train, test, groups=sites, ledger=ledger,  # data as in `dpvalue.Result`
        ...                    privacy=Privacy(epsilon=0.5, unit="record"), progress=False)
        >>> round(ledger.spent_epsilon, 3), len(ledger.entries())
        (0.5, 1)
    """

    def __init__(self, path: str | Path, purpose: str = "value", head: str | Path | None = None) -> None:
        self.path, self.purpose, self._head_file = Path(path), purpose, None if head is None else Path(head)
        self.repeat_dates: dict[int, str] = {}
        if not isinstance(purpose, str) or not purpose.strip() or not purpose.isprintable():
            raise DpvalueError(f"purpose must be printable text, got {purpose!r}")
        if not is_file(self.path):
            raise DpvalueError(
                f"there is no ledger at {str(path)!r}: create one with dpvalue ledger new (Ledger.create)"
            )
        self._terms: Terms | None = None
        with self._open() as file:
            self._terms = file.terms

    @classmethod
    def create(
        cls,
        path: str | Path,
        budget: Privacy,
        name: str,
        *,
        parties: Sequence[str | int] | str | None = None,
        party_column: str | None = None,
        person: str | None = None,
        purpose: str = "value",
        head: str | Path | None = None,
    ) -> Ledger:
        """Create a ledger file; raise if the file exists.

        Args:
            path: the file to create, readable by its owner only.
            budget: the total budget, for one unit and relation; it cannot be changed later.
            name: the name of the holder; a remote party answers under this name.
            parties: for unit "party", the names of the protected parties (`add_parties` adds more), or "rows", the
                default without a `party_column`.
            party_column: for unit "party", the public column that names the party of each row; runs with parties by
                anything else are refused.
            person: for unit "person", the name of the column of ids.
            purpose: as in `Ledger`.
            head: a file for the head of the chain; it must not exist.

        Returns:
            the ledger, open.

        Raises:
            DpvalueError: a file that is there already, or a budget that does not fit the parties.

        Example:
            >>> ledger = Ledger.create("new.ledger", Privacy(epsilon=1.0), name="north", parties=["north"])
            >>> ledger.spent_epsilon, ledger.parties
            (0.0, ('north',))
        """
        path, head = Path(path), None if head is None else Path(head)
        terms = new_terms(budget, name, parties, party_column, person)
        create_file(path, terms, head)
        return cls(path, purpose, head)

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, purpose={self.purpose!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path only: a copy opens the ledger again, with all checks."""
        return Ledger, (self.path, self.purpose, self._head_file)

    def with_purpose(self, purpose: str) -> Ledger:
        """Return the same ledger with the slots of another purpose, under the same budget.

        Args:
            purpose: the name of the slots.

        Returns:
            the ledger of the same file, with this purpose.

        Raises:
            DpvalueError: a purpose that cannot be printed, or an altered ledger.

        Example:
            >>> ledger = Ledger.create("two.ledger", Privacy(epsilon=1.0), name="north")
            >>> ledger.with_purpose("spring study").purpose
            'spring study'
        """
        return Ledger(self.path, purpose, self._head_file)

    @property
    def terms(self) -> Terms:
        """The terms, fixed at creation."""
        assert self._terms is not None
        return self._terms

    @property
    def budget(self) -> Privacy:
        """The total budget."""
        return self.terms.budget

    def require_unit(self, privacy: Privacy) -> None:
        """Raise unless a run has the ledger's unit and parties per person."""
        require_unit(self.terms, privacy)

    def require_holding(self, holding: Holding, privacy: Privacy) -> None:
        """Raise unless a run is on data that the ledger protects; the check uses public values only."""
        require_holding(self.terms, self.parties, holding, privacy)

    @property
    def parties(self) -> tuple[str, ...] | str | None:
        """The protected parties of a ledger per party, with added ones; None if a column defines them."""
        return ledger_entries.parties_of(self.terms, self.entries())

    def add_parties(self, names: Sequence[str | int]) -> None:
        """Add parties whose data is disjoint from the present parties' data; adding costs no budget.

        Args:
            names: the names of the new parties.

        Raises:
            DpvalueError: a ledger that is not for named parties, or a name that exists.

        Example:
            >>> ledger = Ledger.create("more.ledger", Privacy(epsilon=1.0), name="holder", parties=["north"])
            >>> ledger.add_parties(["south"])
            >>> ledger.parties
            ('north', 'south')
        """
        new_names = tuple(dict.fromkeys(map(str, names)))
        with self._open() as file:
            require_new(ledger_entries.parties_of(file.terms, file.entries), new_names)
            count = sum(entry.kind == ADDED for entry in file.entries)
            file.append(ADDED, "", count, "", None, json.dumps(new_names).encode())
        self._write_head()

    def release(self, round_: int, request: str, charge: Charge, make: Callable[[], bytes]) -> bytes:
        """Return the stored bytes of a slot, or charge, store and return those that `make` returns.

        Args:
            round_: the round, which with the ledger's purpose names the slot.
            request: a digest of everything that the release depends on, except the private data and the noise.
            charge: the cost.
            make: makes the release, with fresh noise; called at most once, and only if the budget allows it.

        For a stored release, `repeat_dates[round_]` is the day of its charge. Other rows of the same size would get the
        same bytes.
        """
        require_count("round", round_, least=0)
        with self._open() as file:
            previous = ledger_entries.find_release(file.entries, self.purpose, round_)
            if previous is not None:
                if previous.request != request:
                    raise DpvalueError(
                        f"round {round_} of {self.purpose!r} was already requested with other settings: give another "
                        "question its own purpose; it is charged"
                    )
                self.repeat_dates[round_] = previous.time
                return file.content(previous)
            if not ledger_entries.is_reserved(file.entries, self.purpose, round_, charge):
                require_room(ledger_entries.charges(file.entries), charge, self.budget)
            content = make()
            file.append(RELEASE, self.purpose, round_, request, charge, content)
        self._write_head()
        return content  # after the commit: the disk has it

    def require_room(self, rounds: int, charge: Charge) -> None:
        """Raise if the rounds 0, ..., rounds - 1 that are not stored yet would exceed the budget."""
        entries = self.entries()
        missing = ledger_entries.missing_rounds(entries, self.purpose, rounds)
        if missing:
            require_room(ledger_entries.charges(entries), charge.times(missing), self.budget)

    def reserve(self, rounds: int, charge: Charge) -> None:
        """Charge all rounds of this purpose before the first, so that other purposes cannot use their budget.

        Repeating it changes nothing. A reservation is final. A single round needs no reservation.
        """
        if rounds == 1:
            return
        whole_charge = charge.times(rounds)
        with self._open() as file:
            if ledger_entries.are_reserved(file.entries, self.purpose, rounds, whole_charge):
                return
            require_room(ledger_entries.charges(file.entries), whole_charge, self.budget)
            file.append(RESERVED, self.purpose, rounds, "", whole_charge, b"")
        self._write_head()

    def stored_release(self, round_: int) -> tuple[bytes, str] | None:
        """Return the bytes of a round of this purpose and the digest of their entry; None if there are none."""
        with self._open() as file:
            entry = ledger_entries.find_release(file.entries, self.purpose, round_)
            return None if entry is None else (file.content(entry), entry.digest)

    def require_same(self, round_: int, request: str) -> None:
        """Raise if the ledger has another request for a round of this purpose."""
        ledger_entries.require_same(self.entries(), self.purpose, round_, request)

    def require_entry(self, digest: str) -> None:
        """Raise unless an entry with this digest is in the chain; its absence means rollback to an old copy."""
        ledger_entries.require_entry(self.entries(), digest, self.path)

    @property
    def spent_epsilon(self) -> float:
        """The epsilon spent so far, at the budget's delta."""
        return spent_epsilon(ledger_entries.charges(self.entries()), self.budget)

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
        with self._open() as file:
            return list(file.entries)

    def head(self) -> str:
        """Return the head of the chain: the number of entries and the last digest.

        Returns:
            a text such as 3:0f...

        Raises:
            DpvalueError: a ledger that was altered.

        Example:
            >>> Ledger.create("head.ledger", Privacy(epsilon=1.0), name="north").head()[:2]
            '0:'
        """
        with self._open() as file:
            return head_of(file)

    def verify(self, head: str | None = None) -> int:
        """Check every digest, and that an earlier head is in the chain; return the number of entries.

        Args:
            head: an earlier result of `head`; None checks only the digests.

        Returns:
            the number of entries.

        Raises:
            DpvalueError: a ledger that was altered, or one that does not continue the head.

        Example:
            >>> ledger = Ledger.create("kept.ledger", Privacy(epsilon=1.0), name="north")
            >>> ledger.verify(ledger.head())
            0
        """
        with self._open() as file:
            if head is not None:
                require_head(file, head)
            return len(file.entries)

    @contextmanager
    def _open(self) -> Iterator[LedgerFile]:
        """Open the file with an exclusive lock and check it, and that it continues the stored head."""
        with open_file(self.path, self._terms) as file:
            if self._head_file is not None:
                require_head(file, read_head(self._head_file))
            yield file

    def _write_head(self) -> None:
        """Write the head file under the ledger's lock, so that a head is never replaced by an earlier one."""
        if self._head_file is not None:
            with self._open() as file:
                write_head(self._head_file, head_of(file))
