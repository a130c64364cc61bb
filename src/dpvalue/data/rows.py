"""Where rows stand in tensors: flat, one party after the other, so that memory is proportional to the rows.

`PrivateRows` holds every private row there is, and nothing else does; `PublicRows` has the same layout for rows of the
public set that stand in for parties. For units "party" and "record" places and shapes are functions of public numbers;
for unit "person" they are not, and `dpvalue.party.people` makes sure that nothing depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Bools, Ints
from dpvalue.errors import DpvalueError

_PIECE = 2**20  # numbers


@dataclass(frozen=True, repr=False)  # rows must not be printed
class _Rows:
    """Rows as tensors, sorted by party: party j has those from offsets[j] to offsets[j + 1].

    A weight is 1/size for a row of the party, and 0 for a row that does not count, which is zero: the weighted loss is
    the mean over the party's rows in which such a row adds nothing. One more row stands at the end, of zeros and of
    weight 0: it belongs to nobody, and fills up parties that have too few rows.

    By person: party j has the persons from offsets[j] to offsets[j + 1], and person p the rows from persons[p] to
    persons[p + 1], with the weight 1/(the person's rows in the party). Rows that do not count are left out.
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
        """Whether a party has a row that counts (n,)."""
        active_up_to = torch.nn.functional.pad(self.weights.gt(0).cumsum(0), (1, 0))[self.offsets]
        return active_up_to.diff() > 0

    def places(self, parties: Tensor, first: int, width: int) -> Tensor:
        """Return where the rows of the parties who (b,) stand, `width` of each from its `first` on (b, width)."""
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
        """Return rows, sorted by party, in this `order` if one is given; all count unless `usable` says which."""
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
        """Return the rows that count, sorted by party and person.

        `pairs` are the party of each pair (party, person), and the pair of each row. A party has as many persons as
        `units` says, which is public; those without a row that counts come last.
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
    """The parties' rows. Whatever is made of them leaves with noise, through `dpvalue.releasing`, or not at all."""

    def __reduce__(self) -> NoReturn:
        raise DpvalueError("private rows cannot be pickled or copied: they would leave without noise")


@dataclass(frozen=True, repr=False)
class PublicRows(_Rows):
    """Rows of the public set that stand in for those of parties."""


def floats_of(dtype: torch.dtype) -> Any:
    """Return the kind of NumPy's floats that hold numbers of a tensor, to keep rows in before they become one."""
    return np.float64 if dtype == torch.float64 else np.float32


def pieces(rows: int, width: int) -> Iterator[slice]:
    """Yield where pieces of rows stand that hold about a million numbers each."""
    size = max(1, _PIECE // max(1, width))
    for first in range(0, rows, size):
        yield slice(first, min(first + size, rows))


def _offsets(sizes: Ints, device: torch.device) -> Tensor:
    return torch.tensor(np.concatenate([[0], np.cumsum(sizes)]), dtype=torch.int64, device=device)


def _tensors(
    x: Array, y: Array, weights: Array, dtype: torch.dtype, device: torch.device, order: Ints | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The rows, labels and weights as tensors, with the row that belongs to nobody at the end.

    Rows and labels are taken in `order`, a piece at a time, so that they are in memory twice at most. A row of weight 0
    becomes zero: the weight alone does not silence a NaN.
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
