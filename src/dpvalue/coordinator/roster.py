"""The roster of a study (`roster.toml`): the name and the public key of each party."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

from dpvalue.errors import DpvalueError
from dpvalue.names import require_names, require_sendable
from dpvalue.protocol.archive import Seal, require_public
from dpvalue.storage import file_lock, write_whole
from dpvalue.stored import parse, parse_json, read, read_text

ROSTER = "roster.json"
"""The file of the roster in a study's folder."""


@dataclass(frozen=True)
class Member:
    """The name of a party, and its public key as `dpvalue key show` prints it."""

    name: str
    key: str

    def __post_init__(self) -> None:
        require_sendable(self.name)
        require_public(self.key)


@dataclass(frozen=True)
class Roster:
    """All parties whose releases are accepted."""

    party: tuple[Member, ...]

    def __post_init__(self) -> None:
        for field in ("name", "key"):
            entries = [getattr(member, field) for member in self.party]
            if len(set(entries)) < len(entries):
                raise DpvalueError(f"each party must have its own {field}")
        require_names("names of parties", [member.name for member in self.party])

    @property
    def keys(self) -> dict[str, str]:
        """The key of each party."""
        return {member.name: member.key for member in self.party}

    def require_signed(self, party: str, seal: Seal | None) -> None:
        """Raise unless a seal is by the key of the party."""
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


def stored_roster(folder: Path, roster: Roster | None) -> Roster | None:
    """Return the stored roster of a study, or the given one if none is stored; raise if they differ.

    Later commands may leave the roster out. To change it, remove the file.
    """
    path = folder / ROSTER
    if not path.is_file():
        return roster
    stored = read(Roster, parse_json(read_text(path), str(path)), str(path))
    if roster is not None and roster.keys != stored.keys:
        raise DpvalueError(f"the roster must be the one that this study started with: remove {path} to change it")
    return stored


def store_roster(folder: Path, roster: Roster) -> None:
    """Store the roster of a study; raise if another process has stored another one."""
    path = folder / ROSTER
    if not path.is_file():
        with file_lock(path):
            if not path.is_file():
                write_whole(path, (json.dumps(asdict(roster), indent=1) + "\n").encode())
    stored_roster(folder, roster)
