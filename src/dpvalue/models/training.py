"""Training a model on public rows, for as long as wanted: what a public model, and the way to it, are made from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpvalue.models import Model
from dpvalue.streams import Purpose, stream

LEARNING_RATE = 0.01
_BATCH = 128
_DECAYS = 0.9, 0.999  # of Adam's means of gradients and of their squares


def train(model: Model, initial: Tensor, x: Tensor, y: Tensor, steps: Sequence[int], seed: int) -> list[Tensor]:
    """Return the parameters after each of the numbers of `steps` (ascending) of Adam on public rows.

    Args:
        model: what is trained.
        initial: where it starts (size,).
        x: rows, as `model.inputs` makes them.
        y: their labels, as `model.targets` makes them.
        steps: after how many steps parameters are kept.
        seed: of the order of the rows.
    """
    return train_together(model, initial, [(x, y)], steps, seed)[0]


def train_together(
    model: Model, initial: Tensor, sets: Sequence[tuple[Tensor, Tensor]], steps: Sequence[int], seed: int
) -> list[list[Tensor]]:
    """Return what `train` returns for each of several sets of rows and labels, all of them trained side by side.

    For small models, of which a step of many takes little longer than a step of one. A set with fewer rows than a batch
    is filled up with rows that do not count.
    """
    generators = [stream(seed, Purpose.TRAINING) for _ in sets]
    batches = [min(_BATCH, len(x)) for x, _ in sets]
    starts = np.cumsum([0, *(len(x) for x, _ in sets[:-1])])
    x, y = (torch.cat(parts) for parts in zip(*sets, strict=True))
    weights = initial.new_zeros(len(sets), max(batches))
    for row, batch in zip(weights, batches, strict=True):
        row[:batch] = 1 / batch
    theta = initial.repeat(len(sets), 1)
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    orders = [np.empty(0, dtype=np.int64) for _ in sets]
    stages: list[list[Tensor]] = [[] for _ in sets]
    for step in range(1, max(steps, default=0) + 1):
        drawn = np.repeat(starts[:, None], max(batches), axis=1)
        for place, batch in enumerate(batches):
            if len(orders[place]) < batch:
                orders[place] = generators[place].permutation(len(sets[place][0]))
            drawn[place, :batch] += orders[place][:batch]
            orders[place] = orders[place][batch:]
        rows = torch.from_numpy(drawn).to(x.device)
        gradient = model.gradients(theta, x[rows], y[rows], weights)
        # Adam in four lines: torch.optim takes longer to import than all of this to run.
        mean.lerp_(gradient, 1 - _DECAYS[0])
        square.lerp_(gradient.square(), 1 - _DECAYS[1])
        size = (square / (1 - _DECAYS[1] ** step)).sqrt_().add_(1e-8)
        theta.sub_(mean / size, alpha=LEARNING_RATE / (1 - _DECAYS[0] ** step))
        if step in steps:
            for reached, parameters in zip(stages, theta, strict=True):
                reached.append(parameters.clone())
    return stages
