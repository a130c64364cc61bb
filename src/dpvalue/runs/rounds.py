"""Releases in rounds (`lagged`, `replay`), as the server sees them: it asks, and keeps the mean of the answers.

One noisy message per party and round, however many models it is asked at. The first round is asked at public points, a
later one at the models before each party on walks over the table so far: both are functions of earlier releases and of
public things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.engine.evaluator import Walker
from dpvalue.errors import DpvalueError
from dpvalue.progress import Progress
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Asked, AtPoints, OnWalks, Release, Request
from dpvalue.streams import Purpose, permutations

Ask = Callable[[int, Tensor, Asked], Tensor]
"""Takes a round, what it follows from (the table so far, or the global model), and what is asked; returns what all
parties release (n, size)."""


@dataclass(frozen=True)
class Rounds:
    """R rounds of B probes, the first at public points.

    Attributes:
        walker: the public side of a walk.
        parties: how many are asked.
        seed: of the permutations.
        rounds: R.
        probes: B.
        start: what the first round asks.
        ask: how parties are asked.
    """

    walker: Walker
    parties: int
    seed: int
    rounds: int
    probes: int
    start: AtPoints
    ask: Ask

    def run(self, progress: Progress, before_round: Callable[[int, Tensor, Ints], None] | None = None) -> Tensor:
        """Ask all rounds and return the table, the mean of the releases of each party (n, size).

        `before_round` is shown the number of each round after the first, the table it walks with, and its permutations.
        """
        initial = self.walker.initial
        total = torch.zeros(self.parties, self.walker.model.size, dtype=initial.dtype, device=initial.device)
        progress("releasing", 0, self.rounds)
        for number in range(self.rounds):
            table = total / max(number, 1)
            orders = permutations(self.seed, Purpose.PERMUTATION, number * self.probes, self.probes, self.parties)
            if number and before_round is not None:
                before_round(number, table, orders)
            total += self.ask(number, table, self.start if number == 0 else on_walks(self.walker, table, orders))
            progress("releasing", number + 1, self.rounds)
        return total / self.rounds


def on_walks(walker: Walker, table: Tensor, orders: Ints) -> OnWalks:
    """Return the question for everybody's gradient at the model before it on each of the walks (k, n) over a table."""

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        for walks, positions, before, _ in walker.prefixes(table, orders):
            yield torch.from_numpy(orders[walks, positions]).flatten().to(table.device), before.flatten(0, 1)

    return OnWalks(len(orders), pieces)


def requests(asked: Asked, job: str, number: int, parties: int) -> list[Request]:
    """Return what each party is asked in a round, as messages of their own."""
    if isinstance(asked, AtPoints):
        if asked.points.dim() == 3:
            return [Request(job, number, own, asked.shares) for own in asked.points.unbind(1)]
        return [Request(job, number, asked.points, asked.shares)] * parties
    points: list[list[Tensor]] = [[] for _ in range(parties)]
    for who, models in asked.pieces():
        for party, model in zip(who.tolist(), models, strict=True):
            points[party].append(model)
    return [Request(job, number, torch.stack(own)) for own in points]


def ask_each(job: Job, names: Sequence[str], answers: Sequence[Callable[[Job, Request], Release]]) -> Ask:
    """Return how parties are asked one by one, each by a message of its own; their answers are checked.

    Args:
        job: the job.
        names: of the parties, in the order of the table.
        answers: `Party.answer` of each, or what carries a message to it and back.
    """

    def ask(number: int, after: Tensor, asked: Asked) -> Tensor:
        rows = []
        for name, request, answer in zip(names, requests(asked, job.digest, number, len(names)), answers, strict=True):
            release = answer(job, request)
            require_answer(release, job, request, name)
            rows.append(release.numbers.to(after))
        return torch.stack(rows)

    return ask


def require_answer(release: Release, job: Job, request: Request, name: str) -> None:
    """Raise unless a release is a party's answer to a request: the right job, round and shape, and finite numbers."""
    given = release.job, release.request, release.round, release.party
    if given != (job.digest, request.digest, request.round, name):
        raise DpvalueError(f"the release of {name!r} does not answer round {request.round} of this job")
    if release.numbers.shape != (job.size,) or not bool(release.numbers.isfinite().all()):
        raise DpvalueError(f"the release of {name!r} must be {job.size} finite numbers")
