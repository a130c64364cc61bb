r"""The game of counts in public trees: v(S) is what the forest filled with the counts of S is worth.

A worth is a function of a sum over members, so that many parties are cheap. For a loss, semivalues of many parties are
estimated without walks: sizes of coalitions are cut into bands, which grow with the size; in each band a few random
coalitions are drawn, by the position weights, and every party is added to the same ones. Where a coalition is far
larger than a party, what the party adds is its counts times the slope of the worth there: one coalition serves all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.games.estimates import Estimate
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.solving import ReleaseGame
from dpvalue.methods.leaf_posterior import LEFT, LeafPosterior
from dpvalue.methods.leaves import Judge
from dpvalue.streams import Purpose, stream

MANY = 65
"""From so many parties on, semivalues under a loss are estimated by bands."""
_DRAWS, _DRAWS_BY_SLOPE = 8, 64  # coalitions in a band
_GROWTH = 1.5  # from one band's largest size to the next one's
_BY_SLOPE = 64  # so many times larger than the largest party
_LEAST_DRAWS, _MOST_DRAWS, _MOST_DRAWN = 16, 1024, 40_000  # coalitions of a size, and members of all of them
_MOST_NUMBERS = 2**23  # of sums along orders that are made at once
_SEED = 0  # values of the same table are the same numbers


@dataclass(frozen=True, eq=False)
class _Band:
    """Sizes of coalitions, the weight of each, and their weight together."""

    sizes: Ints
    chances: Floats
    weight: float


class LeafGame(ReleaseGame):
    """What coalitions of the parties of a table of leaf counts are worth; made by `Table.game`.

    Formal guarantee: reads the table and public things only; what it returns is post-processing.

    Args:
        judge: the forest and the public rows.
        posterior: what releases may be without noise.
        rows: the releases (n, size): counts over numbers of units.
        noise_std: the noise in them (n,).
        units: the parties' public numbers of units (n,).

    Attributes:
        counts: the parties' likely counts and, in the last column, the variance of the noise that is left in them
            (n, size + 1): both add up.
    """

    def __init__(
        self,
        judge: Judge,
        posterior: LeafPosterior,
        rows: Tensor,
        noise_std: Floats,
        units: Ints,
    ) -> None:
        self.judge, self.posterior, self.rows, self.n = judge, posterior, rows, len(rows)
        self._noise_std, self._units = noise_std, units
        released = rows.to("cpu", torch.float64).numpy()
        scale = units * posterior.presence(released, noise_std, units)
        counts = posterior.likely(released, noise_std, units) * scale[:, None]
        variance = LEFT * np.square(noise_std * scale)
        self.counts = torch.from_numpy(np.column_stack([counts, variance]))
        self._mean_worths: dict[int, float] = {}

    def with_rows(self, rows: Tensor) -> LeafGame:
        """Return the game of another table of the same parties."""
        return self.of(rows, self._noise_std)

    def of(self, rows: Tensor, noise_std: Floats) -> LeafGame:
        """Return the game of other releases of parties of the same sizes, with such noise."""
        return LeafGame(self.judge, self.posterior, rows, noise_std, self._units)

    def without_noise(self, generator: np.random.Generator) -> LeafGame:
        """Return the game of what parties would have released without noise: one draw, given what they have."""
        rows = self.rows.to("cpu", torch.float64).numpy()
        drawn = self.posterior.draw(rows, self._noise_std, self._units, generator)
        return self.of(torch.from_numpy(drawn), np.zeros(self.n))

    def worth(self, coalitions: Bools) -> Floats:
        """Return the worth of each coalition."""
        parts = torch.from_numpy(coalitions).split(4096)
        return np.concatenate([self.judge(part.to(torch.float64) @ self.counts) for part in parts])

    def walk(self, orders: Ints) -> Floats:
        """Return marginals along each order: sums grow by one party's counts a step."""
        numbers = self.n * self.counts.shape[1]
        nobody = float(self.judge(self.counts[:0].sum(0, keepdim=True))[0])
        if numbers > _MOST_NUMBERS:
            return np.stack([self._along(order, nobody) for order in orders])
        marginals = []
        for part in torch.from_numpy(orders).split(max(1, _MOST_NUMBERS // numbers)):
            worths = self.judge(self.counts[part].cumsum(1).flatten(0, 1)).reshape(part.shape)
            marginals.append(np.diff(worths, axis=1, prepend=nobody))
        return np.concatenate(marginals)

    def _along(self, order: Ints, nobody: float) -> Floats:
        """The marginals along one order of many parties, a piece of it at a time."""
        worths, before = [np.array([nobody])], torch.zeros_like(self.counts[:1])
        for places in torch.from_numpy(order).split(max(1, _MOST_NUMBERS // self.counts.shape[1])):
            path = before + self.counts[places].cumsum(0)
            worths.append(self.judge(path))
            before = path[-1:]
        return np.diff(np.concatenate(worths))

    def leave_one_out(self) -> Floats:
        """Return what each party adds to all the others."""
        total = self.counts.sum(0, keepdim=True)
        return self._each(lambda counts: self.judge(total) - self.judge(total - counts))

    def _each(self, work: Callable[[Tensor], Floats]) -> Floats:
        parts = self.counts.split(max(1, _MOST_NUMBERS // self.counts.shape[1]))
        return np.concatenate([work(part) for part in parts])

    def direct_estimate(self, kind: Semivalue) -> Estimate | None:
        """Return the values of many parties by bands of sizes, with their errors; of few, what is exact."""
        exact = self.exact(kind)
        if exact is not None or self.n < MANY or not self.judge.is_smooth:
            return super().direct_estimate(kind)
        generator = stream(_SEED, Purpose.LEAF_BANDS)
        values, variances, count = np.zeros(self.n), np.zeros(self.n), 0
        units = self.counts[:, :-1].sum(1)
        for band in _bands(kind.position_weights(self.n) / self.n):
            by_slope = float(band.sizes[0] * units.mean()) >= _BY_SLOPE * float(units.max())
            draws = 1 if band.sizes[-1] == 0 else _DRAWS_BY_SLOPE if by_slope else _DRAWS
            drawn = [generator.permutation(self.n) for _ in range(draws)]
            sizes = generator.choice(band.sizes, size=draws, p=band.chances)
            added, spread = (self._by_slope if by_slope else self._by_differences)(drawn, sizes)
            values += band.weight * (added + self._off(band, added))
            variances += band.weight**2 * spread / draws
            count += draws
        errors = np.sqrt(variances)
        return Estimate(values, errors, np.full(self.n, count, dtype=np.int64), variances)

    def _off(self, band: _Band, added: Floats) -> float:
        """By how much the mean over parties is off, where a band's sizes weigh the same.

        What random parties add from the band's first size to the one after its last is what coalitions of these sizes
        differ by, which takes far fewer evaluations. All bands together then give everybody's worth, as they must.
        """
        if np.ptp(band.chances) > 1e-12:
            return 0.0
        first, after = int(band.sizes[0]), int(band.sizes[-1]) + 1
        risen = self._mean_worth(after) - self._mean_worth(first)
        return risen / len(band.sizes) - float(added.mean())

    def _mean_worth(self, size: int) -> float:
        """The mean worth of random coalitions of a size."""
        if size in self._mean_worths:
            return self._mean_worths[size]
        generator = stream(_SEED, Purpose.LEAF_BANDS, 1 + size)
        draws = 1 if size in (0, self.n) else int(np.clip(_MOST_DRAWN // size, _LEAST_DRAWS, _MOST_DRAWS))
        drawn = [generator.choice(self.n, size, replace=False, shuffle=False) for _ in range(draws)]
        sums = torch.stack([self.counts[torch.from_numpy(some)].sum(0) for some in drawn])
        self._mean_worths[size] = float(self.judge(sums).mean())
        return self._mean_worths[size]

    def _by_slope(self, orders: list[Ints], sizes: Ints) -> tuple[Floats, Floats]:
        """What parties add to the first of each order, by slopes: the mean over orders, and the variance of one."""
        members = [
            self.counts[torch.from_numpy(order[:size])].sum(0) for order, size in zip(orders, sizes, strict=True)
        ]
        slopes = []
        for part in torch.stack(members).split(self.judge.batch):
            at = part.requires_grad_(True)
            slopes.append(torch.autograd.grad(self.judge.worths(at).sum(), at)[0])
        found = torch.cat(slopes)
        mean = found.mean(0)
        apart = self._each(lambda counts: (counts @ (found - mean).T).square_().sum(1).numpy())
        return (self.counts @ mean).numpy(), apart / (len(found) - 1)

    def _by_differences(self, orders: list[Ints], sizes: Ints) -> tuple[Floats, Floats]:
        """The same by worths with and without each party."""
        added = np.stack([self._added(order, int(size)) for order, size in zip(orders, sizes, strict=True)])
        return added.mean(0), added.var(0, ddof=1) if len(added) > 1 else np.zeros(self.n)

    def _added(self, order: Ints, size: int) -> Floats:
        """What each party adds to the first of an order, so many of the others."""
        members = self.counts[torch.from_numpy(order[:size])].sum(0, keepdim=True)
        alone = self.judge(members)
        added = self._each(lambda counts: self.judge(members + counts) - alone)
        if size:  # a member is added to the others, and to the next one in its own place
            own = self.counts[torch.from_numpy(order[:size])]
            others = members - own + self.counts[int(order[size])]
            added[order[:size]] = self.judge(others + own) - self.judge(others)
        return added


def _bands(weights: Floats) -> list[_Band]:
    """The sizes 0, 1, ... of coalitions in bands, by their weights (n,); sizes without weight are left out."""
    edges = [0]
    while edges[-1] < len(weights):
        edges.append(max(edges[-1] + 1, int(edges[-1] * _GROWTH)))
    bands = []
    for low, high in itertools.pairwise(edges):
        part = weights[low : min(high, len(weights))]
        if (weight := float(part.sum())) > 0:
            bands.append(_Band(np.arange(low, low + len(part)), part / weight, weight))
    return bands
