"""An encoding in a file: what of it can be written, and what must be there to read it."""

from __future__ import annotations

from math import prod
from typing import Any

from dpvalue.data.encoding import Encoding
from dpvalue.data.schema import Schema
from dpvalue.errors import DpvalueError
from dpvalue.models import CLASSIFICATION, REGRESSION
from dpvalue.stored import COUNT, FLAG, SCHEMA, TEXT, each, fields, maybe, must_be, one_of

_FIELDS = ("task", "classes", "shape", "columns", "preprocessed", "schema")
_MOST_NUMBERS = 2**28  # of a row of features, of which one is made before the model can say that it is too large
_CHECK = fields(
    task=one_of((CLASSIFICATION, REGRESSION)),
    classes=each(must_be("a label", lambda label: isinstance(label, str | int | float))),
    shape=each(COUNT, least=1),
    columns=maybe(each(TEXT)),
    preprocessed=FLAG,
    schema=maybe(SCHEMA),
)


def encoding_to_json(encoding: Encoding) -> dict[str, Any]:
    """Return an encoding as plain values; of a transformer that is not ours, only that there is one."""
    return {name: getattr(encoding, name) for name in _FIELDS}


def check_encoding(name: str, stored: Any) -> None:
    """Raise unless something stored describes an encoding."""
    _CHECK(name, stored)
    if prod(stored["shape"]) > _MOST_NUMBERS:
        raise DpvalueError(f"{name}.shape must be of at most {_MOST_NUMBERS} numbers, got more")
    if stored["schema"] is not None and not stored["preprocessed"]:
        raise DpvalueError(f"{name}.schema must be null where nothing was preprocessed")


def encoding_from_json(stored: dict[str, Any], preprocess: Any = None) -> Encoding:
    """Return the encoding that checked plain values describe; `preprocess` is a fitted transformer that is not ours."""
    if preprocess is not None and not stored["preprocessed"]:
        raise DpvalueError("preprocess must not be given: the file was made without one")
    if stored["schema"] is not None:
        if preprocess is not None:
            raise DpvalueError("preprocess must not be given: the file holds its own, made from the public columns")
        preprocess = Schema.from_json(stored["schema"])
    columns = None if stored["columns"] is None else tuple(stored["columns"])
    shape, classes = tuple(stored["shape"]), tuple(stored["classes"])
    return Encoding(stored["task"], classes, shape, columns, stored["preprocessed"], preprocess)
