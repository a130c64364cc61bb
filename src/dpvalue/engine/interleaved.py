"""Algorithm 1 of the paper: walk and release at the same time, one release per party and permutation.

The walks of a block advance together, each with its own model. A step reads the combination of what was released
before the block (`previous`) and the own release; what a block releases becomes visible after it. Blocks of 1 are the
exact schedule. For `independent` nothing is read from before, so any number of walks may advance together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from dpvalue.engine.contributions import Contributions
from dpvalue.engine.walks import Walker
from dpvalue.estimates import Ints
from dpvalue.privacy.noise import NoiseSource, normal
from dpvalue.progress import Report
from dpvalue.schedule import Schedule
from dpvalue.semivalues import Floats
from dpvalue.streams import Purpose, permutations
from dpvalue.utility import PublicSet

_NOISE_ROWS = 64  # positions whose noise is drawn at once


@dataclass(frozen=True)
class InterleavedReleases:
    """The walks and releases of a paper schedule.

    Formal guarantee: `run` reads the parties' data only through one Gaussian release per party and permutation, of the
    clipped gradient at a model that is a function of earlier releases and public things.
    """

    walker: Walker
    contributions: Contributions
    noise: NoiseSource
    seed: int
    schedule: Schedule
    permutations: int

    def run(self, report: Report, public: PublicSet | None, add: Callable[[Ints, Floats], None] | None) -> Tensor:
        """Walk all permutations; return the final table (n, d), by the schedule's `table_weights`.

        `add` is given the permutations and marginals of the walks that are valued, on the set `public`; without it no
        utility is evaluated.
        """
        n, d = self.contributions.rows.n, self.walker.model.size
        first = self.schedule.first_valued(self.permutations)
        history = _History(self, n, d)
        size = self._block_size(public)
        for start in range(0, self.permutations, size):
            stop = min(start + size, self.permutations)
            orders = permutations(self.seed, Purpose.PERMUTATION, start, stop - start, n)
            valued = public if add is not None and stop > first else None
            marginals = self._walk_block(orders, start, history, valued, max(first - start, 0))
            if add is not None and stop > first:
                add(orders[max(first - start, 0) :], marginals)
            report("walking", stop, self.permutations)
        return history.previous

    def _block_size(self, public: PublicSet | None) -> int:
        if self.schedule.kind != "independent":
            return self.schedule.block
        numbers = 8 * self.walker.model.size + _NOISE_ROWS * self.walker.model.size
        fits = self.walker.engine.batch(numbers)
        return min(self.permutations, fits, self.walker.utility_batch(public) if public is not None else fits)

    def _initial_models(self, start: int, count: int) -> Tensor:
        if not self.schedule.fresh_start:
            return self.walker.initial.repeat(count, 1)
        return torch.stack([self.walker.model.initial(self.seed, start + t) for t in range(count)])

    def _walk_block(self, orders: Ints, start: int, history: _History, public: PublicSet | None, skip: int) -> Floats:
        """Walk one block; return the marginals of its walks from `skip` on (empty without a utility)."""
        walks, n = orders.shape
        theta = self._initial_models(start, walks)
        who = torch.from_numpy(orders.T.copy()).to(theta.device)
        own = torch.tensor(history.own_weights(start, walks), dtype=theta.dtype, device=theta.device)[:, None]
        noise = _WalkNoise(self, start, walks)
        utilities = np.empty((max(walks - skip, 0), n + 1))
        if public is not None:
            utilities[:, 0] = self.walker.evaluate(public, theta[skip:])
        for position in range(n):
            parties = who[position]
            release = self.contributions.at(theta, parties) + noise.next(parties)
            combination = history.combine(release, parties, own)
            theta = theta - self.walker.learning_rate * combination
            if public is not None:
                utilities[:, position + 1] = self.walker.evaluate(public, theta[skip:])
        history.close_block(walks)
        return np.diff(utilities, axis=1)


class _WalkNoise:
    """The noise of the walks of a block, drawn along each walk from the stream of its permutation."""

    def __init__(self, run: InterleavedReleases, start: int, walks: int) -> None:
        mechanism, rows = run.contributions.mechanism, run.contributions.rows
        self._std = mechanism.noise_std(rows.sizes.cpu()).to(run.walker.initial)
        self._streams = [run.noise.stream(start + t) for t in range(walks)] if mechanism.noise_multiplier else []
        self._like, self._left = run.walker.initial, rows.n
        self._drawn: list[Tensor] = []

    def next(self, parties: Tensor) -> Tensor | float:
        """Return the noise (walks, d) of the next position, at which these parties stand."""
        if not self._streams:
            return 0.0
        if not self._drawn:
            rows = min(_NOISE_ROWS, self._left)
            self._left -= rows
            drawn = [normal(one, rows, len(self._like), self._like.dtype) for one in self._streams]
            self._drawn = list(torch.stack(drawn, dim=1).to(self._like.device))[::-1]
        return self._drawn.pop() * self._std[parties][:, None]


class _History:
    """What has been released so far, as far as the schedule needs it; `previous` is what a block reads of it (n, d)."""

    def __init__(self, run: InterleavedReleases, n: int, d: int) -> None:
        like = run.walker.initial
        self._run = run
        self._recursive = run.schedule.kind == "decaying"
        self._sum = torch.zeros(n, d, dtype=like.dtype, device=like.device)
        self._block = torch.zeros_like(self._sum)
        self.previous = torch.zeros_like(self._sum)
        self._squares = torch.zeros((), dtype=torch.float64, device=like.device)
        self._before = 0

    def own_weights(self, start: int, walks: int) -> list[float]:
        """Return X_tt of each walk of the block that starts now."""
        schedule, k = self._run.schedule, self._run.permutations
        ratio = self.variance_ratio() if schedule.kind == "optimal" else 0.0
        return [schedule.own_weight(t, self._before, k, ratio) for t in range(start, start + walks)]

    def combine(self, release: Tensor, parties: Tensor, own: Tensor) -> Tensor:
        """Return the combinations with what was released before the block, and remember the releases."""
        combination = release
        if self._before and self._run.schedule.kind != "independent":
            combination = own * release + (1 - own) * self.previous[parties]
        self._block.index_add_(0, parties, combination if self._recursive else release)
        if self._run.schedule.kind == "optimal":
            self._squares += release.to(torch.float64).square().sum()
        return combination

    def close_block(self, walks: int) -> None:
        """Make what the block released visible."""
        self._before += walks
        if self._recursive:
            self.previous = self._block / walks
        else:
            self._sum += self._block
            self.previous = self._sum / self._before
        self._block.zero_()

    def variance_ratio(self) -> float:
        """Return g2 / v: the variance of the clipped gradients per coordinate over that of the noise.

        Estimated from the noisy releases alone: their variance over permutations, pooled over parties and coordinates,
        less v; clamped to [0, C^2/d].
        """
        mechanism, rows = self._run.contributions.mechanism, self._run.contributions.rows
        n, d = self._sum.shape
        if self._before < 2:
            return 0.0
        between = self._squares - self._before * self.previous.to(torch.float64).square().sum()
        variance = float(between) / (n * d * (self._before - 1))
        v = float(mechanism.noise_std(rows.sizes.cpu()).square().mean())
        most = inf if mechanism.clip is None else mechanism.clip**2 / d
        g2 = min(max(variance - v, 0.0), most)
        if v == 0:
            return inf if g2 > 0 else 0.0
        return g2 / v
