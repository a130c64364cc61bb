"""The file of a table or a result: safetensors with a JSON header; never pickle, never a row of any data set.

The header carries a format version and a digest over itself and every tensor, so that a truncated, altered or foreign
file is refused with one clear line. It is no signature: whoever can write the file can make a new digest. The same
parts make the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.durable import write_whole
from dpvalue.errors import DpvalueError
from dpvalue.stored import OBJECT, parse_json

FORMAT_VERSION = 5
DTYPES = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}
Parts = tuple[dict[str, Any], dict[str, Tensor]]
"""A header and tensors."""


def write(path: Path, header: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file, whole or not at all."""
    from safetensors.torch import save

    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    # One entry: several would be written in any order.
    whole = {"format": FORMAT_VERSION, "digest": _digest(header, tensors), "header": header}
    metadata = {"dpvalue": _as_text(whole)}
    write_whole(path, save(tensors, metadata))


def read(path: Path) -> Parts:
    """Return what a file holds; that it is whole says nothing of what its header claims."""
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
