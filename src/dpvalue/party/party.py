"""A remote party: its file, rows, ledger and noise. `Party.answer` is its only function for a coordinator.

Everything here runs where the rows are. The inputs from outside are a job and a request, which are public and
untrusted; the only output is a release. Rows of a file are read only after the job has been accepted.
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
    """The file of a party, and its column of persons' ids, if any."""

    path: Path
    person: str | None = None

    def columns(self) -> tuple[str, ...]:
        """The names of the columns; reads nothing else."""
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
        """Return the rows as arguments of `dpvalue.Party`."""
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
    """Return the columns of a file that a job reads, the target last."""
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
        """One party, even without rows."""
        return (self.name,), np.zeros(row_count(self.X, "the party's features"), dtype=np.int64)


class Party(Uncopyable):
    """One party, where its rows are. It cannot be copied or pickled.

    Formal guarantee: all releases of `answer` for one job are together (epsilon, delta)-DP as the job's `privacy` says,
    for any requests: they may depend on earlier releases of all parties. A round is answered once, and the same request
    gets the same bytes, in any threads. Without a ledger this holds for this object, which answers only in the process
    that made it, and the costs of jobs add up. With a ledger it holds for all processes, and all jobs together stay
    within the ledger's budget. There is no guarantee for a `simulation`, whose noise the coordinator can remove.

    Args:
        name: the party's name; with a ledger, that of its holder, or of one of its parties.
        X: features, one row per record, in any form that `dpvalue.value` takes.
        y: labels, one per row.
        persons: an id per row, for unit "person".
        person_column: the name of the column of ids, for a ledger that is bound to it.
        ledger: charges and stores releases.
        simulation: whether to answer jobs with seeded noise; never for rows that need protection.
        engine: where to compute.
        asker: the name of the coordinator in the ledger; all coordinators share its budget.

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
        """Return the release for a request; no content of a row raises.

        Args:
            job: the job, the same for all parties.
            request: the round and its models; None: the first round, which follows from job and number of units.

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
        """The bytes of a round, made at the first request; another request for the round raises.

        A lock serialises threads.
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
    """Return the purpose in a ledger of a coordinator's job."""
    return f"{asker} {job.digest}".strip()


def require_answerable(job: Job, request: Request) -> None:
    """Raise unless a request belongs to the job and the job's noise suffices for its budget."""
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
        model: the function from rows to the numbers that units contribute.
        mechanism: clipping and noise.
        encoding: the encoding of rows.
        privacy: the budget, with its unit; None without privacy.
        dtype: the floating-point type of the computation.
        is_secure: whether noise is on a grid.
    """

    model: UnitNumbers
    mechanism: Mechanism
    encoding: Encoding
    privacy: Privacy | None
    dtype: torch.dtype
    is_secure: bool

    def enclose(self, parties: Parties, engine: Engine) -> Contributions:
        """Return the contributions of the parties' rows."""
        rows: PrivateRows = parties.encode(self.encoding, self.dtype, engine.torch_device, self.privacy)
        return Contributions(self.model, rows, self.mechanism, engine, on_grid=self.is_secure)
