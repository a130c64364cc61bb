"""Raw rows and labels of a caller: arrays, tensors, frames, sparse matrices, lists, torch Datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Bools
from dpvalue.data.cells import number
from dpvalue.data.columns import Column, Columns, concatenate, is_frame
from dpvalue.data.conversions import as_column, as_columns
from dpvalue.errors import DpvalueError


def take_rows(raw: Any, rows: Any) -> Any:
    """Return the rows of an array, tensor or frame at these positions."""
    if isinstance(raw, Columns):
        return raw.take(rows)
    return raw.iloc[rows] if hasattr(raw, "iloc") else raw[rows]


def join_rows(parts: list[Any]) -> Any:
    """Return the rows of several arrays, or of several frames, concatenated; for public rows."""
    if is_frame(parts[0]):
        return concatenate([as_columns(part) for part in parts])
    return np.concatenate([as_numbers(part, "rows") for part in parts])


def row_count(data: Any, argument: str) -> int:
    """Return the number of rows of an array, tensor, frame, sparse matrix or list."""
    shape = getattr(data, "shape", None)
    if shape is not None and len(shape):
        return int(shape[0])
    try:
        return len(data)
    except TypeError:
        raise DpvalueError(f"{argument} must have rows, got {type(data).__name__}") from None


def column_names(raw: Any) -> tuple[str, ...] | None:
    """Return the column names of a frame, None for anything else."""
    return tuple(map(str, raw.columns)) if is_frame(raw) else None


def as_rows(raw: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return rows that can be indexed: a list becomes an array of its cells, unchanged.

    A row of another shape than the public `shape` (default: that of the first row) is empty.
    """
    if not isinstance(raw, list | tuple):
        return raw
    cells = [_cells(row) for row in raw]
    shape = cells[0].shape if shape is None and cells else shape or ()
    rows = np.empty((len(raw), *shape), dtype=object)
    for place, row in enumerate(cells):
        if row.shape == shape:
            rows[place] = row
    return rows


def _cells(row: Any) -> Array:
    """One row as an array of its cells; an empty array if the row has no shape."""
    try:
        return np.asarray(row, dtype=object)
    except (TypeError, ValueError, RuntimeError):  # of several shapes, or a tensor that cannot be one
        return np.empty(0, dtype=object)


def is_sparse(raw: Any) -> bool:
    """Return whether rows are a scipy sparse matrix."""
    return hasattr(raw, "toarray") and hasattr(raw, "tocsr")


def is_numeric(raw: Any) -> bool:
    """Return whether rows are a tensor, a sparse matrix or an array of numbers."""
    if isinstance(raw, Tensor):
        return not raw.is_complex()
    return (is_sparse(raw) or isinstance(raw, np.ndarray)) and raw.dtype.kind in "biuf"


def row_numbers(row: Any) -> Array:
    """Return one row as numbers; NaN for a cell that is not a number."""
    if isinstance(row, Tensor):
        try:
            row = row.detach().cpu().to_dense() if row.is_sparse else row.detach().cpu()
            return np.full(1, np.nan) if row.is_complex() else row.to(torch.float64).numpy()
        except (RuntimeError, TypeError, NotImplementedError):  # one without storage, or of a kind without numbers
            return np.full(1, np.nan)
    if is_numeric(row):
        return as_numbers(row, "")
    cells = _cells(row)
    numbers = np.array([number(cell) for cell in cells.ravel()], dtype=np.float64).reshape(cells.shape)
    return np.where(np.isinf(numbers), np.nan, numbers)


def as_numbers(raw: Any, argument: str) -> Array:
    """Return numeric or public rows as an array of float64; raise for texts and objects."""
    if hasattr(raw, "toarray"):  # scipy's sparse matrices, which encoders return
        raw = raw.toarray()
    if isinstance(raw, Tensor):
        raw = raw.detach().cpu().to(torch.float64)
    try:
        with np.errstate(all="ignore"):  # a private cell must not warn
            return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise DpvalueError(f"{argument} must be numbers; encode text and categories with preprocess=") from None


def label_column(raw: Any, argument: str) -> Column:
    """Return labels or ids as a column of cells, one per row."""
    if isinstance(raw, DatasetLabels):
        return as_column(raw.cells())
    shape = getattr(raw, "shape", None)
    if shape is not None and len(shape) == 2 and shape[1] == 1 and not isinstance(raw, Column):
        raw = raw.iloc[:, 0] if hasattr(raw, "iloc") else raw[:, 0]
        shape = shape[:1]
    if shape is not None and len(shape) != 1:
        raise DpvalueError(f"{argument} must be one label per row, got shape {tuple(shape)}")
    if shape is None and not hasattr(raw, "__len__"):
        raise DpvalueError(f"{argument} must be one label per row, got {type(raw).__name__}")
    return as_column(raw)


