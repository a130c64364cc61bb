"""Where rows of natural cells come from: features, labels, and the stratum of each row.

A stratum is the smallest set of rows that parties differ by: a hospital, an area and a range of elevations, a digit, a
range of a feature, a class. A region is one stratum or several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpvalue.arrays import Array, Floats, Ints
from dpvalue.experiments.consortium.natural.cells import NaturalCell
from dpvalue.experiments.paper.datasets import HOSPITALS, load, load_hospitals

MADE_ROWS, MADE_FEATURES, MADE_FLIPPED = 20_000, 4, 0.05
COMPONENTS = 20
BY_CLASS = ("disjoint", "dirichlet", "only-class", "lacks-class", "label-share")


@dataclass(frozen=True)
class PartySizes:
    """How many rows are public, and the least and the most records of a party; None: what a stratum has."""

    public: int
    least: int | None
    most: int | None


SIZES = {
    "covtype-2": PartySizes(1000, 100, 1000),
    "covtype-7": PartySizes(1000, 100, 1000),
    "mnist": PartySizes(1000, 100, 1000),
    "mnist-2": PartySizes(1000, 100, 1000),
    "digits": PartySizes(500, 40, 200),
    "diabetes": PartySizes(130, 15, 40),
    "diabetes-2": PartySizes(130, 15, 40),
    "wine": PartySizes(300, 50, 160),
    "wine-2": PartySizes(300, 50, 160),
    "breast-cancer": PartySizes(200, 20, 46),
    "heart": PartySizes(180, None, None),
    "xor": PartySizes(500, 100, 1000),
    "circles": PartySizes(500, 100, 1000),
}
LARGE = (1000, 4000)


@dataclass(frozen=True, eq=False)
class Population:
    """All rows of a cell's data set.

    Attributes:
        x: features, or images as rows of pixels.
        y: labels.
        strata: the stratum of each row, from 0.
        regions: what "only-region" and "lacks-region" choose one from: strata each.
        shares: the share of each stratum in each party (parties, strata), or None where the kind draws them.
    """

    x: Array
    y: Array
    strata: Ints
    regions: tuple[tuple[int, ...], ...]
    shares: Floats | None = None


def population(cell: NaturalCell, folder: str | Path | None = None) -> Population:
    """Return the rows of a cell's data set; files are read from the folder."""
    x, y, marks = _rows(cell.data, str(folder) if folder is not None else None)
    if cell.kind in BY_CLASS:
        return Population(x, y, y.astype(np.int64), tuple((label,) for label in range(int(y.max()) + 1)))
    if cell.kind == "sites":
        return Population(x, y, np.zeros(len(y), np.int64), ((0,),))
    if cell.data.startswith("covtype"):
        return _areas(x, y, marks, cell.n // 4)
    if cell.data == "heart":
        return Population(x, y, marks, tuple((j,) for j in range(4)), np.repeat(np.eye(4), cell.n // 4, axis=0))
    if cell.data == "mnist-2":
        pairs = tuple((even, odd) for even in range(0, 10, 2) for odd in range(1, 10, 2))
        return Population(x, y, marks, pairs)
    if cell.data in ("xor", "circles"):
        return _sectors(x, y, cell.n)
    strata = _ranges(x[:, _COLUMNS[cell.kind]], cell.n)
    return Population(x, y, strata, tuple((j, j + 1) for j in range(cell.n - 1)), np.eye(cell.n))


_COLUMNS = {"age": 0, "mass": 2, "alcohol": 10, "only-region": 10, "radius": 0}
"""Of diabetes, of wine, and of breast cancer."""


def _areas(x: Array, y: Array, areas: Ints, parts: int) -> Population:
    """Each wilderness area in ranges of elevation that have as many rows; a region is a whole area."""
    strata = np.zeros(len(y), np.int64)
    for area in range(4):
        here = areas == area
        strata[here] = parts * area + _ranges(x[here, 0], parts)
    regions = tuple(tuple(range(parts * area, parts * (area + 1))) for area in range(4))
    return Population(x, y, strata, regions, np.eye(4 * parts))


def _sectors(x: Array, y: Array, n: int) -> Population:
    """Sectors of the first two features; a party has three neighbouring ones, so that all have both classes."""
    angle = np.arctan2(x[:, 1], x[:, 0]) / (2 * np.pi) % 1
    strata = np.minimum((angle * n).astype(np.int64), n - 1)
    shares = sum(np.roll(np.eye(n), shift, axis=1) for shift in (-1, 0, 1)) / 3
    return Population(x, y, strata, tuple((j,) for j in range(n)), np.asarray(shares))


def _ranges(values: Array, parts: int) -> Ints:
    """The range of each value, of ranges that have as many values; equal values may be in two, by their place."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.asarray(ranks * parts // len(values), dtype=np.int64)


@lru_cache(maxsize=2)
def _rows(data: str, folder: str | None) -> tuple[Array, Array, Ints]:
    """Features, labels, and what strata are made of: areas, hospitals, digits; zeros where nothing is needed."""
    if data == "heart":
        x, y, hospital = load_hospitals(folder)
        return x, y, np.array([HOSPITALS.index(name) for name in hospital])
    if data in ("xor", "circles"):
        return _made(data)
    name = {"covtype": "covertype"}.get(data[:7], data.removesuffix("-2"))
    x, y = _diabetes_numbers() if data == "diabetes" else load(name, folder)
    marks = np.zeros(len(y), np.int64)
    if name == "covertype":
        marks = x[:, 10:14].argmax(1)  # wilderness areas, one column each
    if name == "mnist":
        x, marks = x.reshape(len(x), -1), y
    if data == "covtype-2":
        y = (y == 1).astype(np.int64)  # its second class against the rest
    if data == "mnist-2":
        y = y % 2
    if data == "wine-2":
        y = (y >= 6).astype(np.int64)
    return x, y, marks


def _diabetes_numbers() -> tuple[Array, Array]:
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return x, y


def _made(data: str) -> tuple[Array, Array, Ints]:
    """XOR or a disc in the first two of four even features; a twentieth of the labels is flipped."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (MADE_ROWS, MADE_FEATURES))
    inside = x[:, 0] * x[:, 1] > 0 if data == "xor" else x[:, 0] ** 2 + x[:, 1] ** 2 < 2 / np.pi  # half of the square
    return x, (inside ^ (rng.random(MADE_ROWS) < MADE_FLIPPED)).astype(np.int64), np.zeros(MADE_ROWS, np.int64)
