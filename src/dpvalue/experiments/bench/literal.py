"""The baseline: Algorithm 1 with running-mean noise, one gradient, one update and one evaluation at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from dpvalue.arrays import Floats
from dpvalue.experiments.bench.data import SyntheticData


class LiteralLoop:
    """Algorithm 1 as one would write it down, with torch's autograd, on one device."""

    def __init__(self, module: nn.Module, data: SyntheticData, device: torch.device) -> None:
        self.module = module.to(device)
        self.x, self.y = (torch.tensor(part, device=device) for part in data.train)
        self.x_test, self.y_test = (torch.tensor(part, device=device) for part in data.test)
        self.parameters = list(self.module.parameters())
        self.start = [p.detach().clone() for p in self.parameters]
        self.rolling = torch.zeros(len(self.x), sum(p.numel() for p in self.parameters), device=device)

    def step(self, j: int, t: int, alpha: float, clip: float, std: float, valued: bool) -> float | None:
        """Party j moves the model in permutation t (from 1); return V after it, if it is valued."""
        self.module.zero_grad()
        nn.functional.cross_entropy(self.module(self.x[j : j + 1]), self.y[j : j + 1]).backward()
        gradient = torch.cat([p.grad.flatten() for p in self.parameters if p.grad is not None])
        gradient = gradient / max(1.0, float(gradient.norm()) / clip) + std * torch.randn_like(gradient)
        self.rolling[j] += (gradient - self.rolling[j]) / t
        with torch.no_grad():
            for p, move in zip(
                self.parameters, self.rolling[j].split([p.numel() for p in self.parameters]), strict=True
            ):
                p.sub_(alpha * move.view_as(p))
            if valued:
                return -float(nn.functional.cross_entropy(self.module(self.x_test), self.y_test))
        return None

    def reset(self) -> None:
        """Go back to the initial model."""
        with torch.no_grad():
            for p, start in zip(self.parameters, self.start, strict=True):
                p.copy_(start)

    def seconds_per_step(
        self,
        steps: int,
        burn_in: float,
        alpha: float,
        clip: float,
        std: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> float:
        """Time a slice of `steps` steps with and without utility; return the mean cost of a step at this burn-in."""
        cost = []
        for valued in (False, True):
            self.reset()
            for warm_up in (True, False):
                begin = clock()
                for s in range(steps // 10 if warm_up else steps):
                    self.step(s % len(self.x), s // len(self.x) + 1, alpha, clip, std, valued)
                _wait(self.x)
            cost.append((clock() - begin) / steps)
        return burn_in * cost[0] + (1 - burn_in) * cost[1]

    def shapley(self, permutations: int, burn_in: float, alpha: float, clip: float, std: float, seed: int) -> Floats:
        """Run all of Algorithm 1 and return the Shapley values."""
        generator = np.random.default_rng(seed)
        torch.manual_seed(seed)
        n, first = len(self.x), round(permutations * burn_in)
        values = np.zeros(n)
        for t in range(1, permutations + 1):
            self.reset()
            before = -float(self._loss()) if t > first else None
            for j in generator.permutation(n).tolist():
                after = self.step(j, t, alpha, clip, std, t > first)
                if after is not None and before is not None:
                    values[j] += (after - before) / (permutations - first)
                before = after
        return values

    def _loss(self) -> Tensor:
        with torch.no_grad():
            return nn.functional.cross_entropy(self.module(self.x_test), self.y_test)


def _wait(like: Tensor) -> None:
    if like.is_cuda:
        torch.cuda.synchronize(like.device)
