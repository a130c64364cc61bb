"""Preprocessing of tables, fitted to the public set: columns, categories, means and scales.

`columns` centres and scales a numeric column by the public mean and standard deviation, and replaces a missing number
by the public median. Any other column becomes one indicator column per category of the public file; an unknown category
and a missing cell are zero in all of them. `numbers` leaves numbers unscaled and takes no other columns. A row with a
cell in a numeric column that is neither a finite number nor missing is unusable: it becomes NaN and contributes zero.

`RowForm` brings private rows into the form of the public set (frame, array, sparse matrix or objects), cell by cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpvalue.arrays import Bools, Floats
from dpvalue.data.cells import index_of
from dpvalue.data.columns import Column, Columns, is_frame
from dpvalue.data.conversions import as_columns, of_array
from dpvalue.data.raw import as_numbers, as_rows, is_numeric, is_sparse, row_count, row_numbers, take_rows
from dpvalue.errors import DpvalueError, require_choice

PREPROCESSORS = {"columns": True, "numbers": False}
"""The names of transformers of columns for `preprocess`, and whether each scales numbers."""

MOST_CATEGORIES = 50

MOST_CLASSES = 20


@dataclass(frozen=True)
class Numeric:
    """A numeric column: the value of a missing cell, the mean and the scale."""

    name: str
    missing: float
    mean: float
    scale: float

    def encode(self, column: Column) -> Floats:
        """Return the scaled column (rows, 1); NaN for a cell that is neither a number nor missing."""
        numbers = column.numbers()
        filled = np.where(np.isnan(numbers), self.missing, numbers)
        filled[np.isinf(filled)] = np.nan
        with np.errstate(all="ignore"):  # a private cell must not warn; an infinite one belongs to a bad row
            scaled: Floats = ((filled - self.mean) / self.scale)[:, None]
        return scaled


@dataclass(frozen=True)
class Categorical:
    """A column of categories."""

    name: str
    categories: tuple[str, ...]

    def encode(self, column: Column) -> Floats:
        """Return the indicators of the categories (rows, categories)."""
        place = index_of(self.categories)
        numbers = np.array([place.get(text, -1) for text in column.texts()], dtype=np.int64)
        encoded: Floats = (numbers[:, None] == np.arange(len(self.categories))).astype(np.float64)
        return encoded


class Schema:
    """A transformer of frames, fitted to public rows, that transforms each row on its own.

    Formal guarantee: the transform of a row depends on that row and on the public frame alone, and no content of a row
    raises.

    Args:
        scaled: True: numbers are centred and scaled, texts are categories. False: numbers are unscaled, texts raise.
    """

    def __init__(self, scaled: bool = True) -> None:
        self.scaled = scaled

    @property
    def is_fitted(self) -> bool:
        """Whether the schema has been fitted."""
        return hasattr(self, "columns_")

    def fit(self, frame: Any, y: Any = None) -> Schema:
        """Learn columns, categories, means and scales from a public frame."""
        table = as_columns(frame)
        numeric = table.is_numeric()
        texts = [name for name in table.columns if not numeric[name]]
        if texts and not self.scaled:
            raise DpvalueError(
                f"the column {texts[0]!r} of the public file does not hold numbers: preprocess 'numbers' needs "
                "them, preprocess 'columns' encodes text"
            )
        self.columns_ = [_column(name, table[name], numeric[name], self.scaled) for name in table.columns]
        if not self.columns_:
            raise DpvalueError("the public file has no column but the target")
        return self

    def transform(self, frame: Any) -> Floats:
        """Return the rows of a frame as numbers; a row with an unreadable cell is NaN."""
        table = as_columns(frame)
        for name in self.names:
            if name not in table.columns:
                raise DpvalueError(f"column {name!r} of the public file is missing")
        numbers = np.concatenate([column.encode(table[column.name]) for column in self.columns_], axis=1)
        numbers[np.isnan(numbers).any(axis=1)] = np.nan
        return numbers

    def unreadable(self, frame: Any) -> dict[str, Bools]:
        """Return, by numeric column, which cells are neither numbers nor missing."""
        table = as_columns(frame)
        return {
            column.name: np.isinf(table[column.name].numbers())
            for column in self.columns_
            if isinstance(column, Numeric)
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns that are encoded, in order."""
        return tuple(column.name for column in self.columns_)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the fitted values, as plain values."""
        return [asdict(column) for column in self.columns_]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> Schema:
        """Return the schema that `to_json` describes."""
        schema = cls()
        schema.columns_ = [
            Categorical(column["name"], tuple(column["categories"])) if "categories" in column else Numeric(**column)
            for column in columns
        ]
        return schema

    def __repr__(self) -> str:
        return f"Schema({', '.join(self.names) if hasattr(self, 'columns_') else ''})"

    def __str__(self) -> str:
        numeric = sum(isinstance(column, Numeric) for column in self.columns_)
        if not self.scaled:
            return f"{numeric} numeric columns as they are"
        return f"{numeric} numeric and {len(self.columns_) - numeric} categorical columns"


def make_schema(name: str) -> Schema:
    """Return the transformer with this name, not yet fitted."""
    require_choice("preprocess", name, PREPROCESSORS)
    return Schema(PREPROCESSORS[name])


def _column(name: str, column: Column, numeric: bool, scaled: bool) -> Numeric | Categorical:
    if numeric:
        numbers = column.numbers()
        if np.isinf(numbers).any():
            raise DpvalueError(f"the column {name!r} of the public file holds infinite values")
        present = numbers[~np.isnan(numbers)]
        missing = float(np.median(present)) if len(present) else 0.0
        if not scaled:
            return Numeric(name, missing, 0.0, 1.0)
        filled = np.where(np.isnan(numbers), missing, numbers)
        return Numeric(name, missing, float(filled.mean()), float(filled.std()) or 1.0)
    categories = sorted({text for text in column.texts() if text is not None})
    if len(categories) > MOST_CATEGORIES:
        raise DpvalueError(
            f"the column {name!r} holds {len(categories)} different texts in the public file, too many for categories: "
            f"drop it with --drop {name}"
        )
    return Categorical(name, tuple(categories) or ("",))


def infer_task(target: Column) -> str:
    """Return "regression" for numbers with fractions or with more than 20 different values, else "classification"."""
    if not Columns({"": target}).is_numeric()[""]:
        return "classification"
    numbers = target.numbers()
    numbers = numbers[~np.isnan(numbers)]
    whole = bool((numbers == np.rint(numbers)).all())
    return "classification" if whole and len(np.unique(numbers)) <= MOST_CLASSES else "regression"


def classes_of(target: Column) -> tuple[str, ...]:
    """Return the classes of a column of labels, as canonical texts: whole numbers in their order, then other texts."""
    return tuple(sorted({text for text in target.texts() if text is not None}, key=_number_key))


def _number_key(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


@dataclass(frozen=True, eq=False, repr=False)
class RowForm:
    """The form of rows: "schema", "frame", "numbers", "sparse" or "objects", and the public rows in it.

    Attributes:
        kind: the form.
        public: the public rows, as the transformer was fitted to them.
        numeric: which columns of a frame are numbers.
        shape: the shape of one row, for other forms than frames.
    """

    kind: str
    public: Any
    numeric: Mapping[str, bool]
    shape: tuple[int, ...]

    def rows(self, raw: Any, argument: str) -> tuple[Any, Bools]:
        """Return rows in this form, and which of them are unreadable; no content of a row raises."""
        bad = np.zeros(row_count(raw, argument), dtype=bool)
        if self.kind == "frame":
            table = as_columns(raw) if is_frame(raw) else self._columns(raw, argument)
            return table.to_pandas(self.numeric), table.unreadable(self.numeric)
        if self.kind == "objects" and not is_frame(raw):
            return as_rows(raw, self.shape), bad
        if is_sparse(raw) and self.kind == "sparse":
            return raw.tocsr(), bad
        if is_frame(raw):
            table = as_columns(raw)
            numbers = np.stack([table.finite(name) for name in table.columns], axis=1)
        elif is_numeric(raw):
            numbers = as_numbers(raw, argument)
        else:
            numbers = np.full((len(bad), *self.shape), np.nan)
            for place, row in enumerate(raw):
                cells = row_numbers(row)
                bad[place] = cells.shape != self.shape
                if not bad[place]:
                    numbers[place] = cells
        if numbers.shape[1:] != self.shape:
            raise DpvalueError(f"{argument} must have rows of shape {self.shape}, got {numbers.shape[1:]}")
        bad |= np.asarray(
            np.isinf(numbers.reshape(len(bad), -1)).any(axis=1)
        )  # which a transformer may turn into a number
        if self.kind == "sparse":
            from scipy.sparse import csr_matrix

            return csr_matrix(numbers), bad
        return numbers, bad

    def _columns(self, raw: Any, argument: str) -> Columns:
        """Rows without column names as columns of the public frame, by position."""
        rows = as_rows(raw, (len(self.numeric),))
        if len(rows.shape) != 2 or rows.shape[1] != len(self.numeric):
            raise DpvalueError(f"{argument} must have rows of shape {(len(self.numeric),)}, got {rows.shape[1:]}")
        cells = np.asarray(rows.toarray() if is_sparse(rows) else rows)
        return Columns({name: of_array(cells[:, place]) for place, name in enumerate(self.numeric)})

    def fill_bad(self, rows: Any, bad: Bools) -> Any:
        """Return rows in which a public row replaces each bad row."""
        if not bad.any():
            return rows
        other = take_rows(self.public, [0])
        if self.kind == "frame":
            import pandas as pd

            return pd.DataFrame(
                {name: _replace_cells(rows[name].to_numpy(), bad, other[name].iloc[0]) for name in rows.columns}
            )
        if is_sparse(rows):
            from scipy.sparse import vstack

            return vstack([other if is_bad else rows[[place]] for place, is_bad in enumerate(bad)]).tocsr()
        return _replace_cells(rows, bad, other[0])


def _replace_cells(cells: Any, bad: Bools, other: Any) -> Any:
    cells_filled = cells.copy()
    cells_filled[bad] = other
    return cells_filled


def find_row_form(features: Any, is_schema: bool) -> RowForm:
    """Return the form of a public set, with its rows in that form."""
    if is_frame(features):
        table = as_columns(features)
        numeric = table.is_numeric()
        return RowForm(
            "schema" if is_schema else "frame", table if is_schema else table.to_pandas(numeric), numeric, ()
        )
    if is_sparse(features):
        return RowForm("sparse", features.tocsr(), {}, tuple(features.shape[1:]))
    rows = as_numbers(features, "utility features") if is_numeric(features) else as_rows(features)
    try:
        rows = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):  # texts among them
        return RowForm("objects", rows, {}, tuple(rows.shape[1:]))
    return RowForm("numbers", rows, {}, tuple(rows.shape[1:]))
