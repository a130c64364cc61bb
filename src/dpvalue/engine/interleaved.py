"""Algorithm 1 of the paper: walk and release at the same time, one release per party and permutation.

The walks of a block advance together, each with its own model. A step reads the combination of what was released
before the block (`previous`) and the own release; what a block releases becomes visible after it. Blocks of 1 are the
exact schedule. For `independent` nothing is read from before, so any number of walks may advance together.

Everything that does not depend on the models is done for many positions at once (a "stretch"): gathering rows and
previous combinations, drawing noise, adding up releases. What is left of a step is the gradient and three small sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from dpvalue.engine.contributions import Contributions
from dpvalue.engine.evaluator import Evaluator
from dpvalue.engine.walks import Walker
from dpvalue.estimates import Ints
from dpvalue.privacy.noise import NoiseSource, NoiseStream
from dpvalue.progress import Report
from dpvalue.schedule import Schedule
from dpvalue.semivalues import Floats
from dpvalue.streams import Purpose, permutations


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

    def run(
        self, report: Report, evaluate: Evaluator | None = None, add: Callable[[Ints, Floats], None] | None = None
    ) -> Tensor:
        """Walk all permutations; return the final table (n, d), by the schedule's `table_weights`.

        `add` is given the permutations and marginals of the walks that are valued, by `evaluate`; without them no
        utility is evaluated.
        """
        n = self.contributions.n
        first = self.schedule.first_valued(self.permutations)
        history = _History(self)
        size = self._block_size(evaluate)
        for start in range(0, self.permutations, size):
            stop = min(start + size, self.permutations)
            orders = permutations(self.seed, Purpose.PERMUTATION, start, stop - start, n)
            skip = max(first - start, 0)
            valued = evaluate if stop > first else None
            marginals = self._walk_block(orders, start, history, valued, skip)
            if add is not None and marginals is not None:
                add(orders[skip:], marginals)
            report("walking", stop, self.permutations)
        return history.previous

    def _block_size(self, evaluate: Evaluator | None) -> int:
        if self.schedule.kind != "independent":
            return self.schedule.block
        fits = self.walker.engine.batch(16 * self.walker.model.size + 8 * self.contributions.numbers_per_party)
        return min(self.permutations, fits, evaluate.batch if evaluate is not None else fits)

    def _stretch(self, walks: int) -> int:
        """How many positions to prepare at once."""
        numbers = 3 * self.walker.model.size + 2 * self.contributions.numbers_per_party
        return min(self.contributions.n, max(1, self.walker.engine.batch(walks * numbers) // 4))

    def _initial_models(self, start: int, count: int) -> Tensor:
        if not self.schedule.fresh_start:
            return self.walker.initial.repeat(count, 1)
        return torch.stack([self.walker.model.initial(self.seed, start + t) for t in range(count)])

    def _walk_block(
        self, orders: Ints, start: int, history: _History, evaluate: Evaluator | None, skip: int
    ) -> Floats | None:
        """Walk one block; return the marginals of its walks from `skip` on, if they are to be evaluated."""
        walks = len(orders)
        theta = self._initial_models(start, walks)
        own = torch.tensor(history.own_weights(start, walks), dtype=theta.dtype, device=theta.device)[:, None]
        noisy = self.contributions.mechanism.noise_multiplier > 0
        streams = [self.noise.stream(start + t, self.walker.initial) for t in range(walks)] if noisy else []
        who = torch.from_numpy(orders.T.copy()).to(theta.device)
        utilities = [] if evaluate is None else [evaluate(theta[skip:])]
        for some in who.split(self._stretch(walks)):
            releases = self._noise(streams, some)
            x, y, weights = self.contributions.rows_of(some)
            before = history.before(some)
            for position in range(len(some)):
                rows = (x[position], y[position], weights[position])
                step = releases[position].add_(self.contributions.clipped_gradients(theta, rows))
                if before is not None:
                    step = torch.lerp(before[position], step, own)
                theta.sub_(step, alpha=self.walker.learning_rate)
                history.note(releases, position, step)
                if evaluate is not None:
                    utilities.append(evaluate(theta[skip:]))
            history.add(some, releases)
        history.close_block(walks)
        return None if evaluate is None else torch.stack(utilities, dim=1).diff(dim=1).cpu().numpy()

    def _noise(self, streams: list[NoiseStream], who: Tensor) -> Tensor:
        """The noise of the releases of a stretch (positions, walks, d), drawn along each walk from its own stream."""
        positions, walks = who.shape
        if not streams:
            return torch.zeros(positions, walks, len(self.walker.initial)).to(self.walker.initial)
        return self.contributions.noise(torch.stack([one.rows(positions) for one in streams], dim=1), who)


class _History:
    """What has been released so far, as far as the schedule needs it; `previous` (n, d) is what a block reads of it."""

    def __init__(self, run: InterleavedReleases) -> None:
        self._run = run
        self._kind = run.schedule.kind
        self._sum = torch.zeros(run.contributions.n, run.walker.model.size).to(run.walker.initial)
        self._squares = torch.zeros((), dtype=torch.float64, device=self._sum.device)
        self._before = 0
        self.previous = torch.zeros_like(self._sum)

    def own_weights(self, start: int, walks: int) -> list[float]:
        """Return X_tt of each walk of the block that starts now."""
        schedule, k = self._run.schedule, self._run.permutations
        ratio = self.variance_ratio() if self._kind == "optimal" else 0.0
        return [schedule.own_weight(t, self._before, k, ratio) for t in range(start, start + walks)]

    def before(self, who: Tensor) -> Tensor | None:
        """Return what was released before the block, combined, for the parties `who` (...); None if it is not used."""
        return None if self._before == 0 or self._kind == "independent" else self.previous[who]

    def note(self, releases: Tensor, position: int, combination: Tensor) -> None:
        """Keep the combination in place of the release, where the schedule is recursive."""
        if self._kind == "decaying":
            releases[position] = combination

    def add(self, who: Tensor, releases: Tensor) -> None:
        """Add up the releases (or combinations) of a stretch."""
        self._sum.index_add_(0, who.flatten(), releases.flatten(0, 1))
        if self._kind == "optimal":
            self._squares += releases.square().sum(dtype=torch.float64)

    def close_block(self, walks: int) -> None:
        """Make what the block released visible."""
        self._before += walks
        if self._kind == "decaying":
            self.previous = self._sum / walks
            self._sum.zero_()
        else:
            self.previous = self._sum / self._before

    def variance_ratio(self) -> float:
        """Return g2 / v: the variance of the clipped gradients per coordinate over that of the noise.

        Estimated from the noisy releases alone: their variance over permutations, pooled over parties and coordinates,
        less v; clamped to [0, C^2/d].
        """
        n, d = self._sum.shape
        if self._before < 2:
            return 0.0
        between = self._squares - self._before * self.previous.to(torch.float64).square().sum()
        variance = float(between) / (n * d * (self._before - 1))
        v = float(np.square(self._run.contributions.release_std.numpy()).mean())
        clip = self._run.contributions.mechanism.clip
        g2 = min(max(variance - v, 0.0), inf if clip is None else clip**2 / d)
        if v == 0:
            return inf if g2 > 0 else 0.0
        return g2 / v
