"""Safe writing of files: atomic writes, locks, and secrets with mode 0600.

A lock ends with its process. Each lock is a file, which its holder removes at the end; a killed holder leaves an empty
file without effect. Locks work between processes on one machine, or on several that share a file system with locks.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpvalue.errors import DpvalueError

OWNER_ALONE = 0o600
"""The mode of files with keys or private content."""

_AS_USUAL = 0o666  # the umask applies


def write_whole(path: Path, content: bytes | Iterable[bytes], mode: int = _AS_USUAL) -> None:
    """Write a file atomically, from bytes or pieces; on return, it is on disk.

    If several processes or threads write the same path, the last complete file stays. The scratch file has a random
    name and is created exclusively, so no link is followed.
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


def leftover_files(folder: Path) -> list[Path]:
    """Return the scratch files of killed writers in a folder."""
    return sorted(folder.glob(".*.part"))


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names of new files are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


LOCK = ".lock"
"""The name of the lock of a folder of results."""


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock for a file; wait until it is free."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = _take(lock, wait=True)
    except OSError as error:
        raise DpvalueError(f"{path} cannot be locked by {lock}: {error.strerror}") from None
    assert handle is not None
    with _unlock_at_end(lock, handle):
        yield


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold an exclusive lock for writing into a folder; raise if another process holds it.

    The folder is created if missing, and removed again if it stays empty.
    """
    new_folders = [missing for missing in (folder, *folder.parents) if not missing.exists()]
    lock = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _take(lock, wait=False)
    except FileExistsError:
        raise DpvalueError(f"{folder} must be a folder, but is a file") from None
    except OSError as error:
        raise DpvalueError(f"{folder} cannot be written: {error.strerror}") from None
    if handle is None:
        raise DpvalueError(f"{folder} is being written by another process: wait until it ends, or name another folder")
    try:
        with _unlock_at_end(lock, handle):
            yield
    finally:
        with suppress(OSError):  # the folder is in use
            for empty in new_folders:
                empty.rmdir()


def _take(lock: Path, wait: bool) -> int | None:
    """The handle of an acquired lock; None if it is taken and `wait` is False.

    Links are not followed. The previous holder may have removed the file during the wait; then the loop tries again.
    """
    while True:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, OWNER_ALONE)
        is_ours = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            is_ours = _is_at(lock, handle)
        except BlockingIOError:
            return None
        finally:
            if not is_ours:
                os.close(handle)
        if is_ours:
            return handle


def _is_at(lock: Path, handle: int) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(lock.lstat(), os.fstat(handle))
    return False


@contextmanager
def _unlock_at_end(lock: Path, handle: int) -> Iterator[None]:
    """Release a lock at the end, but not in a forked child."""
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:
            with suppress(OSError):  # a folder that has become read-only keeps the file
                lock.unlink()
            fcntl.flock(handle, fcntl.LOCK_UN)  # also for a forked child with the same handle
        os.close(handle)


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can read; raise if it exists."""
    with file_lock(path):
        if os.path.lexists(path):
            raise DpvalueError(f"{str(path)!r} already exists: a key is never overwritten")
        try:
            write_whole(path, content, OWNER_ALONE)
        except OSError as error:
            raise DpvalueError(f"the key {str(path)!r} cannot be written: {error.strerror}") from None


def require_secret(path: Path) -> None:
    """Raise unless a file exists and only its owner can read it; of a link, its target."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise DpvalueError(f"the key {str(path)!r} cannot be read: {error.strerror}") from None
    if mode & _OTHERS:
        raise DpvalueError(f"the key {str(path)!r} is readable by others (mode {mode:04o}): run chmod 600 {path}")
