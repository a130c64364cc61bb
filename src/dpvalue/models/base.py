"""The interface of models: functions of one flat parameter vector, for many vectors at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

ModelFactory = Callable[[], nn.Module]
CLASSIFICATION, REGRESSION = "classification", "regression"
TREES = "trees"
TASK_OF = {"logistic": CLASSIFICATION, "linear": REGRESSION, "cnn": CLASSIFICATION, TREES: CLASSIFICATION}
"""The task of each named model."""
KINDS = TASK_OF.keys()
COLUMN_MODELS = ["logistic", "linear", TREES]
"""The models of rows of columns, as in files: no images. The first of a task is its default."""


class UnitNumbers(Protocol):
    """A function from a row to the `size` numbers that units contribute, clipped and with noise.

    For a model they are the gradient of the row's loss; other methods of valuing have other numbers. `theta` is a batch
    of vectors (b, size), the arguments of the function: parameters of models, or weights.

    `inputs` and `targets` convert rows and labels once. Rows of parties are x (b, r, ...), y (b, r, ...) and weights
    (b, r): a party's numbers are the weighted sum over its r rows (weights 1/count, 0 for padding). The numbers of a
    row are a function of that row, of theta and of public values. An unreadable row is zero and has weight 0.
    """

    size: int
    numbers: int
    """The memory for one vector in use, in numbers: `size`, or more if it is converted."""

    def inputs(self, x: Tensor) -> Tensor:
        """Return features (rows, *shape) in the form that the other methods take."""
        ...

    def targets(self, y: Tensor) -> Tensor:
        """Return labels (rows,) in the form that the other methods take."""
        ...

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums (b, size) of the rows' numbers, item i at theta[i] on the rows of x[i]."""
        ...

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the numbers (b, r, size) of each single row."""
        ...

    def numbers_per_row(self) -> int:
        """Return the approximate number of intermediate numbers of one row."""
        ...

    def digest(self) -> str:
        """Return a digest of everything but theta."""
        ...


class Model(UnitNumbers, Protocol):
    """A model with `size` parameters. `theta` is a batch of parameter vectors (b, size).

    The numbers of a row are the gradient of its loss.
    """

    task: str
    kind: str
    zero_start: bool
    """Whether the initial parameters are zeros; else they are random."""

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return the initial parameters (size,); zeros for linear models, else the factory's own under a seed."""
        ...

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (b, rows, outputs) of each model on the same rows x."""
        ...

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return a function from theta to the mean losses (b,), in float64, on rows x with labels y (rows,)."""
        ...

    def squared_norm(self, theta: Tensor) -> Tensor:
        """Return |parameters|^2 of each model (b,), as float64."""
        ...


def squared_norm(theta: Tensor) -> Tensor:
    """Return the squared lengths (b,) of vectors (b, size), as float64."""
    return theta.to(torch.float64).square().sum(-1)


def row_losses(task: str, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each row: cross-entropy of logits, or squared error; outputs (..., o), y (...)."""
    if task == REGRESSION:
        return (outputs[..., 0] - y) ** 2
    return outputs.logsumexp(-1) - outputs.gather(-1, y.unsqueeze(-1)).squeeze(-1)
