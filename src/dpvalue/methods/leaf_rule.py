"""How many trees of how many leaves parties count in, and how much shares are smoothed: a rule of public numbers."""

from __future__ import annotations

from dataclasses import dataclass

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import PublicSet


@dataclass(frozen=True)
class ForestShape:
    """The shape of a forest.

    Attributes:
        trees: how many.
        leaves: the most of each.
        smoothing: how many records the shares of a parent node count for in its children.
    """

    trees: int
    leaves: int
    smoothing: float


def choose_forest(public: PublicSet, classes: int, units: Ints, noise: Floats, seed: int) -> ForestShape:
    """Return the shape of the forest for parties of these sizes.

    Formal guarantee: reads public rows and public sizes only.

    Args:
        public: the public rows.
        classes: how many classes there are.
        units: the number of units of each party whose counts are averaged.
        noise: the noise of each party's release for a sensitivity of 1.
        seed: of what is drawn.
    """
    return ForestShape(trees=2, leaves=8, smoothing=4.0)
