"""Algorithm 1 of the paper: walks and releases are interleaved, with one release per party and permutation.

The walks of a block advance together, each with its own model. A step combines the releases before the block
(`previous`) with the party's own release; the releases of a block are visible after it. Blocks of 1 are the exact
schedule. `independent` reads no earlier releases, so any number of walks may advance together.

Noise is drawn, and releases are summed, for as many positions at once as fit a cache. The rest of a step is the
gradient and three small sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.compiled import compiled_pays
from dpvalue.engine.engines import Graph
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.party.contributions import Contributions, Witness, no_witness, split_evenly
from dpvalue.privacy.noise import FastNoise, NoiseSource, piece_rows
from dpvalue.progress import Progress
from dpvalue.protocol.schedule import Schedule
from dpvalue.streams import Purpose, permutations

_MOST_POSITIONS = 64

_COMPILED_NUMBERS = 2**19  # numbers of noise in a segment of compiled code


def runs_compiled(contributions: Contributions, schedule: Schedule, permutations: int, n: int, like: Tensor) -> bool:
    """Return whether walks of n parties over models like this one should run in compiled code, if available."""
    if contributions.factored is None or like.is_cuda:
        return False
    return compiled_pays(n * -(-permutations // schedule.block), n * permutations * len(like))


@dataclass(frozen=True)
class InterleavedReleases:
    """The walks and releases of a paper schedule; `compiled`, by `runs_compiled`, are in compiled code.

    Formal guarantee: `run` reads the parties' data only through one Gaussian release per party and permutation, of the
    clipped gradient at a model that is a function of earlier releases and public things.
    """

    walker: Walker
    contributions: Contributions
    noise: NoiseSource
    seed: int
    schedule: Schedule
    permutations: int
    witness: Witness = no_witness

    compiled: bool = False

    def run(
        self, progress: Progress, evaluate: Evaluator | None = None, add: Callable[[Ints, Floats], None] | None = None
    ) -> Tensor:
        """Walk all permutations; return the final table (n, d), by the schedule's `table_weights`.

        `add` gets the permutations of the valued walks and their marginals by `evaluate`. Without `evaluate`, no
        utility is evaluated.
        """
        n = self.contributions.n
        evaluate = evaluate.compiled() if self.compiled and evaluate is not None else evaluate
        first = self.schedule.first_valued(self.permutations)
        history = _History(self)
        size = self._block_size(evaluate)
        progress("walking", 0, self.permutations)
        for start in range(0, self.permutations, size):
            stop = min(start + size, self.permutations)
            orders = permutations(self.seed, Purpose.PERMUTATION, start, stop - start, n)
            skip = max(first - start, 0)
            valued = evaluate if stop > first else None
            marginals = self._walk_block(orders, start, history, valued, skip)
            if add is not None and marginals is not None:
                add(orders[skip:], marginals)
            progress("walking", stop, self.permutations)
        return history.previous

    def _block_size(self, evaluate: Evaluator | None) -> int:
        if self.schedule.kind != "independent":
            return self.schedule.block
        engine, model = self.walker.engine, self.walker.model
        fits = engine.piece(2 * model.size * self._stretch() + self.contributions.numbers, least=16)
        return min(self.permutations, fits, evaluate.batch if evaluate is not None else fits)

    def _stretch(self, walks: int | None = None) -> int:
        """The number of positions between two draws of noise; in compiled code, for this number of walks."""
        piece = piece_rows(self.walker.model.size, self.walker.initial.device)
        if walks is None or not self.compiled:
            return min(_MOST_POSITIONS, piece)
        return max(1, _COMPILED_NUMBERS // (piece * self.walker.model.size * walks)) * piece

    def _initial_models(self, start: int, count: int) -> Tensor:
        if not self.schedule.fresh_start:
            return self.walker.initial.repeat(count, 1)
        return torch.stack([self.walker.model.initial(self.seed, start + t) for t in range(count)])

    def _walk_block(
        self, orders: Ints, start: int, history: _History, evaluate: Evaluator | None, skip: int
    ) -> Floats | None:
        """Walk one block; return the marginals of its walks from `skip` on if `evaluate` is given."""
        walks = len(orders)
        theta = self._initial_models(start, walks)
        own = torch.tensor(history.own_weights(start, walks), dtype=theta.dtype, device=theta.device)
        initial, grid = self.walker.initial, self.contributions.grid()
        source = self.noise.compiled() if self.compiled and isinstance(self.noise, FastNoise) else self.noise
        streams = self.contributions.streams(source, range(start, start + walks), initial, grid)
        pieces = torch.from_numpy(orders).to(theta.device).split(self._stretch(walks), dim=1)
        noises = self.walker.engine.ahead(lambda parties: self.contributions.noise(streams, parties, initial), pieces)
        advance = self._steps if self.contributions.factored is None else self._factored_steps
        advance = self._compiled_steps if self.compiled else advance
        utilities = [] if evaluate is None else [evaluate(theta[skip:])[:, None]]
        for parties, noise in zip(pieces, noises, strict=True):
            path = advance(theta, parties, noise, history, own, evaluate is not None)
            releases = noise.to(theta.dtype)  # into which `advance` has turned it
            self.witness(parties, releases)
            history.add(parties, releases, own)
            theta = path[:, -1]
            if evaluate is not None:
                models = path[skip:]
                utilities.append(evaluate(models.flatten(0, 1)).view(models.shape[:2]))
        history.close_block(walks)
        return None if evaluate is None else torch.cat(utilities, dim=1).diff(dim=1).cpu().numpy()

    def _steps(
        self, theta: Tensor, parties: Tensor, noise: Tensor, history: _History, own: Tensor, whole: bool
    ) -> Tensor:
        """Walk the positions of `parties`; return the models (walks, positions, d) after each or only after the last.

        `noise` is overwritten by the releases.
        """
        grid = self.contributions.grid()

        def step(theta: Tensor, noise: Tensor, members: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
            clipped = self.contributions.clipped_gradients(theta, members, grid)
            release = self.contributions.release(clipped, noise, members, grid).to(theta.dtype)
            return theta - self.walker.learning_rate * history.combine(release, members, own), release

        recorded = theta.is_cuda and self.contributions.recordable
        path, advance = [], partial(history.run_graph, step) if recorded else step
        for at, members in zip(noise.unbind(1), parties.unbind(1), strict=True):
            theta, release = advance(theta, at, members, own)
            at.copy_(release)
            if whole:
                path.append(theta.clone())
        return torch.stack(path, dim=1) if whole else theta[:, None].clone()

    def _factored_steps(
        self, theta: Tensor, parties: Tensor, noise: Tensor, history: _History, own: Tensor, whole: bool
    ) -> Tensor:
        """Do the same for gradients that are outer products."""
        assert self.contributions.factored is not None
        reach = own * -self.walker.learning_rate
        room = history.scratch(noise)
        moves = torch.mul(history.combine(noise, parties, own, room), -self.walker.learning_rate, out=room)
        segment = self.contributions.factored.prepare(parties, moves, reach)
        clipped = self.contributions.factored.clipped_gradients(theta, segment)
        products = self.contributions.release(clipped, noise, parties, None)
        if whole:
            moved, steps = segment.moved, products.add_to(torch.zeros_like(noise)).cumsum_(1)
        else:
            moved, steps = segment.moved[:, -1:], (products.coefficients.mT @ products.x).flatten(1)[:, None]
        return steps.mul_(reach[:, None, None]).add_(moved).add_(theta[:, None])

    def _compiled_steps(
        self, theta: Tensor, parties: Tensor, noise: Tensor, history: _History, own: Tensor, whole: bool
    ) -> Tensor:
        """Do the same in compiled code, with some walks in each thread."""
        from dpvalue.models.linear_kernels import follow

        factored, before = self.contributions.factored, history.previous
        assert factored is not None
        weights = torch.stack([own, 1 - own], dim=1) * -self.walker.learning_rate  # own is 1 where nothing is before
        path = theta.new_empty(len(parties), parties.shape[1] if whole else 1, theta.shape[1])

        def work(part: slice) -> None:
            clipped = factored.clipped_gradients_compiled(
                theta[part], parties[part], noise[part], before, weights[part]
            )
            self.contributions.release(clipped, noise[part], parties[part], None)
            places = (path[part], theta[part], parties[part], noise[part], before, weights[part])
            follow(*(place.numpy() for place in places))

        self.walker.engine.map(work, split_evenly(len(parties), noise[0].numel()))
        return path


class _History:
    """The earlier releases, as far as the schedule needs them; `previous` (n, d) is their combination for a block."""

    def __init__(self, run: InterleavedReleases) -> None:
        self._run = run
        self._kind = run.schedule.kind
        self._sum = torch.zeros(run.contributions.n, run.walker.model.size).to(run.walker.initial)
        self._squares = torch.zeros((), dtype=torch.float64, device=self._sum.device)
        self._before = 0
        self._scratch: Tensor | None = None
        self._graphs: dict[tuple[int, bool], Graph] = {}
        self.previous = torch.zeros_like(self._sum)

    def own_weights(self, start: int, walks: int) -> list[float]:
        """Return X_tt of each walk of the block that begins at permutation `start`."""
        schedule, k = self._run.schedule, self._run.permutations
        ratio = self.variance_ratio() if self._kind == "optimal" else 0.0
        return [schedule.own_weight(t, self._before, k, ratio) for t in range(start, start + walks)]

    def run_graph(self, step: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return step(*tensors), run as a CUDA graph that the first call records, to save launches."""
        key = (len(tensors[0]), self._before == 0)  # other inputs of a step keep their memory
        if key not in self._graphs:
            self._graphs[key] = Graph(step, *tensors)
        return self._graphs[key](*tensors)

    def scratch(self, like: Tensor) -> Tensor:
        """Return a reused tensor of this shape to write to, because allocation is slower than a pass over memory."""
        if self._scratch is None or self._scratch.shape != like.shape:
            self._scratch = torch.empty_like(like)
        return self._scratch

    def combine(self, releases: Tensor, parties: Tensor, own: Tensor, room: Tensor | None = None) -> Tensor:
        """Return the combinations of releases (walks, ..., d) with the parties' releases before the block.

        They are written to `room`, or to new memory without it.
        """
        if self._before == 0 or self._kind == "independent":
            return releases
        before = torch.empty_like(releases) if room is None else room
        torch.index_select(self.previous, 0, parties.flatten(), out=before.view(-1, before.shape[-1]))
        return before.lerp_(releases, own.view(-1, *[1] * (releases.dim() - 1)))

    def add(self, parties: Tensor, releases: Tensor, own: Tensor) -> None:
        """Add the releases (walks, positions, d), or for `decaying` their combinations, to the sums."""
        combined = self.combine(releases, parties, own) if self._kind == "decaying" else releases
        self._sum.index_add_(0, parties.flatten(), combined.flatten(0, 1))
        if self._kind == "optimal":
            self._squares += releases.square().sum(dtype=torch.float64)

    def close_block(self, walks: int) -> None:
        """Make the releases of the block visible to later blocks."""
        self._before += walks
        if self._kind == "decaying":
            torch.div(self._sum, walks, out=self.previous)
            self._sum.zero_()
        else:
            torch.div(self._sum, self._before, out=self.previous)

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
        v = float(np.square(self._run.contributions.read_std.numpy()).mean())
        mechanism = self._run.contributions.mechanism
        most = inf if mechanism.clip is None else (mechanism.scale.gain * mechanism.clip) ** 2 / d
        g2 = min(max(variance - v, 0.0), most)
        if v == 0:
            return inf if g2 > 0 else 0.0
        return g2 / v
