"""Ridge fits of logistic and linear regression on public rows, in batches, and learning curves.

Parameters are a row (weights, bias) per output, as in `Linear`; the bias is penalised like all others.

A learning curve trains on subsets of the public rows and measures the loss on the other rows: with the true labels,
with half and all labels shuffled, and with each record repeated twenty times. So it includes the cost of fitting few,
meaningless or repeated records, which no expansion around a model has.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.models import REGRESSION, Linear
from dpvalue.streams import Purpose, stream

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
        """Return the rows of a public set, on the CPU for any engine: the fits are small."""
        x, y = (part.to("cpu", torch.float64) for part in (model.inputs(public.x), model.targets(public.y)))
        return cls(x, y, model.task == REGRESSION)

    def select(self, index: Tensor) -> Rows:
        """Return a subset of the rows, by mask or indices."""
        return Rows(self.x[index], self.y[index], self.regression)

    @property
    def size(self) -> int:
        """The number of parameters of a model."""
        return self.x.shape[1] * self.y.shape[1]

    @property
    def retraining_ridge(self) -> float:
        """The factor of |theta|^2 / 2 in retraining on the sum of a coalition's losses.

        It matches scikit-learn's C = 1 (alpha = 1). A model of two classes has twice the parameters it needs, and the
        squared error is not halved: both need 2.
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
        """Return losses and residuals together, which is faster than one after the other."""
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

    def curvature(self, theta: Tensor) -> Tensor:
        """Return the Hessian (size, size) of the mean loss at one model."""
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
    """Return the minimiser (size,) of mean loss + ridge / 2 |theta|^2, by Newton's method."""
    theta = rows.x.new_zeros(rows.size)
    penalty = ridge * torch.eye(rows.size).to(rows.x)

    def objective(parameters: Tensor) -> float:
        return float(rows.mean_loss(parameters) + ridge / 2 * parameters.square().sum())

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
    """Return the models (b, size) of retraining on weighted rows, each fit with its own labels.

    Classification uses Nesterov's method, preconditioned by Boehning's bound on the curvature (half of x x').

    Args:
        rows: the features.
        weights: the weight of each row in each fit (b, rows); zero leaves a row out.
        labels: as in `Rows`, for each fit (b, o, rows).
    """
    x, ridge, features = rows.x, rows.retraining_ridge, rows.x.shape[1]
    squares = torch.stack([(x * row_weights[:, None]).T @ x for row_weights in weights])
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
        updated = ahead - gradient @ inverse
        uphill = (gradient * (updated - theta)).sum((1, 2)) > 0
        following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        push = torch.where(uphill, 0.0, (momentum - 1) / following)
        ahead, theta, momentum = updated + push[:, None, None] * (updated - theta), updated, following
    return theta.flatten(1)


_SIZES, _REPEATS = 7, 5

_SHUFFLED = (0.0, 0.5, 1.0)

_COPIES = 20.0

_LEAST = 10

_LAST = 4  # sizes that extrapolation uses


@dataclass(frozen=True, eq=False)
class Curves:
    """Mean losses on held-out rows after training on n records, with the utility's penalty on parameters.

    Attributes:
        sizes: numbers of records (s,).
        losses: mean losses (4, s): with no, half and all labels shuffled, and with copies.
        slopes: slope of each curve in 1 / size, beyond the last size (4,).
        no_data_loss: loss of the model without data.
    """

    sizes: Floats
    losses: Floats
    slopes: Floats
    no_data_loss: float

    def __call__(self, records: Floats, meaningless: Floats, copies: Floats) -> Floats:
        """Return the mean losses (c,) after training.

        Args:
            records: number of distinct records (c,).
            meaningless: share of meaningless labels (c,).
            copies: number of copies of each record (c,).
        """
        inside = np.concatenate([[0.0], np.log(self.sizes)])
        interpolated = np.stack(
            [np.interp(np.log(np.maximum(records, 1)), inside, [self.no_data_loss, *row]) for row in self.losses]
        )
        last = self.sizes[-1]
        beyond = self.losses[:, -1:] + self.slopes[:, None] * (1 / np.maximum(records, 1) - 1 / last)
        curves = np.where(records > last, beyond, interpolated)
        share = np.clip(meaningless, 0, 1.5) * 2
        lower = np.clip(share.astype(np.int64), 0, len(_SHUFFLED) - 2)
        column = np.arange(len(records))
        mixed = curves[lower, column] + (share - lower) * (curves[lower + 1, column] - curves[lower, column])
        return np.asarray(mixed + (curves[-1] - curves[0]) * np.log(np.maximum(copies, 1)) / log(_COPIES))


