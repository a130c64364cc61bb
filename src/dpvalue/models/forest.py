"""Public decision trees as arrays, and what a record contributes to counts in their leaves.

A forest is data: five arrays, with nothing in them that is run. A record falls into one leaf of each tree, and
contributes a one at (tree, leaf, its class): B ones for B trees, and zeros elsewhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Bools, Ints
from dpvalue.errors import DpvalueError
from dpvalue.models.linear import Linear

MOST_TREES, MOST_LEAVES = 64, 256
MOST_CLASSES = 100

_KINDS = {"feature": np.int64, "threshold": np.float32, "left": np.int64, "right": np.int64, "leaf": np.int64}


@dataclass(frozen=True, eq=False)
class Forest:
    """Decision trees, all of the same shape of arrays (trees, nodes); the root of each tree is its node 0.

    A record goes from an inner node to `left` if its feature is at most the threshold, else to `right`; both stand
    after the node, so that every way ends. A node that is its own `left` and `right` is a leaf, whose number is in
    `leaf` (-1 elsewhere). Places that a small tree does not use are leaves without a number.

    Formal guarantee: every record, whatever its features, gets one leaf of each tree, by comparisons alone: a function
    of the record and of the forest. Arrays that do not describe such trees are refused.

    Args:
        feature: which feature an inner node compares.
        threshold: with what.
        left: where records go that are at most the threshold.
        right: where others go.
        leaf: the numbers of leaves, 0, 1, ... in each tree.
    """

    feature: Ints
    threshold: Array
    left: Ints
    right: Ints
    leaf: Ints

    def __post_init__(self) -> None:
        shape = self.feature.shape
        if len(shape) != 2 or not (1 <= shape[0] <= MOST_TREES and 1 <= shape[1] < 2 * MOST_LEAVES):
            raise DpvalueError(
                f"a forest must have 1 to {MOST_TREES} trees of up to {MOST_LEAVES} leaves, got arrays of {shape}"
            )
        for name, kind in _KINDS.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != kind:
                raise DpvalueError(f"{name} of a forest must be {kind.__name__} of shape {shape}")
        self._require_trees()
        if not np.isfinite(self.threshold).all():
            raise DpvalueError("threshold of a forest must be finite numbers")
        if (self.feature < 0).any():
            raise DpvalueError("feature of a forest must be numbers of features")

    def _require_trees(self) -> None:
        """Raise unless children stand after their parents, each of one parent, and reached leaves have numbers."""
        places = np.arange(self.nodes)
        for name in ("left", "right"):
            child = getattr(self, name)
            if (child < places).any() or (child >= self.nodes).any():
                raise DpvalueError(f"{name} of a forest must name nodes that stand after their parent")
        if ((self.left == places) != (self.right == places)).any():
            raise DpvalueError("a node of a forest must have two children, or none")
        for tree in range(self.trees):
            inner = self.is_inner[tree]
            born = np.bincount(np.concatenate([self.left[tree][inner], self.right[tree][inner]]), minlength=self.nodes)
            if born.max() > 1:
                raise DpvalueError("a node of a forest must have one parent")
            reached = born > 0
            reached[0] = True
            if (inner & ~reached).any():
                raise DpvalueError("an inner node of a forest must be reached from the root")
            numbers = np.sort(self.leaf[tree][reached & ~inner])
            if not np.array_equal(numbers, np.arange(len(numbers))) or (self.leaf[tree][~reached | inner] != -1).any():
                raise DpvalueError(
                    "leaf of a forest must number the leaves of each tree 0, 1, ..., and be -1 elsewhere"
                )

    @property
    def trees(self) -> int:
        """The number of trees."""
        return len(self.feature)

    @property
    def nodes(self) -> int:
        """The number of places for nodes of each tree."""
        return int(self.feature.shape[1])

    @cached_property
    def leaves(self) -> int:
        """The largest number of leaves of a tree."""
        return int(self.leaf.max()) + 1

    @cached_property
    def is_inner(self) -> Bools:
        """Which nodes have children (trees, nodes)."""
        return np.asarray(self.left != np.arange(self.nodes))

    @cached_property
    def depth(self) -> Ints:
        """How many steps a node is from the root (trees, nodes); 0 also for places that are not used."""
        found = np.zeros(self.feature.shape, dtype=np.int64)
        trees = np.arange(self.trees)
        for node in range(self.nodes):
            below = np.where(self.is_inner[:, node], found[:, node] + 1, 0)
            for child in (self.left[:, node], self.right[:, node]):
                found[trees, child] = np.where(self.is_inner[:, node], below, found[trees, child])
        return found

    def require_features(self, features: int) -> None:
        """Raise unless it compares features of rows with so many."""
        if int(self.feature.max()) >= features:
            raise DpvalueError(f"feature of a forest must be below the number of features, {features}")

    def leaf_of(self, x: Tensor) -> Tensor:
        """Return the leaf of each row in each tree (rows, trees), of features (rows, features) in any precision."""
        feature, threshold, left, right, leaf = (torch.from_numpy(getattr(self, name)).to(x.device) for name in _KINDS)
        threshold, tree = threshold.to(x.dtype), torch.arange(self.trees, device=x.device)
        node = torch.zeros(len(x), self.trees, dtype=torch.int64, device=x.device)
        for _ in range(int(self.depth.max())):
            goes = x.gather(1, feature[tree, node]) <= threshold[tree, node]
            node = torch.where(goes, left[tree, node], right[tree, node])
        return leaf[tree, node]

    def tensors(self) -> dict[str, Tensor]:
        """Return its arrays as tensors for a file."""
        return {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in _KINDS}

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor]) -> Forest:
        """Return the forest that a file describes; raises unless it is one."""
        for name, kind in _KINDS.items():
            tensor = tensors.get(name)
            if tensor is None or str(tensor.dtype) != f"torch.{kind.__name__}" or tensor.dim() != 2:
                raise DpvalueError(f"the tensor {name!r} of a forest must be {kind.__name__}, in 2 dimensions")
        return cls(**{name: tensors[name].cpu().numpy() for name in _KINDS})

    def digest(self) -> str:
        """Return a digest of all its arrays."""
        hasher = hashlib.sha256(f"forest {self.feature.shape}".encode())
        for part in fields(self):
            hasher.update(np.ascontiguousarray(getattr(self, part.name)).tobytes())
        return hasher.hexdigest()


class Unsplit(Linear):
    """What trees are before they are grown: one number a class, and no feature. It names the model of a job."""

    def __init__(self, features: int, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(0, outputs, task, dtype, device)
        self.kind, self.columns = "trees", features

    def inputs(self, x: Tensor) -> Tensor:
        """Return ones."""
        return x.new_ones(len(x), 1)

    def digest(self) -> str:
        """Return a digest of kind and shape."""
        return hashlib.sha256(f"trees {self.columns} {self.width}".encode()).hexdigest()


class LeafOnes:
    """What rows are asked through: a one at (tree, leaf, class) for each tree.

    Everything that works with gradients (clipping, units, noise, grids, messages) then works with ones. What a row
    contributes is a function of that row and of the public forest; what it is asked at does not matter.
    """

    def __init__(self, forest: Forest, classes: int) -> None:
        self.forest, self.classes = forest, classes
        self.size = self.numbers = forest.trees * forest.leaves * classes

    def inputs(self, x: Tensor) -> Tensor:
        """Return the leaf of each row in each tree (rows, trees)."""
        return self.forest.leaf_of(x.flatten(1))

    def targets(self, y: Tensor) -> Tensor:
        """Return the classes as they are."""
        return y

    def ones(self, x: Tensor, y: Tensor, like: Tensor) -> Tensor:
        """Return the ones (..., size) of rows that fall into leaves x (..., trees) and are of classes y (...)."""
        cell = x * self.classes + y.unsqueeze(-1)
        cells = torch.arange(self.forest.leaves * self.classes, device=x.device)
        return (cell.unsqueeze(-1) == cells).to(like.dtype).flatten(-2)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the ones of single rows (b, r, size)."""
        return self.ones(x, y, theta)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the weighted sums of ones (b, size)."""
        return torch.einsum("brm,br->bm", self.record_gradients(theta, x, y), weights)

    def numbers_per_row(self) -> int:
        """Return how many numbers a row makes."""
        return self.size

    def digest(self) -> str:
        """Return a digest of the forest and the classes."""
        return hashlib.sha256(f"ones of {self.classes} classes in {self.forest.digest()}".encode()).hexdigest()
