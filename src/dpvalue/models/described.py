"""What describes a row to the refit game: its gradient in some directions, that it is there, and how far off it is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from dpvalue.models.linear import Linear
from dpvalue.models.subspace import ProjectedLinear

BESIDES = 2
"""How many numbers stand beside the directions: a row's presence, and its distance from the model."""


class Described(ProjectedLinear):
    """A linear model at one place, which is asked for descriptions of rows instead of gradients.

    The description of a row is (its gradient along each vector, 1, min(|residual|^2 / spread, 1)): m + 2 numbers, where
    the residual is the derivative of the loss by the outputs. The "parameters" that it is asked at are weights, which
    multiply these numbers before anything is clipped: a party of few records is asked for fewer directions. Everything
    that works with gradients (clipping, units, noise, grids, messages) then works with descriptions. A row's
    description is a function of that row, of public things, and of nothing else.
    """

    def __init__(self, model: Linear, origin: Tensor, vectors: Tensor, spread: float) -> None:
        super().__init__(model, origin, vectors)
        self.spread = spread
        self.size = len(vectors) + BESIDES
        self.numbers = self.size

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the weighted descriptions of single rows (b, r, m + 2)."""
        residuals = self.linear.residuals(x[:, :, 0].clone(), y)
        along = torch.einsum("bro,brmo->brm", residuals, x[:, :, 1:])
        return theta.unsqueeze(1) * self.described(along, residuals.square().sum(-1, keepdim=True))

    def described(self, along: Tensor, squared: Tensor) -> Tensor:
        """Return descriptions (..., m + 2) from gradients along the vectors (..., m) and squared residuals (..., 1)."""
        off = (squared / self.spread).clamp_max(1.0)
        return torch.cat([along, torch.ones_like(off), off], dim=-1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the model, whatever the weights are."""
        return x[:, 0].expand(len(theta), *x[:, 0].shape)

    def lift(self, theta: Tensor) -> Tensor:
        """Return the parameters (b, d) of the model, whatever the weights are."""
        return self._origin.expand(len(theta), -1)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss of the model, whatever the weights are."""
        loss = super().mean_loss(x, y)
        nowhere = torch.zeros(1, self.size - BESIDES).to(self._origin)
        return lambda theta: loss(nowhere).expand(len(theta))

    def digest(self) -> str:
        """Return a digest that no model has which is asked for gradients."""
        return hashlib.sha256(f"description {self.spread!r} ".encode() + self._model.digest().encode()).hexdigest()
