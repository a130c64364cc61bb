"""Releases in rounds (`lagged`, `replay`): one noisy message per party and round, however many probes it averages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.engine.walks import Walker
from dpvalue.privacy.grid import Grid
from dpvalue.privacy.noise import NoiseSource
from dpvalue.progress import Progress
from dpvalue.releasing.contributions import Contributions, Witness, nobody
from dpvalue.streams import Purpose, permutations

Deliver = Callable[[int, Tensor, Callable[[], Tensor]], Tensor]
"""Takes a round, the table that it walks with, and what makes its release; returns the release."""


def release_round(
    contributions: Contributions, source: NoiseSource, number: int, clipped: Tensor, grid: Grid | None, model: Tensor
) -> Tensor:
    """Return what all parties release in a round: their clipped contributions (n, d), with noise if there is privacy.

    Without a grid, noise is drawn in the type of the model.
    """
    everyone = torch.arange(len(clipped), device=clipped.device)
    streams = contributions.streams(source, [number], model, grid)
    noise = contributions.noise(streams, everyone[None], model)[0] if streams else None
    return contributions.release(clipped, noise, everyone, grid)


@dataclass(frozen=True)
class RoundReleases:
    """The releases of R rounds of B probes; the first is taken at public points: the initial model, or `points`.

    Formal guarantee: `run` reads the parties' data only through one release per party and round, of the mean of clipped
    gradients (in the first round: of the clipped mean of gradients) at models that are functions of earlier releases
    and public things.
    """

    walker: Walker
    contributions: Contributions
    noise: NoiseSource
    seed: int
    rounds: int
    probes: int
    points: Tensor
    shares: Tensor
    deliver: Deliver
    witness: Witness = nobody

    def run(self, progress: Progress, before_round: Callable[[int, Tensor, Ints], None] | None = None) -> Tensor:
        """Make all releases and return the table, their mean per party (n, d).

        `before_round` is shown the number of each round after the first, the table it walks with, and its permutations.
        """
        n = self.contributions.n
        total = torch.zeros(
            n, self.walker.model.size, dtype=self.walker.initial.dtype, device=self.walker.initial.device
        )
        everyone = torch.arange(n, device=self.points.device)
        for number in range(self.rounds):
            table = total / max(number, 1)
            orders = permutations(self.seed, Purpose.PERMUTATION, number * self.probes, self.probes, n)
            if number and before_round is not None:
                before_round(number, table, orders)
            release = self.deliver(number, table, partial(self._release, number, table, orders, everyone))
            self.witness(everyone, release)
            total += release
            progress("releasing", number + 1, self.rounds)
        return total / self.rounds

    def _release(self, number: int, table: Tensor, orders: Ints, everyone: Tensor) -> Tensor:
        """What all parties release in a round (n, d), in the type of the engine."""
        grid = self.contributions.grid(self.probes if number else 1)
        if number == 0:
            clipped = self.contributions.along(self.points, self.shares, everyone, grid)
        else:
            clipped = self._along_walks(table, orders, grid)
        initial = self.walker.initial
        return release_round(self.contributions, self.noise, number, clipped, grid, initial).to(table.dtype)

    def _along_walks(self, table: Tensor, orders: Ints, grid: Grid | None) -> Tensor:
        """Each party's clipped gradient at the model before it, averaged over the probes in float64; on a grid, added.

        A float32 sum of many probes could be longer than the clipping norm.
        """
        total = torch.zeros_like(table, dtype=torch.float64)
        for walks, positions, before, _ in self.walker.prefixes(table, orders):
            who = torch.from_numpy(orders[walks, positions]).flatten().to(table.device)
            total.index_add_(0, who, self.contributions.at(before.flatten(0, 1), who, grid).to(torch.float64))
        return total / len(orders) if grid is None else total
