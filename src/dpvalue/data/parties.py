"""Parties: single rows, or data sets of the rows with one group label."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch

from dpvalue.arrays import Array, Bools, Ints
from dpvalue.data.checks import Problem, feature_problems, label_problems, owner_problems, require_other_rows
from dpvalue.data.columns import is_frame
from dpvalue.data.conversions import as_columns
from dpvalue.data.encoding import Encoding
from dpvalue.data.raw import (
    as_numbers,
    features_and_labels,
    is_numeric,
    label_column,
    label_count,
    row_count,
    take_column,
)
from dpvalue.data.rows import PrivateRows, floats_of, pieces
from dpvalue.data.utility import Utility, as_utility
from dpvalue.errors import DpvalueError, require_count
from dpvalue.names import party_label, require_names
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.holders import ROWS, Holding


@dataclass(frozen=True, eq=False, repr=False)  # rows must not be printed
class Parties:
    """The parties' private rows. They leave only through releases.

    The parties' names (group labels, or positions 0..n-1) are public. For units "party" and "record" the party of each
    row is public, for unit "person" the number of persons of each party. Ids and rows per person are private.

    An unusable row contributes zero, and only `problems` reports it. A row is unusable without a group, without an id
    (for unit "person"), with a label that the public set lacks, or with a feature that is not a finite number.

    Args:
        X: features, one row a record: an array, a tensor or a DataFrame.
        y: labels, one a row.
        groups: a label per row; rows with the same label are one party. None: every row is a party.
        persons: an id per row, for privacy per person; rows with the same id belong to one person.
        person_column: the name of the column of ids, for a ledger that is bound to it.
        party_column: the name of the public column of groups, for a ledger that is bound to it.

    Example:
        >>> X, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
        >>> parties = Parties(X, y, groups=["north", "south", "north", "south"])
        >>> parties.names, parties.sizes.tolist()
        (('north', 'south'), [2, 2])
    """

    X: Any
    y: Any
    groups: Any = None
    persons: Any = None
    person_column: str | None = None
    party_column: str | None = None
    source: Any = field(default=None, init=False)
    """The object that X and y come from, if any."""
    min_parties: ClassVar[int] = 2
    stays_in_process: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rows = row_count(self.X, "parties' features")
        for name, labels in (("parties' labels", self.y), ("groups", self.groups), ("persons", self.persons)):
            count = rows if labels is None else label_count(labels, name)
            if count != rows:
                each = "one per row of features" if labels is self.y else "one label per row"
                raise DpvalueError(f"{name} must be {each} ({rows}), got {count}")
        if self.n < self.min_parties:
            raise DpvalueError(f"parties must number at least {self.min_parties}, got {self.n}")

    def __repr__(self) -> str:
        return f"Parties({self.n} parties)"

    @cached_property
    def _members(self) -> tuple[tuple[str | int, ...], Ints]:
        """The names of the parties, and the place of each row's party; -1 for a row without a party."""
        if self.groups is None:
            rows = row_count(self.X, "parties' features")
            return tuple(range(rows)), np.arange(rows)
        names, party = number_groups(label_column(self.groups, "groups").party_names())
        require_names("names of parties", names)
        return names, party

    @property
    def names(self) -> tuple[str | int, ...]:
        """The names of the parties, in the order of all results: whole numbers, then texts."""
        return self._members[0]

    @property
    def party_of_row(self) -> Ints:
        """The place of each row's party in `names`; -1 for a row without a party."""
        return self._members[1]

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.names)

    @property
    def holding(self) -> Holding:
        """Whose data this is, for a ledger to check."""
        if self.groups is None:
            return Holding(ROWS, self.person_column)
        return Holding(tuple(map(str, self.names)), self.person_column, self.party_column)

    @cached_property
    def sizes(self) -> Ints:
        """The number of rows of each party; public, except for unit "person"."""
        party = self.party_of_row
        return np.bincount(party[party >= 0], minlength=self.n)

    @cached_property
    def person_of_row(self) -> Ints:
        """The number of each row's person; -1 for a row without an id."""
        if self.persons is None:
            raise DpvalueError("unit='person' needs the person of each row: give Parties(..., persons=ids)")
        return number_persons(label_column(self.persons, "persons").identities())

    def units(self, unit: str) -> Ints:
        """The public number of protected units of each party: 1, its records, or its persons."""
        if unit == "party" or (unit == "person" and self.groups is None):
            return np.ones(self.n, dtype=np.int64)
        if unit == "record":
            return self.sizes
        return person_counts(self.party_of_row, self.person_of_row, self.n)

    def counts(self, privacy: Privacy | None) -> tuple[Ints, Ints]:
        """Return the public numbers of rows and of protected units of each party.

        The number of rows of a person is private: for unit "person" both are numbers of persons.
        """
        units = self.units("party" if privacy is None else privacy.unit)
        if privacy is not None and privacy.unit == "person":
            self.person_of_row  # noqa: B018  (raises without ids)
            if not units.any():
                raise DpvalueError("persons must hold at least one id, all are missing")
            return units, units
        return self.sizes, units

    def encode(
        self, encoding: Encoding, dtype: torch.dtype, device: torch.device, privacy: Privacy | None = None
    ) -> PrivateRows:
        """Return the rows as tensors, in the encoding of the public set; by person for unit "person".

        Formal guarantee: a row's numbers, and whether it counts, are a function of that row and of public values. Its
        position is a function of public values (units "party" and "record").
        """
        by_person = privacy is not None and privacy.unit == "person"
        x, y, usable = self._encode_usable(encoding, dtype, positions_public=not by_person)
        order = self._by_party()
        if privacy is None or not by_person:
            return PrivateRows.by_party(x, y, self.sizes, dtype, device, usable, order)
        order = np.arange(len(x)) if order is None else order
        parties, pair = party_person_pairs(self.party_of_row, self.person_of_row, privacy.parties_per_person)
        order = order[pair[order] >= 0]
        units = self.units("person")
        return PrivateRows.by_person(x[order], y[order], usable[order], (parties, pair[order]), units, dtype, device)

    def problems(
        self,
        utility: Any = None,
        *,
        model: Any = "logistic",
        preprocess: Any = None,
        classes: Any = None,
        target: str | None = None,
    ) -> tuple[Problem, ...]:
        """Return why rows are unusable, for the holder of the rows.

        No guarantee: the result is a function of the rows, without noise. No other part of the library calls it.

        Args:
            utility: the public set, which fixes the form of features and labels. Without it only groups, ids and
                whether numeric features are finite are checked.
            model: as in `dpvalue.value`.
            preprocess: as in `dpvalue.value`.
            classes: as in `dpvalue.value`: all classes, if the public set lacks some.
            target: the label column of a public DataFrame.

        Returns:
            the problems, in the order of rows.

        Raises:
            DpvalueError: a public set or a model that does not fit.

        Example:
            >>> parties = Parties(np.array([[1.0], [float("nan")]]), np.array([0, 1]))
            >>> print(*parties.problems(utility=(np.array([[0.0], [1.0]]), np.array([0, 1]))))
            row 1, feature 0: not a finite number
        """
        person = None if self.persons is None else self.person_of_row
        problems = owner_problems(self.party_of_row, person)
        if utility is not None:
            encoding = as_utility(utility, target).encoding(model, preprocess, classes)
            problems += feature_problems(self.X, encoding) + label_problems(self.y, encoding)
        elif is_numeric(self.X):
            numbers = as_numbers(self.X, "parties' features")
            problems += feature_problems(numbers, Encoding("", (), numbers.shape[1:]))
        return tuple(sorted(problems, key=lambda problem: problem.row))

    def _encode_usable(
        self, encoding: Encoding, dtype: torch.dtype, positions_public: bool
    ) -> tuple[Array, Array, Bools]:
        """Rows and labels as numbers, and which rows count; `positions_public` as in `Encoding.features`."""
        x = encoding.features(self.X, "parties' features", positions_public, floats_of(dtype))
        y = encoding.labels(self.y, "parties' labels")
        labelled = torch.from_numpy(y).to(dtype).isfinite().numpy() if y.dtype.kind == "f" else y >= 0
        usable = np.empty(len(x), dtype=bool)
        for here in pieces(len(x), x[:1].size):
            piece = torch.from_numpy(np.ascontiguousarray(x[here])).to(dtype)  # a finite double may not stay finite
            usable[here] = piece.flatten(1).isfinite().all(1).numpy()
        return x, y, usable & labelled

    def _by_party(self) -> Ints | None:
        """The order that sorts rows by party and drops rows without a party; None if they are sorted already."""
        party = self.party_of_row
        if not len(party) or (party[0] >= 0 and bool((np.diff(party) >= 0).all())):
            return None
        order = np.argsort(party, kind="stable")
        return order[party[order] >= 0]


