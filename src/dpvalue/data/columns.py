"""Tables as columns of cells: one form for pandas, polars, Arrow and arrays (`dpvalue.data.conversions`).

A column keeps its storage: an array of numbers with a mask of missing cells, or a list of cells. No type is inferred
over several cells, so how a cell is parsed never depends on another (`dpvalue.data.cells`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.arrays import Array, Bools, Floats
from dpvalue.data.cells import (
    identity,
    is_infinite,
    is_missing,
    number,
    parse_cells,
    parse_numbers,
    party_name,
    text,
    word,
)

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Column:
    """The cells of a column: an array of numbers or booleans with a mask of missing cells, or a list of any cells.

    `is_text` marks a typed column of texts, in which "7" is a category; in a CSV file it is a number.
    """

    cells: Array | list[Any]
    missing: Bools | None = None
    is_text: bool = False

    def __repr__(self) -> str:
        return "Column()"

    def __len__(self) -> int:
        return len(self.cells)

    def take(self, rows: Any) -> Column:
        """Return the rows at these positions."""
        if isinstance(self.cells, list):
            return Column([self.cells[row] for row in rows], None, self.is_text)
        return Column(self.cells[rows], None if self.missing is None else self.missing[rows], self.is_text)

    def numbers(self) -> Floats:
        """Return the cells as numbers: NaN for a missing cell, infinity for one that is not a number."""
        if isinstance(self.cells, list):
            return np.array(parse_numbers(self.cells), dtype=np.float64)
        with np.errstate(all="ignore"):  # a private cell must not warn
            numbers = self.cells.astype(np.float64)
        numbers[np.isinf(numbers)] = np.inf
        if self.missing is not None:
            numbers[self.missing] = np.nan
        return numbers

    def texts(self) -> Array:
        """Return the canonical texts of the cells (objects); None for a missing cell."""
        return self._parse(text)

    def identities(self) -> Array:
        """Return the cells as ids (objects); None for a cell that is no id."""
        return self._parse(identity)

    def party_names(self) -> Array:
        """Return the cells as names of parties (objects); None for a cell that is no name."""
        return self._parse(party_name)

    def words(self) -> Array:
        """Return the cells as a transformer gets them (objects): texts unchanged, others in canonical form."""
        if not isinstance(self.cells, list):
            return self.texts()
        return _objects([word(cell) for cell in self.cells])

    def missing_cells(self) -> Bools:
        """Return which cells are missing."""
        if isinstance(self.cells, list):
            return np.array(parse_cells(self.cells, is_missing), dtype=bool)
        missing = np.isnan(self.cells) if self.cells.dtype.kind == "f" else np.zeros(len(self.cells), dtype=bool)
        return missing if self.missing is None else missing | self.missing

    def _parse(self, parse: Callable[[Any], str | None]) -> Array:
        if isinstance(self.cells, list):
            return _objects(parse_cells(self.cells, parse))
        distinct, place = np.unique(self.cells, return_inverse=True)
        parsed = _objects([parse(cell) for cell in distinct])[place.reshape(-1)]
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
        """Return the rows at these positions."""
        return Columns({name: column.take(rows) for name, column in self.by_name.items()})

    def finite(self, name: str) -> Floats:
        """Return a column as numbers; NaN for a cell that is not a finite number."""
        numbers = self[name].numbers()
        numbers[np.isinf(numbers)] = np.nan
        return numbers

    def unreadable(self, numeric: Mapping[str, bool]) -> Bools:
        """Return which rows have a cell in a numeric column that is neither a number nor missing."""
        bad = np.zeros(len(self), dtype=bool)
        for name in self.columns:
            if numeric[name]:
                bad |= np.isinf(self[name].numbers())
        return bad

    def is_numeric(self) -> dict[str, bool]:
        """Return which columns are numeric: every cell is a number, a boolean or missing."""
        return {name: _is_numeric(column) for name, column in self.by_name.items()}

    def to_pandas(self, numeric: Mapping[str, bool]) -> pandas.DataFrame:
        """Return a pandas frame of numeric columns (float64, NaN for other cells) and columns of texts."""
        import pandas as pd

        columns = {name: self.finite(name) if numeric[name] else self[name].words() for name in self.columns}
        return pd.DataFrame({name: pd.Series(cells, dtype=cells.dtype) for name, cells in columns.items()})


def _is_numeric(column: Column) -> bool:
    if isinstance(column.cells, list):
        return not column.is_text and all(
            parse_cells(column.cells, lambda cell: number(cell) != inf or is_infinite(cell))
        )
    return True


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Return the rows of several public tables, concatenated."""
    return Columns({name: _concatenate_cells([part[name] for part in parts]) for name in parts[0].columns})


def _concatenate_cells(parts: list[Column]) -> Column:
    cells = [cell for part in parts for cell in _as_list(part)]
    return Column(cells, None, parts[0].is_text)


def _as_list(column: Column) -> list[Any]:
    cells = list(column.cells)
    if column.missing is not None:
        cells = [None if absent else cell for cell, absent in zip(cells, column.missing, strict=True)]
    return cells


def is_frame(data: Any) -> bool:
    """Return whether data is a table with named columns: `Columns`, or a frame of pandas or polars."""
    return hasattr(data, "columns")
