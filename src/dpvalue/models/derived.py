"""Models derived from other models: a model in a public subspace, descriptions of rows, and scores of rows.

`SubspaceModel` has parameters w (m,) and is the model at origin + w @ vectors. The gradient by w is the projection of
the model's gradient, vectors @ gradient, so clipping, noise, walks and tables work as for any model of size m.
`DescriptionModel` (refit method) and `Score` (scores) define what a row contributes instead of a gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from dpvalue.models.base import REGRESSION, Model
from dpvalue.models.linear import Linear, mean_log_sum_exp


class SubspaceModel:
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


class SubspaceLinear(SubspaceModel):
    """A linear model in a subspace: `inputs` turns a row into its outputs at the origin and along each vector.

    They are (m + 1, o). Outputs are linear in theta, so later steps need nothing of size d.
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
        """Return the outputs of the lifted models."""
        return x[:, 0] + torch.einsum("bm,rmo->bro", theta, x[:, 1:])

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss with the outputs of all models in one product, classes before rows."""
        labels = self.targets(y)
        columns = x[:, 1:].permute(1, 2, 0).flatten(1)
        start = x[:, 0].T.flatten()
        label_sums = torch.einsum("rmo,ro->m", x.to(torch.float64), labels.to(torch.float64)) / len(x)

        def squared_error(theta: Tensor) -> Tensor:
            return (torch.addmm(start, theta, columns) - y).square_().mean(-1, dtype=torch.float64)

        def cross_entropy(theta: Tensor) -> Tensor:
            outputs = torch.addmm(start, theta, columns).view(len(theta), self.linear.width, -1)
            own = label_sums[0] + theta.to(torch.float64) @ label_sums[1:]
            return mean_log_sum_exp(outputs) - own

        return squared_error if self.task == REGRESSION else cross_entropy

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the projected gradients in closed form."""
        return torch.einsum("brm,br->bm", self.record_gradients(theta, x, y), weights)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the projected gradients of single rows in closed form."""
        outputs = x[:, :, 0] + torch.einsum("bm,brmo->bro", theta, x[:, :, 1:])
        return torch.einsum("bro,brmo->brm", self.linear.residuals(outputs, y), x[:, :, 1:])


def project_model(model: Model, origin: Tensor, vectors: Tensor) -> SubspaceModel:
    """Return the model moved along orthonormal vectors (m, d) from an origin (d,)."""
    return (SubspaceLinear if isinstance(model, Linear) else SubspaceModel)(model, origin, vectors)  # type: ignore[arg-type]


EXTRA_NUMBERS = 2
"""The number of a description's numbers besides the directions: a row's presence and its distance."""


class DescriptionModel(SubspaceLinear):
    """A linear model at one point, which returns descriptions of rows instead of gradients.

    The description of a row is (its gradient along each vector, 1, min(|residual|^2 / spread, 1)): m + 2 numbers, where
    the residual is the derivative of the loss by the outputs. Its "parameters" theta are weights that multiply these
    numbers before clipping, so that a party of few records contributes fewer directions. Clipping, units, noise, grids
    and messages work as for gradients. A row's description is a function of that row and of public values only.
    """

    def __init__(self, model: Linear, origin: Tensor, vectors: Tensor, spread: float) -> None:
        super().__init__(model, origin, vectors)
        self.spread = spread
        self.size = len(vectors) + EXTRA_NUMBERS
        self.numbers = self.size

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the weighted descriptions of single rows (b, r, m + 2)."""
        residuals = self.linear.residuals(x[:, :, 0].clone(), y)
        along = torch.einsum("bro,brmo->brm", residuals, x[:, :, 1:])
        return theta.unsqueeze(1) * self.describe(along, residuals.square().sum(-1, keepdim=True))

    def describe(self, along: Tensor, squared: Tensor) -> Tensor:
        """Return descriptions (..., m + 2) from gradients along the vectors (..., m) and squared residuals (..., 1)."""
        off = (squared / self.spread).clamp_max(1.0)
        return torch.cat([along, torch.ones_like(off), off], dim=-1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the model; they do not depend on the weights."""
        return x[:, 0].expand(len(theta), *x[:, 0].shape)

    def lift(self, theta: Tensor) -> Tensor:
        """Return the parameters (b, d) of the model; they do not depend on the weights."""
        return self._origin.expand(len(theta), -1)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss of the model; it does not depend on the weights."""
        loss = super().mean_loss(x, y)
        nowhere = torch.zeros(1, self.size - EXTRA_NUMBERS).to(self._origin)
        return lambda theta: loss(nowhere).expand(len(theta))

    def digest(self) -> str:
        """Return a digest that differs from the digest of every gradient model."""
        return hashlib.sha256(f"description {self.spread!r} ".encode() + self._model.digest().encode()).hexdigest()


_WORST = -1e30  # an overflowed loss would be infinite and count as an unreadable row


class Score:
    """A model on a line, which returns scores of rows instead of gradients: the negated loss, one number.

    Clipping, units, noise, grids and messages work as for gradients. A row's score is a function of that row and of the
    model theta only; a score that is not finite is clipped to zero, as a gradient is.
    """

    zero_start = True
    size = 1

    def __init__(self, line: SubspaceModel) -> None:
        assert line.size == 1
        self.line = line
        self.task, self.kind = line.task, line.kind
        self.numbers = line.numbers

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return the start of the line."""
        return self.line.initial(seed, index)

    def inputs(self, x: Tensor) -> Tensor:
        """Return the rows as the model on the line takes them."""
        return self.line.inputs(x)

    def targets(self, y: Tensor) -> Tensor:
        """Return the labels as they are."""
        return y

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the models on the line."""
        return self.line.outputs(theta, x)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return that of the models on the line."""
        return self.line.mean_loss(x, y)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted scores (b, 1)."""
        return torch.einsum("brm,br->bm", self.record_gradients(theta, x, y), weights)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the scores of single rows (b, r, 1), model i on the rows of x[i]."""
        line = self.line
        if isinstance(line, SubspaceLinear):
            outputs = x[:, :, 0] + torch.einsum("bm,brmo->bro", theta, x[:, :, 1:])
        elif bool((theta == theta[:1]).all()):  # as in a first round
            outputs = line.outputs(theta[:1], x.flatten(0, 1))[0].unflatten(0, x.shape[:2])
        else:
            outputs = torch.stack(
                [line.outputs(parameters[None], rows)[0] for parameters, rows in zip(theta, x, strict=True)]
            )
        return self.scores(outputs, y)

    def scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the negated loss (..., 1) of outputs (..., o) for labels (...)."""
        if self.task == REGRESSION:
            negated = -(outputs - y.unsqueeze(-1)).square()
        else:
            negated = functional.log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1))
        return negated.clamp_min(_WORST)

    def squared_norm(self, theta: Tensor) -> Tensor:
        """Return that of the models on the line."""
        return self.line.squared_norm(theta)

    def numbers_per_row(self) -> int:
        """Return that of the model."""
        return self.line.numbers_per_row()

    def digest(self) -> str:
        """Return a digest that differs from the digest of every gradient model."""
        return hashlib.sha256(b"score " + self.line.digest().encode()).hexdigest()