def number_groups(labels: Array) -> tuple[tuple[str | int, ...], Ints]:
    """Return the names of parties, whole numbers before texts, and each row's party; -1 for a row without a party."""
    texts = sorted({label for label in labels if label is not None}, key=_name_key)
    place = {label: number for number, label in enumerate(texts)}
    party = np.array([place.get(label, -1) for label in labels], dtype=np.int64)
    return tuple(map(party_label, texts)), party


def number_persons(ids: Array) -> Ints:
    """Return the number of each row's person, by canonical ids; -1 for a row without an id."""
    place = {label: number for number, label in enumerate(dict.fromkeys(ids)) if label is not None}
    return np.array([place.get(label, -1) for label in ids], dtype=np.int64)


def person_counts(party: Ints, person: Ints, n: int) -> Ints:
    """Return the public number of persons of each of n parties. No other function counts them."""
    return np.bincount(party_person_pairs(party, person, n)[0], minlength=n)


def party_person_pairs(party: Ints, person: Ints, most: int) -> tuple[Ints, Ints]:
    """Return the party of each pair (party, person) with rows, and the pair of each row; -1 for a row without a pair.

    A person counts in the first `most` of its parties, in their order; the person's rows in others are -1.
    """
    has_both = (party >= 0) & (person >= 0)
    pairs, pair = np.unique(np.stack([person[has_both], party[has_both]]), axis=1, return_inverse=True)
    first = np.searchsorted(pairs[0], pairs[0])
    counts = np.arange(pairs.shape[1]) - first < most
    pair_of_row = np.full(len(party), -1)
    pair_of_row[has_both] = np.where(counts, np.arange(pairs.shape[1]), -1)[pair.reshape(-1)]
    return pairs[1], pair_of_row


