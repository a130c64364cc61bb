"""Requests and releases: the messages between a coordinator and a party in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from dpvalue.display import counted
from dpvalue.errors import DpvalueError, require_count
from dpvalue.protocol.archive import Archive, Key, Parts, Seal, Tensors, digest, open_seal, read_bytes
from dpvalue.storage import write_whole
from dpvalue.stored import TEXT, WHOLE, build, fields, refuse_unreadable

_REQUEST = fields(job=TEXT, round=WHOLE, head=TEXT)

_RELEASE = fields(job=TEXT, request=TEXT, round=WHOLE, party=TEXT, units=WHOLE)


class Message(ABC):
    """A message between a coordinator and a party: a file with a digest."""

    archive: ClassVar[Archive]

    @abstractmethod
    def parts(self) -> Parts:
        """Return the header and the tensors of the file."""

    @classmethod
    @abstractmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Self:
        """Return the message of a header and tensors; raise unless they are valid."""

    @cached_property
    def digest(self) -> str:
        """A digest of the whole message."""
        return digest(*self.parts())

    def to_bytes(self, key: Key | None = None, head: str = "") -> bytes:
        """Return the bytes of the file; with a key, sealed together with the head of a ledger."""
        header, tensors = self.parts()
        seal = None if key is None else key.seal(self.archive.kind, self.archive.version, self.digest, head)
        return self.archive.pack(header, tensors, seal)

    @classmethod
    def from_bytes(cls, content: bytes, what: str | None = None) -> Self:
        """Return the message of a file's bytes, checked."""
        what = what or f"the {cls.archive.kind}"
        with refuse_unreadable(what):
            return cls.of_parts(*cls.archive.unpack(content, what))

    @classmethod
    def open_sealed(cls, content: bytes, what: str | None = None) -> tuple[Self, Seal | None]:
        """Return the message of a file's bytes and its seal; raise for a wrong signature."""
        what = what or f"the {cls.archive.kind}"
        with refuse_unreadable(what):
            return cls.from_bytes(content, what), open_seal(content, what)

    def save(self, path: str | Path, key: Key | None = None) -> None:
        """Write the file.

        Args:
            path: the file; an existing file is replaced.
            key: signs the file; None: unsigned.

        Raises:
            OSError: a path that cannot be written.

        Example:
            >>> job = plan.job()  # `plan` as in the example of `dpvalue.Plan`
            >>> job.save("job.safetensors")
            >>> dpv.Job.load("job.safetensors").digest == job.digest
            True
        """
        write_whole(Path(path), self.to_bytes(key))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file, checked.

        Args:
            path: the file.

        Returns:
            the message.

        Raises:
            DpvalueError: a file that is missing, damaged, or of another kind or format.

        Example:
            >>> plan.job().save("job.safetensors")  # `plan` as in the example of `dpvalue.Plan`
            >>> dpv.Job.load("job.safetensors").rounds
            1
        """
        return cls.from_bytes(read_bytes(Path(path), f"a {cls.archive.kind}"), repr(str(path)))


@dataclass(frozen=True, eq=False)
class Request(Message):
    """A request to one party in a round, for its gradients at some models.

    Attributes:
        job: the digest of the job.
        round: the number of the round, from 0.
        points: the models (q, size).
        shares: with shares (q,), gradients are averaged with these weights and then clipped; None: each gradient is
            clipped, then they are averaged.
        head: the head of the party's ledger in its last release, by which the party detects rollback of its ledger.

    Example:
        >>> job = plan.job()  # `plan` as in the example of `dpvalue.Plan`
        >>> request = job.first_request(60)
        >>> request.job == job.digest
        True
    """

    archive: ClassVar[Archive] = Archive("request", 2)

    job: str
    round: int
    points: Tensor
    shares: Tensor | None = None
    head: str = ""

    def __post_init__(self) -> None:
        require_count("round", self.round, least=0)
        TEXT("head", self.head)
        if self.points.dim() != 2 or not len(self.points) or not bool(self.points.isfinite().all()):
            raise DpvalueError(f"points must be finite, of shape (q, size), got {tuple(self.points.shape)}")
        if self.shares is not None and self.shares.shape != self.points.shape[:1]:
            raise DpvalueError(f"shares must be one for each of {len(self.points)} points")

    def __repr__(self) -> str:
        points = f"{counted(len(self.points), 'point')} of {counted(self.points.shape[1], 'number')}"
        return f"Request(round {self.round} of job {self.job[:12]}, {points})"

    def to(self, like: Tensor) -> Request:
        """Return the request with tensors of the type and on the device of `like`."""
        return replace(self, points=self.points.to(like), shares=None if self.shares is None else self.shares.to(like))

    @property
    def query(self) -> Query:
        """The query to one party."""
        if self.shares is not None:
            return AtPoints(self.points, self.shares)
        first_party = torch.zeros(len(self.points), dtype=torch.int64, device=self.points.device)
        return OnWalks(len(self.points), lambda: iter([(first_party, self.points)]))

    def parts(self) -> Parts:
        """Return the header and the tensors of the file."""
        tensors = {"points": self.points} if self.shares is None else {"points": self.points, "shares": self.shares}
        return {"job": self.job, "round": self.round, "head": self.head}, tensors

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Request:
        """Return the request of a file's header and tensors."""
        _REQUEST("", header)
        shares = float_tensor(tensors, "shares", 1) if "shares" in tensors else None
        return build(cls, "the request", {**header, "points": float_tensor(tensors, "points", 2), "shares": shares})


