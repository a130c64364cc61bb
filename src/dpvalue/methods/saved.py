"""What a saved table or result must hold: one description, checked before anything is made of a file.

Whoever can write a file can make its digest, so a right digest says nothing of what the header claims.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from dpvalue.data.stored_encoding import check_encoding
from dpvalue.errors import DpvalueError
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Guarantee
from dpvalue.privacy.laws import LAWS
from dpvalue.releasing.schedule import Schedule
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
    each,
    fields,
    is_number,
    is_whole,
    maybe,
    must_be,
    one_of,
)
from dpvalue.valuation.estimates import FIELDS
from dpvalue.valuation.method import Method, method_named
from dpvalue.valuation.table import METHOD

_FLOATS = (torch.float32, torch.float64)


def check_saved(header: Any, tensors: dict[str, Tensor]) -> Method:
    """Return the method of a table; raise unless header and tensors are one, or a result, and all fits together."""
    OBJECT("its header", header)
    _TABLE("", header)
    n, basis = len(header["names"]), tensors.get("basis")
    initial = _tensor(tensors, "initial", _FLOATS, (None,))
    width = len(initial) if basis is None else len(_tensor(tensors, "basis", _FLOATS, (None, len(initial))))
    stored = header["method"]
    payload = {name.removeprefix(METHOD): part for name, part in tensors.items() if name.startswith(METHOD)}
    method = method_named(stored["name"]).of_parts(stored, payload, initial, basis)
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


def check_guarantee(name: str, stored: Any) -> None:
    """Raise unless something stored describes a guarantee."""
    if stored != asdict(Guarantee()):  # as it is without privacy
        _SPENT(name, stored)


def _tensor(
    tensors: dict[str, Tensor], name: str, kinds: tuple[torch.dtype, ...], shape: tuple[int | None, ...]
) -> Tensor:
    """The tensor of a name; None in a shape stands for any size but 0."""
    if name not in tensors:
        raise DpvalueError(f"the tensor {name!r} is missing")
    tensor = tensors[name]
    fits = tensor.dim() == len(shape) and all(
        size == wanted or (wanted is None and size > 0) for size, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not fits or tensor.dtype not in kinds:
        wanted = tuple("any" if size is None else size for size in shape)
        types = " or ".join(str(kind).removeprefix("torch.") for kind in kinds)
        raise DpvalueError(
            f"the tensor {name!r} must be {types} of shape {wanted}, got {tensor.dtype} of {tuple(tensor.shape)}"
        )
    return tensor


def _describes(kind: Callable[..., object]) -> Check:
    """A check that fields describe a value that checks itself."""

    def check(name: str, stored: Any) -> None:
        build(kind, name, stored)

    return check


_SPENT = fields(
    unit=one_of(UNITS),
    neighbours=one_of(NEIGHBOURS),
    epsilon=POSITIVE,
    delta=must_be("at least 0 and below 1", lambda stored: is_number(stored) and 0 <= stored < 1),
    mu=maybe(POSITIVE),
    claimed_epsilon=maybe(POSITIVE),
    advantage=NUMBER,
    mechanism=lambda name, found: one_of(map(str.capitalize, LAWS))(name, found),  # of those registered by now
    releases=COUNT,
    parties_per_person=COUNT,
    noise=fields(multiplier=POSITIVE, clip=POSITIVE, simulation=FLAG),
    charged=fields(ledger=maybe(TEXT), returned=maybe(TEXT), parties=maybe(TEXT), person=maybe(TEXT)),
)
_TABLE = fields(
    names=each(must_be("a text or a whole number", lambda found: isinstance(found, str) or is_whole(found)), least=1),
    guarantee=check_guarantee,
    expected_auc=maybe(NUMBER),
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
    semivalues=each(TEXT, least=1),
    walks=WHOLE,
    converged=maybe(FLAG),
    engine=fields(dtype=one_of(("float32", "float64"))),
)
