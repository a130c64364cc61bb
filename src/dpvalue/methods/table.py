"""The combined releases of all parties, with what reading them as a game needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.encoding import Encoding
from dpvalue.data.utility import Utility
from dpvalue.engine.engines import Engine
from dpvalue.engine.evaluator import Walker
from dpvalue.errors import DpvalueError
from dpvalue.games.solving import ReleaseGame
from dpvalue.models import Model, ModelFactory, build_model, project_model
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.schedule import Schedule

if TYPE_CHECKING:
    from dpvalue.methods.base import Method


@dataclass(frozen=True, eq=False)
class Origin:
    """How a table came about, and from how much.

    Attributes:
        schedule: how the releases were made.
        permutations: as asked for.
        expected_auc: how well corrupted parties were expected to be found, by rehearsal on the public set, if at all.
        sizes: the public number of records of each party (n,); of persons, where these are protected.
    """

    schedule: Schedule
    permutations: int
    expected_auc: float | None
    sizes: Ints


@dataclass(frozen=True, eq=False)
class ReleaseTable:
    """What methods and their games read of a private table; `dpvalue.Table`, which is valued, says what each field is.

    Formal guarantee: a function of the releases and of public things.
    """

    rows: Tensor
    names: tuple[str | int, ...]
    noise_std: Floats
    guarantee: Guarantee
    initial: Tensor
    basis: Tensor | None
    learning_rate: float
    model: str | ModelFactory | None
    digest: str
    encoding: Encoding
    seed: int
    origin: Origin
    method: Method

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.names)

    @property
    def schedule(self) -> Schedule:
        """How the releases were made."""
        return self.origin.schedule

    @property
    def projection(self) -> Projection | None:
        """The directions of the releases; None: all."""
        return self.method.projection

    @property
    def expected_auc(self) -> float | None:
        """How well corrupted parties were expected to be found, if that was rehearsed."""
        return self.origin.expected_auc

    @property
    def sizes(self) -> Ints:
        """The public number of records of each party; of persons for unit "person", as that of records is private."""
        return self.origin.sizes

    @property
    def counted(self) -> str:
        """What `sizes` count: "record" or "person"."""
        return "person" if self.guarantee.unit == "person" else "record"

    def game(self, utility: Utility, engine: Engine) -> ReleaseGame:
        """Return the game of this table under a public utility, as its method plays it."""
        public = utility.encode(self.encoding, engine.torch_dtype, engine.torch_device)  # raises for one of other rows
        return self.method.game(self, public, engine)

    def walker(self, engine: Engine) -> Walker:
        """Return the public side of a walk from this table's initial model."""
        if self.schedule.fresh_start:
            raise DpvalueError("a table made with fresh_start cannot be replayed: its releases belong to many starts")
        model = self.whole_model(engine)
        initial = self.initial.to(engine.torch_device, engine.torch_dtype)
        if self.basis is not None:
            model = project_model(model, initial, self.basis.to(initial))
            initial = model.initial(0)
        return Walker(model, initial, self.learning_rate, engine)

    def whole_model(self, engine: Engine) -> Model:
        """Return the model that was trained, with all its parameters.

        Args:
            engine: where to compute.

        Returns:
            the model.

        Raises:
            DpvalueError: a model that is not the one of the run, or a custom model that was not passed again.

        Example:
            >>> table.whole_model(dpv.Local()).size == len(table.initial)  # `table` is that of `dpvalue.Result`
            True
        """
        if self.model is None:
            raise DpvalueError("the table was made with a custom model: pass it again with load(path, model=...)")
        like = torch.zeros(self.encoding.shape, dtype=engine.torch_dtype, device=engine.torch_device)
        model = build_model(
            self.model, self.encoding.task, like, self.encoding.outputs, engine.torch_dtype, engine.torch_device
        )
        model = self.method.complete(model, like)
        if self.method.digest(model, like) != self.digest:
            raise DpvalueError("model is not the one of the table: its digest differs")
        if model.size != len(self.initial):
            raise DpvalueError(
                f"the table's initial model has {len(self.initial)} numbers; the model takes {model.size}"
            )
        return model
