"""A model that moves along a public basis: its parameters are w (m,), those of the model origin + w @ vectors.

The gradient by w is the projection of the model's gradient, vectors @ gradient, so that whatever works with a model of
size d (clipping, noise, walks, tables) works with one of size m.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpvalue.models.base import REGRESSION, Model
from dpvalue.models.linear import Linear, mean_log_sum_exp


class Projected:
    """Any model, moved along orthonormal vectors (m, d) from an origin (d,)."""

    zero_start = True

    def __init__(self, model: Model, origin: Tensor, vectors: Tensor) -> None:
        self._model, self._origin, self._vectors = model, origin, vectors
        self.task, self.kind = model.task, model.kind
        self.size = len(vectors)
        self.numbers = self.size + model.numbers

    def lift(self, theta: Tensor) -> Tensor:
        """Return the parameters (b, d) of the model."""
        return torch.addmm(self._origin, theta, self._vectors)

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return zeros: the origin."""
        return torch.zeros_like(self._origin[:1]).repeat(self.size)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the rows as the model takes them."""
        return self._model.inputs(x)

    def targets(self, y: Tensor) -> Tensor:
        """Return the labels as the model takes them."""
        return self._model.targets(y)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the lifted models."""
        return self._model.outputs(self.lift(theta), x)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss of the lifted models."""
        loss = self._model.mean_loss(x, y)
        return lambda theta: loss(self.lift(theta))

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the projected gradients."""
        return self._model.gradients(self.lift(theta), x, y, weights) @ self._vectors.T

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the projected gradients of single rows."""
        return self._model.record_gradients(self.lift(theta), x, y) @ self._vectors.T

    def squared_norm(self, theta: Tensor) -> Tensor:
        """Return that of the lifted models."""
        return self._model.squared_norm(self.lift(theta))

    def numbers_per_row(self) -> int:
        """Return that of the model."""
        return self._model.numbers_per_row()

    def digest(self) -> str:
        """Return that of the model."""
        return self._model.digest()


class ProjectedLinear(Projected):
    """A linear model moved along a basis: a row becomes its outputs at the origin and along each vector (m + 1, o).

    Outputs are linear in theta, so nothing of size d is needed after that.
    """

    def __init__(self, model: Linear, origin: Tensor, vectors: Tensor) -> None:
        super().__init__(model, origin, vectors)
        self.linear = model
        self.numbers = self.size + 1
        self.directions = torch.cat([origin[None], vectors]).view(self.size + 1, model.width, -1)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the outputs of the rows at the origin and along each vector (rows, m + 1, o)."""
        return torch.einsum("rf,mof->rmo", self.linear.inputs(x), self.directions)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs at the origin, moved."""
        return x[:, 0] + torch.einsum("bm,rmo->bro", theta, x[:, 1:])

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss with the outputs of all models in one product, classes before rows."""
        labels = self.targets(y)
        columns = x[:, 1:].permute(1, 2, 0).flatten(1)
        start = x[:, 0].T.flatten()
        picked = torch.einsum("rmo,ro->m", x.to(torch.float64), labels.to(torch.float64)) / len(x)

        def squared_error(theta: Tensor) -> Tensor:
            return (torch.addmm(start, theta, columns) - y).square_().mean(-1, dtype=torch.float64)

        def cross_entropy(theta: Tensor) -> Tensor:
            outputs = torch.addmm(start, theta, columns).view(len(theta), self.linear.width, -1)
            own = picked[0] + theta.to(torch.float64) @ picked[1:]
            return mean_log_sum_exp(outputs) - own

        return squared_error if self.task == REGRESSION else cross_entropy

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the projected gradients in closed form."""
        return torch.einsum("brm,br->bm", self.record_gradients(theta, x, y), weights)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the projected gradients of single rows in closed form."""
        outputs = x[:, :, 0] + torch.einsum("bm,brmo->bro", theta, x[:, :, 1:])
        return torch.einsum("bro,brmo->brm", self.linear.residuals(outputs, y), x[:, :, 1:])


def projected(model: Model, origin: Tensor, vectors: Tensor) -> Projected:
    """Return the model moved along orthonormal vectors (m, d) from an origin (d,)."""
    return (ProjectedLinear if isinstance(model, Linear) else Projected)(model, origin, vectors)  # type: ignore[arg-type]
