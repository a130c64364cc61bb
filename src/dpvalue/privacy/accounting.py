r"""Accounting: the privacy cost of noisy releases, and the noise that a budget requires.

A party that releases k times, each time with Gaussian noise of s times the sensitivity, is mu-GDP with

    mu = sqrt(k) / s,                                                     (tight; valid for adaptively chosen models)
    delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2),

which this module evaluates and inverts. The noise multiplier s is relative to the sensitivity, so the neighbouring
relation enters through the sensitivity alone (mechanism.py). Inversions end on the safe side: never less noise, never
a smaller epsilon than the exact root.

One release of one number needs no delta: Laplace noise of scale 1/eps sensitivities is eps-DP ("pure"). This module
holds the formulas; `dpvalue.privacy.laws` assigns them to laws and composes releases of several laws.

`poisson_noise_multiplier` is the accounting of the paper's experiments. It assumes that the observer does not know
which party made a release, which an untrusted server does; see `dpvalue.privacy.budget`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import exp, expm1, log, sqrt
from numbers import Real

import torch

from dpvalue.errors import DpvalueError, require_count, require_number, require_positive


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which mu-GDP implies (epsilon, delta)-DP.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    points = torch.tensor([-epsilon / mu + mu / 2, -epsilon / mu - mu / 2], dtype=torch.float64)
    upper, lower = torch.special.log_ndtr(points).tolist()
    # Phi(a) - e^eps Phi(b) = Phi(a) (1 - e^(eps + log Phi(b) - log Phi(a))), without cancellation at tiny deltas.
    return exp(upper) * -expm1(min(0.0, epsilon + lower - upper))


def mu_of_budget(epsilon: float, delta: float) -> float:
    """Return the largest mu (from below) such that mu-GDP implies (epsilon, delta)-DP."""
    _require_budget(epsilon, delta)
    return _bisect(lambda mu: gaussian_delta(epsilon, mu) <= delta, 1e-12, 1e6)


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the smallest epsilon (from above) such that mu-GDP implies (epsilon, delta)-DP."""
    require_positive("mu", mu)
    require_delta(delta)
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    return _bisect(lambda epsilon: gaussian_delta(epsilon, mu) <= delta, 1e8, 1e-12)


def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return noise std / sensitivity for `releases` Gaussian releases to be (epsilon, delta)-DP together.

    Formal guarantee: `releases` adaptively chosen queries of the same unit's data, each answered with Gaussian noise of
    at least this many times its sensitivity, are (epsilon, delta)-DP. Tight in the worst case.

    >>> round(noise_multiplier(1.0, 5e-5, 1000), 3)
    106.123
    """
    require_count("releases", releases)
    return sqrt(releases) / mu_of_budget(epsilon, delta)


def epsilon(noise_multiplier: float, delta: float, releases: int) -> float:
    """Return the epsilon that `releases` Gaussian releases with this noise multiplier spend, by composition."""
    require_positive("noise_multiplier", noise_multiplier)
    require_count("releases", releases)
    return epsilon_of_mu(sqrt(releases) / noise_multiplier, delta)


def gaussian_advantage(mu: float) -> float:
    """Return the total variation of mu-GDP releases: an attacker's advantage in distinguishing neighbours.

    >>> round(gaussian_advantage(mu_of_budget(1.0, 5e-5)), 2)
    0.12
    """
    return gaussian_delta(0.0, mu)


def mu_of_pure(epsilon: float) -> float:
    """Return the smallest mu for which every epsilon-DP mechanism is mu-GDP.

    The trade-off curves of both meet where the two errors are equal.

    >>> round(mu_of_pure(1.0), 3)
    1.232
    """
    require_positive("epsilon", epsilon)
    return float(-2 * torch.special.ndtri(torch.sigmoid(torch.tensor(-epsilon, dtype=torch.float64))))


def laplace_advantage(epsilon: float, releases: int = 1) -> float:
    """Return the total variation of `releases` Laplace releases with equal noise, epsilon-DP together.

    >>> round(laplace_advantage(1.0), 2)
    0.39
    """
    if releases == 1:
        return -expm1(-epsilon / 2)
    from dp_accounting.pld import privacy_loss_distribution as pld

    return float(pld.from_laplace_mechanism(releases / epsilon).self_compose(releases).get_delta_for_epsilon(0.0))


@lru_cache(maxsize=64)
def poisson_noise_multiplier(epsilon: float, delta: float, releases: int, parties: int) -> float:
    """Return the noise multiplier by the paper's accounting: sampling rate 1/n over n * releases steps.

    It gives no guarantee against an adversary who knows which party made a release, as every server does. Against that
    adversary the releases spend `epsilon(noise_multiplier, delta, releases)`, which a result states beside the claim.
    """
    import dp_accounting
    from dp_accounting import pld

    _require_budget(epsilon, delta)
    require_count("releases", releases)
    require_count("parties", parties)
    steps = parties * releases

    def accountant() -> pld.PLDAccountant:
        return pld.PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)

    def event(s: float) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(1 / parties, dp_accounting.GaussianDpEvent(s))
        return dp_accounting.SelfComposedDpEvent(sampled, steps)

    # The central limit theorem of subsampled GDP, mu = sqrt(steps (e^(1/s^2) - 1)) / n, is close: a narrow bracket
    # around it saves most of the slow evaluations. It is widened where it misses the root.
    mu = mu_of_budget(epsilon, delta)
    guess = 1 / sqrt(log(1 + (mu * parties) ** 2 / steps))
    for spread in (1.1, 2.0, 10.0):
        bracket = dp_accounting.ExplicitBracketInterval(guess / spread, guess * spread)
        try:
            noise = dp_accounting.calibrate_dp_mechanism(accountant, event, epsilon, delta, bracket, tol=1e-3 * guess)
        except ValueError:  # the bracket misses the root: try a wider one
            continue
        return float(noise)
    raise DpvalueError(f"no noise multiplier found for accounting='poisson' with epsilon = {epsilon}, delta = {delta}")


def _bisect(holds: Callable[[float], bool], good: float, bad: float) -> float:
    """Return, to 14 digits, the end of the region around `good` in which `holds`; bisects the logarithm."""
    if not holds(good):
        raise DpvalueError(f"the privacy budget is outside the range of the accountant (near {good:g})")
    while abs(log(good / bad)) > 1e-14:
        middle = sqrt(good) * sqrt(bad)
        if middle in (good, bad):
            break
        if holds(middle):
            good = middle
        else:
            bad = middle
    return good


def require_delta(delta: float) -> None:
    """Raise unless delta is between 0 and 1, ends excluded."""
    require_number("delta", delta, "between 0 and 1, ends excluded", isinstance(delta, Real) and 0 < delta < 1)


def _require_budget(epsilon: float, delta: float) -> None:
    require_positive("epsilon", epsilon)
    require_delta(delta)
