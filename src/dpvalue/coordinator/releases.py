"""Check releases, combine them to a table, and make the requests of the next round.

A dishonest party (one that scales, flips or invents its release, copies another one, or claims more records than it
has) harms the values, but no party's privacy. The norm of a release is bounded: the clipped mean has norm at most C, so
with noise of scale s an honest release exceeds C + s q with probability at most 1e-6. Longer releases are rejected.
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
from dpvalue.storage import write_whole
from dpvalue.stored import TEXT, WHOLE, fields, parse_json, read_text
from dpvalue.streams import Purpose, permutations, replay_seed_of_rows
from dpvalue.values.table import METHOD, Table

MOST_BYTES = 2**18
"""The largest size of the file; further rejections are not listed, and the last line states that."""

_MOST_LETTERS, _MOST_REASON = 100, 400

_LINE = fields(party=TEXT, round=WHOLE, why=TEXT)


@dataclass(frozen=True)
class Receipt:
    """The outcome of a release: party, round, and the reason of a rejection; empty if accepted."""

    party: str
    round: int
    why: str = ""


_MORE = Receipt("?", 0, "further rejections are not listed")


@dataclass(frozen=True)
class Rejections:
    """The file `rejected.jsonl` of a study. It holds the reason of each rejection, not the rejected bytes.

    Args:
        path: the file.
    """

    path: Path

    def add(self, receipt: Receipt) -> Receipt:
        """Add a rejection, once, while the file has room; return it with shortened texts."""
        entry = Receipt(_shorten(receipt.party, _MOST_LETTERS), receipt.round, _shorten(receipt.why, _MOST_REASON))
        lines, line, last_line = self._lines(), _json_line(entry), _json_line(_MORE)
        if line in lines or last_line in lines:
            return entry
        room = MOST_BYTES - sum(map(len, lines)) - len(lines) - len(last_line) - 1
        all_lines = [*lines, line if len(line) < room else last_line]
        write_whole(self.path, "".join(f"{text}\n" for text in all_lines).encode())
        return entry

    def all(self) -> list[Receipt]:
        """Return all rejections in the file."""
        entries = [parse_json(entry, str(self.path)) for entry in self._lines()]
        for entry in entries:
            _LINE(str(self.path), entry)
        return [Receipt(entry["party"], entry["round"], entry["why"]) for entry in entries]

    def _lines(self) -> list[str]:
        return read_text(self.path).splitlines() if self.path.is_file() else []


def _json_line(receipt: Receipt) -> str:
    return json.dumps(asdict(receipt))


def _shorten(text: str, length: int) -> str:
    line = one_line(text)
    return line if len(line) <= length else line[: length - 3] + "..."


FALSE_ALARM = 1e-6
"""The largest probability of rejecting an honest release."""

_ROOM = 1.001  # for rounding, and for noise on a grid, which is a little wider

MOST_UNITS = 10**12


def longest_release(job: Job, units: int) -> float:
    """Return the norm that an honest release of `units` units exceeds with probability 1e-6, before scaling."""
    mechanism = job.mechanism
    assert mechanism.clip is not None
    scale = float(mechanism.noise_scale(torch.tensor([units]))[0])
    if find_law(mechanism.law).scalar:  # of Laplace noise
        return _ROOM * (mechanism.clip + scale * log(1 / FALSE_ALARM))
    tail = log(1 / FALSE_ALARM)  # of a chi-squared sum: Laurent and Massart 2000
    return _ROOM * (mechanism.clip + scale * sqrt(job.size + 2 * sqrt(job.size * tail) + 2 * tail))


def require_plausible(release: Release, job: Job) -> None:
    """Raise if the norm of a release is too large for clipped data plus noise."""
    scale = job.mechanism.scale
    raw = (release.numbers.to(torch.float64) - scale.level) / (scale.gain or 1.0)
    norm, bound = float(raw.norm()), longest_release(job, release.units)
    if norm > bound:
        raise DpvalueError(f"the norm of the release must be at most {bound:.3g}, got {norm:.3g}")


def require_release(release: Release, job: Job, request: Request) -> None:
    """Raise unless a release answers a request: same job, round and shape, finite, and of a plausible norm."""
    if release.units > MOST_UNITS:
        raise DpvalueError(f"units must be at most {MOST_UNITS}, got {release.units}")
    require_answer(release, job, request, release.party)
    if release.numbers.dtype != DTYPES[job.dtype]:
        raise DpvalueError(f"the release must hold numbers of type {job.dtype}, got {release.numbers.dtype}")
    require_plausible(release, job)


def require_units(release: Release, first: Release) -> None:
    """Raise unless the number of units is that of the party's first release."""
    if first.units != release.units:
        raise DpvalueError("its number of units differs from its first release")


