"""What the entries of a ledger say: of one purpose, of the parties that were added, and what all of them cost."""

from __future__ import annotations

from collections.abc import Sequence

from dpvalue.errors import DpvalueError
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.holders import Terms
from dpvalue.privacy.ledger_file import RELEASE, RESERVED, Entry


def costs(entries: Sequence[Entry]) -> list[Charge]:
    """Return what entries cost: those that reserve, and releases that nothing was reserved for."""
    reserved = {entry.purpose for entry in entries if entry.kind == RESERVED}
    return [
        entry.charge
        for entry in entries
        if entry.charge is not None and (entry.kind == RESERVED or entry.purpose not in reserved)
    ]


def parties_of(terms: Terms, entries: Sequence[Entry]) -> tuple[str, ...] | str | None:
    """Return whom a ledger per party protects, with those that were added; None where a column alone tells them."""
    if terms.parties is None or isinstance(terms.parties, str):
        return terms.parties
    return terms.parties + tuple(name for entry in entries for name in entry.names)


def released(entries: Sequence[Entry], purpose: str, round_: int) -> Entry | None:
    """Return the release of a round of a purpose; None if there is none."""
    slot = RELEASE, purpose, round_
    return next((entry for entry in entries if (entry.kind, entry.purpose, entry.round) == slot), None)


def is_reserved(entries: Sequence[Entry], purpose: str, round_: int, charge: Charge) -> bool:
    """Return whether a round was charged for before; raise for one beyond, or at another cost."""
    for entry in entries:
        if (entry.kind, entry.purpose) == (RESERVED, purpose):
            if round_ >= entry.round or entry.charge != charge.times(entry.round):
                raise DpvalueError(f"round {round_} of {purpose!r} differs from its reservation")
            return True
    return False


def missing_rounds(entries: Sequence[Entry], purpose: str, rounds: int) -> int:
    """Return how many of the rounds 0, ..., rounds - 1 of a purpose are still to be charged."""
    own = [entry for entry in entries if entry.purpose == purpose]
    if any(entry.kind == RESERVED for entry in own):
        return 0
    stored = {entry.round for entry in own if entry.kind == RELEASE}
    return rounds - len(stored & set(range(rounds)))
