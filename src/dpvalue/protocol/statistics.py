"""Statistics: what a unit contributes before clipping. They are the party's side of a method of valuing.

A job names a statistic and holds its public numbers; its code is installed at the party. No code of a job is run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import Tensor

from dpvalue.errors import DpvalueError, require_choice, require_positive
from dpvalue.models import (
    DescriptionModel,
    Forest,
    LeafOnes,
    Linear,
    Model,
    Score,
    SubspaceModel,
    UnitNumbers,
    Unsplit,
    project_model,
)
from dpvalue.models.derived import EXTRA_NUMBERS
from dpvalue.models.forest import MOST_CLASSES
from dpvalue.protocol.archive import Tensors
from dpvalue.stored import COUNT, POSITIVE, build, fields


@dataclass(frozen=True, eq=False)
class StatisticContext:
    """The public things that a statistic is a function of, besides the unit itself.

    Attributes:
        model: builds the model of the job; raises if it is not installed or differs.
        outputs: the number of outputs of a model: classes, or 1.
        origin: the parameters that directions start from (d,).
        basis: the public directions (m, d); None: all directions.
    """

    model: Callable[[], Model]
    outputs: int
    origin: Tensor
    basis: Tensor | None

    def whole_model(self) -> Model:
        """Return the model; raises unless it has as many parameters as the origin."""
        model = self.model()
        if model.size != len(self.origin):
            raise DpvalueError(f"origin must have the {model.size} numbers of the model, got {len(self.origin)}")
        return model


class Statistic(ABC):
    """What a unit contributes, as a frozen dataclass of public numbers.

    A subclass for use in jobs is registered under its name (`register_statistic`).
    """

    name: ClassVar[str]
    words: ClassVar[str]
    """What it says of a record; completes "asks for"."""

    @abstractmethod
    def width(self, directions: int) -> int:
        """Return how many numbers a unit contributes, for a model with this number of directions (or parameters)."""

    @abstractmethod
    def unit_numbers(self, context: StatisticContext) -> UnitNumbers:
        """Return the function from rows to the numbers that units contribute."""

    def require_basis(self, basis: Tensor | None) -> None:  # noqa: B027  (any directions do, by default)
        """Raise unless the statistic can use this basis."""

    def header(self) -> dict[str, Any]:
        """Return the fields for a file that are not tensors."""
        return {name: part for name, part in vars(self).items() if not isinstance(part, Tensor)}

    def tensors(self) -> Tensors:
        """Return its tensors for a file; a job leaves tensors of the same names out of its method."""
        return {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Self:
        """Return the statistic of a file's header and tensors; raise unless they fit."""
        return build(cls, f"the statistic {cls.name}", {**header, **tensors})


@dataclass(frozen=True)
class Gradient(Statistic):
    """The gradient of the unit's loss at the models of the query, along the directions if there is a basis."""

    name: ClassVar[str] = "gradient"
    words: ClassVar[str] = "gradient of each record in public directions"

    def width(self, directions: int) -> int:
        """Return the number of directions."""
        return directions

    def unit_numbers(self, context: StatisticContext) -> UnitNumbers:
        """Return the model, moved along the directions."""
        return model_along(context)


@dataclass(frozen=True)
class Loss(Statistic):
    """The score: the negated loss under a public model, one number."""

    name: ClassVar[str] = "score"
    words: ClassVar[str] = "negated loss of each record under a public model"

    def width(self, directions: int) -> int:
        """Return 1."""
        return directions

    def unit_numbers(self, context: StatisticContext) -> UnitNumbers:
        """Return the losses of models on the line."""
        line = model_along(context)
        assert isinstance(line, SubspaceModel)
        return Score(line)

    def require_basis(self, basis: Tensor | None) -> None:
        """Raise unless there is one direction."""
        if basis is None or len(basis) != 1:
            raise DpvalueError("score needs a basis of one direction: a score is one number")


