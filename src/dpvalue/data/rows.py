"""Layout of rows in tensors: flat and sorted by party, so that memory is proportional to the rows.

Only `PrivateRows` holds private rows. `PublicRows` has the same layout for public rows that stand in for parties. For
units "party" and "record", positions and shapes are functions of public numbers. For unit "person" they are private,
and `dpvalue.party.people` keeps results independent of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Bools, Ints
from dpvalue.errors import DpvalueError

_PIECE = 2**20  # numbers


@dataclass(frozen=True, repr=False)  # rows must not be printed
class _Rows:
    """Rows as tensors, sorted by party: party j has the rows offsets[j] to offsets[j + 1].

    A usable row has weight 1/(size of its party). An unusable row is zero and has weight 0. So the weighted loss is the
    mean over the party's rows, in which an unusable row adds zero. The last row is padding, of zeros and of weight 0.

    By person: party j has the persons offsets[j] to offsets[j + 1], and person p the rows persons[p] to persons[p + 1],
    with weight 1/(rows of the person in the party). Unusable rows are left out.
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    offsets: Tensor
    persons: Tensor | None = None

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """The public number of rows, or of persons, of each party."""
        return self.offsets.diff()

    @property
    def has_counted_row(self) -> Tensor:
        """Whether each party has a usable row (n,)."""
        active_up_to = torch.nn.functional.pad(self.weights.gt(0).cumsum(0), (1, 0))[self.offsets]
        return active_up_to.diff() > 0

    def places(self, parties: Tensor, first: int, width: int) -> Tensor:
        """Return the positions of `width` rows, from row `first` on, of each of the parties (b,): (b, width)."""
        place = (self.offsets[parties] + first).unsqueeze(-1) + torch.arange(width, device=parties.device)
        return place.masked_fill_(place >= self.offsets[1:][parties].unsqueeze(-1), len(self.x) - 1)

    @classmethod
    def by_party(
        cls,
        x: Array,
        y: Array,
        sizes: Ints,
        dtype: torch.dtype,
        device: torch.device,
        usable: Bools | None = None,
        order: Ints | None = None,
    ) -> Self:
        """Return rows sorted by party, by `order` if given; all rows are usable if `usable` is None."""
        counts = np.ones(len(x), dtype=bool) if usable is None else usable
        weights = (counts if order is None else counts[order]) / np.repeat(np.maximum(sizes, 1), sizes)
        return cls(*_tensors(x, y, weights, dtype, device, order), offsets=_offsets(sizes, device))

    @classmethod
    def by_person(
        cls,
        x: Array,
        y: Array,
        usable: Bools,
        pairs: tuple[Ints, Ints],
        units: Ints,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """Return the usable rows, sorted by party and person.

        `pairs` are the party of each pair (party, person) and the pair of each row. `units` is the public number of
        persons of each party; persons without a usable row come last.
        """
        party_of_pair, pair = pairs
        share = 1 / np.maximum(np.bincount(pair, minlength=len(party_of_pair)), 1)
        active = np.unique(pair[usable])
        active = active[np.argsort(party_of_pair[active], kind="stable")]
        party = party_of_pair[active]
        person = np.full(len(party_of_pair), -1)
        begins = np.concatenate([[0], np.cumsum(units)])
        person[active] = begins[party] + np.arange(len(active)) - np.searchsorted(party, party)
        order = np.flatnonzero(usable)
        order = order[np.argsort(person[pair[order]], kind="stable")]  # a person's rows keep their order
        starts = np.searchsorted(person[pair[order]], np.arange(begins[-1] + 1))
        return cls(
            *_tensors(x[order], y[order], share[pair[order]], dtype, device),
            offsets=_offsets(units, device),
            persons=torch.tensor(starts, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True, repr=False)
class PrivateRows(_Rows):
    """The parties' rows. What is computed from them leaves only with noise, through `Contributions.release`."""

    stays_in_process: ClassVar[bool] = True

    def __reduce__(self) -> NoReturn:
        raise DpvalueError("private rows cannot be pickled or copied: they would leave without noise")


@dataclass(frozen=True, repr=False)
class PublicRows(_Rows):
    """Rows of the public set that stand in for those of parties."""


def floats_of(dtype: torch.dtype) -> Any:
    """Return the NumPy type of floats for rows that will become a tensor of this type."""
    return np.float64 if dtype == torch.float64 else np.float32


def pieces(rows: int, width: int) -> Iterator[slice]:
    """Yield slices of rows that hold about a million numbers each."""
    size = max(1, _PIECE // max(1, width))
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


def _offsets(sizes: Ints, device: torch.device) -> Tensor:
    return torch.tensor(np.concatenate([[0], np.cumsum(sizes)]), dtype=torch.int64, device=device)


def _tensors(
    x: Array, y: Array, weights: Array, dtype: torch.dtype, device: torch.device, order: Ints | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, labels and weights as tensors, with the padding row at the end.

    Rows and labels are copied in `order`, a piece at a time, so that at most two copies are in memory. A row of weight
    0 becomes zero, because a weight of 0 does not remove a NaN.
    """
    kinds = (dtype, torch.int64 if y.dtype.kind == "i" else dtype, dtype)
    count, ignored = len(weights), torch.from_numpy(weights == 0)
    tensors = []
    for numbers, kind, places in zip((x, y, weights), kinds, (order, order, None), strict=True):
        tensor = torch.zeros(count + 1, *numbers.shape[1:], dtype=kind, device=device)
        for part in pieces(count, numbers[:1].size):
            piece = torch.tensor(numbers[part if places is None else places[part]], dtype=kind)
            piece[ignored[part]] = 0
            tensor[part] = piece.to(device)
        tensors.append(tensor)
    return tensors[0], tensors[1], tensors[2]
