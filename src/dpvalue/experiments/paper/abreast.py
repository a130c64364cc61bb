"""Running means of several runs, walked side by side: a GPU that walks one by one has little to do.

In a running mean a walk reads what all walks before it released, so that the walks of one run follow each other: blocks
of them are another schedule, and find less where no clip binds (`sweeps.ONE_BY_ONE`). But walks of other splits, rates
and budgets do not know of each other. Here walk t of all runs is one walk, of as many models as there are runs: the
numbers are those of `dpvalue.party.interleaved`, but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.engine.engines import Graph
from dpvalue.experiments.paper.problem import PaperProblem
from dpvalue.experiments.paper.readings import WATCH
from dpvalue.party.contributions import Contributions
from dpvalue.party.party import PrivacyBoundary
from dpvalue.runs.run import Run
from dpvalue.streams import Purpose, permutations

STRETCH = 50  # positions that are recorded as one graph
MOST_LANES = 48  # fewer than are ever cut into several pieces: then a watch could not tell whose vectors it sees
Add = Callable[[Ints, Floats], None]


@dataclass(frozen=True, eq=False)
class Lane:
    """One of the runs: the problem that it is of, and who is given its permutations and marginals."""

    run: Run
    problem: PaperProblem
    add: Add

    @property
    def kind(self) -> Hashable | None:
        """What runs must have in common to be walked side by side; None for one that is walked by itself."""
        run, schedule, mechanism = self.run, self.run.choice.schedule, self.run.choice.mechanism
        one_by_one = schedule.kind == "running-mean" and schedule.block == 1 and not schedule.fresh_start
        plain = run.contributions.factored is None and run.encoding.preprocess is None and not run.noise.on_grid
        if not (one_by_one and plain):
            return None
        clipping = (mechanism.clip, mechanism.rule, mechanism.scale)
        model = (run.walker.model.digest(), run.encoding.classes, run.encoding.shape, run.walker.initial.device)
        return (clipping, model, self.problem.n, self.problem.per_party, run.settings.permutations)


def walk_abreast(lanes: Sequence[Lane]) -> list[float]:
    """Walk runs of the same kind; return the length of the longest gradient that was watched in each.

    Whatever walks are valued goes to each lane's `add`.

    Formal guarantee: each run's releases are those of its own schedule, through `Contributions.release`: the clipped
    gradient of one party of the run, at a model that is a function of the run's earlier releases, with its own noise.
    """
    together = _Together(lanes)
    try:
        with lanes[0].run.settings.engine.threading():
            together.prepare()
            for t in range(lanes[0].run.settings.permutations):
                together.walk(t)
        return [WATCH.longest(place) for place in range(len(lanes))]
    finally:
        WATCH.start()  # whatever is clipped next is of one run


class _Together:
    """What all runs have released so far, and how they go on."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes, first = lanes, lanes[0]
        self._n, engine, initial = first.problem.n, first.run.settings.engine, first.run.walker.initial
        engine.require_room(self._n * len(lanes), len(initial))
        self._everyone = _put_together(lanes)
        self._initial = torch.stack([lane.run.walker.initial for lane in lanes])
        self._rates = initial.new_tensor([[lane.run.walker.learning_rate] for lane in lanes])
        self._offsets = self._n * np.arange(len(lanes))[:, None]
        self._sums = initial.new_zeros(self._n * len(lanes), len(initial))
        self._path = initial.new_empty(len(lanes), self._n, len(initial))
        self._worth = [lane.run.evaluate(lane.run.walker.initial[None]) for lane in lanes]
        self._graphs: dict[int, Graph] = {}

    def prepare(self) -> None:
        """Record what is replayed. That walks a few times, without noise: what it adds up and sees is forgotten."""
        WATCH.start(len(self._lanes))
        if self._initial.is_cuda:
            for length in {min(STRETCH, self._n), self._n % STRETCH} - {0}:
                who = torch.from_numpy(self._offsets + np.arange(length)).to(self._initial.device)
                noise = self._initial.new_zeros(len(self._lanes), length, self._initial.shape[1])
                self._graphs[length] = Graph(self._advance, self._initial, who, noise, self._rates)
        self._sums.zero_()
        WATCH.start(len(self._lanes))

    def walk(self, t: int) -> None:
        """Make walk t of all runs."""
        orders, drawn = [], []
        for lane in self._lanes:
            run, initial = lane.run, lane.run.walker.initial
            own = permutations(run.settings.seed, Purpose.PERMUTATION, t, 1, self._n)
            streams = run.contributions.streams(run.noise, [t], initial, None)
            orders.append(own)
            drawn.append(run.contributions.noise(streams, torch.from_numpy(own).to(initial.device), initial))
        who = torch.from_numpy(np.concatenate(orders) + self._offsets).to(self._initial.device)
        noise, theta, reach = torch.cat(drawn), self._initial, self._rates / (t + 1)
        for start in range(0, self._n, STRETCH):
            here = slice(start, start + STRETCH)
            part = (theta, who[:, here], noise[:, here], reach)
            (models,) = self._graphs[who[:, here].shape[1]](*part) if self._graphs else self._advance(*part)
            self._path[:, here] = models
            theta = self._path[:, start + models.shape[1] - 1]
        self._value(t, orders)

    def _advance(self, theta: Tensor, who: Tensor, noise: Tensor, reach: Tensor) -> tuple[Tensor]:
        """Walk some positions; return the models (runs, positions, d) after each."""
        path = []
        for parties, drawn in zip(who.unbind(1), noise.unbind(1), strict=True):
            clipped = self._everyone.clipped_gradients(theta, parties)
            total = self._sums.index_select(0, parties) + self._everyone.release(clipped, drawn, parties, None)
            self._sums.index_copy_(0, parties, total)  # a party takes part once in a walk
            theta = theta - reach * total
            path.append(theta)
        return (torch.stack(path, dim=1),)

    def _value(self, t: int, orders: list[Ints]) -> None:
        """Hand the marginals of walk t to the runs that value it."""
        valued = [
            (lane, own, torch.cat([worth, lane.run.evaluate(models)]).diff())
            for lane, own, worth, models in zip(self._lanes, orders, self._worth, self._path, strict=True)
            if t >= lane.run.choice.schedule.first_valued(lane.run.settings.permutations)
        ]
        if valued:
            marginals = torch.stack([found for _, _, found in valued]).cpu().numpy()
            for (lane, own, _), found in zip(valued, marginals, strict=True):
                lane.add(own, found[None])


def _put_together(lanes: Sequence[Lane]) -> Contributions:
    """The parties of all runs, those of the first run first."""
    run, problems = lanes[0].run, [lane.problem for lane in lanes]
    X, y = (np.concatenate([problem.train[part] for problem in problems]) for part in (0, 1))
    changed = np.concatenate([problem.changed for problem in problems])
    everyone = PaperProblem((X, y), problems[0].test, changed, problems[0].per_party)
    privacy, dtype = run.settings.privacy, run.settings.engine.torch_dtype
    behind = PrivacyBoundary(
        run.choice.unit_numbers, run.choice.mechanism, run.encoding, privacy, dtype, is_secure=False
    )
    return behind.enclose(everyone.parties, run.settings.engine)
