"""One trial's problem: private rows, some of them with wrong labels, and public rows that judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpvalue.errors import DpvalueError
from dpvalue.experiments.datasets import Arrays, load


@dataclass(frozen=True, eq=False)
class Problem:
    """A split of a data set; `changed` marks private rows whose label was replaced by another class at random."""

    train: Arrays
    test: Arrays
    changed: NDArray[np.bool_]

    @property
    def n(self) -> int:
        """The number of private rows."""
        return len(self.changed)


def make_problem(
    name: str, folder: str | Path | None, rows: int, public: int, seed: int, share: float = 0.0
) -> Problem:
    """Return `rows` private and `public` public rows of a data set, drawn at random, a share of the labels changed.

    Flat features are standardised by the public rows; images are left as they are.
    """
    X, y = load(name, folder)
    if len(X) < rows + min(public, 2):
        raise DpvalueError(f"{name} has {len(X)} rows, fewer than {rows} private and {public} public ones")
    generator = np.random.default_rng([seed, len(name)])
    order = generator.permutation(len(X))[: rows + public]
    X, y = np.asarray(X[order], dtype=np.float64 if X.ndim == 2 else np.float32), y[order]
    if X.ndim == 2:
        spread = X[rows:].std(0)
        X = (X - X[rows:].mean(0)) / np.where(spread > 0, spread, 1.0)
    present = np.isin(y, np.unique(y[rows:]))  # a class that the public rows lack cannot be judged
    if not present[:rows].all():
        X, y = (
            np.concatenate([X[:rows][present[:rows]], X[rows:]]),
            np.concatenate([y[:rows][present[:rows]], y[rows:]]),
        )
        rows = int(present[:rows].sum())
    changed = np.zeros(rows, dtype=bool)
    labels = y[:rows].copy()
    if share:
        changed[generator.choice(rows, round(share * rows), replace=False)] = True
        classes = np.unique(y)
        place = np.searchsorted(classes, labels[changed])
        labels[changed] = classes[(place + generator.integers(1, len(classes), changed.sum())) % len(classes)]
    return Problem((X[:rows], labels), (X[rows:], y[rows:]), changed)
