"""What a party's counts are likely to be, given its noisy release: from releases and public things, so it is free.

A party's counts y have noise of standard deviation nu in each cell. Its size M is read from the release: the mean over
trees of the sum of all cells, so that rows that do not count are not paid. Along directions u in which naturally
differing groups of public rows differ, its deviation from the public shares has a prior: as far as such groups are off,
and by chance h / M, h being the variance of one record. The posterior has the mean

    M (public + sum over u of u z (s^2 + h / M) / (s^2 + h / M + (nu / M)^2)),    z = u . (y / M - public),

and its variance along u. In other directions, such as those in which the totals of trees disagree, nothing is expected
but noise. Values are of counts moved half of the way to the mean, which spares what no public group has shown, and
intervals are made from draws. A part of the noise stays: `LEFT` of its variance, by which a model smooths its leaves
(`methods.leaves`).

Whether a party has any record that counts is decided first, as the noise of one that has none would be taken for data:
with M from a release whose noise moves it by t, and m its public number of units, the odds that it has are

    19 exp((2 M m - m^2) / (2 t^2)).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import PublicSet
from dpvalue.methods.leaves import Grown
from dpvalue.models import LeafOnes
from dpvalue.streams import Purpose, stream

_GROUPS = 300
_MOST_ROWS = 2000  # public rows that groups are made of
_MOST_NUMBERS = 2**25  # of ones of these rows
_LEAST_SIZE, _LEAST_GROUP = 1.0, 10
_LEAST_SHARE = 1e-3  # of a direction's variance, where chance is as large
_SMALLEST = 1e-8
_SEED = 0
_PART = 0.5  # of the way to the posterior mean
LEFT = 0.1
"""Which part of the variance of noise is taken to be left in counts that were moved there."""
_ODDS = 19.0  # that a party has records that count, before its release is seen


@dataclass(frozen=True, eq=False)
class Prior:
    """How naturally differing groups of public rows are off, in cells of a forest.

    Attributes:
        public: the shares of all public rows (size,).
        directions: in which groups differ (r, size), of length 1.
        spread: the variance of groups along each (r,).
        record: the variance of one record along each (r,).
    """

    public: Floats
    directions: Floats
    spread: Floats
    record: Floats

    @classmethod
    def of(cls, grown: Grown, x: Tensor, y: Tensor) -> Prior:
        """Return the prior that public rows give.

        Formal guarantee: reads public rows only.
        """
        generator, ones = stream(_SEED, Purpose.LEAF_GROUPS), LeafOnes(grown.forest, grown.classes)
        most = max(_LEAST_GROUP, min(_MOST_ROWS, _MOST_NUMBERS // ones.size))
        some = torch.from_numpy(np.sort(generator.permutation(len(x))[:most])).to(x.device)
        x, y = x[some], y[some]
        leaf, like = ones.inputs(x), x.new_zeros(1, dtype=torch.float64)
        own = ones.ones(leaf, y, like).cpu().numpy()
        others = (ones.ones(leaf, (y + step) % grown.classes, like) for step in range(1, grown.classes))
        other = sum(other.cpu().numpy() for other in others) / (grown.classes - 1)
        made = list(_groups(x.flatten(1).cpu().numpy().astype(np.float64), y.cpu().numpy(), grown.classes, generator))
        weights, wrong = np.stack([weights for weights, _ in made]), np.array([share for _, share in made])[:, None]
        public = own.mean(0)
        away = (weights @ own) * (1 - wrong) + (weights @ other) * wrong - public
        _, lengths, directions = np.linalg.svd(away, full_matrices=False)
        kept = lengths > _SMALLEST * max(float(lengths[0]), _SMALLEST)
        directions, energy = directions[kept], np.square(lengths[kept]) / _GROUPS
        record = ((own - public) @ directions.T).var(0)
        chance = record * float(np.square(weights).sum(1).mean())
        return cls(public, directions, np.maximum(energy - chance, _LEAST_SHARE * energy), record)


def _groups(x: Floats, y: Ints, classes: int, generator: np.random.Generator) -> Iterator[tuple[Floats, float]]:
    """Weights (rows,) of groups of rows, and the share of their labels that are wrong.

    A group is a range of a feature or of a projection, the neighbourhood of a row, or any rows, with other classes or
    wrong labels.
    """
    spread = x.std(0)
    z = (x - x.mean(0)) / np.where(spread > 0, spread, 1.0)
    for number in range(_GROUPS):
        size = min(len(y), max(_LEAST_GROUP, int(generator.choice([1 / 8, 1 / 4, 1 / 2]) * len(y))))
        kind = number % 4
        if kind == 0:
            places = z[:, generator.integers(z.shape[1])] + 1e-6 * generator.standard_normal(len(y))
        elif kind == 1:
            places = z @ generator.standard_normal(z.shape[1])
        elif kind == 2:
            places = np.square(z - z[generator.integers(len(y))]).sum(1)
        else:
            places = generator.random(len(y))
        first = 0 if kind == 2 else int(generator.integers(len(y) - size + 1))
        weights = np.zeros(len(y))
        weights[np.argsort(places, kind="stable")[first : first + size]] = 1.0
        if kind == 3 or generator.random() < 0.5:
            weights *= (generator.dirichlet(np.full(classes, 0.5)) * classes)[y] + 1e-9
        is_wrong = kind == 3 and generator.random() < 0.5
        yield weights / weights.sum(), float(generator.choice([0.2, 0.4])) if is_wrong else 0.0


@dataclass(frozen=True, eq=False)
class LeafPosterior:
    """What releases in leaves are likely to be without noise.

    Attributes:
        grown: the forest.
        public: the public rows that say how parties may differ.
    """

    grown: Grown
    public: PublicSet

    @cached_property
    def prior(self) -> Prior:
        """How parties may differ."""
        return Prior.of(self.grown, self.public.x, self.public.y)

    def presence(self, rows: Floats, noise_std: Floats, units: Ints) -> Floats:
        """Return the probability that a party has records that count, given its release (n,)."""
        sizes, error = self._sizes(rows * units[:, None]), self._size_error(rows, noise_std * units)
        evidence = (2 * sizes * units - np.square(units)) / (2 * np.square(np.where(error > 0, error, 1.0)))
        odds = _ODDS * np.exp(np.clip(evidence, -50.0, 50.0))
        return np.where(error > 0, odds / (1 + odds), 1.0)

    def likely(self, rows: Floats, noise_std: Floats, units: Ints) -> Floats:
        """Return releases on half of the way to what they are likely to be (n, size); without noise, as they are."""
        if not noise_std.any():
            return rows
        sizes, moved, _ = self._posterior(rows * units[:, None], noise_std * units)
        whole = sizes[:, None] * (self.prior.public + _product(moved, self.prior.directions))
        mean = whole / np.maximum(units, 1)[:, None]
        return np.where(noise_std[:, None] > 0, rows + _PART * (mean - rows), rows)

    def draw(self, rows: Floats, noise_std: Floats, units: Ints, generator: np.random.Generator) -> Floats:
        """Return a draw of what releases may be without noise, given what was released (n, size); none is negative."""
        if not noise_std.any():
            return rows
        counts: Floats = rows * units[:, None]
        sizes, likely, variance = self._posterior(counts, noise_std * units)
        moved = likely + np.sqrt(variance) * generator.standard_normal(likely.shape)
        error = self._size_error(rows, noise_std * units)
        sizes = np.clip(sizes + error * generator.standard_normal(len(sizes)), 0.0, units)
        whole = np.maximum(sizes[:, None] * (self.prior.public + _product(moved, self.prior.directions)), 0.0)
        return np.where(noise_std[:, None] > 0, whole / np.maximum(units, 1)[:, None], rows)

    def _sizes(self, counts: Floats) -> Floats:
        """How many units count in each party, by the mean over trees (n,)."""
        found: Floats = counts.sum(1) / self.grown.forest.trees
        return found

    def _size_error(self, rows: Floats, noise: Floats) -> Floats:
        """The noise of these numbers, for noise of counts (n,)."""
        return np.asarray(noise * np.sqrt(rows.shape[1]) / self.grown.forest.trees)

    def _posterior(self, counts: Floats, noise: Floats) -> tuple[Floats, Floats, Floats]:
        """Sizes (n,), and of deviations along the directions mean and variance (n, r)."""
        prior = self.prior
        sizes = np.maximum(self._sizes(counts), _LEAST_SIZE)
        along = _product(counts / sizes[:, None] - prior.public, prior.directions.T)
        before = prior.spread + prior.record / sizes[:, None]
        heard = np.square(noise / sizes)[:, None]
        return sizes, along * before / (before + heard), before * heard / (before + heard)


def _product(one: Floats, other: Floats) -> Floats:
    """The matrix product, in the thread that asks for it."""
    return np.asarray((torch.from_numpy(one) @ torch.from_numpy(other)).numpy())
