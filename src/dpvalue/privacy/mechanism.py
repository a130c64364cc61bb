"""How private data leaves: centred, clipped, then with noise of some law; by how much one unit moves it.

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

from dpvalue.errors import require_choice, require_number, require_positive
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.privacy.clipping import rule_named
from dpvalue.privacy.laws import law_named


@dataclass(frozen=True)
class Scale:
    """Public numbers around the clipping of one component, chosen where clean and corrupted units differ most.

    `centre` is subtracted before clipping. A noisy release r is then read as level + gain * r, which undoes, on average
    over public units, what clipping took away: post-processing.
    """

    centre: float = 0.0
    level: float = 0.0
    gain: float = 1.0

    def __post_init__(self) -> None:
        for name in ("centre", "level", "gain"):
            require_number(f"scale.{name}", getattr(self, name), "a number", ok=True)

    def read(self, release: torch.Tensor) -> torch.Tensor:
        """Return what a release, or a clipped component, stands for."""
        return release if self == Scale() else self.level + self.gain * release


@dataclass(frozen=True)
class Mechanism:
    """The mechanism of one run: clip each unit to `clip`, add noise of `noise_multiplier` sensitivities.

    Formal guarantee: k releases of a party are mu-GDP with mu = sqrt(k) / noise_multiplier for one `unit` under
    `neighbours`, whatever the data: non-finite gradients count as zero, unreported. With law "laplace", one release of
    one number is epsilon-DP with epsilon = 1 / noise_multiplier. In general their cost is the `loss` of the law.

    Args:
        clip: the norm C that bounds one unit; None only without privacy.
        noise_multiplier: noise scale / sensitivity; 0 only without privacy.
        unit: "party", "record" or "person".
        neighbours: "zero_out" or "replace".
        law: the name of a law of noise (`dpvalue.privacy.laws`).
        rule: the name of a clipping rule (`dpvalue.privacy.clipping`).
        scale: where one number is clipped, and how it is read after.
    """

    clip: float | None
    noise_multiplier: float
    unit: str
    neighbours: str
    law: str = "gaussian"
    rule: str = "flat"
    scale: Scale = Scale()

    def __post_init__(self) -> None:
        """Check everything: a job from outside may hold any number, and a negative norm would clip nothing."""
        if self.clip is not None:
            require_positive("clip", self.clip)
        if self.noise_multiplier is False or self.noise_multiplier != 0:
            require_positive("noise_multiplier", self.noise_multiplier)
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)
        law_named(self.law)
        rule_named(self.rule)

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
        return self.noise_scale(sizes) * law_named(self.law).sampling.std

    def clipped(self, gradients: torch.Tensor) -> torch.Tensor:
        """Return the gradients (..., d) less the scale's centre, with every vector's norm at most `clip`."""
        if self.scale.centre:
            gradients = gradients - self.scale.centre
        return gradients if self.clip is None else rule_named(self.rule).clip(gradients, self.clip)


def make_mechanism(privacy: Privacy | None, clip: float | None, noise_multiplier: float, **how: Any) -> Mechanism:
    """Return the mechanism for a budget; without one it neither clips (unless `clip` is given) nor adds noise."""
    if privacy is None:
        return Mechanism(clip, 0.0, "party", "zero_out", **how)
    return Mechanism(clip, noise_multiplier, privacy.unit, privacy.neighbours, **how)
