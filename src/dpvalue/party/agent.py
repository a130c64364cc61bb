"""The party agent: vets jobs from untrusted coordinators by the party's policy, and answers from the party's file.

A reply is a release or one of a few fixed texts. Only the party learns the exact reason of a refusal. No reply depends
on rows, except through a release.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpvalue.engine.engines import Engine, Local
from dpvalue.errors import BudgetExceeded, DpvalueError
from dpvalue.models import KINDS
from dpvalue.names import require_sendable
from dpvalue.party.party import Party, PartyFile, purpose_of, require_answerable, required_columns
from dpvalue.party.policy import UNSIGNED, AllowedModel, KnownCoordinator, Policy
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.charges import charge_of, require_room
from dpvalue.privacy.holders import Holding
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.ledger_entries import charges
from dpvalue.protocol.archive import Key
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.storage import file_lock

UNREADABLE = "it cannot be read"

UNKNOWN = "it does not come from a coordinator that this party knows"

FORBIDDEN = "this party's policy does not allow the job"

WRONG = "the request is not one of that job"

BEFORE = "the party already answered another request for this round"

SPENT = "the party's budget does not allow it"

UNABLE = "the party could not answer"

_SMALLEST, _LARGEST = 1e-30, 1e30


class Refusal(DpvalueError):  # noqa: N818
    """A refused job or request: `public` is one of the texts above, the message is for the party only."""

    def __init__(self, public: str, why: str) -> None:
        super().__init__(why)
        self.public = public


@dataclass(frozen=True)
class Assessment:
    """The consequences of answering a job, computed before any release.

    Attributes:
        job: the job.
        asker: the name of the coordinator in the ledger.
        units: the party's public number of records or persons, which its release states.
        epsilon: the epsilon that all rounds together spend, computed from the noise.
        columns: the columns of the file that the job reads.
        spent: the epsilon that the ledger has spent before.
    """

    job: Job
    asker: str
    units: int
    epsilon: float
    columns: tuple[str, ...]
    spent: float


@dataclass(frozen=True)
class Agent:
    """The agent of one party, beside the party's data.

    Formal guarantee: for any sequence of jobs and requests, all releases of `answer` together stay within the budget of
    the ledger, for the unit and neighbours of the policy. Everything else that it returns or raises is a function of
    public values and of the ledger. There is no guarantee for a `simulation`, whose noise the coordinator can remove.

    Args:
        name: the party's name; that of the ledger's holder, or of one of its parties.
        file: the party's rows.
        ledger: charges and stores releases; None only for a simulation.
        policy: which jobs are answered.
        key: signs releases; None: releases are not signed.
        simulation: answer only jobs with seeded noise.
        engine: where to compute.
    """

    name: str
    file: PartyFile
    ledger: Ledger | None
    policy: Policy
    key: Key | None = None
    simulation: bool = False
    engine: Engine = field(default_factory=Local)

    def __post_init__(self) -> None:
        require_sendable(self.name)

    def require_ledger(self) -> None:
        """Raise unless the ledger is this party's and matches the policy; a simulation has no ledger."""
        protection = self.policy.protection
        if self.ledger is not None:
            privacy = Privacy(
                unit=protection.unit, neighbours=protection.neighbours, parties_per_person=protection.parties_per_person
            )
            self.ledger.require_holding(Holding((self.name,), protection.person, holder=self.name), privacy)

    def assess(self, content: bytes) -> Assessment:
        """Return the consequences of answering a job; raise `Refusal` if it is refused. Releases nothing."""
        with _refuse_with(UNABLE):
            with _refuse_with(UNREADABLE):
                job, seal = Job.open_sealed(content)
            with _refuse_with(UNKNOWN):
                coordinator = self.policy.coordinator(None if seal is None else seal.by)
            with _refuse_with(FORBIDDEN):
                epsilon = self._require_allowed(job, coordinator)
                job = self._with_model(job)
                columns, units = required_columns(job), self.file.units()
                self._require_file(columns, units)
            self.require_ledger()
            asker = UNSIGNED if coordinator is None else coordinator.name
            with _refuse_with(SPENT):
                self._require_budget(job, asker, coordinator, units)
            spent = 0.0 if self.ledger is None else self.ledger.spent_epsilon
            return Assessment(job, asker, units, epsilon, columns, spent)

    def answer(self, content: bytes, request: bytes = b"") -> bytes:
        """Return the release for a job and a request, sealed if there is a key; without a request, for the first round.

        Answers with one ledger are serialised, so that the check of the budget and the charge are one step.
        """
        with _refuse_with(UNABLE), nullcontext() if self.ledger is None else file_lock(self.ledger.path):
            return self._answer_locked(content, request)

    def _answer_locked(self, content: bytes, request_bytes: bytes) -> bytes:
        assessment = self.assess(content)
        job, ledger = assessment.job, self.ledger
        with _refuse_with(UNABLE):
            job_ledger = None if ledger is None else ledger.with_purpose(purpose_of(job, assessment.asker))
            units = assessment.units
            if job_ledger is not None and (first := job_ledger.stored_release(0)) is not None:
                units = Release.from_bytes(first[0]).units
            with _refuse_with(BEFORE):
                if units != assessment.units:
                    raise DpvalueError(f"the first round was answered with {units} units; there are {assessment.units}")
            request = self._request(job, content, request_bytes, units)
            party = Party(
                self.name, **self.file.read(job), ledger=ledger, simulation=self.simulation, engine=self.engine,
                asker=assessment.asker,
            )  # fmt: skip
            with _refuse_with(BEFORE):
                if job_ledger is not None:
                    job_ledger.require_same(request.round, request.digest)
            release = party.answer(job, request)
            entry = None if job_ledger is None else job_ledger.stored_release(request.round)
            return release.to_bytes(self.key, "" if entry is None else entry[1])

    def _request(self, job: Job, content: bytes, content_of_request: bytes, units: int) -> Request:
        """The checked request; without one, the job's request of the first round."""
        with _refuse_with(WRONG):
            first_request = job.first_request(units)
            if not content_of_request:
                return first_request
            request, seal = Request.open_sealed(content_of_request)
            job_seal = Job.open_sealed(content)[1]
            if not self.policy.unsigned and (seal and seal.by) != (job_seal and job_seal.by):
                raise DpvalueError("the request must be signed with the key of the job")
            if request.round == 0 and request.digest != first_request.digest:
                raise DpvalueError("the request of the first round must be the one in the job")
            if len(request.points) > self.policy.limits.points:
                raise DpvalueError(
                    f"the request must have at most {self.policy.limits.points} models, got {len(request.points)}"
                )
            _require_sane("the request", request.parts()[1])
            require_answerable(job, request)
        with _refuse_with(BEFORE):
            if request.head and self.ledger is not None:
                self.ledger.require_entry(request.head)
        return request

    def _require_allowed(self, job: Job, coordinator: KnownCoordinator | None) -> float:
        """Return the epsilon that a job spends, from its noise; raise unless the policy allows the job."""
        policy, protection, limits = self.policy, self.policy.protection, self.policy.limits
        privacy, mechanism = job.privacy, job.mechanism
        for name in ("unit", "neighbours", "parties_per_person"):
            if getattr(privacy, name) != getattr(protection, name):
                raise DpvalueError(
                    f"{name} must be {getattr(protection, name)!r}, the job has {getattr(privacy, name)!r}"
                )
        if mechanism.law not in protection.laws:
            raise DpvalueError(f"noise must be one of {', '.join(protection.laws)}, the job has {mechanism.law!r}")
        law = find_law(mechanism.law)
        if privacy.delta > protection.delta and not law.pure:
            raise DpvalueError(f"delta must be at most {protection.delta:g}, the job has {privacy.delta:g}")
        if (job.simulation is not None) != self.simulation:
            raise DpvalueError("the job must not have seeded noise: the coordinator could remove it")
        for name, count, most in (
            ("rounds", job.rounds, limits.rounds), ("numbers per release", job.size, limits.numbers),
            ("models per request", job.course.points.shape[1], limits.points),
        ):  # fmt: skip
            if count > most:
                raise DpvalueError(f"the job asks for {count} {name}, the policy allows at most {most}")
        header, tensors = job.parts()
        _require_sane("the job", {name: part for name, part in tensors.items() if not name.startswith("table.")})
        _require_sane_value({**header, "about": None})
        require_answerable(job, job.first_request(1))
        releases = job.rounds * protection.parties_per_person
        epsilon = law.epsilon(law.loss(mechanism.noise_multiplier, releases), protection.delta)
        if epsilon > protection.epsilon * (1 + 1e-6):
            raise DpvalueError(f"epsilon must be at most {protection.epsilon:g}, the job's noise spends {epsilon:.4g}")
        if coordinator is not None and coordinator.public_sets and job.about.utility not in coordinator.public_sets:
            raise DpvalueError(f"the policy does not allow the public set {job.about.utility} for {coordinator.name!r}")
        if policy.columns is not None:
            foreign = [name for name in required_columns(job) if name not in policy.columns]
            if foreign:
                raise DpvalueError(f"the policy does not allow reading the column {foreign[0]!r}")
        return epsilon

    def _with_model(self, job: Job) -> Job:
        """The job with the policy's model of that name; never with code of the coordinator."""
        kind, digest = job.model.kind, job.model.digest
        allowed = [model for model in self.policy.models if model.name == kind]
        if not allowed:
            raise DpvalueError(f"the policy does not allow the model {kind!r}")
        matching = [model for model in allowed if model.digest in (None, digest)]
        if not matching:
            raise DpvalueError(f"the policy does not allow the model {kind!r} with the digest {digest}")
        model, changed = matching[0], job
        if model.factory is not None:
            changed = replace(job, model=replace(job.model, kind=_import_factory(model)))
        elif kind not in KINDS:
            raise DpvalueError(f"the model {kind!r} is not built in, and the policy names no factory for it")
        changed.build(self.engine.torch_device)  # raises unless it is the model that the digest says
        return changed

    def _require_file(self, columns: tuple[str, ...], units: int) -> None:
        present = self.file.columns()
        missing = [name for name in columns if name not in present]
        if missing:
            raise DpvalueError(f"{self.file.path} has no column {missing[0]!r}")
        if self.file.person in columns:
            raise DpvalueError(f"the column {self.file.person!r} of person ids must not be a feature")
        if units < self.policy.limits.units:
            raise DpvalueError(
                f"the party must have at least {self.policy.limits.units} units to answer, it has {units}"
            )

    def _require_budget(self, job: Job, asker: str, coordinator: KnownCoordinator | None, units: int) -> None:
        """Raise unless the ledger's and the coordinator's budgets allow all rounds that are not answered yet."""
        if self.ledger is None:
            if not self.simulation:
                raise DpvalueError("a party needs a ledger: create one with dpvalue ledger new")
            return
        charge = charge_of(job.mechanism, torch.tensor([units]), job.privacy)
        job_ledger = self.ledger.with_purpose(purpose_of(job, asker))
        job_ledger.require_room(job.rounds, charge)
        if coordinator is None or coordinator.epsilon is None:
            return
        earlier = [entry for entry in job_ledger.entries() if entry.purpose.partition(" ")[0] == asker]
        if not any(entry.purpose == job_ledger.purpose for entry in earlier):
            limit = replace(self.ledger.budget, epsilon=coordinator.epsilon)
            require_room(charges(earlier), charge.times(job.rounds), limit)


