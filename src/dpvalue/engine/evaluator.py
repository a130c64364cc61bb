"""What models are worth: the utility of many parameter vectors at once, in batches that fit."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from dpvalue.data.utility import PublicSet
from dpvalue.engine.base import Engine
from dpvalue.models import Linear, Model


class Evaluator:
    """The utility of a public set for one model; rows are reduced in float64, as a marginal is a small difference."""

    def __init__(self, public: PublicSet, model: Model, engine: Engine) -> None:
        self.public, self._model = public, model
        self._x, self._y = model.inputs(public.x), public.y
        self._loss = model.mean_loss(self._x, self._y)
        self._engine, self._share = engine, not callable(public.metric)
        self.batch = engine.piece(model.numbers + len(public.x) * model.numbers_per_row(), least=16)

    def compiled(self) -> Evaluator:
        """Return the same, in compiled code where there is some for the model."""
        if not isinstance(self._model, Linear):
            return self
        other = copy(self)
        other._loss = self._model.mean_loss(self._x, self._y, compiled=True)
        return other

    def __call__(self, theta: Tensor) -> Tensor:
        """Return V of each model theta (b, size) as float64 (b,), on the device of theta."""
        return torch.cat(self._engine.map(self._evaluate, theta.split(self.batch), self._share))

    def _evaluate(self, theta: Tensor) -> Tensor:
        if callable(self.public.metric):
            worths = [float(self.public.metric(self._model.module(parameters))) for parameters in theta]
            return torch.tensor(worths, dtype=torch.float64, device=theta.device)
        if self.public.metric == "accuracy":
            return (self._model.outputs(theta, self._x).argmax(-1) == self._y).mean(-1, dtype=torch.float64)
        loss = self._loss(theta)
        if self.public.l2:
            loss = loss + self.public.l2 * self._model.squared_norm(theta)
        return -loss
