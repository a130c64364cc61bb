"""Readers of NPZ and Parquet files. Each reads a block of rows at a time, so memory does not grow with the file.

Opening an NPZ archive reads its headers only. An array in C order is streamed, compressed or not, and its checksum is
verified on the way. An array in Fortran order is memory-mapped, one window per block, if it is not compressed. A
compressed array in Fortran order can only be read whole; a large one is refused.
"""

from __future__ import annotations

import json
import lzma
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dpvalue.arrays import Array
from dpvalue.data.columns import Column, Columns
from dpvalue.data.conversions import of_array, of_arrow
from dpvalue.errors import DpvalueError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

MOST_BYTES_WHOLE = 2**28  # of an array that cannot be read in pieces
_PIECE = 2**20
_DAMAGED = (
    ValueError, TypeError, OSError, EOFError, LookupError, RuntimeError, SyntaxError, OverflowError, MemoryError,
    AttributeError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error, lzma.LZMAError,
)  # fmt: skip


@dataclass(frozen=True)
class ArchiveMember:
    """An array of an archive: its header, and the offset of its numbers in the member's bytes."""

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
    """An open NPZ file of plain arrays with one row per record each; `open_npz` makes it."""

    path: Path
    binary: IO[bytes]
    archive: zipfile.ZipFile
    members: tuple[ArchiveMember, ...]

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.members[0].rows

    @cached_property
    def places(self) -> dict[str, tuple[ArchiveMember, int]]:
        """The array of each column, by the column's name, and the column's place in a row."""
        places: dict[str, tuple[ArchiveMember, int]] = {}
        for member in self.members:
            for place, name in enumerate(member.columns):
                if name in places:
                    raise DpvalueError(f"{self.path} has several columns named {name!r}")
                places[name] = member, place
        return places

    def rows_of(self, names: Sequence[str], size: int) -> int:
        """Return how many records fit in `size` bytes, over the arrays that hold these columns; at least 1."""
        members = {member.name: member for member, _ in map(self.places.__getitem__, names)}
        return max(1, size // max(1, sum(member.width * member.dtype.itemsize for member in members.values())))

    def blocks(self, names: Sequence[str], most: int) -> Iterator[Columns]:
        """Yield these columns of all records, in blocks of at most `most` records."""
        members = {member.name: member for member, _ in map(self.places.__getitem__, names)}
        pieces = {name: self._pieces(member, most) for name, member in members.items()}
        for _ in range(0, self.rows, most):
            with _report_damage(self.path):
                blocks = {name: next(piece) for name, piece in pieces.items()}
            yield Columns({name: self._column(blocks, name) for name in names})
        with _report_damage(self.path):
            for piece in pieces.values():
                next(piece, None)  # where the check sum is compared

    def _column(self, blocks: dict[str, Array], name: str) -> Column:
        member, place = self.places[name]
        return of_array(blocks[member.name][:, place])

    def _pieces(self, member: ArchiveMember, most: int) -> Iterator[Array]:
        """The rows of an array, flattened to (rows, width), in blocks of at most `most` rows."""
        if not member.by_columns:
            return _stream_array(self.archive, member, most)
        if member.entry.compress_type == zipfile.ZIP_STORED:
            return _map_array(self.binary, self.archive, member, most)
        if member.entry.file_size > MOST_BYTES_WHOLE:
            raise DpvalueError(
                f"the array {member.name!r} of {self.path} is compressed and stored column by column, so it could only "
                f"be read whole ({member.entry.file_size / 1e9:.1f} GB): save it by numpy.savez, or its rows by "
                "numpy.ascontiguousarray"
            )
        return _read_array(self.archive, member, most)


@contextmanager
def open_npz(path: Path) -> Iterator[Npz]:
    """Open an NPZ file and read its headers; raise unless its arrays have one row per record."""
    with ExitStack() as stack:
        with _report_damage(path):
            binary = stack.enter_context(path.open("rb"))
            archive = stack.enter_context(zipfile.ZipFile(binary))
            members = tuple(_member(archive, entry) for entry in archive.infolist())
        if len({member.rows for member in members}) != 1 or not members[0].shape:
            raise DpvalueError(f"{path} must hold arrays with one row per record each")
        yield Npz(path, binary, archive, members)


@contextmanager
def _report_damage(path: Path) -> Iterator[None]:
    """Replace any error of the readers by one fixed line, because their messages may quote cells of the file."""
    try:
        yield
    except _DAMAGED:
        raise DpvalueError(f"{path} is not an NPZ file of plain arrays") from None


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> ArchiveMember:
    """The header of an array; raises ValueError unless it holds numbers, texts or times and has the size it claims.

    The check comes before any allocation: a header may claim a shape of 10^12.
    """
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_columns, dtype = read_header(file)
        start = file.tell()
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if dtype.kind not in "biufUSM" or min(shape, default=0) < 0 or entry.file_size - start != size:
        raise ValueError(entry.filename)
    by_columns = by_columns and len(shape) > 1
    return ArchiveMember(entry.filename.removesuffix(".npy"), entry, tuple(shape), dtype, by_columns, start)


def _stream_array(archive: zipfile.ZipFile, member: ArchiveMember, most: int) -> Iterator[Array]:
    with archive.open(member.entry) as file:
        file.read(member.start)
        for first in range(0, member.rows, most):
            rows = min(most, member.rows - first)
            yield _array(file.read(rows * member.width * member.dtype.itemsize), member, rows)
        if file.read(1):
            raise ValueError(member.name)


def _array(content: bytes, member: ArchiveMember, rows: int) -> Array:
    if len(content) != rows * member.width * member.dtype.itemsize:
        raise EOFError
    if not content:  # texts of no letters
        return np.zeros((rows, member.width), dtype=member.dtype)
    return np.frombuffer(content, dtype=member.dtype).reshape(rows, member.width)


def _map_array(binary: IO[bytes], archive: zipfile.ZipFile, member: ArchiveMember, most: int) -> Iterator[Array]:
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


def _read_array(archive: zipfile.ZipFile, member: ArchiveMember, most: int) -> Iterator[Array]:
    with archive.open(member.entry) as file:
        array: Array = np.lib.format.read_array(file, allow_pickle=False)
    for first in range(0, member.rows, most):
        block = array[first : first + most]
        yield block.reshape(len(block), -1)


_BUFFER = 2**16  # bytes of a column
_TEXT_ROWS = 2**12  # rows of texts at once: a text may be long, and pyarrow repeats it in each row that holds it
_INDEX = re.compile(r"__index_level_\d+__")  # that pandas writes into Parquet beside the columns


@dataclass(frozen=True, eq=False, repr=False)
class Parquet:
    """An open Parquet file; `open_parquet` makes it.

    Attributes:
        path: the file.
        names: its columns, without pandas' index.
        nested: columns of lists or other nested cells, which are never read and count as missing.
        with_texts: columns of texts or bytes.
        rows: the number of records.
    """

    path: Path
    file: ParquetFile
    names: tuple[str, ...]
    nested: frozenset[str]
    with_texts: frozenset[str]
    rows: int

    def blocks(self, names: Sequence[str], most: int) -> Iterator[Columns]:
        """Yield these columns of all records, in blocks of at most `most` records."""
        flat = [name for name in names if name not in self.nested]
        size = min(most, _TEXT_ROWS) if self.with_texts.intersection(flat) else most
        pieces = self.file.iter_batches(batch_size=size, columns=flat)
        while (piece := self._next(pieces)) is not None:
            yield Columns({name: self._column(piece, name) for name in names})

    def whole(self) -> Columns:
        """Return all records of a public file."""
        with _report_parquet_damage(self.path, "is not a whole Parquet file"):
            table = self.file.read(columns=[name for name in self.names if name not in self.nested])
        return Columns({name: self._column(table, name) for name in self.names})

    def _next(self, pieces: Any) -> Any:
        with _report_parquet_damage(self.path, "is not a whole Parquet file"):
            return next(pieces, None)

    def _column(self, piece: Any, name: str) -> Column:
        return Column([None] * piece.num_rows) if name in self.nested else of_arrow(piece.column(name))


def open_parquet(path: Path) -> Parquet:
    """Open a Parquet file and read its metadata; raise if they are damaged."""
    try:
        from pyarrow import parquet, types
    except ModuleNotFoundError:
        raise DpvalueError("reading Parquet needs pyarrow: pip install 'dpvalue[parquet]'") from None
    with _report_parquet_damage(path, "is not a Parquet file"):
        # Through a small buffer: otherwise a row group, which may be the whole file, would be fetched at once.
        file = parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
        kinds = {field.name: field.type for field in file.schema_arrow}
        names = _names(file.schema_arrow)
        groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
        rows = int(file.metadata.num_rows)
        if min(groups, default=0) < 0 or sum(groups) != rows:
            raise ValueError("rows")
    nested = frozenset(name for name in names if types.is_nested(kinds[name]))
    fixed = (types.is_integer, types.is_floating, types.is_boolean, types.is_temporal, types.is_decimal, types.is_null)
    texts = frozenset(name for name in names if not any(is_kind(kinds[name]) for is_kind in fixed))
    return Parquet(path, file, names, nested, texts, rows)


def _names(schema: Any) -> tuple[str, ...]:
    """The names of the columns, without the index columns of pandas."""
    metadata = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    indices = metadata.get("index_columns", []) if isinstance(metadata, dict) else []
    index = {name for name in indices if isinstance(name, str)} if isinstance(indices, list) else set()
    return tuple(name for name in schema.names if name not in index and _INDEX.fullmatch(name) is None)


@contextmanager
def _report_parquet_damage(path: Path, trouble: str) -> Iterator[None]:
    """Replace any error of pyarrow by one line that names the file."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, RecursionError):
        raise DpvalueError(f"{path} {trouble}") from None
