"""Training a model on public rows, for as long as wanted: what a public model, and the way to it, are made from."""

from __future__ import annotations

from collections.abc import Sequence

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
        steps: when to look.
        seed: of the order of the rows.
    """
    generator = stream(seed, Purpose.TRAINING)
    theta = initial.clone()
    mean, square = torch.zeros_like(theta), torch.zeros_like(theta)
    batch = min(_BATCH, len(x))
    weights = torch.full((1, batch), 1 / batch).to(theta)
    order = torch.empty(0, dtype=torch.int64)
    found = []
    for step in range(1, max(steps, default=0) + 1):
        if len(order) < batch:
            order = torch.from_numpy(generator.permutation(len(x)))
        some, order = order[:batch].to(x.device), order[batch:]
        gradient = model.gradients(theta[None], x[some][None], y[some][None], weights)[0]
        # Adam in four lines: torch.optim takes longer to import than all of this to run.
        mean.lerp_(gradient, 1 - _DECAYS[0])
        square.lerp_(gradient.square(), 1 - _DECAYS[1])
        size = (square / (1 - _DECAYS[1] ** step)).sqrt_().add_(1e-8)
        theta.sub_(mean / size, alpha=LEARNING_RATE / (1 - _DECAYS[0] ** step))
        if step in steps:
            found.append(theta.clone())
    return found
