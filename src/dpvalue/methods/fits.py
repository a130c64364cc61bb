"""Ridge fits of logistic and linear regression on public rows, many at once, and learning curves.

Parameters are a row (weights, bias) per output, as `Linear` has them, and the bias is penalised like all others.

Subsets of public rows are trained on, and judged by the rows that are left: as they are, with half and with all labels
shuffled, and with each record repeated twenty times. This knows what no expansion around a model does: what a fit to
few, to meaningless or to repeated records costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.data.utility import PublicSet
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


_SIZES, _REPEATS = 7, 5

_SHUFFLED = (0.0, 0.5, 1.0)

_COPIES = 20.0

_LEAST = 10

_LAST = 4  # of the sizes, from which the curve goes on


@dataclass(frozen=True, eq=False)
class Curves:
    """Mean losses on rows that were not trained on, with the utility's penalty of parameters.

    Attributes:
        sizes: numbers of records (s,).
        losses: after training on so many (4, s): with no label, half and all of them shuffled, and with copies.
        slopes: of each curve in 1 / size, beyond the last size (4,).
        nothing: the loss of the model without data.
    """

    sizes: Floats
    losses: Floats
    slopes: Floats
    nothing: float

    def __call__(self, records: Floats, meaningless: Floats, copies: Floats) -> Floats:
        """Return the mean loss after training on so many different records.

        Args:
            records: how many different ones (c,).
            meaningless: the part of labels without meaning (c,).
            copies: how often each is repeated (c,).
        """
        inside = np.concatenate([[0.0], np.log(self.sizes)])
        known = np.stack(
            [np.interp(np.log(np.maximum(records, 1)), inside, [self.nothing, *row]) for row in self.losses]
        )
        last = self.sizes[-1]
        beyond = self.losses[:, -1:] + self.slopes[:, None] * (1 / np.maximum(records, 1) - 1 / last)
        curves = np.where(records > last, beyond, known)
        share = np.clip(meaningless, 0, 1.5) * 2
        lower = np.clip(share.astype(np.int64), 0, len(_SHUFFLED) - 2)
        place = np.arange(len(records))
        mixed = curves[lower, place] + (share - lower) * (curves[lower + 1, place] - curves[lower, place])
        return np.asarray(mixed + (curves[-1] - curves[0]) * np.log(np.maximum(copies, 1)) / log(_COPIES))


def learning_curves(rows: Rows, seed: int, l2: float = 0.0) -> Curves:
    """Return the learning curves of public rows, for a utility that subtracts l2 |theta|^2."""
    generator, count = stream(seed, Purpose.LEARNING_CURVES), len(rows.x)
    sizes = np.unique(np.geomspace(min(_LEAST, count // 2), max(0.8 * count, 1), _SIZES).astype(int))
    losses = []
    for shuffled, copies in [*((share, 1.0) for share in _SHUFFLED), (0.0, _COPIES)]:
        weights, labels = [], []
        for size in np.repeat(sizes, _REPEATS):
            chosen = generator.permutation(count)[:size]
            other = chosen[generator.random(size) < shuffled]
            label = rows.y.T.clone()
            label[:, torch.from_numpy(other)] = rows.y.T[
                :, torch.from_numpy(generator.permutation(count)[: len(other)])
            ]
            weight = torch.zeros(count, dtype=torch.float64)
            weight[torch.from_numpy(chosen)] = copies
            weights.append(weight)
            labels.append(label)
        counted = torch.stack(weights).to(rows.x)
        theta = fit_many(rows, counted, torch.stack(labels))
        left = (counted == 0).to(rows.x)
        means = (rows.losses(rows.outputs(theta)) * left).sum(1) / left.sum(1) + l2 * theta.square().sum(1)
        losses.append(means.reshape(len(sizes), _REPEATS).mean(1).cpu().numpy())
    table = np.array(losses)
    nothing = float(rows.mean_loss(rows.x.new_zeros(rows.size)))
    return Curves(sizes.astype(np.float64), table, np.array([_slope(sizes, row) for row in table]), nothing)


def _slope(sizes: Floats, losses: Floats) -> float:
    """The slope of the last part of a curve in 1 / size; none where more records do not help."""
    few, tail = np.asarray(sizes[-_LAST:], dtype=np.float64), losses[-_LAST:]
    if len(few) < 2:
        return 0.0
    weights = np.sqrt(few)
    design = np.stack([np.ones(len(few)), 1 / few], axis=1) * weights[:, None]
    return max(float(np.linalg.lstsq(design, tail * weights, rcond=None)[0][1]), 0.0)
