"""NPZ files, read some rows at a time: what is in memory is a block of rows, however long the file is.

Of an archive only headers are read at first. An array that is stored row by row is streamed, compressed or not, and the
archive's check sums are compared on the way. One that is stored column by column (Fortran's order) is mapped into
memory where it is not compressed, a window for each block; compressed, it can only be read whole, and a large one is
refused.
"""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from dpvalue.arrays import Array
from dpvalue.data.columns import Column, Columns
from dpvalue.data.conversions import of_array
from dpvalue.errors import DpvalueError

MOST_BYTES_WHOLE = 2**28  # of an array that cannot be read in pieces
_PIECE = 2**20
_DAMAGED = (
    ValueError, TypeError, OSError, EOFError, LookupError, RuntimeError, SyntaxError, OverflowError, MemoryError,
    AttributeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """An array of an archive: what its header says, and where the numbers begin in the member's bytes."""

    name: str
    entry: zipfile.ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    by_columns: bool
    start: int

    @property
    def rows(self) -> int:
        """The number of rows; -1 for a single number, which has none."""
        return self.shape[0] if self.shape else -1

    @property
    def width(self) -> int:
        """The number of cells of a row."""
        return int(np.prod(self.shape[1:]))

    @property
    def columns(self) -> tuple[str, ...]:
        """A flat array is one column; of an array of rows, say X, the columns are X0, X1, ..."""
        return (self.name,) if len(self.shape) == 1 else tuple(f"{self.name}{place}" for place in range(self.width))


@dataclass(frozen=True, eq=False)
class Npz:
    """An open NPZ file of plain arrays with one row per record each; made by `open_npz`."""

    path: Path
    binary: IO[bytes]
    archive: zipfile.ZipFile
    members: tuple[Member, ...]

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.members[0].rows

    @cached_property
    def places(self) -> dict[str, tuple[Member, int]]:
        """By the name of a column, its array and its place in a row."""
        places: dict[str, tuple[Member, int]] = {}
        for member in self.members:
            for place, name in enumerate(member.columns):
                if name in places:
                    raise DpvalueError(f"{self.path} has several columns named {name!r}")
                places[name] = member, place
        return places

    def rows_of(self, names: Sequence[str], size: int) -> int:
        """Return how many records of the arrays that hold some columns take so many bytes; at least one."""
        members = {member.name: member for member, _ in map(self.places.__getitem__, names)}
        return max(1, size // max(1, sum(member.width * member.dtype.itemsize for member in members.values())))

    def blocks(self, names: Sequence[str], most: int) -> Iterator[Columns]:
        """Yield some columns of all records, at most so many at once."""
        members = {member.name: member for member, _ in map(self.places.__getitem__, names)}
        pieces = {name: self._pieces(member, most) for name, member in members.items()}
        for _ in range(0, self.rows, most):
            with _damage_said(self.path):
                now = {name: next(piece) for name, piece in pieces.items()}
            yield Columns({name: self._column(now, name) for name in names})
        with _damage_said(self.path):
            for piece in pieces.values():
                next(piece, None)  # where the check sum is compared

    def _column(self, now: dict[str, Array], name: str) -> Column:
        member, place = self.places[name]
        return of_array(now[member.name][:, place])

    def _pieces(self, member: Member, most: int) -> Iterator[Array]:
        """The rows of an array, flat (rows, width), at most so many at once."""
        if not member.by_columns:
            return _streamed(self.archive, member, most)
        if member.entry.compress_type == zipfile.ZIP_STORED:
            return _mapped(self.binary, self.archive, member, most)
        if member.entry.file_size > MOST_BYTES_WHOLE:
            raise DpvalueError(
                f"the array {member.name!r} of {self.path} is compressed and stored column by column, so it could only "
                f"be read whole ({member.entry.file_size / 1e9:.1f} GB): save it by numpy.savez, or its rows by "
                "numpy.ascontiguousarray"
            )
        return _whole(self.archive, member, most)


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """Open an NPZ file and read its headers; raises unless it holds arrays of rows."""
    with ExitStack() as opened:
        with _damage_said(path):
            binary = opened.enter_context(path.open("rb"))
            archive = opened.enter_context(zipfile.ZipFile(binary))
            members = tuple(_member(archive, entry) for entry in archive.infolist())
        if len({member.rows for member in members}) != 1 or not members[0].shape:
            raise DpvalueError(f"{path} must hold arrays with one row per record each")
        yield Npz(path, binary, archive, members)


@contextmanager
def _damage_said(path: Path) -> Iterator[None]:
    """Say in one line whatever is wrong with what is read here: other messages may quote what is in the file."""
    try:
        yield
    except _DAMAGED:
        raise DpvalueError(f"{path} is not an NPZ file of plain arrays") from None


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Member:
    """What the header of an array says; raises ValueError unless it is of numbers, texts or times, and as long as that.

    Before any memory is asked for: a header may claim a shape of 10^12.
    """
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read(file)
        start = file.tell()
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.kind not in "biufUSM" or min(shape, default=0) < 0 or entry.file_size - start != size:
        raise ValueError(entry.filename)
    by_columns = by_columns and len(shape) > 1
    return Member(entry.filename.removesuffix(".npy"), entry, tuple(shape), dtype, by_columns, start)


def _streamed(archive: zipfile.ZipFile, member: Member, most: int) -> Iterator[Array]:
    with archive.open(member.entry) as file:
        file.read(member.start)
        for first in range(0, member.rows, most):
            rows = min(most, member.rows - first)
            yield _array(file.read(rows * member.width * member.dtype.itemsize), member, rows)
        if file.read(1):
            raise ValueError(member.name)


def _array(content: bytes, member: Member, rows: int) -> Array:
    if len(content) != rows * member.width * member.dtype.itemsize:
        raise EOFError
    if not content:  # texts of no letters
        return np.zeros((rows, member.width), dtype=member.dtype)
    return np.frombuffer(content, dtype=member.dtype).reshape(rows, member.width)


def _mapped(binary: IO[bytes], archive: zipfile.ZipFile, member: Member, most: int) -> Iterator[Array]:
    with archive.open(member.entry) as file:
        while file.read(_PIECE):  # for the check sum
            pass
    binary.seek(member.entry.header_offset + 26)
    lengths = [int.from_bytes(binary.read(2), "little") for _ in range(2)]  # of the name and of the extra field
    offset = member.entry.header_offset + 30 + sum(lengths) + member.start
    for first in range(0, member.rows, most):
        # A mapping of its own for each block: what was read of it leaves memory with it.
        window: Array = np.memmap(binary, member.dtype, "r", offset, member.shape, "F")
        block = np.array(window[first : first + most])
        del window
        yield block.reshape(len(block), -1)


def _whole(archive: zipfile.ZipFile, member: Member, most: int) -> Iterator[Array]:
    with archive.open(member.entry) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    for first in range(0, member.rows, most):
        block = array[first : first + most]
        yield block.reshape(len(block), -1)
