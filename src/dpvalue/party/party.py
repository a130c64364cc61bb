"""A party at home: its file, its rows, its ledger, its noise. `Party.answer` is all that it does for others.

Everything here runs where the rows are. What it takes from outside is a job and a request, both public and both
untrusted; what it hands out is a release. Of a file it reads what is public first, its rows once the job was let in.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch

from dpvalue.arrays import Array, Ints
from dpvalue.data.encoding import EncodedRows, Encoding
from dpvalue.data.files import open_private, read_encoded
from dpvalue.data.parties import Parties, number_persons, person_counts
from dpvalue.data.raw import row_count
from dpvalue.data.rows import PrivateRows
from dpvalue.display import counted
from dpvalue.engine.engines import DTYPES, Engine, Local
from dpvalue.errors import DpvalueError
from dpvalue.models import UnitNumbers
from dpvalue.names import require_sendable
from dpvalue.party.contributions import Contributions, Responder
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.charges import charge_of
from dpvalue.privacy.holders import Holding
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.privacy.noise import Uncopyable
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request


@dataclass(frozen=True)
class PartyFile:
    """The file of a party, and its column of persons' ids, if it has one."""

    path: Path
    person: str | None = None

    def columns(self) -> tuple[str, ...]:
        """The names of its columns; nothing else is read."""
        with open_private(self.path) as file:
            return file.columns

    def units(self) -> int:
        """The public number of records; with ids, of persons."""
        with open_private(self.path) as file:
            if self.person is None:
                return file.count()
            ids = [block.columns[self.person].identities() for block in file.read([self.person], None)]
        person = number_persons(_concatenate(ids, np.empty(0, dtype=object)))
        return int(person_counts(np.zeros(len(person), dtype=np.int64), person, 1)[0])

    def read(self, job: Job) -> dict[str, Any]:
        """Return the rows, as `dpvalue.Party` takes them."""
        schema, target = job.encoding.preprocess, required_columns(job)[-1]
        features, labels, persons = [], [], []
        others = [] if self.person is None else [self.person]
        dtype = np.dtype(job.dtype)
        for piece in read_encoded(self.path, schema, target, job.encoding.task, others, dtype):
            features.append(piece.features)
            labels.append(piece.labels)
            if self.person is not None:
                persons.append(piece.columns[self.person].identities())
        rows: dict[str, Any] = {
            "X": EncodedRows(_concatenate(features, np.empty((0, *job.encoding.shape), dtype)), schema),
            "y": _concatenate(labels, np.empty(0, dtype=object)),
        }
        if self.person is not None:
            rows |= {"persons": _concatenate(persons, np.empty(0, dtype=object)), "person_column": self.person}
        return rows


def required_columns(job: Job) -> tuple[str, ...]:
    """Return the columns that a job reads of a file, the target last."""
    if not job.encoding.by_columns or job.about.target is None:
        raise DpvalueError("the job must be answered in Python (dpvalue.Party): it does not describe files")
    return (*job.encoding.preprocess.names, job.about.target)


def _concatenate(parts: list[Array], nothing: Array) -> Array:
    return np.concatenate(parts) if parts else nothing


_ROUNDING = 1 - 1e-9


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class _SingleParty(Parties):
    """The rows of one party."""

    name: str = ""
    min_parties: ClassVar[int] = 1

    @cached_property
    def _members(self) -> tuple[tuple[str | int, ...], Ints]:
        """One party, also where it has no row."""
        return (self.name,), np.zeros(row_count(self.X, "the party's features"), dtype=np.int64)


