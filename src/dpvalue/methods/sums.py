"""The game of a fixed table, a true coalition game: v(S) = V(theta_0 - alpha * sum of the rows of S)."""

from __future__ import annotations

import torch
from torch import Tensor

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.games.solving import ReleaseGame


class TableGame(ReleaseGame):
    """The game of a table's rows as steps of a model; made by `Table.game`.

    Formal guarantee: reads the table and public inputs only; its results are post-processing.

    Args:
        walker: model, initial parameters, learning rate and engine of a walk.
        evaluate: the utility of models.
        rows: the table (n, d), on the walker's device.
    """

    def __init__(self, walker: Walker, evaluate: Evaluator, rows: Tensor) -> None:
        self.walker, self.evaluate, self.rows, self.n = walker, evaluate, rows, len(rows)

    def with_rows(self, rows: Tensor) -> TableGame:
        """Return the game of another table of the same parties."""
        return TableGame(self.walker, self.evaluate, rows)

    def worth(self, coalitions: Bools) -> Floats:
        """Return the utility of the model of each coalition."""
        walker, rows = self.walker, self.rows
        batch = walker.engine.piece(4 * walker.model.size + self.n, least=2048)
        sums = (members.to(rows) @ rows for members in torch.from_numpy(coalitions).split(batch))
        worths = [self.evaluate(walker.initial - walker.learning_rate * part) for part in sums]
        return torch.cat(worths).cpu().numpy()

    def walk(self, orders: Ints) -> Floats:
        """Return the marginals along each order; each party moves the model by its row."""
        utilities = torch.empty(len(orders), self.n + 1, dtype=torch.float64, device=self.rows.device)
        utilities[:, 0] = self.evaluate(self.walker.initial[None])
        for walks, positions, _, after in self.walker.prefixes(self.rows, orders):
            worths = self.evaluate(after.flatten(0, 1)).view(after.shape[:2])
            utilities[walks, positions.start + 1 : positions.stop + 1] = worths
        return utilities.diff(dim=1).cpu().numpy()

    def leave_one_out(self) -> Floats:
        """Return the marginal of each party to all others."""
        rate = self.walker.learning_rate
        everyone = self.walker.initial - rate * self.rows.sum(0)
        whole = self.evaluate(everyone[None])
        # Rows are added back batch by batch, never all n at once.
        batch = self.walker.engine.piece(4 * len(everyone), least=2048)
        without = [self.evaluate(everyone + rate * part) for part in self.rows.split(batch)]
        return (whole - torch.cat(without)).cpu().numpy()
