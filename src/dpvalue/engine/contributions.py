"""What a party contributes at a model, before noise: its clipped gradient. Never leaves the engine without noise."""

from __future__ import annotations

import torch
from torch import Tensor

from dpvalue.engine.factored import FactoredRows
from dpvalue.engine.local import Local
from dpvalue.models import Linear, Model
from dpvalue.parties import PartyRows
from dpvalue.privacy.mechanism import Mechanism


class Contributions:
    """The parties' rows behind the model and the mechanism; one contribution takes about `numbers` numbers to make."""

    def __init__(self, model: Model, rows: PartyRows, mechanism: Mechanism, engine: Local) -> None:
        self.mechanism = mechanism
        self.n = rows.n
        self._model, self._rows = model, rows
        self._x, self._y = model.inputs(rows.x), model.targets(rows.y)
        self.release_std = mechanism.noise_std(rows.sizes.cpu())
        gradients = rows.width if mechanism.per_record else 1
        self.numbers = 4 * gradients * model.size + rows.width * (4 * model.numbers_per_row() + self._x[0].numel())
        self._batch = engine.piece(self.numbers, least=64)
        self._engine = engine
        self.factored: FactoredRows | None = None
        if isinstance(model, Linear) and rows.width == 1:
            self.factored = FactoredRows(model, rows, mechanism)

    def rows_of(self, who: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the padded rows (..., r), targets and weights of the parties `who` (...), for `clipped_gradients`."""
        index = self._rows.index[who]
        return self._x[index], self._y[index], self._rows.weights[who]

    def clipped_gradients(self, theta: Tensor, rows: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return the clipped gradients (b, d) of parties with these rows, party i at the model theta[i].

        Unit party: the gradient of the mean loss over its rows, clipped. Unit record: the sum of its records' clipped
        gradients, divided by its public number of records; in float64, as one record's share of a float32 sum would
        drown in its rounding. What is released is rounded after the noise.
        """
        x, y, weights = rows
        if not self.mechanism.per_record:
            return self.mechanism.clipped(self._model.gradients(theta, x, y, weights))
        records = self.mechanism.clipped(self._model.record_gradients(theta, x, y))
        return (records * weights.unsqueeze(-1)).sum(1, dtype=torch.float64)

    def noise(self, drawn: Tensor, who: Tensor) -> Tensor:
        """Turn standard normal rows (..., d) into the noise of releases of the parties who (...), in place."""
        return drawn.mul_(self.release_std.to(drawn)[who].unsqueeze(-1))

    def at(self, theta: Tensor, who: Tensor) -> Tensor:
        """Return the clipped gradients (b, d) of the parties who (b,), in batches that fit."""
        pairs = zip(theta.split(self._batch), who.split(self._batch), strict=True)

        def work(pair: tuple[Tensor, Tensor]) -> Tensor:
            return self.clipped_gradients(pair[0], self.rows_of(pair[1]))

        return torch.cat(self._engine.map(work, pairs, self._model.threads_may_share))
