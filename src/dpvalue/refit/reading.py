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

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from dpvalue.refit.surrogate import Surrogate, Window

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


def read(
    surrogate: Surrogate,
    party: int,
    row: Tensor,
    std: float,
    units: int,
    regression: bool,
    generator: np.random.Generator | None = None,
) -> Reading:
    """Return what a party's release says of its data: on average, or one draw of what it may be.

    Args:
        surrogate: what was asked.
        party: its number.
        row: its release (m + 2,), of descriptions clipped to 1.
        std: the noise in it.
        units: its public number of units.
        regression: whether labels are numbers.
        generator: draws what the data may be, by its likelihood; None for the average.
    """
    window = surrogate.window(party)
    k, row = window.count, row.to("cpu", torch.float64) * window.norm
    release, variance = torch.cat([row[:k], row[-2:]]), (std * window.norm) ** 2
    share = _valid_share(window, float(release[k]), variance)
    if share == 0 or units == 0:
        return Reading(0.0, 1.0, 0.0, 1.0, surrogate.clean)
    release, variance = release / share, variance / share**2
    special, copies, phi, rho, prior = _grid(regression)
    off, added = release - window.centre, window.noise
    further = (1 + phi * (added[-1] / window.centre[-1].clamp_min(1e-9))) * rho
    chance = window.spread * (copies * further / (units * share) + 1 / surrogate.public)
    systematic = special * window.planted
    total = systematic + chance[:, :k] + variance + 1e-12
    rest = off[:k] - phi * added[:k]
    distance = off[-1] + window.centre[-1] * (1 - further)
    blur = chance[:, -1:] + variance + 1e-10 + special * added[-1] ** 2 * 0.02
    likelihood = -0.5 * (rest.square() / total + total.log()).sum(1)
    likelihood = likelihood - 0.5 * (distance.square() / blur + blur.log())[:, 0] + prior
    posterior = torch.softmax(likelihood, 0)[:, None]
    if generator is not None:
        drawn = int(generator.choice(len(posterior), p=posterior[:, 0].numpy()))
        posterior = torch.zeros_like(posterior)
        posterior[drawn] = 1.0
        left = systematic[drawn] * (1 - systematic[drawn] / total[drawn])
        special_part = torch.from_numpy(generator.standard_normal(k)) * left.clamp_min(0).sqrt()
    else:
        special_part = torch.zeros(k, dtype=torch.float64)
    kept = (posterior * systematic / total * rest).sum(0)
    meaningless = float((posterior * phi).sum())
    beyond = (kept + special_part) / window.profile @ surrogate.lift[:k]
    gradient = surrogate.clean + meaningless * surrogate.noise + beyond
    return Reading(
        units=units * share,
        copies=float((posterior * copies.log()).sum().exp()),
        meaningless=meaningless,
        further_off=float((posterior * rho.log()).sum().exp()),
        gradient=gradient,
    )


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
