"""Building a model from the argument `model` and the public set, and training models on public rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from dpvalue.arrays import Ints
from dpvalue.errors import DpvalueError, require_choice
from dpvalue.models.base import CLASSIFICATION, COLUMN_MODELS, KINDS, REGRESSION, TASK_OF, TREES, Model, ModelFactory
from dpvalue.models.cnn import PaperCNN
from dpvalue.models.forest import Unsplit
from dpvalue.models.linear import Linear
from dpvalue.models.network import Network
from dpvalue.streams import Purpose, stream

Builder = Callable[[Tensor, int, str, torch.dtype, torch.device], Model]
"""From an example row (public), the number of outputs, the task, a type and a device to a model."""


def register_model(name: str, task: str, build: Builder, columns: bool = True) -> None:
    """Add a model, which is then known by its name; raises for a name that is taken or is no word in lower case.

    Args:
        name: what users call it.
        task: what it is for.
        build: makes it for rows like an example.
        columns: whether it takes rows of columns, as files hold them.
    """
    if name in ("auto", "custom", *KINDS) or not (name.isidentifier() and name.islower()):
        raise DpvalueError(f"the name of a model must be a new lower-case word, got {name!r}")
    require_choice("task", task, (CLASSIFICATION, REGRESSION))
    TASK_OF[name], _BUILDERS[name] = task, build
    if columns:
        COLUMN_MODELS.append(name)


def task_of(model: str | ModelFactory, by_metric: str | None, float_labels: bool) -> str:
    """Return the task: that of a named model; for a factory that of the metric, else by the type of public labels."""
    if isinstance(model, str):
        require_choice("model", model, KINDS)
        return TASK_OF[model]
    if isinstance(model, nn.Module):
        raise DpvalueError("model must be a callable that returns an nn.Module, got a module: pass lambda: module")
    if not callable(model):
        raise DpvalueError(
            f"model must be one of {', '.join(KINDS)}, or a callable returning an nn.Module; got {model!r}"
        )
    return by_metric or (REGRESSION if float_labels else CLASSIFICATION)


def build_model(
    model: str | ModelFactory, task: str, example: Tensor, outputs: int, dtype: torch.dtype, device: torch.device
) -> Model:
    """Return the model for rows like `example` (public) and this many outputs (classes, or 1 for regression)."""
    if isinstance(model, str):
        return _BUILDERS[model](example, outputs, task, dtype, device)
    network = Network(model, task, "custom", example, dtype, device)
    width = network.outputs(network.initial(0)[None], example[None]).shape[-1]
    if width != outputs:
        needed = f"{outputs} (the classes of the public set)" if task == CLASSIFICATION else "1"
        raise DpvalueError(f"model must have {needed} outputs, got {width}")
    try:
        labels = torch.zeros(2, 1, dtype=torch.int64 if task == CLASSIFICATION else dtype, device=device)
        theta = network.initial(0).expand(2, -1)
        network.gradients(theta, example.expand(2, 1, *example.shape), labels, torch.ones(2, 1).to(theta))
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise DpvalueError(f"model cannot be differentiated for several parties at once: {first}") from error
    return network


def _linear(example: Tensor, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> Model:
    return Linear(prod(example.shape), outputs, task, dtype, device)


def _trees(example: Tensor, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> Model:
    return Unsplit(prod(example.shape), outputs, task, dtype, device)


def _cnn(example: Tensor, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> Model:
    if example.dim() != 3 or min(example.shape[1:]) < 4:
        shape = tuple(example.shape)
        raise DpvalueError(f"model 'cnn' needs images (rows, [channels,] height, width) of 4 or more, got {shape}")
    return PaperCNN(example, outputs, task, dtype, device)


_BUILDERS: dict[str, Builder] = {"logistic": _linear, "linear": _linear, "cnn": _cnn, TREES: _trees}

LEARNING_RATE = 0.01

_BATCH = 128

_DECAYS = 0.9, 0.999  # of Adam's means of gradients and of their squares


def train(model: Model, initial: Tensor, x: Tensor, y: Tensor, steps: Sequence[int], seed: int) -> list[Tensor]:
    """Train on public rows with Adam; return the parameters after each of the numbers of `steps` (ascending).

    Args:
        model: the model.
        initial: the initial parameters (size,).
        x: rows, as returned by `model.inputs`.
        y: labels, as returned by `model.targets`.
        steps: the numbers of steps.
        seed: the seed of the order of the rows.
    """
    return train_together(model, initial, [(x, y)], steps, seed)[0]


def train_together(
    model: Model, initial: Tensor, sets: Sequence[tuple[Tensor, Tensor]], steps: Sequence[int], seed: int
) -> list[list[Tensor]]:
    """Return `train` for each of several sets of rows and labels; all sets are trained in one batch."""
    training = Training(model, initial, sets, seed)
    stages = [training.run_until(step) for step in steps]
    return [list(parameters) for parameters in zip(*stages, strict=True)] or [[] for _ in sets]


class Training:
    """Training of one model on each of several sets of rows, in one batch and in stages.

    It is for small models, for which a step of many takes little longer than a step of one. A set with fewer rows than
    a batch is padded with rows of weight 0. Arguments as in `train`.
    """

    def __init__(self, model: Model, initial: Tensor, sets: Sequence[tuple[Tensor, Tensor]], seed: int) -> None:
        counts = [len(x) for x, _ in sets]
        self.step = 0
        self._model, self._theta = model, initial.repeat(len(sets), 1)
        self._x, self._y = (torch.cat(parts) for parts in zip(*sets, strict=True))
        self._starts = np.cumsum([0, *counts[:-1]])[:, None]
        width = min(_BATCH, max(counts))
        # Sets of equal size use the same order of rows.
        self._batches = {count: _batches(stream(seed, Purpose.TRAINING), count, width) for count in set(counts)}
        self._counts = counts
        self._weights = initial.new_zeros(len(sets), width)
        for row, count in zip(self._weights, counts, strict=True):
            row[: min(width, count)] = 1 / min(width, count)
        self._mean, self._square = torch.zeros_like(self._theta), torch.zeros_like(self._theta)
        self._gradients = self._linear_gradients() if isinstance(model, Linear) else self._any_gradients

    def run_until(self, step: int) -> list[Tensor]:
        """Train up to this number of steps in total; return the parameters of each set."""
        mean, square = self._mean, self._square
        for rows in self._draw_rows(step - self.step):
            self.step += 1
            gradient = self._gradients(rows)
            # Adam in four lines: importing torch.optim would take longer than the training.
            mean.lerp_(gradient, 1 - _DECAYS[0])
            square.lerp_(gradient.square(), 1 - _DECAYS[1])
            size = (square / (1 - _DECAYS[1] ** self.step)).sqrt_().add_(1e-8)
            self._theta.addcdiv_(mean, size, value=-LEARNING_RATE / (1 - _DECAYS[0] ** self.step))
        return list(self._theta.clone())

    def _draw_rows(self, steps: int) -> Iterator[Tensor]:
        """Yield the rows (sets, batch) of each of the next steps."""
        width = self._weights.shape[1]
        draws = {count: [next(batches) for _ in range(steps)] for count, batches in self._batches.items()}
        by_set = [np.array(draws[count], dtype=np.int64).reshape(steps, width) for count in self._counts]
        yield from torch.from_numpy(self._starts + np.stack(by_set, axis=1)).to(self._x.device)

    def _any_gradients(self, rows: Tensor) -> Tensor:
        return self._model.gradients(self._theta, self._x[rows], self._y[rows], self._weights)

    def _linear_gradients(self) -> Callable[[Tensor], Tensor]:
        """The gradient function for linear models, with outputs (sets, outputs, rows): a faster layout."""
        weights, (count, width) = self._weights.unsqueeze(1), self._weights.shape
        features = self._x.shape[1]
        table = torch.cat([self._x, self._y.view(len(self._x), -1)], dim=1)
        batch = table.new_empty(count * width, table.shape[1])
        x, y = batch.view(count, width, -1).tensor_split([features], dim=2)
        columns, labels, matrix = x.transpose(1, 2), y.transpose(1, 2), self._theta.view(count, -1, features)
        regression = self._model.task == REGRESSION

        def gradients(rows: Tensor) -> Tensor:
            torch.index_select(table, 0, rows.view(-1), out=batch)
            outputs = torch.bmm(matrix, columns)
            residuals = outputs.sub_(labels).mul_(2) if regression else outputs.softmax(1).sub_(labels)
            return torch.bmm(residuals.mul_(weights), x).view(count, -1)

        return gradients


def _batches(generator: np.random.Generator, rows: int, width: int) -> Iterator[Ints]:
    """Yield the rows (width,) of each step: batches of random orders of all rows, without end.

    The incomplete last batch of an order is dropped. With fewer rows than `width`, the batch is padded with row 0.
    """
    batch = min(width, rows)
    while True:
        order = generator.permutation(rows)
        for first in range(0, rows - batch + 1, batch):
            yield order[first : first + batch] if batch == width else np.append(order, np.zeros(width - batch, int))


_RIDGES = tuple(10.0**exponent for exponent in range(-4, 4))  # per row, for columns of variance 1


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """Return the parameters (features + 1,) of a linear regression with the ridge of least leave-one-out error.

    Columns are centred and scaled, so that the fit does not depend on units; the bias is not penalised.

    Args:
        x: rows with a column of ones at the end, as returned by `Linear.inputs`.
        y: labels (rows, 1), as returned by `Linear.targets`.
    """
    features, labels = x[:, :-1].to(torch.float64), y[:, 0].to(torch.float64)
    count, means, spread = len(features), features.mean(0), features.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    mean = labels.mean()
    left, values, right = torch.linalg.svd((features - means) / spread, full_matrices=False)
    along = left.T @ (labels - mean)
    best, least = torch.zeros_like(values), float("inf")
    for strength in _RIDGES:
        shrink = values.square() / (values.square() + strength * count)
        leverage = left.square() @ shrink + 1 / count  # the weight of a row's label in its own prediction
        residuals = (labels - mean - left @ (shrink * along)) / (1 - leverage).clamp_min(1e-6)
        error = float(residuals.square().mean())
        if error < least:
            best, least = shrink / values.clamp_min(1e-12) * along, error
    weights = (right.T @ best) / spread
    return torch.cat([weights, (mean - weights @ means)[None]]).to(x)
