"""Contributions of parties: clipped gradients, which leave only through `Contributions.release`.

`Contributions.release` is the only place that adds noise, for every schedule, model and source of noise.

Parties are batched with others of similar size, and large parties are cut into slices, so memory is proportional to the
number of rows. The batches are a function of the public sizes.

`Responder.answer` evaluates a query. The models of a query are functions of earlier releases and of public values; the
answer has noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.rows import PrivateRows, PublicRows
from dpvalue.engine.engines import Engine
from dpvalue.errors import DpvalueError
from dpvalue.models import Linear, UnitNumbers
from dpvalue.party.factored import FactoredRows, OuterProducts
from dpvalue.party.people import People
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.mechanism import Grid, Mechanism, make_grid
from dpvalue.privacy.noise import NoiseSource, NoiseStream
from dpvalue.protocol.messages import AtPoints, Query

_SLICE_NUMBERS = 2**21

_PART_NUMBERS, _MOST_PARTS = 2**18, 8

Clipped = TypeVar("Clipped", Tensor, OuterProducts)

Witness = Callable[[Tensor, Tensor], None]
"""A function of parties (...) and their releases (..., d), called in order: the view of an observer."""


def no_witness(parties: Tensor, releases: Tensor) -> None:
    """Do nothing."""


def split_evenly(count: int, numbers: int) -> list[slice]:
    """Return slices of `count` items of `numbers` numbers each, for threads; few, since each has an overhead."""
    size = -(-count // max(1, min(_MOST_PARTS, count * numbers // _PART_NUMBERS)))
    return [slice(start, start + size) for start in range(0, count, size)]


@dataclass(frozen=True)
class Slicing:
    """The slices of each party of a class: `slices` of `width` rows or persons; the last may have fewer."""

    slices: int
    width: int


def cut(sizes: Ints, most: int) -> tuple[tuple[Slicing, ...], Ints]:
    """Return classes of parties with equally many slices of at most `most` rows, and the class of each party.

    Widths in a class differ by less than a factor of 2, so at most half of a slice is padding.
    """
    slices = np.maximum(-(-sizes // most), 1)
    widths = np.maximum(-(-sizes // slices), 1)
    keys, kind = np.unique(np.stack([slices, np.frexp(widths)[1]]), axis=1, return_inverse=True)
    kind = kind.reshape(-1)
    widest = np.zeros(keys.shape[1], dtype=np.int64)
    np.maximum.at(widest, kind, widths)
    return tuple(Slicing(int(count), int(width)) for count, width in zip(keys[0], widest, strict=True)), kind


class Contributions:
    """The parties' rows behind the model and the mechanism; one contribution needs memory for about `numbers` numbers.

    With `on_grid`, contributions and noise are in whole steps of a grid.
    """

    def __init__(
        self,
        model: UnitNumbers,
        rows: PrivateRows | PublicRows,
        mechanism: Mechanism,
        engine: Engine,
        on_grid: bool = False,
    ) -> None:
        if mechanism.noise_multiplier and model.size != 1 and find_law(mechanism.law).scalar:
            raise DpvalueError(f"{mechanism.law} noise is for one number, got {model.size} to release")
        self.mechanism = mechanism
        self.n = rows.n
        self._model, self._rows, self._engine, self._on_grid = model, rows, engine, on_grid
        self.units = rows.sizes
        sizes = self.units.cpu()
        self.release_scale = mechanism.noise_scale(sizes)
        self.read_std = mechanism.scale.gain * mechanism.noise_std(sizes)
        row = 4 * model.numbers_per_row() + model.inputs(rows.x[-1:]).numel()
        vector = (12 if on_grid else 4) * model.numbers  # rounded in float64 and in integers
        per_row, per_party = (row + vector, 0) if mechanism.per_unit else (row, vector)
        self._cuts, class_of_party = cut(sizes.numpy(), max(1, _SLICE_NUMBERS // per_row))
        self._kind = torch.from_numpy(class_of_party).to(rows.x.device)
        numbers = [slicing.width * per_row + per_party for slicing in self._cuts]
        self._pieces = [engine.piece(count, least=64) for count in numbers]
        self.numbers = max(numbers)
        self._people = None if rows.persons is None else People(model, rows, engine)
        self.recordable = self._people is None  # the numbers of rows of persons are on the CPU
        self.factored: FactoredRows | None = None
        if self._people is not None:
            return
        self._x, self._y = model.inputs(rows.x), model.targets(rows.y)
        self._counts = rows.has_counted_row
        everyone, (first, *others) = torch.arange(rows.n, device=rows.x.device), self._cuts
        whole = first.slices == 1 and not others  # as in most runs: computed once, not at each step
        self._places = rows.places(everyone, 0, first.width) if whole else None
        lone = self._cuts == (Slicing(1, 1),)
        if isinstance(model, Linear) and lone and mechanism.rule == "flat" and not on_grid:
            self.factored = FactoredRows(model, rows, mechanism)

    def grid(self, probes: int = 1) -> Grid | None:
        """Return the grid for sums over this many probes; None for floating point noise."""
        if not self._on_grid:
            return None
        units = int(self.units.max()) if self.mechanism.per_unit else 1
        return make_grid(self.mechanism, self._model.size, probes, units)

    def clipped_gradients(self, theta: Tensor, parties: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the clipped gradients (b, d), minus their centre, of the parties (b,) at the models theta (b, d).

        Unit party: the gradient of the mean loss over its rows, clipped. Unit record: the sum of its records' clipped
        gradients, divided by its public number of records. Unit person: the mean over a person's records, clipped,
        summed over persons and divided by their public number. Sums are in float64, because rounding in float32 would
        hide one record's share. A release is rounded after the noise.

        On a grid: each unit is rounded to whole steps, and the sum is not divided; `release` divides it.
        """
        if theta.is_cuda and len(self._cuts) > 1:  # a CUDA graph must not depend on the parties
            widest_slicing = Slicing(
                max(slicing.slices for slicing in self._cuts), max(slicing.width for slicing in self._cuts)
            )
            return self._contributions([theta], None, parties, widest_slicing, grid)
        return self.gradients_at(theta, parties, grid)

    def _contributions(
        self, models: Iterable[Tensor], shares: Tensor | None, parties: Tensor, slicing: Slicing, grid: Grid | None
    ) -> Tensor:
        """The contributions (b, d) of parties of one class; at several models (b, d), the mean weighted by shares."""
        starts = range(0, slicing.slices * slicing.width, slicing.width)
        total = reduce(
            torch.add, (self._slice(models, shares, parties, first, slicing.width, grid) for first in starts)
        )
        return total if self.mechanism.per_unit else self._clip(total, parties, grid)

    def _slice(
        self,
        models: Iterable[Tensor],
        shares: Tensor | None,
        parties: Tensor,
        first: int,
        width: int,
        grid: Grid | None,
    ) -> Tensor:
        """The sums (b, d) over a slice of each party: of weighted gradients, or of its units' clipped gradients."""
        if self._people is not None:  # a person without rows has a mean of NaN, which is clipped to zero
            weights = 1 / self.units[parties].clamp_min(1).to(torch.float64).unsqueeze(-1).expand(-1, width)
            by_model = (self._people.gradients(theta, parties, first, width) for theta in models)
        else:
            places = self._rows.places(parties, first, width) if self._places is None else self._places[parties]
            x, y, weights = self._x[places], self._y[places], self._rows.weights[places]
            if self.mechanism.per_unit:
                by_model = (self._model.record_gradients(theta, x, y) for theta in models)
            else:
                by_model = (self._model.gradients(theta, x, y, weights) for theta in models)
        if shares is not None:
            by_model = (share * gradients for share, gradients in zip(shares, by_model, strict=True))
        gradients = reduce(torch.add, by_model)  # one after the other: see `People`
        if not self.mechanism.per_unit:
            return gradients
        clipped = self._clip(gradients, parties, grid)
        shared = weights if grid is None else weights > 0
        return (clipped * shared.unsqueeze(-1)).sum(1, dtype=torch.float64)

    def _clip(self, gradients: Tensor, parties: Tensor, grid: Grid | None) -> Tensor:
        """Clip the gradients of parties (b, d), or of their records or persons (b, r, d); on a grid, round them."""
        clipped = self.mechanism.apply_clipping(gradients)
        if not self.mechanism.per_unit:  # a party without a usable row contributes zero, not minus the centre
            clipped = clipped * self._counts[parties].unsqueeze(-1)
        return clipped if grid is None else grid.round(clipped)

    def _in_pieces(self, parties: Tensor, work: Callable[[slice | Tensor, Slicing], Tensor]) -> Tensor:
        """Return work(places in who, how they are cut) for all parties who (b,), in pieces of one class."""
        todo: list[tuple[slice | Tensor, Slicing]] = []
        if len(self._cuts) == 1:
            starts = range(0, max(len(parties), 1), self._pieces[0])
            todo = [(slice(start, start + self._pieces[0]), self._cuts[0]) for start in starts]
        else:
            kind = self._kind[parties]
            for number, (slicing, size) in enumerate(zip(self._cuts, self._pieces, strict=True)):
                todo += [
                    (places, slicing) for places in (kind == number).nonzero().squeeze(-1).split(size) if len(places)
                ]
        if len(todo) == 1:
            return work(*todo[0])
        parts = self._engine.map(lambda piece: work(*piece), todo)
        total = parts[0].new_empty(len(parties), parts[0].shape[-1])
        for (places, _), part in zip(todo, parts, strict=True):
            total[places] = part
        return total

    def streams(
        self, source: NoiseSource, numbers: Iterable[int], like: Tensor, grid: Grid | None
    ) -> list[NoiseStream]:
        """Return a stream of noise for each walk with these numbers; an empty list without privacy."""
        if not self.mechanism.noise_multiplier:
            return []
        bits = 0 if grid is None else grid.bits
        return [source.stream(number, like, self.mechanism.law, bits) for number in numbers]

    def noise(self, streams: list[NoiseStream], parties: Tensor, like: Tensor) -> Tensor:
        """Return the noise (streams, b, d) of releases of the parties (streams, b); zero without privacy.

        Noise of scale 1 is multiplied by the scale of each party; noise on a grid is in steps already.
        """
        shape = (*parties.shape, len(like))
        if not streams:
            return like.new_zeros(shape)
        noise = like.new_empty(shape, dtype=torch.float64 if self._on_grid else None)

        def fill(part: slice) -> None:
            for stream, rows in zip(streams[part], noise[part], strict=True):
                stream.fill(rows)
            self.scale_noise(noise[part], parties[part])

        self._engine.map(fill, split_evenly(len(streams), noise[0].numel()))
        return noise

    def scale_noise(self, noise: Tensor, parties: Tensor) -> Tensor:
        """Scale noise (..., d) in place, for releases of the parties (...); noise on a grid is in steps already."""
        return noise if self._on_grid else noise.mul_(self.release_scale.to(noise)[parties].unsqueeze(-1))

    def release(self, clipped: Clipped, noise: Tensor | None, parties: Tensor, grid: Grid | None) -> Clipped:
        """Return the releases of the parties (b,): clipped contributions plus noise, read on the public scale.

        On a grid, integers are added exactly before the multiplication. Outer products are added to the noise in place,
        which then holds the release, and are returned so that a walk can follow them.

        Formal guarantee: with privacy, nothing is returned without noise. A release has the guarantee of the law of the
        noise for contributions with the mechanism's sensitivity.
        """
        if noise is None and self.mechanism.noise_multiplier:
            raise DpvalueError("noise must be given: contributions are released only with noise")
        if isinstance(clipped, OuterProducts):
            if noise is not None:
                clipped.add_to(noise)
            return clipped
        noisy = clipped if noise is None else clipped + noise
        if grid is not None:
            units = self.units[parties].clamp_min(1) if self.mechanism.per_unit else torch.ones_like(parties)
            noisy = noisy * (grid.step / grid.probes / units.to(torch.float64)).unsqueeze(-1)
        return self.mechanism.scale.read(noisy)

    def gradients_at(self, theta: Tensor, parties: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the clipped gradients (b, d), minus their centre, of the parties (b,), in pieces that fit memory."""

        def work(places: slice | Tensor, slicing: Slicing) -> Tensor:
            return self._contributions([theta[places]], None, parties[places], slicing, grid)

        return self._in_pieces(parties, work)

    def mean_gradients(self, points: Tensor, shares: Tensor, parties: Tensor, grid: Grid | None = None) -> Tensor:
        """Return the clipped mean gradients (b, d), minus their centre, of the parties (b,) at the same points.

        Each unit's gradients at the points (q, d) are averaged with shares (q,) that sum to 1, then clipped once.
        Points (q, n, d) differ from party to party.
        """

        def work(places: slice | Tensor, slicing: Slicing) -> Tensor:
            members = parties[places]
            models = [point[members] if point.dim() > 1 else point.expand(len(members), -1) for point in points]
            return self._contributions(models, shares, members, slicing, grid)

        return self._in_pieces(parties, work)


@dataclass(frozen=True)
class Responder:
    """Answers queries with noisy releases of one or many parties.

    Attributes:
        contributions: the rows, behind model and mechanism.
        noise: the source of noise.
        numbers: the numbers of the parties, which determine their seeded noise in every batch.
        like: a vector of the size, type and device of a release.
    """

    contributions: Contributions
    noise: NoiseSource
    numbers: Ints
    like: Tensor

    def answer(self, number: int, query: Query) -> Tensor:
        """Return the release of each party in a round (n, size).

        Formal guarantee: reads the parties' rows only for one release per party: the mean of clipped gradients (or the
        clipped mean of gradients) at the models of the query, with the noise of the mechanism.
        """
        grid = self.contributions.grid(query.probes)
        return self.release(number, self._clipped(query, grid), grid)

    def release(self, number: int, clipped: Tensor, grid: Grid | None) -> Tensor:
        """Return clipped contributions (n, size) with the noise of a round."""
        everyone = torch.arange(len(clipped), device=clipped.device)
        noise = None
        if self.contributions.mechanism.noise_multiplier:
            law, bits = self.contributions.mechanism.law, 0 if grid is None else grid.bits
            scaled_noise = self.noise.rows(number, self.numbers, self.like, law, bits)
            noise = self.contributions.scale_noise(scaled_noise, everyone)
        return self.contributions.release(clipped, noise, everyone, grid).to(self.like.dtype)

    def _clipped(self, query: Query, grid: Grid | None) -> Tensor:
        """The contribution of each party: a mean in float64, or on a grid a sum of whole steps.

        A mean of clipped gradients in float32 could exceed the clipping norm.
        """
        contributions, device = self.contributions, self.like.device
        if isinstance(query, AtPoints):
            everyone = torch.arange(contributions.n, device=device)
            return contributions.mean_gradients(query.points, query.shares, everyone, grid)
        total = torch.zeros(contributions.n, len(self.like), dtype=torch.float64, device=device)
        for parties, models in query.pieces():
            total.index_add_(0, parties, contributions.gradients_at(models, parties, grid).to(torch.float64))
        return total / query.probes if grid is None else total
