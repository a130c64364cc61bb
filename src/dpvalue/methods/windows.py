"""What a party is asked for in a description, by its size, and the made-up parties with defects that settle it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.methods.fits import Rows
from dpvalue.models.derived import EXTRA_NUMBERS

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


PRESENCE, DISTANCE = 0.33, 2.0
"""How much of a description's length these two may have."""
WINDOW_ROWS = 6
"""Numbers, and vectors, of a window in a file."""


@dataclass(frozen=True, eq=False)
class Window:
    """What a party is asked for, and what to expect of it, in the units of descriptions before they are weighed.

    Attributes:
        count: how many directions.
        norm: how long a description may be; the clipping norm before weights are scaled to 1.
        scale: what presence and distance are multiplied by, times their shares.
        centre: the mean clipped description of public units (count + 2,).
        noise: what labels without meaning add to it (count + 2,).
        planted: the mean square of what made-up parties are off in each direction, beyond that (count,).
        spread: the variances of the clipped descriptions of public units (count + 2,).
        profile: what each direction is multiplied by, the first by 1 (count,).
    """

    count: int
    norm: float
    scale: float
    centre: Tensor
    noise: Tensor
    planted: Tensor
    spread: Tensor
    profile: Tensor

    def weights(self, directions: int) -> Tensor:
        """Return what each number of a description is multiplied by before it is clipped to 1 (directions + 2,)."""
        weights = torch.zeros(directions + EXTRA_NUMBERS, dtype=torch.float64)
        weights[: self.count] = self.profile
        weights[-2], weights[-1] = PRESENCE * self.scale, DISTANCE * self.scale
        return weights / self.norm


def packed_windows(windows: Sequence[Window], size: int) -> Tensor:
    """Return windows of descriptions of so many numbers as one tensor, for a file."""
    packed = torch.zeros(len(windows), WINDOW_ROWS, size, dtype=torch.float64)
    for row, window in zip(packed, windows, strict=True):
        row[0, :3] = torch.tensor([window.count, window.norm, window.scale], dtype=torch.float64)
        vectors = (window.centre, window.noise, window.planted, window.spread, window.profile)
        for place, vector in enumerate(vectors, start=1):
            row[place, : len(vector)] = vector
    return packed


def unpacked_windows(stored: Tensor, directions: int) -> tuple[Window, ...]:
    """Return the windows of a file; raises unless each is one."""
    windows = []
    for first, centre, noise, planted, spread, profile in stored:
        count = int(first[0])
        if count != float(first[0]) or not 1 <= count <= directions or not bool((first[1:3] > 0).all()):
            raise DpvalueError("the tensor 'method.windows' holds no windows")
        numbers = count + EXTRA_NUMBERS
        if bool((planted[:count] < 0).any()) or bool((spread[:numbers] < 0).any()):
            raise DpvalueError("the tensor 'method.windows' must have no negative variances")
        if not bool((profile[:count] > 0).all()):
            raise DpvalueError("the tensor 'method.windows' must have positive weights of directions")
        windows.append(
            Window(
                count, float(first[1]), float(first[2]),
                centre[:numbers], noise[:numbers], planted[:count], spread[:numbers], profile[:count],
            )
        )  # fmt: skip
    return tuple(windows)
