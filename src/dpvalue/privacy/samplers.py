r"""Exact samplers of discrete noise, many numbers at once.

    discrete Laplace    P(x) proportional to e^(-|x| / t)           for whole numbers x, t = 2^bits
    discrete Gaussian   P(x) proportional to e^(-x^2 / (2 sigma^2))  for whole numbers x, sigma = 2^bits

after Canonne, Kamath and Steinke (2020): a geometric variable from coins that fall with probability e^(-y), and a
Gaussian by rejection from a Laplace variable. All that is random is whole numbers from a stream of bits.

A coin of probability p is a comparison of a uniform number u with p. Here u starts as 64 bits, and p as a float64 of
known error: if they are further apart than that error the comparison is decided, exactly. If not (once in 2^39 coins)
both are computed further, as far as it takes. So the law is that of exact arithmetic, at the speed of float64.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from dpvalue.arrays import Bools, Floats, Ints, Words
from dpvalue.errors import require_number

Bits = Callable[[int], Words]
"""Takes a count; returns that many uniform 64-bit words."""

_UNSURE = 2.0**-40  # of a coin's probability: far above the rounding of exp and of its argument
_PIECE = 2**16  # numbers made at once: their arrays stay in a cache
MOST_BITS = 45  # the exponent of a coin has then an error far below what is called unsure


def discrete_laplace(bits: Bits, scale_bits: int, count: int) -> Ints:
    """Return `count` independent discrete Laplace numbers with t = 2^scale_bits.

    Formal guarantee: added to a whole number that changes by at most s between neighbours, one of them is s/t-DP.
    """
    _require_bits(scale_bits)
    return _collect(lambda wanted: _laplace(bits, scale_bits, wanted), count)


def discrete_gaussian(bits: Bits, sigma_bits: int, count: int) -> Ints:
    """Return `count` independent discrete Gaussian numbers with sigma = 2^sigma_bits.

    Formal guarantee: added to the coordinates of whole vectors that move by at most s (l2) between neighbours, they are
    mu-GDP with mu = s / sqrt(sigma^2 - 9), but for a delta below 1e-70 per coordinate. (A Gaussian of variance
    sigma^2 - 9, rounded at random by a discrete Gaussian of variance 9 around it, has that law: post-processing.)
    """
    _require_bits(sigma_bits)
    sigma = 2**sigma_bits

    def accepted(wanted: int) -> Ints:
        proposed = _laplace(bits, sigma_bits, wanted)
        away = np.abs(proposed) - sigma
        fallen = _coins(bits, np.square(away.astype(np.float64)), 2 * sigma * sigma, lambda i: int(away[i]) ** 2)
        return proposed[fallen]

    return _collect(accepted, count)


def _require_bits(bits: int) -> None:
    require_number("bits", bits, f"between 0 and {MOST_BITS}", 0 <= bits <= MOST_BITS)


def _collect(draw: Callable[[int], Ints], count: int) -> Ints:
    """Return `count` of the numbers that `draw` returns, which may be fewer than it was asked for."""
    numbers = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        left = count - done
        made = draw(min(_PIECE, left + left // 3 + 16))[:left]
        numbers[done : done + len(made)] = made
        done += len(made)
    return numbers


def _laplace(bits: Bits, scale_bits: int, wanted: int) -> Ints:
    """About as many discrete Laplace numbers as wanted, or fewer."""
    scale = 2**scale_bits
    # Of |x| = low + t high, low is kept with probability e^(-low / t), high has steps of probability e^(-1).
    words = bits(wanted + wanted * 3 // 5)
    low = (words & np.uint64(scale - 1)).astype(np.int64)
    negative = (words >> np.uint64(63)).astype(bool)
    kept = _coins(bits, low.astype(np.float64), scale, lambda i: int(low[i]))
    low, negative = low[kept], negative[kept]
    high = np.zeros(len(low), dtype=np.int64)
    alive = np.arange(len(low))
    while len(alive):
        alive = alive[_coins(bits, np.ones(len(alive)), 1, lambda i: 1)]
        high[alive] += 1
    size = low + scale * high
    proper = ~(negative & (size == 0))  # zero must not count twice, once with each sign
    size, negative = size[proper], negative[proper]
    signed: Ints = np.where(negative, -size, size)
    return signed


def _coins(bits: Bits, tops: Floats, bottom: int, exact_top: Callable[[int], int]) -> Bools:
    """Toss coins that fall with probability e^(-top / bottom), exactly; `exact_top(i)` is the whole number tops[i]."""
    words = bits(len(tops))
    gap = np.exp(tops / -float(bottom))
    gap -= words.astype(np.float64) * 2.0**-64
    fallen = gap > 0
    for unsure in np.flatnonzero(np.abs(gap) < _UNSURE):
        fallen[unsure] = _is_below(int(words[unsure]), Fraction(exact_top(int(unsure)), bottom), bits)
    return fallen


def _is_below(word: int, exponent: Fraction, bits: Bits) -> bool:
    """Whether the uniform number that starts with these 64 bits is below e^(-exponent), by as many bits as it takes."""
    length = 64
    while True:
        with localcontext() as context:
            context.prec = length // 3 + 40  # more digits than `length` bits
            chance = (Decimal(-exponent.numerator) / exponent.denominator).exp() * 2**length
            cell = int(chance)
            # Computed to far more digits than it has bits, so its cell is right unless it lies on an edge.
            certain = exponent == 0 or 1e-20 < chance - cell < 1 - Decimal("1e-20")
        if certain and word != cell:
            return word < cell
        word = (word << 64) | int(bits(1)[0])
        length += 64