def are_floats(raw: Any) -> bool:
    """Return whether public labels are stored as floating point numbers."""
    cells = label_column(raw, "utility labels").cells
    if isinstance(cells, np.ndarray):
        return cells.dtype.kind == "f"
    return any(isinstance(cell, float) for cell in cells) and not any(isinstance(cell, str) for cell in cells)


def refuse_rows(bad: Bools, argument: str, allowed: str) -> None:
    """Raise if any row of a public set is bad; the error names the first positions."""
    if bad.any():
        where = np.flatnonzero(bad)
        shown = ", ".join(map(str, where[:5])) + (", ..." if len(where) > 5 else "")
        raise DpvalueError(f"{argument}: {allowed}; violated in {len(where)} of {len(bad)} rows: {shown}")


def features_and_labels(data: Any, target: str | None, argument: str) -> tuple[Any, Any]:
    """Return X and y of (X, y), of a DataFrame with `target`, or of a torch Dataset."""
    if is_frame(data):
        if target is None:
            raise DpvalueError(f"{argument} is a DataFrame: name its label column with target=")
        table = as_columns(data)
        return table.without(target), take_column(table, target, "target")
    if isinstance(data, torch.utils.data.Dataset):
        rows = DatasetRows(data, row_count(data, argument))
        if argument == "parties":
            return rows, DatasetLabels(rows)
        X = np.stack([row_numbers(x) for piece in rows.pieces(1) for x in piece])
        return X, rows.labels()
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise DpvalueError(
        f"{argument} must be (X, y), a DataFrame with target=, or a torch Dataset; got {type(data).__name__}"
    )


class DatasetRows:
    """The rows of a torch Dataset, read on demand; only labels are kept.

    Items are read one by one, so that an item of another type does not change the others.
    """

    stays_in_process: ClassVar[bool] = True

    def __init__(self, dataset: Any, count: int) -> None:
        self.dataset, self._count = dataset, count
        self._labels: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"DatasetRows({self._count} rows)"

    def __getitem__(self, rows: slice) -> list[Any]:
        return [self._item(place)[0] for place in range(self._count)[rows]]

    def pieces(self, size: int) -> Iterator[list[Any]]:
        """Yield the features of all items, `size` at a time; keeps their labels."""
        labels: list[Any] = []
        for first in range(0, self._count, size):
            items = [self._item(place) for place in range(first, min(first + size, self._count))]
            labels += [_scalar(label) for _, label in items]
            yield [features for features, _ in items]
        self._labels = labels

    def labels(self) -> list[Any]:
        """Return the labels; reads all items if they have not been read yet."""
        if self._labels is None:
            for _ in self.pieces(1):
                pass
        assert self._labels is not None
        return self._labels

    def _item(self, place: int) -> tuple[Any, Any]:
        item = self.dataset[place]
        return (item[0], item[1]) if isinstance(item, tuple | list) and len(item) == 2 else (None, None)


class DatasetLabels:
    """The labels of a torch Dataset, available once its rows have been read."""

    stays_in_process: ClassVar[bool] = True

    def __init__(self, rows: DatasetRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def cells(self) -> list[Any]:
        """Return the labels."""
        return self._rows.labels()


def label_count(raw: Any, argument: str) -> int:
    """Return the number of labels or ids."""
    return len(raw) if isinstance(raw, DatasetLabels) else len(label_column(raw, argument))


def _scalar(label: Any) -> Any:
    """A label of a Dataset, unpacked from a tensor or array of one number."""
    if isinstance(label, Tensor):
        numbers = row_numbers(label)
        whole = not label.is_floating_point() and numbers.size == 1 and np.isfinite(numbers).all()
        return int(numbers.item()) if whole else (numbers.item() if numbers.size == 1 else None)
    return label.item() if isinstance(label, np.ndarray) and label.size == 1 else label


def take_column(table: Columns, column: str, argument: str) -> Column:
    """Return a column of a table."""
    if column not in table.columns:
        raise DpvalueError(f"{argument} must be one of the columns {list(table.columns)}, got {column!r}")
    return table[column]
