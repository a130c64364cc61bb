"""What a party is asked for in a description, by its size: how many directions, how loud, how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.errors import DpvalueError
from dpvalue.models.rows import BESIDES

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
        weights = torch.zeros(directions + BESIDES, dtype=torch.float64)
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
        numbers = count + BESIDES
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