@dataclass(frozen=True, eq=False)
class CurveTask:
    """The fits of one curve: the arguments of `fit_many`, and the penalty of the utility."""

    rows: Rows
    weights: Tensor
    labels: Tensor
    l2: float


def held_out_losses(task: CurveTask) -> Floats:
    """Return the mean loss of each fit on the rows that it was not given (b,)."""
    theta = fit_many(task.rows, task.weights, task.labels)
    held_out = (task.weights == 0).to(task.weights)
    means = (task.rows.losses(task.rows.outputs(theta)) * held_out).sum(1) / held_out.sum(1)
    return np.asarray((means + task.l2 * theta.square().sum(1)).cpu().numpy())


def learning_curves(rows: Rows, seed: int, engine: Engine, l2: float = 0.0) -> Curves:
    """Return the learning curves of public rows, for a utility with the penalty l2 |theta|^2."""
    generator, count = stream(seed, Purpose.LEARNING_CURVES), len(rows.x)
    sizes = np.unique(np.geomspace(min(_LEAST, count // 2), max(0.8 * count, 1), _SIZES).astype(int))
    ways = [*((share, 1.0) for share in _SHUFFLED), (0.0, _COPIES)]
    tasks = (_curve_task(rows, np.repeat(sizes, _REPEATS), *way, l2, generator) for way in ways)
    losses = [means.reshape(len(sizes), _REPEATS).mean(1) for means in engine.tasks(held_out_losses, tasks)]
    table = np.array(losses)
    no_data_loss = float(rows.mean_loss(rows.x.new_zeros(rows.size)))
    return Curves(sizes.astype(np.float64), table, np.array([_slope(sizes, row) for row in table]), no_data_loss)


def _curve_task(
    rows: Rows, sizes: Ints, shuffled: float, copies: float, l2: float, generator: np.random.Generator
) -> CurveTask:
    """Draw so many rows for each fit, of which a share have shuffled labels."""
    count = len(rows.x)
    weights, labels = [], []
    for size in sizes:
        members = generator.permutation(count)[:size]
        shuffled_rows = members[generator.random(size) < shuffled]
        others = torch.from_numpy(generator.permutation(count)[: len(shuffled_rows)])
        label = rows.y.T.clone()
        label[:, torch.from_numpy(shuffled_rows)] = rows.y.T[:, others]
        weight = torch.zeros(count, dtype=torch.float64)
        weight[torch.from_numpy(members)] = copies
        weights.append(weight)
        labels.append(label)
    return CurveTask(rows, torch.stack(weights).to(rows.x), torch.stack(labels), l2)


def _slope(sizes: Floats, losses: Floats) -> float:
    """The slope of the end of a curve in 1 / size; 0 if more records do not help."""
    last_sizes, tail = np.asarray(sizes[-_LAST:], dtype=np.float64), losses[-_LAST:]
    if len(last_sizes) < 2:
        return 0.0
    weights = np.sqrt(last_sizes)
    design = np.stack([np.ones(len(last_sizes)), 1 / last_sizes], axis=1) * weights[:, None]
    return max(float(np.linalg.lstsq(design, tail * weights, rcond=None)[0][1]), 0.0)
