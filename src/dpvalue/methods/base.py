"""The interface of a method of valuing: the statistic that parties release, and the game of the releases.

    settings and public set -> Choice -> statistic of a unit -> release -> table -> game

A `Method` holds the public side. `choose` makes it once, together with all other settings that are open. The job, the
table and the plan hold it. A new method is a subclass in one file, registered by `register_method`. Its statistic is
registered by `protocol.statistics.register_statistic`, for party agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

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
from dpvalue.planning.situation import Agreement, Expectation, Situation, expectation_at
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.projection import Basis, Projection
from dpvalue.protocol.schedule import Schedule
from dpvalue.protocol.statistics import Statistic
from dpvalue.stored import build

if TYPE_CHECKING:
    from dpvalue.methods.leaf_coverage import CellHolding


@dataclass(frozen=True, eq=False)
class Method(ABC):
    """The public side of one method of valuing, with all choices made.

    Formal guarantee: a function of the public set, the settings and the parties' public sizes.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    """Completes the sentence "Each party ..."; empty for sums of steps."""
    game_name: ClassVar[str]
    """The name of the game in texts."""
    worth_label: ClassVar[str] = "utility"
    """The label of the worth axis in plots."""
    one_release: ClassVar[bool] = False
    """Whether each party makes exactly one release: such a method has no schedule and no expected AUC."""
    is_selectable: ClassVar[bool] = True
    """Whether `Settings.game` may name the method."""
    fits_coalitions: ClassVar[bool] = False
    """Whether the worth of a coalition is a model fit, which costs the same for every coalition."""

    # Choices.

    @classmethod
    @abstractmethod
    def choose(cls, situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Return all choices that the settings leave open; a plan passes its `rehearsal` on public rows."""

    @classmethod
    def unmet_requirement(cls, situation: Situation) -> str:
        """Return the requirement that the situation does not meet, in words; empty if the method can be used."""
        return ""

    @classmethod  # noqa: B027  (any budget does, by default)
    def require_budget(cls, privacy: Privacy, auc: float | None) -> None:
        """Raise if the method does not support the budget, or a target AUC."""

    @property
    def projection(self) -> Projection | None:
        """The public directions of the releases; None for all directions, or if the method has none."""
        return None

    @property
    def released(self) -> str:
        """What a release is, in a few words, for a plan and a report."""
        return "all directions" if self.projection is None else str(self.projection)

    @abstractmethod
    def expectation(
        self, situation: Situation, choice: Choice, rehearsal: Rehearsal | None
    ) -> Expectation | Agreement | None:
        """Return the expected quality of the values, by rehearsal on public rows; None without an estimate."""

    # The query to parties.

    @property
    @abstractmethod
    def statistic(self) -> Statistic:
        """The statistic of one unit."""

    def unit_numbers(self, model: UnitNumbers) -> UnitNumbers:
        """Return the function from a row to its numbers, given the model of the choice; by default that model."""
        return model

    def choice_by_size(self, situation: Situation, choice: Choice) -> tuple[Choice, Ints]:
        """Return the choice for one stand-in per range of sizes, and the least number of units of each range."""
        return choice, np.zeros(1, dtype=np.int64)

    def for_parties(self, ranges: Ints) -> Self:
        """Return the method for parties in these ranges of `choice_by_size` (n,)."""
        return self

    # The game.

    @abstractmethod
    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> ReleaseGame:
        """Return the game of a table under a public utility."""

    @abstractmethod
    def stand_in_game(self, situation: Situation, choice: Choice, rows: Tensor) -> ReleaseGame:
        """Return the game of stand-ins with these rows, at most one per party; it is timed for a plan."""

    def coverage(self, table: ReleaseTable) -> tuple[CellHolding, ...]:
        """Return which records parties of a table mostly hold themselves; empty if releases do not tell."""
        return ()

    def complete(self, model: Model, example_row: Tensor) -> Model:
        """Return the full model, given the model that a table names; `example_row` is a row of zeros."""
        return model

    def digest(self, model: Model, example_row: Tensor) -> str:
        """Return the digest of the released numbers, for comparison with that of the table."""
        return model.digest()

    # Storage.

    def header(self) -> dict[str, Any]:
        """Return the numbers and texts of the method for a file."""
        return {}

    def tensors(self) -> Tensors:
        """Return the tensors of the method for a file."""
        return {}

    @classmethod
    @abstractmethod
    def from_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return the method of a file, whose table starts at `origin`, along `basis`; raise if the parts do not fit."""

    def require_parties(self, n: int) -> None:  # noqa: B027  (most methods are for any number)
        """Raise unless the method is for n parties."""


@dataclass(frozen=True)
class Choice:
    """All choices of a run.

    Attributes:
        method: the method of valuing.
        model: the function of the released numbers: a model, a model restricted to the basis, or the method's own.
        initial: the initial parameters (size,), of the size of a release.
        basis: the public directions; None for all.
        schedule: when parties release.
        releases: noisy messages per party.
        mechanism: clipping and noise of each release.
        learning_rate: alpha.
        guarantee: the guarantee of all releases.
        expectation: the expected AUC of detecting corrupted parties, by rehearsal on the public set; None if no choice
            was open.
        no_refit_reason: why "auto" does not value data sets by retraining; empty if it does, or for single rows.
    """

    method: Method
    model: UnitNumbers
    initial: Tensor
    basis: Basis | None
    schedule: Schedule
    releases: int
    mechanism: Mechanism
    learning_rate: float
    guarantee: Guarantee
    expectation: Expectation | None = None
    no_refit_reason: str = ""

    @property
    def expected_auc(self) -> float | None:
        """The expected AUC of detecting corrupted parties; None without a rehearsal."""
        return None if self.expectation is None else self.expectation.auc

    @property
    def projection(self) -> Projection | None:
        """The projection that made the basis; None for all directions."""
        return self.method.projection

    @property
    def walk_model(self) -> Model:
        """The model of walks over the releases: the full model, or its restriction to the basis."""
        return cast(Model, self.model)

    @property
    def unit_numbers(self) -> UnitNumbers:
        """The function from a row to its numbers."""
        return self.method.unit_numbers(self.model)

    @property
    def points(self) -> Tensor:
        """The points of the first release (q, size); (q, n, size) if each party has points of its own."""
        return self.initial[None] if self.basis is None else self.basis.points

    def points_for(self, count: int) -> Tensor:
        """Return the points of `count` stand-ins for parties."""
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
    """Register a method under its name, for settings, jobs and tables; every process that reads its files needs it."""
    if METHODS.setdefault(method.name, method) is not method:
        raise DpvalueError(f"a method {method.name!r} is registered already")
    if method.is_selectable and method.name not in GAMES:
        GAMES.append(method.name)


def method_named(name: str) -> type[Method]:
    """Return the method of a name; raise if none is registered."""
    if name not in METHODS:
        raise DpvalueError(f"unknown method {name!r}; the methods are {', '.join(METHODS)}")
    return METHODS[name]


def rehearsed_auc(situation: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
    """Return the expected AUC of detecting corrupted parties, by the choice or, without one, by all directions."""
    if choice.expectation is not None or rehearsal is None or situation.settings.privacy is None:
        return choice.expectation
    return expectation_at(
        situation, situation.settings.privacy, rehearsal
    )  # with a fixed norm there was no choice to rehearse


def require_no_tensors(name: str, tensors: Tensors) -> None:
    """Raise if a file holds tensors for a method without tensors."""
    if tensors:
        raise DpvalueError(f"the method {name!r} has no tensors of its own, got {', '.join(sorted(tensors))}")


def projection_header(projection: Projection | None) -> dict[str, Any]:
    """Return the header entry of a projection."""
    return {"projection": None if projection is None else vars(projection)}


def projection_of(header: dict[str, Any], basis: Tensor | None) -> Projection | None:
    """Return the projection of a file; raise unless projection and basis are both present or both absent."""
    header_projection = header.get("projection")
    if (basis is None) != (header_projection is None):
        raise DpvalueError("projection and basis must be given together, got one of them")
    return None if header_projection is None else build(Projection, "projection", header_projection)
