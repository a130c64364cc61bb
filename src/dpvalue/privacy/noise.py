"""Where the noise comes from: the operating system (`secure`) or a seed (`fast`, for simulations).

A source hands out one stream per permutation or round. A stream is drawn in pieces of a size that depends on the length
of a row alone, so the numbers do not depend on how a caller cuts its work.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpvalue.errors import DpvalueError, require_choice
from dpvalue.streams import Purpose, stream

KINDS = ("secure", "fast")
_NUMBERS_AT_ONCE = {"cpu": 2**14, "cuda": 2**22}  # a piece fits a CPU's cache, and fills a GPU


def piece_rows(size: int, device: torch.device) -> int:
    """Return how many rows of this length are drawn at once; a function of nothing else, so nothing else matters."""
    return max(1, _NUMBERS_AT_ONCE[device.type] // size)


class NoiseStream:
    """Rows of standard noise (scale 1), in order; `draw` fills a contiguous tensor with the next of them."""

    def __init__(self, draw: Callable[[Tensor], None], like: Tensor) -> None:
        self._draw = draw
        self._piece = piece_rows(len(like), like.device)
        self._left = like.new_empty(0, len(like))

    def fill(self, out: Tensor) -> Tensor:
        """Fill `out` (rows, size), contiguous, with the next rows; return it."""
        if len(out) == self._piece and not len(self._left):
            self._draw(out)
            return out
        done = 0
        while done < len(out):
            if not len(self._left):
                self._left = out.new_empty(self._piece, out.shape[1])
                self._draw(self._left)
            take = min(len(self._left), len(out) - done)
            out[done : done + take] = self._left[:take]
            self._left = self._left[take:]
            done += take
        return out


class NoiseSource(Protocol):
    """Hands out streams of rows of standard noise like `like`, a vector (size,) of some type on some device."""

    def stream(self, release: int, like: Tensor, law: str = "gaussian") -> NoiseStream:
        """Return the stream of the release with this number; `law` is "gaussian" or "laplace"."""
        ...


class SecureNoise:
    """Every stream is ChaCha20 under a fresh 256-bit key of the operating system, kept nowhere: not repeatable.

    A key is made when a stream is asked for and belongs to that stream, so nothing is shared across a fork.
    """

    def __init__(self) -> None:
        try:
            import randomgen  # noqa: F401
        except ModuleNotFoundError:
            message = "noise='secure' needs the package randomgen; install it, or ask for noise='fast'"
            raise DpvalueError(message) from None

    def stream(self, release: int, like: Tensor, law: str = "gaussian") -> NoiseStream:
        """Return a new stream; two calls never give the same numbers."""
        from randomgen import ChaCha

        generator = np.random.Generator(ChaCha(key=secrets.randbits(256), rounds=20))
        width: type[np.float32] | type[np.float64] = np.float64 if like.dtype == torch.float64 else np.float32

        def draw(out: Tensor) -> None:
            if law == "laplace":
                out.copy_(torch.from_numpy(generator.laplace(size=tuple(out.shape))))
            elif out.is_cuda:
                out.copy_(torch.from_numpy(generator.standard_normal(tuple(out.shape), dtype=width)))
            else:
                generator.standard_normal(out=out.numpy(), dtype=width)

        return NoiseStream(draw, like)


class FastNoise:
    """Every stream is derived from (seed, release): repeatable, and removable by whoever knows the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def stream(self, release: int, like: Tensor, law: str = "gaussian") -> NoiseStream:
        """Return the stream of (seed, release): the same numbers each time, on one kind of device."""
        generator = torch.Generator(like.device)
        generator.manual_seed(int(stream(self.seed, Purpose.FAST_NOISE, release).integers(2**62)))

        def draw(out: Tensor) -> None:
            if law == "laplace":  # the difference of two exponential variables
                out.exponential_(generator=generator).sub_(torch.empty_like(out).exponential_(generator=generator))
            else:
                out.normal_(generator=generator)

        return NoiseStream(draw, like)


def noise_source(kind: str, seed: int) -> NoiseSource:
    """Return the source called `kind`; `seed` is used by "fast" alone."""
    require_choice("noise", kind, KINDS)
    return SecureNoise() if kind == "secure" else FastNoise(seed)
