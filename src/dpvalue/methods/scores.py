"""The game of released scores, an additive one: v(S) is the sum of the scores of S.

What a party adds is the same whoever else is there, so that every semivalue whose position weights are 1 on average
(all of them) is the score itself. A score above zero is that of a party which fits the public model
better than public rows do on average. Nothing is known of redundancy: a copied row has the value of the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.valuation.games import Game
from dpvalue.valuation.semivalues import Semivalue

ADDITIVE = "released a score: what is valued is the sum of scores, an additive game"


class AdditiveGame(Game):
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
