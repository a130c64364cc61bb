"""Growing a public forest: each tree on some folds of the public rows, to be judged by the fold that it has not seen.

Trees are extremely randomised: for a random half of the features a threshold is drawn between the least and the largest
value in a node, and the split that lowers the Gini impurity most is kept. The leaf whose split lowers it most is split
next, until there are enough leaves. Impurities are sums of whole numbers, so that they do not depend on their order.

Which fold a public row is in is a function of its features: equal rows are in the same fold, and a row keeps its fold
in every file that it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Ints, Words
from dpvalue.methods.leaf_rule import ForestShape
from dpvalue.models import Forest

_SALTS = 32


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
        generator: of features and thresholds.
    """
    features = x.flatten(1).to("cpu", torch.float32).numpy()
    labels = y.cpu().numpy()
    judged_by = np.arange(shape.trees, dtype=np.int64) % shape.folds
    grown: list[list[_Node]] = [[]] * shape.trees
    for one in range(shape.folds):
        rows = np.flatnonzero(fold != one)
        rows = rows if len(rows) else np.arange(len(labels))  # all public rows are equal
        grower = _Grower(features[rows], labels[rows], classes, shape)
        for tree in np.flatnonzero(judged_by == one):
            grown[tree] = grower.tree(generator)
    return _packed(grown), judged_by


@dataclass
class _Node:
    """A node while its tree grows."""

    rows: Ints
    gain: float
    feature: int
    threshold: float
    children: tuple[int, int] | None = None


class _Grower:
    """The rows of all folds but one."""

    def __init__(self, features: Array, labels: Ints, classes: int, shape: ForestShape) -> None:
        self._features, self._hot = features, (labels[:, None] == np.arange(classes)).astype(np.int64)
        self._shape, self._least = shape, min(shape.least, max(1, len(labels) // (3 * shape.leaves)))

    def tree(self, generator: np.random.Generator) -> list[_Node]:
        """Grow the next tree."""
        nodes = [self._node(np.arange(len(self._hot)), generator)]
        ends = 1
        while ends < self._shape.leaves:
            best = max(range(len(nodes)), key=lambda at: nodes[at].gain if nodes[at].children is None else -1.0)
            node = nodes[best]
            if node.children is not None or node.gain <= 0:
                break
            low = self._features[node.rows, node.feature] <= node.threshold
            node.children = len(nodes), len(nodes) + 1
            nodes += [self._node(node.rows[side], generator) for side in (low, ~low)]
            ends += 1
        return nodes

    def _node(self, rows: Ints, generator: np.random.Generator) -> _Node:
        """A leaf of these rows, with the best of one random split for each of a random half of the features."""
        features = self._features.shape[1]
        part = np.sort(generator.permutation(features)[: max(1, -(-features // 2))])
        values, hot = self._features[np.ix_(rows, part)], self._hot[rows]
        least, most = values.min(0), values.max(0)
        where = generator.random(len(part), dtype=np.float32)
        thresholds = np.minimum(least + where * (most - least), np.nextafter(most, least))  # none is left of nothing
        low = values <= thresholds
        below = low.sum(0)
        counts = low.T.astype(np.int64) @ hot
        total = hot.sum(0)
        gain = np.square(counts).sum(1) / np.maximum(below, 1)
        gain += np.square(total - counts).sum(1) / np.maximum(len(rows) - below, 1)
        gain -= np.square(total).sum() / max(len(rows), 1)
        gain = np.where((below >= self._least) & (len(rows) - below >= self._least), gain, 0.0)
        at = int(gain.argmax())
        return _Node(rows, float(gain[at]), int(part[at]), float(thresholds[at]))


def _packed(grown: list[list[_Node]]) -> Forest:
    """The trees as arrays of one shape."""
    shape = len(grown), max(map(len, grown))
    feature, threshold = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    left = np.tile(np.arange(shape[1], dtype=np.int64), (shape[0], 1))
    right, leaf = left.copy(), np.full(shape, -1, dtype=np.int64)
    for tree, nodes in enumerate(grown):
        number = 0
        for place, node in enumerate(nodes):
            if node.children is None:
                leaf[tree, place], number = number, number + 1
            else:
                feature[tree, place], threshold[tree, place] = node.feature, node.threshold
                left[tree, place], right[tree, place] = node.children
    return Forest(feature, threshold, left, right, leaf)
