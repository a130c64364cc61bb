"""Files and locks under threads, processes, kills and planted links: whole, one at a time, and nothing followed."""

from __future__ import annotations

import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dpvalue as dpv
from dpvalue.storage import LOCK, OWNER_ALONE, file_lock, folder_lock, leftover_files, write_whole
from tests.processes import at_once, begun, killed


def wait(sign: Path) -> None:
    """Say that this process is there, and stay."""
    sign.touch()
    time.sleep(600)


def count_up(path: Path, often: int = 20) -> None:
    """Read, wait a little and write, as what must be done alone."""
    for _ in range(often):
        with file_lock(path):
            number = int(path.read_text())
            time.sleep(0.0005)
            path.write_text(str(number + 1))


def test_what_is_done_alone_is_lost_by_no_thread_and_no_process(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("0")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: count_up(path), range(8)))
    assert path.read_text() == "160"
    assert at_once(4, lambda _: count_up(path)) == [None] * 4
    assert path.read_text() == "240"
    assert [file.name for file in tmp_path.iterdir()] == ["number"]  # no lock stays


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    def hold() -> None:
        with file_lock(tmp_path / "file"), folder_lock(tmp_path / "folder"):
            wait(tmp_path / "sign")

    child = begun(hold, tmp_path / "sign")
    with pytest.raises(dpv.DpvalueError, match="is being written by another process"), folder_lock(tmp_path / "folder"):
        pytest.fail("held twice")
    assert (tmp_path / "folder" / LOCK).exists()  # who was refused touches nothing
    killed(child)
    with file_lock(tmp_path / "file"), folder_lock(tmp_path / "folder"):
        assert (tmp_path / "folder" / LOCK).is_file()
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_forked_child_gives_no_lock_back(tmp_path: Path) -> None:
    def hold_and_fork(_: int) -> bool:
        parent = os.getpid()
        with folder_lock(tmp_path):
            child = os.fork()
            if child:
                os.waitpid(child, 0)
                return (tmp_path / LOCK).exists()
        assert os.getpid() != parent  # the child has left the block, too
        os._exit(0)

    assert at_once(1, hold_and_fork) == [True]


def test_a_folder_is_held_by_one_thread_too_and_is_gone_if_nothing_came_of_it(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "a" / "b"):
        with pytest.raises(dpv.DpvalueError, match="is being written"), folder_lock(tmp_path / "a" / "b"):
            pytest.fail("held twice")
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with folder_lock(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "result").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]
    (tmp_path / "file").touch()
    for place, why in {"file": "is a file", "file/folder": "cannot be written"}.items():
        with pytest.raises(dpv.DpvalueError, match=why), folder_lock(tmp_path / place):
            pytest.fail("no folder")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    for kind in (file_lock, folder_lock):
        (tmp_path / "folder").mkdir(exist_ok=True)
        lock = tmp_path / "folder" / LOCK if kind is folder_lock else tmp_path / ".folder.lock"
        lock.symlink_to(tmp_path / "victim")
        with pytest.raises(dpv.DpvalueError, match=r"symbolic links") as caught, kind(tmp_path / "folder"):
            pytest.fail("followed")
        assert "\n" not in str(caught.value)
        assert lock.is_symlink()
        assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), OSError(30, "Read-only file system")])
def test_a_folder_that_cannot_be_written_is_one_line(
    error: OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> int:
        raise error

    monkeypatch.setattr("dpvalue.storage.os.open", refuse)
    for kind in (file_lock, folder_lock):
        with pytest.raises(dpv.DpvalueError, match=f"^[^\n]*cannot be .*{error.strerror}$"), kind(tmp_path):
            pytest.fail("written")


def test_a_scratch_file_is_new_and_its_name_cannot_be_guessed(tmp_path: Path) -> None:
    """A link in its place is not followed; the name is another each time."""
    seen: set[str] = set()
    real = os.open

    def seen_by(path: Path, flags: int, mode: int = 0o777) -> int:
        if str(path).endswith(".part"):
            assert flags & os.O_EXCL
            assert flags & os.O_NOFOLLOW
            seen.add(Path(path).name)
        return real(path, flags, mode)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpvalue.storage.os.open", seen_by)
        for _ in range(4):
            write_whole(tmp_path / "file", b"content")
    assert len(seen) == 4
    assert not any(str(os.getpid()) in name.split(".") for name in seen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.token_hex", lambda count: "00")
        (tmp_path / ".file.00.part").symlink_to(tmp_path / "victim")
        with pytest.raises(FileExistsError):
            write_whole(tmp_path / "file", b"other")
    assert not (tmp_path / "victim").exists()
    assert (tmp_path / "file").read_bytes() == b"content"


def test_the_same_path_from_many_threads_and_processes_is_whole_in_the_end(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [bytes([number]) * 20_000 for number in range(8)]

    def write(number: int) -> None:
        for _ in range(5):
            write_whole(path, contents[number])
            assert path.read_bytes() in contents

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert path.read_bytes() in contents
    assert at_once(4, write) == [None] * 4
    assert path.read_bytes() in contents
    assert leftover_files(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_content_and_no_scratch_file(tmp_path: Path) -> None:
    def broken() -> object:
        yield b"half"
        raise ZeroDivisionError

    write_whole(tmp_path / "file", b"old", OWNER_ALONE)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    with pytest.raises(ZeroDivisionError):
        write_whole(tmp_path / "file", broken())  # type: ignore[arg-type]
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert leftover_files(tmp_path) == []
