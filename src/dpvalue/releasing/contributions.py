"""What a party contributes at a model: its clipped gradient, which leaves the engine through `release` alone.

`Contributions.release` is the one place where noise is added, whatever the schedule, the model and the kind of noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

import torch
from torch import Tensor

from dpvalue.data.rows import PartyRows, PersonRows
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.models import Linear, Model
from dpvalue.privacy.grid import Grid, make_grid
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.privacy.noise import NoiseSource, NoiseStream
from dpvalue.releasing.factored import FactoredRows, OuterProducts
from dpvalue.releasing.people import People

Clipped = TypeVar("Clipped", Tensor, OuterProducts)
Witness = Callable[[Tensor, Tensor], None]
"""Takes parties (...) and what they released (..., d): what an observer of every message sees, in order."""


def nobody(who: Tensor, releases: Tensor) -> None:
    """Watch nothing."""


class Contributions:
    """The parties' rows behind the model and the mechanism; one contribution takes about `numbers` numbers to make.

    With `on_grid`, contributions are asked for in whole steps of a grid, and noise comes in the same steps.
    """

    def __init__(
        self, model: Model, rows: PartyRows | PersonRows, mechanism: Mechanism, engine: Local, on_grid: bool = False
    ) -> None:
        self.mechanism = mechanism
        self.n = rows.n
        self._model, self._rows, self._engine, self._on_grid = model, rows, engine, on_grid
        self._people = People(model, rows, engine) if isinstance(rows, PersonRows) else None
        self.units = rows.units if isinstance(rows, PersonRows) else rows.sizes
        self.release_scale = mechanism.noise_scale(self.units.cpu())
        self.read_std = mechanism.scale.gain * mechanism.noise_std(self.units.cpu())
        width = int(self.units.max())
        gradients = width if mechanism.per_unit else 1
        numbers = model.inputs(rows.x.new_zeros(1, *rows.x.shape[1:])).numel()
        self.numbers = 4 * gradients * model.numbers + width * (4 * model.numbers_per_row() + numbers)
        self._batch = engine.piece(self.numbers, least=64)
        self.factored: FactoredRows | None = None
        if isinstance(rows, PersonRows):
            return
        self._x, self._y = model.inputs(rows.x), model.targets(rows.y)
        self._counts = rows.weights.gt(0).any(1)
        if isinstance(model, Linear) and rows.width == 1 and mechanism.rule == "flat" and not on_grid:
            self.factored = FactoredRows(model, rows, mechanism)

    def grid(self, probes: int = 1) -> Grid | None:
        """Return the grid for sums over this many probes; None for noise of floating point."""
        if not self._on_grid:
            return None
        units = int(self.units.max()) if self.mechanism.per_unit else 1
        return make_grid(self.mechanism, self._model.size, probes, units)

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
        """What is clipped: the gradients of parties (b, d), or of their records or persons (b, r, d)."""
        if self._people is not None:
            return self._people.gradients(theta, who)
        assert isinstance(self._rows, PartyRows)
        index = self._rows.index[who]
        if self.mechanism.per_unit:
            return self._model.record_gradients(theta, self._x[index], self._y[index])
        return self._model.gradients(theta, self._x[index], self._y[index], self._rows.weights[who])

    def _clip(self, gradients: Tensor, who: Tensor, grid: Grid | None) -> Tensor:
        if not self.mechanism.per_unit:
            clipped = self.mechanism.clipped(gradients)
            clipped = clipped * self._counts[who].unsqueeze(
                -1
            )  # a party without a row that counts: not minus the centre
            return clipped if grid is None else grid.round(clipped)
        if isinstance(self._rows, PartyRows):
            weights = self._rows.weights[who]
        else:  # one without rows has a mean of NaN, which is clipped to zero
            weights = 1 / self.units[who].clamp_min(1).to(torch.float64).unsqueeze(-1).expand(-1, gradients.shape[1])
        clipped = self.mechanism.clipped(gradients)
        if grid is not None:
            clipped, weights = grid.round(clipped), weights > 0
        return (clipped * weights.unsqueeze(-1)).sum(1, dtype=torch.float64)

    def streams(
        self, source: NoiseSource, numbers: Iterable[int], like: Tensor, grid: Grid | None
    ) -> list[NoiseStream]:
        """Return a stream of noise for each of the rounds or walks of these numbers; none without privacy."""
        if not self.mechanism.noise_multiplier:
            return []
        bits = 0 if grid is None else grid.bits
        return [source.stream(number, like, self.mechanism.law, bits) for number in numbers]

    def noise(self, streams: list[NoiseStream], who: Tensor, like: Tensor) -> Tensor:
        """Return the noise (streams, b, d) of releases of the parties who (streams, b): zero without privacy.

        Noise of scale 1 is multiplied by the scale of each party; noise on a grid is in steps already.
        """
        shape = (*who.shape, len(like))
        if not streams:
            return like.new_zeros(shape)
        drawn = like.new_empty(shape, dtype=torch.float64 if self._on_grid else None)
        for stream, rows in zip(streams, drawn, strict=True):
            stream.fill(rows)
        return drawn if self._on_grid else drawn.mul_(self.release_scale.to(drawn)[who].unsqueeze(-1))

    def release(self, clipped: Clipped, noise: Tensor | None, who: Tensor, grid: Grid | None) -> Clipped:
        """Return what the parties who (b,) release: clipped contributions plus noise, read on the public scale.

        On a grid whole numbers are added, exactly, before anything is multiplied. Outer products are added to the noise
        where it lies, which becomes the release, and returned for a walk to follow together with the noise.

        Formal guarantee: with privacy, nothing is returned without noise; a release is as private as the law of the
        noise says of contributions that move by the mechanism's sensitivity.
        """
        if noise is None and self.mechanism.noise_multiplier:
            raise DpvalueError("noise must be given: a contribution does not leave without it")
        if isinstance(clipped, OuterProducts):
            if noise is not None:
                clipped.add_to(noise)
            return clipped
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
            parts = (
                share * self._gradients(point.expand(len(some), -1), some)
                for point, share in zip(points, shares, strict=True)
            )
            return self._clip(reduce(torch.add, parts), some, grid)  # one after the other: see `People`

        return torch.cat(self._engine.map(work, who.split(self._batch), self._model.threads_may_share))
