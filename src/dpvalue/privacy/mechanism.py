"""The mechanism of a release: centre, clip, round to a grid, add noise.

The l2 sensitivity of a release, with C the clipping norm and M the party's public number of records (unit person: of
persons):

                 unit party    unit record, person
    zero_out         C               C / M
    replace         2C              2C / M

A release is the mean of clipped gradients at any number of points ("probes") that depend only on earlier releases and
on public values. The mean of vectors of norm at most C has norm at most C, so the number of probes does not enter.

A release of one number may have a public `Scale`: its centre is subtracted before clipping, and level and gain apply to
the noisy release. The clipped number is still at most C.

A clipped vector is divided by a step and rounded toward zero, so that its norm does not grow; the norm is checked in
integers. The rounded vectors of all records (or persons) and probes are summed as integers. Discrete noise is added to
the sum, which is then multiplied by the step and divided by the number of vectors:

    release = step / (probes * units) * (sum of rounded vectors + discrete noise).

For d numbers and noise of scale sigma (for Laplace noise b) the step is sigma * probes / 2^bits. The bits are such that
the scale is at least 2^20 steps and rounding loses at most a thousandth of C: step * sqrt(d) <= C/1000.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log2, sqrt
from typing import Any

import torch
from torch import Tensor

from dpvalue.errors import DpvalueError, require_choice, require_number, require_positive
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.privacy.clipping import find_rule
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.samplers import MOST_BITS


@dataclass(frozen=True)
class Scale:
    """A public affine map around the clipping of one number, chosen where clean and corrupted units differ most.

    `centre` is subtracted before clipping. A noisy release r is read as level + gain * r, which corrects the bias of
    clipping on average over public units. This is post-processing.
    """

    centre: float = 0.0
    level: float = 0.0
    gain: float = 1.0

    def __post_init__(self) -> None:
        for name in ("centre", "level", "gain"):
            require_number(f"scale.{name}", getattr(self, name), "a number", ok=True)

    def read(self, release: torch.Tensor) -> torch.Tensor:
        """Return level + gain * release."""
        return release if self == Scale() else self.level + self.gain * release


@dataclass(frozen=True)
class Mechanism:
    """The mechanism of one run: clip each unit to norm `clip`, add noise of scale `noise_multiplier` * sensitivity.

    Formal guarantee: k releases of a party are mu-GDP with mu = sqrt(k) / noise_multiplier for one `unit` under
    `neighbours`, for any data: non-finite gradients count as zero and are not reported. With law "laplace", one release
    of one number is epsilon-DP with epsilon = 1 / noise_multiplier. For any law the cost is its `loss`.

    Args:
        clip: the norm C that bounds one unit; None only without privacy.
        noise_multiplier: noise scale / sensitivity; 0 only without privacy.
        unit: "party", "record" or "person".
        neighbours: "zero_out" or "replace".
        law: the name of a law of noise (`dpvalue.privacy.laws`).
        rule: the name of a clipping rule (`dpvalue.privacy.clipping`).
        scale: the affine map of a release of one number.
    """

    clip: float | None
    noise_multiplier: float
    unit: str
    neighbours: str
    law: str = "gaussian"
    rule: str = "flat"
    scale: Scale = Scale()

    def __post_init__(self) -> None:
        """Check all fields: a job of an untrusted coordinator may hold any number, such as a negative norm."""
        if self.clip is not None:
            require_positive("clip", self.clip)
        if self.noise_multiplier is False or self.noise_multiplier != 0:
            require_positive("noise_multiplier", self.noise_multiplier)
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)
        find_law(self.law)
        find_rule(self.rule)

    @property
    def per_unit(self) -> bool:
        """Whether single records or persons are clipped, instead of the party's mean gradient."""
        return self.unit != "party" and self.clip is not None

    def for_public_rows(self) -> Mechanism:
        """Return the mechanism for public stand-ins, in which every row counts as one person."""
        return replace(self, unit="record") if self.unit == "person" else self

    def sensitivity(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the l2 sensitivity of a release for parties with these public numbers of records or persons."""
        if self.clip is None:
            return torch.zeros(len(sizes), dtype=torch.float64)
        bound = self.clip * (2.0 if self.neighbours == "replace" else 1.0)
        if self.unit != "party":
            return bound / sizes.clamp_min(1).to(torch.float64)  # a party without records releases noise alone
        return torch.full((len(sizes),), bound, dtype=torch.float64)

    def noise_scale(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return each party's scale of the noise in one coordinate of a release."""
        return self.noise_multiplier * self.sensitivity(sizes)

    def noise_std(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return each party's standard deviation of the noise in one coordinate of a release."""
        return self.noise_scale(sizes) * find_law(self.law).sampling.std

    def apply_clipping(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return the gradients (..., d) minus the scale's centre, each clipped to norm at most `clip`."""
        if self.scale.centre:
            gradients = gradients - self.scale.centre
        return gradients if self.clip is None else find_rule(self.rule).clip(gradients, self.clip)


def make_mechanism(privacy: Privacy | None, clip: float | None, noise_multiplier: float, **options: Any) -> Mechanism:
    """Return the mechanism for a budget; without a budget it adds no noise and clips only if `clip` is given."""
    if privacy is None:
        return Mechanism(clip, 0.0, "party", "zero_out", **options)
    return Mechanism(clip, noise_multiplier, privacy.unit, privacy.neighbours, **options)


_LEAST_BITS = 20

_FINENESS = 1000

# Widened by this factor, a discrete Gaussian of 2^20 steps or more has the mu of the continuous one: see `samplers`.
# Laplace noise needs far less, for the rounding of its scale.
_WIDENING = 1 + 2.0**-30


@dataclass(frozen=True)
class Grid:
    """The grid of whole numbers of one kind of release.

    Attributes:
        step: the size of one step of a rounded vector.
        bits: the scale of the noise is 2^bits steps.
        probes: the number of rounded vectors of a unit in the sum.
        longest: the square of the largest allowed norm, in steps.
    """

    step: float
    bits: int
    probes: int
    longest: int

    def round(self, clipped: Tensor) -> Tensor:
        """Return clipped vectors (..., d) in steps, rounded toward zero: whole numbers, exact in float64.

        Formal guarantee: for any input, the norm of each result is at most C / step; a vector that would be longer, or
        is not finite, becomes zero.
        """
        steps = (clipped.to(torch.float64) / self.step).trunc_()
        short_enough = steps.square().sum(-1, keepdim=True) < 1.5 * self.longest  # then whole squares do not overflow
        whole = torch.where(short_enough, steps, 0.0).to(torch.int64)
        fits = short_enough & ((whole * whole).sum(-1, keepdim=True) <= self.longest)
        return torch.where(fits, steps, 0.0)


def make_grid(mechanism: Mechanism, size: int, probes: int, units: int = 1) -> Grid:
    """Return the grid of a mechanism for sums of vectors of this size, `probes` for each of `units`."""
    if mechanism.clip is None or not mechanism.noise_multiplier:
        raise DpvalueError("a grid needs noise: give privacy and a clip")
    noise = float(mechanism.noise_scale(torch.ones(1, dtype=torch.int64))[0]) * _WIDENING  # of a party of one unit
    bits = max(_LEAST_BITS, ceil(log2(_FINENESS * sqrt(size) * noise * probes / mechanism.clip)))
    if bits > MOST_BITS:
        raise DpvalueError(
            f"noise of {noise / mechanism.clip:.3g} times the clipping norm on {size} numbers and {probes} probes is "
            "beyond the range of the exact sampler: raise epsilon, release fewer directions, or average fewer probes"
        )
    step = noise * probes / 2**bits
    longest = int((mechanism.clip / step) ** 2)
    if longest >= 2**62 or (mechanism.clip / step) * probes * units >= 2**52:
        raise DpvalueError(f"noise of {noise / mechanism.clip:.3g} times the clipping norm is too small for exact sums")
    return Grid(step, bits, probes, longest)
