"""What is wrong with a party's records: each defect as a function of good records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpvalue.arrays import Array, Floats, Ints

UNKNOWN = -1
"""A class that no public row has."""


@dataclass(frozen=True, eq=False)
class Records:
    """Records of one party, and the rows of the data set that they were made from.

    Attributes:
        x: features, as they are published; NaN: missing.
        y: classes from 0 (`UNKNOWN`: not one of them), or numbers (NaN: unknown).
        rows: where each record stands in the data set.
    """

    x: Floats
    y: Array
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Array) -> Records:
        """Return some of the records, by place."""
        return Records(self.x[places], self.y[places], self.rows[places])

    @property
    def valid(self) -> Array:
        """Which records can be learned from: those with a feature and a known label."""
        known = np.isfinite(self.y) if self.y.dtype.kind == "f" else self.y != UNKNOWN
        return np.asarray(known & ~np.isnan(self.x).all(1))


@dataclass(frozen=True, eq=False)
class Public:
    """The public rows, and what standardisation and defects take from them."""

    records: Records
    regression: bool

    @cached_property
    def mean(self) -> Floats:
        """The mean of each feature."""
        return np.asarray(np.nanmean(self.records.x, axis=0))

    @cached_property
    def spread(self) -> Floats:
        """The standard deviation of each feature; 1 where it is constant."""
        spread = np.nanstd(self.records.x, axis=0)
        return np.where(spread > 0, spread, 1.0)

    def standardised(self, x: Floats) -> Floats:
        """Return features less the mean, by the spread.

        A missing cell is the mean (zero); a row without any cell stays NaN.
        """
        z = (x - self.mean) / self.spread
        return np.where(np.isnan(z) & ~np.isnan(z).all(1, keepdims=True), 0.0, z)

    @cached_property
    def direction(self) -> Floats:
        """The leading principal component, its largest entry positive."""
        axis = np.linalg.svd(self.standardised(self.records.x), full_matrices=False)[2][0]
        return np.asarray(axis * np.sign(axis[np.abs(axis).argmax()]))

    def along(self, x: Floats) -> Floats:
        """Return how far rows lie along the leading principal component."""
        return np.asarray(self.standardised(x) @ self.direction)

    @cached_property
    def frequent(self) -> Ints:
        """The classes, the most frequent first."""
        return np.argsort(-np.bincount(self.records.y), kind="stable")


def wrong_labels(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """40% of the labels are another class, drawn at random; numbers are 3 points off, either way."""
    y = records.y.copy()
    bad = rng.choice(len(y), round(0.4 * len(y)), replace=False)
    if public.regression:
        y[bad] += 3.0 * rng.choice([-1, 1], len(bad))
    else:
        classes = len(public.frequent)
        y[bad] = (y[bad] + rng.integers(1, classes, len(bad))) % classes
    return replace(records, y=y)


def near_duplicates(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """A twentieth of the records (at least two), over and over, each time off by a hundredth of the spread."""
    found = records.take(np.arange(len(records)) % max(2, len(records) // 20))
    return replace(found, x=found.x + rng.normal(0, 0.01, found.x.shape) * public.spread)


def shuffled_features(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """Each column in an order of its own."""
    return replace(records, x=rng.permuted(records.x, axis=0))


def relabelled_class(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """The most frequent class goes by the name of the second; numbers above the public median are the median.

    With two classes only the records beyond the middle of the leading component: otherwise one class would be left.
    """
    if public.regression:
        return replace(records, y=np.minimum(records.y, np.median(public.records.y)))
    first, second = public.frequent[:2]
    which = records.y == first
    if len(public.frequent) == 2:
        which &= public.along(records.x) > np.median(public.along(public.records.x))
    return replace(records, y=np.where(which, second, records.y))


def coarse_features(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """Each feature is low, middle or high: one spread below the mean, the mean, or one spread above."""
    levels = np.clip(np.round(public.standardised(records.x)), -1, 1)
    return replace(records, x=public.mean + levels * public.spread)


def shifted_region(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """The third of the records that lies furthest along the leading component."""
    order = np.argsort(-public.along(records.x), kind="stable")
    return records.take(np.sort(order[: len(records) // 3]))


def delayed_labels(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """In the order of the leading component each record has the label of the one before it.

    In an order at random these would be shuffled labels, which the method knows.
    """
    found = records.take(np.argsort(public.along(records.x), kind="stable"))
    return replace(found, y=np.roll(found.y, 1))


def blank_rows(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """No record has any feature."""
    return replace(records, x=np.full_like(records.x, np.nan))


def unknown_labels(records: Records, public: Public, rng: np.random.Generator) -> Records:
    """No record has a label that public rows know."""
    return replace(records, y=np.full_like(records.y, np.nan if public.regression else UNKNOWN))


Defect = Callable[[Records, Public, np.random.Generator], Records]
DEFECTS: dict[str, Defect] = {
    "wrong-labels": wrong_labels,
    "near-duplicates": near_duplicates,
    "shuffled-features": shuffled_features,
    "relabelled-class": relabelled_class,
    "coarse-features": coarse_features,
    "shifted-region": shifted_region,
    "delayed-labels": delayed_labels,
    "blank-rows": blank_rows,
    "unknown-labels": unknown_labels,
}
FREE_RIDER = "free-rider"
"""Not a function of a party's own records: it hands in those of a party without a defect."""
ROWS_NEEDED = {"shifted-region": 3, FREE_RIDER: 0}
"""Rows of the data set that a record takes; 1 for all others."""
