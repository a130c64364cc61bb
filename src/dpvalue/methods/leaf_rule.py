"""How many trees of how many leaves parties count in, and how leaves are read: the same for any noise.

B trees have sqrt(B) times the noise of one, and their mean a B-th: the noise of the forest does not depend on their
number, to first order.
Constants are from development cells of the natural benchmark, beside boosted trees that were retrained; values change
little with trees from 16 to 64, leaves from 8 to 32, smoothing from 10 to 40 and sharpness from 1.25 to 2. Of hundreds
of parties a small forest serves, which is fast.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ForestShape:
    """The shape of a forest.

    Attributes:
        trees: how many.
        leaves: the most of each.
        smoothing: how many records the shares of a parent node count for in its children.
        sharpness: by which the mean of logarithms over trees is multiplied.
        folds: of the public rows; a tree is grown on all but one, and judged by that.
        least: public rows in a leaf.
    """

    trees: int
    leaves: int
    smoothing: float
    sharpness: float = 1.0
    folds: int = 2
    least: int = 5


FOREST = ForestShape(trees=32, leaves=16, smoothing=20.0, sharpness=1.5)
SMALL = ForestShape(trees=2, leaves=8, smoothing=4.0)
"""For many parties or classes, whose releases would be of tens of thousands of numbers."""

_MOST_PARTIES, _MOST_CLASSES = 256, 20


def choose_forest(parties: int, classes: int) -> ForestShape:
    """Return the shape of the forest for so many parties and classes.

    Formal guarantee: reads public numbers only.
    """
    return FOREST if parties <= _MOST_PARTIES and classes <= _MOST_CLASSES else SMALL
