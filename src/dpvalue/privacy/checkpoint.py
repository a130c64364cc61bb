"""What an unfinished run has released, on disk at once: a run that died goes on from there and draws nothing again.

A folder with one file for each release: a line of JSON (format, request, date, digest), then the bytes. It takes the
place of a ledger where there is none, with the same question and the same bytes, but no budget: whoever needs one keeps
a ledger. What is in it has the noise of the run, and may be shown to whoever may see the releases.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from dpvalue.errors import DpvalueError, require_count
from dpvalue.privacy.charges import Charge
from dpvalue.storage import alone, write_whole
from dpvalue.stored import OBJECT, TEXT, fields, must_be, parse_json

FORMAT_VERSION = 1

_HEADER = fields(format=must_be(str(FORMAT_VERSION), lambda x: x == FORMAT_VERSION), request=TEXT, made=TEXT)


class Checkpoint:
    """The releases of one run in a folder, which is made when the first of them is asked for.

    Formal guarantee: `release` returns bytes that are on the disk, and for one slot always the same: after a crash, and
    in several threads or processes at once, no second noise is drawn for what may have been seen.

    Attributes:
        returned: the date of each release that was there already, by its slot.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.repeat_dates: dict[int, str] = {}

    def release(self, slot: int, request: str, charge: Charge, make: Callable[[], bytes]) -> bytes:
        """Return the bytes of a slot: those stored for the same request, or else those that `make` makes now.

        Args:
            slot: the number of the round.
            request: a digest of everything that the release depends on but the private data and the noise.
            charge: what it costs, which nobody counts here.
            make: makes the release, with fresh noise.
        """
        require_count("slot", slot, least=0)
        path = self.folder / f"release-{slot}"
        self.folder.mkdir(parents=True, exist_ok=True)
        with alone(path):
            return self._release(path, slot, request, make)

    def _release(self, path: Path, slot: int, request: str, make: Callable[[], bytes]) -> bytes:
        """The same, while no other thread or process looks at the slot."""
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
        """Do nothing: there is no budget to exceed."""

    def reserve(self, rounds: int, charge: Charge) -> None:
        """Do nothing, too."""


def _read(path: Path) -> tuple[str, str, bytes]:
    """The request, the date and the bytes of a stored release; anything else than what was written is an error."""
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
