"""The negated loss of rows under one fixed model, in the place of a gradient: what `dpvalue.baselines` releases."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from dpvalue.models.base import Model, row_losses


class FixedModelLoss:
    """A model of one parameter, which is never used: its "gradients" are the negated losses of a fixed model."""

    zero_start = True
    size = 1

    def __init__(self, model: Model, fixed: Tensor) -> None:
        self._model, self._fixed = model, fixed
        self.task, self.kind = model.task, model.kind
        self.numbers = model.numbers

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return a zero."""
        return torch.zeros_like(self._fixed[:1])

    def inputs(self, x: Tensor) -> Tensor:
        """Return the rows as the model takes them."""
        return self._model.inputs(x)

    def targets(self, y: Tensor) -> Tensor:
        """Return the labels as they are."""
        return y

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of the fixed model, as often as asked."""
        return self._model.outputs(self._fixed[None], x).expand(len(theta), -1, -1)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss of the fixed model."""
        loss = self._model.mean_loss(x, y)
        return lambda theta: loss(self._fixed[None]).expand(len(theta))

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the negated weighted losses (b, 1)."""
        return torch.einsum("brm,br->bm", self.record_gradients(theta, x, y), weights)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the negated losses of single rows (b, r, 1)."""
        outputs = self._model.outputs(self._fixed[None], x.flatten(0, 1))[0]
        return -row_losses(self.task, outputs, y.flatten()).view(*y.shape, 1)

    def module(self, theta: Tensor) -> nn.Module:
        """Return the module of the fixed model."""
        return self._model.module(self._fixed)

    def squared_norm(self, theta: Tensor) -> Tensor:
        """Return that of the fixed model, as often as asked."""
        return self._model.squared_norm(self._fixed[None]).expand(len(theta))

    def numbers_per_row(self) -> int:
        """Return that of the model."""
        return self._model.numbers_per_row()

    def digest(self) -> str:
        """Return a digest of the model and its fixed parameters."""
        fixed = self._fixed.cpu().numpy().tobytes()
        return hashlib.sha256(self._model.digest().encode() + fixed).hexdigest()
