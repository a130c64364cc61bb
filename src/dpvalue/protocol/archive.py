"""Files of tensors with a JSON header: safetensors, never pickle; what is saved, and what crosses between both sides.

The header carries a kind, a format version and a digest over itself and every tensor, so that a truncated, altered or
foreign file is refused with one clear line. It is no signature: whoever can write a file can make a new digest. Beside
the digest may stand a seal (`dpvalue.protocol.sealing`), which signs it. The same content makes the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.storage import write_whole
from dpvalue.stored import OBJECT, TEXT, fields, parse_json

DTYPES = (torch.float32, torch.float64, torch.int64)

Tensors = dict[str, Tensor]

Parts = tuple[dict[str, Any], Tensors]
"""A header and tensors."""


@dataclass(frozen=True)
class Archive:
    """A kind of file: what it is called in errors, and the version of its format."""

    kind: str
    version: int

    def pack(self, header: dict[str, Any], tensors: Tensors, seal: dict[str, str] | None = None) -> bytes:
        """Return the bytes of a file; a seal stands beside what it signs."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # One entry: several would be written in any order.
        whole = {"format": self.version, "kind": self.kind, "digest": digest(header, tensors), "header": header}
        if seal is not None:
            whole["seal"] = seal
        packed: bytes = save(tensors, {"dpvalue": as_text(whole)})
        return packed

    def write(self, path: Path, header: dict[str, Any], tensors: Tensors) -> None:
        """Write a file, whole or not at all."""
        write_whole(path, self.pack(header, tensors))

    def read(self, path: Path) -> Parts:
        """Return what a file holds; that it is whole says nothing of what its header claims."""
        return self.unpack(read_bytes(path, f"a {self.kind}"), repr(str(path)))

    def unpack(self, content: bytes, what: str) -> Parts:
        """Return what bytes hold, like `read`; `what` names them in errors."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            tensors: Tensors = load(content)
        except (SafetensorError, KeyError, ValueError) as error:
            raise DpvalueError(f"{what} is not a dpvalue file, or is truncated: {error}") from None
        foreign = sorted({str(tensor.dtype) for tensor in tensors.values() if tensor.dtype not in DTYPES})
        if foreign:
            allowed = ", ".join(map(str, DTYPES))
            raise DpvalueError(f"{what} is not a dpvalue file: its tensors must be {allowed}, got {foreign[0]}")
        stored = described(content, what)
        version = stored.get("format")
        if type(version) is not int or version != self.version or stored.get("kind") != self.kind:
            kind = "" if stored.get("kind") in (None, self.kind) else f" of a {short(stored.get('kind'))}"
            given = f"{short(stored['format']) if 'format' in stored else 'none'}{kind}"
            raise DpvalueError(f"{what} must have dpvalue format {self.version} of a {self.kind}, got {given}")
        header = stored.get("header")
        if not isinstance(header, dict) or digest(header, tensors) != stored.get("digest"):
            raise DpvalueError(f"{what} has been altered: its digest does not match")
        return header, tensors


def read_bytes(path: Path, what: str, most: int = -1) -> bytes:
    """Return the bytes of a file that must be there, or the first `most`; `what` it holds is named in errors."""
    if not path.is_file():
        raise DpvalueError(f"path must be a file with {what}, got {str(path)!r}")
    with path.open("rb") as file:
        return file.read(most)


def described(content: bytes, what: str) -> dict[str, Any]:
    """Return what bytes say of themselves, unchecked: kind, format, digest, header, and a seal; nothing if foreign."""
    size = int.from_bytes(content[:8], "little")
    whole = parse_json(content[8 : 8 + size].decode("utf-8", "replace"), what)
    OBJECT(f"the header of {what}", whole)
    metadata = whole.get("__metadata__", {})
    if not isinstance(metadata, dict) or "dpvalue" not in metadata:
        return {}
    fields(dpvalue=TEXT)(f"the metadata of {what}", metadata)
    stored: dict[str, Any] = parse_json(metadata["dpvalue"], what)
    OBJECT(f"the header of {what}", stored)
    return stored


def as_text(content: Any) -> str:
    """Return JSON that is the same for the same content."""
    return json.dumps(content, sort_keys=True, default=lambda number: number.item())  # NumPy's numbers


def digest(header: dict[str, Any], tensors: Tensors) -> str:
    """Return a digest over a header and all tensors, with their names, types and shapes."""
    hasher = hashlib.sha256(as_text(header).encode())
    for name, tensor in sorted(tensors.items()):
        numbers = tensor.detach().cpu()
        hasher.update(f"{name} {numbers.dtype} {tuple(numbers.shape)}".encode())
        hasher.update(np.ascontiguousarray(numbers.numpy()).tobytes())
    return hasher.hexdigest()
