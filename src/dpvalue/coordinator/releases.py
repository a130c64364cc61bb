"""What a coordinator does with releases: checks them, makes a table of them, and the requests of the next round.

A party that lies (scales, flips or makes up its release, copies another's, claims more records than it has) harms the
values and nobody's privacy. How far it can go is bounded: the clipped mean is at most C long, so with noise of scale s
a release longer than C + s q, where the noise alone is longer than s q once in a million times, is no honest one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, sqrt
from pathlib import Path

import numpy as np
import torch

from dpvalue.data.encoding import encoding_to_json
from dpvalue.data.parties import number_groups
from dpvalue.display import one_line
from dpvalue.engine.engines import DTYPES, Local
from dpvalue.errors import DpvalueError
from dpvalue.names import require_names
from dpvalue.privacy.laws import find_law
from dpvalue.protocol.archive import as_text
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.runs.loading import table_of_parts
from dpvalue.runs.rounds import on_walks, requests, require_answer
from dpvalue.runs.table import METHOD, Table
from dpvalue.storage import write_whole
from dpvalue.stored import TEXT, WHOLE, fields, parse_json, read_text
from dpvalue.streams import Purpose, permutations, replay_seed_of_rows

MOST_BYTES = 2**18
"""Of all lines together; what comes after is not listed, and the last line says so."""

_MOST_LETTERS, _MOST_REASON = 100, 400

_LINE = fields(party=TEXT, round=WHOLE, why=TEXT)


@dataclass(frozen=True)
class Receipt:
    """What became of something that came: whose it was, of which round, and why it does not count; empty if it does."""

    party: str
    round: int
    why: str = ""


_MORE = Receipt("?", 0, "further rejections are not listed")


@dataclass(frozen=True)
class Rejections:
    """The file `rejected.jsonl` of a study. What was sent is not kept, but for a short text that says what was wrong.

    Args:
        path: where it is.
    """

    path: Path

    def add(self, receipt: Receipt) -> Receipt:
        """List what does not count, once, while there is room; return it, its texts cut to what a line holds."""
        shown = Receipt(_cut(receipt.party, _MOST_LETTERS), receipt.round, _cut(receipt.why, _MOST_REASON))
        lines, line, more = self._lines(), _written(shown), _written(_MORE)
        if line in lines or more in lines:
            return shown
        room = MOST_BYTES - sum(map(len, lines)) - len(lines) - len(more) - 1
        kept = [*lines, line if len(line) < room else more]
        write_whole(self.path, "".join(f"{one}\n" for one in kept).encode())
        return shown

    def all(self) -> list[Receipt]:
        """Return what is listed."""
        found = [parse_json(line, str(self.path)) for line in self._lines()]
        for line in found:
            _LINE(str(self.path), line)
        return [Receipt(line["party"], line["round"], line["why"]) for line in found]

    def _lines(self) -> list[str]:
        return read_text(self.path).splitlines() if self.path.is_file() else []


def _written(receipt: Receipt) -> str:
    return json.dumps(asdict(receipt))


def _cut(text: str, most: int) -> str:
    shown = one_line(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."


FALSE_ALARM = 1e-6
"""How often an honest release is taken for garbage, at most."""

_ROOM = 1.001  # for rounding, and for noise on a grid, which is a little wider

MOST_UNITS = 10**12


def longest(job: Job, units: int) -> float:
    """Return how long a release of a party of so many units can be, but for one in a million, before it is read."""
    mechanism = job.mechanism
    assert mechanism.clip is not None
    scale = float(mechanism.noise_scale(torch.tensor([units]))[0])
    if find_law(mechanism.law).scalar:  # of Laplace noise
        return _ROOM * (mechanism.clip + scale * log(1 / FALSE_ALARM))
    tail = log(1 / FALSE_ALARM)  # of a chi-squared sum: Laurent and Massart 2000
    return _ROOM * (mechanism.clip + scale * sqrt(job.size + 2 * sqrt(job.size * tail) + 2 * tail))


def require_plausible(release: Release, job: Job) -> None:
    """Raise for a release that cannot be clipped data plus noise."""
    scale = job.mechanism.scale
    raw = (release.numbers.to(torch.float64) - scale.level) / (scale.gain or 1.0)
    length, most = float(raw.norm()), longest(job, release.units)
    if length > most:
        raise DpvalueError(f"the norm of the release must be at most {most:.3g}, got {length:.3g}")


def require_release(release: Release, job: Job, request: Request) -> None:
    """Raise unless a release answers a request: the right job, round and shape, finite, and of a size that can be."""
    if release.units > MOST_UNITS:
        raise DpvalueError(f"units must be at most {MOST_UNITS}, got {release.units}")
    require_answer(release, job, request, release.party)
    if release.numbers.dtype != DTYPES[job.dtype]:
        raise DpvalueError(f"the release must hold numbers of type {job.dtype}, got {release.numbers.dtype}")
    require_plausible(release, job)


def require_units(release: Release, first: Release) -> None:
    """Raise unless a party has as many units as it had in its first release."""
    if first.units != release.units:
        raise DpvalueError("its number of units differs from its first release")


def require_own(party: str, owner: str) -> None:
    """Raise unless the party that sent numbers is the one that sent them first."""
    if owner != party:
        raise DpvalueError(f"it is a copy of the release of {owner!r}")


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
    return [str(name) for name in number_groups(labels)[0]]


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
        require_release(release, job, job.first_request(release.units))
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
        names=number_groups(labels)[0],
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
    own |= {f"{METHOD}{name}": tensor for name, tensor in job.statistic.tensors().items()}
    whole = tensors | {name: tensor for name, tensor in own.items() if tensor is not None}
    model = None if isinstance(job.model.kind, str) else job.model.kind
    written = json.loads(as_text({**header, "encoding": encoding_to_json(job.encoding)}))  # as a file would hold it
    return table_of_parts(written, whole, "the job's table", model)
