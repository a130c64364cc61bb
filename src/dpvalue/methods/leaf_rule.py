"""How many trees of how many leaves parties count in, and how leaves are read.

B trees have sqrt(B) times the noise of one, and their mean a B-th: the noise of the forest does not depend on their
number, to first order. Where noise is strong for the records that parties have, trees are of 4 leaves, unless public
rows show that features matter together: 16 leaves predict them more than twice as well as 4. Constants are from
development cells of the natural benchmark, beside boosted trees that were retrained. Where noise is weak, values change
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
COARSE = ForestShape(trees=32, leaves=4, smoothing=20.0, sharpness=2.0)
"""For strong noise."""
SMALL = ForestShape(trees=2, leaves=8, smoothing=4.0)
"""For many parties or classes, whose releases would be of tens of thousands of numbers."""

TOGETHER = 2.0
"""How many times better than `COARSE` the forest must predict public rows to be used in spite of strong noise."""

_MOST_PARTIES, _MOST_CLASSES = 256, 20
_STRONG = 0.007


def choose_forest(parties: int, classes: int, noise: float) -> ForestShape:
    """Return the shape of the forest for so many parties and classes; `COARSE` if public rows agree.

    Formal guarantee: reads public numbers only.

    Args:
        parties: their number.
        classes: their number.
        noise: the noise multiplier over the median number of units of a party.
    """
    if parties > _MOST_PARTIES or classes > _MOST_CLASSES:
        return SMALL
    return FOREST if noise < _STRONG else COARSE
