"""Tables as columns of cells, from frames of pandas and polars, from Arrow and from arrays: one form for all of them.

A column is kept as it was stored: an array of numbers with a mask of what is missing, or a list of cells. No type is
inferred over its cells, so that what one cell becomes never depends on another (`dpvalue.data.cells`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.arrays import Array, Bools, Floats
from dpvalue.data.cells import each, each_number, identity, is_infinite, is_missing, number, party_name, text
from dpvalue.errors import DpvalueError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Column:
    """The cells of a column: an array of numbers or booleans with what is missing in it, or a list of any cells.

    `is_text` says that its format stores texts as texts: "7" is then a category where a CSV file means a number.
    """

    cells: Array | list[Any]
    missing: Bools | None = None
    is_text: bool = False

    def __repr__(self) -> str:
        return "Column()"

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, rows: Any) -> Column:
        """Return some rows, by position."""
        if isinstance(self.cells, list):
            return Column([self.cells[row] for row in rows], None, self.is_text)
        return Column(self.cells[rows], None if self.missing is None else self.missing[rows], self.is_text)

    def numbers(self) -> Floats:
        """Return the cells as numbers: NaN for a missing cell, infinity for one that is not a number."""
        if isinstance(self.cells, list):
            return np.array(each_number(self.cells), dtype=np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = self.cells.astype(np.float64)
        numbers[np.isinf(numbers)] = np.inf
        if self.missing is not None:
            numbers[self.missing] = np.nan
        return numbers

    def texts(self) -> Array:
        """Return the canonical texts of the cells (objects); None where one is missing."""
        return self._mapped(text)

    def identities(self) -> Array:
        """Return the cells as ids (objects); None where there is none."""
        return self._mapped(identity)

    def party_names(self) -> Array:
        """Return the cells as names of parties (objects); None where there is none."""
        return self._mapped(party_name)

    def words(self) -> Array:
        """Return the cells as a transformer gets them (objects): texts as they are, others in canonical form."""
        if not isinstance(self.cells, list):
            return self.texts()
        return _objects([cell if isinstance(cell, str) else text(cell) for cell in self.cells])

    def lacking(self) -> Bools:
        """Return which cells are missing."""
        if isinstance(self.cells, list):
            return np.array(each(self.cells, is_missing), dtype=bool)
        missing = np.isnan(self.cells) if self.cells.dtype.kind == "f" else np.zeros(len(self.cells), dtype=bool)
        return missing if self.missing is None else missing | self.missing

    def _mapped(self, parse: Callable[[Any], str | None]) -> Array:
        if isinstance(self.cells, list):
            return _objects(each(self.cells, parse))
        different, place = np.unique(self.cells, return_inverse=True)
        parsed = _objects([parse(cell) for cell in different])[place.reshape(-1)]
        if self.missing is not None:
            parsed[self.missing] = None
        return parsed


def _objects(cells: Sequence[Any]) -> Array:
    objects = np.empty(len(cells), dtype=object)
    objects[:] = cells
    return objects


@dataclass(frozen=True, eq=False, repr=False)
class Columns:
    """A table: columns of the same length, by name."""

    by_name: Mapping[str, Column]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self.by_name)

    def __repr__(self) -> str:
        return f"Columns({', '.join(self.columns)})"

    def __len__(self) -> int:
        return len(next(iter(self.by_name.values()), ()))

    def __getitem__(self, name: str) -> Column:
        return self.by_name[name]

    def only(self, names: Iterable[str]) -> Columns:
        """Return some of the columns."""
        return Columns({name: self.by_name[name] for name in names})

    def without(self, *names: str) -> Columns:
        """Return the other columns."""
        return Columns({name: column for name, column in self.by_name.items() if name not in names})

    def take(self, rows: Any) -> Columns:
        """Return some rows, by position."""
        return Columns({name: column.take(rows) for name, column in self.by_name.items()})

    def finite(self, name: str) -> Floats:
        """Return a column as numbers; NaN for whatever is not a finite one."""
        numbers = self[name].numbers()
        numbers[np.isinf(numbers)] = np.nan
        return numbers

    def unreadable(self, numeric: Mapping[str, bool]) -> Bools:
        """Return which rows have a cell that is neither a number nor missing in a column of numbers."""
        bad = np.zeros(len(self), dtype=bool)
        for name in self.columns:
            if numeric[name]:
                bad |= np.isinf(self[name].numbers())
        return bad

    def is_numeric(self) -> dict[str, bool]:
        """Return which columns hold numbers: every cell that is not missing is one (true and false are 1 and 0)."""
        return {name: _is_numeric(column) for name, column in self.by_name.items()}

    def to_pandas(self, numeric: Mapping[str, bool]) -> pandas.DataFrame:
        """Return a frame whose columns are numbers (float64; NaN for a cell that is not one) or texts."""
        import pandas as pd

        columns = {name: self.finite(name) if numeric[name] else self[name].words() for name in self.columns}
        return pd.DataFrame({name: pd.Series(cells, dtype=cells.dtype) for name, cells in columns.items()})


def _is_numeric(column: Column) -> bool:
    if isinstance(column.cells, list):
        return not column.is_text and all(each(column.cells, lambda cell: number(cell) != inf or is_infinite(cell)))
    return True


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the rows of several public tables, one table after the other."""
    return Columns({name: _joined([part[name] for part in parts]) for name in parts[0].columns})


