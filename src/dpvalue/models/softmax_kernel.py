"""The mean of log sum_c exp over many rows, for many models, in compiled code: one pass where torch takes five.

The exponential is that of Cephes in float32: 2^n by the bits of a number, and a polynomial for the rest. Logarithms are
taken of products of eight sums, in float64. `dpvalue.compiled` says when this is used; it needs numba.
"""

from __future__ import annotations

from math import log

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _exponentials(numbers, powers):  # type: ignore[no-untyped-def]
    """Turn numbers into the factors of their exponentials, and write the bits of the powers of 2 that go with them."""
    f = np.float32
    for i in range(numbers.shape[0]):
        x = numbers[i]
        n = np.int32(x * f(1.44269504088896341) + f(128.5)) - np.int32(128)
        r = (x - f(n) * f(0.693359375)) - f(n) * f(-2.12194440e-4)
        p = f(1.9875691500e-4)
        p = p * r + f(1.3981999507e-3)
        p = p * r + f(8.3334519073e-3)
        p = p * r + f(4.1665795894e-2)
        p = p * r + f(1.6666665459e-1)
        p = p * r + f(5.0000001201e-1)
        numbers[i] = p * r * r + r + f(1.0)
        powers[i] = (n + np.int32(127)) << np.int32(23)


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def mean_log_sum_exp(outputs, found):  # type: ignore[no-untyped-def]
    """Write the means over rows to `found` (models,), in float64; `outputs` (models, classes, rows) are overwritten.

    They are float32 numbers of absolute value below 60: then no exponential, and no product of eight sums, overflows.
    """
    rows = outputs.shape[2]
    eighth = rows // 8
    sums, bits = np.empty(rows, dtype=np.float32), np.empty(rows, dtype=np.int32)
    powers, products = bits.view(np.float32), np.empty(eighth, dtype=np.float64)
    for model in range(outputs.shape[0]):
        sums[:] = 0
        for c in range(outputs.shape[1]):
            row = outputs[model, c]
            _exponentials(row, bits)
            for i in range(rows):
                sums[i] += row[i] * powers[i]
        products[:] = 1
        for k in range(8):
            part = sums[k * eighth : (k + 1) * eighth]
            for i in range(eighth):
                products[i] *= part[i]
        total = 0.0
        for i in range(eighth):
            total += log(products[i])
        for i in range(8 * eighth, rows):
            total += log(np.float64(sums[i]))
        found[model] = total / rows
