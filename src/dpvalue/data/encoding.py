"""Encoding of raw features and labels as numbers: fitted to the public set, applied to each row alone.

Classes, columns, shapes and the fit of `preprocess` come from the public (utility) set. The encoding of a private row
is a function of that row and of these. An unreadable row becomes NaN (its label -1 or NaN) and is not reported.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from dpvalue.arrays import Array, Bools
from dpvalue.data.cells import index_of, text
from dpvalue.data.columns import Column, Columns, is_frame
from dpvalue.data.conversions import as_columns
from dpvalue.data.raw import (
    DatasetRows,
    as_numbers,
    column_names,
    is_numeric,
    label_column,
    row_count,
    row_numbers,
    take_rows,
)
from dpvalue.data.schema import PREPROCESSORS, RowForm, Schema, find_row_form, make_schema
from dpvalue.errors import DpvalueError
from dpvalue.models import CLASSIFICATION, REGRESSION
from dpvalue.stored import COUNT, FLAG, SCHEMA, TEXT, choice_of, fields, list_of, must_be, optional

_SAMPLE = 16

_BLOCK = 64

_PIECE = 16 * _BLOCK  # rows of a Dataset, whose blocks are those of all its rows


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class EncodedRows:
    """Rows that a fitted transformer encoded while the file was read; no cell of the file is kept."""

    numbers: Array
    transformer: Any

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class Encoding:
    """The numeric form of rows: the task, the classes (in order), the shape of a row, the columns of a frame.

    `preprocess` is a fitted transformer, or None. `preprocessed` is True if the run had one; a file cannot hold a
    transformer of scikit-learn, so a loaded encoding may lack it. `row_form` is the form of rows it was fitted to.
    """

    task: str
    classes: tuple[Any, ...]
    shape: tuple[int, ...]
    columns: tuple[str, ...] | None = None
    preprocessed: bool = False
    preprocess: Any = None
    row_form: RowForm | None = None

    @property
    def schema(self) -> list[dict[str, Any]] | None:
        """The fitted values of a `Schema`; None for any other transformer, which a file cannot hold."""
        return self.preprocess.to_json() if isinstance(self.preprocess, Schema) else None

    @property
    def by_columns(self) -> bool:
        """Whether the transformer is a `Schema`."""
        return isinstance(self.preprocess, Schema)

    @property
    def outputs(self) -> int:
        """The number of outputs of a model: classes, or 1."""
        return len(self.classes) if self.task == CLASSIFICATION else 1

    def features(self, raw: Any, argument: str, positions_public: bool = True, dtype: Any = np.float64) -> Array:
        """Return raw features as numbers (rows, *shape); `argument` names them in errors.

        Rows of a torch Dataset are read and encoded in pieces and stored as `dtype`.

        Formal guarantee: row i of the result is a function of row i and of public values; no content of a row raises
        or warns. An unreadable row is NaN. With a transformer, the number of rows and the position of a row count as
        public, unless `positions_public` is False: then every row is transformed alone.
        """
        if isinstance(raw, EncodedRows):
            if raw.transformer.to_json() != self.schema:
                raise DpvalueError(f"{argument} must be encoded with this public set, got rows encoded with another")
            return raw.numbers
        if isinstance(raw, DatasetRows):
            return self._encode_in_pieces(raw, argument, positions_public, dtype)
        columns = column_names(raw)
        if columns is not None and self.columns is not None and columns != self.columns:
            raise DpvalueError(f"{argument} must have the columns of the public set, {self.columns}; got {columns}")
        if self.preprocessed and self.preprocess is None:
            raise DpvalueError(
                f"{argument} needs the transformer that the run used, which a saved file cannot hold: "
                "pass the fitted one (fit it to the public features of the run) to load(path, preprocess=...)"
            )
        numbers = (
            self._encode_plain(raw) if self.preprocess is None else self._transform(raw, argument, positions_public)
        )
        if numbers.shape[1:] != self.shape:
            raise DpvalueError(f"{argument} must have rows of shape {self.shape}, got {numbers.shape[1:]}")
        return numbers

    def _encode_in_pieces(self, raw: DatasetRows, argument: str, positions_public: bool, dtype: Any) -> Array:
        """Rows of a torch Dataset as numbers; holds one piece of raw rows at a time."""
        encoded = np.empty((len(raw), *self.shape), dtype=dtype)
        first = 0
        for piece in raw.pieces(_PIECE):
            with np.errstate(all="ignore"):  # a private cell must not warn
                encoded[first : first + len(piece)] = self.features(piece, argument, positions_public)
            first += len(piece)
        return encoded

    def _encode_plain(self, raw: Any) -> Array:
        """Rows as numbers without a transformer."""
        if is_frame(raw):
            table = as_columns(raw)
            return np.stack([table.finite(name) for name in table.columns], axis=1)
        if is_numeric(raw):
            return self._with_channel(as_numbers(raw, ""))
        channel = self.shape[1:] if len(self.shape) == 3 else None
        encoded = np.full((row_count(raw, ""), *self.shape), np.nan)
        for place, row in enumerate(raw):
            numbers = row_numbers(row)
            if numbers.shape in (self.shape, channel):  # images may come without a channel
                encoded[place] = numbers
        return encoded

    def _with_channel(self, numbers: Array) -> Array:
        return numbers[:, None] if len(self.shape) == 3 and numbers.ndim == 3 else numbers  # images without a channel

    def _transform(self, raw: Any, argument: str, positions_public: bool) -> Array:
        """Apply the transformer and discard its warnings and errors, which may quote private rows.

        Rows are transformed in blocks of a fixed size. A rejected row is replaced by a public one, so it changes
        neither the numbers of other rows nor the order of sums. `Schema` reads each cell alone.
        """
        count = row_count(raw, argument)
        if self.by_columns:
            if not is_frame(raw):
                raise DpvalueError(f"{argument} must be a frame with the columns of the public set")
            return as_numbers(self.preprocess.transform(as_columns(raw)), argument)
        if self.row_form is None:  # a loaded file's: its rows are public, and may raise
            table = as_columns(raw).to_pandas(as_columns(raw).is_numeric()) if is_frame(raw) else raw
            return self._with_channel(as_numbers(self.preprocess.transform(table), argument))
        rows, bad = self.row_form.rows(raw, argument)
        size = _BLOCK if positions_public and self.row_form.kind != "objects" else 1
        encoded = np.full((count, *self.shape), np.nan)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for first in range(0, count, size):
                block = np.arange(first, min(first + size, count))
                encoded[block] = self._transform_block(take_rows(rows, block), bad[block])
        return encoded

    def _transform_block(self, rows: Any, bad: Bools) -> Array:
        """The transformed rows; NaN for rows that are bad or that the transformer rejects."""
        assert self.row_form is not None
        nothing = np.full((1, *self.shape), np.nan)
        encoded = self._try_transform(self.row_form.fill_bad(rows, bad), len(bad))
        if encoded is None:
            alone = [
                self._try_transform(self.row_form.fill_bad(take_rows(rows, [at]), bad[[at]]), 1)
                for at in range(len(bad))
            ]
            bad = bad | np.array([row is None for row in alone])
            encoded = self._try_transform(self.row_form.fill_bad(rows, bad), len(bad))
            if encoded is None:  # it accepts each row alone, but not all together
                encoded = np.concatenate([nothing if row is None else row for row in alone])
        return np.where(bad.reshape(-1, *[1] * len(self.shape)), np.nan, encoded)

    def _try_transform(self, rows: Any, count: int) -> Array | None:
        """The transformed rows; None if the transformer rejects them or returns another shape."""
        try:
            encoded = self._with_channel(as_numbers(self.preprocess.transform(rows), ""))
        except Exception:  # a transformer may raise anything, and its message may quote a row
            return None
        return encoded if encoded.shape == (count, *self.shape) else None

    def labels(self, raw: Any, argument: str) -> Array:
        """Return raw labels as class numbers, -1 for an unknown one; for regression as real numbers, NaN for others.

        Formal guarantee: label i of the result is a function of label i and of public values.
        """
        column = label_column(raw, argument)
        if self.task != CLASSIFICATION:
            numbers = column.numbers()
            numbers[np.isinf(numbers)] = np.nan
            return numbers
        place = index_of(self.classes)
        return np.array([place.get(label, -1) for label in column.texts()], dtype=np.int64)


def fit_encoding(
    features: Any, labels: Any, task: str, preprocess: Any, images: bool = False, classes: Any = None
) -> Encoding:
    """Return the encoding of a public set.

    Args:
        features: the raw features of the public set.
        labels: its labels; they fix the classes.
        task: "classification" or "regression".
        preprocess: a scikit-learn transformer, a clone of which is fitted to the public features; for frames also
            "columns" or "numbers" (`dpvalue.data.schema`); or None.
        images: whether rows of shape (height, width) are images that get a channel.
        classes: all classes, if the public set lacks some; None: the classes of the public labels.
    """
    y = label_column(labels, "utility labels")
    if isinstance(preprocess, str):
        preprocess = _by_columns(preprocess, features)
    row_form, transformer = None, None
    rows: Any = features
    if preprocess is not None:
        row_form = find_row_form(features, is_schema=isinstance(preprocess, Schema))
        rows = row_form.public
        transformer = _fit_row_wise(preprocess, rows)
    elif is_frame(features):
        rows = _numeric_frame(as_columns(features))
    numbers = as_numbers(rows if transformer is None else transformer.transform(rows), "utility features")
    if numbers.ndim < 2:
        raise DpvalueError(f"utility features must have shape (rows, features), got {numbers.shape}")
    shape = (1, *numbers.shape[1:]) if images and numbers.ndim == 3 else numbers.shape[1:]
    class_names: tuple[Any, ...] = ()
    if task == CLASSIFICATION:
        class_names = _classes(y, classes)
    elif classes is not None:
        raise DpvalueError("classes must not be given for regression: its labels are numbers")
    return Encoding(task, class_names, shape, column_names(features), transformer is not None, transformer, row_form)


def _classes(y: Column, names: Any) -> tuple[Any, ...]:
    """The classes that the caller names, else the classes of the public labels."""
    if names is None:
        try:
            labels = np.unique(np.asarray(y.cells)) if isinstance(y.cells, np.ndarray) else sorted(set(y.cells))
        except TypeError:
            raise DpvalueError("utility labels must be of one type, got a mixture") from None
        classes = tuple(labels.tolist() if isinstance(labels, np.ndarray) else labels)
    else:
        classes = tuple(names)
        unknown = sorted({str(label) for label in y.texts()} - set(index_of(classes)))
        if unknown:
            raise DpvalueError(f"classes must hold all labels of the public set; {unknown[0]!r} is missing")
    if len({text(label) for label in classes}) != len(classes):
        raise DpvalueError("classes must differ in canonical form, where 1, 1.0 and '1' are equal")
    if len(classes) < 2:
        raise DpvalueError(f"utility labels must hold at least 2 classes, got {len(classes)}")
    return classes


def _numeric_frame(table: Columns) -> Array:
    """The numbers of a public frame without a transformer; raises for a column of texts."""
    texts = [name for name, numeric in table.is_numeric().items() if not numeric]
    if texts:
        raise DpvalueError("utility features must be numbers; encode text and categories with preprocess=")
    return np.stack([table[name].numbers() for name in table.columns], axis=1)


def _by_columns(preprocess: str, features: Any) -> Any:
    """The transformer of numeric and text columns; for frames."""
    if preprocess not in PREPROCESSORS:
        names = ", ".join(PREPROCESSORS)
        raise DpvalueError(f"preprocess must be {names}, a scikit-learn transformer or None; got {preprocess!r}")
    if not is_frame(features):
        raise DpvalueError(f"preprocess={preprocess!r} is for frames, got utility features without columns")
    return make_schema(preprocess)


def _fit_row_wise(preprocess: Any, rows: Any) -> Any:
    """Return a clone of the transformer, fitted to public rows; raise if it mixes rows.

    A row that changes the encoding of other rows would change other parties' releases, which clipping does not bound.
    The check runs on public rows.
    """
    if not hasattr(preprocess, "fit") or not hasattr(preprocess, "transform"):
        raise DpvalueError(f"preprocess must be a scikit-learn transformer, got {type(preprocess).__name__}")
    if isinstance(preprocess, Schema):  # our own, which reads each cell alone; a run from files has fitted it to these
        return preprocess if preprocess.is_fitted else Schema(preprocess.scaled).fit(rows)
    from sklearn.base import clone

    fitted = clone(preprocess).fit(rows)
    count = row_count(rows, "utility features")
    sample = np.linspace(0, count - 1, min(_SAMPLE, count)).astype(int)
    together = as_numbers(fitted.transform(take_rows(rows, sample)), "utility features")
    alone = [as_numbers(fitted.transform(take_rows(rows, [row])), "utility features") for row in sample]
    same_shape = all(numbers.shape == together[:1].shape for numbers in alone) and len(together) == len(sample)
    if not same_shape or not np.allclose(np.concatenate(alone), together, equal_nan=True):
        raise DpvalueError(
            "preprocess must transform each row on its own: its output for a row depends on the other rows, "
            "so one party's data would change the releases of others"
        )
    return fitted


_FIELDS = ("task", "classes", "shape", "columns", "preprocessed", "schema")

_MOST_NUMBERS = 2**28  # of a row of features; one row is allocated before the model can reject the shape

_CHECK = fields(
    task=choice_of((CLASSIFICATION, REGRESSION)),
    classes=list_of(must_be("a label", lambda label: isinstance(label, str | int | float))),
    shape=list_of(COUNT, least=1),
    columns=optional(list_of(TEXT)),
    preprocessed=FLAG,
    schema=optional(SCHEMA),
)


def encoding_to_json(encoding: Encoding) -> dict[str, Any]:
    """Return an encoding as plain values; of a transformer of scikit-learn, only that there is one."""
    return {name: getattr(encoding, name) for name in _FIELDS}


def check_encoding(name: str, stored: Any) -> None:
    """Raise unless stored values describe an encoding."""
    _CHECK(name, stored)
    if prod(stored["shape"]) > _MOST_NUMBERS:
        raise DpvalueError(f"{name}.shape must be of at most {_MOST_NUMBERS} numbers, got more")
    if stored["schema"] is not None and not stored["preprocessed"]:
        raise DpvalueError(f"{name}.schema must be null where nothing was preprocessed")


def encoding_from_json(stored: dict[str, Any], preprocess: Any = None) -> Encoding:
    """Return the encoding of checked plain values; `preprocess` is a fitted transformer that a file cannot hold."""
    if preprocess is not None and not stored["preprocessed"]:
        raise DpvalueError("preprocess must not be given: the file was made without one")
    if stored["schema"] is not None:
        if preprocess is not None:
            raise DpvalueError("preprocess must not be given: the file holds its own, made from the public columns")
        preprocess = Schema.from_json(stored["schema"])
    columns = None if stored["columns"] is None else tuple(stored["columns"])
    shape, classes = tuple(stored["shape"]), tuple(stored["classes"])
    return Encoding(stored["task"], classes, shape, columns, stored["preprocessed"], preprocess)
