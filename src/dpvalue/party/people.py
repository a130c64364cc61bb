"""Mean gradients of persons with any number of rows each.

The number and the positions of a person's rows are private. A matrix product sums in an order that depends on the shape
of the matrices and on a row's position, which changes the last bits of the sums. Rounded to a grid, such a change would
appear in the releases of other persons. So every row is a batch of its own here, and sums are computed term by term in
one order: the bits of a row's gradient do not depend on its position or on other rows. Models without a closed form are
called with one row at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvalue.data.rows import PrivateRows, PublicRows
from dpvalue.engine.engines import Engine
from dpvalue.models import UnitNumbers
from dpvalue.models.derived import DescriptionModel, Score, SubspaceLinear
from dpvalue.models.forest import LeafOnes
from dpvalue.models.headed import HeadOnTrunk
from dpvalue.models.linear import Linear


def lone_inputs(model: UnitNumbers, x: Tensor) -> Tensor:
    """Return features (rows, *shape) in the form for `lone_gradients`: `model.inputs`, row by row."""
    if isinstance(model, LeafOnes):
        return model.inputs(x)  # comparisons have no last bits
    if isinstance(model, Score):
        return lone_inputs(model.line, x)
    if isinstance(model, SubspaceLinear):
        rows = lone_inputs(model.linear, x)
        return _dot(rows[:, None, None, :], model.directions[None])
    if (isinstance(model, Linear) and not isinstance(model, HeadOnTrunk)) or not len(x):
        return model.inputs(x)  # a column of ones beside the rows
    return torch.cat([model.inputs(row.clone()[None]) for row in x])


def lone_gradients(model: UnitNumbers, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradients (rows, size) of each row's loss at its own model theta (rows, size)."""
    if isinstance(model, LeafOnes):
        return model.ones(x, y, theta)
    if isinstance(model, Score) and isinstance(model.line, SubspaceLinear):
        return model.scores(_lone_outputs(theta, x), y)
    if isinstance(model, DescriptionModel):
        residuals = model.linear.residuals(x[:, 0].clone(), y)
        off = _dot(residuals, residuals).unsqueeze(-1)
        return theta * model.describe(_dot(residuals[:, None, :], x[:, 1:]), off)
    if isinstance(model, SubspaceLinear):
        outputs = _lone_outputs(theta, x)
        return _dot(model.linear.residuals(outputs, y)[:, None, :], x[:, 1:])
    if isinstance(model, Linear):
        matrices = theta.unflatten(1, (model.width, -1))
        residuals = model.residuals(_dot(x[:, None, :], matrices), y)
        return (residuals.unsqueeze(-1) * x.unsqueeze(-2)).flatten(1)
    # Each row is cloned: kernels sum in another order for a row that does not begin at a multiple of 64 bytes.
    parts = zip(theta, x, y, strict=True)
    gradients = [
        model.record_gradients(t.clone()[None], r.clone()[None, None], c.clone()[None, None])[0, 0] for t, r, c in parts
    ]
    return torch.stack(gradients) if gradients else theta[:0]


def _lone_outputs(theta: Tensor, x: Tensor) -> Tensor:
    """The outputs (rows, o) of linear models moved along vectors, for rows of `SubspaceLinear.inputs`."""
    return x[:, 0] + _dot(theta[:, None, :], x[:, 1:].transpose(1, 2))


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """The inner products over the last dimension, summed term by term."""
    total = left[..., 0] * right[..., 0]
    for place in range(1, left.shape[-1]):
        total = total + left[..., place] * right[..., place]
    return total.contiguous()


class People:
    """The rows of persons behind the model; a person's gradient does not depend on other persons' rows."""

    def __init__(self, model: UnitNumbers, rows: PrivateRows | PublicRows, engine: Engine) -> None:
        assert rows.persons is not None
        self._model, self._rows, self._starts = model, rows, rows.persons
        self._piece = engine.piece(8 * model.numbers + 4 * model.numbers_per_row() + rows.x.shape[1:].numel(), least=1)
        self._x = torch.cat([lone_inputs(model, piece) for piece in rows.x.split(self._piece)])
        self._y = model.targets(rows.y)
        everybody = torch.arange(len(self._starts) - 1, device=rows.x.device)
        self._person = torch.repeat_interleave(everybody, self._starts.diff())

    def gradients(self, theta: Tensor, parties: Tensor, first: int, width: int) -> Tensor:
        """Return the mean gradients (b, width, d) of each person's rows, at the models theta (b, d) of the parties.

        They are those of `width` persons of each party, from person `first` on. A row with a non-finite gradient is
        left out. A person without a usable row, and a place without a person, are NaN.
        """
        ends = self._rows.offsets[parties + 1]
        lowest = torch.minimum(self._rows.offsets[parties] + first, ends)
        begin, counts = self._starts[lowest], self._starts[torch.minimum(lowest + width, ends)] - self._starts[lowest]
        place = torch.repeat_interleave(torch.arange(len(parties), device=parties.device), counts)
        row = torch.arange(len(place), device=parties.device) - torch.repeat_interleave(
            counts.cumsum(0) - counts - begin, counts
        )
        means = theta.new_zeros(len(parties) * width, theta.shape[-1])
        finite_share = theta.new_zeros(len(means), 1)
        for rows, own in zip(row.split(self._piece), place.split(self._piece), strict=True):
            gradients = lone_gradients(self._model, theta[own], self._x[rows], self._y[rows])
            share = self._rows.weights[rows].unsqueeze(-1)
            finite = gradients.isfinite().all(-1, keepdim=True)
            person = own * width + self._person[rows] - lowest[own]
            add_in_order(means, person, torch.where(finite, gradients, 0.0) * share)
            add_in_order(finite_share, person, finite * share)
        return torch.where(finite_share > 0, means, torch.nan).unflatten(0, (len(parties), width))  # type: ignore[no-any-return]


def add_in_order(to: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows to the rows `index` of `to`, in place and in order.

    On a CPU `index_add_` does this; on a GPU it adds rows with the same index in any order.
    """
    if to.is_cuda:
        add_by_turns(to, index, rows)
    else:
        to.index_add_(0, index, rows)


def add_by_turns(to: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add the first row of each index, then the second, and so on, so that no index repeats in a step."""
    ordered, order = index.sort(stable=True)
    turn = torch.empty_like(index)
    turn[order] = torch.arange(len(index), device=index.device) - torch.searchsorted(ordered, ordered)
    for number in range(int(turn.max()) + 1 if len(turn) else 0):
        rows_of_turn = (turn == number).nonzero().squeeze(-1)
        to.index_add_(0, index[rows_of_turn], rows[rows_of_turn])
