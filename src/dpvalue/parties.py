"""Who is valued: single points, or data sets made of the rows that share a group label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpvalue.encoding import Array, Encoding, as_labels, refuse_rows, row_count
from dpvalue.errors import DpvalueError, require_count
from dpvalue.privacy.budget import Privacy


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Parties:
    """The parties' private rows. Nothing of it leaves but through a release.

    Public are the number of parties, their names (the group labels, or the positions 0..n-1), their sizes in rows and,
    with `persons`, their numbers of persons.

    Args:
        X: features, one row a record: an array, a tensor or a DataFrame.
        y: labels, one a row.
        groups: a label per row; rows with the same label are one party. None: every row is a party.
        persons: an id per row, for privacy per person; rows with the same id are one person's.
    """

    X: Any
    y: Any
    groups: Any = None
    persons: Any = None

    def __post_init__(self) -> None:
        rows = row_count(self.X, "parties' features")
        labels = as_labels(self.y, "parties' labels")
        if len(labels) != rows:
            raise DpvalueError(f"parties' labels must be one per row of features ({rows}), got {len(labels)}")
        for name in ("groups", "persons"):
            if getattr(self, name) is not None:
                given = as_labels(getattr(self, name), name)
                if len(given) != rows:
                    raise DpvalueError(f"{name} must be one label per row ({rows}), got {len(given)}")
                missing = np.array([label is None or label != label for label in given.tolist()], dtype=bool)
                refuse_rows(missing, name, "no label may be missing")
        if self.n < 2:
            raise DpvalueError(f"parties must number at least 2, got {self.n}")

    def __repr__(self) -> str:
        return f"Parties({self.n} parties, {int(self.sizes.sum())} rows)"

    @cached_property
    def _members(self) -> tuple[tuple[str | int, ...], NDArray[np.int64]]:
        """The names of the parties, and the party of each row."""
        if self.groups is None:
            rows = row_count(self.X, "parties' features")
            return tuple(range(rows)), np.arange(rows)
        labels, party = _numbered(self.groups, "groups")
        names = tuple(int(label) if isinstance(label, int | np.integer) else str(label) for label in labels)
        return names, party

    @property
    def names(self) -> tuple[str | int, ...]:
        """The names of the parties, in the order of all results."""
        return self._members[0]

    @property
    def party_of_row(self) -> NDArray[np.int64]:
        """The place of each row's party in `names`."""
        return self._members[1]

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.names)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The public number of rows of each party."""
        return np.bincount(self._members[1], minlength=self.n)

    @cached_property
    def _people(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The pairs (party, person) that have rows, sorted, and the pair of each row."""
        if self.persons is None:
            raise DpvalueError("unit='person' needs to know whose each row is: give Parties(..., persons=ids)")
        person = _numbered(self.persons, "persons")[1]
        pairs, pair = np.unique(np.stack([self._members[1], person]), axis=1, return_inverse=True)
        return pairs, pair.reshape(-1)

    def units(self, unit: str) -> NDArray[np.int64]:
        """The public number of protected units of each party: 1, its records, or its persons."""
        if unit == "party":
            return np.ones(self.n, dtype=np.int64)
        return self.sizes if unit == "record" else np.bincount(self._people[0][0], minlength=self.n)

    def counts(self, privacy: Privacy | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the public numbers of rows and of protected units of each party.

        Raises if a person's rows are in more parties than the budget accounts for.
        """
        unit = "party" if privacy is None else privacy.unit
        if privacy is not None and unit == "person":
            self._require_spread(privacy.parties_per_person)
        return self.sizes, self.units(unit)

    def _require_spread(self, most: int) -> None:
        pairs, pair = self._people
        spread = np.bincount(pairs[1])
        allowed = f"a person may be in at most {most} of the parties (parties_per_person)"
        refuse_rows(spread[pairs[1][pair]] > most, "persons", allowed)

    def encode(self, encoding: Encoding, dtype: torch.dtype, device: torch.device, unit: str = "party") -> PartyRows:
        """Return the rows as tensors, in the encoding of the public set; with whose they are for unit "person"."""
        x = encoding.features(self.X, "parties' features")
        y = encoding.labels(self.y, "parties' labels")
        order = np.argsort(self._members[1], kind="stable")
        persons = self._people[1][order] if unit == "person" else None
        return party_rows(x[order], y[order], self.sizes, dtype, device, persons)


@dataclass(frozen=True, repr=False)  # rows must not be printed
class PartyRows:
    """Rows as tensors, padded to the largest party: party j has the rows x[index[j]] with weights[j].

    A weight is 1/size for a row of the party and 0 for padding, so that the weighted loss is the mean over its rows.
    With `people`, the row index[j, i] belongs to person people[j, i] of the party, with share 1/(the person's rows).
    """

    x: Tensor
    y: Tensor
    index: Tensor
    weights: Tensor
    sizes: Tensor
    people: Tensor | None = None
    shares: Tensor | None = None

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.sizes)

    @property
    def width(self) -> int:
        """The rows of the largest party."""
        return self.index.shape[1]

    @property
    def persons(self) -> Tensor:
        """The number of persons of each party; each row is one where nobody said whose it is."""
        return self.sizes if self.people is None else torch.where(self.sizes > 0, self.people.amax(1) + 1, 0)


def party_rows(
    x: Array,
    y: Array,
    sizes: NDArray[np.int64],
    dtype: torch.dtype,
    device: torch.device,
    persons: NDArray[np.int64] | None = None,
) -> PartyRows:
    """Return rows, sorted by party, as padded tensors.

    `persons` numbers the person of each row; numbers of one party are not those of another, and follow each other.
    """
    position = np.arange(sizes.max(initial=1))[None, :]
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])[:, None]
    present = position < sizes[:, None]
    weights = present / np.maximum(sizes, 1)[:, None]
    # Padding repeats the party's own first row: a weight of 0 does not silence a NaN, and it must not be another's.
    index = np.where(present, starts + position, np.minimum(starts, len(x) - 1))
    people = shares = None
    if persons is not None:
        numbers = persons[index]
        first = np.where(present, numbers, np.iinfo(np.int64).max).min(1, keepdims=True)
        people = torch.tensor(np.where(present, numbers - first, 0), device=device)
        shares = torch.tensor(present / np.bincount(persons)[numbers], dtype=dtype, device=device)
    return PartyRows(
        x=torch.tensor(x, dtype=dtype, device=device),
        y=torch.tensor(y, dtype=torch.int64 if y.dtype.kind == "i" else dtype, device=device),
        index=torch.tensor(index, dtype=torch.int64, device=device),
        weights=torch.tensor(weights, dtype=dtype, device=device),
        sizes=torch.tensor(sizes, dtype=torch.int64, device=device),
        people=people,
        shares=shares,
    )


def _numbered(labels: Any, argument: str) -> tuple[Array, NDArray[np.int64]]:
    """The different labels in order, and the number of each row's."""
    try:
        found, number = np.unique(as_labels(labels, argument), return_inverse=True)
    except TypeError:
        raise DpvalueError(f"{argument} must be labels of one type, got a mixture") from None
    return found, number


def as_parties(data: Any, target: str | None = None, groups: Any = None, persons: Any = None) -> Parties:
    """Return parties from a `Parties`, (X, y), a DataFrame with `target`, or a torch Dataset.

    `groups` and `persons` are a label per row, or, for a DataFrame, the name of a column of labels.
    """
    data = as_pandas(data)
    labels = {"groups": groups, "persons": persons}
    for name, given in labels.items():
        if isinstance(data, Parties) and given is not None:
            raise DpvalueError(f"{name} must be given to Parties itself when parties is a Parties")
        if isinstance(given, str):
            if not hasattr(data, "columns"):
                raise DpvalueError(f"{name} may be a column name only for a DataFrame, got {given!r}")
            labels[name], data = take_column(data, given, name)
    if isinstance(data, Parties):
        return data
    X, y = features_and_labels(data, target, "parties")
    return Parties(X, y, **labels)


def counts_of(
    parties: Any, privacy: Privacy, records: int, target: str | None, groups: Any, persons: Any
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the public numbers of rows and of protected units of each party.

    `parties` are parties as in `as_parties`, or a number of them with `records` rows each.
    """
    if not isinstance(parties, Integral):
        return as_parties(parties, target, groups, persons).counts(privacy)
    require_count("parties", int(parties), least=2)
    require_count("records", records)
    sizes = np.full(int(parties), records)
    return sizes, np.ones_like(sizes) if privacy.unit == "party" else sizes


def features_and_labels(data: Any, target: str | None, argument: str) -> tuple[Any, Any]:
    """Return X and y of (X, y), of a DataFrame with `target` (which is for frames alone), or of a torch Dataset."""
    if hasattr(data, "columns"):
        if target is None:
            raise DpvalueError(f"{argument} is a DataFrame: name its label column with target=")
        y, X = take_column(data, target, "target")
        return X, y
    if isinstance(data, torch.utils.data.Dataset):
        items = [data[i] for i in range(row_count(data, argument))]
        if any(len(item) != 2 for item in items):
            raise DpvalueError(f"{argument} must be a Dataset of pairs (x, y)")
        return np.stack([np.asarray(x) for x, _ in items]), np.array([np.asarray(y).item() for _, y in items])
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise DpvalueError(
        f"{argument} must be (X, y), a DataFrame with target=, or a torch Dataset; got {type(data).__name__}"
    )


def as_pandas(data: Any) -> Any:
    """Return a polars frame as one of pandas; anything else as it is."""
    if hasattr(data, "columns") and hasattr(data, "to_pandas"):
        return data.to_pandas()
    return data


def take_column(frame: Any, column: str, argument: str) -> tuple[Any, Any]:
    """Return a column of a frame and the frame without it."""
    if column not in frame.columns:
        raise DpvalueError(f"{argument} must be one of the columns {list(frame.columns)}, got {column!r}")
    return frame[column], frame.drop(columns=[column])
