"""From releases to a table, and from the table of earlier rounds to the requests of the next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dpvalue.coordinator.checks import require_release
from dpvalue.data.encoding import encoding_to_json
from dpvalue.data.parties import numbered_groups
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.names import require_names
from dpvalue.protocol.archive import as_text
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.runs.loading import table_of_parts
from dpvalue.runs.rounds import on_walks, requests
from dpvalue.runs.table import METHOD, Table
from dpvalue.streams import Purpose, permutations, replay_seed_of_rows


@dataclass(frozen=True, eq=False)
class Answers:
    """What one party has released, round by round; it may have missed some."""

    releases: tuple[Release, ...]

    @property
    def units(self) -> int:
        """The party's number of units."""
        return self.releases[0].units


def in_order(names: Sequence[str]) -> list[str]:
    """Return names in the order of all results: whole numbers, then texts."""
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    return [str(name) for name in numbered_groups(labels)[0]]


def combine(job: Job, releases: Iterable[Release]) -> Table:
    """Return the table of what parties have released for a job of one round, to be valued any number of times.

    What is no answer to the job raises, and so does a second answer of a party.

    Args:
        job: what the parties answered.
        releases: one of each party.

    Returns:
        the table.

    Raises:
        DpvalueError: a release that is no answer to the job, two of one party, or fewer than two parties.

    Example:
        >>> job = plan.job()  # `plan` and data as in the examples of `dpvalue.Plan` and `dpvalue.Result`
        >>> homes = [dpv.Party(site, train[0][sites == site], train[1][sites == site]) for site in ("north", "west")]
        >>> combine(job, [party.answer(job) for party in homes]).names
        ('north', 'west')
    """
    answers: dict[str, Answers] = {}
    for release in releases:
        require_release(release, job, job.first(release.units))
        if release.party in answers:
            raise DpvalueError(f"releases must be one per party, {release.party!r} has two")
        answers[release.party] = Answers((release,))
    return combine_answers(job, answers)


def combine_answers(job: Job, answers: Mapping[str, Answers]) -> Table:
    """Return the table of all releases: what a local run with these parties would have made."""
    names = in_order(list(answers))
    require_names("names of parties", names)
    if len(names) < 2:
        raise DpvalueError(f"at least two parties must answer, got {len(names)}")
    blank = _blank(job)
    units = np.array([answers[name].units for name in names], dtype=np.int64)
    counts = np.array([len(answers[name].releases) for name in names])
    rows = torch.stack([
        torch.stack([release.numbers for release in answers[name].releases]).to(blank.rows.dtype).mean(0)
        for name in names
    ])  # fmt: skip
    mechanism = job.mechanism
    noise = abs(mechanism.scale.gain) * mechanism.noise_std(torch.from_numpy(units)).numpy() / np.sqrt(counts)
    ranges = np.array([job.course.range_of(int(count)) for count in units])
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    spent = replace(blank.guarantee, charged=replace(blank.guarantee.charged, parties="named parties"))
    return replace(
        blank,
        guarantee=spent,
        rows=rows,
        names=numbered_groups(labels)[0],
        noise_std=noise,
        origin=replace(blank.origin, sizes=units),
        method=blank.method.for_parties(ranges),
        seed=blank.seed if job.simulation is None else replay_seed_of_rows(rows.numpy()),
    )


def next_requests(
    job: Job, number: int, answers: Mapping[str, Answers], heads: Mapping[str, str]
) -> dict[str, Request]:
    """Return what each party is asked in a round after the first, with the head of its ledger that was last seen."""
    table = combine_answers(job, answers)
    _, probes = table.schedule.shape(table.origin.permutations)
    orders = permutations(job.about.seed, Purpose.PERMUTATION, number * probes, probes, table.n)
    asked = on_walks(table.walker(engine_of(job)), table.rows, orders)
    made = requests(asked, job.digest, number, table.n)
    return {
        str(name): replace(request, head=heads.get(str(name), ""))
        for name, request in zip(table.names, made, strict=True)
    }


def engine_of(job: Job) -> Local:
    """Return where a coordinator computes: in the precision of the job."""
    return Local(device="cpu", dtype=job.dtype)


def _blank(job: Job) -> Table:
    """The table without parties that came with a job, checked like any file."""
    if job.about.table is None:
        raise DpvalueError("the job must describe a table to combine releases in")
    header, tensors = job.about.table
    own = {"initial": job.origin, "basis": job.basis, f"{METHOD}trunk": job.model.trunk}
    whole = tensors | {name: tensor for name, tensor in own.items() if tensor is not None}
    model = None if isinstance(job.model.kind, str) else job.model.kind
    written = json.loads(as_text({**header, "encoding": encoding_to_json(job.encoding)}))  # as a file would hold it
    return table_of_parts(written, whole, "the job's table", model)