def require_own(party: str, owner: str) -> None:
    """Raise if another party sent the same numbers first."""
    if owner != party:
        raise DpvalueError(f"it is a copy of the release of {owner!r}")


@dataclass(frozen=True, eq=False)
class Answers:
    """The releases of one party, by round; rounds may be missing."""

    releases: tuple[Release, ...]

    @property
    def units(self) -> int:
        """The party's number of units."""
        return self.releases[0].units


def sorted_names(names: Sequence[str]) -> list[str]:
    """Return names in the order of results: whole numbers, then texts."""
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    return [str(name) for name in number_groups(labels)[0]]


def combine(job: Job, releases: Iterable[Release]) -> Table:
    """Return the table of the releases for a job of one round; it can be valued any number of times.

    Args:
        job: the job.
        releases: one release per party.

    Returns:
        the table.

    Raises:
        DpvalueError: a release that does not answer the job, two releases of one party, or fewer than two parties.

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
    """Return the table of all releases, as a local run with these parties makes it."""
    names = sorted_names(list(answers))
    require_names("names of parties", names)
    if len(names) < 2:
        raise DpvalueError(f"at least two parties must answer, got {len(names)}")
    empty = _empty_table(job)
    units = np.array([answers[name].units for name in names], dtype=np.int64)
    counts = np.array([len(answers[name].releases) for name in names])
    rows = torch.stack([
        torch.stack([release.numbers for release in answers[name].releases]).to(empty.rows.dtype).mean(0)
        for name in names
    ])  # fmt: skip
    mechanism = job.mechanism
    noise = abs(mechanism.scale.gain) * mechanism.noise_std(torch.from_numpy(units)).numpy() / np.sqrt(counts)
    ranges = np.array([job.course.range_of(int(count)) for count in units])
    labels = np.empty(len(names), dtype=object)
    labels[:] = names
    stated = replace(empty.guarantee, charged=replace(empty.guarantee.charged, parties="named parties"))
    return replace(
        empty,
        guarantee=stated,
        rows=rows,
        names=number_groups(labels)[0],
        noise_std=noise,
        origin=replace(empty.origin, sizes=units),
        method=empty.method.for_parties(ranges),
        seed=empty.seed if job.simulation is None else replay_seed_of_rows(rows.numpy()),
    )


def next_requests(
    job: Job, number: int, answers: Mapping[str, Answers], heads: Mapping[str, str]
) -> dict[str, Request]:
    """Return the request of each party in a round after the first, with the last known head of its ledger."""
    table = combine_answers(job, answers)
    _, probes = table.schedule.shape(table.origin.permutations)
    orders = permutations(job.about.seed, Purpose.PERMUTATION, number * probes, probes, table.n)
    query = on_walks(table.walker(engine_of(job)), table.rows, orders)
    messages = requests(query, job.digest, number, table.n)
    return {
        str(name): replace(request, head=heads.get(str(name), ""))
        for name, request in zip(table.names, messages, strict=True)
    }


def engine_of(job: Job) -> Local:
    """Return the engine of a coordinator, in the precision of the job."""
    return Local(device="cpu", dtype=job.dtype)


def _empty_table(job: Job) -> Table:
    """The table without parties of a job, checked like a file."""
    if job.about.table is None:
        raise DpvalueError("the job must describe a table to combine releases in")
    header, tensors = job.about.table
    job_tensors = {"initial": job.origin, "basis": job.basis, f"{METHOD}trunk": job.model.trunk}
    job_tensors |= {f"{METHOD}{name}": tensor for name, tensor in job.statistic.tensors().items()}
    all_tensors = tensors | {name: tensor for name, tensor in job_tensors.items() if tensor is not None}
    model = None if isinstance(job.model.kind, str) else job.model.kind
    stored_header = json.loads(as_text({**header, "encoding": encoding_to_json(job.encoding)}))  # as in a file
    return table_of_parts(stored_header, all_tensors, "the job's table", model)