@dataclass(frozen=True)
class Description(Statistic):
    """The gradient at a public model along directions, an indicator of a valid unit, and its squared residual.

    Args:
        distance: the squared residual at which the distance of a record is 1.
    """

    name: ClassVar[str] = "description"
    words: ClassVar[str] = "gradient of each record under a public model in public directions, and its squared residual"

    distance: float

    def __post_init__(self) -> None:
        require_positive("statistic.distance", self.distance)

    def width(self, directions: int) -> int:
        """Return the number of directions, and two more."""
        return directions + EXTRA_NUMBERS

    def unit_numbers(self, context: StatisticContext) -> UnitNumbers:
        """Return the linear model that describes records."""
        model = context.whole_model()
        if not isinstance(model, Linear):
            raise DpvalueError("description is for linear and logistic regression, or a head on a trunk")
        assert context.basis is not None
        return DescriptionModel(model, context.origin, context.basis, self.distance)

    def require_basis(self, basis: Tensor | None) -> None:
        """Raise unless there are directions."""
        if basis is None:
            raise DpvalueError("description needs a basis: directions to describe units in")

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Self:
        """Return what a file describes."""
        fields(distance=POSITIVE)("statistic", header)
        return super().of_parts(header, tensors)


@dataclass(frozen=True, eq=False)
class LeafCounts(Statistic):
    """A one at the unit's leaf and class in each tree of a public forest: B ones, of length sqrt(B).

    Args:
        forest: the trees.
        classes: the number of classes.
    """

    name: ClassVar[str] = "leaf-counts"
    words: ClassVar[str] = "which leaf of each public tree each record falls into, with its label"

    forest: Forest
    classes: int

    def __post_init__(self) -> None:
        if not 2 <= self.classes <= MOST_CLASSES:
            raise DpvalueError(f"statistic.classes must be 2 to {MOST_CLASSES}, got {self.classes}")

    def width(self, directions: int) -> int:
        """Return the number of cells: trees x leaves x classes."""
        return self.forest.trees * self.forest.leaves * self.classes

    def unit_numbers(self, context: StatisticContext) -> UnitNumbers:
        """Return the forest, ready to be asked for ones; raises unless it is for such rows and classes."""
        model = context.model()
        if not isinstance(model, Unsplit):
            raise DpvalueError("leaf-counts are for the model 'trees'")
        if self.classes != context.outputs:
            raise DpvalueError(f"statistic.classes must be the {context.outputs} of the encoding, got {self.classes}")
        self.forest.require_features(model.columns)
        return LeafOnes(self.forest, self.classes)

    def require_basis(self, basis: Tensor | None) -> None:
        """Raise unless there are no directions."""
        if basis is not None:
            raise DpvalueError("leaf-counts have no basis")

    def header(self) -> dict[str, Any]:
        """Return the number of classes."""
        return {"classes": self.classes}

    def tensors(self) -> Tensors:
        """Return the arrays of the trees."""
        return self.forest.tensors()

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors) -> Self:
        """Return what a file describes; raises unless its trees are whole."""
        fields(classes=COUNT)("statistic", header)
        return build(cls, "the statistic leaf-counts", {"forest": Forest.of_tensors(tensors), **header})


def model_along(context: StatisticContext) -> Model:
    """Return the model, moved along the directions if there is a basis."""
    model = context.whole_model()
    return model if context.basis is None else project_model(model, context.origin, context.basis)


STATISTICS: dict[str, type[Statistic]] = {kind.name: kind for kind in (Gradient, Loss, Description, LeafCounts)}


def register_statistic(kind: type[Statistic]) -> None:
    """Register a statistic under its name, for jobs; parties that answer must register it too."""
    if STATISTICS.setdefault(kind.name, kind) is not kind:
        raise DpvalueError(f"a statistic {kind.name!r} is registered already")


def statistic_of_parts(header: Any, tensors: Tensors) -> Statistic:
    """Return the statistic of a file's header and tensors."""
    if not isinstance(header, dict) or not isinstance(header.get("name"), str):
        raise DpvalueError(f"statistic must be an object with a name, got {header!r}")
    require_choice("statistic.name", header["name"], STATISTICS)
    values = {name: part for name, part in header.items() if name != "name"}
    return STATISTICS[header["name"]].of_parts(values, tensors)


def statistic_parts(statistic: Statistic) -> tuple[dict[str, Any], Tensors]:
    """Return the header and the tensors of a statistic for a file."""
    return {"name": statistic.name, **statistic.header()}, statistic.tensors()
