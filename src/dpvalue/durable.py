"""Files that are whole or not there: a reader, a full disk and a power cut find the old content or all of the new."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dpvalue.errors import DpvalueError


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, from what it holds or piece by piece; when this returns, it is on the disk."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with scratch.open("wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the only right to work with a file, among all processes and threads of this machine that ask for it here."""
    beside = path.with_name(f"{path.name}.lock")
    try:
        file = beside.open("a")
    except OSError as error:
        raise DpvalueError(f"{beside} cannot be written: {error.strerror}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed, by a killed process too
        yield


def remains(folder: Path) -> list[Path]:
    """Return what writers that were killed have left in a folder."""
    return sorted(folder.glob(".*.part"))


def _sync_folder(folder: Path) -> None:
    """The name of a new file is on the disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
