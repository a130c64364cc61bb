"""Releases in rounds (`lagged`, `replay`): one noisy message per party and round, however many probes it averages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.engine.contributions import Contributions
from dpvalue.engine.walks import Walker
from dpvalue.estimates import Ints
from dpvalue.privacy.noise import NoiseSource
from dpvalue.progress import Report
from dpvalue.streams import Purpose, permutations


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

    def run(self, report: Report, before_round: Callable[[int, Tensor, Ints], None] | None = None) -> Tensor:
        """Make all releases and return the table, their mean per party (n, d).

        `before_round` is shown the number of each round after the first, the table it walks with, and its permutations.
        """
        n = self.contributions.n
        total = torch.zeros(
            n, self.walker.model.size, dtype=self.walker.initial.dtype, device=self.walker.initial.device
        )
        for number in range(self.rounds):
            if number == 0:
                everyone = torch.arange(n, device=self.points.device)
                gradients = self.contributions.along(self.points, self.shares, everyone)
            else:
                orders = permutations(self.seed, Purpose.PERMUTATION, number * self.probes, self.probes, n)
                table = total / number
                if before_round is not None:
                    before_round(number, table, orders)
                gradients = self._along_walks(table, orders)
            mechanism = self.contributions.mechanism
            if mechanism.noise_multiplier:
                drawn = self.noise.stream(number, self.walker.initial, mechanism.law).fill(torch.empty_like(total))
                gradients = gradients + self.contributions.noise(drawn, torch.arange(n, device=drawn.device))
            total += mechanism.scale.read(gradients)
            report("releasing", number + 1, self.rounds)
        return total / self.rounds

    def _along_walks(self, table: Tensor, orders: Ints) -> Tensor:
        """Each party's clipped gradient at the model before it, averaged over the probes in float64.

        A float32 sum of many probes could be longer than the clipping norm.
        """
        total = torch.zeros_like(table, dtype=torch.float64)
        for walks, positions, before, _ in self.walker.prefixes(table, orders):
            who = torch.from_numpy(orders[walks, positions]).flatten().to(table.device)
            total.index_add_(0, who, self.contributions.at(before.flatten(0, 1), who).to(torch.float64))
        return total / len(orders)
