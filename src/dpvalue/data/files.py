"""Reading rows from CSV (any common separator, compressed too), Parquet and NPZ files, by a public schema.

A public file is read whole (`read_public`). A private file (`open_private`) is read in blocks, each record alone:
nothing is inferred over several records, and counting them reads no cell. An error names the file and what is wrong
with it as a whole. Only `dpvalue check` reports what is wrong with a private record.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np

from dpvalue.arrays import Array, Bools, Floats
from dpvalue.data.binary_files import Npz, Parquet, open_npz, open_parquet
from dpvalue.data.columns import Column, Columns
from dpvalue.data.lines import LONGEST_LINE, Layout, blocks, count_lines, open_zstd, split_cells
from dpvalue.data.schema import Schema
from dpvalue.errors import DpvalueError
from dpvalue.models import CLASSIFICATION

_SEPARATORS = ",;\t|"

_BLOCK_ROWS = 2**16

_BLOCK_CELLS = 2**21

_BLOCK_BYTES = 2**26  # of an NPZ file, in which texts take as much room as the longest of them


@dataclass(frozen=True)
class Peek:
    """The public part of a private file: the names of its columns and its number of records."""

    columns: tuple[str, ...]
    rows: int


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Block:
    """Some records of a private file: the cells of the requested columns, and which records are bad.

    Cells of a bad record are None. `faults` maps the place of a bad record in the block to what is wrong with it,
    `guesses` to the possible names of its group.
    """

    columns: Columns
    faults: dict[int, str]
    guesses: dict[int, tuple[str, ...]]

    @property
    def bad(self) -> Bools:
        """Which records are bad."""
        bad = np.zeros(len(self.columns), dtype=bool)
        bad[list(self.faults)] = True
        return bad


@dataclass(frozen=True, eq=False, repr=False)
class PrivateFile:
    """An open private file. Its records can be counted or read, once.

    Attributes:
        columns: the names of the columns.
        count: returns the number of records; reads no cell.
        read: takes existing columns and the group column (or None); yields the records in blocks. Each record is read
            alone. The group of a bad record is guessed.
    """

    columns: tuple[str, ...]
    count: Callable[[], int]
    read: Callable[[Sequence[str], str | None], Iterator[Block]]


@dataclass(frozen=True)
class FileFormat:
    """How files of one kind are read; `register_format` adds one, by the ending of their names.

    Attributes:
        open: opens a private file; of what it holds, nothing but the names of its columns is read before that is asked
            for. Nothing may be inferred over several records.
        whole: returns all rows of a public file.
    """

    open: Callable[[Path], AbstractContextManager[PrivateFile]]
    whole: Callable[[Path], Columns]


def register_format(ending: str, file_format: FileFormat) -> None:
    """Add a format of files whose names end so, such as ".rows"; raises for an ending that is taken."""
    if ending in (*FORMATS, *_OPENERS, ".csv") or not (ending.startswith(".") and ending[1:].isalnum()):
        raise DpvalueError(f"the ending of a format must be a new one, as '.csv', got {ending!r}")
    FORMATS[ending] = file_format


@contextmanager
def open_private(path: Path) -> Iterator[PrivateFile]:
    """Open a private file and read the names of its columns, nothing else."""
    with _format(path).open(path) as file:
        _check_header(path, file.columns)
        yield file


def read_private(path: Path, names: Sequence[str], group: str | None = None) -> Iterator[Block]:
    """Yield these columns of the records of a private file, in blocks; each record is read alone.

    Args:
        path: the file.
        names: the columns to read; all must be there.
        group: the column whose cell is guessed for bad records; None: no column.
    """
    with open_private(path) as file:
        yield from file.read(names, group)


def read_public(path: Path) -> Columns:
    """Return the rows of a public file; of a CSV file as texts, in which quoted line breaks are allowed."""
    table = _format(path).whole(path)
    require_records(path, Peek(_check_header(path, table.columns), len(table)))
    return table


@contextmanager
def _open_parquet(path: Path) -> Iterator[PrivateFile]:
    table = open_parquet(path)
    yield PrivateFile(tuple(table.names), lambda: table.rows, partial(_parquet_blocks, table))


def _whole_parquet(path: Path) -> Columns:
    file = open_parquet(path)
    _check_header(path, file.names)
    return file.whole()


@contextmanager
def _open_npz(path: Path) -> Iterator[PrivateFile]:
    with open_npz(path) as arrays:
        yield PrivateFile(tuple(arrays.places), lambda: arrays.rows, partial(_npz_blocks, arrays))


def _whole_npz(path: Path) -> Columns:
    with open_npz(path) as arrays:
        names = _check_header(path, tuple(arrays.places))
        require_records(path, Peek(names, arrays.rows))
        (table,) = arrays.blocks(names, arrays.rows)
    return table


@contextmanager
def _open_csv(path: Path) -> Iterator[PrivateFile]:
    with _open_text(path) as binary:
        layout = _layout(path, binary)
        yield PrivateFile(layout.names, partial(count_lines, binary), partial(_text_blocks, binary, layout))


def _parquet_blocks(file: Parquet, names: Sequence[str], group: str | None) -> Iterator[Block]:
    for piece in file.blocks(names, _block_rows(names)):
        yield Block(piece, {}, {})


def _npz_blocks(arrays: Npz, names: Sequence[str], group: str | None) -> Iterator[Block]:
    for piece in arrays.blocks(names, min(_block_rows(names), arrays.rows_of(names, _BLOCK_BYTES))):
        yield Block(piece, {}, {})


def _block_rows(names: Sequence[str]) -> int:
    """The number of records in a block, a function of the public number of columns."""
    return max(1, min(_BLOCK_ROWS, _BLOCK_CELLS // max(1, len(names))))


def _text_blocks(binary: IO[bytes], layout: Layout, names: Sequence[str], group: str | None) -> Iterator[Block]:
    for lines in blocks(binary):
        yield _text_block(lines, layout, names, group)


def _text_block(lines: list[bytes], layout: Layout, names: Sequence[str], group: str | None) -> Block:
    records = [layout.cells(line) for line in lines]
    faults = {place: record for place, record in enumerate(records) if isinstance(record, str)}
    nothing = [None] * len(layout.names)
    whole = [nothing if isinstance(record, str) else record for record in records] if faults else records
    by_place = list(zip(*whole, strict=True))
    columns = {name: Column(list(by_place[layout.names.index(name)])) for name in names}
    guesses = {} if group is None else {place: layout.guesses(lines[place], group) for place in faults}
    return Block(Columns(columns), faults, guesses)


def is_text(path: Path) -> bool:
    """Return whether a file is read as lines of text."""
    return _format(path) is _TEXT


def _format(path: Path) -> FileFormat:
    if not path.is_file():
        raise DpvalueError(f"there is no file {path}")
    return FORMATS.get(path.suffix, _TEXT)


def _check_header(path: Path, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the columns; raises unless they are unique and not empty."""
    if not columns:
        raise DpvalueError(f"{path} is empty")
    duplicates = [name for name, count in Counter(columns).items() if count > 1]
    if duplicates:  # the error gives places, not names: without a header the names would be cells
        places = [str(at) for at, name in enumerate(columns, start=1) if name == duplicates[0]]
        raise DpvalueError(f"{path} has several columns of the same name: columns {' and '.join(places)}")
    if any(not name.strip() for name in columns):
        raise DpvalueError(f"{path} has a column without a name")
    return columns


