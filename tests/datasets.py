"""Small data sets for tests: made, or shipped with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvalue.data.files import Peek, open_private, require_records

Arrays = tuple[NDArray[Any], NDArray[Any]]


def classification(n: int, classes: int = 3, features: int = 4, test: int = 30, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Points around one centre a class, as (train, test)."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(0, 2, (classes, features))
    y = generator.integers(classes, size=n + test)
    y[n : n + classes] = np.arange(classes)
    X = centres[y] + generator.normal(0, 1, (n + test, features))
    return (X[:n], y[:n]), (X[n:], y[n:])


def regression(n: int, features: int = 3, test: int = 20, seed: int = 0) -> tuple[Arrays, Arrays]:
    """A noisy linear function, as (train, test)."""
    generator = np.random.default_rng(seed)
    X = generator.normal(0, 1, (n + test, features))
    y = X @ generator.normal(0, 1, features) + generator.normal(0, 0.3, n + test)
    return (X[:n], y[:n]), (X[n:], y[n:])


def images(n: int, classes: int = 3, side: int = 8, test: int = 12, seed: int = 0) -> tuple[Arrays, Arrays]:
    """Noisy images of a bright square whose place is the class, as (train, test)."""
    generator = np.random.default_rng(seed)
    y = generator.integers(classes, size=n + test)
    y[n : n + classes] = np.arange(classes)
    X = generator.normal(0, 0.3, (n + test, side, side))
    for image, label in zip(X, y, strict=True):
        image[2 * label : 2 * label + 3, 2 * label : 2 * label + 3] += 1.0
    return (X[:n], y[:n]), (X[n:], y[n:])


def flipped_breast_cancer(n: int = 400, share: float = 0.3, seed: int = 0) -> tuple[Arrays, Arrays, NDArray[np.bool_]]:
    """Breast cancer with a share of the training labels flipped: (train, test, which)."""
    from sklearn.datasets import load_breast_cancer  # here: the checks on a GPU have torch and numpy alone

    X, y = load_breast_cancer(return_X_y=True)
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(X))
    X, y = X[order], y[order]
    flipped = np.zeros(n, dtype=bool)
    flipped[generator.choice(n, round(share * n), replace=False)] = True
    labels = np.where(flipped, 1 - y[:n], y[:n])
    return (X[:n], labels), (X[n:], y[n:]), flipped


def peek(path: Path) -> Peek:
    """The columns and the number of records of a private file."""
    with open_private(path) as file:
        return require_records(path, Peek(file.columns, file.count()))
