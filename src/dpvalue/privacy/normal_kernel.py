"""Normal numbers of torch's CPU generator in float32, in compiled code: the same stream, several times faster.

Torch draws uniform numbers of 24 bits from a Mersenne twister (MT19937) and turns sixteen at a time into normal ones
(Box and Muller). Here the uniform numbers are identical, and the normal ones differ only by rounding.
`dpvalue.compiled` says when this is used; it needs numba.
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt

import numpy as np
import torch
from numba import njit
from torch import Tensor

_WORDS, _BACK = 624, 397  # of a twister's state, and how far back it looks
_AT_ONCE = 1024  # pairs of numbers: their arrays stay in the first cache
_LEAST = 16  # torch draws fewer in another way


class Normals:
    """The stream of `torch.Generator("cpu").manual_seed(seed)` for tensors of 16 float32 numbers or more."""

    def __init__(self, seed: int) -> None:
        self._states = np.zeros((2, _WORDS), dtype=np.uint32)
        _seed(seed & 0xFFFFFFFF, self._states[0])  # torch keeps these bits of a seed alone
        self._place = np.array([0, _WORDS])  # the index of the current state, and of its next word

    def fill(self, out: Tensor) -> Tensor:
        """Fill `out`, as `out.normal_` with the generator would; return it."""
        numbers = out.view(-1).numpy()  # fails where they are not in one piece
        if numbers.dtype != np.float32 or numbers.size < _LEAST:
            raise ValueError(f"out must be {_LEAST} or more float32 numbers, got {numbers.size} of {numbers.dtype}")
        _fill(self._states, self._place, numbers)
        return out


@lru_cache(maxsize=1)
def draws_as_torch() -> bool:
    """Return whether this version of torch draws the same numbers as this module."""
    seed, numbers = 2**40 + 3, torch.empty(2, 700)
    expected = torch.empty_like(numbers).normal_(generator=torch.Generator("cpu").manual_seed(seed))
    return torch.allclose(Normals(seed).fill(numbers), expected, rtol=0, atol=1e-4)


@njit(cache=True, nogil=True)
def _seed(seed, state):  # type: ignore[no-untyped-def]
    word = np.uint64(seed)
    state[0] = np.uint32(word)
    for i in range(1, _WORDS):
        word = (np.uint64(1812433253) * (word ^ (word >> np.uint64(30))) + np.uint64(i)) & np.uint64(0xFFFFFFFF)
        state[i] = np.uint32(word)


@njit(cache=True, nogil=True)
def _twist(out, far, first, second):  # type: ignore[no-untyped-def]
    """New words from those `far` away and from two neighbours; the arrays do not overlap, so this is vectorised."""
    for i in range(out.shape[0]):
        upper, lower = first[i] & np.uint32(0x80000000), second[i] & np.uint32(0x7FFFFFFF)
        odd = np.uint32(0) - (second[i] & np.uint32(1))
        out[i] = far[i] ^ ((upper | lower) >> np.uint32(1)) ^ (odd & np.uint32(0x9908B0DF))


@njit(cache=True, nogil=True)
def _renew(new, old):  # type: ignore[no-untyped-def]
    step = _WORDS - _BACK
    _twist(new[:step], old[_BACK:], old[:step], old[1 : step + 1])
    _twist(new[step : 2 * step], new[:step], old[step : 2 * step], old[step + 1 : 2 * step + 1])
    _twist(new[2 * step : -1], new[step : _BACK - 1], old[2 * step : -1], old[2 * step + 1 :])
    _twist(new[-1:], new[_BACK - 1 : _BACK], old[-1:], new[:1])


@njit(cache=True, nogil=True)
def _uniform(states, place, out):  # type: ignore[no-untyped-def]
    """Fill `out` with uniform numbers of 24 bits."""
    done = 0
    while done < out.shape[0]:
        if place[1] == _WORDS:
            _renew(states[1 - place[0]], states[place[0]])
            place[0], place[1] = 1 - place[0], 0
        take = min(_WORDS - place[1], out.shape[0] - done)
        words, part = states[place[0], place[1] : place[1] + take], out[done : done + take]
        for i in range(take):
            y = words[i]
            y ^= y >> np.uint32(11)
            y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
            y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
            y ^= y >> np.uint32(18)
            part[i] = np.float32(np.int32(y & np.uint32(0xFFFFFF))) * np.float32(2.0**-24)
        place[1] += take
        done += take


@njit(cache=True, nogil=True)
def _radii(uniform, bits, exponents):  # type: ignore[no-untyped-def]
    """Turn uniform numbers u into sqrt(-2 log(1 - u)), in place; `bits` is the same memory as whole numbers.

    The logarithm is that of Cephes: of 2^e m, with m in [sqrt(1/2), sqrt(2)), by a polynomial in m - 1. No loop has
    both views of the memory, or it would not be vectorised.
    """
    f = np.float32
    for i in range(uniform.shape[0]):
        uniform[i] = f(1.0) - uniform[i]
    for i in range(bits.shape[0]):
        above = bits[i] - np.int32(0x3F3504F3)  # the bits of sqrt(1/2)
        exponents[i] = f(above >> np.int32(23))
        bits[i] = (above & np.int32(0x007FFFFF)) + np.int32(0x3F3504F3)
    for i in range(uniform.shape[0]):
        m, e = uniform[i] - f(1.0), exponents[i]
        z = m * m
        p = f(7.0376836292e-2)
        p = p * m + f(-1.1514610310e-1)
        p = p * m + f(1.1676998740e-1)
        p = p * m + f(-1.2420140846e-1)
        p = p * m + f(1.4249322787e-1)
        p = p * m + f(-1.6668057665e-1)
        p = p * m + f(2.0000714765e-1)
        p = p * m + f(-2.4999993993e-1)
        p = p * m + f(3.3333331174e-1)
        log = m + (p * m * z + e * f(-2.12194440e-4) - f(0.5) * z) + e * f(0.693359375)
        uniform[i] = f(sqrt(f(-2.0) * log))


@njit(cache=True, nogil=True)
def _around(radii, turns, other):  # type: ignore[no-untyped-def]
    """Write radii times the cosines of turns (in [0, 1)) to `other`, and radii times their sines to `turns`."""
    f = np.float32
    for i in range(radii.shape[0]):
        quarter = np.int32(turns[i] * f(4.0) + f(0.5))
        t = (turns[i] - f(quarter) * f(0.25)) * f(6.283185307179586)
        z = t * t
        sine = ((f(-1.9515295891e-4) * z + f(8.3321608736e-3)) * z + f(-1.6666654611e-1)) * z * t + t
        cosine = ((f(2.443315711809948e-5) * z + f(-1.388731625493765e-3)) * z + f(4.166664568298827e-2)) * z * z
        cosine += f(1.0) - f(0.5) * z
        swap = (quarter & np.int32(1)) != 0
        first, second = (sine, cosine) if swap else (cosine, sine)
        first = -first if ((quarter + np.int32(1)) & np.int32(2)) != 0 else first
        second = -second if (quarter & np.int32(2)) != 0 else second
        other[i] = radii[i] * first
        turns[i] = radii[i] * second


@njit(cache=True, nogil=True)
def _transform(numbers):  # type: ignore[no-untyped-def]
    """Turn uniform numbers into normal ones, sixteen at a time: eight radii, eight turns."""
    radii = np.empty(_AT_ONCE, dtype=np.float32)
    turns, other, exponents = np.empty_like(radii), np.empty_like(radii), np.empty_like(radii)
    bits = radii.view(np.int32)
    pairs = radii.view(np.int64), turns.view(np.int64), other.view(np.int64)  # two numbers at a time: faster to move
    for start in range(0, numbers.shape[0], 2 * _AT_ONCE):
        part = numbers[start : start + 2 * _AT_ONCE].view(np.int64)
        groups = part.shape[0] // 8
        for g in range(groups):
            for i in range(4):
                pairs[0][4 * g + i] = part[8 * g + i]
            for i in range(4):
                pairs[1][4 * g + i] = part[8 * g + 4 + i]
        count = 8 * groups
        _radii(radii[:count], bits[:count], exponents[:count])
        _around(radii[:count], turns[:count], other[:count])
        for g in range(groups):
            for i in range(4):
                part[8 * g + i] = pairs[2][4 * g + i]
            for i in range(4):
                part[8 * g + 4 + i] = pairs[1][4 * g + i]


@njit(cache=True, nogil=True)
def _fill(states, place, out):  # type: ignore[no-untyped-def]
    _uniform(states, place, out)
    whole = out.shape[0] - out.shape[0] % 16
    _transform(out[:whole])
    if whole < out.shape[0]:  # torch draws the last sixteen anew
        _uniform(states, place, out[-16:])
        _transform(out[-16:])
