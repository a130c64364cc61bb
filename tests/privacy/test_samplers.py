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


@pytest.mark.parametrize("bits", [0, 24, 26, 45])
def test_what_is_decided_by_float_is_decided_as_by_exact_arithmetic(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With everything called unsure, every number goes through exact arithmetic: the same ones come out."""
    for sampler in (discrete_laplace, discrete_gaussian):
        fast = sampler(source(4), bits, 300)
        with monkeypatch.context() as patch:
            patch.setattr(samplers, "_UNSURE", 2.0)
            assert sampler(source(4), bits, 300).tolist() == fast.tolist()


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_bits_below_those_of_the_inversion_have_the_exact_probabilities(
    law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at large scales, where nobody could count, with one bit in the place of 24."""
    monkeypatch.setattr(samplers, "_LOGARITHM_BITS", 1)
    sampler = discrete_laplace if law == "laplace" else discrete_gaussian
    drawn = sampler(source(5), 3, 40_000)
    counts = np.append(np.bincount(drawn[np.abs(drawn) <= 20] + 20, minlength=41), (np.abs(drawn) > 20).sum())
    assert stats.chisquare(counts, chances(law, 3, 20) * len(drawn)).pvalue > 1e-3


def following(*words: int) -> Bits:
    """A source of these words, one at a time, and of nothing else."""
    left = list(words)

    def draw(count: int) -> Any:
        assert count == 1
        return np.array([left.pop(0)], dtype=np.uint64)

    return draw


@pytest.mark.parametrize(("k", "scale_bits"), [(1, 0), (1, 22), (5_000_000, 24), (3, 7), (40, 0)])
def test_a_number_at_the_edge_of_two_sizes_is_decided_by_further_bits(k: int, scale_bits: int) -> None:
    """A uniform number whose first 63 bits are those of e^(-k / t): above it the size is k - 1, below it k."""
    from decimal import Decimal, localcontext

    with localcontext() as context:
        context.prec = 80
        exact = int((Decimal(-k) / 2**scale_bits).exp() * 2**127)
    first, second = exact >> 64, exact & (2**64 - 1)
    for next_word, size in ((second - 1, k), (second + 1, k - 1)):
        uniform = np.array([first], dtype=np.uint64)
        assert samplers._geometric(following(next_word), uniform, scale_bits).tolist() == [size]
    # The very next ones are decided without.
    assert samplers._exact_geometric(first - 1, 63, scale_bits, following()) >= k
    assert samplers._exact_geometric(first + 1, 63, scale_bits, following()) <= k - 1


def test_the_ends_of_the_uniform_numbers_are_drawn_further() -> None:
    """63 zeros say that a size is at least 43; 63 ones, that it is 0."""
    zero, ones = np.array([0], dtype=np.uint64), np.array([2**63 - 1], dtype=np.uint64)
    assert samplers._geometric(following(0, 2**62), zero, 0).tolist() == [int(129 * np.log(2))]
    assert samplers._geometric(following(), ones, 0).tolist() == [0]
    assert samplers._exact_geometric(2**63 - 1, 63, 22, following()) == 0


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
