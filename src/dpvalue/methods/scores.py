"""Scores: each party releases its negated loss under a public model, and v(S) is the sum of the scores of S.

The marginal of a party does not depend on the other parties. Position weights have mean 1, so every semivalue equals
the score. A positive score means that the party fits the public model better than public rows do on average. Scores
ignore redundancy: a copy of a row has the value of the row.
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
from dpvalue.methods.base import Choice, Method, projection_header, projection_of, rehearsed_auc, require_no_tensors
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
    """Sums of negated losses under a public model, relative to the mean of public rows.

    `Steps` chooses it where it has the larger expected AUC; `Projection(1, "loss")` requests it.

    Args:
        line: the line through the public model.
    """

    name: ClassVar[str] = "scores"
    game_name: ClassVar[str] = "sum of scores"
    summary: ClassVar[str] = "released a score: what is valued is the sum of scores, an additive game"
    worth_label: ClassVar[str] = "sum of scores"
    is_selectable: ClassVar[bool] = False

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
    def choose(cls, situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Raise: settings cannot name this method."""
        raise DpvalueError("game must not be 'scores': give projection=Projection(1, 'loss') instead")

    def expectation(self, situation: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
        """Return the expected AUC of detecting corrupted parties."""
        return rehearsed_auc(situation, choice, rehearsal)

    def unit_numbers(self, model: UnitNumbers) -> UnitNumbers:
        """Return the negated losses along the line."""
        assert isinstance(model, SubspaceModel)
        return Score(model)

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> AdditiveGame:
        """Return the additive game of the table's scores; it does not depend on the utility."""
        return AdditiveGame(table.rows)

    def stand_in_game(self, situation: Situation, choice: Choice, rows: Tensor) -> AdditiveGame:
        """Return the additive game of these scores."""
        return AdditiveGame(rows)

    def header(self) -> dict[str, Any]:
        """Return the projection for a file."""
        return projection_header(self.line)

    @classmethod
    def from_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return the method of a file."""
        require_no_tensors(cls.name, tensors)
        line = projection_of(header, basis)
        if line is None or not line.is_score:
            raise DpvalueError("a table of scores needs a projection with source 'loss'")
        return cls(line)


def score_scale(projection: Projection | None, situation: Situation) -> Scale:
    """Return the scale of releases without privacy: scores are shifted by the mean of public rows."""
    if projection is None or not projection.is_score:
        return Scale()
    clean = [fold[0].score for fold in situation.rehearsal().sketches(projection).values()]
    return Scale(level=-float(np.concatenate(clean).mean()))


class AdditiveGame(ReleaseGame):
    """The additive game of a table of scores; made by `Table.game`.

    Formal guarantee: reads the table only; its results are post-processing.

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
        """Return the semivalue: the scores times the mean of the position weights, which is 1."""
        return self._scores * float(semivalue.position_weights(self.n).mean())
