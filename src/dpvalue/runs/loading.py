"""Load saved tables and results, after checking the content of the file.

The writer of a file can compute its digest, so a correct digest does not vouch for the header.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.data.encoding import check_encoding, encoding_from_json
from dpvalue.engine.engines import Local
from dpvalue.errors import DpvalueError
from dpvalue.games.estimates import FIELDS, Estimate
from dpvalue.games.semivalues import Semivalue, semivalue
from dpvalue.methods.base import Method, method_named
from dpvalue.methods.table import Origin
from dpvalue.models import KINDS, ModelFactory
from dpvalue.privacy.guarantees import Guarantee, check_guarantee
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.schedule import Schedule
from dpvalue.stored import (
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    POSITIVE,
    TEXT,
    WHOLE,
    Check,
    build,
    choice_of,
    fields,
    is_whole,
    list_of,
    must_be,
    optional,
    read,
)
from dpvalue.values.result import Result
from dpvalue.values.table import METHOD, PLAIN, Table

_FLOATS = (torch.float32, torch.float64)


def check_saved(header: Any, tensors: dict[str, Tensor]) -> Method:
    """Return the method of a table; raise unless header and tensors form a valid table or result."""
    OBJECT("its header", header)
    _TABLE("", header)
    n, basis = len(header["names"]), tensors.get("basis")
    initial = _tensor(tensors, "initial", _FLOATS, (None,))
    width = len(initial) if basis is None else len(_tensor(tensors, "basis", _FLOATS, (None, len(initial))))
    method_header = header["method"]
    payload = {name.removeprefix(METHOD): part for name, part in tensors.items() if name.startswith(METHOD)}
    method = method_named(method_header["name"]).from_parts(method_header, payload, initial, basis)
    _tensor(tensors, "rows", _FLOATS, (n, method.statistic.width(width)))
    _tensor(tensors, "noise_std", (torch.float64,), (n,))
    if (_tensor(tensors, "sizes", (torch.int64,), (n,)) < 0).any():
        raise DpvalueError("the tensor 'sizes' must hold whole numbers of at least 0")
    method.require_parties(n)
    if "result" in header:
        fields(result=_RESULT)("", header)
        for number in range(len(header["result"]["semivalues"])):
            for field in FIELDS:
                kind = torch.int64 if field == "counts" else torch.float64
                _tensor(tensors, f"{field}.{number}", (kind,), (n,))
    return method


def _tensor(
    tensors: dict[str, Tensor], name: str, kinds: tuple[torch.dtype, ...], shape: tuple[int | None, ...]
) -> Tensor:
    """The tensor of a name; None in a shape stands for any size but 0."""
    if name not in tensors:
        raise DpvalueError(f"the tensor {name!r} is missing")
    tensor = tensors[name]
    fits = tensor.dim() == len(shape) and all(
        size == expected or (expected is None and size > 0) for size, expected in zip(tensor.shape, shape, strict=True)
    )
    if not fits or tensor.dtype not in kinds:
        expected = tuple("any" if size is None else size for size in shape)
        types = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
        raise DpvalueError(
            f"the tensor {name!r} must be {types} of shape {expected}, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    return tensor


def _describes(kind: Callable[..., object]) -> Check:
    """A check that the fields construct a valid object."""

    def check(name: str, stored: Any) -> None:
        build(kind, name, stored)

    return check


_TABLE = fields(
    names=list_of(
        must_be("a text or a whole number", lambda found: isinstance(found, str) or is_whole(found)), least=1
    ),
    guarantee=check_guarantee,
    expected_auc=optional(NUMBER),
    learning_rate=POSITIVE,
    model=TEXT,
    digest=TEXT,
    encoding=check_encoding,
    schedule=_describes(Schedule),
    method=fields(name=TEXT),
    permutations=COUNT,
    seed=WHOLE,
)

_RESULT = fields(
    semivalues=list_of(TEXT, least=1),
    walks=WHOLE,
    converged=optional(FLAG),
    engine=fields(dtype=choice_of(("float32", "float64"))),
)


def load(path: str | Path, model: ModelFactory | None = None, preprocess: Any = None) -> Result | Table:
    """Read back what `Result.save` or `Table.save` wrote.

    Args:
        path: the file.
        model: the factory of a custom model, which files do not hold; its digest is checked when it is used.
        preprocess: the transformer of the run, if it had one, fitted to the public features of the run; needed to value
            on raw public rows. What preprocess="columns" and `dpvalue run` used is in the file.

    Returns:
        a `Result` if the file holds values, else a `Table`.

    Raises:
        DpvalueError: a file that is missing, damaged, of another format, or of another model.

    Example:
        >>> result.save("values.safetensors")  # `result` as in the example of `dpvalue.Result`
        >>> len(load("values.safetensors"))
        4
    """
    header, tensors = Table.archive.read(Path(path))
    table = table_of_parts(header, tensors, repr(str(path)), model, preprocess)
    if "result" not in header:
        return table
    header_of_result = header["result"]
    kinds = tuple(_semivalue_named(name) for name in header_of_result["semivalues"])
    estimates = {
        kind.name: Estimate(**{field: tensors[f"{field}.{number}"].numpy() for field in FIELDS})
        for number, kind in enumerate(kinds)
    }
    engine = Local(dtype=header_of_result["engine"]["dtype"])  # device, threads and memory are for the machine at hand
    return Result(table, kinds, estimates, header_of_result["walks"], header_of_result["converged"], None, engine)


def table_of_parts(
    header: dict[str, Any], tensors: Tensors, source: str, model: ModelFactory | None = None, preprocess: Any = None
) -> Table:
    """Return the table that a header and tensors hold, checked; `source` names them in errors."""
    try:
        method = check_saved(header, tensors)
    except DpvalueError as error:  # a header that this library did not write
        raise DpvalueError(f"{source} is not a whole dpvalue file: {error}") from None
    is_named = header["model"] in KINDS
    if is_named and model is not None:
        raise DpvalueError(f"model must not be given: the file was made with the model {header['model']!r}")
    schedule = Schedule(**header["schedule"])
    return Table(
        **{name: header[name] for name in PLAIN} | {"names": tuple(header["names"])},
        rows=tensors["rows"],
        noise_std=tensors["noise_std"].numpy(),
        guarantee=read(Guarantee, header["guarantee"]),
        initial=tensors["initial"],
        basis=tensors.get("basis"),
        model=header["model"] if is_named else model,
        encoding=encoding_from_json(header["encoding"], preprocess),
        origin=Origin(schedule, header["permutations"], header["expected_auc"], tensors["sizes"].numpy()),
        method=method,
    )


def _semivalue_named(name: str) -> Semivalue:
    """The semivalue of a name; a custom one keeps its values, but files do not hold its weights."""
    try:
        return semivalue(name)
    except DpvalueError:
        return Semivalue(name, _missing_weights)


def _missing_weights(n: int) -> Floats:
    raise DpvalueError("the weights of a custom semivalue are not in the file: pass the Semivalue again to revalue")
