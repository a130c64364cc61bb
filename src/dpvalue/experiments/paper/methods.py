"""The ways to value that tables and figures compare, and how much noise each gets.

The paper's accounting ("poisson") gives a noise multiplier s for n parties, k permutations and a claimed epsilon; what
those releases really spend is epsilon_honest(s, k). A method is run

    none      without noise
    paper     at the paper's noise: k releases of multiplier s (claimed epsilon, really epsilon_honest)
    equal     at the same mu, sqrt(k) / s, so that a table of 2 rounds has the noise of the mean of the k releases
    honest    at the epsilon that is claimed, counted as an untrusted server sees it

What "paper" noise is clipped to is a matter of how the paper is read (`readings`): the noise itself is always that of a
clip of 1. The paper takes the learning rate of the best model after one pass; here it is searched on public rows
(`paper_rate`), unless a reading has one of its own. The library's default searches its own, for its noise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dpvalue.api import value
from dpvalue.arrays import Floats
from dpvalue.data.utility import Utility
from dpvalue.engine.engines import Local
from dpvalue.experiments.paper.problem import PaperProblem
from dpvalue.experiments.paper.readings import AS_PRINTED, CLIP, LOOSE, PaperReading
from dpvalue.planning.settings import Settings
from dpvalue.privacy import accounting
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.run import Run, run_for
from dpvalue.values.result import Result

DELTA = 5e-5
# For n parties, k permutations and a claimed epsilon. The first is the paper's own (by Opacus; ours is 3.850), the
# others are ours: kept here as they take minutes to find, and for machines without dp-accounting.
PAPER_NOISE = {
    (800, 1000, 1.0): 3.867, (800, 1000, 0.1): 55.907, (800, 1000, 10.0): 0.809, (400, 50, 1.0): 1.377,
    (400, 100, 1.0): 1.824, (400, 200, 1.0): 2.482, (400, 400, 1.0): 3.440, (400, 800, 1.0): 4.819,
    (800, 200, 1.0): 1.822, (100, 1000, 1.0): 10.66, (100, 1000, 10.0): 1.637, (50, 50, 1.0): 3.46,
    (70, 1000, 1.0): 12.729, (70, 200, 1.0): 5.734, (100, 200, 1.0): 4.813,
    (100, 200, 10.0): 0.925, (100, 60, 1.0): 2.713, (20, 20, 1.0): 3.5,
}  # fmt: skip


@dataclass(frozen=True)
class PaperMethod:
    """A column of a table: its name, its schedule and which noise it gets.

    `walks` limits the permutations where that changes no noise: without any, and for the library's default.
    """

    name: str
    schedule: Schedule | None
    noise: str
    walks: int | None = None

    def shares_walks(self, other: PaperMethod) -> bool:
        """Whether another method walks and releases the same, and only values other permutations: a burn-in."""
        if self.schedule is None or other.schedule is None:
            return False
        same = replace(self.schedule, burn_in=0.0) == replace(other.schedule, burn_in=0.0)
        return same and (self.noise, self.walks) == (other.noise, other.walks)


@dataclass(frozen=True)
class PaperOutcome:
    """What a method found: the values of each semivalue, and what they cost."""

    values: dict[str, Floats]
    cost: dict[str, Any]


def no_dp(walks: int | None = None) -> PaperMethod:
    """Return G-Shapley without noise, by as many walks as with it, or by fewer."""
    return PaperMethod("no DP", Schedule("independent"), "none", walks=walks)


def running_mean(burn_in: float = 0.0, block: int = 1, noise: str = "paper") -> PaperMethod:
    """Return X* (no burn-in) or Y* of the paper."""
    name = "X*" if not burn_in else f"Y* q={burn_in:g}"
    schedule = Schedule("running-mean", burn_in, block=block)
    return PaperMethod(name + (", honest" if noise == "honest" else ""), schedule, noise)


NO_DP = no_dp()
IID = PaperMethod("i.i.d.", Schedule("independent"), "paper")
"""The paper's baseline: noise of its own in every release."""
DEFAULT_EQUAL = PaperMethod("dpvalue, equal noise", None, "equal")
DEFAULT_HONEST = PaperMethod("dpvalue, honest", None, "honest")


def paper_rate(noise: str, problem: PaperProblem, k: int, epsilon: float = 1.0, **settings: Any) -> float:
    """Return the learning rate of the best model after one pass, searched on public rows; or the one in `settings`.

    Without noise, or with that of the mean of k releases: the paper's i.i.d. and correlated walks share one rate.
    """
    known = settings.get("learning_rate", settings.get("reading", AS_PRINTED).rate)
    if known is not None:
        return float(known)
    reference = no_dp() if noise == "none" else running_mean(noise=noise)
    return open_run([reference], problem, k, epsilon, metric="loss", **settings).choice.learning_rate


