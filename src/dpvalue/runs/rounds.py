"""What a run asks parties, round by round: its job, the questions of its rounds, and the table of what is released.

One noisy message per party and round, however many models it is asked at. The first round is asked at public points, a
later one at the models before each party on walks over the table so far: both are functions of earlier releases and of
public things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.encoding import Encoding
from dpvalue.data.utility import PublicSet
from dpvalue.engine.evaluator import Walker
from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice
from dpvalue.methods.table import Origin
from dpvalue.planning.settings import Settings
from dpvalue.planning.situation import Situation
from dpvalue.progress import Progress
from dpvalue.protocol.archive import Parts, digest
from dpvalue.protocol.job import Job, JobNotes, PublicModel, RoundPlan, Simulation
from dpvalue.protocol.messages import AtPoints, OnWalks, Query, Release, Request
from dpvalue.streams import Purpose, permutations, replay_seed, replay_seed_of_rows
from dpvalue.values.table import METHOD, Table

_DENORMAL = 1e-30


def make_table(
    settings: Settings,
    choice: Choice,
    encoding: Encoding,
    rows: Tensor,
    names: tuple[str | int, ...],
    noise_std: Floats,
    sizes: Ints,
) -> Table:
    """Return the table of combined releases (n, size), whose noise has these standard deviations (n,)."""
    return Table(
        rows=rows,
        names=names,
        noise_std=noise_std,
        guarantee=choice.guarantee,
        initial=(choice.initial if choice.basis is None else choice.basis.origin).cpu(),
        basis=None if choice.basis is None else choice.basis.vectors.cpu(),
        learning_rate=choice.learning_rate,
        model=settings.model,
        digest=choice.model.digest(),
        encoding=encoding,
        origin=Origin(choice.schedule, settings.permutations, choice.expected_auc, sizes),
        method=choice.method,
        seed=replay_seed_of_rows(rows.numpy()) if choice.guarantee.simulation else replay_seed(settings.seed),
    )


def make_job(
    situation: Situation,
    encoding: Encoding,
    choice: Choice,
    names: Sequence[str | int] = (),
    target: str | None = None,
    recipe: str = "",
) -> Job:
    """Return what parties are asked, for schedules of rounds, or federated learning, under differential privacy.

    Formal guarantee: a function of the public set, the settings and the parties' public sizes.

    Args:
        situation: what choices were made from.
        encoding: how rows become numbers.
        choice: what was chosen.
        names: the parties of a simulation, in the order of the table; nobody else's are part of a job.
        target: the column of labels in parties' files.
        recipe: the options that the job was made by.
    """
    settings, public = situation.settings, situation.public
    if settings.privacy is None or not (choice.schedule.in_rounds or choice.schedule.learns):
        raise DpvalueError("a job needs privacy and either federated learning or the schedule 'replay' or 'lagged'")
    wide, least = choice.method.choice_by_size(situation, choice)
    points = wide.points[:, None] if wide.points.dim() == 2 else wide.points
    return Job(
        encoding=encoding,
        model=PublicModel(settings.model, situation.model.digest(), wide.method.tensors().get("trunk")),
        origin=_flushed(choice.initial if choice.basis is None else choice.basis.origin),
        basis=None if choice.basis is None else _flushed(choice.basis.vectors),
        mechanism=choice.mechanism,
        course=RoundPlan(
            choice.releases, _flushed(points.transpose(0, 1)), choice.shares.cpu(), torch.from_numpy(least)
        ),
        privacy=settings.privacy,
        simulation=None if settings.noise == "secure" else Simulation(settings.seed, tuple(map(str, names))),
        about=JobNotes(public_digest(public), target, recipe, settings.seed, _blank(settings, wide, encoding, least)),
        dtype=str(settings.engine.torch_dtype).removeprefix("torch."),
        statistic=choice.method.statistic,
    )


def public_digest(public: PublicSet) -> str:
    """Return what a job knows its public set by."""
    return digest({"metric": public.metric.name, "l2": public.l2}, {"x": public.x, "y": public.y})


def _blank(settings: Settings, wide: Choice, encoding: Encoding, least: Ints) -> Parts:
    """A table of stand-ins, one for each range of sizes, without what the job holds itself."""
    points = wide.points
    rows = torch.zeros(len(least), points.shape[-1], dtype=points.dtype)
    header, tensors = make_table(
        settings, wide, encoding, rows, tuple(least.tolist()), np.zeros(len(least)), least
    ).parts()
    held = {"initial", "basis", f"{METHOD}trunk", *(f"{METHOD}{name}" for name in wide.method.statistic.tensors())}
    return (
        {name: part for name, part in header.items() if name != "encoding"},
        {name: part for name, part in tensors.items() if name not in held},
    )


def _flushed(numbers: Tensor) -> Tensor:
    """Numbers without those so small that a processor may be slow with them, or take them for zero."""
    return torch.where(numbers.abs() < _DENORMAL, 0.0, numbers).cpu().contiguous()


Ask = Callable[[int, Tensor, Query], Tensor]
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


def requests(asked: Query, job: str, number: int, parties: int) -> list[Request]:
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


def require_answer(release: Release, job: Job, request: Request, name: str) -> None:
    """Raise unless a release is a party's answer to a request: the right job, round and shape, and finite numbers."""
    given = release.job, release.request, release.round, release.party
    if given != (job.digest, request.digest, request.round, name):
        raise DpvalueError(f"the release of {name!r} does not answer round {request.round} of this job")
    if release.numbers.shape != (job.size,) or not bool(release.numbers.isfinite().all()):
        raise DpvalueError(f"the release of {name!r} must be {job.size} finite numbers")
