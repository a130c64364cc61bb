"""What a transformer was fitted to: in which form it gets rows, by what the public set was.

A public frame of numbers and texts, an array of numbers, or objects: private rows come in the same form, cell by cell,
whatever they were handed over as.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpvalue.arrays import Bools
from dpvalue.data.columns import Columns, is_frame
from dpvalue.data.conversions import as_columns, of_array
from dpvalue.data.raw import as_numbers, as_rows, is_numeric, is_sparse, row_count, row_numbers, take_rows
from dpvalue.errors import DpvalueError


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """The form of rows: "schema", "frame", "numbers", "sparse" or "objects", and the public rows in it.

    Attributes:
        kind: the form.
        public: the public rows, as the transformer was fitted to them.
        numeric: which columns of a frame are numbers.
        shape: of one row that is no frame's.
    """

    kind: str
    public: Any
    numeric: Mapping[str, bool]
    shape: tuple[int, ...]

    def rows(self, raw: Any, argument: str) -> tuple[Any, Bools]:
        """Return rows in this form, and which of them cannot be read; nothing is raised for what one holds."""
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
        """Rows without names as columns of the public frame, by their places."""
        rows = as_rows(raw, (len(self.numeric),))
        if len(rows.shape) != 2 or rows.shape[1] != len(self.numeric):
            raise DpvalueError(f"{argument} must have rows of shape {(len(self.numeric),)}, got {rows.shape[1:]}")
        cells = np.asarray(rows.toarray() if is_sparse(rows) else rows)
        return Columns({name: of_array(cells[:, place]) for place, name in enumerate(self.numeric)})

    def filled(self, rows: Any, bad: Bools) -> Any:
        """Return rows with a public one in the place of each bad one."""
        if not bad.any():
            return rows
        other = take_rows(self.public, [0])
        if self.kind == "frame":
            import pandas as pd

            return pd.DataFrame({name: _put(rows[name].to_numpy(), bad, other[name].iloc[0]) for name in rows.columns})
        if is_sparse(rows):
            from scipy.sparse import vstack

            return vstack([other if gone else rows[[place]] for place, gone in enumerate(bad)]).tocsr()
        return _put(rows, bad, other[0])


def _put(cells: Any, bad: Bools, other: Any) -> Any:
    filled = cells.copy()
    filled[bad] = other
    return filled


def fitted_to(features: Any, is_schema: bool) -> Fitted:
    """Return the form of a public set, and its rows in it."""
    if is_frame(features):
        table = as_columns(features)
        numeric = table.is_numeric()
        return Fitted("schema" if is_schema else "frame", table if is_schema else table.to_pandas(numeric), numeric, ())
    if is_sparse(features):
        return Fitted("sparse", features.tocsr(), {}, tuple(features.shape[1:]))
    rows = as_numbers(features, "utility features") if is_numeric(features) else as_rows(features)
    try:
        rows = np.asarray(rows, dtype=np.float64)
    except (TypeError, ValueError):  # texts among them
        return Fitted("objects", rows, {}, tuple(rows.shape[1:]))
    return Fitted("numbers", rows, {}, tuple(rows.shape[1:]))