@cache
def paper_multiplier(n: int, k: int, epsilon: float) -> float:
    """Return the noise multiplier of the paper's accounting."""
    known = PAPER_NOISE.get((n, k, epsilon))
    return known or accounting.poisson_noise_multiplier(epsilon, DELTA, k, n)


def budget(method: PaperMethod, n: int, k: int, epsilon: float, reading: PaperReading = AS_PRINTED) -> Privacy | None:
    """Return the privacy of a method, always stated as what is really spent, for gradients as long as the clip."""
    if method.noise == "none":
        return None
    if method.noise == "honest":
        return Privacy(epsilon, DELTA)
    clip = reading.clip if method.noise == "paper" else CLIP
    return Privacy(spent(paper_multiplier(n, k, epsilon), k, clip), DELTA, mechanism="gaussian")


def spent(multiplier: float, k: int, length: float) -> float:
    """Return the epsilon of k releases of contributions of a length, with noise of so many times a clip of 1."""
    return accounting.epsilon(multiplier * CLIP / length, DELTA, k)


def run_method(
    method: PaperMethod,
    problem: PaperProblem,
    k: int,
    epsilon: float = 1.0,
    *,
    semivalues: tuple[str, ...] = ("shapley",),
    metric: str = "loss",
    **settings: Any,
) -> tuple[Result, dict[str, Any]]:
    """Value a problem by a method; return the result, and what it cost.

    `settings` are those of `value`, here and below; with them there may be a `reading` of the paper.
    """
    began = time.perf_counter()
    result = value(
        problem.parties,
        Utility(*problem.test, metric=metric),
        semivalues=semivalues,
        schedule=method.schedule,
        progress=False,
        **_asked(method, problem, k, epsilon, settings),
    )
    return result, cost_of(result.guarantee, result.table.learning_rate, began)


def open_run(
    methods: Sequence[PaperMethod], problem: PaperProblem, k: int, epsilon: float, *, metric: str, **settings: Any
) -> Run:
    """Return the run that methods share, valued from the earliest burn-in on, before anything is released."""
    earliest = min(methods, key=lambda one: one.schedule.burn_in if one.schedule else 0.0)
    assert earliest.schedule is not None
    asked = Settings(
        schedule=earliest.schedule, projection=None, **_asked(earliest, problem, k, epsilon, settings)
    )  # fmt: skip
    with asked.engine.threading():
        return run_for(problem.parties, Utility(*problem.test, metric=metric), asked)


def seen_cost(
    method: PaperMethod, n: int, k: int, epsilon: float, reading: PaperReading, longest: float
) -> dict[str, Any]:
    """What the releases of a walk spent if nothing bounded them: for the longest gradient that was seen."""
    if reading.binds or method.noise != "paper":
        return {}
    multiplier = paper_multiplier(n, k, epsilon)
    return {"longest": longest, "multiplier": multiplier, "epsilon": spent(multiplier, k, min(longest, LOOSE))}


def _asked(
    method: PaperMethod, problem: PaperProblem, k: int, epsilon: float, settings: dict[str, Any]
) -> dict[str, Any]:
    """What is asked of `value`, or written into `Settings`, for a method."""
    reading = settings.get("reading", AS_PRINTED)
    privacy = budget(method, problem.n, k, epsilon, reading)
    clipped = method.schedule is not None and method.noise == "paper"
    own = {
        "game": "steps",  # the paper's: its tables compare ways to release for that game
        "privacy": privacy,
        "permutations": min(k, method.walks or k),
        "clip": reading.clip if clipped else CLIP if method.schedule is not None and privacy is not None else "auto",
        "clip_rule": reading.rule if clipped else "auto",
        "noise": "fast",
        "engine": Local(),
        "seed": 0,
    }
    return {**own, **{name: given for name, given in settings.items() if name != "reading"}}


def cost_of(spent: Guarantee, rate: float, began: float) -> dict[str, Any]:
    """Return what values cost: the budget really spent, the noise, the learning rate, and the time since `began`."""
    return {
        "epsilon": spent.epsilon,
        "multiplier": spent.noise_multiplier,
        "mechanism": spent.mechanism,
        "learning_rate": rate,
        "seconds": time.perf_counter() - began,
    }
