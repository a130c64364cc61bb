"""Algorithm 1 of the paper, line by line: no batching, no shared code with the engine.

With the corrections that the design makes to the paper's text: the first party of a permutation counts, a combination
is a weighted sum of the *raw* private gradients (W = XA), burn-in skips the utility, and a marginal at position r has
the weight p(r). Leave-one-out averages over the permutations in which a party comes last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import comb, factorial, inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

Floats = NDArray[np.float64]


@dataclass
class Oracle:
    """Algorithm 1 for one data set; everything random is handed in."""

    module: nn.Module
    x: list[Tensor]  # per party, its rows
    y: list[Tensor]
    x_test: Tensor
    y_test: Tensor
    theta_0: Callable[[int], Tensor]  # the initial model of permutation t (from 0)
    permutations: list[list[int]]
    noise: Callable[[int], Callable[[], Floats]]  # of permutation t: draws the next standard normal vector
    alpha: float
    C: float | None = None
    sigma: float = 0.0  # noise multiplier
    kind: str = "independent"
    X: Floats | None = None  # the matrix, when kind is "matrix"
    q: float = 0.0
    per_record: bool = False
    regression: bool = False
    raw: dict[int, list[Tensor]] = field(default_factory=dict)
    combined: dict[int, Tensor] = field(default_factory=dict)

    def values(self, names: list[str]) -> dict[str, Floats]:
        """Return psi of each party for each semivalue."""
        n, k = len(self.x), len(self.permutations)
        psi = {name: np.zeros(n) for name in names}
        seen = {name: np.zeros(n) for name in names}
        self.raw = {j: [] for j in range(n)}
        self.combined = {}
        for t in range(1, k + 1):
            g2 = self._gradient_variance()
            draw = self.noise(t - 1)
            theta = self.theta_0(t - 1).clone()
            valued = t > round(k * self.q)
            V_i = self._utility(theta) if valued else 0.0
            for r, j in enumerate(self.permutations[t - 1], start=1):
                g = self._clipped_gradient(j, theta)
                sensitivity = 0.0 if self.C is None else self.C / (len(self.x[j]) if self.per_record else 1)
                z = torch.from_numpy(draw().astype(np.float64)) * self.sigma * sensitivity if self.sigma else 0.0
                self.raw[j].append(g + z)
                g_star = self._combination(j, t, k, g2)
                theta = theta - self.alpha * g_star
                if valued:
                    V_j = self._utility(theta)
                    for name in names:
                        if name != "loo" or r == n:
                            psi[name][j] += (1.0 if name == "loo" else position_weight(name, r, n)) * (V_j - V_i)
                            seen[name][j] += 1
                    V_i = V_j
        with np.errstate(invalid="ignore"):
            return {name: psi[name] / seen[name] for name in names}

    def _gradient(self, rows: Tensor, labels: Tensor, theta: Tensor) -> Tensor:
        vector_to_parameters(theta, self.module.parameters())
        self.module.zero_grad()
        self._loss(self.module(rows), labels).backward()
        return torch.cat([p.grad.flatten() for p in self.module.parameters() if p.grad is not None])

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.regression:
            return nn.functional.mse_loss(outputs[:, 0], labels)
        return nn.functional.cross_entropy(outputs, labels)

    def _clipped_gradient(self, j: int, theta: Tensor) -> Tensor:
        if self.per_record:
            rows = zip(self.x[j], self.y[j], strict=True)
            return sum((self._clip(self._gradient(x[None], y[None], theta)) for x, y in rows), torch.zeros(())) / len(
                self.x[j]
            )
        return self._clip(self._gradient(self.x[j], self.y[j], theta))

    def _clip(self, g: Tensor) -> Tensor:
        return g if self.C is None else g / max(1.0, float(g.norm()) / self.C)

    def _combination(self, j: int, t: int, k: int, g2: float) -> Tensor:
        A = self.raw[j]
        if self.kind == "independent":
            return A[-1]
        if self.kind == "running-mean":
            return torch.stack(A).mean(0)
        if self.kind == "matrix":
            assert self.X is not None
            return sum((float(self.X[t - 1, i]) * a for i, a in enumerate(A)), torch.zeros(()))
        if self.kind == "decaying":
            own = 1.0 if t == 1 else 0.75 - 0.7 * t / k
            self.combined[j] = A[-1] if t == 1 else own * A[-1] + (1 - own) * self.combined[j]
            return self.combined[j]
        assert self.kind == "optimal"
        assert self.C is not None
        if t == 1:
            return A[-1]
        v = (self.C * self.sigma) ** 2
        own = 1.0 if v == 0 and g2 > 0 else (v + t * g2) / (t * (v + g2))
        rest = v / (t * (v + g2))
        return own * A[-1] + rest * torch.stack(A[:-1]).sum(0)

    def _gradient_variance(self) -> float:
        """g2 of `optimal`, from the noisy releases of the permutations before."""
        if self.kind != "optimal" or len(self.raw[0]) < 2 or self.C is None:
            return 0.0
        releases = np.array([[a.numpy() for a in self.raw[j]] for j in self.raw])  # n, t, d
        most = inf if self.C is None else self.C**2 / releases.shape[-1]
        return float(np.clip(releases.var(axis=1, ddof=1).mean() - (self.C * self.sigma) ** 2, 0, most))

    def _utility(self, theta: Tensor) -> float:
        vector_to_parameters(theta, self.module.parameters())
        with torch.no_grad():
            return -float(self._loss(self.module(self.x_test), self.y_test))


def position_weight(name: str, r: int, n: int) -> float:
    """p(r) by its plain formula, for small n."""
    if name == "shapley":
        return 1.0
    if name == "banzhaf":
        return n * comb(n - 1, r - 1) / 2.0 ** (n - 1)
    assert name == "beta(4,1)"
    return n * comb(n - 1, r - 1) * _beta(r, n - r + 4) / _beta(4, 1)


class Affine(nn.Module):
    """Logistic or linear regression with a row (weights, bias) per output, as the library lays out its parameters."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(outputs, features + 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.rows[:, :-1].T + self.rows[:, -1]


def _beta(a: int, b: int) -> float:
    return factorial(a - 1) * factorial(b - 1) / factorial(a + b - 1)


def flat(module: nn.Module) -> Tensor:
    """The parameters of a module as one vector."""
    return parameters_to_vector(module.parameters()).detach().clone()
