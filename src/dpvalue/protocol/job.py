"""Jobs: what a coordinator asks of all parties. Requests and releases are in `dpvalue.protocol.messages`.

A job has everything that a party needs to answer: the encoding of rows, the model, the directions, clipping and noise.
All of it is public. A request is for one round, at some models; the request of the first round follows from the job and
a party's number of units. Jobs, requests and releases are files (safetensors with a JSON header) with a digest. A
digest is no signature; a seal is (`dpvalue.protocol.archive`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from dpvalue.data.encoding import Encoding, check_encoding, encoding_from_json, encoding_to_json
from dpvalue.display import counted
from dpvalue.engine.engines import DTYPES
from dpvalue.errors import DpvalueError, require_choice, require_count
from dpvalue.models import KINDS, Model, ModelFactory, UnitNumbers, build_model, head_on_trunk
from dpvalue.names import require_names
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.mechanism import Mechanism, Scale
from dpvalue.privacy.noise import NoiseSource, noise_source
from dpvalue.protocol.archive import Archive, Parts, Tensors
from dpvalue.protocol.messages import Message, Request, float_tensor
from dpvalue.protocol.statistics import Gradient, Statistic, StatisticContext, statistic_of_parts, statistic_parts
from dpvalue.stored import COUNT, OBJECT, TEXT, WHOLE, build, choice_of, fields, optional
from dpvalue.streams import require_seed

_FLOATS = ("float32", "float64")

_TABLE, _STATISTIC = "table.", "statistic."  # begin the names of tensors that are a table's, or a statistic's

_HEADER = fields(
    encoding=check_encoding,
    model=TEXT,
    model_digest=TEXT,
    rounds=COUNT,
    about=fields(utility=TEXT, target=optional(TEXT), recipe=TEXT, seed=WHOLE, table=optional(OBJECT)),
    dtype=choice_of(_FLOATS),
)


@dataclass(frozen=True)
class Simulation:
    """Seeded noise, which can be removed with the seed. A party's number is its place in `names`."""

    seed: int
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        require_seed(self.seed)
        object.__setattr__(self, "names", tuple(map(str, self.names)))
        require_names("names of parties", self.names)


@dataclass(frozen=True, eq=False)
class PublicModel:
    """The model of a job: a name that a party can build, and public numbers. It contains no code.

    Args:
        kind: its name or its factory; a file has "custom" for a factory, which a party cannot build by name.
        digest: the digest of the model.
        trunk: for the head of a network, the parameters of all layers before it (`models.HeadOnTrunk`).
    """

    kind: str | ModelFactory
    digest: str
    trunk: Tensor | None = None

    def build(self, encoding: Encoding, like: Tensor) -> Model:
        """Return the model for rows like these; raise unless its digest is the job's."""
        if isinstance(self.kind, str) and self.kind not in KINDS:
            raise DpvalueError(
                f"model must be one of {', '.join(KINDS)}, got {self.kind!r}: received code is never run"
            )
        model = build_model(self.kind, encoding.task, like, encoding.outputs, like.dtype, like.device)
        if model.digest() != self.digest:
            raise DpvalueError("the model is not the one of the job: its digest differs")
        return model if self.trunk is None else head_on_trunk(model, like, self.trunk)


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """The number of rounds of a job, and the query of the first round.

    Attributes:
        rounds: the number of releases of a party.
        points: the models (w, q, size) of the first round, for w ranges of numbers of units.
        shares: weights (q,) of the mean of the gradients at the q models, which is then clipped.
        least: the smallest number of units of each range (w,), ascending from 0.
    """

    rounds: int
    points: Tensor
    shares: Tensor
    least: Tensor

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds)
        ranges = len(self.points)
        if self.points.dim() != 3 or self.shares.shape != self.points.shape[1:2]:
            raise DpvalueError("points and shares of the first round must have the same length")
        if self.least.dtype != torch.int64 or self.least.shape != (ranges,) or int(self.least[0]) != 0:
            raise DpvalueError("least must hold one whole number per range of sizes, starting with 0")
        if bool((self.least.diff() <= 0).any()):
            raise DpvalueError("least must increase from range to range")

    def range_of(self, units: int) -> int:
        """Return the range of a number of units."""
        return int((self.least <= units).sum()) - 1


@dataclass(frozen=True, eq=False)
class JobNotes:
    """Public notes of a job that a party's computation does not need, for people and for the coordinator.

    Attributes:
        utility: the digest of the public set; a hash does not protect it.
        target: the column of labels, for parties with files.
        recipe: the options that made the job from the public file, as TOML; empty for a job made in Python.
        seed: the seed of the walks of later rounds.
        table: the header and tensors of a table without parties, for the coordinator to fill with releases.
    """

    utility: str
    target: str | None = None
    recipe: str = ""
    seed: int = 0
    table: Parts | None = None


