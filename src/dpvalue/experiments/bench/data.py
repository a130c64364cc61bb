"""Made data of the shapes of real sets, with planted label noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpvalue.arrays import Bools, Ints

Rows = tuple[NDArray[np.float32], Ints]


@dataclass(frozen=True)
class SyntheticData:
    """Training rows, public rows, and which training labels were changed at random."""

    train: Rows
    test: Rows
    changed: Bools


def made(
    n: int, shape: tuple[int, ...], classes: int, test: int = 1000, seed: int = 0, spread: float = 2.0
) -> SyntheticData:
    """Return rows around one centre a class; 30% of the training labels are changed."""
    generator = np.random.default_rng(seed)
    size = int(np.prod(shape))
    centres = generator.normal(0, spread / size**0.5, (classes, size)).astype(np.float32)
    y = generator.integers(classes, size=n + test)
    y[n : n + classes] = np.arange(classes)
    X = centres[y] + generator.normal(0, 1 / size**0.5, (n + test, size)).astype(np.float32)
    X = (X * size**0.5 / 4).reshape(-1, *shape)
    changed = np.zeros(n, dtype=bool)
    changed[generator.choice(n, round(0.3 * n), replace=False)] = True
    labels = np.where(changed, (y[:n] + generator.integers(1, classes, n)) % classes, y[:n])
    return SyntheticData((X[:n], labels), (X[n:], y[n:]), changed)
