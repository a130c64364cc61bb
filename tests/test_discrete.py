"""Discrete noise: the exact law at small scales, the right spread at large ones, and coins that are never rounded."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

import dpvalue as dpv
from dpvalue.privacy import samplers
from dpvalue.privacy.samplers import Bits, discrete_gaussian, discrete_laplace


def source(seed: int) -> Bits:
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(0, 2**64, count, dtype=np.uint64)


def chances(law: str, bits: int, reach: int) -> Any:
    """The probabilities of -reach..reach, and of everything beyond."""
    wide = np.arange(-400, 401)
    scale = 2.0**bits
    weights = np.exp(-np.abs(wide) / scale) if law == "laplace" else np.exp(-(wide**2) / (2 * scale**2))
    weights /= weights.sum()
    inside = np.abs(wide) <= reach
    return np.append(weights[inside], weights[~inside].sum())


@pytest.mark.parametrize("bits", [0, 1, 2, 3])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_small_scales_have_the_exact_probabilities(law: str, bits: int) -> None:
    sampler = discrete_laplace if law == "laplace" else discrete_gaussian
    drawn = sampler(source(bits), bits, 400_000)
    reach = 3 * 2**bits
    counts = np.append(
        np.bincount(drawn[np.abs(drawn) <= reach] + reach, minlength=2 * reach + 1), (np.abs(drawn) > reach).sum()
    )
    assert stats.chisquare(counts, chances(law, bits, reach) * len(drawn)).pvalue > 1e-3
    # A law that is off by 2% in scale, or counts zero twice, is caught.
    wrong = np.arange(-400, 401)
    scale = 1.02 * 2.0**bits
    weights = np.exp(-np.abs(wrong) / scale) if law == "laplace" else np.exp(-(wrong**2) / (2 * scale**2))
    weights /= weights.sum()
    off = np.append(weights[np.abs(wrong) <= reach], weights[np.abs(wrong) > reach].sum())
    twice = chances(law, bits, reach)
    twice[reach] *= 2
    assert stats.chisquare(counts, twice / twice.sum() * len(drawn)).pvalue < 1e-6
    if bits:
        assert stats.chisquare(counts, off * len(drawn)).pvalue < 1e-3


@pytest.mark.parametrize("bits", [20, 30, 45])
def test_large_scales_have_the_continuous_law(bits: int) -> None:
    gaussian = discrete_gaussian(source(1), bits, 100_000) / 2.0**bits
    laplace = discrete_laplace(source(2), bits, 100_000) / 2.0**bits
    assert stats.kstest(gaussian, "norm").pvalue > 1e-3
    assert stats.kstest(laplace, "laplace").pvalue > 1e-3
    assert stats.kstest(gaussian, "norm", args=(0, 1.03)).pvalue < 1e-3
    assert stats.kstest(laplace, "laplace", args=(0, 1.04)).pvalue < 1e-3


def test_low_bits_are_uniform() -> None:
    drawn = discrete_gaussian(source(3), 24, 200_000)
    assert stats.chisquare(np.bincount(drawn & 255, minlength=256)).pvalue > 1e-3


def test_a_coin_decided_by_float_is_decided_as_by_exact_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything called unsure, every coin goes through exact arithmetic: the same numbers come out."""
    for sampler in (discrete_laplace, discrete_gaussian):
        fast = sampler(source(4), 22, 300)
        with monkeypatch.context() as patch:
            patch.setattr(samplers, "_UNSURE", 2.0)
            assert sampler(source(4), 22, 300).tolist() == fast.tolist()


def test_a_tie_is_decided_by_further_bits() -> None:
    """A uniform number whose first 64 bits are those of e^(-1): the next ones decide, both ways."""
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 80
        exact = int(Decimal(-1).exp() * 2**128)
    first, second = exact >> 64, exact & (2**64 - 1)
    for following, below in ((second - 1, True), (second + 1, False)):
        drawn: list[int] = [following]

        def more(count: int, drawn: list[int] = drawn) -> Any:
            assert count == 1
            return np.array([drawn.pop()], dtype=np.uint64)

        assert samplers._is_below(first, Fraction(1), more) is below
        assert not drawn
    assert samplers._is_below(2**64 - 1, Fraction(0), source(0))


def test_bad_scales_are_refused() -> None:
    with pytest.raises(dpv.DpvalueError, match="bits must be between 0 and 45, got 46"):
        discrete_gaussian(source(0), 46, 1)
    assert discrete_laplace(source(0), 5, 0).shape == (0,)
