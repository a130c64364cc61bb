"""Parquet files, read some rows at a time.

Whatever is damaged in one is said in one line that names the file: pyarrow's own messages may quote what is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpvalue.data.columns import Column, Columns
from dpvalue.data.conversions import of_arrow
from dpvalue.errors import DpvalueError

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_PIECE = 2**16  # bytes of a column
_TEXT_ROWS = 2**12  # rows of texts at once: a text may be long, and pyarrow repeats it in each row that holds it
_INDEX = re.compile(r"__index_level_\d+__")  # that pandas writes into Parquet beside the columns


@dataclass(frozen=True, eq=False, repr=False)
class Parquet:
    """An open Parquet file; made by `open_parquet`.

    Attributes:
        path: the file.
        names: its columns, without pandas' index.
        nested: those that hold lists or other nested cells; such a cell is never read, and counts as missing.
        with_texts: those that hold texts or bytes.
        rows: the number of records.
    """

    path: Path
    file: ParquetFile
    names: tuple[str, ...]
    nested: frozenset[str]
    with_texts: frozenset[str]
    rows: int

    def blocks(self, names: Sequence[str], most: int) -> Iterator[Columns]:
        """Yield some columns of all records, at most so many records at once."""
        flat = [name for name in names if name not in self.nested]
        size = min(most, _TEXT_ROWS) if self.with_texts.intersection(flat) else most
        pieces = self.file.iter_batches(batch_size=size, columns=flat)
        while (piece := self._next(pieces)) is not None:
            yield Columns({name: self._column(piece, name) for name in names})

    def whole(self) -> Columns:
        """Return all records of a public file."""
        with _damage_said(self.path, "is not a whole Parquet file"):
            table = self.file.read(columns=[name for name in self.names if name not in self.nested])
        return Columns({name: self._column(table, name) for name in self.names})

    def _next(self, pieces: Any) -> Any:
        with _damage_said(self.path, "is not a whole Parquet file"):
            return next(pieces, None)

    def _column(self, piece: Any, name: str) -> Column:
        return Column([None] * piece.num_rows) if name in self.nested else of_arrow(piece.column(name))


def open_parquet(path: Path) -> Parquet:
    """Open a Parquet file, and read its metadata; raises unless they are whole."""
    try:
        from pyarrow import parquet, types
    except ModuleNotFoundError:
        raise DpvalueError("reading Parquet needs pyarrow: pip install 'dpvalue[parquet]'") from None
    with _damage_said(path, "is not a Parquet file"):
        # Through a small buffer: otherwise a row group, which may be the whole file, would be fetched at once.
        file = parquet.ParquetFile(path, buffer_size=_PIECE, pre_buffer=False)
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
    """The names of the columns, but for those that pandas keeps its index in."""
    stored = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
    indices = stored.get("index_columns", []) if isinstance(stored, dict) else []
    index = {name for name in indices if isinstance(name, str)} if isinstance(indices, list) else set()
    return tuple(name for name in schema.names if name not in index and _INDEX.fullmatch(name) is None)


@contextmanager
def _damage_said(path: Path, trouble: str) -> Iterator[None]:
    """Say in one line whatever pyarrow finds wrong with a file."""
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, LookupError, TypeError, OverflowError, MemoryError, RecursionError):
        raise DpvalueError(f"{path} {trouble}") from None
