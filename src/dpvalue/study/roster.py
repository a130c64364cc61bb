"""Who takes part, as the coordinator knows them: `roster.toml`, a name and a public key for each party."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from dpvalue.errors import DpvalueError
from dpvalue.sealing import require_public
from dpvalue.stored import parse, read, read_text


@dataclass(frozen=True)
class Member:
    """A party, and the line that `dpvalue key show` prints of its key."""

    name: str
    key: str

    def __post_init__(self) -> None:
        require_public(self.key)


@dataclass(frozen=True)
class Roster:
    """All parties whose answers count."""

    party: tuple[Member, ...]

    def __post_init__(self) -> None:
        for what in ("name", "key"):
            given = [getattr(member, what) for member in self.party]
            if len(set(given)) < len(given):
                raise DpvalueError(f"parties must each have a {what} of their own")

    @property
    def keys(self) -> dict[str, str]:
        """The key of each party."""
        return {member.name: member.key for member in self.party}


def read_roster(path: Path) -> Roster:
    """Return the roster of a file."""
    try:
        return read(Roster, parse(tomllib.loads, read_text(path), str(path), "cannot be read as TOML"))
    except DpvalueError as error:
        raise DpvalueError(f"{path}: {error}") from None
