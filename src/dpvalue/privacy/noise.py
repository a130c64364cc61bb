"""Sources of noise: the operating system (`secure`) or a seed (`fast`, for simulations).

Secure noise is discrete, in whole steps of a grid; fast noise is floating point, of scale 1. A source returns one
stream per permutation or round. Fast noise is drawn in pieces whose size depends only on the length of a row, so the
numbers do not depend on how a caller splits its work. Secure noise cannot be repeated and is drawn as requested.

A simulation protects nothing from an attacker who guesses its seed, and a small seed is guessed quickly. No file holds
the seed or its hash, but guesses can be verified: the noisy rows minus the right noise have at most the clipping norm.
An initial model, a basis or a rehearsal drawn with the same seed also verify guesses.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from typing import ClassVar, NoReturn, Protocol, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Ints, Words
from dpvalue.errors import DpvalueError, require_choice
from dpvalue.privacy.laws import find_law
from dpvalue.streams import Purpose, stream


class Uncopyable:
    """A base class of objects that raise when they are copied or pickled."""

    stays_in_process: ClassVar[bool] = True

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise: copies and pickles call this method."""
        kind = type(self).__name__
        raise DpvalueError(
            f"a {kind} cannot be copied or pickled: the copy would draw noise twice for the same release"
        )


KINDS = ("secure", "fast")

_NUMBERS_AT_ONCE = {"cpu": 2**14, "cuda": 2**22}  # a piece fits a CPU's cache, and fills a GPU

_WORDS_OF_A_KEY = 2**30  # 8 GiB; the counter of ChaCha20 is for 256