@dataclass(frozen=True, eq=False)
class Release(Message):
    """The release of a party in a round.

    Formal guarantee: the releases that a `Party` makes for a job's requests have the guarantee of the job's `privacy`,
    and contain nothing else of the party's rows.

    Attributes:
        job: the digest of the job.
        request: the digest of the request.
        round: its number.
        party: the party's name.
        units: its public number of records, or of persons for unit "person".
        numbers: the noisy numbers (size,).

    Example:
        >>> job = plan.job()  # `plan` as in the example of `dpvalue.Plan`
        >>> release = dpv.Party("north", *train).answer(job)
        >>> release.party, release.units, len(release.numbers) == job.size
        ('north', 240, True)
    """

    archive: ClassVar[Archive] = Archive("release", 1)

    job: str
    request: str
    round: int
    party: str
    units: int
    numbers: Tensor

    def __post_init__(self) -> None:
        require_count("round", self.round, least=0)
        require_count("units", self.units, least=0)

    def __repr__(self) -> str:
        numbers = f"{counted(self.units, 'unit')}, {counted(len(self.numbers), 'number')}"
        return f"Release({self.party!r}, round {self.round} of job {self.job[:12]}, {numbers})"

    def parts(self) -> Parts:
        """Return the header and the tensors of the file."""
        header = {name: getattr(self, name) for name in ("job", "request", "round", "party", "units")}
        return header, {"numbers": self.numbers}

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Release:
        """Return the release of a file's header and tensors."""
        _RELEASE("", header)
        if set(tensors) != {"numbers"}:
            raise DpvalueError("a release must hold the tensor 'numbers' and no other")
        return build(cls, "the release", {**header, "numbers": float_tensor(tensors, "numbers", 1)})


def float_tensor(tensors: Tensors, name: str, dimensions: int) -> Tensor:
    """Return a tensor of a file; raise unless it has floating point numbers and this number of dimensions."""
    tensor = tensors.get(name)
    if tensor is None or not tensor.is_floating_point() or tensor.dim() != dimensions or not tensor.numel():
        raise DpvalueError(f"the tensor {name!r} must be floating point numbers in {counted(dimensions, 'dimension')}")
    return tensor


@dataclass(frozen=True)
class AtPoints:
    """Gradients at points (q, size), or (q, n, size) for n parties, averaged with shares (q,) and then clipped."""

    points: Tensor
    shares: Tensor

    @property
    def probes(self) -> int:
        """The number of clipped gradients of a party in the sum."""
        return 1


@dataclass(frozen=True)
class OnWalks:
    """The mean of `probes` clipped gradients of each party, each at its own model.

    `pieces` yields parties (b,) and models (b, size), in any order.
    """

    probes: int
    pieces: Callable[[], Iterator[tuple[Tensor, Tensor]]]


Query = AtPoints | OnWalks
