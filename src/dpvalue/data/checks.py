"""Checks that public and private rows are distinct, and lists of unusable private rows for their holder.

The checks of distinctness compare files and memory, never cells: whether a private row also appears in another public
file is private. `dpvalue check` tells it to the holder of the rows. Such a row is not protected.

Unusable rows contribute zero to a release and are not reported. Only their holder may list them: the functions that
return a `Problem` read private rows and add no noise. No run, plan or report calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from dpvalue.arrays import Array, Ints
from dpvalue.data.columns import Column, Columns, is_frame
from dpvalue.data.conversions import as_column, as_columns
from dpvalue.data.encoding import EncodedRows, Encoding
from dpvalue.data.raw import DatasetRows, is_sparse, label_column, row_count
from dpvalue.errors import DpvalueError
from dpvalue.models import CLASSIFICATION

if TYPE_CHECKING:
    from dpvalue.data.parties import Parties
    from dpvalue.data.utility import Utility

_ADVICE = "public rows are not protected"


def require_other_file(private: Iterable[str | Path], public: str | Path) -> None:
    """Raise if the public file is one of the private files, also by another path or link."""
    for path in map(Path, private):
        if is_same_file(path, Path(public)):
            raise DpvalueError(f"the public file must differ from the private file {path}: {_ADVICE}")


def is_same_file(path: Path, other: Path) -> bool:
    """Return whether two paths lead to the same file."""
    try:
        return path.resolve() == other.resolve() or path.samefile(other)
    except (OSError, RuntimeError, ValueError):  # one is not there, goes round in links, or is no path
        return False


def require_other_rows(parties: Parties, utility: Utility) -> None:
    """Raise if public rows or labels are the same object as private ones, or share memory with them."""
    ours = [part.dataset if isinstance(part, DatasetRows) else part for part in (parties.source, parties.X, parties.y)]
    theirs = [utility.source, utility.X, utility.y]
    same = any(one is not None and one is other for one, other in product(ours, theirs))
    same = same or bool(_listed(ours) & _listed(theirs))
    arrays = [[array for part in parts for array in _arrays(part)] for parts in (ours, theirs)]
    if same or any(starmap(_shares_dataset, product(ours, theirs))) or _share_memory(*arrays):
        raise DpvalueError(f"the public rows must differ from the private rows, got the same memory: {_ADVICE}")


def _listed(parts: list[Any]) -> set[int]:
    """Which rows stand in lists: each is an object of its own, unlike a number or a text."""
    lists = [part for part in parts if isinstance(part, list | tuple)]
    return {id(row) for part in lists for row in part if isinstance(row, list | dict | np.ndarray | Tensor)}


def _shares_dataset(dataset: Any, other: Any) -> bool:
    """Whether two torch Datasets are subsets of one dataset and have an item in common."""
    if not isinstance(dataset, Dataset) or not isinstance(other, Dataset):
        return False
    (base, items), (other_base, other_items) = _base_dataset(dataset), _base_dataset(other)
    if base is not other_base:
        return False
    return items is None or other_items is None or bool(np.intersect1d(items, other_items).size)


def _base_dataset(dataset: Any) -> tuple[Any, Array | None]:
    """The dataset under nested subsets, and the positions of the subset's items in it; None for all items."""
    items: Array | None = None
    while isinstance(dataset, Subset):
        own = np.asarray(dataset.indices, dtype=np.int64)
        items, dataset = own if items is None else own[items], dataset.dataset
    return dataset, items


def _arrays(part: Any) -> Iterator[Array | Tensor]:
    """The arrays and tensors that back an object, without a copy."""
    if isinstance(part, np.ndarray):
        yield part
    elif isinstance(part, Tensor):
        yield from _of_tensor(part)
    elif isinstance(part, TensorDataset):
        for tensor in part.tensors:
            yield from _of_tensor(tensor)
    elif isinstance(part, EncodedRows):
        yield part.numbers
    elif isinstance(part, Column):
        yield from _of_column(part)
    elif isinstance(part, Columns):
        for column in part.by_name.values():
            yield from _of_column(column)
    elif hasattr(part, "iloc"):  # of pandas
        frame = part.to_frame() if hasattr(part, "to_frame") else part
        for place in range(frame.shape[1]):
            series = frame.iloc[:, place]
            if isinstance(series.dtype, np.dtype):
                yield series.to_numpy()
    elif hasattr(part, "is_null") and hasattr(part, "to_list"):  # a series of polars
        yield from _of_column(as_column(part))
    elif is_frame(part):
        yield from _arrays(as_columns(part))
    elif isinstance(getattr(part, "data", None), np.ndarray):  # a sparse matrix of scipy
        yield part.data


def _of_column(column: Column) -> Iterator[Array]:
    if isinstance(column.cells, np.ndarray):
        yield column.cells


