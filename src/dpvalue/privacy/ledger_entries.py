"""Queries on the entries of a ledger: their charges, the added parties, and the rounds of one purpose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpvalue.errors import DpvalueError
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.holders import Terms
from dpvalue.privacy.ledger_file import ADDED, RELEASE, RESERVED, Entry


def charges(entries: Sequence[Entry]) -> list[Charge]:
    """Return the charges of entries: of reservations, and of releases without a reservation."""
    reserved = {entry.purpose for entry in entries if entry.kind == RESERVED}
    return [
        entry.charge
        for entry in entries
        if entry.charge is not None and (entry.kind == RESERVED or entry.purpose not in reserved)
    ]


def parties_of(terms: Terms, entries: Sequence[Entry]) -> tuple[str, ...] | str | None:
    """Return the protected parties of a ledger per party, with added ones; None if a column defines them."""
    if terms.parties is None or isinstance(terms.parties, str):
        return terms.parties
    return terms.parties + tuple(name for entry in entries for name in entry.names)


def find_release(entries: Sequence[Entry], purpose: str, round_: int) -> Entry | None:
    """Return the release of a round of a purpose; None if there is none."""
    slot = RELEASE, purpose, round_
    return next((entry for entry in entries if (entry.kind, entry.purpose, entry.round) == slot), None)


def is_reserved(entries: Sequence[Entry], purpose: str, round_: int, charge: Charge) -> bool:
    """Return whether a round is reserved; raise for a round beyond the reservation or with another charge."""
    for entry in entries:
        if (entry.kind, entry.purpose) == (RESERVED, purpose):
            if round_ >= entry.round or entry.charge != charge.times(entry.round):
                raise DpvalueError(f"round {round_} of {purpose!r} differs from its reservation")
            return True
    return False


def are_reserved(entries: Sequence[Entry], purpose: str, rounds: int, charge: Charge) -> bool:
    """Return whether these rounds of a purpose are reserved; raise if the purpose has other entries."""
    existing = [entry for entry in entries if entry.purpose == purpose and entry.kind != ADDED]
    if existing and (existing[0].kind, existing[0].round, existing[0].charge) != (RESERVED, rounds, charge):
        raise DpvalueError(f"the rounds of {purpose!r} were already requested with other settings")
    return bool(existing)


def missing_rounds(entries: Sequence[Entry], purpose: str, rounds: int) -> int:
    """Return how many of the rounds 0, ..., rounds - 1 of a purpose are not charged yet."""
    existing = [entry for entry in entries if entry.purpose == purpose]
    if any(entry.kind == RESERVED for entry in existing):
        return 0
    stored = {entry.round for entry in existing if entry.kind == RELEASE}
    return rounds - len(stored & set(range(rounds)))


def require_same(entries: Sequence[Entry], purpose: str, round_: int, request: str) -> None:
    """Raise if the ledger has another request for a round of a purpose."""
    entry = find_release(entries, purpose, round_)
    if entry is not None and entry.request != request:
        raise DpvalueError(f"round {round_} of {purpose!r} was already requested with other settings")


def require_entry(entries: Sequence[Entry], digest: str, path: Path) -> None:
    """Raise unless an entry with this digest is in the chain; its absence means rollback to an old copy."""
    if all(entry.digest != digest for entry in entries):
        raise DpvalueError(
            f"the ledger {str(path)!r} lacks an entry that a coordinator has seen: it was rolled back to an older copy"
        )
