"""The model of a coalition: a public forest whose leaves hold the coalition's class shares.

A node holds the counts of the leaves below it, summed over the coalition's members. Its class shares are smoothed
towards those of its parent, at the root towards equal shares of all classes:

    share(node) = (counts(node) + a share(parent)) / (total(node) + a).

At the root a = 1. Elsewhere it grows with the noise: of N counted records in the L leaves below a node, whose counts
have noise of variance V each,

    a = smoothing (1 + L V / max(N, 1)).

Chance in shares of N records is of the order 1 / N and noise of the order L V / N^2: their ratio is what is added.
Where noise is strong, small leaves say what their parents do.

The forest's probabilities are in proportion to exp(sharpness * mean over trees of log share), of the leaves that a row
falls into. A public row judges the trees alone that it did not grow. Nobody, whose counts are zero, predicts all
classes alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import CustomMetric, PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.errors import DpvalueError
from dpvalue.methods.growing import fold_of
from dpvalue.models import Forest

_AT_ROOT = 1.0
_PIECE = 2**21  # numbers made at once: about what a cache holds, with room for a large forest


@dataclass(frozen=True, eq=False)
class Grown:
    """A public forest and how its leaves are read: the public side of counts.

    Attributes:
        forest: the trees.
        classes: the number of classes.
        judged_by: the fold of the public rows that judges each tree, as it did not grow it (trees,).
        salt: what decides on the folds.
        smoothing: how many records the shares of the parent count for in a node.
        sharpness: by which the mean of logarithms over trees is multiplied.
    """

    forest: Forest
    classes: int
    judged_by: Ints
    salt: int
    smoothing: float
    sharpness: float

    def __post_init__(self) -> None:
        folds = set(self.judged_by.tolist())
        if self.judged_by.shape != (self.forest.trees,) or folds != set(range(len(folds))) or len(folds) < 2:
            raise DpvalueError("judged_by must say for each tree which fold judges it, and name two folds or more")

    @property
    def folds(self) -> int:
        """The number of folds."""
        return int(self.judged_by.max()) + 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Trees, leaves and classes."""
        return self.forest.trees, self.forest.leaves, self.classes

    @cached_property
    def _levels(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each depth from 1 on: the nodes there (k,) as numbers of tree and node, and places of their parents."""
        forest, trees = self.forest, np.arange(self.forest.trees)
        parent = np.full(forest.feature.shape, -1, dtype=np.int64)
        for above_it in range(forest.nodes):
            inner = forest.is_inner[:, above_it]
            for child in (forest.left[:, above_it], forest.right[:, above_it]):
                parent[trees[inner], child[inner]] = above_it
        levels = []
        above = np.where(np.arange(forest.nodes) == 0, trees[:, None], -1)  # the place of a node in the level above
        for depth in range(1, int(forest.depth.max()) + 1):
            tree, node = np.nonzero((forest.depth == depth) & (parent >= 0))
            places = above[tree, parent[tree, node]]
            levels.append(tuple(torch.from_numpy(part) for part in (tree, node, places)))
            above = np.full_like(above, -1)
            above[tree, node] = np.arange(len(tree))
        return levels  # type: ignore[return-value]

    @cached_property
    def _below(self) -> Tensor:
        """Which leaves are below a node, or are it (trees, nodes, leaves), as ones."""
        forest = self.forest
        found = np.zeros((forest.trees, forest.nodes, forest.leaves))
        tree, node = np.nonzero(forest.leaf >= 0)
        found[tree, node, forest.leaf[tree, node]] = 1.0
        for above in range(forest.nodes - 1, -1, -1):
            inner = np.flatnonzero(forest.is_inner[:, above])
            for child in (forest.left[inner, above], forest.right[inner, above]):
                found[inner, above] += found[inner, child]
        return torch.from_numpy(found)

    @cached_property
    def _leaves_below(self) -> Tensor:
        """How many leaves are below a node, or are it (trees, nodes)."""
        return self._below.sum(2)

    def shares(self, sums: Tensor, variance: Tensor) -> Tensor:
        """Return the class shares in each leaf (trees, leaves, classes, c).

        Args:
            sums: counts (trees, leaves, classes, c).
            variance: of the noise in each count (c,).
        """
        trees, leaves, classes, count = sums.shape
        counts = torch.bmm(self._below.to(sums), sums.reshape(trees, leaves, -1)).clamp_min(0.0)
        counts = counts.view(trees, -1, classes, count)
        totals = counts.sum(2, keepdim=True)
        level = (counts[:, 0] + _AT_ROOT / classes) / (totals[:, 0] + _AT_ROOT)
        kept = [level]
        for tree, node, places in self._levels:
            total = totals[tree, node]
            noise = self._leaves_below[tree, node].to(sums)[:, None, None] * variance
            smoothing = self.smoothing * (1 + noise / total.clamp_min(1.0))
            level = (counts[tree, node] + smoothing * level[places]) / (total + smoothing)
            kept.append(level)
        found: Tensor = torch.cat(kept)[self._leaf_places].view(trees, leaves, classes, count)
        return found

    @cached_property
    def _leaf_places(self) -> Tensor:
        """Where leaves (trees x leaves,) stand among roots and levels; of numbers that a tree has not, its root."""
        forest = self.forest
        trees = np.concatenate([np.arange(forest.trees), *(tree.numpy() for tree, _, _ in self._levels)])
        nodes = np.concatenate([np.zeros(forest.trees, dtype=np.int64), *(node.numpy() for _, node, _ in self._levels)])
        found = np.tile(np.arange(forest.trees)[:, None], (1, forest.leaves))
        leaf = forest.leaf[trees, nodes]
        here = np.flatnonzero(leaf >= 0)
        found[trees[here], leaf[here]] = here
        return torch.from_numpy(found.ravel())


@dataclass(frozen=True, eq=False)
class _Judged:
    """The public rows of one fold: which trees they judge, and their different ways through these trees.

    `cells` are the leaves (trees, ways) as places among all leaves; `labels` are numbers of rows (classes, ways);
    `rows` are the places of the rows, and `way` is the way of each.
    """

    cells: Tensor
    labels: Tensor
    rows: Tensor
    way: Tensor


class Judge:
    """What class counts are worth on public rows, many coalitions at once.

    Formal guarantee: reads what it is given and public rows.

    Args:
        grown: the forest.
        public: the rows that judge.
        engine: where to compute.
    """

    def __init__(self, grown: Grown, public: PublicSet, engine: Engine) -> None:
        if public.l2:
            raise DpvalueError("l2 must be 0 for model='trees', which has no parameters")
        self.grown, self._engine, self._metric = grown, engine, public.metric
        self._y = public.y.cpu()
        leaf, fold = grown.forest.leaf_of(public.x.flatten(1)).cpu().numpy(), fold_of(public.x, grown.salt, grown.folds)
        parts = [self._judged(leaf, fold == one, grown.judged_by == one) for one in range(grown.folds)]
        self._parts = [part for part in parts if part is not None]
        self._offset, self._slope = (0.0, 0.0) if public.metric.of_loss is None else public.metric.of_loss(public.y)
        trees, leaves, classes = grown.shape
        ways = sum(part.cells.shape[1] for part in self._parts)
        numbers = 3 * trees * 2 * leaves * classes + 2 * ways * classes
        if public.metric.worth is not None:
            numbers += 4 * len(self._y) * classes
        self.batch = max(1, min(4096, _PIECE // numbers))

    @property
    def is_smooth(self) -> bool:
        """Whether worths have slopes: those of the loss do."""
        return self._metric.of_loss is not None

    def _judged(self, leaf: Ints, which: np.ndarray, trees: np.ndarray) -> _Judged | None:
        if not which.any():
            return None
        rows, used = np.flatnonzero(which), np.flatnonzero(trees)
        ways, way = np.unique(leaf[rows][:, used], axis=0, return_inverse=True)
        way = way.reshape(-1)
        labels = np.zeros((self.grown.classes, len(ways)))
        np.add.at(labels, (self._y.numpy()[rows], way), 1.0)
        cells = used[:, None] * self.grown.forest.leaves + ways.T
        return _Judged(*(torch.from_numpy(np.ascontiguousarray(part)) for part in (cells, labels, rows, way)))

    def __call__(self, sums: Tensor) -> Floats:
        """Return the worth (c,), in float64.

        Args:
            sums: counts and, in the last column, the variance of their noise (c, trees x leaves x classes + 1).
        """
        share = not isinstance(self._metric.worth, CustomMetric)  # a caller's function has its own thread
        worths = self._engine.map(self.worths, sums.split(self.batch), share)
        found: Floats = torch.cat(worths).numpy()
        return found

    def worths(self, sums: Tensor) -> Tensor:
        """Return the same for a few, all at once; with slopes where sums have them and the metric is smooth."""
        counts = sums[:, :-1].T.reshape(*self.grown.shape, len(sums))
        logs = self.grown.shares(counts, sums[:, -1]).log().flatten(0, 1)
        means = [self.grown.sharpness * logs[part.cells].mean(0) for part in self._parts]  # (ways, classes, c)
        chances = [mean.log_softmax(1) for mean in means]
        if self._metric.worth is None:
            pairs = zip(self._parts, chances, strict=True)
            told = sum((torch.einsum("kw,wkc->c", part.labels, chance) for part, chance in pairs), sums.sum() * 0)
            return self._offset + self._slope * told / len(self._y)
        outputs = sums.new_empty(len(self._y), self.grown.classes, len(sums))
        for part, chance in zip(self._parts, chances, strict=True):
            outputs[part.rows] = chance[part.way].exp()
        return self._metric.worth(outputs.permute(2, 0, 1).contiguous(), self._y)
