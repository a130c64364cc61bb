"""What parties are asked in a round, and their answer: the private side of a release, for one party or many at once.

`answer` is where rows meet a question. Of the question it takes models, which are functions of earlier releases and of
public things; what it returns has noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.privacy.grid import Grid
from dpvalue.privacy.noise import NoiseSource
from dpvalue.releasing.contributions import Contributions


@dataclass(frozen=True)
class AtPoints:
    """Gradients at the points (q, size) are averaged by shares (q,), then clipped; (q, n, size): each party's own."""

    points: Tensor
    shares: Tensor

    @property
    def probes(self) -> int:
        """How many clipped gradients of a party are added up."""
        return 1


@dataclass(frozen=True)
class OnWalks:
    """As many models for each party as there are probes: its gradient at each is clipped, then they are averaged.

    `pieces` yields parties (b,) and models (b, size), in any order.
    """

    probes: int
    pieces: Callable[[], Iterator[tuple[Tensor, Tensor]]]


Asked = AtPoints | OnWalks


@dataclass(frozen=True)
class Answering:
    """The rows of one party, or of many, behind the mechanism, and where their noise comes from.

    Attributes:
        contributions: the rows, behind model and mechanism.
        noise: where the noise comes from.
        numbers: of the parties, by which seeded noise is theirs: the same wherever they are asked, and with whom.
        like: a vector of the size, type and device of a release.
    """

    contributions: Contributions
    noise: NoiseSource
    numbers: Ints
    like: Tensor

    def answer(self, number: int, asked: Asked) -> Tensor:
        """Return what each party releases in a round (n, size).

        Formal guarantee: reads the parties' rows only for one release per party, of the mean of clipped gradients (or
        of the clipped mean of gradients) at the models that are asked about, with the noise of the mechanism.
        """
        grid = self.contributions.grid(asked.probes)
        return self.release(number, self._clipped(asked, grid), grid)

    def release(self, number: int, clipped: Tensor, grid: Grid | None) -> Tensor:
        """Return clipped contributions (n, size) with the noise of a round."""
        everyone = torch.arange(len(clipped), device=clipped.device)
        noise = None
        if self.contributions.mechanism.noise_multiplier:
            law, bits = self.contributions.mechanism.law, 0 if grid is None else grid.bits
            drawn = self.noise.rows(number, self.numbers, self.like, law, bits)
            noise = self.contributions.scaled(drawn, everyone)
        return self.contributions.release(clipped, noise, everyone, grid).to(self.like.dtype)

    def _clipped(self, asked: Asked, grid: Grid | None) -> Tensor:
        """What each party contributes: a mean, in float64 where there are several; on a grid a sum of whole steps.

        A float32 sum of many clipped gradients could be longer than the clipping norm.
        """
        contributions, device = self.contributions, self.like.device
        if isinstance(asked, AtPoints):
            everyone = torch.arange(contributions.n, device=device)
            return contributions.along(asked.points, asked.shares, everyone, grid)
        total = torch.zeros(contributions.n, len(self.like), dtype=torch.float64, device=device)
        for who, models in asked.pieces():
            total.index_add_(0, who, contributions.at(models, who, grid).to(torch.float64))
        return total / asked.probes if grid is None else total
