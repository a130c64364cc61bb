"""Gradients of single rows that have the same bits wherever a row stands in a batch, and whoever else is in it.

A matrix product adds in an order that depends on the shape of the matrices and on a row's place in them. Where that
must not be (`dpvalue.releasing.people`), sums are made one term after the other, in the same order for every row;
models without a closed form are called with one row at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvalue.models.base import UnitNumbers
from dpvalue.models.described import Described
from dpvalue.models.headed import Headed
from dpvalue.models.linear import Linear
from dpvalue.models.screening import Score
from dpvalue.models.subspace import ProjectedLinear


def lone_inputs(model: UnitNumbers, x: Tensor) -> Tensor:
    """Return features (rows, *shape) in the form that `lone_gradients` takes: `model.inputs`, row by row."""
    if isinstance(model, Score):
        return lone_inputs(model.line, x)
    if isinstance(model, ProjectedLinear):
        rows = lone_inputs(model.linear, x)
        return _dot(rows[:, None, None, :], model.directions[None])
    if (isinstance(model, Linear) and not isinstance(model, Headed)) or not len(x):
        return model.inputs(x)  # a column of ones beside the rows
    return torch.cat([model.inputs(row.clone()[None]) for row in x])


def lone_gradients(model: UnitNumbers, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradients (rows, size) of each row's loss at its own model theta (rows, size)."""
    if isinstance(model, Score) and isinstance(model.line, ProjectedLinear):
        return model.scores(_lone_outputs(theta, x), y)
    if isinstance(model, Described):
        residuals = model.linear.residuals(x[:, 0].clone(), y)
        off = _dot(residuals, residuals).unsqueeze(-1)
        return theta * model.described(_dot(residuals[:, None, :], x[:, 1:]), off)
    if isinstance(model, ProjectedLinear):
        outputs = _lone_outputs(theta, x)
        return _dot(model.linear.residuals(outputs, y)[:, None, :], x[:, 1:])
    if isinstance(model, Linear):
        matrices = theta.unflatten(1, (model.width, -1))
        residuals = model.residuals(_dot(x[:, None, :], matrices), y)
        return (residuals.unsqueeze(-1) * x.unsqueeze(-2)).flatten(1)
    # In memory of its own: kernels add in another order where a row does not begin at a multiple of 64 bytes.
    parts = zip(theta, x, y, strict=True)
    gradients = [
        model.record_gradients(t.clone()[None], r.clone()[None, None], c.clone()[None, None])[0, 0] for t, r, c in parts
    ]
    return torch.stack(gradients) if gradients else theta[:0]


def _lone_outputs(theta: Tensor, x: Tensor) -> Tensor:
    """The outputs (rows, o) of linear models moved along vectors, as `ProjectedLinear.inputs` has rows."""
    return x[:, 0] + _dot(theta[:, None, :], x[:, 1:].transpose(1, 2))


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The products of the last dimensions, added up one term after the other."""
    total = left[..., 0] * right[..., 0]
    for place in range(1, left.shape[-1]):
        total = total + left[..., place] * right[..., place]
    return total.contiguous()
