"""Scores: each party releases minus its loss under a public model, and v(S) is the sum of the scores of S.

What a party adds is the same whoever else is there, so that every semivalue whose position weights are 1 on average
(all of them) is the score itself. A score above zero is that of a party which fits the public model
better than public rows do on average. Nothing is known of redundancy: a copied row has the value of the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.errors import DpvalueError
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.solving import ReleaseGame
from dpvalue.methods.base import Choice, Method, expected_auc, projection_header, projection_of, require_no_tensors
from dpvalue.methods.table import ReleaseTable
from dpvalue.models import Score, SubspaceModel, UnitNumbers
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.situation import Expectation, Situation
from dpvalue.privacy.mechanism import Scale
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.statistics import Loss, Statistic


@dataclass(frozen=True, eq=False)
class Scores(Method):
    """Minus the loss under a public model is released, less that of public rows; v(S) is the sum of S.

    It is chosen by `Steps` where it finds more, or asked for by `Projection(1, "loss")`.

    Args:
        line: from where to which public model.
    """

    name: ClassVar[str] = "scores"
    game_name: ClassVar[str] = "sum of scores"
    words: ClassVar[str] = "released a score: what is valued is the sum of scores, an additive game"
    worth: ClassVar[str] = "sum of scores"
    named: ClassVar[bool] = False

    line: Projection

    @property
    def projection(self) -> Projection:
        """The line of the public model."""
        return self.line

    @property
    def statistic(self) -> Statistic:
        """A unit's negated loss."""
        return Loss()

    @classmethod
    def choose(cls, at: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Refuse: settings do not name this method."""
        raise DpvalueError("game must not be 'scores': give projection=Projection(1, 'loss') instead")

    def expected(self, at: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
        """Return how well corrupted parties are expected to be found."""
        return expected_auc(at, choice, rehearsal)

    def through(self, numbers: UnitNumbers) -> UnitNumbers:
        """Return the line, asked for losses."""
        assert isinstance(numbers, SubspaceModel)
        return Score(numbers)

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> AdditiveGame:
        """Return the sum of the table's scores, whatever the utility."""
        return AdditiveGame(table.rows)

    def stand_ins(self, at: Situation, choice: Choice, rows: Tensor) -> AdditiveGame:
        """Return the sum of these scores."""
        return AdditiveGame(rows)

    def header(self) -> dict[str, Any]:
        """Return the projection for a file."""
        return projection_header(self.line)

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return what a file describes."""
        require_no_tensors(cls.name, tensors)
        line = projection_of(header, basis)
        if line is None or not line.is_score:
            raise DpvalueError("a table of scores needs a projection with source 'loss'")
        return cls(line)


def zero_of_scores(projection: Projection | None, at: Situation) -> Scale:
    """Return how scores are read without privacy: less the mean of public rows. Gradients are read as they are."""
    if projection is None or not projection.is_score:
        return Scale()
    clean = [fold[0].score for fold in at.rehearsal().sketches(projection).values()]
    return Scale(level=-float(np.concatenate(clean).mean()))


class AdditiveGame(ReleaseGame):
    """What coalitions of the parties of a table of scores are worth; made by `Table.game`.

    Formal guarantee: reads the table only; what it returns is post-processing.

    Args:
        rows: the scores (n, 1).
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.n = rows, len(rows)

    @property
    def _scores(self) -> Floats:
        scores: Floats = self.rows[:, 0].to("cpu", torch.float64).numpy()
        return scores

    def with_rows(self, rows: Tensor) -> AdditiveGame:
        """Return the game of other scores of the same parties."""
        return AdditiveGame(rows)

    def worth(self, coalitions: Bools) -> Floats:
        """Return the sum of the scores of each coalition."""
        return coalitions @ self._scores

    def walk(self, orders: Ints) -> Floats:
        """Return the scores of the parties along each order."""
        return self._scores[orders]

    def leave_one_out(self) -> Floats:
        """Return the scores."""
        return self._scores

    def exact(self, semivalue: Semivalue) -> Floats | None:
        """Return any semivalue: the scores, times the mean of its position weights, which is 1."""
        return self._scores * float(semivalue.position_weights(self.n).mean())
