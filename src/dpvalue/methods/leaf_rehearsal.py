"""What counts in public trees are expected to be worth: how well they agree with retraining, tried on public rows.

Half of the public rows play the public set, the other half is dealt to made-up parties: at random, with wrong labels in
a third of them; by a direction of the features, so that parties differ in who their records are; and by label. They
release as the real ones would, with the noise of the real sizes. Retraining is played by a larger forest that is grown
on the dealt rows themselves and filled anew for each coalition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import LOSS, PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.games.solving import value_game
from dpvalue.methods.leaf_game import LeafGame
from dpvalue.methods.leaf_rule import ForestShape
from dpvalue.methods.leaves import Grown
from dpvalue.methods.retraining import spearman
from dpvalue.models import LeafOnes
from dpvalue.planning.situation import Agreement, RehearsedMean, Situation
from dpvalue.streams import Purpose, stream

_PARTIES, _SPLITS, _DEALS = 6, 3, 6
_LEAST_RECORDS = 5
_RETRAINED = ForestShape(trees=16, leaves=32, smoothing=4.0)
_HIDDEN = 4.0  # a party is too small if its noise is so many times what parties differ by (squared)


class Counting(Protocol):
    """A method of counts in trees."""

    @property
    def grown(self) -> Grown:
        """The forest."""
        ...

    @property
    def public(self) -> Tensor:
        """The shares of public rows."""
        ...

    def game_of(self, public: PublicSet, engine: Engine, rows: Tensor, noise_std: Floats, units: Ints) -> LeafGame:
        """Return the game of such releases."""
        ...


OfShape = Callable[[ForestShape, PublicSet, int, int], Counting]
"""Grows a forest: takes its shape, public rows, the number of classes and a seed."""


@dataclass(frozen=True)
class _Deal:
    """What one deal of rows gave: rank correlations of values and of sizes, and how parties differ (squared)."""

    values: float
    sizes: float
    differ: float


def expected_agreement(
    of_shape: OfShape, shape: ForestShape, situation: Situation, units: Ints, noise: Floats
) -> Agreement:
    """Return how well values are expected to agree with retraining, for parties like these.

    Formal guarantee: reads public rows and public sizes only.

    Args:
        of_shape: grows a forest of public rows.
        shape: that of the run.
        situation: the public rows and settings.
        units: the numbers of units of the parties.
        noise: the noise of their releases.
    """
    engine, seed = situation.settings.engine, situation.settings.seed
    tasks = (
        LeafSplitTask(of_shape, shape, situation.public, units, noise, engine, seed, split) for split in range(_SPLITS)
    )
    splits = list(engine.tasks(rehearse_split, tasks))
    deals = [split.deals for split in splits]
    values, sizes = (np.array([[getattr(deal, name) for deal in row] for row in deals]) for name in ("values", "sizes"))
    differ = float(np.mean([deal.differ for row in deals for deal in row]))
    cells = float(splits[0].cells)
    small = sorted(int(size) for size, std in zip(units, noise, strict=True) if cells * std**2 > _HIDDEN * differ)
    whole, scale = RehearsedMean.of(values), float(np.mean([split.scale for split in splits]))
    return Agreement(
        whole.mean, whole.error, float(sizes.mean()), RehearsedMean.of(values - sizes), scale, tuple(small)
    )


@dataclass(frozen=True, eq=False)
class LeafSplitTask:
    """One split of the public rows to rehearse on.

    Attributes:
        of_shape: grows a forest of public rows.
        shape: that of the run.
        public: the public rows.
        units: the numbers of units of the parties.
        noise: the noise of their releases.
        engine: where to compute.
        seed: of the run.
        split: the number of the split.
    """

    of_shape: OfShape
    shape: ForestShape
    public: PublicSet
    units: Ints
    noise: Floats
    engine: Engine
    seed: int
    split: int


@dataclass(frozen=True)
class _Split:
    """What a split gave: the scale of its sizes, the number of cells of the forest, and its deals."""

    scale: float
    cells: int
    deals: list[_Deal]


def rehearse_split(task: LeafSplitTask) -> _Split:
    """Return what a split gives."""
    half = _Half(task)
    return _Split(half.scale, int(np.prod(half.method.grown.shape)), [half.deal(number) for number in range(_DEALS)])


class _Half:
    """One half of the public rows, which plays the public set, and the other, which is dealt to made-up parties."""

    def __init__(self, task: LeafSplitTask) -> None:
        public, of_shape, units, self._engine = task.public, task.of_shape, task.units, task.engine
        self._generator = generator = stream(task.seed, Purpose.REHEARSAL, _SPLITS + task.split)
        order = torch.from_numpy(generator.permutation(len(public.x))).to(public.x.device)
        judging, dealt = order[: len(order) // 2], order[len(order) // 2 :]
        picked = generator.permutation(len(units))[:_PARTIES]
        self.scale = min(1.0, len(dealt) / max(int(units[picked].sum()), 1))
        self._counts = np.maximum((units[picked] * self.scale).astype(np.int64), _LEAST_RECORDS)
        self._noise = task.noise[picked]
        self._half = replace(public, x=public.x[judging], y=public.y[judging], metric=LOSS, l2=0.0)
        self._x, self._y = public.x[dealt], public.y[dealt]
        self._classes = int(public.y.max()) + 1
        self.method = of_shape(task.shape, self._half, self._classes, int(generator.integers(2**31)))
        self._retrained = of_shape(_RETRAINED, replace(self._half, x=self._x, y=self._y), self._classes, 0)
        none = np.zeros(len(picked))
        self._games = tuple(
            method.game_of(
                self._half, self._engine, torch.zeros(len(picked), method.public.numel()), none, self._counts
            )
            for method in (self.method, self._retrained)
        )

    def deal(self, number: int) -> _Deal:
        """Deal the rows once, and compare values with those of retraining."""
        order = (self._at_random, self._by_direction, self._by_label)[number % 3]()
        ends = np.cumsum(self._counts)
        owned = [order[np.arange(end - count, end) % len(order)] for end, count in zip(ends, self._counts, strict=True)]
        labels = [self._y[torch.from_numpy(rows)].clone() for rows in owned]
        if number % 3 == 0:
            for party in self._generator.permutation(len(owned))[: -(-len(owned) // 3)]:
                wrong = torch.from_numpy(self._generator.random(len(labels[party])) < self._generator.uniform(0.2, 0.8))
                other = torch.from_numpy(self._generator.integers(1, self._classes, len(wrong)))
                labels[party] = torch.where(wrong, (labels[party] + other) % self._classes, labels[party])
        shares = _shares(self.method.grown, self._x, owned, labels)
        rows = shares + torch.from_numpy(self._noise[:, None] * self._generator.standard_normal(tuple(shares.shape)))
        exact = _shares(self._retrained.grown, self._x, owned, labels)
        games = self._games[0].of(rows, self._noise), self._games[1].of(exact, np.zeros(len(owned)))
        values, truth = (value_game(game).values for game in games)
        differ = float((shares - self.method.public.flatten()).square().sum(1).mean())
        return _Deal(spearman(values, truth), spearman(self._counts, truth), differ)

    def _at_random(self) -> Ints:
        return self._generator.permutation(len(self._y))

    def _by_direction(self) -> Ints:
        x = self._x.flatten(1).cpu().numpy().astype(np.float64)
        spread = x.std(0)
        direction = self._generator.standard_normal(x.shape[1]) * np.where(spread > 0, 1 / np.maximum(spread, 1e-12), 0)
        if number := int(self._generator.integers(2)):  # a single feature, every other time
            direction *= np.arange(x.shape[1]) == self._generator.integers(x.shape[1]) * number
        return np.argsort(x @ direction + 1e-6 * self._generator.standard_normal(len(x)))

    def _by_label(self) -> Ints:
        return np.argsort(
            self._y.cpu().numpy() + self._generator.uniform(0.5, 1.5) * self._generator.standard_normal(len(self._y))
        )


def _shares(grown: Grown, x: Tensor, owned: list[Ints], labels: list[Tensor]) -> Tensor:
    """The shares of parties' rows in the cells of a forest (parties, size)."""
    ones = LeafOnes(grown.forest, grown.classes)
    leaf, like = ones.inputs(x), x.new_zeros(1, dtype=torch.float64)
    means = [ones.ones(leaf[torch.from_numpy(rows)], y, like).mean(0) for rows, y in zip(owned, labels, strict=True)]
    return torch.stack(means).cpu()
