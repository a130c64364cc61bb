"""What an attack proves to be lost: lower bounds on epsilon and mu from the scores of repeated trials.

A test that says "present" where a score exceeds a threshold has a rate of false alarms FPR and of misses FNR. Every
(epsilon, delta)-DP mechanism has 1 - FNR <= e^epsilon FPR + delta and 1 - FPR <= e^epsilon FNR + delta; every mu-GDP
mechanism has Phi^-1(1 - FPR) - Phi^-1(FNR) <= mu. So rates that are surely (Clopper-Pearson) below some bounds prove an
epsilon or a mu that is at least so large.

The threshold is chosen on the first trials and judged on the others, so that each bound is of one test.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError

_PILOT = 0.25  # the share of trials that choose the threshold

_THRESHOLDS = 99

LEAST_TRIALS = 100

Judge = Callable[[float, float, int, int], float]
"""Takes the counts of false alarms and of misses, and the numbers of trials without and with; returns a bound."""


def rate_above(count: float, trials: int, alpha: float) -> float:
    """Return the Clopper-Pearson upper bound on a rate, at confidence 1 - alpha, from `count` of `trials`.

    >>> round(rate_above(0, 100, 0.05), 4)
    0.0295
    """
    from scipy.stats import beta

    return 1.0 if count >= trials else float(beta.ppf(1 - alpha, count + 1, trials - count))


def epsilon_bound(present: Floats, absent: Floats, delta: float, alpha: float) -> float:
    """Return an epsilon such that what made these scores is not (epsilon', delta)-DP for any smaller epsilon'.

    Formal guarantee: of a mechanism that is (epsilon', delta)-DP, whose trials are independent, it exceeds epsilon'
    with probability at most alpha. (Trials that depend on each other only through the models of a walk do as well: see
    `dpvalue.audit`.)

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
    return max(0.0, _judged(present, absent, judge))


def mu_bound(present: Floats, absent: Floats, alpha: float) -> float:
    """Return a mu such that what made these scores is not mu'-GDP for any smaller mu'; arguments as above.

    Tighter than `epsilon_bound` for Gaussian noise: it proves a loss in the whole trade-off curve, not at one delta.
    """
    from scipy.special import ndtri

    def judge(alarms: float, misses: float, without: int, with_: int) -> float:
        false_alarms, missed = rate_above(alarms, without, alpha / 2), rate_above(misses, with_, alpha / 2)
        return float(-ndtri(false_alarms) - ndtri(missed))

    return max(0.0, _judged(present, absent, judge))


def _judged(present: Floats, absent: Floats, judge: Judge) -> float:
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
