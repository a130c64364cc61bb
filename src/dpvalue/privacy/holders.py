"""Whom a ledger protects, from its creation on, and whether a run is on their data.

A ledger per party is bound to its parties, one per person to the column of ids and to the number of parties that a
person may be in: the same rows under other names would be other parties, or other people, and what is released of them
would be charged as if to strangers. One per record is bound to nothing more. No digest of ids or rows enters anything.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpvalue.errors import DpvalueError
from dpvalue.privacy.budget import Privacy

ROWS = "rows"


@dataclass(frozen=True)
class Terms:
    """What a ledger is for, from its creation on.

    Attributes:
        name: its holder.
        budget: what may be spent in all.
        parties: for unit "party" whom it protects: the names of the parties, or "rows" where every row is one.
        person: for unit "person" the column of the ids.
        salt: where the chain of digests starts, so that nothing can be looked up in it.
    """

    name: str
    budget: Privacy
    parties: tuple[str, ...] | str | None
    person: str | None
    salt: str

    def __post_init__(self) -> None:
        if self.budget.accounting != "composition":
            raise DpvalueError("budget must have accounting='composition': a ledger counts every release")
        if not isinstance(self.name, str) or not self.name.strip() or not self.name.isprintable():
            raise DpvalueError(f"name must be a text that can be printed, got {self.name!r}")
        if (self.parties is not None) != (self.budget.unit == "party"):
            raise DpvalueError(
                "parties must be given for unit party, and for no other: their names, or 'rows' where each row is one; "
                f"got {self.parties!r}"
            )
        if self.person is not None and self.budget.unit != "person":
            raise DpvalueError(f"person goes with unit person, got {self.person!r} for unit {self.budget.unit}")


@dataclass(frozen=True)
class Holding:
    """Whose data a run releases: its parties (or "rows"), and the column of persons' ids, if it has a name."""

    parties: tuple[str, ...] | str
    person: str | None


def require_holding(terms: Terms, parties: tuple[str, ...] | str | None, holding: Holding, privacy: Privacy) -> None:
    """Raise unless a run is on data of those whom a ledger with these terms, and by now these parties, protects."""
    unit, name = terms.budget.unit, terms.name
    if (unit, privacy.unit) == ("person", "person"):
        if holding.person != terms.person:
            raise DpvalueError(
                f"the ledger {name!r} is for persons by the column {terms.person!r}; this run has ids by "
                f"{holding.person!r}"
            )
        if privacy.parties_per_person != terms.budget.parties_per_person:
            raise DpvalueError(
                f"parties_per_person must be that of the ledger {name!r}, {terms.budget.parties_per_person}; got "
                f"{privacy.parties_per_person}"
            )
    if parties is None or privacy.unit != "party":  # a smaller unit is refused by what it is charged
        return
    if ROWS in (parties, holding.parties):
        if parties != holding.parties:
            own, asked = ("rows", "named parties") if parties == ROWS else ("named parties", "rows as parties")
            raise DpvalueError(
                f"the ledger {name!r} is for {own}, and this run is on {asked}, perhaps of the same data"
            )
        return
    unknown = [party for party in holding.parties if party not in parties]
    if unknown:
        raise DpvalueError(
            f"{unknown[0]!r} is not among the parties of the ledger {name!r}: if it holds data of none of them, add it "
            "(dpvalue ledger add, or Ledger.add_parties)"
        )
