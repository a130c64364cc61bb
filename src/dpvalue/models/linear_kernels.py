"""Linear models in compiled code: the mean loss of many models over many rows, and walks over single rows.

Torch needs several passes over memory, or many positions at once to save calls (`dpvalue.party.factored`). Compiled
loops follow the formulas directly, without calls and with numbers in cache. `dpvalue.compiled` decides when they are
used; they need numba.

The exponential of the loss is that of Cephes in float32: 2^n by the bits of a number, and a polynomial for the rest.
Logarithms are taken of products of eight sums, in float64.

A walk takes two passes. The first has the private rows and computes the coefficients of clipped gradients; its models
do not leave it. Then `Contributions.release` adds them to the noise. The second pass computes the models from the
releases.
"""

from __future__ import annotations

from math import exp, isfinite, log, sqrt

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
def mean_log_sum_exp(outputs, means):  # type: ignore[no-untyped-def]
    """Write the means over rows to `means` (models,), in float64; `outputs` (models, classes, rows) are overwritten.

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
        means[model] = total / rows


_FREE = {"reassoc", "contract", "nsz"}  # sums in any order; NaN and infinity are respected


@njit(cache=True, nogil=True, fastmath=_FREE)
def _residuals(out, model, row, target, logistic):  # type: ignore[no-untyped-def]
    """Write the derivative of a row's loss by the outputs of a model."""
    size = row.shape[0]
    for c in range(out.shape[0]):
        part = model[c * size : (c + 1) * size]
        total = part[0] * row[0]
        for i in range(1, size):
            total += part[i] * row[i]
        out[c] = total
    if not logistic:
        for c in range(out.shape[0]):
            out[c] = (out[c] - target[c]) * 2
        return
    top = out[0]
    for c in range(1, out.shape[0]):
        top = max(top, out[c])
    total = out[0] * 0
    for c in range(out.shape[0]):
        out[c] = exp(out[c] - top)
        total += out[c]
    for c in range(out.shape[0]):
        out[c] = out[c] / total - target[c]


@njit(cache=True, nogil=True, fastmath=_FREE)
def _clip(out, length):  # type: ignore[no-untyped-def]
    """Divide residuals by their length times the row's over the bound, where that exceeds 1; NaN becomes zero.

    In float64, rounded once: `privacy.clipping.divide_clipped` for one row.
    """
    square = 0.0
    for c in range(out.shape[0]):
        square += np.float64(out[c]) * np.float64(out[c])
    excess = sqrt(square) * length
    if excess < 1.0:  # not where it is NaN
        excess = 1.0
    for c in range(out.shape[0]):
        out[c] = np.float64(out[c]) / excess
        if not isfinite(out[c]):
            out[c] = 0.0


@njit(cache=True, nogil=True, fastmath=_FREE)
def _move(model, release, before, own, rest):  # type: ignore[no-untyped-def]
    """Add own * release + rest * what was combined before to a model."""
    if rest == 0.0:
        for i in range(model.shape[0]):
            model[i] += own * release[i]
        return
    for i in range(model.shape[0]):
        model[i] += own * release[i] + rest * before[i]


@njit(cache=True, nogil=True, fastmath=_FREE)
def find_coefficients(  # type: ignore[no-untyped-def]
    coefficients, theta, parties, noise, before, weights, rows, targets, lengths, clipped, logistic
):
    """Write the coefficients (walks, positions, o) of the clipped gradients of walks from the models theta.

    Args:
        coefficients: the output.
        theta: the models (walks, d).
        parties: the parties (walks, positions).
        noise: of their releases (walks, positions, d).
        before: what is combined with a party's release (n, d).
        weights: by which a model moves along a release, and along what is combined with it (walks, 2).
        rows: of all parties (n, f + 1).
        targets: their targets (n, o).
        lengths: their lengths over the bound of clipping (n,).
        clipped: whether there is such a bound.
        logistic: whether the outputs are of classes.
    """
    size = rows.shape[1]
    model, out = np.empty_like(theta[0]), np.empty_like(targets[0])
    for walk in range(parties.shape[0]):
        model[:] = theta[walk]
        own, rest = weights[walk, 0], weights[walk, 1]
        for p in range(parties.shape[1]):
            party = parties[walk, p]
            row = rows[party]
            _residuals(out, model, row, targets[party], logistic)
            if clipped:
                _clip(out, lengths[party])
            _move(model, noise[walk, p], before[party], own, rest)
            for c in range(out.shape[0]):
                coefficients[walk, p, c] = out[c]
                along, part = own * out[c], model[c * size : (c + 1) * size]
                for i in range(size):
                    part[i] += along * row[i]


@njit(cache=True, nogil=True, fastmath=_FREE)
def follow(path, theta, parties, releases, before, weights):  # type: ignore[no-untyped-def]
    """Write the models (walks, positions, d) after each release, or, where `path` has one position, after the last.

    Arguments as in `find_coefficients`.
    """
    whole = path.shape[1] > 1
    for walk in range(parties.shape[0]):
        at = path[walk, 0]
        at[:] = theta[walk]
        for p in range(parties.shape[1]):
            if whole and p:
                path[walk, p] = at
                at = path[walk, p]
            party = parties[walk, p]
            _move(at, releases[walk, p], before[party], weights[walk, 0], weights[walk, 1])
