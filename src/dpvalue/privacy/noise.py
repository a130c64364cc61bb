"""Where the noise comes from: the operating system (`secure`) or a seed (`fast`, for simulations).

A source hands out one stream per permutation or round; a stream draws standard normal rows in order, so cutting the
drawing into pieces does not change the numbers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from dpvalue.errors import DpvalueError, require_choice
from dpvalue.streams import Purpose, stream

KINDS = ("secure", "fast")


class NoiseSource(Protocol):
    """Hands out streams of standard normal numbers."""

    def stream(self, release: int) -> np.random.Generator:
        """Return the stream of the release with this number."""
        ...


class SecureNoise:
    """Every stream is ChaCha20 under a fresh 256-bit key of the operating system, kept nowhere: not repeatable.

    A key is made when a stream is asked for and belongs to that stream, so nothing is shared across a fork.
    """

    def __init__(self) -> None:
        try:
            import randomgen  # noqa: F401
        except ModuleNotFoundError:
            raise DpvalueError(
                "noise='secure' needs the package randomgen; install it, or ask for noise='fast'"
            ) from None

    def stream(self, release: int) -> np.random.Generator:
        """Return a new stream; two calls never give the same numbers."""
        import secrets

        from randomgen import ChaCha

        return np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))


class FastNoise:
    """Every stream is derived from (seed, release): repeatable, and removable by whoever knows the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, release: int) -> np.random.Generator:
        """Return the stream of (seed, release); the same numbers each time."""
        return stream(self.seed, Purpose.FAST_NOISE, release)


def noise_source(kind: str, seed: int) -> NoiseSource:
    """Return the source called `kind`; `seed` is used by "fast" alone."""
    require_choice("noise", kind, KINDS)
    return SecureNoise() if kind == "secure" else FastNoise(seed)


def normal(generator: np.random.Generator, rows: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Draw the next `rows` standard normal vectors of length `size`."""
    width: type[np.float32] | type[np.float64] = np.float64 if dtype == torch.float64 else np.float32
    return torch.from_numpy(generator.standard_normal((rows, size), dtype=width))
