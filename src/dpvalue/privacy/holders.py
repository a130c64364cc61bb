"""Terms of a ledger: whose data it protects, and the check that a run is on that data.

A ledger accepts only runs with its own unit, because the cost of another unit is unknown: charges per row or per party
give no bound per person, and a charge per record gives no bound per party or person.

A ledger per party is bound to the names of its parties, or to the public column that names them. A ledger per person is
bound to the column of ids and to the number of parties per person. The same rows under other names would be charged as
other units. The ledger stores no digest of ids or rows: the holder guarantees that a name means the same rows in all
runs.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from dpvalue.errors import DpvalueError
from dpvalue.names import require_names
from dpvalue.privacy.budget import Privacy

ROWS = "rows"


@dataclass(frozen=True)
class Terms:
    """The terms of a ledger, fixed at its creation.

    Attributes:
        name: the name of its holder.
        budget: the total budget.
        parties: for unit "party" the names of the protected parties, or "rows" if every row is a party; None if
            `party_column` alone defines them.
        party_column: for unit "party" the public column that names the party of each row; None: the holder names them.
        person: for unit "person" the column of ids.
        salt: random start of the chain of digests, so that digests cannot be looked up.
    """

    name: str
    budget: Privacy
    parties: tuple[str, ...] | str | None
    party_column: str | None
    person: str | None
    salt: str

    def __post_init__(self) -> None:
        if self.budget.accounting != "composition":
            raise DpvalueError("budget must have accounting='composition': a ledger counts every release")
        for what, text in (("name", self.name), ("party_column", self.party_column), ("person", self.person)):
            is_text = isinstance(text, str) and bool(text.strip()) and text.isprintable()
            if not is_text and (what == "name" or text is not None):
                raise DpvalueError(f"{what} must be printable text, got {text!r}")
        is_given = self.parties is not None or self.party_column is not None
        if is_given != (self.budget.unit == "party"):
            raise DpvalueError(
                "parties (names, or 'rows' if each row is one) or party_column must be given for unit party and no "
                f"other unit; got {self.parties if self.party_column is None else self.party_column!r}"
            )
        names = self.parties if isinstance(self.parties, tuple) else ()
        if isinstance(self.parties, str) and (self.parties != ROWS or self.party_column is not None):
            raise DpvalueError(f"parties must be names, or 'rows' without a party_column, got {self.parties!r}")
        if not all(isinstance(name, str) for name in names) or not isinstance(self.salt, str):
            raise DpvalueError(f"parties must be strings, got {self.parties!r}")
        if self.person is not None and self.budget.unit != "person":
            raise DpvalueError(f"person needs unit person, got {self.person!r} for unit {self.budget.unit}")

    @property
    def words(self) -> str:
        """The budget in words, with its assumption."""
        if self.party_column is not None:
            return f"{self.budget.terms}, parties of the column {self.party_column!r}"
        if isinstance(self.parties, tuple):
            return f"{self.budget.terms}, provided that each party name stands for the same rows in all runs"
        return self.budget.terms


def new_terms(
    budget: Privacy,
    name: str,
    parties: Sequence[str | int] | str | None,
    party_column: str | None,
    person: str | None,
) -> Terms:
    """Return the terms of a new ledger (`Ledger.create`), with a random salt."""
    if parties is None and budget.unit == "party" and party_column is None:
        parties = ROWS
    names = parties if parties is None or isinstance(parties, str) else tuple(dict.fromkeys(map(str, parties)))
    if isinstance(names, tuple):
        require_names("names of parties", names)
    return Terms(name, budget, names, party_column, person, secrets.token_hex(16))


@dataclass(frozen=True)
class Holding:
    """Whose data a run releases.

    Attributes:
        parties: the names of the parties, or "rows".
        person: the column of persons' ids, if it has a name.
        party_column: the public column that names the party of each row; None if no column does.
        holder: the name of a remote party; None for a run with all parties in one process.
    """

    parties: tuple[str, ...] | str
    person: str | None
    party_column: str | None = None
    holder: str | None = None


def require_unit(terms: Terms, privacy: Privacy) -> None:
    """Raise unless a run has the unit and the parties per person of a ledger."""
    own = terms.budget
    if privacy.unit != own.unit:
        ids = "" if terms.person is None else f" --person {terms.person}"
        spread = f" --parties-per-person {own.parties_per_person}" if own.parties_per_person > 1 else ""
        raise DpvalueError(
            f"the ledger {terms.name!r} is per {own.unit}, and this run protects each {privacy.unit}: it accepts "
            f"only runs with --unit {own.unit}{ids}{spread}"
        )
    if privacy.parties_per_person != own.parties_per_person:
        raise DpvalueError(
            f"parties_per_person must be that of the ledger {terms.name!r}, {own.parties_per_person}; got "
            f"{privacy.parties_per_person}"
        )


def require_holding(terms: Terms, parties: tuple[str, ...] | str | None, holding: Holding, privacy: Privacy) -> None:
    """Raise unless a run is on data that a ledger with these terms and current parties protects."""
    require_unit(terms, privacy)
    unit, name = terms.budget.unit, terms.name
    if unit == "party":
        _require_parties(terms, parties, holding)
    elif holding.holder not in (None, name):
        raise DpvalueError(f"name must be {name!r}, the holder of the ledger; got {holding.holder!r}")
    if unit == "person" and holding.person != terms.person:
        raise DpvalueError(
            f"the ledger {name!r} has person ids in the column {terms.person!r}; this run has them in "
            f"{holding.person!r}"
        )


def _require_parties(terms: Terms, parties: tuple[str, ...] | str | None, holding: Holding) -> None:
    """Raise unless all parties of a run are parties of the ledger."""
    name, column = terms.name, holding.party_column
    if terms.party_column not in (None, column):
        here = "rows as parties" if holding.parties == ROWS else "no party column"
        here = here if column is None else f"them in {column!r}"
        raise DpvalueError(
            f"the ledger {name!r} has parties in the column {terms.party_column!r}; this run has {here}: the ledger "
            f"accepts only runs with --group {terms.party_column}"
        )
    if parties is None:
        return
    if ROWS in (parties, holding.parties):
        if parties != holding.parties:
            expected, actual = ("rows", "named parties") if parties == ROWS else ("named parties", "rows as parties")
            raise DpvalueError(
                f"the ledger {name!r} is for {expected}, and this run is on {actual}, which may hold the same data"
            )
        return
    unknown = [party for party in holding.parties if party not in parties]
    if unknown and holding.holder is not None:
        raise DpvalueError(
            f"name must be one of the parties of the ledger {name!r}, {', '.join(parties)}; got {holding.holder!r}"
        )
    if unknown:
        raise DpvalueError(
            f"{unknown[0]!r} is not a party of the ledger {name!r}: if it shares no data with its parties, add it "
            "(dpvalue ledger add, or Ledger.add_parties)"
        )


def require_new(parties: tuple[str, ...] | str | None, added: tuple[str, ...]) -> None:
    """Raise unless these names can be added to the parties of a ledger."""
    if parties is None or isinstance(parties, str):
        raise DpvalueError("parties can be added only to a ledger of named parties")
    present = [name for name in added if name in parties]
    if present or not added:
        raise DpvalueError(f"names must be new, got {present[0]!r}" if present else "names must be given")
    require_names("names of parties", (*parties, *added))
