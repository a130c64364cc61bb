"""How raw features and labels become numbers: fixed by the public set alone, then applied to everyone.

Classes, columns, shapes and the fit of `preprocess` come from the public (utility) set. Private rows are only
transformed; an error about one names its position, never its content.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.models import CLASSIFICATION

Array = NDArray[Any]


@dataclass(frozen=True)
class Encoding:
    """The numeric form of rows: the task, the classes (in order), the shape of a row, the columns of a frame.

    `preprocess` is a fitted transformer, or None; `preprocessed` says that there was one even when a saved file, which
    cannot hold it, has been loaded without it.
    """

    task: str
    classes: tuple[Any, ...]
    shape: tuple[int, ...]
    columns: tuple[str, ...] | None = None
    preprocessed: bool = False
    preprocess: Any = None

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: classes, or 1."""
        return len(self.classes) if self.task == CLASSIFICATION else 1

    def features(self, raw: Any, argument: str) -> Array:
        """Return raw features as numbers (rows, *shape); `argument` names them in errors."""
        columns = column_names(raw)
        if columns is not None and self.columns is not None and columns != self.columns:
            raise DpvalueError(f"{argument} must have the columns of the public set, {self.columns}; got {columns}")
        if self.preprocessed and self.preprocess is None:
            raise DpvalueError(
                f"{argument} needs the transformer that the run used, which a saved file cannot hold: "
                "pass the fitted one to load(path, preprocess=...)"
            )
        numbers = as_numbers(raw if self.preprocess is None else self._transform(raw, argument), argument)
        if len(self.shape) == 3 and numbers.ndim == 3:
            numbers = numbers[:, None]  # images without a channel
        if numbers.shape[1:] != self.shape:
            raise DpvalueError(f"{argument} must have rows of shape {self.shape}, got {numbers.shape[1:]}")
        finite = np.asarray(np.isfinite(numbers.reshape(len(numbers), -1)).all(axis=1))
        refuse_rows(~finite, argument, "features must be finite")
        return numbers

    def _transform(self, raw: Any, argument: str) -> Any:
        """Apply the transformer; whatever it says of the rows it says to nobody, as they may be private."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                transformed = self.preprocess.transform(raw)
            except DpvalueError:  # of our own: it quotes no row
                raise
            except Exception as error:  # a transformer may raise anything, with cells of the rows in its message
                reason = f"{type(error).__name__}; its message is withheld, as it may quote a row"
                raise DpvalueError(f"{argument}: preprocess cannot transform them ({reason})") from None
        if row_count(transformed, argument) != row_count(raw, argument):
            raise DpvalueError(f"{argument}: preprocess must return one row per row, but dropped or added some")
        return transformed

    def labels(self, raw: Any, argument: str) -> Array:
        """Return raw labels as class numbers, or as real numbers for regression."""
        y = as_labels(raw, argument)
        if self.task != CLASSIFICATION:
            numbers = as_numbers(y, argument)
            refuse_rows(~np.isfinite(numbers), argument, "labels must be finite")
            return numbers
        numbers = np.zeros(len(y), dtype=np.int64)
        known = np.zeros(len(y), dtype=bool)
        for number, label in enumerate(self.classes):
            match = y == label
            numbers[match] = number
            known |= match
        refuse_rows(~known, argument, "labels must be among the classes of the public set")
        return numbers


def fit_encoding(features: Any, labels: Any, task: str, preprocess: Any, images: bool = False) -> Encoding:
    """Return the encoding of a public set.

    Args:
        features: the raw features of the public set.
        labels: its labels; they fix the classes.
        task: "classification" or "regression".
        preprocess: a scikit-learn transformer, of which a clone is fitted to the public features, "columns" for what
            the columns of a frame call for, or None.
        images: whether rows of shape (height, width) are images that get a channel.
    """
    y = as_labels(labels, "utility labels")
    if isinstance(preprocess, str):
        preprocess = _by_columns(preprocess, features)
    fitted = None if preprocess is None else _fit_row_wise(preprocess, features)
    numbers = as_numbers(features if fitted is None else fitted.transform(features), "utility features")
    if numbers.ndim < 2:
        raise DpvalueError(f"utility features must have shape (rows, features), got {numbers.shape}")
    shape = (1, *numbers.shape[1:]) if images and numbers.ndim == 3 else numbers.shape[1:]
    classes: tuple[Any, ...] = ()
    if task == CLASSIFICATION:
        try:
            classes = tuple(np.unique(y).tolist())
        except TypeError:
            raise DpvalueError("utility labels must be of one type, got a mixture") from None
        if len(classes) < 2:
            raise DpvalueError(f"utility labels must hold at least 2 classes, got {len(classes)}")
    return Encoding(task, classes, shape, column_names(features), fitted is not None, fitted)


def _by_columns(preprocess: str, features: Any) -> Any:
    """The transformer of numeric and text columns; for frames."""
    if preprocess != "columns":
        raise DpvalueError(f"preprocess must be a scikit-learn transformer, 'columns' or None; got {preprocess!r}")
    if not hasattr(features, "columns"):
        raise DpvalueError("preprocess='columns' is for frames, got utility features without columns")
    from dpvalue.tabular.schema import Schema

    return Schema()


def _fit_row_wise(preprocess: Any, features: Any) -> Any:
    """Return a clone of the transformer, fitted to the public features; refuse one that mixes rows.

    A row that moves other rows would move other parties' releases, which no clipping bounds. Tried on public rows.
    """
    if not hasattr(preprocess, "fit") or not hasattr(preprocess, "transform"):
        raise DpvalueError(f"preprocess must be a scikit-learn transformer, got {type(preprocess).__name__}")
    from sklearn.base import clone

    fitted = clone(preprocess).fit(features)
    some = np.linspace(0, row_count(features, "utility features") - 1, 8).astype(int)
    together = as_numbers(fitted.transform(take_rows(features, some)), "utility features")
    alone = [as_numbers(fitted.transform(take_rows(features, [row])), "utility features") for row in some]
    same_shape = all(one.shape == together[:1].shape for one in alone) and len(together) == len(some)
    if not same_shape or not np.allclose(np.concatenate(alone), together, equal_nan=True):
        raise DpvalueError(
            "preprocess must transform each row on its own: it gives other numbers for a row alone than among others, "
            "so one party's data would move other parties' releases"
        )
    return fitted


def take_rows(raw: Any, rows: Any) -> Any:
    """Return some rows of an array, tensor or frame, by position."""
    return raw.iloc[rows] if hasattr(raw, "iloc") else raw[rows]


def join_rows(parts: list[Any]) -> Any:
    """Return the rows of several arrays, or of several frames, after each other."""
    if hasattr(parts[0], "columns"):
        import pandas

        return pandas.concat(parts, ignore_index=True)
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
    return tuple(map(str, raw.columns)) if hasattr(raw, "columns") else None


def as_numbers(raw: Any, argument: str) -> Array:
    """Return `raw` as an array of float64; text and objects are refused."""
    if hasattr(raw, "toarray"):  # scipy's sparse matrices, which encoders return
        raw = raw.toarray()
    if isinstance(raw, Tensor):
        raw = raw.detach().cpu().to(torch.float64)
    try:
        return np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError):
        raise DpvalueError(f"{argument} must be numbers; encode text and categories with preprocess=") from None


def as_labels(raw: Any, argument: str) -> Array:
    """Return labels as a flat array."""
    try:
        y = np.asarray(raw.detach().cpu() if isinstance(raw, Tensor) else raw)
    except ValueError:
        raise DpvalueError(f"{argument} must be one label per row, got a ragged list") from None
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise DpvalueError(f"{argument} must be one label per row, got shape {y.shape}")
    return y


def refuse_rows(bad: NDArray[np.bool_], argument: str, allowed: str) -> None:
    """Raise if any row is bad, naming the first positions and nothing of the rows."""
    if bad.any():
        where = np.flatnonzero(bad)
        shown = ", ".join(map(str, where[:5])) + (", ..." if len(where) > 5 else "")
        raise DpvalueError(f"{argument}: {allowed}; not so at row(s) {shown} ({len(where)} of {len(bad)})")
