"""One natural problem: public rows, which judge, and parties' records, all from the cell and the seed.

Public rows are drawn first, then each party draws from each stratum its share of what is left: no row is used twice,
but for two identical parties. A stratum that has too few rows left makes a party smaller.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpvalue.arrays import Array, Floats, Ints
from dpvalue.errors import DpvalueError
from dpvalue.experiments.consortium.defects import Public, Records, wrong_labels
from dpvalue.experiments.consortium.natural.cells import NaturalCell
from dpvalue.experiments.consortium.natural.sources import COMPONENTS, LARGE, SIZES, Population, population
from dpvalue.experiments.consortium.problems import LEAST_RECORDS, PartyProblem

CONCENTRATION = 0.3
WRONG_SITES = 3
LEAST_OWNED = 1 / 8
OWNER, TWIN, OTHER_SHARE, WRONG, HIDDEN = "only-owner", "twin", "other-share", "wrong-labels", "not-public"


@dataclass(frozen=True, eq=False)
class DealPlan:
    """Who draws what.

    Attributes:
        shares: of each stratum in each party (parties, strata), rows sum to 1.
        public: which strata public rows are from.
        marks: what is special about each party; "" for nothing.
    """

    shares: Floats
    public: Array
    marks: tuple[str, ...]


def make_natural(cell: NaturalCell, seed: int, folder: str | Path | None = None) -> PartyProblem:
    """Return a problem of a natural cell; what is special about a party stands in `defects`.

    Files (covtype.npz, mnist.npz, winequality-red.csv, heart-disease/) are read from the folder.
    """
    rows = population(cell, folder)
    # The same draws whatever the number of public rows is, so that cells that differ by it can be compared.
    rng = np.random.default_rng([seed, zlib.crc32(f"{cell.data}/{cell.kind}/{cell.n}".encode())])
    plan = _planned(cell, rows, rng)
    order = rng.permutation(len(rows.y))
    public = _public(cell, rows, plan, order)
    left = order[~np.isin(order, public)]
    parts = _drawn(cell, rows, plan, left, rng)
    if cell.kind == "identical":
        first, second = (j for j, mark in enumerate(plan.marks) if mark == TWIN)
        parts[second] = parts[first]
    records = _records(rows, public, parts)
    known = Public(records[0], cell.regression)
    parties = [
        wrong_labels(own, known, rng) if mark == WRONG else own
        for own, mark in zip(records[1:], plan.marks, strict=True)
    ]
    names = tuple(f"party {number:02}" for number in range(1, cell.n + 1))
    return PartyProblem(cell, seed, known, tuple(parties), names, plan.marks)


def _planned(cell: NaturalCell, rows: Population, rng: np.random.Generator) -> DealPlan:
    """Draw who has what."""
    count = int(rows.strata.max()) + 1
    natural = np.bincount(rows.strata, minlength=count) / len(rows.strata)
    public, marks = np.ones(count, bool), [""] * cell.n
    shares = np.tile(natural, (cell.n, 1))
    who = rng.permutation(cell.n)
    if cell.kind in ("regions", "public-one", "identical", "lacks-region", "age", "mass", "alcohol", "radius"):
        shares = _pairs(rows, cell.n, rng) if rows.shares is None else rows.shares[who]
    elif cell.kind == "disjoint":
        shares = _disjoint(natural, rng.permutation(count), cell.n)
    elif cell.kind in ("dirichlet", "lacks-class"):
        shares = rng.dirichlet(np.full(count, CONCENTRATION), cell.n)
    if cell.kind == "public-one":
        public = np.arange(count) == 0
    elif cell.kind in ("lacks-region", "lacks-class"):
        # The last class stays public, so that the number of classes can be told from public labels.
        regions = rows.regions[:-1] if cell.kind == "lacks-class" else rows.regions
        hidden = np.isin(np.arange(count), regions[rng.integers(len(regions))])
        public = ~hidden
        marks = [HIDDEN if share[hidden].sum() >= 0.5 * share.sum() else "" for share in shares]
    elif cell.kind in ("only-region", "only-class"):
        region = np.isin(np.arange(count), _owned(cell, rows, natural, rng))
        shares[:, region] = 0
        own = np.where(region, natural, 0)
        half = 1.0 if cell.kind == "only-region" else 0.5
        shares[who[0]] = half * own / own.sum() + (1 - half) * shares[who[0]] / shares[who[0]].sum()
        marks[who[0]] = OWNER
    elif cell.kind == "label-share":
        shares[who[0]] = _tilted(natural)
        marks[who[0]] = OTHER_SHARE
    for mark, some in (
        (TWIN, 2 if cell.kind == "identical" else 0),
        (WRONG, WRONG_SITES if cell.kind == "sites" else 0),
    ):
        for party in who[:some]:
            marks[party] = mark
    return DealPlan(shares / shares.sum(1, keepdims=True), public, tuple(marks))


def _owned(cell: NaturalCell, rows: Population, natural: Floats, rng: np.random.Generator) -> tuple[int, ...]:
    """The region or class that has an only owner: of two classes the second; no region that hardly any row is from."""
    if cell.kind == "only-class":
        return (1,) if cell.two_class else rows.regions[rng.integers(len(rows.regions))]
    known = [region for region in rows.regions if natural[list(region)].sum() >= LEAST_OWNED]
    return known[rng.integers(len(known))]


def _pairs(rows: Population, n: int, rng: np.random.Generator) -> Floats:
    """Each party has two strata, those of a region of its own."""
    shares = np.zeros((n, int(rows.strata.max()) + 1))
    for party, region in enumerate(rng.permutation(len(rows.regions))[:n]):
        shares[party, rows.regions[region]] = 1 / len(rows.regions[region])
    return shares


def _disjoint(natural: Floats, order: Ints, n: int) -> Floats:
    """Each class is in one party; some have two, if there are more classes than parties."""
    shares = np.zeros((n, len(order)))
    for party, classes in enumerate(np.array_split(order, n)):
        shares[party, classes] = natural[classes]
    return shares


def _tilted(natural: Floats) -> Floats:
    """The rarer of the two most frequent classes has 85% of them."""
    first, second = np.argsort(-natural, kind="stable")[:2]
    both, shares = natural[first] + natural[second], natural.copy()
    shares[first], shares[second] = 0.15 * both, 0.85 * both
    return shares


def _public(cell: NaturalCell, rows: Population, plan: DealPlan, order: Ints) -> Ints:
    """The public rows; every class that their strata have is among them."""
    allowed = order[plan.public[rows.strata[order]]]
    wanted = cell.public or SIZES[cell.data].public
    if cell.kind == "public-one":
        wanted = len(allowed) // 2  # the region's parties have the other half
    if not cell.regression:
        firsts = np.array([np.argmax(rows.y[allowed] == label) for label in np.unique(rows.y[allowed])])
        front = firsts[firsts >= wanted]
        allowed = np.r_[allowed[front], np.delete(allowed, front)]
    return np.asarray(allowed[:wanted])


def _drawn(cell: NaturalCell, rows: Population, plan: DealPlan, left: Ints, rng: np.random.Generator) -> list[Ints]:
    """The rows of each party."""
    stock = [left[rows.strata[left] == stratum] for stratum in range(plan.shares.shape[1])]
    asked = _counts(cell, plan, stock, rng)
    taken = np.cumsum(asked, axis=0)
    parts = [
        np.concatenate([own[taken[party, stratum] - asked[party, stratum] : taken[party, stratum]]
                        for stratum, own in enumerate(stock)])
        for party in range(cell.n)
    ]  # fmt: skip
    short = [party for party, part in enumerate(parts) if len(part) < LEAST_RECORDS]
    if short:
        raise DpvalueError(f"the rows of {cell.name} are too few: party {short[0] + 1} has {len(parts[short[0]])}")
    return parts


def _counts(cell: NaturalCell, plan: DealPlan, stock: list[Ints], rng: np.random.Generator) -> Ints:
    """How many rows each party draws from each stratum (parties, strata), no more than there are."""
    available = np.array([len(own) for own in stock])
    sizes = SIZES[cell.data]
    if sizes.least is None or sizes.most is None:
        return np.asarray(available * plan.shares // plan.shares.sum(0), dtype=np.int64)
    least, most = LARGE if cell.large else (sizes.least, sizes.most)
    wanted = np.exp(rng.uniform(np.log(least), np.log(most), cell.n)).astype(np.int64)
    asked = np.array([rng.multinomial(size, share) for size, share in zip(wanted, plan.shares, strict=True)])
    over = asked.sum(0) > available  # what is too little is shared by what was asked for
    asked[:, over] = asked[:, over] * available[over] // asked[:, over].sum(0)
    return asked


def _records(rows: Population, public: Ints, parts: list[Ints]) -> list[Records]:
    """The records of the public, and of each party; images as their principal components among public images."""
    drawn = [public, *parts]
    features = [rows.x[some].astype(np.float64) for some in drawn]
    if rows.x.shape[1] in (64, 784):
        mean = features[0].mean(0)
        axes = np.linalg.svd(features[0] - mean, full_matrices=False)[2][:COMPONENTS]
        signs = np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])
        features = [(x - mean) @ (axes * signs[:, None]).T for x in features]
    return [Records(x, rows.y[some], some) for x, some in zip(features, drawn, strict=True)]
