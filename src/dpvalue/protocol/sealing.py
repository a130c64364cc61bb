"""Who made a file: Ed25519 signatures over its kind, its format, its digest, and the head of a ledger.

The digest covers the header and every tensor, and with them, of a release, the digests of job and request, the round,
the party's name and its number of units. A key is a text file that its owner alone can read; what others need to know
of it is one line, `ed25519:...`, which they write into their policy or roster.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpvalue.errors import DpvalueError
from dpvalue.protocol.archive import as_text, described
from dpvalue.storage import require_secret, write_secret
from dpvalue.stored import TEXT, fields, read_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KIND = "ed25519:"

_SECRET = "dpvalue secret key "

_SEAL = fields(by=TEXT, signature=TEXT, head=TEXT)


@dataclass(frozen=True)
class Seal:
    """Who sealed a file, by the public line of its key, and the head of the ledger that the release is in, if any."""

    by: str
    head: str


@dataclass(frozen=True, repr=False)  # a secret must not be printed
class Key:
    """A secret key."""

    secret: bytes

    @classmethod
    def new(cls) -> Key:
        """Return a key that nobody else has."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def read(cls, path: str | Path) -> Key:
        """Return the key of a file; raises if others than its owner can read it."""
        text = read_text(Path(path)).strip()
        secret = text.removeprefix(_SECRET)
        if not text.startswith(_SECRET) or len(secret) != 64 or set(secret) - set("0123456789abcdef"):
            raise DpvalueError(f"{path} is not a key: create one with dpvalue key new")
        require_secret(Path(path))
        return cls(bytes.fromhex(secret))

    def save(self, path: str | Path) -> None:
        """Write the key to a file of its own, which its owner alone can read."""
        write_secret(Path(path), f"{_SECRET}{self.secret.hex()}\n".encode("ascii"))

    @property
    def public(self) -> str:
        """The line that others know the key by."""
        return _KIND + self._private.public_key().public_bytes_raw().hex()

    @property
    def _private(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.secret)

    def seal(self, kind: str, version: int, digest: str, head: str = "") -> dict[str, str]:
        """Return a seal of a file of this kind, format and digest, to stand in it."""
        by = self.public
        signature = self._private.sign(_statement(kind, version, digest, head, by)).hex()
        return {"by": by, "signature": signature, "head": head}

    def __repr__(self) -> str:
        return f"Key({self.public})"


def open_seal(content: bytes, what: str) -> Seal | None:
    """Return who sealed bytes whose digest was checked; None if nobody did. Raises for a wrong signature."""
    stored = described(content, what)
    seal = stored.get("seal")
    if seal is None:
        return None
    _SEAL(f"the seal of {what}", seal)
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    statement = _statement(stored.get("kind"), stored.get("format"), stored.get("digest"), seal["head"], seal["by"])
    try:
        known = Ed25519PublicKey.from_public_bytes(bytes.fromhex(require_public(seal["by"])))
        known.verify(bytes.fromhex(seal["signature"]), statement)
    except (InvalidSignature, ValueError):
        raise DpvalueError(f"the signature of {what} is invalid: it was not made with the key that it names") from None
    return Seal(seal["by"], seal["head"])


def require_public(line: str) -> str:
    """Return the hexadecimal digits of a public line; raises unless it is one."""
    digits = line.removeprefix(_KIND)
    if not line.startswith(_KIND) or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise DpvalueError(f"a public key must be a line like {_KIND}0f..., got {line!r}")
    return digits


def _statement(kind: object, version: object, digest: object, head: str, by: str) -> bytes:
    """What is signed."""
    return as_text({"dpvalue": kind, "format": version, "digest": digest, "head": head, "by": by}).encode()