def piece_rows(size: int, device: torch.device) -> int:
    """Return how many rows of this length are drawn at once; a function of `size` and the type of device only."""
    return max(1, _NUMBERS_AT_ONCE[device.type] // size)


class NoiseStream(Uncopyable):
    """Rows of noise, in order; `draw` fills a contiguous tensor with the next `piece` rows.

    Without a piece it draws as many rows as requested.
    """

    def __init__(self, draw: Callable[[Tensor], object], like: Tensor, piece: int | None = None) -> None:
        self._draw, self._piece = draw, piece
        self._piece_left, self._rows_left = (
            like.new_empty(0, len(like)),
            0,
        )  # the last piece, and how many of its rows are left
        self._owner = os.getpid()

    def fill(self, out: Tensor) -> Tensor:
        """Fill `out` (rows, size), contiguous, with the next rows; return it."""
        if os.getpid() != self._owner:  # parent and child would draw the same noise, which cancels in a difference
            raise DpvalueError("a noise stream must not be used after a fork: create a new one")
        rows = out.shape[0]  # len(out) takes longer than all else here
        if self._piece is None or (rows == self._piece and self._rows_left == 0):
            self._draw(out)
            return out
        done = 0
        while done < rows:
            if self._rows_left == 0:
                self._piece_left, self._rows_left = out.new_empty(self._piece, out.shape[1]), self._piece
                self._draw(self._piece_left)
            take, first = min(self._rows_left, rows - done), self._piece - self._rows_left
            out[done : done + take] = self._piece_left[first : first + take]
            self._rows_left -= take
            done += take
        return out


class ChaChaWords(Uncopyable):
    """Uniform 64-bit words: the key stream of ChaCha20 under a key from the operating system.

    The key is replaced long before its block counter wraps around.
    """

    def __init__(self) -> None:
        self._renew()

    def _renew(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._cipher = Cipher(
            algorithms.ChaCha20(secrets.randbits(256).to_bytes(32, "little"), bytes(16)), mode=None
        ).encryptor()
        self._words_left = _WORDS_OF_A_KEY

    def __call__(self, count: int) -> Words:
        """Return the next `count` words."""
        if count > self._words_left:
            self._renew()
        self._words_left -= count
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype=np.uint64)


class NoiseSource(Protocol):
    """A source of streams of noise. Rows have the size, type and device of a vector `like` (size,).

    `on_grid` is True for noise in whole steps of a grid (float64), False for noise of scale 1 in the type of `like`.
    """

    on_grid: bool

    def stream(self, release: int, like: Tensor, law: str, bits: int) -> NoiseStream:
        """Return the stream of the release with this number.

        Args:
            release: the number.
            like: a vector of the size and on the device of a row.
            law: the name of a law of noise.
            bits: the scale on a grid is 2^bits steps; unused for noise of scale 1.
        """
        ...

    def rows(self, release: int, parties: Ints, like: Tensor, law: str, bits: int) -> Tensor:
        """Return the noise (n, size) of parties in a round, by their numbers; arguments as in `stream`."""
        ...


class SecureNoise:
    """Noise from ChaCha20, under a fresh 256-bit key of the operating system for each stream. It cannot be repeated.

    A key belongs to one stream and is stored nowhere, so forked processes share nothing. The noise is discrete
    (`dpvalue.privacy.samplers`), in whole steps of a grid.
    """

    on_grid = True

    def __init__(self) -> None:
        try:
            import cryptography  # noqa: F401
        except ModuleNotFoundError:
            message = "noise='secure' needs the package cryptography; install it, or use noise='fast'"
            raise DpvalueError(message) from None

    def stream(self, release: int, like: Tensor, law: str, bits: int) -> NoiseStream:
        """Return a new stream, independent of all others."""
        words, sampler = ChaChaWords(), find_law(law).sampling.discrete

        def draw(out: Tensor) -> None:
            out.copy_(torch.from_numpy(sampler(words, bits, out.numel())).view_as(out))

        return NoiseStream(draw, like.to(torch.float64))

    def rows(self, release: int, parties: Ints, like: Tensor, law: str, bits: int) -> Tensor:
        """Return fresh noise for these parties; it does not depend on their numbers."""
        return self.stream(release, like, law, bits).fill(like.new_empty(len(parties), len(like), dtype=torch.float64))


class FastNoise:
    """Noise derived from (seed, purpose, release, party). With the seed it can be repeated and removed."""

    on_grid = False

    def __init__(self, seed: int, purpose: Purpose = Purpose.FAST_NOISE, compiled: bool = False) -> None:
        self._seed, self._purpose, self._compiled = seed, purpose, compiled

    def compiled(self) -> FastNoise:
        """Return the same noise, up to rounding, drawn in compiled code if available."""
        return FastNoise(self._seed, self._purpose, compiled=True)

    def stream(self, release: int, like: Tensor, law: str, bits: int) -> NoiseStream:
        """Return the stream of (seed, purpose, release); repeatable on one type of device."""
        seed, piece = (
            int(stream(self._seed, self._purpose, release).integers(2**62)),
            piece_rows(len(like), like.device),
        )
        if self._compiled and law == "gaussian" and like.dtype == torch.float32:
            from dpvalue.privacy.normal_kernel import Normals, draws_as_torch

            if draws_as_torch():
                return NoiseStream(Normals(seed).fill, like, piece)
        generator = torch.Generator(like.device).manual_seed(seed)
        fill = find_law(law).sampling.fill
        return NoiseStream(lambda out: fill(out, generator), like, piece)

    def rows(self, release: int, parties: Ints, like: Tensor, law: str, bits: int) -> Tensor:
        """Return the noise of parties; each row is a function of the seed, the release and the party's number.

        Parties with adjacent numbers share a generator and have different rows of it.
        """
        piece, fill = piece_rows(len(like), like.device), find_law(law).sampling.fill
        noise, generator = like.new_empty(len(parties), len(like)), torch.Generator(like.device)
        order = np.argsort(parties // piece, kind="stable")
        numbers, starts = np.unique(parties[order] // piece, return_index=True)
        for number, places in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True):
            source = np.random.SeedSequence(self._seed, spawn_key=(int(self._purpose), release, number + 1))
            generator.manual_seed(int(source.generate_state(1, np.uint64)[0] % 2**62))
            together = fill(like.new_empty(piece, len(like)), generator)
            noise[torch.from_numpy(places)] = together[torch.from_numpy(parties[places] % piece)]
        return noise


def noise_source(kind: str, seed: int, purpose: Purpose = Purpose.FAST_NOISE) -> NoiseSource:
    """Return the source called `kind`; `seed` and `purpose` are used by "fast" alone."""
    require_choice("noise", kind, KINDS)
    return SecureNoise() if kind == "secure" else FastNoise(seed, purpose)