def _joined(parts: list[Column]) -> Column:
    cells = [cell for part in parts for cell in _listed(part)]
    return Column(cells, None, parts[0].is_text)


def _listed(column: Column) -> list[Any]:
    cells = list(column.cells)
    if column.missing is not None:
        cells = [None if gone else cell for cell, gone in zip(cells, column.missing, strict=True)]
    return cells


def is_frame(data: Any) -> bool:
    """Return whether data is a table with named columns: ours, or a frame of pandas or polars."""
    return hasattr(data, "columns")


def as_columns(data: Any) -> Columns:
    """Return a frame of pandas or polars as columns of cells."""
    if isinstance(data, Columns):
        return data
    is_arrow = hasattr(data, "column_names") and hasattr(data, "to_batches")
    names = [str(name) for name in (data.column_names if is_arrow else data.columns)]
    _require_different(names)
    if is_arrow:
        return Columns({name: of_arrow(column) for name, column in zip(names, data.columns, strict=True)})
    if hasattr(data, "get_columns"):  # polars
        return Columns({name: of_polars(column) for name, column in zip(names, data.get_columns(), strict=True)})
    return Columns({name: of_pandas(data.iloc[:, place]) for place, name in enumerate(names)})


def _require_different(names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DpvalueError(f"a frame must not have several columns that are called {twice[0]!r}")


def of_pandas(series: Any) -> Column:
    """Return a pandas series as a column."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "biuf":
        return of_array(series.to_numpy())
    if type(series.dtype).__name__ == "ArrowDtype":
        return of_arrow(series.array.__arrow_array__())
    return of_cells(series.astype(object).tolist())


def of_polars(series: Any) -> Column:
    """Return a polars series as a column."""
    if (series.dtype.is_integer() and "128" not in str(series.dtype)) or series.dtype.is_float():
        missing = series.is_null().to_numpy()
        return Column(series.fill_null(0).to_numpy(), missing if missing.any() else None)
    if series.dtype.is_temporal():
        return _moments(series)
    return of_cells([None] * len(series) if series.dtype.is_nested() else series.to_list())


def _moments(series: Any) -> Column:
    """Dates and times of polars as texts, by whole numbers: its own conversions end with the years of Python."""
    missing, kind = series.is_null().to_numpy(), str(series.dtype)
    whole = series.to_physical().cast(int).fill_null(0).to_numpy()
    if not kind.startswith("Date"):  # times of day and durations are numbers
        return Column(whole, missing)
    unit = "D" if kind == "Date" else str(series.dtype.time_unit)
    zone = "Z" if kind != "Date" and series.dtype.time_zone else ""
    texts = whole.astype(np.int64).astype(f"datetime64[{unit}]").astype(str)
    return of_cells([None if gone else f"{moment}{zone}" for moment, gone in zip(texts.tolist(), missing, strict=True)])


def of_arrow(column: Any) -> Column:
    """Return a column of an Arrow table, or of a Parquet file."""
    from pyarrow import types

    if types.is_integer(column.type) or (types.is_floating(column.type) and not types.is_float16(column.type)):
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return Column(column.fill_null(0).to_numpy(), missing)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_nested(column.type):
        return of_cells([None] * len(column))
    if types.is_temporal(column.type):  # Python's own dates end with the year 9999: one cell could stop all others
        column = column.cast("string")
    try:
        return of_cells(column.to_pylist())
    except UnicodeDecodeError:
        return of_cells(column.cast("binary").to_pylist())


def of_array(array: Array) -> Column:
    """Return a flat NumPy array as a column."""
    if array.dtype.kind in "biuf":
        return Column(array.astype(np.float64) if array.dtype.itemsize > 8 else array)
    if array.dtype.kind == "U":
        array = _without_impossible(array)
    return of_cells(list(array) if array.dtype.kind == "M" else array.tolist())


def _without_impossible(array: Array) -> Array:
    """Texts in which no letter is beyond Unicode: NumPy stores any number, and Python raises for all of them."""
    width = array.dtype.itemsize // 4
    if not width or not len(array):
        return array
    letters = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), width)
    if array.dtype.byteorder == ">":
        letters = letters.byteswap()
    bad = np.asarray((letters > 0x10FFFF).any(axis=1))
    return _replaced(array, bad) if bad.any() else array


def _replaced(array: Array, bad: Bools) -> Array:
    texts = np.empty(len(array), dtype=object)
    texts[~bad] = array[~bad].tolist()
    texts[bad] = "\ufffd"
    return texts


def of_cells(cells: list[Any]) -> Column:
    """Return the cells of a typed format as a column: texts among them are texts."""
    return Column(cells, None, any(isinstance(cell, str | bytes) for cell in cells))


def as_column(raw: Any) -> Column:
    """Return labels or ids, however they are given: a column, a series, an array, a tensor or a list."""
    if isinstance(raw, Column):
        return raw
    if hasattr(raw, "iloc"):
        return of_pandas(raw)
    if hasattr(raw, "is_null") and hasattr(raw, "to_list"):
        return of_polars(raw)
    if hasattr(raw, "detach"):
        raw = raw.detach().cpu().numpy()
    return of_array(raw) if isinstance(raw, np.ndarray) else of_cells(list(raw))
