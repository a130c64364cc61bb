"""Made-up parties of public rows with planted defects: what a party may look like that is not like the public set.

Only their mean gradients are used, and only for which directions to release in, and how much to expect there. Nothing
is fitted to what the private parties turn out to be.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from dpvalue.methods.fits import Rows

_LEAST_SPREAD = 1e-9  # of labels that are all the same
Drawn = tuple[Rows, Tensor]
"""Rows, and the numbers of the public rows that they were made from."""


def _wrong_labels(rows: Rows, generator: np.random.Generator, count: int) -> Drawn:
    """Some labels are others: another class, or moved up and down by one to four standard deviations."""
    drawn = torch.from_numpy(generator.integers(0, len(rows.x), count))
    bad = torch.from_numpy(generator.random(count) < generator.uniform(0.1, 0.8)).to(rows.x.device)
    x, y = rows.x[drawn], rows.y[drawn].clone()
    if rows.regression:
        signs = torch.from_numpy(generator.choice([-1.0, 1.0], count)).to(y)
        y = y + (bad * signs)[:, None] * generator.uniform(1, 4) * rows.y.std()
    else:
        classes = y.shape[1]
        other = (y.argmax(1) + torch.from_numpy(generator.integers(1, classes, count)).to(y.device)) % classes
        y[bad] = torch.nn.functional.one_hot(other, classes).to(y)[bad]
    return Rows(x, y, rows.regression), drawn


def _shuffled_labels(rows: Rows, generator: np.random.Generator, count: int) -> Drawn:
    """Labels have nothing to do with features."""
    drawn = torch.from_numpy(generator.integers(0, len(rows.x), count))
    return Rows(rows.x[drawn], rows.y[drawn][generator.permutation(count)], rows.regression), drawn


def _drift(rows: Rows, generator: np.random.Generator, count: int) -> Drawn:
    """All features are moved, by a part of the way from one public row to another."""
    drawn = torch.from_numpy(generator.integers(0, len(rows.x), count))
    first, second = generator.integers(0, len(rows.x), 2)
    away = (rows.x[first] - rows.x[second]) * generator.uniform(0.2, 0.7)
    return Rows(rows.x[drawn] + away, rows.y[drawn], rows.regression), drawn


def _noisy_features(rows: Rows, generator: np.random.Generator, count: int) -> Drawn:
    """Features have noise, in proportion to their spread; the constant has none."""
    drawn = torch.from_numpy(generator.integers(0, len(rows.x), count))
    noise = torch.from_numpy(generator.standard_normal((count, rows.x.shape[1]))).to(rows.x) * rows.x.std(0)
    return Rows(rows.x[drawn] + generator.uniform(0.2, 1.0) * noise, rows.y[drawn], rows.regression), drawn


def _other_labels(rows: Rows, generator: np.random.Generator, count: int) -> Drawn:
    """Some classes, or large or small numbers, are more frequent than in public."""
    spread = float(rows.y.std().clamp_min(_LEAST_SPREAD)) if rows.regression else 1.0
    tilt = generator.normal(0, 1.0 if rows.regression else 1.5, rows.y.shape[1])
    odds = np.exp(((rows.y / spread).cpu().numpy() @ tilt).clip(-6, 6))
    drawn = torch.from_numpy(generator.choice(len(rows.x), count, p=odds / odds.sum()))
    return rows.take(drawn), drawn


DEFECTS: tuple[Callable[[Rows, np.random.Generator, int], Drawn], ...] = (
    _wrong_labels,
    _shuffled_labels,
    _drift,
    _noisy_features,
    _other_labels,
)
