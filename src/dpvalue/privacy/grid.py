r"""Clipped vectors and noise as whole numbers of a small step: what leaves has no low bits that could tell.

A clipped vector is divided by a step and rounded toward zero, so that its norm cannot grow; the norm is checked in
whole numbers. Records (and persons) are rounded one by one and added up as whole numbers, and so are the gradients at
several probes; discrete noise is added to the sum; only then is it multiplied by the step and divided by their number:

    release = step / (probes * units) * (sum of rounded vectors + discrete noise).

With C the clipping norm, d numbers and noise of scale sigma (for Laplace noise b) the step is sigma * probes / 2^bits,
where the bits make noise at least 2^20 steps wide and rounding cost at most a thousandth: step * sqrt(d) <= C/1000.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt

import torch
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.privacy.samplers import MOST_BITS

_LEAST_BITS = 20
_FINENESS = 1000
# Wider by this, a discrete Gaussian of 2^20 steps or more has the mu of the continuous one: see `samplers`. Laplace
# noise needs far less of it, for the rounding of its scale.
_WIDER = 1 + 2.0**-30


@dataclass(frozen=True)
class Grid:
    """The whole numbers that one kind of release is made of.

    Attributes:
        step: the size of one step of a single rounded vector.
        bits: the scale of the noise is 2^bits steps.
        probes: how many rounded vectors of a unit are added up.
        longest: the square of the largest allowed length, in steps.
    """

    step: float
    bits: int
    probes: int
    longest: int

    def round(self, clipped: Tensor) -> Tensor:
        """Return clipped vectors (..., d) in steps, rounded toward zero: whole numbers, held exactly by float64.

        Formal guarantee: no result is longer than C / step, whatever the input; a vector that would be longer, or
        is not finite, becomes zero.
        """
        steps = (clipped.to(torch.float64) / self.step).trunc_()
        near = steps.square().sum(-1, keepdim=True) < 1.5 * self.longest  # then whole squares do not overflow
        whole = torch.where(near, steps, 0.0).to(torch.int64)
        fits = near & ((whole * whole).sum(-1, keepdim=True) <= self.longest)
        return torch.where(fits, steps, 0.0)


def make_grid(mechanism: Mechanism, size: int, probes: int, units: int = 1) -> Grid:
    """Return the grid of a mechanism for vectors of this size, of which `probes` for each of `units` are added up."""
    if mechanism.clip is None or not mechanism.noise_multiplier:
        raise DpvalueError("a grid is for releases with noise: give privacy and a clip")
    noise = float(mechanism.noise_scale(torch.ones(1, dtype=torch.int64))[0]) * _WIDER  # of a party of one unit
    bits = max(_LEAST_BITS, ceil(log2(_FINENESS * sqrt(size) * noise * probes / mechanism.clip)))
    if bits > MOST_BITS:
        raise DpvalueError(
            f"noise of {noise / mechanism.clip:.3g} times the clipping norm on {size} numbers and {probes} probes is "
            "beyond the exact sampler: spend more, release in fewer directions, or average fewer probes"
        )
    step = noise * probes / 2**bits
    longest = int((mechanism.clip / step) ** 2)
    if longest >= 2**62 or (mechanism.clip / step) * probes * units >= 2**52:
        raise DpvalueError(
            f"noise of {noise / mechanism.clip:.3g} times the clipping norm is too little for exact sums"
        )
    return Grid(step, bits, probes, longest)