def _of_tensor(tensor: Tensor) -> Iterator[Array | Tensor]:
    """A tensor, as a NumPy array where that needs no copy."""
    if tensor.layout is torch.strided:
        whole = tensor.detach()
        yield whole if whole.device.type != "cpu" or whole.dtype is torch.bfloat16 else whole.numpy()


def _share_memory(ours: list[Array | Tensor], theirs: list[Array | Tensor]) -> bool:
    """Whether an array of the first list shares a byte with an array of the second list."""
    spans = sorted(
        (*_span(array), side, place)
        for side, arrays in enumerate((ours, theirs))
        for place, array in enumerate(arrays)
        if _span(array)[0] < _span(array)[1]
    )
    open_spans: tuple[list[tuple[int, int]], ...] = ([], [])
    for low, high, side, place in spans:
        other = open_spans[1 - side]
        other[:] = [(end, index) for end, index in other if end > low]
        mine = (ours, theirs)[side][place]
        if any(_meet(mine, (ours, theirs)[1 - side][index]) for _, index in other):
            return True
        open_spans[side].append((high, place))
    return False


def _span(array: Array | Tensor) -> tuple[int, int]:
    """The first and the end address of an array in memory."""
    if isinstance(array, np.ndarray):
        return np.lib.array_utils.byte_bounds(array) if array.size else (0, 0)
    if not array.numel():
        return 0, 0
    last = sum((size - 1) * step for size, step in zip(array.shape, array.stride(), strict=True))
    return array.data_ptr(), array.data_ptr() + (last + 1) * array.element_size()


def _meet(array: Array | Tensor, other: Array | Tensor) -> bool:
    """Whether two arrays with overlapping ranges share a byte; for tensors on another device the ranges decide."""
    if isinstance(array, np.ndarray) and isinstance(other, np.ndarray):
        return np.shares_memory(array, other)
    return isinstance(array, Tensor) and isinstance(other, Tensor) and array.device == other.device


@dataclass(frozen=True)
class Problem:
    """A reason why a row is unusable; the row contributes zero.

    Attributes:
        row: position of the row, from 0.
        column: name or number of the column; "label", "group" or "person" for these.
        what: the reason.

    Example:
        >>> print(Problem(row=2, column="age", what="not a finite number"))
        row 2, age: not a finite number
    """

    row: int
    column: str
    what: str

    def __str__(self) -> str:
        return f"row {self.row}, {self.column}: {self.what}"


def feature_problems(raw: Any, encoding: Encoding) -> list[Problem]:
    """Return the rows with unusable features, with the first unusable column where it is known."""
    raw = as_columns(raw) if is_frame(raw) else raw
    numbers = _single(encoding.features(raw, "parties' features")).reshape(row_count(raw, "rows"), -1)
    bad = ~np.asarray(np.isfinite(numbers).all(axis=1))
    what = "not a finite number" if encoding.preprocess is None else "cannot be read, or preprocess does not take it"
    return [Problem(int(row), _column(raw, int(row), encoding), what) for row in np.flatnonzero(bad)]


def _column(raw: Any, row: int, encoding: Encoding) -> str:
    """The first column of a row without a finite number where the public set has numbers."""
    if is_frame(raw):
        table = as_columns(raw).take([row])
        numeric = encoding.row_form.numeric if encoding.row_form else dict.fromkeys(table.columns, True)
        if hasattr(encoding.preprocess, "unreadable"):
            names = [name for name, cells in encoding.preprocess.unreadable(table).items() if cells.any()]
        else:
            names = [
                name for name in table.columns if numeric[name] and not np.isfinite(_single(table[name].numbers()))[0]
            ]
        return names[0] if names else "features"
    if encoding.preprocess is None and not is_sparse(raw):
        numbers = _single(encoding.features(raw[row : row + 1], "parties' features")).reshape(-1)
        return f"feature {int(np.flatnonzero(~np.isfinite(numbers))[0])}"
    return "features"


def _single(numbers: Array) -> Array:
    """Numbers in single precision, the engine's default, in which a finite double may be infinite."""
    with np.errstate(all="ignore"):
        return numbers.astype(np.float32)


def label_problems(raw: Any, encoding: Encoding) -> list[Problem]:
    """Return the rows whose label is missing or not a label of the public set."""
    labels = encoding.labels(raw, "parties' labels")
    missing = label_column(raw, "parties' labels").missing_cells()
    bad = labels < 0 if encoding.task == CLASSIFICATION else ~np.isfinite(_single(labels))
    other = "not among the classes of the public set" if encoding.task == CLASSIFICATION else "not a finite number"
    return [Problem(int(row), "label", "missing" if missing[row] else other) for row in np.flatnonzero(bad)]


def owner_problems(party: Ints, person: Ints | None) -> list[Problem]:
    """Return the rows without a party, and the rows without a person."""
    problems = [Problem(int(row), "group", "missing") for row in np.flatnonzero(party < 0)]
    if person is not None:
        text = "no id: missing, or a float of 2^53 or more"
        problems += [Problem(int(row), "person", text) for row in np.flatnonzero(person < 0)]
    return problems
