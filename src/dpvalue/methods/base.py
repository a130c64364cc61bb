"""A method of valuing as an object: what is asked of parties, how answers are read, which game is valued.

    settings and public set -> Choice -> statistic of a unit -> release -> table -> game

A `Method` is the public side of all of it, decided once: `choose` makes it, together with everything else that settings
leave open, and the job, the table and the plan hold it. A new one is a subclass in one file, registered by
`register_method`; its statistic is registered by `releasing.statistics.register_statistic`, for parties at home.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.errors import DpvalueError
from dpvalue.games.solving import ReleaseGame
from dpvalue.methods.table import ReleaseTable
from dpvalue.models import Model, UnitNumbers
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import GAMES
from dpvalue.planning.situation import Agreement, Expectation, Situation, expected_at
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.projection import Basis, Projection
from dpvalue.protocol.schedule import Schedule
from dpvalue.protocol.statistics import Statistic
from dpvalue.stored import build


@dataclass(frozen=True, eq=False)
class Method(ABC):
    """The public side of one way of valuing, decided.

    Formal guarantee: a function of the public set, the settings and the parties' public sizes.
    """

    name: ClassVar[str]
    words: ClassVar[str] = ""
    """What a party released and what is valued, to complete "Each party ..."; empty for sums of steps."""
    game_name: ClassVar[str]
    """What the game is called."""
    worth: ClassVar[str] = "utility"
    """What coalitions are worth, as an axis of a picture says it."""
    one_release: ClassVar[bool] = False
    """Whether a party makes one release, in its own way: such a method has no schedule, and finds no AUC."""
    named: ClassVar[bool] = True
    """Whether settings may name it."""
    fits_coalitions: ClassVar[bool] = False
    """Whether a worth is a fit, which costs the same for every coalition, and not a step of a walk."""

    # What is chosen.

    @classmethod
    @abstractmethod
    def choose(cls, at: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Decide everything that the settings leave open; a plan hands over its `rehearsal` of public rows."""

    @classmethod
    def lacking(cls, at: Situation) -> str:
        """Return what the method needs and does not have here; empty where it can be used."""
        return ""

    @classmethod  # noqa: B027  (any budget does, by default)
    def require_budget(cls, privacy: Privacy, auc: float | None) -> None:
        """Raise where the method cannot work at such a budget, or does not answer what a plan is asked."""

    @property
    def projection(self) -> Projection | None:
        """The directions of the releases, in words; None for all, or none."""
        return None

    @abstractmethod
    def expected(self, at: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | Agreement | None:
        """Return what to expect of values, by rehearsal on public rows; None if there is nothing to tell."""

    # What parties are asked.

    @property
    @abstractmethod
    def statistic(self) -> Statistic:
        """What a unit contributes."""

    def through(self, numbers: UnitNumbers) -> UnitNumbers:
        """Return what rows are asked through, given the model of the choice: that model, by default."""
        return numbers

    def by_size(self, at: Situation, choice: Choice) -> tuple[Choice, Ints]:
        """Return the choice for stand-ins of all sizes, one for each range, and the least number of units of each."""
        return choice, np.zeros(1, dtype=np.int64)

    def for_parties(self, ranges: Ints) -> Self:
        """Return the method for parties of these ranges of `by_size`."""
        return self

    # What is valued.

    @abstractmethod
    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> ReleaseGame:
        """Return the game of a table under a public utility."""

    @abstractmethod
    def stand_ins(self, at: Situation, choice: Choice, rows: Tensor) -> ReleaseGame:
        """Return the game of stand-ins for the parties with these rows, fewer or all, to time what values take."""

    def completed(self, model: Model, like: Tensor) -> Model:
        """Return the model that was trained, from the one that a table names; `like` is a row of zeros."""
        return model

    def digest(self, model: Model, like: Tensor) -> str:
        """Return the digest of what releases are numbers of, if that was the model."""
        return model.digest()

    # What a file holds.

    def header(self) -> dict[str, Any]:
        """Return its numbers and texts for a file."""
        return {}

    def tensors(self) -> Tensors:
        """Return its tensors for a file."""
        return {}

    @classmethod
    @abstractmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return what a file describes, whose table starts at `origin`, along `basis`; raises unless it fits."""

    def require_parties(self, n: int) -> None:  # noqa: B027  (most methods are for any number)
        """Raise unless it is for so many parties."""


@dataclass(frozen=True)
class Choice:
    """How a run is made, with every setting decided.

    Attributes:
        method: how parties are valued.
        model: what releases are numbers of: a model, a model moved along the basis, or numbers of the method's own.
        initial: where it starts; of the size of a release.
        basis: the public directions; None for all.
        schedule: when parties release.
        releases: noisy messages per party.
        mechanism: clipping and noise of each.
        learning_rate: alpha.
        spent: the guarantee.
        expected: how well corrupted parties are expected to be found, by rehearsal on the public set; None if nothing
            was left to choose.
        lacking: why data sets are not valued by retraining, where "auto" would have; else empty.
    """

    method: Method
    model: UnitNumbers
    initial: Tensor
    basis: Basis | None
    schedule: Schedule
    releases: int
    mechanism: Mechanism
    learning_rate: float
    spent: Guarantee
    expected: Expectation | None = None
    lacking: str = ""

    @property
    def expected_auc(self) -> float | None:
        """How well corrupted parties are expected to be found, where that was rehearsed."""
        return None if self.expected is None else self.expected.auc

    @property
    def projection(self) -> Projection | None:
        """What the basis was made by; None for all directions."""
        return self.method.projection

    @property
    def walked(self) -> Model:
        """What walks over the releases: the model, or the model moved along the basis. For methods that have one."""
        return cast(Model, self.model)

    @property
    def asked(self) -> UnitNumbers:
        """What rows are asked through."""
        return self.method.through(self.model)

    @property
    def points(self) -> Tensor:
        """Where the first release is taken (q, size); (q, n, size) if each party is asked at points of its own."""
        return self.initial[None] if self.basis is None else self.basis.points

    def points_for(self, count: int) -> Tensor:
        """Return the points that so many stand-ins for parties are asked at."""
        if self.points.dim() == 2:
            return self.points
        return self.points[:, torch.arange(count, device=self.points.device) % self.points.shape[1]]

    @property
    def shares(self) -> Tensor:
        """The weights (q,) of these points."""
        return self.initial.new_ones(1) if self.basis is None else self.basis.shares


METHODS: dict[str, type[Method]] = {}
"""By name; those of the library are registered by `dpvalue.methods`."""


def register_method(method: type[Method]) -> None:
    """Let settings, jobs and tables use a method by its name; it must be registered wherever its files are read."""
    if METHODS.setdefault(method.name, method) is not method:
        raise DpvalueError(f"a method {method.name!r} is registered already")
    if method.named and method.name not in GAMES:
        GAMES.append(method.name)


def method_named(name: str) -> type[Method]:
    """Return a method; raises for one that is not registered here."""
    if name not in METHODS:
        raise DpvalueError(f"unknown method {name!r}; the methods are {', '.join(METHODS)}")
    return METHODS[name]


def expected_auc(at: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
    """Return how well corrupted parties are expected to be found, by what was chosen or by all directions."""
    if choice.expected is not None or rehearsal is None or at.settings.privacy is None:
        return choice.expected
    return expected_at(at, at.settings.privacy, rehearsal)  # at a given norm: nothing had to be chosen


def require_no_tensors(name: str, tensors: Tensors) -> None:
    """Raise unless a file holds no tensors for such a method."""
    if tensors:
        raise DpvalueError(f"the method {name!r} has no tensors of its own, got {', '.join(sorted(tensors))}")


def projection_header(projection: Projection | None) -> dict[str, Any]:
    """Return what a file holds of a projection."""
    return {"projection": None if projection is None else vars(projection)}


def projection_of(header: dict[str, Any], basis: Tensor | None) -> Projection | None:
    """Return the projection of a file; raises unless it comes with a basis, or neither is there."""
    stored = header.get("projection")
    if (basis is None) != (stored is None):
        raise DpvalueError("projection and basis must be given together, got one of them")
    return None if stored is None else build(Projection, "projection", stored)
