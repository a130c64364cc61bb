"""Growing a public forest: each tree on some folds of the public rows, to be judged by the fold that it has not seen.

Trees are boosted: each is grown greedily on what the trees before it, of the same fold, leave unexplained of the
labels. The leaf whose best split explains most is split next, until there are enough leaves. Splits lie halfway
between public values of a feature, at most 32 to a feature; each split sees a random half of the features, so that
trees differ. What is left unexplained is rounded to whole steps, so that sums do not depend on their order.

Which fold a public row is in is a function of its features: equal rows are in the same fold, and a row keeps its fold
in every file that it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Floats, Ints, Words
from dpvalue.methods.leaf_rule import ForestShape
from dpvalue.models import Forest

_BINS = 32
_SALTS = 32
_RATE = 0.5  # of boosting: how far a tree moves what is predicted
_STEPS = 2.0**10  # to which residuals are rounded, for a residual of 1
_LEAST_CURVED = 1e-3
_MOST_PREDICTED = 8.0
_PIECE = 2**22  # numbers of rows x features that are counted at once


def fold_of(x: Tensor, salt: int, folds: int) -> Ints:
    """Return the fold, 0, 1, ..., of each public row with these features (rows, ...): a function of the row alone."""
    numbers = x.flatten(1).to("cpu", torch.float32).numpy() + np.float32(0)  # of -0 and 0 one
    state = np.full(len(numbers), 0x9E3779B97F4A7C15 * (salt + 1) % 2**64, dtype=np.uint64)
    for column in np.ascontiguousarray(numbers.T).view(np.uint32):
        state = _mixed(state ^ column)
    return ((state >> np.uint64(32)) % np.uint64(folds)).astype(np.int64)


def _mixed(state: Words) -> Words:
    """The finaliser of splitmix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state = (state ^ (state >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(state ^ (state >> np.uint64(31)))


def even_salt(x: Tensor, y: Tensor, folds: int) -> int:
    """Return the salt for which the folds of public rows are most alike in their numbers of rows of each class."""
    labels = y.cpu().numpy()
    classes = int(labels.max()) + 1

    def apart(salt: int) -> float:
        fold = fold_of(x, salt, folds)
        by_class = np.stack([np.bincount(labels[fold == one], minlength=classes) for one in range(folds)])
        totals = by_class.sum(1)
        return float(np.abs(by_class - by_class.mean(0)).sum() + np.abs(totals - totals.mean()).sum())

    return min(range(_SALTS), key=apart)


def grow_forest(
    x: Tensor, y: Tensor, classes: int, fold: Ints, shape: ForestShape, generator: np.random.Generator
) -> tuple[Forest, Ints]:
    """Return a forest of public rows, and the fold that judges each tree: the one that did not grow it.

    Formal guarantee: reads public rows only.

    Args:
        x: features (rows, ...).
        y: classes (rows,).
        classes: how many there are.
        fold: that each row is in (rows,).
        shape: how many trees in all, of how many leaves, by how many folds; trees take turns at the folds.
        generator: of parts of features.
    """
    features = x.flatten(1).to("cpu", torch.float32).numpy()
    labels = y.cpu().numpy()
    judged_by = np.arange(shape.trees, dtype=np.int64) % shape.folds
    grown: list[tuple[list[_Node], list[Array]]] = [([], [])] * shape.trees
    for one in range(shape.folds):
        rows = np.flatnonzero(fold != one)
        rows = rows if len(rows) else np.arange(len(labels))  # all public rows are equal
        booster = _Booster(features[rows], labels[rows], classes, shape)
        for tree in np.flatnonzero(judged_by == one):
            grown[tree] = booster.tree(generator), booster.edges
    return _packed(grown), judged_by


@dataclass
class _Node:
    """A node while its tree grows."""

    rows: Ints
    gain: float
    feature: int
    bin: int
    children: tuple[int, int] | None = None


class _Booster:
    """The rows of all folds but one, in bins of their features' values, and what trees so far predict of them."""

    def __init__(self, features: Array, labels: Ints, classes: int, shape: ForestShape) -> None:
        self._hot = (labels[:, None] == np.arange(classes)).astype(np.float64)
        self._shape, self._least = shape, min(shape.least, max(1, len(labels) // (3 * shape.leaves)))
        self.edges = [_edges(column) for column in features.T]
        binned = [np.searchsorted(edges, column) for edges, column in zip(self.edges, features.T, strict=True)]
        self._bins = np.stack(binned, axis=1).astype(np.int64)
        shares = (self._hot.sum(0) + 1) / (len(labels) + classes)
        self._predicted = np.tile(np.log(shares), (len(labels), 1))
        self._residuals = np.zeros_like(self._hot)

    def tree(self, generator: np.random.Generator) -> list[_Node]:
        """Grow the next tree."""
        chances = np.exp(self._predicted - self._predicted.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        self._residuals = np.rint((self._hot - chances) * _STEPS)
        nodes = [self._node(np.arange(len(self._hot)), generator)]
        ends = 1
        while ends < self._shape.leaves:
            best = max(range(len(nodes)), key=lambda at: nodes[at].gain if nodes[at].children is None else -1.0)
            node = nodes[best]
            if node.children is not None or node.gain <= 0:
                break
            low = self._bins[node.rows, node.feature] <= node.bin
            node.children = len(nodes), len(nodes) + 1
            nodes += [self._node(node.rows[side], generator) for side in (low, ~low)]
            ends += 1
        self._move([node.rows for node in nodes if node.children is None], chances)
        return nodes

    def _move(self, leaves: list[Ints], chances: Floats) -> None:
        """Predict what the new tree says: a part of Newton's step in each leaf."""
        classes = self._hot.shape[1]
        for rows in leaves:
            slope = self._residuals[rows].sum(0) / _STEPS
            curve = (chances[rows] * (1 - chances[rows])).sum(0) + _LEAST_CURVED
            self._predicted[rows] += _RATE * (classes - 1) / classes * slope / curve
        np.clip(self._predicted, -_MOST_PREDICTED, _MOST_PREDICTED, out=self._predicted)

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
        """The largest rise of squared sums of residuals over counts, where it is and at which bin."""
        bins, count = _BINS + 1, len(part)
        cells = (self._bins[rows][:, part] + np.arange(count) * bins).ravel()
        below = np.bincount(cells, minlength=count * bins).reshape(count, bins).cumsum(1)[:, :-1]
        above = len(rows) - below
        gain = np.zeros((count, bins - 1))
        for residuals in self._residuals[rows].T:
            sums = np.bincount(cells, np.repeat(residuals, count), count * bins).reshape(count, bins)
            low, total = sums.cumsum(1)[:, :-1], residuals.sum()
            gain += (
                low**2 / np.maximum(below, 1) + (total - low) ** 2 / np.maximum(above, 1) - total**2 / max(len(rows), 1)
            )
        gain = np.where((below >= self._least) & (above >= self._least), gain, 0.0)
        at = int(gain.argmax())
        return float(gain.flat[at]), at // (bins - 1), at % (bins - 1)


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
