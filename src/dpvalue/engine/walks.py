"""Walking permutations over a fixed table: the model after p parties is theta_0 - alpha * (sum of their rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.engine.local import Local
from dpvalue.estimates import Ints
from dpvalue.models import Model
from dpvalue.semivalues import Floats
from dpvalue.utility import PublicSet


@dataclass(frozen=True)
class Walker:
    """The public side of a walk: a model, where it starts, how far a step goes, and on what it runs."""

    model: Model
    initial: Tensor
    learning_rate: float
    engine: Local

    def prefixes(self, table: Tensor, permutations: Ints, batch: int) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield pieces of the walks: which walks, which positions, and the models before and after each position.

        The models have the shape (walks, positions, d), at most about `batch` of them in a piece.
        """
        walks, n = permutations.shape
        together, step = max(1, batch // n), min(n, batch)
        for w in range(0, walks, together):
            orders = torch.from_numpy(permutations[w : w + together]).to(table.device)
            model = self.initial.expand(len(orders), 1, -1)
            for p in range(0, n, step):
                steps = table[orders[:, p : p + step]].cumsum(1).mul_(-self.learning_rate)
                after = steps.add_(model)
                before = torch.cat([model, after[:, :-1]], dim=1)
                yield slice(w, w + len(orders)), slice(p, p + after.shape[1]), before, after
                model = after[:, -1:].clone()

    def evaluate(self, public: PublicSet, theta: Tensor) -> Floats:
        """Return the utilities of models (b, d), in batches that fit."""
        parts = [public.evaluate(self.model, some) for some in theta.split(self.utility_batch(public))]
        return torch.cat(parts).numpy()

    def utility_batch(self, public: PublicSet) -> int:
        """Return how many models to evaluate at once."""
        return self.engine.batch(4 * self.model.size + len(public.x) * self.model.numbers_per_row())

    def marginals(self, public: PublicSet, table: Tensor, permutations: Ints) -> Floats:
        """Return the marginals (walks, positions) of each permutation over the table."""
        utilities = np.empty((permutations.shape[0], permutations.shape[1] + 1))
        utilities[:, 0] = self.evaluate(public, self.initial[None])[0]
        for walks, positions, _, after in self.prefixes(table, permutations, self.utility_batch(public)):
            found = self.evaluate(public, after.flatten(0, 1)).reshape(after.shape[:2])
            utilities[walks, positions.start + 1 : positions.stop + 1] = found
        return np.diff(utilities, axis=1)

    def coalition_utilities(self, public: PublicSet, table: Tensor, coalitions: Tensor) -> Floats:
        """Return V of each coalition, a row of 0 and 1 (c, n)."""
        return np.concatenate(
            [
                self.evaluate(public, self.initial - self.learning_rate * (some.to(table.dtype) @ table))
                for some in coalitions.split(self.utility_batch(public))
            ]
        )
