"""Checkpoints: the releases of an unfinished run on disk, so that a resumed run draws no noise again.

A checkpoint is a folder with one file per release: a line of JSON (format, request, date, digest), then the bytes. It
has the interface of a ledger and returns the same bytes for the same request, but it has no budget. Its content has the
noise of the run and is as public as the releases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dpvalue.errors import DpvalueError, require_count
from dpvalue.privacy.charges import Charge
from dpvalue.storage import file_lock, write_whole
from dpvalue.stored import OBJECT, TEXT, fields, must_be, parse_json

FORMAT_VERSION = 1

_HEADER = fields(format=must_be(str(FORMAT_VERSION), lambda x: x == FORMAT_VERSION), request=TEXT, made=TEXT)


class Checkpoint:
    """The releases of one run in a folder; the first release creates the folder.

    Formal guarantee: `release` returns bytes that are on disk, and for one slot always the same bytes, also after a
    crash and in several threads or processes: noise is never drawn twice for one slot.

    Attributes:
        repeat_dates: by slot, the date of each release that was read from the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.repeat_dates: dict[int, str] = {}

    def release(self, slot: int, request: str, charge: Charge, make: Callable[[], bytes]) -> bytes:
        """Return the stored bytes of a slot, or store and return those that `make` returns.

        Args:
            slot: the number of the round.
            request: a digest of everything that the release depends on, except the private data and the noise.
            charge: the cost; not used, since a checkpoint has no budget.
            make: makes the release, with fresh noise.
        """
        require_count("slot", slot, least=0)
        path = self.folder / f"release-{slot}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with file_lock(path):
            return self._release(path, slot, request, make)

    def _release(self, path: Path, slot: int, request: str, make: Callable[[], bytes]) -> bytes:
        """The same, under the lock of the slot."""
        if path.is_file():
            stored_request, date, content = _read(path)
            if stored_request != request:
                raise DpvalueError(f"{str(path)!r} belongs to a run with other settings")
            self.repeat_dates[slot] = date
            return content
        content = make()
        header = {
            "format": FORMAT_VERSION,
            "request": request,
            "made": datetime.now(UTC).date().isoformat(),
            "digest": _digest(content),
        }
        write_whole(path, json.dumps(header).encode() + b"\n" + content)
        return content

    def require_room(self, rounds: int, charge: Charge) -> None:
        """Do nothing: a checkpoint has no budget."""

    def reserve(self, rounds: int, charge: Charge) -> None:
        """Do nothing: a checkpoint has no budget."""


def _read(path: Path) -> tuple[str, str, bytes]:
    """The request, the date and the bytes of a stored release; raises for a damaged or altered file."""
    line, _, content = path.read_bytes().partition(b"\n")
    try:
        header = parse_json(line.decode("utf-8", "replace"), "its header")
        OBJECT("its header", header)
        _HEADER("", header)
    except DpvalueError as error:
        raise DpvalueError(f"{str(path)!r} has been damaged: {error}") from None
    if header.get("digest") != _digest(content):
        raise DpvalueError(f"{str(path)!r} has been altered: its digest does not match")
    return header["request"], header["made"], content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
