"""Private files, read by a public schema: features as numbers, labels, and the cells of other columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Array, Floats
from dpvalue.data.columns import Column, Columns
from dpvalue.data.files import read_private
from dpvalue.data.schema import Schema
from dpvalue.models import CLASSIFICATION


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Piece:
    """Some records of a private file: features as numbers (NaN for a bad record), labels, and all cells read."""

    features: Floats
    labels: Array
    columns: Columns


def read_encoded(
    path: Path, schema: Schema, target: str, task: str, others: Sequence[str] = (), kept: Any = np.float64
) -> Iterator[Piece]:
    """Yield the records of a private file, each read and encoded alone, a block of them at once.

    Args:
        path: the file.
        schema: which columns become numbers, and how.
        target: the column of labels.
        task: "classification" or "regression".
        others: more columns to read.
        kept: in which kind of floats the numbers are kept, beside which no cell is.
    """
    names = list(dict.fromkeys([*schema.names, target, *others]))
    for block in read_private(path, names):
        features = schema.transform(block.columns)
        features[block.bad] = np.nan
        with np.errstate(all="ignore"):  # nothing may be said of a private cell
            numbers = features.astype(kept, copy=False)
        yield Piece(numbers, read_labels(block.columns[target], task), block.columns)


def read_labels(column: Column, task: str) -> Array:
    """Return labels as canonical texts, or as numbers for regression; NaN (None) for what is none."""
    if task == CLASSIFICATION:
        return column.texts()
    numbers = column.numbers()
    numbers[np.isinf(numbers)] = np.nan
    return numbers
