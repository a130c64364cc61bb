"""What was ever released of one owner's data, on the owner's disk, and what is left of the budget.

A release and its charge are written in one transaction, synced to disk before the caller gets the bytes. So the ledger
never counts less than what left; a crash before that loses a release that nobody has seen. The same request again gets
the same bytes back, never a fresh draw of noise; a different request in the same slot is refused, and so is whatever
would exceed the budget.

What releases cost together is decided by the filter of `dpvalue.privacy.charges`, which is sound for requests and noise
levels that depend on earlier answers. A budget is for one unit and one neighbouring relation. A release under the other
relation is charged at what it costs in the budget's terms; one for another unit is refused (`dpvalue.privacy.holders`).

It fails closed: opening it checks the schema and every digest (`dpvalue.privacy.ledger_file`). A missing, empty or
altered file is an error, and only `create` starts a budget. Only a head file on another disk detects a rollback to an
older copy, the removal of the last entries, or a new chain. A rollback of both files is not detected, and neither is a
second ledger for the same data.
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
    """The ledger of one owner: a SQLite file, safe for several processes at once; made by `Ledger.create`.

    Formal guarantee: all bytes ever returned by `release` are together (epsilon, delta)-DP as its budget says, for
    requests and noise levels that may depend on earlier ones, if each was made with the noise of its charge and from
    the data of those whom the ledger protects. It takes runs of its own unit alone. Who the units are rests on

    - unit "record": nothing more. A row is in one party of a run, and each run is charged.
    - unit "person": that the ids in the ledger's column tell the same persons in all runs. A person in more than
      `parties_per_person` parties of a run counts in the first of them by name.
    - unit "party", rows as parties: nothing more.
    - unit "party", named parties: that a name stands for the same rows in all runs. That is the holder's promise: the
      same rows that are dealt to the same names in another way are not noticed. With a `party_column` that promise is
      about the column, which names the party in each row: parties by anything else are refused.

    A party at home has a ledger of its own, which bears its name (or, per party, has it among its parties). Per person
    in at most h parties, each of its releases counts h times. So h parties whose ledgers have the same budget keep it
    together, for a person who is in all of them. No party sees another's ids: that no person is in more than h of them
    is what the parties promise each other.

    Args:
        path: the file.
        purpose: names the slots of what is released through this object; another purpose has slots of its own, under
            the same budget.
        head: a file, best on another disk, that keeps the head of the chain: an old copy of the ledger is noticed.

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
        """Start a ledger; the only way to. Raises if there is a file already.

        Args:
            path: the file to make, readable by its owner alone.
            budget: the whole budget, for one unit and relation; it cannot be changed later.
            name: of the holder; at home a party answers by this name.
            parties: for unit "party", whom it protects: their names (`add_parties` adds some), or "rows", the default
                without a `party_column`.
            party_column: for unit "party", the public column that names the party of each row; runs whose parties are
                told by anything else are refused.
            person: for unit "person", the name of the column of ids.
            purpose: as in `Ledger`.
            head: a file to keep the head of the chain in; it must not exist either.

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
        """Name the file: what is pickled or copied opens the ledger anew, with all checks."""
        return Ledger, (self.path, self.purpose, self._head_file)

    def with_purpose(self, purpose: str) -> Ledger:
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
    def terms(self) -> Terms:
        """What the ledger is for."""
        assert self._terms is not None
        return self._terms

    @property
    def budget(self) -> Privacy:
        """What may be spent in all."""
        return self.terms.budget

    def require_unit(self, privacy: Privacy) -> None:
        """Raise unless a run protects the ledger's unit, a person in as many parties."""
        require_unit(self.terms, privacy)

    def require_holding(self, holding: Holding, privacy: Privacy) -> None:
        """Raise unless a run is on data of those whom the ledger protects; for public reasons only."""
        require_holding(self.terms, self.parties, holding, privacy)

    @property
    def parties(self) -> tuple[str, ...] | str | None:
        """Whom a ledger per party protects, with those that were added; None where a column alone tells them."""
        return ledger_entries.parties_of(self.terms, self.entries())

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
        new_names = tuple(dict.fromkeys(map(str, names)))
        with self._open() as file:
            require_new(ledger_entries.parties_of(file.terms, file.entries), new_names)
            count = sum(entry.kind == ADDED for entry in file.entries)
            file.append(ADDED, "", count, "", None, json.dumps(new_names).encode())
        self._write_head()

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
        """Raise if those of the rounds 0, ..., rounds - 1 that are not stored yet would exceed the budget."""
        entries = self.entries()
        missing = ledger_entries.missing_rounds(entries, self.purpose, rounds)
        if missing:
            require_room(ledger_entries.charges(entries), charge.times(missing), self.budget)

    def reserve(self, rounds: int, charge: Charge) -> None:
        """Charge all rounds of this purpose at once, before the first: other questions cannot use up their room.

        The same again changes nothing; what is reserved is never given back. One round needs no reserve.
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
        """Raise if a round of this purpose was asked for by another request."""
        ledger_entries.require_same(self.entries(), self.purpose, round_, request)

    def require_entry(self, digest: str) -> None:
        """Raise unless an entry with this digest is in the chain: else the ledger was rolled back to an older copy."""
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
        """Return the head of the chain, to be kept elsewhere: the number of entries and the last digest.

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
        with self._open() as file:
            if head is not None:
                require_head(file, head)
            return len(file.entries)

    @contextmanager
    def _open(self) -> Iterator[LedgerFile]:
        """The file, checked, with the only right to write until it is left; the kept head is in it."""
        with open_file(self.path, self._terms) as file:
            if self._head_file is not None:
                require_head(file, read_head(self._head_file))
            yield file

    def _write_head(self) -> None:
        """Write the head file, while nobody else writes the ledger: a later head is never replaced by an earlier."""
        if self._head_file is not None:
            with self._open() as file:
                write_head(self._head_file, head_of(file))
