"""One trial's problem: private rows, some of them with wrong labels, and public rows that judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpvalue.arrays import Array, Bools, Ints
from dpvalue.data.parties import Parties
from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.datasets import Arrays, load


@dataclass(frozen=True, eq=False)
class PaperProblem:
    """A split of a data set into private rows, `per_party` in a row for each party, and public ones.

    `changed` marks the parties whose labels were all replaced by other classes at random.
    """

    train: Arrays
    test: Arrays
    changed: Bools
    per_party: int = 1

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.changed)

    @property
    def parties(self) -> Parties:
        """The private rows as parties."""
        return Parties(
            *self.train, groups=None if self.per_party == 1 else np.repeat(np.arange(self.n), self.per_party)
        )

    def standardised(self, mean_image: bool = False) -> PaperProblem:
        """Return the problem with every channel of its images less its mean, by its deviation, over the public rows.

        With `mean_image` every pixel is less its own mean.
        """
        X = self.test[0]
        over = (0, -2, -1) if X.ndim == 4 else None
        mean, spread = X.mean(0 if mean_image else over, keepdims=True), X.std(over, keepdims=True)
        spread = np.where(spread > 0, spread, 1.0)
        (train, y), (test, y_test) = self.train, self.test
        return replace(self, train=((train - mean) / spread, y), test=((test - mean) / spread, y_test))


TRIALS, CHOICES = "trials", "choices"
"""The parts of a data set: trials are drawn from one, and what is chosen by its answers from the other."""


def part(count: int, name: str | None) -> Ints:
    """Return the places of the rows that belong to a part of a data set; of all rows if it is None.

    Three of five rows are for trials, at random but always the same ones.
    """
    if name is None:
        return np.arange(count)
    order = np.random.default_rng(count).permutation(count)
    trials = 3 * count // 5
    return np.sort({TRIALS: order[:trials], CHOICES: order[trials:]}[name])


def make_problem(
    name: str,
    folder: str | Path | None,
    rows: int,
    public: int,
    seed: int,
    share: float = 0.0,
    of: str | None = None,
) -> PaperProblem:
    """Return `rows` private and `public` public rows of a data set, drawn at random, a share of the labels changed.

    Flat features are standardised by the public rows; images are left as they are. `of` is the part to draw from.
    """
    X, y = load(name, folder)
    known = part(len(X), of)
    if len(known) < rows + min(public, 2):
        raise DpvalueError(
            f"{name} has {len(known)} rows to draw from, fewer than {rows} private and {public} public ones"
        )
    generator = np.random.default_rng([seed, len(name)])
    order = known[generator.permutation(len(known))[: rows + public]]
    X, y = np.asarray(X[order], dtype=np.float64 if X.ndim == 2 else np.float32), y[order]
    if X.ndim == 2:
        spread = X[rows:].std(0)
        X = (X - X[rows:].mean(0)) / np.where(spread > 0, spread, 1.0)
    # A class that the public rows lack cannot be judged; numbers can.
    present = np.isin(y, np.unique(y[rows:])) | (y.dtype.kind == "f")
    if not present[:rows].all():
        X, y = (
            np.concatenate([X[:rows][present[:rows]], X[rows:]]),
            np.concatenate([y[:rows][present[:rows]], y[rows:]]),
        )
        rows = int(present[:rows].sum())
    changed, labels = _change(y[:rows], np.unique(y), share, 1, generator)
    return PaperProblem((X[:rows], labels), (X[rows:], y[rows:]), changed)


def make_sets(
    arrays: Arrays, parties: int, per_party: int, public: int, seed: int, share: float, of: str | None = None
) -> PaperProblem:
    """Return parties of `per_party` rows each, and public rows, drawn at random; of a share all labels are changed.

    `of` is the part of the data to draw from.
    """
    X, y = arrays
    rows, known = parties * per_party, part(len(X), of)
    if len(known) < rows + public:
        raise DpvalueError(
            f"{len(known)} rows are fewer than {parties} parties of {per_party}, and {public} public ones"
        )
    generator = np.random.default_rng([seed, parties])
    order = known[generator.permutation(len(known))[: rows + public]]
    X, y = X[order], y[order]
    if not np.isin(y, y[rows:]).all():
        raise DpvalueError(f"{public} public rows, drawn at random, do not hold every class of the private ones")
    changed, labels = _change(y[:rows], np.unique(y), share, per_party, generator)
    return PaperProblem((X[:rows], labels), (X[rows:], y[rows:]), changed, per_party)


def _change(
    labels: Array, classes: Array, share: float, per_party: int, generator: np.random.Generator
) -> tuple[Bools, Array]:
    """Replace all labels of a share of the parties by other classes; return which parties, and all labels."""
    parties, labels = len(labels) // per_party, labels.copy()
    changed = np.zeros(parties, dtype=bool)
    if share:
        changed[generator.choice(parties, round(share * parties), replace=False)] = True
        which = np.repeat(changed, per_party)
        place = np.searchsorted(classes, labels[which])
        labels[which] = classes[(place + generator.integers(1, len(classes), which.sum())) % len(classes)]
    return changed, labels
