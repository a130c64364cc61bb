"""The rounds of a run: its job, the queries of its rounds, and the table of the releases.

A party makes one noisy release per round, for any number of models. The first round uses public points. A later round
uses the models before each party on walks over the table so far. Both depend only on earlier releases and public
inputs.
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
    """Return the job of a run with privacy, for schedules of rounds and for federated learning.

    Formal guarantee: a function of the public set, the settings and the parties' public sizes.

    Args:
        situation: what choices were made from.
        encoding: the encoding of rows.
        choice: all choices of the run.
        names: the parties of a simulation, in the order of the table; a job without simulation holds no names.
        target: the column of labels in parties' files.
        recipe: the options of the job.
    """
    settings, public = situation.settings, situation.public
    if settings.privacy is None or not (choice.schedule.in_rounds or choice.schedule.learns):
        raise DpvalueError("a job needs privacy and either federated learning or the schedule 'replay' or 'lagged'")
    choice_by_size, least_units = choice.method.choice_by_size(situation, choice)
    points = choice_by_size.points[:, None] if choice_by_size.points.dim() == 2 else choice_by_size.points
    return Job(
        encoding=encoding,
        model=PublicModel(settings.model, situation.model.digest(), choice_by_size.method.tensors().get("trunk")),
        origin=_flush_denormals(choice.initial if choice.basis is None else choice.basis.origin),
        basis=None if choice.basis is None else _flush_denormals(choice.basis.vectors),
        mechanism=choice.mechanism,
        course=RoundPlan(
            choice.releases,
            _flush_denormals(points.transpose(0, 1)),
            choice.shares.cpu(),
            torch.from_numpy(least_units),
        ),
        privacy=settings.privacy,
        simulation=None if settings.noise == "secure" else Simulation(settings.seed, tuple(map(str, names))),
        about=JobNotes(
            public_digest(public),
            target,
            recipe,
            settings.seed,
            _empty_table(settings, choice_by_size, encoding, least_units),
        ),
        dtype=str(settings.engine.torch_dtype).removeprefix("torch."),
        statistic=choice.method.statistic,
    )


def public_digest(public: PublicSet) -> str:
    """Return the digest of a public set in a job."""
    return digest({"metric": public.metric.name, "l2": public.l2}, {"x": public.x, "y": public.y})


def _empty_table(settings: Settings, choice_by_size: Choice, encoding: Encoding, least_units: Ints) -> Parts:
    """A table of one stand-in per range of sizes, without the parts that the job holds."""
    points = choice_by_size.points
    rows = torch.zeros(len(least_units), points.shape[-1], dtype=points.dtype)
    header, tensors = make_table(
        settings, choice_by_size, encoding, rows, tuple(least_units.tolist()), np.zeros(len(least_units)), least_units
    ).parts()
    held = {
        "initial",
        "basis",
        f"{METHOD}trunk",
        *(f"{METHOD}{name}" for name in choice_by_size.method.statistic.tensors()),
    }
    return (
        {name: part for name, part in header.items() if name != "encoding"},
        {name: part for name, part in tensors.items() if name not in held},
    )


def _flush_denormals(numbers: Tensor) -> Tensor:
    """Numbers with denormals set to zero: processors may be slow with them, or round them to zero."""
    return torch.where(numbers.abs() < _DENORMAL, 0.0, numbers).cpu().contiguous()


Ask = Callable[[int, Tensor, Query], Tensor]
"""Takes a round, its state (the table so far, or the global model) and its query; returns all releases (n, size)."""


@dataclass(frozen=True)
class Rounds:
    """R rounds of B probes, the first at public points.

    Attributes:
        walker: model, initial parameters and learning rate of walks.
        parties: number of parties.
        seed: seed of the permutations.
        rounds: R.
        probes: B.
        start: the query of the first round.
        ask: returns the releases of a round.
    """

    walker: Walker
    parties: int
    seed: int
    rounds: int
    probes: int
    start: AtPoints
    ask: Ask

    def run(self, progress: Progress, before_round: Callable[[int, Tensor, Ints], None] | None = None) -> Tensor:
        """Run all rounds and return the table, the mean of the releases of each party (n, size).

        `before_round` receives the number of each round after the first, its table and its permutations.
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
    """Return the query for each party's gradient at the model before it, on the walks (k, n) over a table."""

    def pieces() -> Iterator[tuple[Tensor, Tensor]]:
        for walks, positions, before, _ in walker.prefixes(table, orders):
            yield torch.from_numpy(orders[walks, positions]).flatten().to(table.device), before.flatten(0, 1)

    return OnWalks(len(orders), pieces)


def requests(query: Query, job: str, number: int, parties: int) -> list[Request]:
    """Return the request of each party in a round."""
    if isinstance(query, AtPoints):
        if query.points.dim() == 3:
            return [Request(job, number, party_points, query.shares) for party_points in query.points.unbind(1)]
        return [Request(job, number, query.points, query.shares)] * parties
    points: list[list[Tensor]] = [[] for _ in range(parties)]
    for party_indices, models in query.pieces():
        for party, model in zip(party_indices.tolist(), models, strict=True):
            points[party].append(model)
    return [Request(job, number, torch.stack(party_points)) for party_points in points]


def require_answer(release: Release, job: Job, request: Request, name: str) -> None:
    """Raise unless a release answers a request of a party: same job, round and shape, and finite numbers."""
    answer = release.job, release.request, release.round, release.party
    if answer != (job.digest, request.digest, request.round, name):
        raise DpvalueError(f"the release of {name!r} does not answer round {request.round} of this job")
    if release.numbers.shape != (job.size,) or not bool(release.numbers.isfinite().all()):
        raise DpvalueError(f"the release of {name!r} must be {job.size} finite numbers")