@contextmanager
def _refuse_with(public: str) -> Iterator[None]:
    """Turn errors into a `Refusal` with this public text; a `Refusal` passes unchanged."""
    try:
        yield
    except Refusal:
        raise
    except BudgetExceeded as error:
        raise Refusal(SPENT, str(error)) from None
    except DpvalueError as error:
        raise Refusal(public, str(error)) from None
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise Refusal(public, f"{type(error).__name__}: {error}") from error


def _import_factory(model: AllowedModel) -> Any:
    """The factory of the policy, imported from installed code."""
    module, name = str(model.factory).split(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise DpvalueError(f"the factory {model.factory!r} of the policy cannot be imported: {error}") from None


def _require_sane(what: str, tensors: dict[str, Tensor]) -> None:
    """Raise unless all floating point numbers are zero or within bounds in which arithmetic is exact and fast."""
    for name, tensor in tensors.items():
        sizes = tensor.abs()
        if tensor.is_floating_point() and not bool(((sizes >= _SMALLEST) & (sizes <= _LARGEST) | (sizes == 0)).all()):
            raise DpvalueError(f"numbers in {name!r} of {what} must be from {_SMALLEST:g} to {_LARGEST:g} in size")


def _require_sane_value(value: Any) -> None:
    """Do the same for the numbers of a header."""
    if isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            _require_sane_value(part)
    elif isinstance(value, int | float) and not (value == 0 or _SMALLEST <= abs(value) <= _LARGEST):
        raise DpvalueError(f"numbers of the job must be from {_SMALLEST:g} to {_LARGEST:g} in size")
