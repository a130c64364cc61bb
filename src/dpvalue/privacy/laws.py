r"""Laws of noise: each owns its scale, its samplers, what it costs, and what can be told from it.

A *scale* is what the noise is multiplied by: a standard deviation, for Laplace noise its b; the noise multiplier is
scale / sensitivity. The *loss* of releases is the one number that they cost together: the mu of GDP, or, for a law that
is pure, epsilon. A law is named by a string in arguments, files and ledgers; `register_law` adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.errors import DpvalueError, require_choice, require_count, require_positive
from dpvalue.privacy import accounting
from dpvalue.privacy.samplers import Bits, discrete_gaussian, discrete_laplace

Releases = Sequence[tuple[str, float, int]]
"""The law, the noise multiplier and the number of releases, of each kind."""


@dataclass(frozen=True)
class Sampling:
    """How noise of a law is drawn.

    Attributes:
        std: the standard deviation of noise of scale 1.
        fill: fills a tensor with noise of scale 1, by a torch generator: for simulations.
        numbers: returns noise of scale 1 and some shape, by a NumPy generator: to see what noise does to values.
        discrete: returns whole numbers of scale 2^bits, drawn exactly from uniform words: takes the words, the bits and
            how many.
    """

    std: float
    fill: Callable[[Tensor, torch.Generator], Tensor]
    numbers: Callable[[np.random.Generator, tuple[int, ...]], Floats]
    discrete: Callable[[Bits, int, int], Ints]


@dataclass(frozen=True)
class Law:
    """A law of noise, symmetric around zero, added to each number of a release on its own.

    Formal guarantee: what is promised of releases with this noise rests on `loss`, and on `sampling.discrete` having
    the law that `loss` is computed for.

    Attributes:
        name: as in `Privacy(mechanism=)`, in lower case.
        sampling: how its noise is drawn.
        loss: of releases together, from their noise multiplier and number.
        noise_multiplier: of each of so many releases that are (epsilon, delta)-DP together.
        advantage: the total variation between neighbours, from the loss and the number of releases.
        loss_distribution: of one release, made with dp-accounting's module of them from the noise multiplier.
        wins: P(shift + L > L') for independent L and L' of two scales: how often noise leaves an order as it is.
        log_ratio: log p(seen | here) - log p(seen | there), number by number, from these three and the scale.
        pure: whether the loss is an epsilon, at delta = 0; else it is a mu.
        scalar: whether it protects one release of one number only.
        automatic: whether mechanism "auto" may choose it.
    """

    name: str
    sampling: Sampling
    loss: Callable[[float, int], float]
    noise_multiplier: Callable[[float, float, int], float]
    advantage: Callable[[float, int], float]
    loss_distribution: Callable[[Any, float], Any]
    wins: Callable[[Floats, Floats, Floats], Floats]
    log_ratio: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    pure: bool = False
    scalar: bool = False
    automatic: bool = False

    def mu(self, multiplier: float) -> float:
        """Return a mu for which one release is mu-GDP."""
        loss = self.loss(multiplier, 1)
        return accounting.mu_of_pure(loss) if self.pure else loss

    def epsilon(self, loss: float, delta: float) -> float:
        """Return the epsilon of releases with this loss, at a delta."""
        return loss if self.pure else accounting.epsilon_of_mu(loss, delta)


def _gaussian_wins(shift: Floats, first: Floats, second: Floats) -> Floats:
    return np.asarray(torch.special.ndtr(torch.as_tensor(shift / np.hypot(first, second))).numpy())


GAUSSIAN = Law(
    name="gaussian",
    sampling=Sampling(
        std=1.0,
        fill=lambda out, generator: out.normal_(generator=generator),
        numbers=lambda generator, shape: generator.standard_normal(shape),
        discrete=discrete_gaussian,
    ),
    loss=lambda multiplier, releases: sqrt(releases) / multiplier,
    noise_multiplier=accounting.noise_multiplier,
    advantage=lambda mu, releases: accounting.gaussian_advantage(mu),
    loss_distribution=lambda pld, multiplier: pld.from_gaussian_mechanism(multiplier),
    wins=_gaussian_wins,
    log_ratio=lambda seen, here, there, scale: (seen - (here + there) / 2) * (here - there) / scale**2,
    automatic=True,
)
"""k releases with noise of s sensitivities are mu-GDP with mu = sqrt(k) / s, for vectors of any length."""


def _exponential_difference(out: Tensor, generator: torch.Generator) -> Tensor:
    return out.exponential_(generator=generator).sub_(torch.empty_like(out).exponential_(generator=generator))


def _laplace_wins(shift: Floats, first: Floats, second: Floats) -> Floats:
    """One minus P(L - L' > |shift|) = (a^2 e^(-t/a) - b^2 e^(-t/b)) / (2 (a^2 - b^2)), for scales a and b.

    Where these are as good as equal that is 0 / 0, and the formula of equal scales is used: e^(-t) (2 + t) / 4.
    """
    far, middle = np.abs(shift), np.sqrt(first * second)
    tail = np.exp(-far / middle) * (2 + far / middle) / 4
    differ = np.abs(first - second) > 1e-3 * middle
    if differ.any():
        a, b = np.where(differ, first, 2.0), np.where(differ, second, 1.0)
        apart = (a**2 * np.exp(-far / a) - b**2 * np.exp(-far / b)) / (2 * (a**2 - b**2))
        tail = np.where(differ, apart, tail)
    return np.asarray(np.where(shift > 0, 1 - tail, tail))


LAPLACE = Law(
    name="laplace",
    sampling=Sampling(
        std=2**0.5,
        fill=_exponential_difference,
        numbers=lambda generator, shape: generator.laplace(size=shape),
        discrete=discrete_laplace,
    ),
    loss=lambda multiplier, releases: releases / multiplier,
    noise_multiplier=lambda epsilon, delta, releases: releases / epsilon,
    advantage=accounting.laplace_advantage,
    loss_distribution=lambda pld, multiplier: pld.from_laplace_mechanism(multiplier),
    wins=_laplace_wins,
    log_ratio=lambda seen, here, there, scale: ((seen - there).abs() - (seen - here).abs()) / scale,
    pure=True,
    scalar=True,
    automatic=True,
)
"""One release of one number, with b of s sensitivities, is epsilon-DP with epsilon = 1 / s."""

LAWS = {law.name: law for law in (GAUSSIAN, LAPLACE)}
"""By name; `register_law` adds to them."""


def register_law(law: Law) -> None:
    """Make a law known by its name: to `Privacy(mechanism=)`, and to files and ledgers that name it.

    Whoever reads such a file or ledger must have registered it too; without, both are refused.
    """
    if not (law.name.isidentifier() and law.name.islower()) or law.name in ("auto", *LAWS):
        raise DpvalueError(f"the name of a law must be a new lower-case word, got {law.name!r}")
    LAWS[law.name] = law


def find_law(name: str) -> Law:
    """Return the law of a name."""
    require_choice("law", name, LAWS)
    return LAWS[name]


def pure_loss(releases: Releases) -> float:
    """Return the epsilon, at delta = 0, that releases of the same unit's data have together; infinite if not pure."""
    losses = (LAWS[law].loss(multiplier, count) if LAWS[law].pure else inf for law, multiplier, count in releases)
    return sum(losses, 0.0)


def mu_loss(releases: Releases) -> float:
    """Return a mu for which releases of the same unit's data are mu-GDP together."""
    return sqrt(sum(count * LAWS[law].mu(multiplier) ** 2 for law, multiplier, count in releases))


def total_epsilon(releases: Releases, delta: float) -> float:
    """Return the epsilon that releases of the same unit's data spend together at this delta.

    Formal guarantee: any adaptive sequence of these releases is (epsilon, delta)-DP; the numerical composition of
    dp-accounting errs on the safe side. Pure laws alone, with delta = 0, add up their epsilons.

    Args:
        releases: (law, noise scale / sensitivity, how many).
        delta: 0 only for pure laws alone.

    >>> round(total_epsilon([("laplace", 1.0, 1), ("laplace", 2.0, 1)], 0.0), 3)
    1.5
    """
    for name, multiplier, count in releases:
        require_choice("releases", name, LAWS)
        require_positive("noise multiplier", multiplier)
        require_count("releases", count)
    pure = pure_loss(releases)
    if not releases or (delta == 0 and pure < inf):
        return pure
    accounting.require_delta(delta)
    if not any(LAWS[name].pure for name, _, _ in releases):
        return accounting.epsilon_of_mu(mu_loss(releases), delta)
    from dp_accounting.pld import privacy_loss_distribution as pld

    parts = [LAWS[name].loss_distribution(pld, multiplier).self_compose(count) for name, multiplier, count in releases]
    return min(pure, float(reduce(lambda left, right: left.compose(right), parts).get_epsilon_for_delta(delta)))
