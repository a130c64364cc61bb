"""What is wrong with private rows: a list for whoever holds them, and for nobody else.

Rows that cannot be used contribute nothing to a release, unreported. This is the other half of that rule: the holder
may ask. What it returns is computed from private rows without any noise, so no run, plan or report calls it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpvalue.arrays import Array, Ints
from dpvalue.data.columns import is_frame
from dpvalue.data.conversions import as_columns
from dpvalue.data.encoding import Encoding
from dpvalue.data.raw import is_sparse, label_column, row_count
from dpvalue.models import CLASSIFICATION


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one row, which therefore contributes nothing.

    Attributes:
        row: its position, from 0.
        column: the name (or number) of the column; "label", "group" or "person" where that is what is wrong.
        what: what is wrong with it.

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
    """Return the rows whose features cannot be used, with the first column that is to blame where that can be told."""
    raw = as_columns(raw) if is_frame(raw) else raw
    numbers = _single(encoding.features(raw, "parties' features")).reshape(row_count(raw, "rows"), -1)
    bad = ~np.asarray(np.isfinite(numbers).all(axis=1))
    what = "not a finite number" if encoding.preprocess is None else "cannot be read, or preprocess does not take it"
    return [Problem(int(row), _column(raw, int(row), encoding), what) for row in np.flatnonzero(bad)]


def _column(raw: Any, row: int, encoding: Encoding) -> str:
    """The first column of a row that is not a finite number where the public set has numbers."""
    if is_frame(raw):
        table = as_columns(raw).take([row])
        numeric = encoding.fitted.numeric if encoding.fitted else dict.fromkeys(table.columns, True)
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
    """Numbers as the engine holds them by default: what is finite as a double may not be so in single precision."""
    with np.errstate(all="ignore"):
        return numbers.astype(np.float32)


def label_problems(raw: Any, encoding: Encoding) -> list[Problem]:
    """Return the rows whose label is missing, or none of the public set's."""
    labels = encoding.labels(raw, "parties' labels")
    missing = label_column(raw, "parties' labels").lacking()
    bad = labels < 0 if encoding.task == CLASSIFICATION else ~np.isfinite(_single(labels))
    other = "not among the classes of the public set" if encoding.task == CLASSIFICATION else "not a finite number"
    return [Problem(int(row), "label", "missing" if missing[row] else other) for row in np.flatnonzero(bad)]


def owner_problems(party: Ints, person: Ints | None) -> list[Problem]:
    """Return the rows of no party, and of no person."""
    problems = [Problem(int(row), "group", "missing") for row in np.flatnonzero(party < 0)]
    if person is not None:
        text = "no id: missing, or a float of 2^53 or more"
        problems += [Problem(int(row), "person", text) for row in np.flatnonzero(person < 0)]
    return problems
