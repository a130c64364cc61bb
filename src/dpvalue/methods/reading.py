r"""From a party's noisy description to what its data is like: free, as it reads releases and public things only.

A description is taken for

    share of valid units * (centre + phi noise + what is special to the party + chance) + DP noise,

with phi, the part of labels without meaning; what is special ~ N(0, a planted) in each direction, planted being how far
made-up parties are off there; chance ~ N(0, h (copies * rho / M + 1 / public rows)), copies being how often each record
is repeated (M / copies of them differ) and rho how much further labels are off than public ones. The distance of
records from the model tells phi (of classes) or rho (of numbers). All of it is averaged over a grid, by its likelihood
and a prior that prefers none of each. What is kept of the deviation is its systematic part: what chance does to a fit
is known on average from learning curves (`curves`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dpvalue.methods.surrogate import Surrogate
from dpvalue.methods.windows import Window

_SPECIAL = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_COPIES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_MEANINGLESS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4)
_FURTHER_OFF = (1.0, 1.5, 2.0, 3.0, 4.5, 7.0)
_NONE = 0.85  # prior of a party that has none of a defect
_VALID, _EMPTY = 0.97, 0.01  # priors of all units being valid, and none
_SHARES = 41


@dataclass(frozen=True, eq=False)
class Reading:
    """What a party's data is like.

    Attributes:
        units: how many of its units are valid, as far as its release tells; 0 if none.
        copies: how often each is repeated.
        meaningless: phi.
        further_off: rho, for numbers.
        gradient: the mean gradient (d,) at the public model of records like its own.
    """

    units: float
    copies: float
    meaningless: float
    further_off: float
    gradient: Tensor


@lru_cache
def _grid(regression: bool) -> tuple[Tensor, ...]:
    """All combinations of (special, copies, phi, rho) as columns (c, 1), and their prior (c,), in logarithms."""
    further = _FURTHER_OFF if regression else (1.0,)
    axes = [torch.tensor(axis, dtype=torch.float64) for axis in (_SPECIAL, _COPIES, _MEANINGLESS, further)]
    special, copies, phi, rho = (part.reshape(-1, 1) for part in torch.meshgrid(*axes, indexing="ij"))
    prior = _prior(phi, phi == 0, torch.ones_like(phi)) + _prior(copies, copies == 1, torch.ones_like(copies))
    prior = prior + _prior(rho, rho == 1, 1 / rho) + _prior(special, special == 0, torch.ones_like(special))
    return special, copies, phi, rho, prior[:, 0]


def _prior(values: Tensor, none: Tensor, others: Tensor) -> Tensor:
    """The logarithm of a prior: most of it on none, the rest in proportion to `others` over the different values."""
    if bool(none.all()):
        return torch.zeros_like(values)
    different = values.unique()
    weights = torch.stack([others[values == value][0] for value in different if not bool(none[values == value][0])])
    return torch.where(none, _NONE, (1 - _NONE) * others / weights.sum()).log()


@dataclass(frozen=True, eq=False)
class _GridPosterior:
    """A release beside every combination of the grid.

    Attributes:
        window: what the party was asked.
        share: of its units that are valid.
        variance: of the noise, in the mean over valid units.
        posterior: how likely each combination is (c, 1).
        rest: what phi leaves of the deviation (c, k).
        systematic: the variance of what is special to the party (c, k).
        chance: the variance of what chance does (c, k).
        expected: the distance that a combination makes expect (c, 1).
        distance: how far off that the release is (c, 1).
        spread: the variance of the distance without the noise (c, 1).
    """

    window: Window
    share: float
    variance: float
    posterior: Tensor
    rest: Tensor
    systematic: Tensor
    chance: Tensor
    expected: Tensor
    distance: Tensor
    spread: Tensor

    @property
    def total(self) -> Tensor:
        """The variance of the deviation, noise included (c, k)."""
        return self.systematic + self.chance + self.variance + 1e-12


def read(surrogate: Surrogate, party: int, row: Tensor, std: float, units: int, regression: bool) -> Reading:
    """Return what a party's release says of its data, on average.

    Args:
        surrogate: what was asked.
        party: its number.
        row: its release (m + 2,), of descriptions clipped to 1.
        std: the noise in it.
        units: its public number of units.
        regression: whether labels are numbers.
    """
    weighed = _weigh(surrogate, party, row, std, units, regression)
    if weighed is None:
        return Reading(0.0, 1.0, 0.0, 1.0, surrogate.clean)
    _, copies, phi, rho, _ = _grid(regression)
    window, posterior = weighed.window, weighed.posterior
    kept = (posterior * weighed.systematic / weighed.total * weighed.rest).sum(0)
    meaningless = float((posterior * phi).sum())
    beyond = kept / window.profile @ surrogate.lift[: window.count]
    return Reading(
        units=units * weighed.share,
        copies=float((posterior * copies.log()).sum().exp()),
        meaningless=meaningless,
        further_off=float((posterior * rho.log()).sum().exp()),
        gradient=surrogate.clean + meaningless * surrogate.noise + beyond,
    )


def without_noise(
    surrogate: Surrogate,
    party: int,
    row: Tensor,
    std: float,
    units: int,
    regression: bool,
    generator: np.random.Generator,
) -> Tensor:
    """Return a draw of what a party would have released without noise, given what it has; arguments as in `read`."""
    weighed = _weigh(surrogate, party, row, std, units, regression)
    if weighed is None:
        return torch.zeros_like(row)
    phi = _grid(regression)[2]
    window, k = weighed.window, weighed.window.count
    at = int(generator.choice(len(weighed.posterior), p=weighed.posterior[:, 0].numpy()))
    own = weighed.systematic[at] + weighed.chance[at]
    drawn = torch.from_numpy(generator.standard_normal(k + 1))
    deviation = own / weighed.total[at] * weighed.rest[at]
    deviation = deviation + (own * weighed.variance / weighed.total[at]).clamp_min(0).sqrt() * drawn[:k]
    blur = weighed.spread[at] + weighed.variance
    off = weighed.spread[at] / blur * weighed.distance[at]
    off = off + (weighed.spread[at] * weighed.variance / blur).clamp_min(0).sqrt() * drawn[k:]
    made = row.new_zeros(len(row), dtype=torch.float64)
    made[:k] = window.centre[:k] + phi[at] * window.noise[:k] + deviation
    made[-2] = float(window.centre[-2])
    made[-1] = float(weighed.expected[at] + off)
    return (weighed.share / window.norm * made).to(row)


def _weigh(
    surrogate: Surrogate, party: int, row: Tensor, std: float, units: int, regression: bool
) -> _GridPosterior | None:
    """A release beside the grid; None where most likely no unit is valid."""
    window = surrogate.window(party)
    k, row = window.count, row.to("cpu", torch.float64) * window.norm
    release, variance = torch.cat([row[:k], row[-2:]]), (std * window.norm) ** 2
    share = _valid_share(window, float(release[k]), variance)
    if share == 0 or units == 0:
        return None
    release, variance = release / share, variance / share**2
    special, copies, phi, rho, prior = _grid(regression)
    off, added = release - window.centre, window.noise
    further = (1 + phi * (added[-1] / window.centre[-1].clamp_min(1e-9))) * rho
    chance = window.spread * (copies * further / (units * share) + 1 / surrogate.public)
    expected = window.centre[-1] * further
    weighed = _GridPosterior(
        window=window,
        share=share,
        variance=variance,
        posterior=torch.ones_like(prior),
        rest=off[:k] - phi * added[:k],
        systematic=special * window.planted,
        chance=chance[:, :k],
        expected=expected,
        distance=release[-1] - expected,
        spread=chance[:, -1:] + 1e-10 + special * added[-1] ** 2 * 0.02,
    )
    blur = weighed.spread + variance
    likelihood = -0.5 * (weighed.rest.square() / weighed.total + weighed.total.log()).sum(1)
    likelihood = likelihood - 0.5 * (weighed.distance.square() / blur + blur.log())[:, 0] + prior
    return replace(weighed, posterior=torch.softmax(likelihood, 0)[:, None])


def _valid_share(window: Window, presence: float, variance: float) -> float:
    """The share of units that are valid, by the noisy mean of their presence; 0 where most likely none is.

    Presence is clipped together with the rest, so that units with meaningless labels show less of it: nothing is made
    of a presence between theirs and that of public units.
    """
    high = float(window.centre[-2])
    low = min(high, max(high + float(window.noise[-2]), high / 10))
    shares = torch.linspace(0, 1, _SHARES, dtype=torch.float64)
    prior = torch.full_like(shares, (1 - _VALID - _EMPTY) / (_SHARES - 2))
    prior[0], prior[-1] = _EMPTY, _VALID
    off = (shares * low - presence).clamp_min(0) + (presence - shares * high).clamp_min(0)
    chances = torch.softmax(prior.log() - 0.5 * off.square() / (variance + (0.01 * high) ** 2), 0)
    if float(chances[0]) > 0.5:
        return 0.0
    mean = float((chances * shares).sum())
    return 1.0 if mean > 0.98 else max(mean, 1 / (_SHARES - 1))
