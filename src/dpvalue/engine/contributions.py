"""What a party contributes at a model, before noise: its clipped gradient. Never leaves the engine without noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpvalue.engine.factored import FactoredRows
from dpvalue.engine.local import Local
from dpvalue.models import Linear, Model
from dpvalue.parties import PartyRows
from dpvalue.privacy.grid import Grid, make_grid
from dpvalue.privacy.mechanism import Mechanism

Witness = Callable[[Tensor, Tensor], None]
"""Takes parties (...) and what they released (..., d): what an observer of every message sees, in order."""


def nobody(who: Tensor, releases: Tensor) -> None:
    """Watch nothing."""


class Contributions:
    """The parties' rows behind the model and the mechanism; one contribution takes about `numbers` numbers to make.

    With `on_grid`, contributions are asked for in whole steps of a grid, and noise comes in the same steps.
    """

    def __init__(
        self, model: Model, rows: PartyRows, mechanism: Mechanism, engine: Local, on_grid: bool = False
    ) -> None:
        self.mechanism = mechanism
        self.n = rows.n
        self._model, self._rows = model, rows
        self._x, self._y = model.inputs(rows.x), model.targets(rows.y)
        self.units = rows.persons if mechanism.unit == "person" else rows.sizes
        self._most_units = int(self.units.max())
        self._has_empty = bool((rows.sizes == 0).any())
        self.release_scale = mechanism.noise_scale(self.units.cpu())
        self.read_std = mechanism.scale.gain * mechanism.noise_std(self.units.cpu())
        gradients = rows.width if mechanism.per_unit else 1
        self.numbers = 4 * gradients * model.numbers + rows.width * (4 * model.numbers_per_row() + self._x[0].numel())
        self._batch = engine.piece(self.numbers, least=64)
        self._engine = engine
        self._on_grid = on_grid
        self.factored: FactoredRows | None = None
        if isinstance(model, Linear) and rows.width == 1 and mechanism.rule == "flat" and not on_grid:
            self.factored = FactoredRows(model, rows, mechanism)

    def grid(self, probes: int = 1) -> Grid | None:
        """Return the grid for sums over this many probes; None for noise of floating point."""
        return make_grid(self.mechanism, self._model.size, probes) if self._on_grid else None

    def clipped_gradients(self, theta: Tensor, who: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the clipped gradients (b, d), less their centre, of the parties who (b,) at the models theta (b, d).

        Unit party: the gradient of the mean loss over its rows, clipped. Unit record: the sum of its records' clipped
        gradients, divided by its public number of records; unit person: a person's records are averaged, clipped
        together, and divided by the public number of persons. Sums are in float64, as one record's share of a float32
        sum would drown in its rounding. What is released is rounded after the noise.

        On a grid: the same in whole steps, each unit rounded, and the sum not divided: `release` does that.
        """
        return self._clip(self._gradients(theta, who), who, grid)

    def _gradients(self, theta: Tensor, who: Tensor) -> Tensor:
        """What is clipped: the gradients of parties (b, d), or of their records (b, r, d)."""
        index = self._rows.index[who]
        if self.mechanism.per_unit:
            return self._model.record_gradients(theta, self._x[index], self._y[index])
        return self._model.gradients(theta, self._x[index], self._y[index], self._rows.weights[who])

    def _clip(self, gradients: Tensor, who: Tensor, grid: Grid | None) -> Tensor:
        if not self.mechanism.per_unit:
            clipped = self.mechanism.clipped(gradients)
            if self._has_empty:
                clipped = clipped * (self._rows.sizes[who] > 0).unsqueeze(-1)
            return clipped if grid is None else grid.round(clipped)
        if self.mechanism.unit == "record":
            weights = self._rows.weights[who]
        else:
            gradients, weights = self._by_person(gradients, who)
        clipped = self.mechanism.clipped(gradients)
        if grid is not None:
            clipped, weights = grid.round(clipped), weights > 0
        return (clipped * weights.unsqueeze(-1)).sum(1, dtype=torch.float64)

    def _by_person(self, records: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        """The mean gradients (b, p, d) of each person's records, and the weights (b, p), 1 / persons or 0."""
        assert self._rows.people is not None
        assert self._rows.shares is not None
        # One bad record must not silence a person's others; a person without a good one is clipped to zero, as NaN is.
        finite = records.isfinite().all(-1, keepdim=True)
        shared = torch.where(finite, records, 0.0) * self._rows.shares[who].unsqueeze(-1)
        means = records.new_zeros(len(who), self._most_units, records.shape[-1])
        means.scatter_add_(1, self._rows.people[who].unsqueeze(-1).expand_as(shared), shared)
        good = means.new_zeros(*means.shape[:2], 1)
        good.scatter_add_(1, self._rows.people[who].unsqueeze(-1), finite * self._rows.shares[who].unsqueeze(-1))
        means = torch.where(good > 0, means, torch.nan)
        present = torch.arange(self._most_units, device=who.device) < self.units[who].unsqueeze(-1)
        return means, present / self.units[who].clamp_min(1).to(records.dtype).unsqueeze(-1)

    def noise(self, drawn: Tensor, who: Tensor) -> Tensor:
        """Turn rows of drawn noise (..., d) into the noise of releases of the parties who (...), in place.

        Noise of scale 1 is multiplied by the scale of each party; noise on a grid is in steps already.
        """
        return drawn if self._on_grid else drawn.mul_(self.release_scale.to(drawn)[who].unsqueeze(-1))

    def release(self, clipped: Tensor, noise: Tensor | None, who: Tensor, grid: Grid | None) -> Tensor:
        """Return what the parties who (b,) release: clipped contributions plus noise, read on the public scale.

        On a grid whole numbers are added, exactly, before anything is multiplied.
        """
        noisy = clipped if noise is None else clipped + noise
        if grid is not None:
            units = self.units[who].clamp_min(1) if self.mechanism.per_unit else torch.ones_like(who)
            noisy = noisy * (grid.step / grid.probes / units.to(torch.float64)).unsqueeze(-1)
        return self.mechanism.scale.read(noisy)

    def at(self, theta: Tensor, who: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the clipped gradients (b, d), less their centre, of the parties who (b,), in batches that fit."""
        pairs = zip(theta.split(self._batch), who.split(self._batch), strict=True)

        def work(pair: tuple[Tensor, Tensor]) -> Tensor:
            return self.clipped_gradients(*pair, grid)

        return torch.cat(self._engine.map(work, pairs, self._model.threads_may_share))

    def along(self, points: Tensor, shares: Tensor, who: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the clipped means, less their centre, of the gradients of the parties who (b,) at the same points.

        Each unit's gradients at the points (q, d), with shares (q,) that sum to 1, are averaged, then clipped once.
        """

        def work(some: Tensor) -> Tensor:
            found = [
                share * self._gradients(point.expand(len(some), -1), some)
                for point, share in zip(points, shares, strict=True)
            ]
            return self._clip(torch.stack(found).sum(0), some, grid)

        return torch.cat(self._engine.map(work, who.split(self._batch), self._model.threads_may_share))