def require_records(path: Path, peek: Peek) -> Peek:
    """Return `peek`; raise if the file has no records."""
    if not peek.rows:
        raise DpvalueError(f"{path} has a header and no rows")
    return peek


@contextmanager
def _open_text(path: Path) -> Iterator[IO[bytes]]:
    opener: Any = _OPENERS.get(path.suffix, open)
    try:
        with opener(path, "rb") as binary:
            yield binary
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DpvalueError(f"{path} is not a whole {'zstd' if path.suffix == '.zst' else 'gzip'} file") from None
    except OSError as error:
        raise DpvalueError(f"{path} cannot be read: {error.strerror}") from None


_OPENERS: dict[str, Any] = {".gz": gzip.open, ".zst": open_zstd}


def _layout(path: Path, binary: IO[bytes]) -> Layout:
    """The header of a text file: its first line, which is public."""
    try:
        first = binary.readline(LONGEST_LINE + 1).decode("utf-8-sig").rstrip("\r\n")
        if "\r" in first or len(first) > LONGEST_LINE:
            raise DpvalueError(f"{path} must end its lines with line feeds: its first line is no header")
        separator = max(_SEPARATORS, key=first.count)  # the most frequent one in the header
        names = tuple(name.strip() for name in split_cells(first, separator)) if first else ()
    except (UnicodeDecodeError, csv.Error):
        raise DpvalueError(f"{path} is not a text file in UTF-8 with a header in its first line") from None
    return Layout(names, separator)


def _public_csv(path: Path) -> Columns:
    with _open_text(path) as binary:
        content = binary.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DpvalueError(f"{path} is not a text file in UTF-8") from None
    separator = _layout(path, io.BytesIO(content)).separator
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise DpvalueError(f"{path} is not a table: {error}") from None
    if not lines:
        return Columns({})
    names, rows = [name.strip() for name in lines[0]], lines[1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise DpvalueError(f"{path} is not a table: row {number} has {len(row)} cells, the header {len(names)}")
    _check_header(path, tuple(names))
    return Columns({name: Column([row[place] for row in rows]) for place, name in enumerate(names)})


_TEXT = FileFormat(_open_csv, _public_csv)

FORMATS = {".parquet": FileFormat(_open_parquet, _whole_parquet), ".npz": FileFormat(_open_npz, _whole_npz)}
"""By the ending of a file's name; any other file is text."""


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Piece:
    """Some records of a private file: encoded features (NaN for a bad record), labels, and the raw cells."""

    features: Floats
    labels: Array
    columns: Columns


def read_encoded(
    path: Path, schema: Schema, target: str, task: str, others: Sequence[str] = (), dtype: Any = np.float64
) -> Iterator[Piece]:
    """Yield the records of a private file in blocks; each record is read and encoded alone.

    Args:
        path: the file.
        schema: the fitted transformer of columns.
        target: the column of labels.
        task: "classification" or "regression".
        others: more columns to read.
        dtype: NumPy type of the features.
    """
    names = list(dict.fromkeys([*schema.names, target, *others]))
    for block in read_private(path, names):
        features = schema.transform(block.columns)
        features[block.bad] = np.nan
        with np.errstate(all="ignore"):  # a private cell must not warn
            numbers = features.astype(dtype, copy=False)
        yield Piece(numbers, read_labels(block.columns[target], task), block.columns)


def read_labels(column: Column, task: str) -> Array:
    """Return labels as canonical texts (None if missing), or for regression as numbers (NaN if not finite)."""
    if task == CLASSIFICATION:
        return column.texts()
    numbers = column.numbers()
    numbers[np.isinf(numbers)] = np.nan
    return numbers
