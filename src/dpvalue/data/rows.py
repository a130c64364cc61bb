"""Where rows stand in tensors: padded by party, or row by row with whose each is.

For units "party" and "record" places and shapes are functions of public numbers; for unit "person" they are not, and
`dpvalue.releasing.people` makes sure that nothing depends on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Bools, Ints


@dataclass(frozen=True, repr=False)  # rows must not be printed
class PartyRows:
    """Rows as tensors, padded to the largest party: party j has the rows x[index[j]] with weights[j].

    A weight is 1/size for a row of the party, and 0 for padding and for a row that does not count, which is zero: the
    weighted loss is the mean over the party's rows in which such a row adds nothing.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    weights: Tensor
    sizes: Tensor

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.sizes)

    @property
    def width(self) -> int:
        """The rows of the largest party."""
        return self.index.shape[1]


@dataclass(frozen=True, repr=False)  # rows must not be printed
class PersonRows:
    """Rows as tensors, by person: row i is of person slot[i] of party[i], with share[i] = 1/(the person's rows there).

    `units` are the public numbers of persons. Rows that do not count are left out.
    """

    x: Tensor
    y: Tensor
    party: Tensor
    slot: Tensor
    share: Tensor
    units: Tensor

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.units)


def party_rows(
    x: Array,
    y: Array,
    sizes: Ints,
    dtype: torch.dtype,
    device: torch.device,
    usable: Bools | None = None,
) -> PartyRows:
    """Return rows, sorted by party, as padded tensors; all of them count unless `usable` says which."""
    usable = np.ones(len(x), dtype=bool) if usable is None else usable
    position = np.arange(sizes.max(initial=1))[None, :]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])[:, None]
    present = position < sizes[:, None]
    # Padding repeats the party's own first row.
    index = np.where(present, starts + position, np.minimum(starts, len(x) - 1))
    weights = (present & usable[index]) / np.maximum(sizes, 1)[:, None]
    x, y = _silenced(x, y, usable)
    return PartyRows(
        x=torch.tensor(x, dtype=dtype, device=device),
        y=torch.tensor(y, dtype=torch.int64 if y.dtype.kind == "i" else dtype, device=device),
        index=torch.tensor(index, dtype=torch.int64, device=device),
        weights=torch.tensor(weights, dtype=dtype, device=device),
        sizes=torch.tensor(sizes, dtype=torch.int64, device=device),
    )


def person_rows(
    x: Array,
    y: Array,
    usable: Bools,
    party_of_pair: Ints,
    pair: Ints,
    units: Ints,
    dtype: torch.dtype,
    device: torch.device,
) -> PersonRows:
    """Return the rows that count, sorted by party, as tensors with whose they are: the pair (party, person) of each."""
    share = 1 / np.maximum(np.bincount(pair, minlength=len(party_of_pair)), 1)
    x, y, pair = x[usable], y[usable], pair[usable]
    different, found = np.unique(pair, return_inverse=True)
    party = party_of_pair[different]
    order = np.argsort(party, kind="stable")
    slot = np.empty(len(different), dtype=np.int64)
    first = np.searchsorted(party[order], party[order])
    slot[order] = np.arange(len(different)) - first
    return PersonRows(
        x=torch.tensor(x, dtype=dtype, device=device),
        y=torch.tensor(y, dtype=torch.int64 if y.dtype.kind == "i" else dtype, device=device),
        party=torch.tensor(party_of_pair[pair], dtype=torch.int64, device=device),
        slot=torch.tensor(slot[found.reshape(-1)], dtype=torch.int64, device=device),
        share=torch.tensor(share[pair], dtype=dtype, device=device),
        units=torch.tensor(units, dtype=torch.int64, device=device),
    )


def _silenced(x: Array, y: Array, usable: Bools) -> tuple[Array, Array]:
    """The rows with zeros in the place of those that do not count: a weight of 0 does not silence a NaN."""
    if usable.all():
        return x, y
    x, y = x.copy(), y.copy()
    x[~usable], y[~usable] = 0, 0
    return x, y
