"""What a coordinator checks of a release: that it is an answer, and that clipped data plus noise can look like it.

A party that lies (scales, flips or makes up its release, copies another's, claims more records than it has) harms the
values and nobody's privacy. How far it can go is bounded: the clipped mean is at most C long, so with noise of scale s
a release longer than C + s q, where the noise alone is longer than s q once in a million times, is no honest one.
"""

from __future__ import annotations

from math import log, sqrt

import torch

from dpvalue.engine.local import DTYPES
from dpvalue.errors import DpvalueError
from dpvalue.privacy.laws import law_named
from dpvalue.releasing.job import Job, Release, Request
from dpvalue.server.rounds import require_answer

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
        raise DpvalueError(f"the release is {length:.3g} long, and data plus noise at most {most:.3g}")


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
        raise DpvalueError("its number of units is not that of its first release")


def require_own(party: str, owner: str) -> None:
    """Raise unless the party that sent numbers is the one that sent them first."""
    if owner != party:
        raise DpvalueError(f"it is a copy of the release of {owner!r}: noise does not repeat")
