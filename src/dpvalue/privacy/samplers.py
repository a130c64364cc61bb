r"""Exact, vectorised samplers of discrete noise.

    discrete Laplace    P(x) proportional to e^(-|x| / t)           for whole numbers x, t = 2^bits
    discrete Gaussian   P(x) proportional to e^(-x^2 / (2 sigma^2))  for whole numbers x, sigma = 2^bits

The magnitude of a Laplace variable is sampled by inversion: for a uniform number u, P(floor(-t ln u) >= j) =
P(u <= e^(-j / t)) = e^(-j / t). A Gaussian is sampled by rejection from a Laplace variable, with a biased coin
(Canonne, Kamath and Steinke, 2020). The only source of randomness is a stream of uniform bits.

A uniform number u starts with 64 bits and is compared with a float64 of known error. If their distance exceeds that
error plus the undrawn bits of u, the comparison is exact. Otherwise (once in 2^16 numbers, or in 2^41 coins) both are
refined until it is. So the law is that of exact arithmetic, at the speed of float64.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from math import floor

import numpy as np

from dpvalue.arrays import Bools, Floats, Ints, Words
from dpvalue.errors import require_number

Bits = Callable[[int], Words]
"""A function from a count to that many uniform 64-bit words."""

_UNSURE = 2.0**-42  # of a coin's probability, and of a logarithm: far above their rounding
_PIECE = 2**15  # numbers made at once: their arrays stay in a cache
_LOGARITHM_BITS = 24  # bits of a scale sampled by a logarithm; with more bits, more comparisons would be undecided
_LEAST_SURE = 2**46  # of the 63 bits of u: below, its logarithm depends on bits that are not drawn yet
MOST_BITS = 45  # the exponent of a coin has then an error far below what is called unsure


def discrete_laplace(bits: Bits, scale_bits: int, count: int) -> Ints:
    """Return `count` independent discrete Laplace numbers with t = 2^scale_bits.

    Formal guarantee: added to a whole number that changes by at most s between neighbours, one of them is s/t-DP.
    """
    _require_bits(scale_bits)
    return _collect(lambda target: _laplace(bits, scale_bits, target), count)


def discrete_gaussian(bits: Bits, sigma_bits: int, count: int) -> Ints:
    """Return `count` independent discrete Gaussian numbers with sigma = 2^sigma_bits.

    Formal guarantee: added to the coordinates of whole vectors that move by at most s (l2) between neighbours, they are
    mu-GDP with mu = s / sqrt(sigma^2 - 9), but for a delta below 1e-70 per coordinate. (A Gaussian of variance
    sigma^2 - 9, rounded at random by a discrete Gaussian of variance 9 around it, has that law: post-processing.)
    """
    _require_bits(sigma_bits)
    sigma = 2**sigma_bits

    def accept(target: int) -> Ints:
        proposed = _laplace(bits, sigma_bits, target)
        distance = np.abs(proposed)
        distance -= sigma
        tops = distance.astype(np.float64)
        tops *= tops
        keep = _coins(bits, tops, 2 * sigma * sigma, lambda i: int(distance[i]) ** 2)
        return proposed[keep]

    return _collect(accept, count)


def _require_bits(bits: int) -> None:
    require_number("bits", bits, f"between 0 and {MOST_BITS}", 0 <= bits <= MOST_BITS)


def _collect(draw: Callable[[int], Ints], count: int) -> Ints:
    """Return `count` numbers of `draw`, which may return fewer than requested."""
    numbers = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        left = count - done
        batch = draw(min(_PIECE, left + left // 3 + 16))[:left]
        numbers[done : done + len(batch)] = batch
        done += len(batch)
    return numbers


def _laplace(bits: Bits, scale_bits: int, target: int) -> Ints:
    """At most `target` discrete Laplace numbers.

    With |x| = low + 2^(scale_bits - coarse) high, `high` is sampled by inversion. `low`, the lower bits, is accepted
    with probability e^(-low / t), which is nearly 1.
    """
    coarse = min(scale_bits, _LOGARITHM_BITS)
    words = bits(target)  # a sign, and 63 bits of u
    size, negative = _geometric(bits, words >> np.uint64(1), coarse), (words & np.uint64(1)).view(np.int64)
    if scale_bits > coarse:
        low, keep = _low_bits(bits, scale_bits, scale_bits - coarse, target)
        size <<= scale_bits - coarse
        size += low
        if not keep.all():
            size, negative = size[keep], negative[keep]
    signed = (size ^ -negative) + negative
    doubled = (size | (negative ^ 1)) == 0  # zero must not count twice, once with each sign
    return signed[~doubled] if doubled.any() else signed


def _geometric(bits: Bits, uniform: Words, scale_bits: int) -> Ints:
    """floor(-t ln u) for numbers u that start with these 63 bits, t = 2^scale_bits."""
    exact = uniform.view(np.int64).astype(np.float64)
    exact += 0.5  # the middle of what the bits leave open
    exact *= 2.0**-63
    np.log(exact, out=exact)
    exact *= -(2.0**scale_bits)
    size = exact.astype(np.int64)  # rounded toward zero
    exact -= np.rint(exact)
    np.abs(exact, out=exact)
    for unsure in np.flatnonzero((exact < _UNSURE * 2**scale_bits) | (uniform < _LEAST_SURE)):
        size[unsure] = _exact_geometric(int(uniform[unsure]), 63, scale_bits, bits)
    return size


def _low_bits(bits: Bits, scale_bits: int, count: int, target: int) -> tuple[Ints, Bools]:
    """Numbers of `count` bits, and whether each is kept: with probability e^(-number / t)."""
    words = bits(target)  # the number, and at least 43 bits of a coin
    low = (words & np.uint64(2**count - 1)).view(np.int64)
    coins = words >> np.uint64(count)
    # As e^(-z) >= 1 - z, no exponential is needed where u is below 1 - z.
    gap = 1.0 - coins.astype(np.float64) * 2.0 ** (count - 64)
    gap -= low * 2.0**-scale_bits
    keep = np.ones(target, dtype=bool)
    for unsure in np.flatnonzero(gap < _UNSURE):
        exponent = Fraction(int(low[unsure]), 2**scale_bits)
        keep[unsure] = _is_below(int(coins[unsure]), exponent, bits, 64 - count)
    return low, keep


def _exact_geometric(word: int, length: int, scale_bits: int, bits: Bits) -> int:
    """floor(-t ln u) for a u with these first `length` bits; draws as many further bits as needed."""
    while True:
        with localcontext() as context:
            context.prec = length // 3 + 60  # more digits than `length` bits, before and after the point
            error = Decimal(10) ** -(length // 3 + 20)
            least = -((Decimal(word + 1) / 2**length).ln()) * 2**scale_bits - error
            most = -((Decimal(word) / 2**length).ln()) * 2**scale_bits + error if word else Decimal("Infinity")
            if most < floor(max(least, Decimal(0))) + 1:
                return floor(most)
        word = (word << 64) | int(bits(1)[0])
        length += 64


def _coins(bits: Bits, tops: Floats, bottom: int, exact_top: Callable[[int], int]) -> Bools:
    """Toss coins that are True with probability exactly e^(-top / bottom); `exact_top(i)` is the integer tops[i].

    The bottom is a power of 2, so that a product with its inverse is an exact division.
    """
    words = bits(len(tops))
    gap = tops * (-1.0 / bottom)
    np.exp(gap, out=gap)
    uniform = (words >> np.uint64(1)).view(np.int64).astype(np.float64)  # faster than from 64 bits without a sign
    uniform *= 2.0**-63
    gap -= uniform
    fallen = gap > 0
    np.abs(gap, out=gap)
    for unsure in np.flatnonzero(gap < _UNSURE):
        fallen[unsure] = _is_below(int(words[unsure]), Fraction(exact_top(int(unsure)), bottom), bits)
    return fallen


def _is_below(word: int, exponent: Fraction, bits: Bits, length: int = 64) -> bool:
    """Whether a uniform number with these first `length` bits is below e^(-exponent); draws further bits as needed."""
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
