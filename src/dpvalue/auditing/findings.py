"""Results of audits: lower bounds on epsilon and mu from the scores of repeated trials, and their page.

A test that says "present" where a score exceeds a threshold has a rate of false alarms FPR and of misses FNR. Every
(epsilon, delta)-DP mechanism has 1 - FNR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon FNR + delta; every mu-GDP
mechanism has Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu. So upper confidence bounds on the rates (Clopper-Pearson) give lower
bounds on epsilon and mu.

The first trials choose the threshold and the others evaluate it, so each bound is of one test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.display import html_lines
from dpvalue.errors import DpvalueError
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.schedule import Schedule

_PILOT = 0.25  # the share of trials that choose the threshold

_THRESHOLDS = 99

LEAST_TRIALS = 100

Judge = Callable[[float, float, int, int], float]
"""A function of false alarms, misses, trials without and trials with the canary; returns a bound."""


def rate_above(count: float, trials: int, alpha: float) -> float:
    """Return the Clopper-Pearson upper bound on a rate, at confidence 1 - alpha, from `count` of `trials`.

    >>> round(rate_above(0, 100, 0.05), 4)
    0.0295
    """
    from scipy.stats import beta

    return 1.0 if count >= trials else float(beta.ppf(1 - alpha, count + 1, trials - count))


def epsilon_bound(present: Floats, absent: Floats, delta: float, alpha: float) -> float:
    """Return a lower confidence bound on the epsilon of the mechanism that made these scores.

    Formal guarantee: for an (epsilon', delta)-DP mechanism with independent trials, the bound exceeds epsilon' with
    probability at most alpha. (This also holds for trials that depend on each other only through the models of a walk:
    see `dpvalue.auditing.audit`.)

    Args:
        present: the scores of trials with the canary; higher speaks for it.
        absent: the scores of trials with its neighbour.
        delta: of the guarantee.
        alpha: 1 - confidence.
    """

    def judge(alarms: float, misses: float, without: int, with_: int) -> float:
        def one_way(errors: float, of: int, missed: float, among: int) -> float:
            hit = 1 - rate_above(missed, among, alpha / 2) - delta
            return log(hit / rate_above(errors, of, alpha / 2)) if hit > 0 else -inf

        return max(one_way(alarms, without, misses, with_), one_way(misses, with_, alarms, without))

    # Both directions use the same two rates, so they hold together.
    return max(0.0, _bound_on_holdout(present, absent, judge))


def mu_bound(present: Floats, absent: Floats, alpha: float) -> float:
    """Return a lower confidence bound on the mu of the mechanism that made these scores; arguments as above.

    It is tighter than `epsilon_bound` for Gaussian noise, because it uses the whole trade-off curve and not one delta.
    """
    from scipy.special import ndtri

    def judge(alarms: float, misses: float, without: int, with_: int) -> float:
        false_alarms, missed = rate_above(alarms, without, alpha / 2), rate_above(misses, with_, alpha / 2)
        return float(-ndtri(false_alarms) - ndtri(missed))

    return max(0.0, _bound_on_holdout(present, absent, judge))


def _bound_on_holdout(present: Floats, absent: Floats, judge: Judge) -> float:
    fewest = min(len(present), len(absent))
    if fewest < LEAST_TRIALS:
        raise DpvalueError(f"runs x canaries must be at least {LEAST_TRIALS}, got {fewest}")
    pilot = round(_PILOT * fewest)
    with_, without = np.sort(present[:pilot]), np.sort(absent[:pilot])
    rest, others = present[pilot:], absent[pilot:]
    pooled = np.concatenate([with_, without])
    best, threshold = -inf, 0.0
    for candidate in np.unique(np.quantile(pooled, np.linspace(0, 1, _THRESHOLDS + 2)[1:-1])):
        alarms = (pilot - np.searchsorted(without, candidate, "right")) / pilot * len(others)
        misses = np.searchsorted(with_, candidate, "right") / pilot * len(rest)
        bound = judge(alarms, misses, len(others), len(rest))
        if bound > best:
            best, threshold = bound, float(candidate)
    return judge(int((others > threshold).sum()), int((rest <= threshold).sum()), len(others), len(rest))


_SLACK = 1e-4  # rounding error of the sensitivity ratio


@dataclass(frozen=True)
class Audit:
    """The result of an audit; `str()` of it is a page.

    Attributes:
        guarantee: the claim.
        bound: the lower bound on epsilon, at the claim's delta: the larger of the two below.
        bound_by_rates: the bound from the error rates at one threshold (Clopper-Pearson).
        bound_by_mu: the bound from mu, for Gaussian noise; None for Laplace noise.
        sensitivity_ratio: how far one canary moves the releases of all parties before noise, divided by the claimed
            sensitivity; at most 1 for a sound mechanism.
        leaking_settings: the public settings that differ between the two worlds; should be none.
        shared_noise: the largest significant correlation of noise between parties, or between rounds and runs; 0 if
            there is none, None at moving models.
        same_bytes: whether a retry got the same bytes; None where no ledger applies (seeded noise, "poisson").
        trials: the number of trials of each world: runs x canaries.
        confidence: the confidence of the bound.
        schedule: the schedule of the releases.
        projection: the projection of the releases.

    Example:
        >>> found = dpv.audit(20, test, runs=5, noise="fast", progress=False)  # `test` as in `dpvalue.Result`
        >>> found.trials, found.claim, found.holds
        (100, 1.0, True)
    """

    guarantee: Guarantee
    bound: float
    bound_by_rates: float
    bound_by_mu: float | None
    sensitivity_ratio: float
    leaking_settings: tuple[str, ...]
    shared_noise: float | None
    same_bytes: bool | None
    trials: int
    confidence: float
    schedule: Schedule
    projection: Projection | None

    @property
    def claim(self) -> float:
        """The claimed epsilon; with the paper's accounting, its claim."""
        assert self.guarantee.epsilon is not None
        return self.guarantee.epsilon if self.guarantee.claimed_epsilon is None else self.guarantee.claimed_epsilon

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults, as texts."""
        faults = []
        if self.bound > self.claim:
            faults.append(f"the attack proves epsilon >= {self.bound:.4g}, more than the {self.claim:.4g} claimed")
        if self.sensitivity_ratio > 1 + _SLACK:
            faults.append(f"one unit moves releases by {self.sensitivity_ratio:.4g} times the claimed sensitivity")
        if self.leaking_settings:
            faults.append(f"public settings depend on private rows: {', '.join(self.leaking_settings)}")
        if self.shared_noise:
            faults.append(f"noise is shared between releases (correlation {self.shared_noise:.2f})")
        if self.same_bytes is False:
            faults.append("a retry was answered with fresh noise")
        return tuple(faults)

    @property
    def holds(self) -> bool:
        """Whether there is no fault. This is no proof: another attack might do better."""
        return not self.faults

    def __repr__(self) -> str:
        verdict = "holds" if self.holds else "BROKEN"
        return f"Audit(epsilon >= {self.bound:.3g} where {self.claim:.4g} is claimed: {verdict})"

    def _repr_html_(self) -> str:
        return html_lines("Audit", str(self))

    def __str__(self) -> str:
        spent = self.guarantee
        forms = f"error rates {self.bound_by_rates:.3g}"
        if self.bound_by_mu is not None:
            forms += f", Gaussian trade-off {self.bound_by_mu:.3g}"
        claim = f"epsilon = {self.claim:.4g}, delta = {spent.delta:.4g}"
        if spent.claimed_epsilon is not None:
            claim += f" by the paper's accounting; really spent: {spent.epsilon:.4g}"
        directions = "all directions" if self.projection is None else str(self.projection)
        runs = f"confidence {self.confidence:.6g}, 2 x {self.trials} trials"
        settings = "the same in both worlds"
        if self.leaking_settings:
            settings = f"DEPEND on private rows: {', '.join(self.leaking_settings)}"
        verdict = f"BROKEN: {'; '.join(self.faults)}" if self.faults else "the claim holds against this attack"
        shared = "independent between parties, rounds and runs"
        if self.shared_noise is None:
            shared = "not compared, as models move"
        elif self.shared_noise:
            shared = f"SHARED, correlation {self.shared_noise:.2f}"
        retry = {True: "same bytes", False: "FRESH NOISE", None: "not applicable"}[self.same_bytes]
        moves = f"moves all releases by {self.sensitivity_ratio:.4g} of the claimed sensitivity, before noise"
        lines = [
            f"audit of {self.schedule}, {directions}, {spent.mechanism}, per {spent.unit}, {spent.neighbours}",
            f"  claimed        {claim}",
            f"  audited bound  epsilon >= {self.bound:.3g} ({forms};\n                 {runs})",
            f"  one canary     {moves}",
            f"  settings       {settings}",
            f"  noise          {shared}",
            f"  retry          {retry}",
            f"  verdict        {verdict}",
        ]
        return "\n".join(lines)
