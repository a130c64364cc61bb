"""Who takes part, as the coordinator knows them: `roster.toml`, a name and a public key for each party."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from dpvalue.errors import DpvalueError
from dpvalue.names import require_names, require_sendable
from dpvalue.protocol.archive import Seal, require_public
from dpvalue.storage import alone, write_whole
from dpvalue.stored import parse, parse_json, read, read_text

ROSTER = "roster.json"
"""What a study keeps its roster in."""


@dataclass(frozen=True)
class Member:
    """A party, and the line that `dpvalue key show` prints of its key."""

    name: str
    key: str

    def __post_init__(self) -> None:
        require_sendable(self.name)
        require_public(self.key)


@dataclass(frozen=True)
class Roster:
    """All parties whose answers count."""

    party: tuple[Member, ...]

    def __post_init__(self) -> None:
        for what in ("name", "key"):
            given = [getattr(member, what) for member in self.party]
            if len(set(given)) < len(given):
                raise DpvalueError(f"each party must have its own {what}")
        require_names("names of parties", [member.name for member in self.party])

    @property
    def keys(self) -> dict[str, str]:
        """The key of each party."""
        return {member.name: member.key for member in self.party}

    def require_signed(self, party: str, seal: Seal | None) -> None:
        """Raise unless what came from a party is signed by its key."""
        if party not in self.keys:
            raise DpvalueError("it is not in the roster")
        if seal is None or seal.by != self.keys[party]:
            raise DpvalueError("it is not signed by the party's key")


def read_roster(path: Path) -> Roster:
    """Return the roster of a file."""
    try:
        return read(Roster, parse(tomllib.loads, read_text(path), str(path), "cannot be read as TOML"))
    except DpvalueError as error:
        raise DpvalueError(f"{path}: {error}") from None


def remembered(folder: Path, given: Roster | None) -> Roster | None:
    """Return the roster that a study has had from its first command with one on; raises for another one.

    Whoever leaves the roster out later gets the one that is kept. To change it, a person removes the file.
    """
    path = folder / ROSTER
    if not path.is_file():
        return given
    kept = read(Roster, parse_json(read_text(path), str(path)), str(path))
    if given is not None and given.keys != kept.keys:
        raise DpvalueError(f"the roster must be the one that this study started with: remove {path} to change it")
    return kept


def remember(folder: Path, roster: Roster) -> None:
    """Keep the roster of a study; raise if another process has kept another one."""
    path = folder / ROSTER
    if not path.is_file():
        with alone(path):
            if not path.is_file():
                write_whole(path, (json.dumps(asdict(roster), indent=1) + "\n").encode())
    remembered(folder, roster)
