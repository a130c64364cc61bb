"""One problem of the benchmark: public rows, and the records of each party, some of them with a defect.

Everything follows from the cell and the seed. Rows are drawn at random; the same seed has the same public rows in all
cells of a data set.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dpvalue.arrays import Array, Floats, Ints
from dpvalue.errors import DpvalueError
from dpvalue.experiments.consortium.cells import Cell, Named
from dpvalue.experiments.consortium.defects import DEFECTS, FREE_RIDER, ROWS_NEEDED, Public, Records
from dpvalue.experiments.paper.datasets import HOSPITALS, Arrays, load, load_hospitals

LEAST_RECORDS = 4
SKEW = 30


@dataclass(frozen=True)
class Source:
    """Where rows come from: a data set, how many are public, and the least and the most records of a party."""

    data: str
    public: int
    least: int
    most: int
    regression: bool = False

    @property
    def mean(self) -> float:
        """The mean number of records, if its logarithm is drawn evenly."""
        return float((self.most - self.least) / np.log(self.most / self.least))


SOURCES = {
    "covtype-2": Source("covertype", 1000, 100, 3000),
    "covtype-7": Source("covertype", 1000, 100, 3000),
    "breast-cancer": Source("breast-cancer", 200, 20, 60),
    "digits": Source("digits", 500, 60, 300),
    "wine": Source("wine", 300, 60, 300, regression=True),
}
HOSPITALS_PUBLIC = 180


@dataclass(frozen=True, eq=False)
class PartyProblem:
    """Public rows and the parties' records, as they are published.

    Attributes:
        cell: which problem.
        seed: which draw of it.
        public: the rows that everybody knows; they judge, and standardise.
        parties: each party's records.
        names: of the parties.
        defects: of each party; "" for none.
        scale: by how much sizes were cut, because rows do not suffice; 1 if they were not.
    """

    cell: Named
    seed: int
    public: Public
    parties: tuple[Records, ...]
    names: tuple[str, ...]
    defects: tuple[str, ...]
    scale: float = 1.0

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.parties)

    @property
    def sizes(self) -> Ints:
        """The number of records of each party, the blank ones too."""
        return np.array([len(records) for records in self.parties])

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.public.regression

    @property
    def classes(self) -> int:
        """The number of classes; 0 if labels are numbers."""
        return 0 if self.regression else len(self.public.frequent)

    @property
    def note(self) -> str:
        """What a reader of its numbers should know; empty if nothing."""
        return "" if self.scale == 1 else f"rows do not suffice: sizes are {self.scale:.2f} of those asked for"

    def ready(self, records: Records) -> Arrays:
        """Return features, and numbers to predict, standardised by the public rows; blank rows stay NaN."""
        y = records.y
        if self.regression:
            known = self.public.records.y
            y = (y - known.mean()) / known.std()
        return self.public.standardised(records.x), y

    def utility(self) -> Arrays:
        """Return the public rows as `dpvalue.value` takes them."""
        return self.ready(self.public.records)

    def private(self) -> tuple[Floats, Array, Array]:
        """Return all parties' rows as `dpvalue.value` takes them: features, labels, and the party of each (groups)."""
        parts = [self.ready(records) for records in self.parties]
        x, y = (np.concatenate(of_all) for of_all in zip(*parts, strict=True))
        return x, y, np.repeat(np.array(self.names), self.sizes)

    def fingerprint(self) -> str:
        """Return a text that differs for problems of other records, and is the same on every machine."""
        digest = hashlib.sha256()
        for records in (self.public.records, *self.parties):
            digest.update(records.rows.astype("<i8").tobytes() + records.y.astype("<f8").tobytes())
            digest.update(_balance(records.x).encode())
        return digest.hexdigest()[:16]