@dataclass(frozen=True, eq=False)
class Job(Message):
    """What a coordinator asks of all parties, made from public values only.

    Attributes:
        encoding: the encoding of features and labels.
        model: the model.
        origin: the parameters that directions start from (d,).
        basis: the public directions (m, d) of a release; None: all directions.
        mechanism: clipping and noise.
        course: the number of rounds, and the query of the first round.
        privacy: the budget of a party for all rounds.
        simulation: the seed of a simulation; None for secure noise.
        about: notes that are not needed to answer.
        dtype: the floating-point type of the computation.
        statistic: what a unit contributes before clipping.

    Example:
        >>> job = plan.job()  # `plan` as in the example of `dpvalue.Plan`
        >>> job.rounds, job.privacy == privacy
        (1, True)
    """

    archive: ClassVar[Archive] = Archive("job", 5)

    encoding: Encoding
    model: PublicModel
    origin: Tensor
    basis: Tensor | None
    mechanism: Mechanism
    course: RoundPlan
    privacy: Privacy
    simulation: Simulation | None
    about: JobNotes
    dtype: str
    statistic: Statistic = Gradient()  # noqa: RUF009  (immutable)

    def __post_init__(self) -> None:
        self.statistic.require_basis(self.basis)
        require_choice("dtype", self.dtype, _FLOATS)
        if self.course.points.shape[2] != self.size:
            raise DpvalueError(f"points must have {self.size} numbers each, got {self.course.points.shape[2]}")
        if (self.mechanism.unit, self.mechanism.neighbours) != (self.privacy.unit, self.privacy.neighbours):
            raise DpvalueError("mechanism and privacy must have the same unit and neighbours")

    def __repr__(self) -> str:
        kind = self.model.kind if isinstance(self.model.kind, str) else "custom"
        rounds = f"{counted(self.rounds, 'round')} of {counted(self.size, 'number')}"
        return f"Job(a {self.statistic.name} of the model {kind!r}, {rounds}, {self.privacy.terms})"

    @property
    def rounds(self) -> int:
        """The number of releases of a party."""
        return self.course.rounds

    def first_request(self, units: int) -> Request:
        """Return the request of the first round for a party with this number of units.

        Args:
            units: the party's number of records; of persons for unit "person".

        Returns:
            the request.

        Example:
            >>> plan.job().first_request(60).round  # `plan` as in the example of `dpvalue.Plan`
            0
        """
        return Request(self.digest, 0, self.course.points[self.course.range_of(units)], self.course.shares)

    @property
    def size(self) -> int:
        """The number of numbers in a release."""
        return self.statistic.width(len(self.origin if self.basis is None else self.basis))

    def noise(self, party: str) -> tuple[NoiseSource, int]:
        """Return a party's source of noise, and its number in a simulation."""
        if self.simulation is None:
            return noise_source("secure", 0), 0
        if party not in self.simulation.names:
            raise DpvalueError(f"the simulation has no party {party!r}")
        return noise_source("fast", self.simulation.seed), self.simulation.names.index(party)

    def build(self, device: torch.device) -> UnitNumbers:
        """Return the function from rows to the numbers that units contribute, along the basis if there is one."""
        like = torch.zeros(self.encoding.shape, dtype=DTYPES[self.dtype], device=device)
        context = StatisticContext(
            model=partial(self.model.build, self.encoding, like),
            outputs=self.encoding.outputs,
            origin=self.origin.to(like),
            basis=None if self.basis is None else self.basis.to(like),
        )
        return self.statistic.unit_numbers(context)

    def parts(self) -> Parts:
        """Return the header and the tensors of the file."""
        if self.encoding.preprocessed and self.encoding.schema is None:
            raise DpvalueError("a custom transformer cannot be part of a job: use preprocess='columns'")
        table, (statistic_header, numbers) = self.about.table, statistic_parts(self.statistic)
        header = {
            **{name: getattr(self, name) for name in ("rounds", "dtype")},
            "about": {
                **{name: getattr(self.about, name) for name in ("utility", "target", "recipe", "seed")},
                "table": None if table is None else table[0],
            },
            "statistic": statistic_header,
            "encoding": encoding_to_json(self.encoding),
            "model": self.model.kind if isinstance(self.model.kind, str) else "custom",
            "model_digest": self.model.digest,
            "mechanism": asdict(self.mechanism),
            "privacy": asdict(self.privacy),
            "simulation": None if self.simulation is None else asdict(self.simulation),
        }
        public = {"origin": self.origin, "basis": self.basis, "trunk": self.model.trunk}
        tensors = {name: tensor for name, tensor in public.items() if tensor is not None}
        tensors |= {f"course.{name}": getattr(self.course, name) for name in ("points", "shares", "least")}
        tensors |= {f"{_STATISTIC}{name}": tensor for name, tensor in numbers.items()}
        if table is not None:
            tensors |= {f"{_TABLE}{name}": tensor for name, tensor in table[1].items()}
        return header, tensors

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Job:
        """Return the job that a file describes."""
        _HEADER("", header)
        mechanism, simulation = dict(header.get("mechanism") or {}), header.get("simulation")
        model = PublicModel(
            header["model"], header["model_digest"], float_tensor(tensors, "trunk", 1) if "trunk" in tensors else None
        )
        mechanism["scale"] = build(Scale, "mechanism.scale", mechanism.get("scale"))
        about, least = header["about"], tensors.get("course.least")
        table_header = about["table"]
        if least is None or least.dim() != 1 or not len(least):
            raise DpvalueError("the tensor 'course.least' must be whole numbers, in 1 dimension")
        points, shares = float_tensor(tensors, "course.points", 3), float_tensor(tensors, "course.shares", 1)
        table, numbers = (
            {name.removeprefix(whose): tensor for name, tensor in tensors.items() if name.startswith(whose)}
            for whose in (_TABLE, _STATISTIC)
        )
        return build(
            cls,
            "the job",
            {
                **{name: part for name, part in header.items() if name not in ("rounds", "model_digest")},
                "course": RoundPlan(header["rounds"], points, shares, least),
                "about": build(
                    JobNotes, "about", {**about, "table": None if table_header is None else (table_header, table)}
                ),
                "model": model,
                "encoding": encoding_from_json(header["encoding"]),
                "mechanism": build(Mechanism, "mechanism", mechanism),
                "privacy": build(Privacy, "privacy", header.get("privacy")),
                "statistic": statistic_of_parts(header.get("statistic"), numbers),
                "simulation": None if simulation is None else build(Simulation, "simulation", simulation),
                "origin": float_tensor(tensors, "origin", 1),
                "basis": float_tensor(tensors, "basis", 2) if "basis" in tensors else None,
            },
        )
