"""Growing a public forest: trees on halves of the public rows, each to be judged by the rows that did not grow it.

A tree grows greedily: the leaf whose best split lowers the Gini impurity most is split next, until there are enough
leaves. Splits lie halfway between public values of a feature, at most 32 to a feature. Each tree sees a bootstrap of
its rows, and each split a random part of the features, so that trees differ. All sums are of whole numbers, so that
the same public file grows the same trees on any machine.

Which half a public row is in is a function of its features: equal rows are in the same half, and a row keeps its half
in every file that it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Bools, Ints, Words
from dpvalue.models import Forest

HALVES = 2
_BINS = 32
_LEAST_IN_LEAF = 5
_SALTS = 32
_PIECE = 2**22  # numbers of rows x features that are counted at once


def half_of(x: Tensor, salt: int) -> Ints:
    """Return the half, 0 or 1, of each public row with these features (rows, ...): a function of the row alone."""
    numbers = x.flatten(1).to("cpu", torch.float32).numpy() + np.float32(0)  # of -0 and 0 one
    state = np.full(len(numbers), 0x9E3779B97F4A7C15 * (salt + 1) % 2**64, dtype=np.uint64)
    for column in np.ascontiguousarray(numbers.T).view(np.uint32):
        state = _mixed(state ^ column)
    return (state >> np.uint64(63)).astype(np.int64)


def _mixed(state: Words) -> Words:
    """The finaliser of splitmix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(state ^ (state >> np.uint64(31)))


def even_salt(x: Tensor, y: Tensor) -> int:
    """Return the salt for which the halves of public rows are most alike in their numbers of rows of each class."""
    labels = y.cpu().numpy()
    classes = int(labels.max()) + 1

    def apart(salt: int) -> float:
        half = half_of(x, salt)
        by_class = [np.bincount(labels[half == one], minlength=classes) for one in range(HALVES)]
        return float(np.abs(by_class[0] - by_class[1]).sum() + abs(int(by_class[0].sum()) - int(by_class[1].sum())))

    return min(range(_SALTS), key=apart)


def grow_forest(
    x: Tensor, y: Tensor, classes: int, half: Ints, trees: int, leaves: int, generator: np.random.Generator
) -> tuple[Forest, Ints]:
    """Return a forest of public rows, and the half that each tree was grown on.

    Formal guarantee: reads public rows only.

    Args:
        x: features (rows, ...).
        y: classes (rows,).
        classes: how many there are.
        half: that each row is in (rows,).
        trees: how many in all; they take turns at the halves.
        leaves: the most of a tree.
        generator: of bootstraps and parts of features.
    """
    features = x.flatten(1).to("cpu", torch.float32).numpy()
    labels = y.cpu().numpy()
    grown_on = np.arange(trees, dtype=np.int64) % HALVES
    sides = []
    for one in range(HALVES):
        rows = np.flatnonzero(half == one)
        rows = rows if len(rows) else np.arange(len(labels))  # all public rows are equal
        sides.append(_Side(features[rows], labels[rows], classes))
    grown = [sides[one].tree(leaves, generator) for one in grown_on]
    return _packed(grown), grown_on


@dataclass
class _Node:
    """A node while its tree grows; `rows` repeat as the bootstrap has them."""

    rows: Ints
    gain: float
    feature: int
    bin: int
    children: tuple[int, int] | None = None


class _Side:
    """The rows of one half, in bins of their features' values."""

    def __init__(self, features: Array, labels: Ints, classes: int) -> None:
        self._labels, self._classes = labels, classes
        self.edges = [_edges(column) for column in features.T]
        binned = [np.searchsorted(edges, column) for edges, column in zip(self.edges, features.T, strict=True)]
        self._bins = np.stack(binned, axis=1).astype(np.int64)

    def tree(self, leaves: int, generator: np.random.Generator) -> tuple[list[_Node], list[Array]]:
        """Grow one tree."""
        count, _features = self._bins.shape
        drawn = np.asarray(generator.integers(count, size=(count,)), dtype=np.int64)
        nodes = [self._node(drawn, generator)]
        ends = 1
        while ends < leaves:
            best = max(range(len(nodes)), key=lambda at: nodes[at].gain if nodes[at].children is None else -1.0)
            node = nodes[best]
            if node.children is not None or node.gain <= 0:
                break
            low = self._bins[node.rows, node.feature] <= node.bin
            node.children = len(nodes), len(nodes) + 1
            nodes += [self._node(node.rows[side], generator) for side in (low, ~low)]
            ends += 1
        return nodes, self.edges

    def _node(self, rows: Ints, generator: np.random.Generator) -> _Node:
        """A leaf of these rows, with its best split among a random part of the features."""
        features = self._bins.shape[1]
        part = np.sort(generator.permutation(features)[: max(1, -(-features // 2))])
        gain, feature, place = 0.0, 0, 0
        step = max(1, _PIECE // max(1, len(rows)))
        for first in range(0, len(part), step):
            some = part[first : first + step]
            found, at, edge = self._best(rows, some)
            if found > gain:
                gain, feature, place = found, int(some[at]), edge
        return _Node(rows, gain, feature, place)

    def _best(self, rows: Ints, part: Ints) -> tuple[float, int, int]:
        """The largest fall of the sum of squared counts over counts, where it is and at which bin."""
        classes, bins = self._classes, _BINS + 1
        cells = self._bins[rows][:, part] * classes + self._labels[rows][:, None]
        cells += np.arange(len(part)) * (bins * classes)
        counts = np.bincount(cells.ravel(), minlength=len(part) * bins * classes).reshape(len(part), bins, classes)
        low = counts.cumsum(1)[:, :-1]
        total = counts.sum(1, keepdims=True)
        high = total - low
        below, above = low.sum(-1), high.sum(-1)
        pure = np.square(low).sum(-1) / np.maximum(below, 1) + np.square(high).sum(-1) / np.maximum(above, 1)
        gain = pure - np.square(total).sum(-1) / max(len(rows), 1)
        gain = np.where(self._allowed(below, above), gain, 0.0)
        at = int(gain.argmax())
        return float(gain.flat[at]), at // (bins - 1), at % (bins - 1)

    @staticmethod
    def _allowed(below: Ints, above: Ints) -> Bools:
        return np.asarray((below >= _LEAST_IN_LEAF) & (above >= _LEAST_IN_LEAF))


def _edges(column: Array) -> Array:
    """At most 32 numbers halfway between values of a feature, about as many rows between each two."""
    values = np.unique(column)
    if len(values) > _BINS + 1:
        values = np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1), method="nearest"))
    middle: Array = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    return middle


def _packed(grown: list[tuple[list[_Node], list[Array]]]) -> Forest:
    """The trees as arrays of one shape."""
    shape = len(grown), max(len(nodes) for nodes, _ in grown)
    feature, threshold = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    left = np.tile(np.arange(shape[1], dtype=np.int64), (shape[0], 1))
    right, leaf = left.copy(), np.full(shape, -1, dtype=np.int64)
    for tree, (nodes, edges) in enumerate(grown):
        number = 0
        for place, node in enumerate(nodes):
            if node.children is None:
                leaf[tree, place], number = number, number + 1
            else:
                feature[tree, place], threshold[tree, place] = node.feature, edges[node.feature][node.bin]
                left[tree, place], right[tree, place] = node.children
    return Forest(feature, threshold, left, right, leaf)