class Party(Uncopyable):
    """One party, where its rows are. It cannot be copied or pickled.

    Formal guarantee: all that leaves it through `answer` for one job is (epsilon, delta)-DP as its `privacy` says,
    whatever the server asks: its requests may depend on earlier releases of anybody, a round is answered once, and the
    same request gets the same bytes, in whatever threads. Without a ledger that holds for this object, which answers in
    the process that made it alone, and jobs add up; with one it holds for all processes, and all jobs together stay
    within its budget. Not for a `simulation`, whose noise the server can remove.

    Args:
        name: as the server knows it; with a ledger, that of its holder, or of one of its parties.
        X: its features, one row a record, in any form that `dpvalue.value` takes.
        y: its labels.
        persons: an id per row, for unit "person".
        person_column: what the ids are called, for a ledger that is bound to them.
        ledger: where releases are charged and kept.
        simulation: whether jobs with seeded noise are answered; never on rows that are to be protected.
        engine: where to compute.
        asker: who asks, as the ledger is to know it; jobs of different askers share its budget.

    Example:
        >>> Party("north", np.zeros((4, 2)), np.array([0, 1, 0, 1]))  # no row is printed
        Party('north')
    """

    def __init__(
        self,
        name: str,
        X: Any,
        y: Any,
        persons: Any = None,
        person_column: str | None = None,
        ledger: Ledger | None = None,
        simulation: bool = False,
        engine: Engine | None = None,
        asker: str = "",
    ) -> None:
        require_sendable(name)
        self.name: Final = name
        self.X: Final = X
        self.y: Final = y
        self.persons: Final = persons
        self.person_column: Final = person_column
        self.ledger: Final = ledger
        self.simulation: Final = simulation
        self.engine: Final = Local() if engine is None else engine
        self.asker: Final = asker
        self._answers: Final[dict[tuple[str, int], tuple[str, bytes]]] = {}
        self._lock: Final = threading.Lock()
        self._process: Final = os.getpid()

    def __repr__(self) -> str:
        return f"Party({self.name!r})"

    def answer(self, job: Job, request: Request | None = None) -> Release:
        """Return the release that a request asks for; raises for reasons that do not depend on rows.

        Without a request it is that for the first round, which follows from the job and the number of units.

        Args:
            job: what is asked of all parties.
            request: which round, at which models; None is that for the first round.

        Returns:
            the release, with noise.

        Raises:
            DpvalueError: a job or request that is not answered, or a ledger's budget that does not allow it.

        Example:
            >>> job, party = plan.job(), Party("north", *train)  # `plan` as in the example of `dpvalue.Plan`
            >>> party.answer(job).digest == party.answer(job).digest  # a round is answered once
            True
        """
        if self.ledger is not None:
            self.ledger.require_holding(Holding((self.name,), self.person_column, holder=self.name), job.privacy)
        if request is None:
            request = job.first_request(int(self._as_parties().counts(job.privacy)[0][0]))
        require_answerable(job, request)
        if job.simulation is not None and (not self.simulation or self.ledger is not None):
            raise DpvalueError("the job must not have seeded noise: the server could remove it")
        with self.engine.threading():
            device, dtype = self.engine.torch_device, DTYPES[job.dtype]
            model = job.build(device)  # raises for a job that fits no model, before any row is touched
            rows = self._as_parties()
            boundary = PrivacyBoundary(model, job.mechanism, job.encoding, job.privacy, dtype, job.simulation is None)
            contributions = boundary.enclose(rows, self.engine)
            like = torch.zeros(job.size, dtype=dtype, device=device)
            noise, number = job.noise(self.name)
            responder = Responder(contributions, noise, np.array([number]), like)

            def make() -> bytes:
                numbers = responder.answer(request.round, request.to(like).query)[0].cpu()
                units = int(contributions.units[0])
                return Release(job.digest, request.digest, request.round, self.name, units, numbers).to_bytes()

            if self.ledger is None:
                return Release.from_bytes(self._answer_once(job, request, make))
            charge = charge_of(job.mechanism, contributions.units, job.privacy)
            ledger = self.ledger.with_purpose(purpose_of(job, self.asker))
            ledger.reserve(job.rounds, charge)
            release = Release.from_bytes(ledger.release(request.round, request.digest, charge, make))
            if release.party != self.name:
                raise DpvalueError(f"this ledger already answered the job as {release.party!r}")
            return release

    def _as_parties(self) -> _SingleParty:
        groups = np.full(row_count(self.X, "the party's features"), self.name, dtype=object)
        return _SingleParty(self.X, self.y, groups, self.persons, self.person_column, name=self.name)

    def _answer_once(self, job: Job, request: Request, make: Callable[[], bytes]) -> bytes:
        """The bytes of a round, made at the first request; another request for the round is refused.

        One thread at a time, from looking for an answer to keeping it.
        """
        if os.getpid() != self._process:  # parent and child would each draw noise for the same round
            raise DpvalueError("a party without a ledger must answer in the process that created it: give it a ledger")
        with self._lock:
            stored_digest, answer = self._answers.setdefault((job.digest, request.round), (request.digest, b""))
            if stored_digest != request.digest:
                raise DpvalueError(f"round {request.round} of this job was already requested with other settings")
            if not answer:
                answer = make()
                self._answers[job.digest, request.round] = stored_digest, answer
            return answer


def purpose_of(job: Job, asker: str) -> str:
    """Return what a ledger knows a job of an asker by."""
    return f"{asker} {job.digest}".strip()


def require_answerable(job: Job, request: Request) -> None:
    """Raise unless a request is one of the job, and the job's noise is what its budget needs."""
    if request.job != job.digest:
        raise DpvalueError("the request is not of this job: its digest differs")
    if request.round >= job.rounds:
        raise DpvalueError(f"round must be below the job's number of rounds, {job.rounds}, got {request.round}")
    if request.points.shape[1] != job.size:
        raise DpvalueError(f"points must have {job.size} numbers each, as the job says, got {request.points.shape[1]}")
    if job.privacy.accounting != "composition":
        raise DpvalueError("accounting must be 'composition': it counts every release")
    if job.mechanism.clip is None:
        raise DpvalueError("mechanism.clip must be given: without it the sensitivity is unbounded")
    needed = job.privacy.noise_multiplier(job.rounds, 1, job.mechanism.law)
    if not job.mechanism.noise_multiplier >= needed * _ROUNDING:
        raise DpvalueError(
            f"the noise multiplier of the job must be at least {needed:.4g} for its budget and "
            f"{counted(job.rounds, 'round')}, got {job.mechanism.noise_multiplier:.4g}"
        )


@dataclass(frozen=True)
class PrivacyBoundary:
    """The only object that receives private rows.

    Attributes:
        model: what rows are asked through.
        mechanism: clipping and noise.
        encoding: how rows become numbers.
        privacy: the budget, which tells the unit; None for none.
        dtype: what is computed in.
        is_secure: whether noise is drawn on a grid.
    """

    model: UnitNumbers
    mechanism: Mechanism
    encoding: Encoding
    privacy: Privacy | None
    dtype: torch.dtype
    is_secure: bool

    def enclose(self, parties: Parties, engine: Engine) -> Contributions:
        """Return the rows of parties, ready to contribute."""
        rows: PrivateRows = parties.encode(self.encoding, self.dtype, engine.torch_device, self.privacy)
        return Contributions(self.model, rows, self.mechanism, engine, on_grid=self.is_secure)
