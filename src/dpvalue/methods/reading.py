r"""Estimate the properties of a party's data from its noisy description. Post-processing of releases: it costs nothing.

The model of a description is

    share of valid units * (centre + phi noise + shift of the party + chance) + DP noise.

phi is the share of meaningless labels. The shift is N(0, a s) in each direction; s is the mean square deviation of
pseudo-parties there. Chance is N(0, h (copies * rho / M + 1 / public rows)): each record is repeated `copies` times
(M / copies are distinct), and labels are rho times as far off as public ones. The distance of records from the model
identifies phi (classes) or rho (numbers). All estimates are posterior means over a grid, with a prior that favours
absent defects. Of the deviation only the shift is kept: learning curves (`methods.fits`) account for chance.
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
_NONE = 0.85  # prior probability that a defect is absent
_VALID, _EMPTY = 0.97, 0.01  # priors of all units being valid, and none
_SHARES = 41


@dataclass(frozen=True, eq=False)
class Reading:
    """The estimated properties of a party's data.

    Attributes:
        units: number of valid units.
        copies: number of copies of each unit.
        meaningless: phi, the share of meaningless labels.
        further_off: rho, the relative distance of numeric labels.
        gradient: mean gradient (d,) of the party's records at the public model.
    """

    units: float
    copies: float
    meaningless: float
    further_off: float
    gradient: Tensor


@lru_cache
def _grid(regression: bool) -> tuple[Tensor, ...]:
    """All combinations of (shift, copies, phi, rho) as columns (c, 1), and their log prior (c,)."""
    further = _FURTHER_OFF if regression else (1.0,)
    axes = [torch.tensor(axis, dtype=torch.float64) for axis in (_SPECIAL, _COPIES, _MEANINGLESS, further)]
    special, copies, phi, rho = (part.reshape(-1, 1) for part in torch.meshgrid(*axes, indexing="ij"))
    prior = _prior(phi, phi == 0, torch.ones_like(phi)) + _prior(copies, copies == 1, torch.ones_like(copies))
    prior = prior + _prior(rho, rho == 1, 1 / rho) + _prior(special, special == 0, torch.ones_like(special))
    return special, copies, phi, rho, prior[:, 0]


def _prior(values: Tensor, is_absent: Tensor, weights_of: Tensor) -> Tensor:
    """A log prior: most of it on the absent value, the rest in proportion to `weights_of` over the other values."""
    if bool(is_absent.all()):
        return torch.zeros_like(values)
    different = values.unique()
    weights = torch.stack(
        [weights_of[values == value][0] for value in different if not bool(is_absent[values == value][0])]
    )
    return torch.where(is_absent, _NONE, (1 - _NONE) * weights_of / weights.sum()).log()


@dataclass(frozen=True, eq=False)
class _GridPosterior:
    """The posterior of the grid, given one release.

    Attributes:
        window: the window of the party.
        share: share of valid units.
        variance: noise variance of the mean over valid units.
        posterior: posterior probabilities (c, 1).
        rest: deviation without the part of phi (c, k).
        systematic: variance of the party's shift (c, k).
        chance: variance of chance (c, k).
        expected: expected distance (c, 1).
        distance: observed distance less the expected one (c, 1).
        spread: variance of the distance without noise (c, 1).
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
    """Return the posterior mean of the properties of a party's data.

    Args:
        surrogate: the public side of the descriptions.
        party: index of the party.
        row: its release (m + 2,), of descriptions clipped to 1.
        std: noise standard deviation of the row.
        units: its public number of units.
        regression: whether labels are numbers.
    """
    grid = _grid_posterior(surrogate, party, row, std, units, regression)
    if grid is None:
        return Reading(0.0, 1.0, 0.0, 1.0, surrogate.clean)
    _, copies, phi, rho, _ = _grid(regression)
    window, posterior = grid.window, grid.posterior
    deviation = (posterior * grid.systematic / grid.total * grid.rest).sum(0)
    meaningless = float((posterior * phi).sum())
    beyond = deviation / window.profile @ surrogate.lift[: window.count]
    return Reading(
        units=units * grid.share,
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
    """Return a posterior draw of the party's release without noise; arguments as in `read`."""
    grid = _grid_posterior(surrogate, party, row, std, units, regression)
    if grid is None:
        return torch.zeros_like(row)
    phi = _grid(regression)[2]
    window, k = grid.window, grid.window.count
    cell = int(generator.choice(len(grid.posterior), p=grid.posterior[:, 0].numpy()))
    variance = grid.systematic[cell] + grid.chance[cell]
    normals = torch.from_numpy(generator.standard_normal(k + 1))
    deviation = variance / grid.total[cell] * grid.rest[cell]
    deviation = deviation + (variance * grid.variance / grid.total[cell]).clamp_min(0).sqrt() * normals[:k]
    blur = grid.spread[cell] + grid.variance
    distance = grid.spread[cell] / blur * grid.distance[cell]
    distance = distance + (grid.spread[cell] * grid.variance / blur).clamp_min(0).sqrt() * normals[k:]
    description = row.new_zeros(len(row), dtype=torch.float64)
    description[:k] = window.centre[:k] + phi[cell] * window.noise[:k] + deviation
    description[-2] = float(window.centre[-2])
    description[-1] = float(grid.expected[cell] + distance)
    return (grid.share / window.norm * description).to(row)


def _grid_posterior(
    surrogate: Surrogate, party: int, row: Tensor, std: float, units: int, regression: bool
) -> _GridPosterior | None:
    """The posterior of the grid; None if most likely no unit is valid."""
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
    grid = _GridPosterior(
        window=window,
        share=share,
        variance=variance,
        posterior=torch.ones_like(prior),
        rest=off[:k] - phi * added[:k],
        systematic=special * window.defect_squares,
        chance=chance[:, :k],
        expected=expected,
        distance=release[-1] - expected,
        spread=chance[:, -1:] + 1e-10 + special * added[-1] ** 2 * 0.02,
    )
    blur = grid.spread + variance
    likelihood = -0.5 * (grid.rest.square() / grid.total + grid.total.log()).sum(1)
    likelihood = likelihood - 0.5 * (grid.distance.square() / blur + blur.log())[:, 0] + prior
    return replace(grid, posterior=torch.softmax(likelihood, 0)[:, None])


def _valid_share(window: Window, presence: float, variance: float) -> float:
    """The share of valid units, estimated from the noisy mean of their presence; 0 if most likely none is valid.

    Presence is clipped together with the other numbers, so units with meaningless labels show less of it. A presence
    between theirs and that of public units is therefore no evidence against validity.
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
