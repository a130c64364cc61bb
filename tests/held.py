"""The mechanism's output held fixed: all runs as ever, but what is released is the same noise around zero."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dpvalue.party.contributions import Contributions
from dpvalue.party.factored import OuterProducts


class Keys:
    """Keys that repeat from one world to the next, in the place of the operating system's."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, bits: int) -> int:
        self.count += 1
        return int.from_bytes(hashlib.sha256(str(self.count).encode()).digest(), "big")


def emptied(clipped: Any) -> Any:
    """Contributions of the same kind and shape, of which all are zero."""
    if isinstance(clipped, OuterProducts):
        return replace(clipped, coefficients=0 * clipped.coefficients)
    return torch.zeros_like(clipped)


@contextmanager
def held_fixed() -> Iterator[list[Any]]:
    """Hold keys, salts and releases fixed; yields what was contributed, so that a test can see that it did change."""
    release, contributed = Contributions.release, []

    def released(self: Contributions, clipped: Any, noise: Tensor | None, who: Tensor, grid: Any) -> Any:
        release(self, clipped, None if noise is None else noise.clone(), who, grid)
        contributed.append(clipped)
        return release(self, emptied(clipped), noise, who, grid)

    with (
        mock.patch.object(secrets, "randbits", Keys()),
        mock.patch.object(secrets, "token_hex", lambda count: "5a" * count),
        mock.patch.object(Contributions, "release", released),
    ):
        yield contributed
