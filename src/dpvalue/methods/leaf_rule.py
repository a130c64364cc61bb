"""How many trees of how many leaves parties count in, and how leaves are read: a rule of public numbers.

More and larger trees say more of a party, and each number of theirs has more noise: B trees have sqrt(B) times the
noise of one, in as many cells more. What decides is the noise of a typical party's share for a sensitivity of 1, the
noise multiplier over its number of units M.

| noise | as of | trees x leaves |
|---|---|---|
| up to 0.001 | none; epsilon 8 and 1,000 records or more | 32 x 32, grown and judged by 4 folds |
| up to 0.02 | epsilon 1 and 200 records or more | 8 x 8 |
| above | 30 records | 2 x 8 |

Of hundreds of parties the small forest serves, which is fast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpvalue.arrays import Floats


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


LARGE = ForestShape(trees=32, leaves=32, smoothing=20.0, sharpness=1.5, folds=4)
MEDIUM = ForestShape(trees=8, leaves=8, smoothing=8.0, sharpness=1.5)
SMALL = ForestShape(trees=2, leaves=8, smoothing=4.0)

_LITTLE, _MUCH = 0.001, 0.02
_MOST_PARTIES = 256
_MOST_CLASSES = 20  # of the large forest: with more, a release has tens of thousands of numbers


def choose_forest(noise: Floats, classes: int) -> ForestShape:
    """Return the shape of the forest for parties with this noise.

    Formal guarantee: reads public numbers only.

    Args:
        noise: of each party's release for a sensitivity of 1 (n,); zeros without privacy.
        classes: how many classes there are.
    """
    typical = float(np.median(noise))
    if typical > _MUCH or len(noise) > _MOST_PARTIES:
        return SMALL
    return LARGE if typical <= _LITTLE and classes <= _MOST_CLASSES else MEDIUM
