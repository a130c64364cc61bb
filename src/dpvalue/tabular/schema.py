"""From columns to numbers, by what the public file shows: its columns, its categories, its means.

A numeric column is centred and scaled by the public mean and standard deviation; a missing number counts as the public
median. A text column becomes one column of zeros and ones for each category of the public file; a category that is not
there, and a missing cell, are zeros in all of them. Nothing is learnt from private rows, and nothing that is in one of
their cells can be seen in an error: at most the name of its column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin

from dpvalue.errors import DpvalueError
from dpvalue.semivalues import Floats

MOST_CATEGORIES = 50
MOST_CLASSES = 20


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: what a missing one counts as, and how the column is centred and scaled."""

    name: str
    missing: float
    mean: float
    scale: float

    def encode(self, column: Any) -> Floats:
        """Return the column, scaled (rows, 1); whatever is not a number is missing."""
        found = numbers(column)
        if np.isinf(found).any():
            where = int(np.isinf(found).argmax())
            raise DpvalueError(f"the column {self.name!r} holds infinite values; the first is at row {where}")
        filled = np.where(np.isnan(found), self.missing, found)
        scaled: Floats = ((filled - self.mean) / self.scale)[:, None]
        return scaled


@dataclass(frozen=True)
class Categorical:
    """A column of categories."""

    name: str
    categories: tuple[str, ...]

    def encode(self, column: Any) -> Floats:
        """Return a column of zeros and ones for each category (rows, categories)."""
        text = texts(column)
        return np.stack([text == category for category in self.categories], axis=1).astype(np.float64)


class Schema(BaseEstimator, TransformerMixin):  # type: ignore[misc]
    """A scikit-learn transformer of frames, fitted to public rows; transforms each row on its own.

    Formal guarantee: `transform` of a row depends on that row and on the public frame that it was fitted to.
    """

    def fit(self, frame: pd.DataFrame, y: Any = None) -> Schema:
        """Learn columns, categories, means and scales from a public frame."""
        self.columns_ = [_column(frame, str(name)) for name in frame.columns]
        if not self.columns_:
            raise DpvalueError("the public file has no column but the target")
        return self

    def transform(self, frame: pd.DataFrame) -> Floats:
        """Return the rows of a frame as numbers."""
        return np.concatenate([column.encode(frame[column.name]) for column in self.columns_], axis=1)

    def to_json(self) -> list[dict[str, Any]]:
        """Return what was learnt, as plain values."""
        return [asdict(column) for column in self.columns_]

    @classmethod
    def from_json(cls, columns: list[dict[str, Any]]) -> Schema:
        """Return the schema that `to_json` describes."""
        schema = cls()
        schema.columns_ = [
            Categorical(one["name"], tuple(one["categories"])) if "categories" in one else Numeric(**one)
            for one in columns
        ]
        return schema

    def __str__(self) -> str:
        numeric = sum(isinstance(column, Numeric) for column in self.columns_)
        return f"{numeric} numeric and {len(self.columns_) - numeric} categorical columns"


def _column(frame: pd.DataFrame, name: str) -> Numeric | Categorical:
    column = frame[name]
    if pd.api.types.is_bool_dtype(column.dtype) or pd.api.types.is_numeric_dtype(column.dtype):
        found = numbers(column)
        if np.isinf(found).any():
            raise DpvalueError(f"the column {name!r} of the public file holds infinite values")
        known = found[~np.isnan(found)]
        missing = float(np.median(known)) if len(known) else 0.0
        filled = np.where(np.isnan(found), missing, found)
        return Numeric(name, missing, float(filled.mean()), float(filled.std()) or 1.0)
    categories = sorted(text for text in set(texts(column)) if text)
    if len(categories) > MOST_CATEGORIES:
        raise DpvalueError(
            f"the column {name!r} holds {len(categories)} different texts in the public file, too many for categories: "
            f"leave it out with --drop {name}"
        )
    return Categorical(name, tuple(categories) or ("",))


def texts(column: Any) -> Any:
    """Return a column as texts without blanks around them; None for what is missing."""
    return column.astype("string").str.strip().to_numpy(dtype=object, na_value=None)


def numbers(column: Any) -> Any:
    """Return a column as numbers; NaN for what is not one."""
    return pd.to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def label_kind(target: Any, task: str) -> Callable[[Any], Any]:
    """Return how labels are read: as numbers, or as texts, whichever those of the public file are."""
    is_number = pd.api.types.is_numeric_dtype(target.dtype) and not pd.api.types.is_bool_dtype(target.dtype)
    return numbers if task == "regression" or is_number else texts


def infer_task(target: Any) -> str:
    """Return "regression" for numbers with fractions or with more than 20 different values, else "classification"."""
    if pd.api.types.is_bool_dtype(target.dtype) or not pd.api.types.is_numeric_dtype(target.dtype):
        return "classification"
    found = numbers(target)
    found = found[~np.isnan(found)]
    whole = bool((found == np.rint(found)).all())
    return "classification" if whole and len(np.unique(found)) <= MOST_CLASSES else "regression"