def make_problem(cell: Cell, seed: int, folder: str | Path | None = None) -> PartyProblem:
    """Return a problem; covtype.npz, winequality-red.csv or heart-disease/ are read from the folder."""
    if cell.problem == "heart":
        return _hospitals(cell, seed, folder)
    source = SOURCES[cell.problem]
    x, y = _loaded(source.data, str(folder) if folder is not None else None)
    if cell.problem == "covtype-2":
        y = (y == 1).astype(np.int64)  # its second class against the rest
    drawn, sizing, planting = (
        np.random.default_rng([seed, zlib.crc32(cell.problem.encode()), purpose]) for purpose in range(3)
    )
    order = _with_every_class(drawn.permutation(len(x)), y, source)
    everything = Records(x, y, np.arange(len(x)))
    public = Public(everything.take(order[: source.public]), source.regression)

    who = planting.permutation(cell.n)
    defects = [""] * cell.n
    for party, defect in zip(who, cell.planted, strict=False):
        defects[party] = defect
    factors = np.array([ROWS_NEEDED.get(defect, 1) for defect in defects])
    sizes, scale = _fitting(_sizes(cell, source, sizing), factors, len(x) - source.public)

    parts = np.split(order[source.public :], np.cumsum(sizes * factors))
    parties = [everything.take(part) for part in parts[:-1]]
    for party, defect in enumerate(defects):
        if defect in DEFECTS:
            parties[party] = DEFECTS[defect](parties[party], public, planting)
    if FREE_RIDER in defects:
        parties[defects.index(FREE_RIDER)] = parties[who[-1]]  # the last in line has no defect
    names = tuple(f"party {number:02}" for number in range(1, cell.n + 1))
    return PartyProblem(cell, seed, public, tuple(parties), names, tuple(defects), scale)


def _balance(x: Floats) -> str:
    """Where the weight of a matrix lies, to six digits: by the order of its cells, not by how sums are rounded."""
    rows, columns = np.ogrid[: x.shape[0], : x.shape[1]]
    places = (7919 * rows + 104_729 * columns) % 1009 / 1009 - 0.5
    cells = np.nan_to_num(x)
    return f"{(cells * places).sum() / max(1e-300, np.abs(cells).sum()):.6f}"


def _hospitals(cell: Cell, seed: int, folder: str | Path | None) -> PartyProblem:
    """Each hospital is a party; some rows of all of them, drawn at random, are public."""
    x, y, hospital = load_hospitals(folder)
    everything = Records(x, y, np.arange(len(x)))
    order = np.random.default_rng([seed, zlib.crc32(cell.problem.encode())]).permutation(len(x))
    public, private = order[:HOSPITALS_PUBLIC], order[HOSPITALS_PUBLIC:]
    parties = tuple(everything.take(private[hospital[private] == name]) for name in HOSPITALS)
    return PartyProblem(cell, seed, Public(everything.take(public), False), parties, HOSPITALS, ("",) * len(HOSPITALS))


@lru_cache(maxsize=2)
def _loaded(data: str, folder: str | None) -> Arrays:
    x, y = load(data, folder)
    x = x.astype(np.float64)
    x.flags.writeable = y.flags.writeable = False
    return x, y


def _with_every_class(order: Ints, y: Array, source: Source) -> Ints:
    """The order, changed so that the public rows, which come first, hold a row of every class."""
    if source.regression:
        return order
    for label in np.unique(y):
        if label not in y[order[: source.public]]:
            place = source.public + int(np.argmax(y[order[source.public :]] == label))
            frequent = int(np.argmax(y[order[: source.public]] == np.bincount(y).argmax()))
            order[[frequent, place]] = order[[place, frequent]]
    return order


def _sizes(cell: Cell, source: Source, rng: np.random.Generator) -> Floats:
    """The sizes that are asked for."""
    if cell.sizes == "range":
        return np.exp(rng.uniform(np.log(source.least), np.log(source.most), cell.n))
    if cell.sizes == "equal":
        return np.full(cell.n, source.mean)
    ladder = rng.permutation(np.geomspace(1, SKEW, cell.n))
    return np.asarray(ladder / ladder.mean() * source.mean)


def _fitting(sizes: Floats, factors: Ints, available: int) -> tuple[Ints, float]:
    """Sizes as whole numbers, and by how much they had to be cut to fit the rows that there are."""
    scale = min(1.0, available / float(sizes @ factors))
    whole = np.maximum((sizes * scale).astype(np.int64), LEAST_RECORDS)
    excess = int(whole @ factors) - available
    if excess > 0:  # the least sizes were raised
        whole[np.argmax(whole * (factors == 1))] -= excess
    if whole.min() < LEAST_RECORDS:
        raise DpvalueError(f"{available} rows are too few for {len(sizes)} parties")
    return whole, scale
