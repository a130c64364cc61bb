"""Private files, read by a public schema: features as numbers, labels, and the cells of other columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

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


def read_encoded(path: Path, schema: Schema, target: str, task: str, others: Sequence[str] = ()) -> Iterator[Piece]:
    """Yield the records of a private file, each read and encoded alone; `others` are more columns to read."""
    names = list(dict.fromkeys([*schema.names, target, *others]))
    for block in read_private(path, names):
        features = schema.transform(block.columns)
        features[block.bad] = np.nan
        yield Piece(features, read_labels(block.columns[target], task), block.columns)


def read_labels(column: Column, task: str) -> Array:
    """Return labels as canonical texts, or as numbers for regression; NaN (None) for what is none."""
    if task == CLASSIFICATION:
        return column.texts()
    numbers = column.numbers()
    numbers[np.isinf(numbers)] = np.nan
    return numbers
