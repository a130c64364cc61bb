"""What a party contributes at a model, before noise: its clipped gradient. Never leaves the engine without noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.engine.local import Local
from dpvalue.models import Model
from dpvalue.parties import PartyRows
from dpvalue.privacy.mechanism import Mechanism


@dataclass(frozen=True)
class Contributions:
    """The parties' rows behind the model and the mechanism."""

    model: Model
    rows: PartyRows
    mechanism: Mechanism
    engine: Local

    def at(self, theta: Tensor, who: Tensor) -> Tensor:
        """Return the clipped gradients (b, d) of the parties who (b,), party who[i] at the model theta[i].

        Unit party: the gradient of the mean loss over its rows, clipped. Unit record: the sum of its records' clipped
        gradients, divided by its public number of records.
        """
        batch = self._batch()
        if len(who) <= batch:
            return self._at(theta, who)
        pairs = zip(theta.split(batch), who.split(batch), strict=True)
        return torch.cat([self._at(some, parties) for some, parties in pairs])

    def _at(self, theta: Tensor, who: Tensor) -> Tensor:
        index = self.rows.index[who]
        x, y, weights = self.rows.x[index], self.rows.y[index], self.rows.weights[who]
        if not self.mechanism.per_record:
            return self.mechanism.clipped(self.model.gradients(theta, x, y, weights))
        records = self.mechanism.clipped(self.model.record_gradients(theta, x, y))
        return (records * weights.unsqueeze(-1)).sum(1)

    def _batch(self) -> int:
        gradients = self.rows.width if self.mechanism.per_record else 1
        return self.engine.batch(4 * gradients * self.model.size + 4 * self.rows.width * self.model.numbers_per_row())
