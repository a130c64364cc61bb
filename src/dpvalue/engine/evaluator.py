"""Evaluation of the utility of many models at once, and walks over a fixed table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.utility import CustomMetric, PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.models import REGRESSION, Linear, Model

_COPIES = 4  # of the outputs, in double precision, that a metric makes of them


class Evaluator:
    """The utility of a public set for one model. Means over rows are in float64, as marginals are small differences.

    `slope` is the decrease of the utility per unit of mean loss; 0 if the utility is not a function of the loss.
    """

    def __init__(self, public: PublicSet, model: Model, engine: Engine) -> None:
        self.public, self._model = public, model
        self._x, self._y = model.inputs(public.x), public.y
        self._compiled = False
        self._loss = self._make_loss()
        metric = public.metric
        self._offset, self.slope = (0.0, 0.0) if metric.of_loss is None else metric.of_loss(public.y)
        self.engine, self._share = (
            engine,
            not isinstance(metric.worth, CustomMetric),
        )  # a caller's function has its own thread
        copies = 1 if metric.worth is None or metric.largest_only else _COPIES
        self.batch = engine.piece(model.numbers + copies * len(public.x) * model.numbers_per_row(), least=16)

    def compiled(self) -> Evaluator:
        """Return the evaluator in compiled code, if the model has it."""
        if not isinstance(self._model, Linear):
            return self
        other = copy(self)
        other._compiled = True
        other._loss = other._make_loss()
        return other

    def _make_loss(self) -> Callable[[Tensor], Tensor]:
        if self._compiled and isinstance(self._model, Linear):
            return self._model.mean_loss(self._x, self._y, compiled=True)
        return self._model.mean_loss(self._x, self._y)

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the function of the loss, which has no pickle."""
        return {name: part for name, part in vars(self).items() if name != "_loss"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the function of the loss again."""
        vars(self).update(state)
        self._loss = self._make_loss()

    def __call__(self, theta: Tensor) -> Tensor:
        """Return V of each model theta (b, size) as float64 (b,), on the device of theta."""
        return torch.cat(self.engine.map(self._evaluate, theta.split(self.batch), self._share))

    def _evaluate(self, theta: Tensor) -> Tensor:
        if self.public.metric.worth is not None:
            return self.public.metric.worth(self._outputs(theta), self._y)
        loss = self._loss(theta)
        if self.public.l2:
            loss = loss + self.public.l2 * self._model.squared_norm(theta)
        return self._offset - self.slope * loss

    def _outputs(self, theta: Tensor) -> Tensor:
        """The outputs of each model as metrics take them (`dpvalue.data.utility`)."""
        outputs = self._model.outputs(theta, self._x)
        if self.public.metric.largest_only:
            return outputs
        outputs = outputs.to(torch.float64)
        return outputs[..., 0] if self._model.task == REGRESSION else outputs.softmax(-1)


@dataclass(frozen=True)
class Walker:
    """The public part of a walk: model, initial parameters, learning rate and engine."""

    model: Model
    initial: Tensor
    learning_rate: float
    engine: Engine

    def prefixes(self, table: Tensor, permutations: Ints) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield pieces of the walks: the walks, the positions, and the models before and after each position.

        The models have the shape (walks, positions, d); a piece has as many as fit in memory.
        """
        walks, n = permutations.shape
        batch = self.engine.piece(4 * self.model.size, least=2048)
        together, step = max(1, batch // n), min(n, batch)
        for w in range(0, walks, together):
            orders = torch.from_numpy(permutations[w : w + together]).to(table.device)
            model = self.initial.expand(len(orders), 1, -1)
            for p in range(0, n, step):
                parties = orders[:, p : p + step]
                path = torch.cat([model, table[parties].mul_(-self.learning_rate)], dim=1).cumsum_(1)
                yield slice(w, w + len(orders)), slice(p, p + parties.shape[1]), path[:, :-1], path[:, 1:]
                model = path[:, -1:].clone()
