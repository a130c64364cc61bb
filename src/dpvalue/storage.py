"""Writing files safely: whole or not at all, one process at a time, secrets for their owner alone.

A lock ends with its process: after a kill the next one takes it. Each lock is a file, which its holder removes when it
is done; a killed holder leaves an empty file that means nothing. Locks keep apart all who ask for them here, on one
machine, or on several that share a file system with locks.
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


def leftover_files(folder: Path) -> list[Path]:
    """Return what writers that were killed have left in a folder."""
    return sorted(folder.glob(".*.part"))


def _sync_folder(folder: Path) -> None:
    """The name of a new file is on the disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


LOCK = ".lock"
"""What the lock of a folder of results is called."""


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold the only right to work with a file; wait until nobody else has it."""
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
    """Hold the only right to write into a folder; raise at once if another process has it.

    The folder is made if it is not there, and removed again if nothing was written into it.
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
        with suppress(OSError):  # results are in it, or somebody else has made use of it
            for empty in new_folders:
                empty.rmdir()


def _take(lock: Path, wait: bool) -> int | None:
    """The handle of a lock that is ours now; None if somebody else has it and we are not to wait.

    A link in its place is not followed. Who held it before may have removed the file that was waited for: again, then.
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
    """Give a lock back in the end; a forked child that leaves as well gives nothing back."""
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:
            with suppress(OSError):  # a folder that has become read-only keeps the file
                lock.unlink()
            fcntl.flock(handle, fcntl.LOCK_UN)  # for a forked child, too, that has the handle still
        os.close(handle)


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, and that was not there."""
    with file_lock(path):
        if os.path.lexists(path):
            raise DpvalueError(f"{str(path)!r} already exists: a key is never overwritten")
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
        raise DpvalueError(f"the key {str(path)!r} is readable by others (mode {mode:04o}): run chmod 600 {path}")
