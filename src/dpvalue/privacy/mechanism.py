"""The one door through which private data leaves: centre, clip, then add Gaussian or Laplace noise.

Sensitivity of a release (l2), with C the clipping norm and M the public number of records (unit person: of persons) of
the party:

                 unit party    unit record, person
    zero_out         C               C / M
    replace         2C              2C / M

A release is the mean of clipped gradients at any number of points ("probes") that depend only on earlier releases and
on public things. The mean of vectors bounded by C is bounded by C, so the number of probes never enters.

Around one number there may be a public `Scale`: it is subtracted before clipping and changes how the noisy release is
read after; what leaves is still at most C long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dpvalue.privacy.budget import Privacy

# Scaling to a norm of exactly C could exceed C by rounding. This much room keeps a clipped vector, and any mean of
# clipped vectors that is added up in float64, below.
_ROOM = {torch.float32: 2.0**-20, torch.float64: 2.0**-40}


@dataclass(frozen=True)
class Scale:
    """Public numbers around the clipping of one component, chosen where clean and corrupted units differ most.

    `centre` is subtracted before clipping. A noisy release r is then read as level + gain * r, which undoes, on average
    over public units, what clipping took away: post-processing.
    """

    centre: float = 0.0
    level: float = 0.0
    gain: float = 1.0

    def read(self, release: torch.Tensor) -> torch.Tensor:
        """Return what a release, or a clipped component, stands for."""
        return release if self == Scale() else self.level + self.gain * release


@dataclass(frozen=True)
class Mechanism:
    """The mechanism of one run: clip each unit to `clip`, add noise of `noise_multiplier` sensitivities.

    Formal guarantee: k releases of a party are mu-GDP with mu = sqrt(k) / noise_multiplier for one `unit` under
    `neighbours`, whatever the data: non-finite gradients count as zero, unreported. With law "laplace", one release of
    one number is epsilon-DP with epsilon = 1 / noise_multiplier.

    Args:
        clip: the norm C that bounds one unit; None only without privacy.
        noise_multiplier: noise scale / sensitivity; 0 only without privacy.
        unit: "party", "record" or "person".
        neighbours: "zero_out" or "replace".
        law: "gaussian" (scale: standard deviation) or "laplace" (scale: b).
        rule: "flat" scales what is longer than C down to C, "normalise" scales everything to C but zero.
        scale: where one number is clipped, and how it is read after.
    """

    clip: float | None
    noise_multiplier: float
    unit: str
    neighbours: str
    law: str = "gaussian"
    rule: str = "flat"
    scale: Scale = Scale()

    @property
    def per_unit(self) -> bool:
        """Whether single records or persons are clipped, instead of the party's mean gradient."""
        return self.unit != "party" and self.clip is not None

    def sensitivity(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the l2 sensitivity of a release, for parties with these public numbers of records, or of persons."""
        if self.clip is None:
            return torch.zeros(len(sizes), dtype=torch.float64)
        bound = self.clip * (2.0 if self.neighbours == "replace" else 1.0)
        if self.unit != "party":
            return bound / sizes.clamp_min(1).to(torch.float64)  # a party without records releases noise alone
        return torch.full((len(sizes),), bound, dtype=torch.float64)

    def noise_scale(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the scale of the noise of one release per coordinate, for each party."""
        return self.noise_multiplier * self.sensitivity(sizes)

    def noise_std(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation of that noise."""
        return self.noise_scale(sizes) * (2**0.5 if self.law == "laplace" else 1.0)

    def clipped(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return the gradients (..., d) less the scale's centre, with every vector's norm at most `clip`."""
        if self.scale.centre:
            gradients = gradients - self.scale.centre
        if self.clip is None:
            return gradients
        return normalise_rows(gradients, self.clip) if self.rule == "normalise" else clip_rows(gradients, self.clip)


def mechanism(privacy: Privacy | None, clip: float | None, noise_multiplier: float, **how: Any) -> Mechanism:
    """Return the mechanism for a budget; without one it neither clips (unless `clip` is given) nor adds noise."""
    if privacy is None:
        return Mechanism(clip, 0.0, "party", "zero_out", **how)
    return Mechanism(clip, noise_multiplier, privacy.unit, privacy.neighbours, **how)


def normalise_rows(vectors: torch.Tensor, norm: float) -> torch.Tensor:
    """Scale every vector (last dimension) to l2 norm `norm`; zero, and one with a non-finite entry, become zero.

    Formal guarantee: the norm of each result, in exact arithmetic, is at most `norm`, for float32 and float64 input.
    """
    wide = vectors.to(torch.float64)
    wide = wide / wide.abs().amax(
        -1, keepdim=True
    )  # or the squares of tiny entries would vanish, and the length with them
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scaled = wide / length * clip_bound(norm, vectors.dtype)
    rounded: torch.Tensor = scaled.to(vectors.dtype)
    return rounded.nan_to_num_(0.0, 0.0, 0.0)


def clip_rows(vectors: torch.Tensor, norm: float) -> torch.Tensor:
    """Scale every vector (last dimension) to l2 norm at most `norm`; one with a non-finite entry becomes zero.

    Formal guarantee: the norm of each result, in exact arithmetic, is at most `norm`, for float32 and float64 input.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    return divide_clipped(torch.empty_like(vectors).copy_(vectors), length.div_(clip_bound(norm, vectors.dtype)))


def clip_bound(norm: float, dtype: torch.dtype) -> float:
    """Return the length to scale longer vectors to, so that none is longer than `norm` after rounding to `dtype`."""
    return norm * (1 - _ROOM[dtype])


def divide_clipped(vectors: torch.Tensor, excess: torch.Tensor) -> torch.Tensor:
    """Divide vectors, in place, by `excess`, their length over `clip_bound` in float64, where that exceeds 1.

    The division is in float64 and rounds once. An infinite excess makes zero; every NaN, from a vector or from infinity
    over infinity, becomes zero.
    """
    return vectors.div_(excess.clamp_min_(1.0)).nan_to_num_(0.0, 0.0, 0.0)
