"""The mean gradients of persons, each of whom may have any number of rows.

How many rows a person has is private, and so is where they stand. Sums of floating point numbers have other last bits
when the same row stands elsewhere in a matrix product, and those bits, rounded on a grid, would be other people's
releases. So every row is a batch of its own here: its gradient has the same bits wherever it stands, and whoever else
is there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvalue.data.rows import PersonRows
from dpvalue.engine.local import Local
from dpvalue.models import Model
from dpvalue.models.lone import lone_gradients, lone_inputs


class People:
    """The rows of persons behind the model; what a person's rows make does not depend on anybody else's."""

    def __init__(self, model: Model, rows: PersonRows, engine: Local) -> None:
        self._model, self._rows = model, rows
        self._slots = max(1, int(rows.units.max()))
        self._piece = engine.piece(8 * model.numbers + 4 * model.numbers_per_row() + rows.x.shape[1:].numel(), least=1)
        self._x = torch.cat([lone_inputs(model, some) for some in rows.x.split(self._piece)])
        self._y = model.targets(rows.y)
        self._starts = torch.searchsorted(rows.party, torch.arange(rows.n + 1, device=rows.party.device))

    def gradients(self, theta: Tensor, who: Tensor) -> Tensor:
        """Return the mean gradients (b, persons, d) of each person's rows, at the models theta (b, d) of the parties.

        One bad row does not silence a person's others. A person without a good one, and a place without a person, are
        NaN.
        """
        first, last = self._starts[who], self._starts[who + 1]
        counts = last - first
        place = torch.repeat_interleave(torch.arange(len(who), device=who.device), counts)
        row = torch.arange(len(place), device=who.device) - torch.repeat_interleave(
            counts.cumsum(0) - counts - first, counts
        )
        means = theta.new_zeros(len(who) * self._slots, theta.shape[-1])
        good = theta.new_zeros(len(means), 1)
        for some, own in zip(row.split(self._piece), place.split(self._piece), strict=True):
            found = lone_gradients(self._model, theta[own], self._x[some], self._y[some])
            share = self._rows.share[some].unsqueeze(-1)
            finite = found.isfinite().all(-1, keepdim=True)
            person = own * self._slots + self._rows.slot[some]
            add_in_order(means, person, torch.where(finite, found, 0.0) * share)
            add_in_order(good, person, finite * share)
        found_means: Tensor = torch.where(good > 0, means, torch.nan).unflatten(0, (len(who), self._slots))
        return found_means


def add_in_order(to: Tensor, index: Tensor, rows: Tensor) -> None:
    """Add rows to those of `to` that the index names, in place, one after the other.

    On a CPU that is what `index_add_` does; on a GPU it adds in any order where an index repeats.
    """
    if to.is_cuda:
        add_by_turns(to, index, rows)
    else:
        to.index_add_(0, index, rows)


def add_by_turns(to: Tensor, index: Tensor, rows: Tensor) -> None:
    """Do the same with the first row of each index, then with the second, and so on: no index repeats in a turn."""
    ordered, order = index.sort(stable=True)
    turn = torch.empty_like(index)
    turn[order] = torch.arange(len(index), device=index.device) - torch.searchsorted(ordered, ordered)
    for number in range(int(turn.max()) + 1 if len(turn) else 0):
        now = (turn == number).nonzero().squeeze(-1)
        to.index_add_(0, index[now], rows[now])
