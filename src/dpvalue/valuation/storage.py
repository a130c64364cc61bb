"""Saved tables and results: one safetensors file with a JSON header; never pickle, never a row of any data set.

The header carries a format version and a digest over itself and every tensor, so that a truncated, altered or foreign
file is refused with one clear line. It is no signature: whoever can write the file can make a new digest. The same
table makes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.data.encoding import Encoding
from dpvalue.durable import write_whole
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.models import KINDS, ModelFactory
from dpvalue.planning.projection import Projection
from dpvalue.privacy.budget import Guarantee
from dpvalue.releasing.schedule import Schedule
from dpvalue.stored import OBJECT, parse_json
from dpvalue.valuation.estimates import FIELDS, Estimate
from dpvalue.valuation.result import Result
from dpvalue.valuation.saved import DTYPES, check_saved
from dpvalue.valuation.semivalues import Semivalue, semivalue
from dpvalue.valuation.table import Table

FORMAT_VERSION = 5


def save_table(table: Table, path: Path) -> None:
    """Write a table."""
    _write(path, *_table_parts(table))


def save_result(result: Result, path: Path) -> None:
    """Write a result with its table."""
    header, tensors = _table_parts(result.table)
    header["result"] = {
        "semivalues": [one.name for one in result.semivalues],
        "walks": result.walks,
        "converged": result.converged,
        "engine": {"dtype": str(result.engine.torch_dtype).removeprefix("torch.")},
    }
    for number, one in enumerate(result.semivalues):
        for field in FIELDS:
            tensors[f"{field}.{number}"] = torch.from_numpy(getattr(result.estimates[one.name], field))
    _write(path, header, tensors)


def load(path: str | Path, model: ModelFactory | None = None, preprocess: Any = None) -> Result | Table:
    """Read back what `Result.save` or `Table.save` wrote.

    Args:
        path: the file.
        model: the factory of a custom model, which files do not hold; its digest is checked when it is used.
        preprocess: the transformer of the run, if it had one, fitted to the public features of the run; needed to value
            on raw public rows. What preprocess="columns" and `dpvalue run` used is in the file.
    """
    header, tensors = _read(Path(path))
    try:
        check_saved(header, tensors)
    except DpvalueError as error:  # a header that nothing of ours has written
        raise DpvalueError(f"{str(path)!r} is not a whole dpvalue file: {error}") from None
    return _loaded(header, tensors, model, preprocess)


def _loaded(
    header: dict[str, Any], tensors: dict[str, Tensor], model: ModelFactory | None, preprocess: Any
) -> Result | Table:
    table = _table(header, tensors, model, preprocess)
    if "result" not in header:
        return table
    found = header["result"]
    kinds = tuple(_named(name) for name in found["semivalues"])
    estimates = {
        one.name: Estimate(**{field: tensors[f"{field}.{number}"].numpy() for field in FIELDS})
        for number, one in enumerate(kinds)
    }
    engine = Local(dtype=found["engine"]["dtype"])  # device, threads and memory are for the machine at hand
    return Result(table, kinds, estimates, found["walks"], found["converged"], None, engine)


def _table_parts(table: Table) -> tuple[dict[str, Any], dict[str, Tensor]]:
    encoding = {
        "task": table.encoding.task,
        "classes": table.encoding.classes,
        "shape": table.encoding.shape,
        "columns": table.encoding.columns,
        "preprocessed": table.encoding.preprocessed,
        "schema": table.encoding.schema,
    }
    header = {
        "names": table.names,
        "guarantee": asdict(table.guarantee),
        "projection": None if table.projection is None else asdict(table.projection),
        "expected_auc": table.expected_auc,
        "learning_rate": table.learning_rate,
        "model": table.model if isinstance(table.model, str) else "custom",
        "digest": table.digest,
        "encoding": encoding,
        "schedule": asdict(table.schedule),
        "permutations": table.permutations,
        "seed": table.seed,
    }
    tensors = {"rows": table.rows, "initial": table.initial, "noise_std": torch.from_numpy(table.noise_std)}
    if table.basis is not None:
        tensors["basis"] = table.basis
    return header, tensors


def _table(header: dict[str, Any], tensors: dict[str, Tensor], model: ModelFactory | None, preprocess: Any) -> Table:
    named = header["model"] in KINDS
    if named and model is not None:
        raise DpvalueError(f"model must not be given: the file was made with the model {header['model']!r}")
    stored = header["encoding"]
    if preprocess is not None and not stored["preprocessed"]:
        raise DpvalueError("preprocess must not be given: the file was made without one")
    if stored["schema"] is not None:
        if preprocess is not None:
            raise DpvalueError("preprocess must not be given: the file holds its own, made from the public columns")
        from dpvalue.data.schema import Schema

        preprocess = Schema.from_json(stored["schema"])
    encoding = Encoding(
        stored["task"],
        tuple(stored["classes"]),
        tuple(stored["shape"]),
        None if stored["columns"] is None else tuple(stored["columns"]),
        stored["preprocessed"],
        preprocess,
    )
    return Table(
        rows=tensors["rows"],
        names=tuple(header["names"]),
        noise_std=tensors["noise_std"].numpy(),
        guarantee=Guarantee(**header["guarantee"]),
        initial=tensors["initial"],
        basis=tensors.get("basis"),
        projection=None if header["projection"] is None else Projection(**header["projection"]),
        expected_auc=header["expected_auc"],
        learning_rate=header["learning_rate"],
        model=header["model"] if named else model,
        digest=header["digest"],
        encoding=encoding,
        schedule=Schedule(**header["schedule"]),
        permutations=header["permutations"],
        seed=header["seed"],
    )


def _named(name: str) -> Semivalue:
    """The semivalue of this name; a custom one keeps its values, but its weights are not in the file."""
    try:
        return semivalue(name)
    except DpvalueError:
        return Semivalue(name, _missing_weights)


def _missing_weights(n: int) -> Floats:
    raise DpvalueError("the weights of a custom semivalue are not in the file: pass the Semivalue again to revalue")


def _write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # One entry: several would be written in any order.
    whole = {"format": FORMAT_VERSION, "digest": _digest(header, tensors), "header": header}
    metadata = {"dpvalue": _as_text(whole)}
    write_whole(path, save(tensors, metadata))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise DpvalueError(f"path must be a file written by save, got {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            foreign = sorted(set(kinds.values()) - set(DTYPES))
            tensors = {} if foreign else {name: file.get_tensor(name) for name in kinds}
    except (SafetensorError, OSError) as error:
        raise DpvalueError(f"{str(path)!r} is not a dpvalue file, or is truncated: {error}") from None
    if foreign:
        raise DpvalueError(
            f"{str(path)!r} is not a dpvalue file: its tensors must be {', '.join(DTYPES)}, got {foreign[0]}"
        )
    stored = parse_json(metadata.get("dpvalue", "{}"), repr(str(path)))
    OBJECT(f"the header of {str(path)!r}", stored)
    if stored.get("format") != FORMAT_VERSION:
        raise DpvalueError(
            f"{str(path)!r} must have dpvalue format {FORMAT_VERSION}, got {stored.get('format', 'none')}"
        )
    header = stored.get("header")
    if not isinstance(header, dict) or _digest(header, tensors) != stored.get("digest"):
        raise DpvalueError(f"{str(path)!r} has been altered: its digest does not match")
    return header, tensors


def _as_text(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, default=lambda number: number.item())  # NumPy's numbers


def _digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    hasher = hashlib.sha256(_as_text(header).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(np.ascontiguousarray(tensor.numpy()).tobytes())
    return hasher.hexdigest()
