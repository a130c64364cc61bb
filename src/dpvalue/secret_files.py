"""Files with secrets: written for their owner alone, and used only where nobody else can read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from dpvalue.durable import OWNER_ALONE, write_whole
from dpvalue.errors import DpvalueError
from dpvalue.locks import alone

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, and that was not there."""
    with alone(path):
        if os.path.lexists(path):
            raise DpvalueError(f"there is a file already at {str(path)!r}: a key is not written over")
        try:
            write_whole(path, content, OWNER_ALONE)
        except OSError as error:
            raise DpvalueError(f"the key {str(path)!r} cannot be written: {error.strerror}") from None


def require_secret(path: Path) -> None:
    """Raise unless a file is there that its owner alone can read; of a link, the file that it leads to counts."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise DpvalueError(f"the key {str(path)!r} cannot be read: {error.strerror}") from None
    if mode & _OTHERS:
        raise DpvalueError(f"the key {str(path)!r} is open to others (mode {mode:04o}): chmod 600 {path}")
