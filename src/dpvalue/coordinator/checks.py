"""What a coordinator checks of a release, and the file of what does not count.

A party that lies (scales, flips or makes up its release, copies another's, claims more records than it has) harms the
values and nobody's privacy. How far it can go is bounded: the clipped mean is at most C long, so with noise of scale s
a release longer than C + s q, where the noise alone is longer than s q once in a million times, is no honest one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import log, sqrt
from pathlib import Path

import torch

from dpvalue.engine.local import DTYPES
from dpvalue.errors import DpvalueError
from dpvalue.printable import one_line
from dpvalue.privacy.laws import law_named
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.runs.rounds import require_answer
from dpvalue.storage import write_whole
from dpvalue.stored import TEXT, WHOLE, fields, parse_json, read_text

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
    if law_named(mechanism.law).scalar:  # of Laplace noise
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
