"""Which records a party holds that others lack, from noisy counts in public trees: free, and in words.

A cell is a class, or a node near the root of a public tree: all records for which one or two features lie on one side
of a threshold. A party's share of a cell is its noisy count over everybody's. Its interval holds the noise of both, at
a level for all parties and cells together, so that no statement is made of noise by looking at many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from dpvalue.arrays import Floats, Ints
from dpvalue.data.encoding import Encoding
from dpvalue.display import join_names, one_line
from dpvalue.methods.leaves import Grown
from dpvalue.models import Forest

_DEEPEST = 2  # conditions of a cell
_MOSTLY = 0.5  # a cell is a party's if it holds more of it, for sure
_BEYOND = 1.25  # and more than its share of all records by this factor
_MOST_OF_PARTY = 2
_DIGITS = 4
_LEAST_KNOWN = 4.0  # standard deviations that everybody's count in a cell is from zero


@dataclass(frozen=True)
class CellHolding:
    """A party's share of all records of a cell, with its interval.

    Attributes:
        party: its name.
        cell: the records, in words that complete "records".
        share: of all parties' records in the cell.
        low: the lower end of its 95% interval.
        high: the upper end.
        of_all: the party's share of all records, which is public.
        counted: "record" or "person".
    """

    party: str
    cell: str
    share: float
    low: float
    high: float
    of_all: float
    counted: str = "record"

    def __str__(self) -> str:
        return (
            f"{self.party} holds {self.share:.0%} ({self.low:.0%} to {self.high:.0%}) of all {self.counted}s "
            f"{self.cell}, and {self.of_all:.0%} of all {self.counted}s."
        )


@dataclass(frozen=True, eq=False)
class _Cell:
    """A set of records.

    Attributes:
        words: which they are.
        weights: what each number of a release counts (size,).
        about: the features that it is about, and in which direction; one that is about more than another is narrower.
    """

    words: str
    weights: Floats
    about: frozenset[tuple[int, bool]]


def holdings(
    grown: Grown, rows: Floats, noise_std: Floats, units: Ints, names: tuple[Any, ...], encoding: Encoding, counted: str
) -> tuple[CellHolding, ...]:
    """Return what parties mostly hold themselves, for sure, by party.

    Formal guarantee: a function of releases and of public things.

    Args:
        grown: the public trees.
        rows: the releases (n, size).
        noise_std: the noise in them (n,).
        units: the parties' public numbers of units (n,).
        names: of the parties.
        encoding: of rows, which says what features are called.
        counted: "record" or "person".
    """
    cells = [*_classes(grown, encoding.classes), *_nodes(grown, encoding)]
    weights = np.stack([cell.weights for cell in cells])
    counts = (rows @ weights.T) * units[:, None]
    variances = np.square(noise_std * units)[:, None] * np.square(weights).sum(1)
    total, spread = counts.sum(0), np.sqrt(variances.sum(0))
    known = total > np.maximum(_LEAST_KNOWN * spread, 0.5)
    share = counts / np.where(known, total, 1.0)
    off = np.sqrt(np.square(1 - share) * variances + np.square(share) * (variances.sum(0) - variances))
    sure = NormalDist().inv_cdf(1 - 0.025 / counts.size)
    half = sure * off / np.where(known, total, 1.0)
    low, high = np.clip(share - half, 0, 1), np.clip(share + half, 0, 1)
    of_all = units / max(int(units.sum()), 1)
    mostly = known & (low > _MOSTLY) & (low > _BEYOND * of_all[:, None])
    found = []
    for party, name in enumerate(names):
        beyond = np.where(mostly[party], (low[party] - of_all[party]) * total, 0.0)
        chosen: list[int] = []
        for place in np.argsort(-beyond, kind="stable").tolist():
            is_said = any(cells[place].about >= cells[other].about for other in chosen)
            if mostly[party, place] and not is_said and len(chosen) < _MOST_OF_PARTY:
                chosen.append(place)
        for place in chosen:
            middle, least, most = (
                round(min(max(float(end[party, place]), 0.0), 1.0), _DIGITS) for end in (share, low, high)
            )
            size = round(float(of_all[party]), _DIGITS)
            found.append(CellHolding(one_line(str(name)), cells[place].words, middle, least, most, size, counted))
    return tuple(found)


def _classes(grown: Grown, classes: tuple[Any, ...]) -> Iterator[_Cell]:
    """All records of a class, by the mean over trees."""
    for number, name in enumerate(classes):
        weights = np.zeros(grown.shape)
        weights[:, :, number] = 1 / grown.forest.trees
        used = np.zeros(grown.shape[:2], dtype=bool)
        tree, node = np.nonzero(grown.forest.leaf >= 0)
        used[tree, grown.forest.leaf[tree, node]] = True
        yield _Cell(f"of class {one_line(str(name))}", (weights * used[:, :, None]).ravel(), frozenset([(-1, True)]))


def _nodes(grown: Grown, encoding: Encoding) -> Iterator[_Cell]:
    """The nodes near the roots of trees; the same conditions once."""
    forest, names = grown.forest, _features(encoding)
    seen: set[str] = set()
    for tree in range(forest.trees):
        ways: list[tuple[int, tuple[tuple[int, float, bool], ...]]] = [(0, ())]
        while ways:
            node, conditions = ways.pop(0)
            words = _words(conditions, names)
            if conditions and words not in seen:
                seen.add(words)
                about = frozenset((feature, above) for feature, _, above in conditions)
                yield _Cell(f"with {words}", _below(forest, tree, node, grown.classes), about)
            if forest.is_inner[tree, node] and len(conditions) < _DEEPEST:
                at = int(forest.feature[tree, node]), float(forest.threshold[tree, node])
                ways.append((int(forest.left[tree, node]), (*conditions, (*at, False))))
                ways.append((int(forest.right[tree, node]), (*conditions, (*at, True))))


def _below(forest: Forest, tree: int, node: int, classes: int) -> Floats:
    """A one for each number of a release that counts records below a node."""
    weights = np.zeros((forest.trees, forest.leaves, classes))
    nodes = [node]
    while nodes:
        at = nodes.pop()
        if forest.is_inner[tree, at]:
            nodes += [int(forest.left[tree, at]), int(forest.right[tree, at])]
        else:
            weights[tree, forest.leaf[tree, at]] = 1.0
    return weights.ravel()


@dataclass(frozen=True)
class _Feature:
    """What a feature is called, and what its number stands for; with a category, it is a one where that is met."""

    name: str
    mean: float = 0.0
    scale: float = 1.0
    category: str | None = None


def _features(encoding: Encoding) -> list[_Feature]:
    """The names of encoded features: of columns where the library encoded them, else numbers."""
    if encoding.schema is not None:
        found = []
        for column in encoding.schema:
            name = one_line(column["name"])
            if "categories" in column:
                found += [_Feature(name, category=one_line(category)) for category in column["categories"]]
            else:
                found.append(_Feature(name, column["mean"], column["scale"]))
        return found
    count = int(np.prod(encoding.shape))
    if encoding.columns is not None and not encoding.preprocessed and len(encoding.columns) == count:
        return [_Feature(one_line(str(name))) for name in encoding.columns]
    kind = "encoded feature" if encoding.preprocessed else "feature"
    return [_Feature(f"{kind} {number}") for number in range(count)]


def _words(conditions: tuple[tuple[int, float, bool], ...], features: list[_Feature]) -> str:
    """Conditions in words: what each feature is above, and at most; a category is met or not."""
    said: dict[str, str] = {}
    bounds: dict[int, tuple[float, float]] = {}
    for number, threshold, above in conditions:
        low, high = bounds.get(number, (-np.inf, np.inf))
        bounds[number] = (max(low, threshold), high) if above else (low, min(high, threshold))
    for number, (low, high) in bounds.items():
        feature = features[number]
        if feature.category is not None:
            is_met = low > -np.inf
            said[f"{number}"] = f"{feature.name} {'' if is_met else 'not '}{feature.category!r}"
            continue
        least, most = (f"{feature.mean + feature.scale * bound:.4g}" for bound in (low, high))
        if low > -np.inf and high < np.inf:
            said[f"{number}"] = f"{feature.name} above {least} and at most {most}"
        else:
            said[f"{number}"] = f"{feature.name} {f'above {least}' if low > -np.inf else f'at most {most}'}"
    return join_names(list(said.values())) if len(said) > 1 else next(iter(said.values()), "")
