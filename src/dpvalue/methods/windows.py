"""Windows, which define the description of a party by its size, and the defects of pseudo-parties that choose them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.methods.fits import Rows
from dpvalue.models.derived import EXTRA_NUMBERS

_LEAST_SPREAD = 1e-9  # for constant labels
SampledRows = tuple[Rows, Tensor]
"""Rows, and the indices of the public rows that they were made from."""


def _wrong_labels(rows: Rows, generator: np.random.Generator, count: int) -> SampledRows:
    """Wrong labels in a share of the rows: another class, or a shift by one to four standard deviations."""
    sample = torch.from_numpy(generator.integers(0, len(rows.x), count))
    is_wrong = torch.from_numpy(generator.random(count) < generator.uniform(0.1, 0.8)).to(rows.x.device)
    x, y = rows.x[sample], rows.y[sample].clone()
    if rows.regression:
        signs = torch.from_numpy(generator.choice([-1.0, 1.0], count)).to(y)
        y = y + (is_wrong * signs)[:, None] * generator.uniform(1, 4) * rows.y.std()
    else:
        classes = y.shape[1]
        other_class = (y.argmax(1) + torch.from_numpy(generator.integers(1, classes, count)).to(y.device)) % classes
        y[is_wrong] = torch.nn.functional.one_hot(other_class, classes).to(y)[is_wrong]
    return Rows(x, y, rows.regression), sample


def _shuffled_labels(rows: Rows, generator: np.random.Generator, count: int) -> SampledRows:
    """Labels independent of the features."""
    sample = torch.from_numpy(generator.integers(0, len(rows.x), count))
    return Rows(rows.x[sample], rows.y[sample][generator.permutation(count)], rows.regression), sample


def _drift(rows: Rows, generator: np.random.Generator, count: int) -> SampledRows:
    """All features shifted, by a part of the difference of two public rows."""
    sample = torch.from_numpy(generator.integers(0, len(rows.x), count))
    first, second = generator.integers(0, len(rows.x), 2)
    away = (rows.x[first] - rows.x[second]) * generator.uniform(0.2, 0.7)
    return Rows(rows.x[sample] + away, rows.y[sample], rows.regression), sample


def _noisy_features(rows: Rows, generator: np.random.Generator, count: int) -> SampledRows:
    """Noisy features, in proportion to their standard deviation; the constant has no noise."""
    sample = torch.from_numpy(generator.integers(0, len(rows.x), count))
    noise = torch.from_numpy(generator.standard_normal((count, rows.x.shape[1]))).to(rows.x) * rows.x.std(0)
    return Rows(rows.x[sample] + generator.uniform(0.2, 1.0) * noise, rows.y[sample], rows.regression), sample


def _label_shift(rows: Rows, generator: np.random.Generator, count: int) -> SampledRows:
    """Other frequencies of the classes, or of large and small numbers, than in the public rows."""
    spread = float(rows.y.std().clamp_min(_LEAST_SPREAD)) if rows.regression else 1.0
    tilt = generator.normal(0, 1.0 if rows.regression else 1.5, rows.y.shape[1])
    odds = np.exp(((rows.y / spread).cpu().numpy() @ tilt).clip(-6, 6))
    sample = torch.from_numpy(generator.choice(len(rows.x), count, p=odds / odds.sum()))
    return rows.select(sample), sample


DEFECTS: tuple[Callable[[Rows, np.random.Generator, int], SampledRows], ...] = (
    _wrong_labels,
    _shuffled_labels,
    _drift,
    _noisy_features,
    _label_shift,
)


PRESENCE, DISTANCE = 0.33, 2.0
"""The weights of presence and distance, relative to the length of a description."""
WINDOW_ROWS = 6
"""Rows of a window in a file: its numbers, and five vectors."""


@dataclass(frozen=True, eq=False)
class Window:
    """The definition of a description, and its distribution over public units, before weights are scaled to 1.

    Attributes:
        count: number of directions.
        norm: clipping norm.
        scale: factor of presence and distance, beside `PRESENCE` and `DISTANCE`.
        centre: mean clipped description of public units (count + 2,).
        noise: shift of the mean by meaningless labels (count + 2,).
        defect_squares: mean square deviation of pseudo-parties in each direction, beyond `noise` (count,).
        spread: variances of the clipped descriptions of public units (count + 2,).
        profile: weight of each direction, 1 for the first (count,).
    """

    count: int
    norm: float
    scale: float
    centre: Tensor
    noise: Tensor
    defect_squares: Tensor
    spread: Tensor
    profile: Tensor

    def weights(self, directions: int) -> Tensor:
        """Return the weights of a description before clipping to norm 1 (directions + 2,)."""
        weights = torch.zeros(directions + EXTRA_NUMBERS, dtype=torch.float64)
        weights[: self.count] = self.profile
        weights[-2], weights[-1] = PRESENCE * self.scale, DISTANCE * self.scale
        return weights / self.norm


def pack_windows(windows: Sequence[Window], size: int) -> Tensor:
    """Return the windows as one tensor for a file; `size` is the length of a description."""
    packed = torch.zeros(len(windows), WINDOW_ROWS, size, dtype=torch.float64)
    for row, window in zip(packed, windows, strict=True):
        row[0, :3] = torch.tensor([window.count, window.norm, window.scale], dtype=torch.float64)
        vectors = (window.centre, window.noise, window.defect_squares, window.spread, window.profile)
        for place, vector in enumerate(vectors, start=1):
            row[place, : len(vector)] = vector
    return packed


def unpack_windows(packed: Tensor, directions: int) -> tuple[Window, ...]:
    """Return the windows of a file; raise if one is invalid."""
    windows = []
    for first, centre, noise, defect_squares, spread, profile in packed:
        count = int(first[0])
        if count != float(first[0]) or not 1 <= count <= directions or not bool((first[1:3] > 0).all()):
            raise DpvalueError("the tensor 'method.windows' holds no windows")
        numbers = count + EXTRA_NUMBERS
        if bool((defect_squares[:count] < 0).any()) or bool((spread[:numbers] < 0).any()):
            raise DpvalueError("the tensor 'method.windows' must have no negative variances")
        if not bool((profile[:count] > 0).all()):
            raise DpvalueError("the tensor 'method.windows' must have positive weights of directions")
        windows.append(
            Window(
                count, float(first[1]), float(first[2]),
                centre[:numbers], noise[:numbers], defect_squares[:count], spread[:numbers], profile[:count],
            )
        )  # fmt: skip
    return tuple(windows)
