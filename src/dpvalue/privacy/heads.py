"""The head of a ledger's chain, kept in another file: it alone notices an old copy, a cut end or a chain made anew."""

from __future__ import annotations

import re
from pathlib import Path

from dpvalue.durable import write_whole
from dpvalue.errors import DpvalueError
from dpvalue.privacy.ledger_file import LedgerFile, chain_start
from dpvalue.stored import read_text

_HEAD = re.compile(r"[0-9]{1,18}:[0-9a-f]{64}")


def is_head(text: str) -> bool:
    """Return whether a text is what `Ledger.head` returns."""
    return _HEAD.fullmatch(text) is not None


def require_head(file: LedgerFile, head: str) -> None:
    """Raise unless a head is in the chain."""
    if not is_head(head):
        raise DpvalueError(f"head must be what `head` printed, like 3:0f..., got {head!r}")
    count, _, digest = head.partition(":")
    digests = [chain_start(file.terms), *(entry.digest for entry in file.entries)]
    if int(count) >= len(digests) or digests[int(count)] != digest:
        raise DpvalueError(
            f"the ledger {str(file.path)!r} does not continue the kept head: entries were removed, or an old copy was "
            "put back"
        )


def is_file(path: Path) -> bool:
    """Return whether there is a file; a path that cannot be one is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or a folder that may not be entered
        return False


def require_free(path: Path) -> None:
    """Raise unless a file can be made here."""
    try:
        folder, taken = path.parent.is_dir(), path.exists()
    except (OSError, ValueError) as error:  # a name that is too long, or a folder that may not be entered
        raise DpvalueError(f"no file can be made at {str(path)!r}: {error}") from None
    if not folder:
        raise DpvalueError(f"the folder of the ledger does not exist: {str(path.parent)!r}")
    if taken:
        raise DpvalueError(f"there is a file already at {str(path)!r}: a ledger is started once")


def keep_head(file: Path, head: str) -> None:
    """Write a head file, whole or not at all."""
    try:
        write_whole(file, head.encode() + b"\n")
    except OSError as error:
        raise DpvalueError(f"the head file {str(file)!r} cannot be written: {error.strerror}") from None


def kept_head(file: Path) -> str:
    """Return what a head file holds."""
    if not is_file(file):
        raise DpvalueError(f"there is no head file {str(file)!r}: without it an old copy of the ledger is not noticed")
    return read_text(file).strip()
