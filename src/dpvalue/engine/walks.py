"""Walking permutations over a fixed table: the model after p parties is theta_0 - alpha * (sum of their rows)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.engine.base import Engine
from dpvalue.models import Model


@dataclass(frozen=True)
class Walker:
    """The public side of a walk: a model, where it starts, how far a step goes, and on what it runs."""

    model: Model
    initial: Tensor
    learning_rate: float
    engine: Engine

    def prefixes(self, table: Tensor, permutations: Ints) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield pieces of the walks: which walks, which positions, and the models before and after each position.

        The models have the shape (walks, positions, d), as many in a piece as fit.
        """
        walks, n = permutations.shape
        batch = self.engine.piece(4 * self.model.size, least=2048)
        together, step = max(1, batch // n), min(n, batch)
        for w in range(0, walks, together):
            orders = torch.from_numpy(permutations[w : w + together]).to(table.device)
            model = self.initial.expand(len(orders), 1, -1)
            for p in range(0, n, step):
                parties = orders[:, p : p + step]
                path = torch.cat([model, table[parties].mul_(-self.learning_rate)], dim=1).cumsum_(1)
                yield slice(w, w + len(orders)), slice(p, p + parties.shape[1]), path[:, :-1], path[:, 1:]
                model = path[:, -1:].clone()
