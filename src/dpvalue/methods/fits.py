"""Ridge fits of logistic and linear regression on public rows, in float64: one at a time, or many subsets at once.

Parameters are a row (weights, bias) per output, as `Linear` has them, and the bias is penalised like all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.data.utility import PublicSet
from dpvalue.models import REGRESSION, Linear

_MOST_STEPS, _CLOSE = 60, 1e-9
_NESTEROV_STEPS = 80


@dataclass(frozen=True, eq=False)
class Rows:
    """Public rows as a linear model takes them.

    Attributes:
        x: features and a constant (rows, f).
        y: one-hot labels, or a column of numbers (rows, o).
        regression: whether labels are numbers.
    """

    x: Tensor
    y: Tensor
    regression: bool

    @classmethod
    def of(cls, model: Linear, public: PublicSet) -> Rows:
        """Return the rows of a public set, on the CPU whatever the engine: what is made of them is small."""
        x, y = (part.to("cpu", torch.float64) for part in (model.inputs(public.x), model.targets(public.y)))
        return cls(x, y, model.task == REGRESSION)

    def take(self, which: Tensor) -> Rows:
        """Return some of the rows, by a mask or by numbers."""
        return Rows(self.x[which], self.y[which], self.regression)

    @property
    def size(self) -> int:
        """The number of parameters of a model."""
        return self.x.shape[1] * self.y.shape[1]

    @property
    def retraining_ridge(self) -> float:
        """What |theta|^2 / 2 is multiplied by when a coalition is trained on the sum of its records' losses.

        scikit-learn's C = 1 (alpha = 1): a model of two classes has twice the parameters it needs, and the squared
        error is not halved, so that both take 2.
        """
        return 2.0 if self.regression or self.y.shape[1] == 2 else 1.0

    def outputs(self, theta: Tensor) -> Tensor:
        """Return the outputs (..., o, rows) of models (..., size)."""
        outputs: Tensor = theta.unflatten(-1, (self.y.shape[1], -1)) @ self.x.T
        return outputs

    def losses(self, outputs: Tensor) -> Tensor:
        """Return the loss of each row (..., rows)."""
        if self.regression:
            return (outputs - self.y.T).square().sum(-2)
        return outputs.logsumexp(-2) - (outputs * self.y.T).sum(-2)

    def residuals(self, outputs: Tensor) -> Tensor:
        """Return the derivatives of the row losses by the outputs (..., o, rows)."""
        return 2 * (outputs - self.y.T) if self.regression else outputs.softmax(-2) - self.y.T

    def losses_and_residuals(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both at once, which takes less time."""
        if self.regression:
            return self.losses(outputs), self.residuals(outputs)
        logarithms = outputs.log_softmax(-2)
        return -(logarithms * self.y.T).sum(-2), logarithms.exp() - self.y.T

    def mean_loss(self, theta: Tensor) -> Tensor:
        """Return the mean loss of each model (...)."""
        return self.losses(self.outputs(theta)).mean(-1)

    def mean_gradient(self, theta: Tensor) -> Tensor:
        """Return the gradients (..., size) of the mean loss."""
        return (self.residuals(self.outputs(theta)) @ self.x).flatten(-2) / len(self.x)

    def row_gradients(self, theta: Tensor) -> Tensor:
        """Return the gradient of each row's loss (rows, size) at one model."""
        residuals = self.residuals(self.outputs(theta))
        return (residuals.T.unsqueeze(-1) * self.x.unsqueeze(-2)).flatten(1)

    def curvature(self, theta: Tensor) -> Tensor:
        """Return the second derivatives (size, size) of the mean loss at one model."""
        outputs, features = self.y.shape[1], self.x.shape[1]
        if self.regression:
            return 2 * self.x.T @ self.x / len(self.x)
        chances = self.outputs(theta).softmax(-2)
        blocks = self.x.new_zeros(outputs, features, outputs, features)
        for first in range(outputs):
            for second in range(first, outputs):
                spread = chances[first] * (float(first == second) - chances[second])
                blocks[first, :, second, :] = (self.x * spread[:, None]).T @ self.x / len(self.x)
                blocks[second, :, first, :] = blocks[first, :, second, :]
        return blocks.reshape(outputs * features, -1)


def fit(rows: Rows, ridge: float) -> Tensor:
    """Return the model (size,) of the least mean loss + ridge / 2 |theta|^2, by Newton's steps."""
    theta = rows.x.new_zeros(rows.size)
    penalty = ridge * torch.eye(rows.size).to(rows.x)

    def objective(at: Tensor) -> float:
        return float(rows.mean_loss(at) + ridge / 2 * at.square().sum())

    for _ in range(_MOST_STEPS):
        gradient = rows.mean_gradient(theta) + ridge * theta
        if float(gradient.abs().max()) < _CLOSE:
            break
        step = torch.linalg.solve(rows.curvature(theta) + penalty, gradient)
        length, now = 1.0, objective(theta)
        while objective(theta - length * step) > now and length > 1e-3:
            length /= 2
        theta = theta - length * step
    return theta


def fit_many(rows: Rows, weights: Tensor, labels: Tensor) -> Tensor:
    """Return the models (b, size) that retraining on weighted rows gives, each with labels of its own.

    Args:
        rows: the features.
        weights: how often each row counts (b, rows); zero for those that are left out.
        labels: as in `Rows`, for each fit (b, o, rows).

    Classification by Nesterov's steps, preconditioned by a bound on the curvature (half of x x', Boehning).
    """
    x, ridge, features = rows.x, rows.retraining_ridge, rows.x.shape[1]
    squares = torch.stack([(x * own[:, None]).T @ x for own in weights])
    identity = torch.eye(features).to(x)
    if rows.regression:
        slopes = 2 * (weights * labels[:, 0]) @ x
        solved: Tensor = torch.linalg.solve(2 * squares + ridge * identity, slopes)
        return solved
    inverse = torch.linalg.inv(0.5 * squares + ridge * identity)
    theta = x.new_zeros(len(weights), labels.shape[1], features)
    ahead, momentum = theta, 1.0
    for _ in range(_NESTEROV_STEPS):
        residuals = ((ahead @ x.T).softmax(1) - labels) * weights[:, None]
        gradient = residuals @ x + ridge * ahead
        moved = ahead - gradient @ inverse
        uphill = (gradient * (moved - theta)).sum((1, 2)) > 0
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        push = torch.where(uphill, 0.0, (momentum - 1) / following)
        ahead, theta, momentum = moved + push[:, None, None] * (moved - theta), moved, following
    return theta.flatten(1)
