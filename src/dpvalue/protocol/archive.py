"""Files of tensors with a JSON header, and their signatures.

Tensors are stored by safetensors, never pickle. The header has a kind, a format version and a digest over itself and
every tensor, so that a truncated, altered or foreign file raises one clear line. The same content gives the same bytes.
A digest is no signature: whoever can write a file can compute a new one.

A file may have a seal: an Ed25519 signature over kind, format, digest, and the head of a ledger. The digest of a
release covers the digests of job and request, the round, the party's name and its number of units. A key is a text file
that only its owner can read. Its public part is one line, `ed25519:...`, for the policy or roster of others.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.storage import require_secret, write_secret, write_whole
from dpvalue.stored import OBJECT, TEXT, fields, parse_json, read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DTYPES = (torch.float32, torch.float64, torch.int64)

Tensors = dict[str, Tensor]

Parts = tuple[dict[str, Any], Tensors]
"""A header and tensors."""


@dataclass(frozen=True)
class Archive:
    """A kind of file: its name in errors, and the version of its format."""

    kind: str
    version: int

    def pack(self, header: dict[str, Any], tensors: Tensors, seal: dict[str, str] | None = None) -> bytes:
        """Return the bytes of a file, with a seal if given."""
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        # One entry, because the order of several entries is not fixed.
        whole = {"format": self.version, "kind": self.kind, "digest": digest(header, tensors), "header": header}
        if seal is not None:
            whole["seal"] = seal
        content: bytes = save(tensors, {"dpvalue": as_text(whole)})
        return content

    def write(self, path: Path, header: dict[str, Any], tensors: Tensors) -> None:
        """Write a file, whole or not at all."""
        write_whole(path, self.pack(header, tensors))

    def read(self, path: Path) -> Parts:
        """Return the header and tensors of a file; the content of the header is not checked."""
        return self.unpack(read_bytes(path, f"a {self.kind}"), repr(str(path)))

    def unpack(self, content: bytes, what: str) -> Parts:
        """Return the header and tensors of bytes, as `read`; `what` names them in errors."""
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
        stored = read_metadata(content, what)
        version = stored.get("format")
        if type(version) is not int or version != self.version or stored.get("kind") != self.kind:
            kind = "" if stored.get("kind") in (None, self.kind) else f" of a {short(stored.get('kind'))}"
            actual = f"{short(stored['format']) if 'format' in stored else 'none'}{kind}"
            raise DpvalueError(f"{what} must have dpvalue format {self.version} of a {self.kind}, got {actual}")
        header = stored.get("header")
        if not isinstance(header, dict) or digest(header, tensors) != stored.get("digest"):
            raise DpvalueError(f"{what} has been altered: its digest does not match")
        return header, tensors


def read_bytes(path: Path, what: str, most: int = -1) -> bytes:
    """Return the bytes of a file, or the first `most`; raise if it is missing. `what` names it in errors."""
    if not path.is_file():
        raise DpvalueError(f"path must be a file with {what}, got {str(path)!r}")
    with path.open("rb") as file:
        return file.read(most)


def read_metadata(content: bytes, what: str) -> dict[str, Any]:
    """Return the unchecked metadata of bytes: kind, format, digest, header and seal; empty for a foreign file."""
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
    """Return canonical JSON."""
    return json.dumps(content, sort_keys=True, default=lambda number: number.item())  # NumPy's numbers


def digest(header: dict[str, Any], tensors: Tensors) -> str:
    """Return a digest of a header and of all tensors, with their names, types and shapes."""
    hasher = hashlib.sha256(as_text(header).encode())
    for name, tensor in sorted(tensors.items()):
        numbers = tensor.detach().cpu()
        hasher.update(f"{name} {numbers.dtype} {tuple(numbers.shape)}".encode())
        hasher.update(np.ascontiguousarray(numbers.numpy()).tobytes())
    return hasher.hexdigest()


_KIND = "ed25519:"

_SECRET = "dpvalue secret key "

_SEAL = fields(by=TEXT, signature=TEXT, head=TEXT)


@dataclass(frozen=True)
class Seal:
    """The signer of a file, by its public key, and the head of the ledger that holds the release, if any."""

    by: str
    head: str


@dataclass(frozen=True, repr=False)  # a secret must not be printed
class Key:
    """A secret key."""

    secret: bytes

    @classmethod
    def new(cls) -> Key:
        """Return a new random key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def read(cls, path: str | Path) -> Key:
        """Return the key of a file; raise if others than its owner can read it."""
        text = read_text(Path(path)).strip()
        secret = text.removeprefix(_SECRET)
        if not text.startswith(_SECRET) or len(secret) != 64 or set(secret) - set("0123456789abcdef"):
            raise DpvalueError(f"{path} is not a key: create one with dpvalue key new")
        require_secret(Path(path))
        return cls(bytes.fromhex(secret))

    def save(self, path: str | Path) -> None:
        """Write the key to a new file that only its owner can read."""
        write_secret(Path(path), f"{_SECRET}{self.secret.hex()}\n".encode("ascii"))

    @property
    def public(self) -> str:
        """The public key, as one line."""
        return _KIND + self._private.public_key().public_bytes_raw().hex()

    @property
    def _private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)

    def seal(self, kind: str, version: int, digest: str, head: str = "") -> dict[str, str]:
        """Return a seal for a file of this kind, format and digest."""
        by = self.public
        signature = self._private.sign(_statement(kind, version, digest, head, by)).hex()
        return {"by": by, "signature": signature, "head": head}

    def __repr__(self) -> str:
        return f"Key({self.public})"


def open_seal(content: bytes, what: str) -> Seal | None:
    """Return the signer of bytes with a checked digest; None without a seal. Raise for a wrong signature."""
    stored = read_metadata(content, what)
    seal = stored.get("seal")
    if seal is None:
        return None
    _SEAL(f"the seal of {what}", seal)
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    statement = _statement(stored.get("kind"), stored.get("format"), stored.get("digest"), seal["head"], seal["by"])
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(require_public(seal["by"])))
        key.verify(bytes.fromhex(seal["signature"]), statement)
    except (InvalidSignature, ValueError):
        raise DpvalueError(f"the signature of {what} is invalid: it was not made with the key that it names") from None
    return Seal(seal["by"], seal["head"])


def require_public(line: str) -> str:
    """Return the hexadecimal digits of a public key; raise unless it is one."""
    digits = line.removeprefix(_KIND)
    if not line.startswith(_KIND) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise DpvalueError(f"a public key must be a line like {_KIND}0f..., got {line!r}")
    return digits


def _statement(kind: object, version: object, digest: object, head: str, by: str) -> bytes:
    """The signed bytes."""
    return as_text({"dpvalue": kind, "format": version, "digest": digest, "head": head, "by": by}).encode()
