"""Files that are whole or not there: a reader, a full disk and a power cut find the old content or all of the new."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

OWNER_ALONE = 0o600
"""The mode of files with keys or private content."""
_AS_USUAL = 0o666  # less what the process's umask takes away


def write_whole(path: Path, content: bytes | Iterable[bytes], mode: int = _AS_USUAL) -> None:
    """Write a file, from what it holds or piece by piece; when this returns, it is on the disk.

    Of several processes or threads that write the same path, each writes all of its own content; the last one stays.
    The scratch file has a name that nobody can guess and is made anew: a link that stands there is not followed.
    """
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
            file.writelines([content] if isinstance(content, bytes) else content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    _sync_folder(path.parent)


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