def _name_key(label: str) -> tuple[bool, int, str]:
    name = party_label(label)
    return (False, name, "") if isinstance(name, int) else (True, 0, name)


def as_parties(data: Any, target: str | None = None, groups: Any = None, persons: Any = None) -> Parties:
    """Return parties from a `Parties`, (X, y), a DataFrame with `target`, or a torch Dataset.

    `groups` and `persons` are labels, one per row, or, for a DataFrame, the name of a column of labels.
    """
    labels = {"groups": groups, "persons": persons}
    for name, column in labels.items():
        if isinstance(data, Parties) and column is not None:
            raise DpvalueError(f"{name} must be given to Parties itself when parties is a Parties")
        if isinstance(column, str) and not is_frame(data):
            raise DpvalueError(f"{name} may be a column name only for a DataFrame, got {column!r}")
    if isinstance(data, Parties):
        return data
    source = data
    if is_frame(data):
        data = as_columns(data)
        label_columns = {name: column for name, column in labels.items() if isinstance(column, str)}
        labels |= {name: take_column(data, column, name) for name, column in label_columns.items()}
        data = data.without(*label_columns.values())
    person_column, party_column = (column if isinstance(column, str) else None for column in (persons, groups))
    rows = features_and_labels(data, target, "parties")
    parties = Parties(*rows, **labels, person_column=person_column, party_column=party_column)
    object.__setattr__(parties, "source", source)
    return parties


def public_counts(
    parties: Any,
    privacy: Privacy,
    records: int,
    target: str | None,
    groups: Any,
    persons: Any,
    utility: Utility | None = None,
) -> tuple[Ints, Ints]:
    """Return the public numbers of rows and of protected units of each party.

    `parties` are parties as in `as_parties`, which must not share rows with `utility`, or their number; then each has
    `records` rows.
    """
    if not isinstance(parties, Integral):
        given_parties = as_parties(parties, target, groups, persons)
        if utility is not None:
            require_other_rows(given_parties, utility)
        return given_parties.counts(privacy)
    require_count("parties", int(parties), least=2)
    require_count("records", records)
    sizes = np.full(int(parties), records)
    return sizes, np.ones_like(sizes) if privacy.unit == "party" else sizes


def read_data(parties: Any, utility: Any, target: str | None, groups: Any, persons: Any) -> tuple[Parties, Utility]:
    """Return the parties and the utility of a caller's arguments; raise if they share rows in memory."""
    if target is not None and not any(is_frame(data) for data in (parties, utility)):
        raise DpvalueError(f"target={target!r} names a column, but neither parties nor utility is a DataFrame")
    private, public = as_parties(parties, target, groups, persons), as_utility(utility, target, groups, persons)
    require_other_rows(private, public)
    return private, public
