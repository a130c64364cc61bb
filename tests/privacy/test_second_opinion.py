"""Second opinions on the noise and its accounting: OpenDP, dp-accounting's loss distributions, and plain sums.

The samplers are held against OpenDP's, which share no code with them, and against the exact probabilities. OpenDP's
noise cannot be seeded, so a test of it fails by chance, once in a million (`RARE`); sample sizes are such that what is
wrong passes more rarely than that.

The accounting is held against what the privacy of a discrete law is by definition,

    delta(eps) = sum over whole x of max(0, P(x) - e^eps P(x - s)),

where s is how far a unit moves the sum, in steps: summed here term by term, and by two accountants.
"""

from __future__ import annotations

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from math import ceil, exp, floor, isqrt, sqrt
from typing import Any

import numpy as np
import opendp.prelude as opendp
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

import dpvalue as dpv
from dpvalue.privacy import accounting, laws
from dpvalue.privacy.mechanism import Grid, make_grid, make_mechanism
from dpvalue.privacy.samplers import discrete_gaussian, discrete_laplace

RARE = 1e-6
OURS = 1_000_000
THEIRS = {"laplace": 200_000, "gaussian": 100_000}  # a Laplace number tells half as much about its scale
LAWS = ["laplace", "gaussian"]
TWO = pytest.param(2, marks=pytest.mark.slow)  # OpenDP takes its time; 0 and 20 bits are quick to be seen
EPSILONS = np.linspace(0.0, 3.0, 61).tolist()

opendp.enable_features("contrib")


def weights(law: str, scale: float, x: Any) -> Any:
    """Proportional to the probabilities of whole numbers x."""
    return np.exp(-np.abs(x) / scale) if law == "laplace" else np.exp(-np.square(x / scale) / 2)


def chances(law: str, scale: float, beyond: int = 0) -> tuple[Any, Any]:
    """All whole numbers that matter, and `beyond` more on either side, with their probabilities."""
    reach = int((80 if law == "laplace" else 14) * scale) + beyond
    x = np.arange(-reach, reach + 1)
    found = weights(law, scale, x)
    return x, found / found.sum()


# Samplers


@lru_cache
def ours(law: str, bits: int) -> Any:
    generator = np.random.default_rng(bits)
    sampler = discrete_laplace if law == "laplace" else discrete_gaussian
    return sampler(lambda count: generator.integers(0, 2**64, count, dtype=np.uint64), bits, OURS)


@lru_cache
def theirs(law: str, bits: int) -> Any:
    whole = opendp.vector_domain(opendp.atom_domain(T=int))
    if law == "laplace":
        made = opendp.m.make_laplace(whole, opendp.l1_distance(T=int), scale=2.0**bits)
    else:
        made = opendp.m.make_gaussian(whole, opendp.l2_distance(T=float), scale=2.0**bits)
    return np.array(made([0] * THEIRS[law]))


def wrongly_drawn(law: str, scale: float, zero: float = 1.0) -> Any:
    """As many numbers as ours, of another scale, or with zero coming `zero` times as often as it should."""
    x, p = chances(law, scale)
    p = np.where(x == 0, zero * p, p)
    return np.random.default_rng(1).choice(x, OURS, p=p / p.sum())


def coarse(drawn: Any, bits: int) -> Any:
    """Six cells as wide as the scale: few, so that a wrong scale stands out from chance."""
    return np.clip(drawn >> bits, -3, 2) + 3


def fine(drawn: Any, bits: int) -> Any:
    """A cell for every whole number up to two scales, and one on either side for the rest."""
    reach = 2 * 2**bits
    return np.clip(drawn, -reach - 1, reach + 1) + reach + 1


def same_law(cells: Any, others: Any) -> float:
    """The p-value of two samples, in numbered cells, having one law: chi-square."""
    size = 1 + max(int(cells.max()), int(others.max()))
    table = np.array([np.bincount(cells, minlength=size), np.bincount(others, minlength=size)])
    return float(stats.chi2_contingency(table[:, table.sum(0) > 0], correction=False).pvalue)


@pytest.mark.parametrize("bits", [0, TWO, 20])
@pytest.mark.parametrize("law", LAWS)
def test_samples_and_opendps_have_one_law_and_a_scale_3_percent_off_is_seen(law: str, bits: int) -> None:
    assert same_law(coarse(ours(law, bits), bits), coarse(theirs(law, bits), bits)) > RARE
    for wrong in (0.97, 1.03):
        # Wide noise has too many chances to list them; but then a rounded product is as good.
        wide = np.rint(wrong * ours(law, bits)).astype(np.int64)
        off = wide if bits == 20 else wrongly_drawn(law, wrong * 2**bits)
        assert same_law(coarse(off, bits), coarse(theirs(law, bits), bits)) < RARE


@pytest.mark.parametrize("bits", [0, TWO])
@pytest.mark.parametrize("law", LAWS)
def test_every_whole_number_comes_as_often_as_opendps_and_zero_twice_is_seen(law: str, bits: int) -> None:
    assert same_law(fine(ours(law, bits), bits), fine(theirs(law, bits), bits)) > RARE
    twice = wrongly_drawn(law, 2.0**bits, zero=2.0)
    assert same_law(fine(twice, bits), fine(theirs(law, bits), bits)) < RARE


@pytest.mark.parametrize("law", LAWS)
def test_low_bits_of_wide_noise_are_opendps_and_a_few_that_are_missing_are_seen(law: str) -> None:
    low = theirs(law, 20) & 15
    assert same_law(ours(law, 20) & 15, low) > RARE
    without = np.random.default_rng(2).random(OURS) < 0.05  # one number in twenty has lost its last bit
    assert same_law(np.where(without, ours(law, 20) & 14, ours(law, 20) & 15), low) < RARE


@pytest.mark.parametrize("bits", [0, TWO])
@pytest.mark.parametrize("law", LAWS)
def test_both_samplers_have_the_exact_probabilities_and_2_percent_off_is_seen(law: str, bits: int) -> None:
    """The judge is judged too: OpenDP's numbers, and ours, against the probabilities themselves."""

    def p_value(drawn: Any, scale: float, cells: Any) -> float:
        x, p = chances(law, scale)
        expected = np.bincount(cells(x, bits), p)
        counts = np.bincount(cells(drawn, bits), minlength=len(expected))
        return float(stats.chisquare(counts, expected * len(drawn)).pvalue)

    for cells in (fine, coarse):
        assert p_value(ours(law, bits), 2.0**bits, cells) > 1e-3  # seeded: this one cannot fail by chance
        assert p_value(theirs(law, bits), 2.0**bits, cells) > RARE
        for wrong in (0.98, 1.02):
            assert p_value(ours(law, bits), wrong * 2**bits, cells) < RARE


# Accounting: one release


def delta_of(epsilon: float, *parts: tuple[str, float, int]) -> float:
    """The delta of releases (law, scale, move) together: the sum over all whole vectors, term by term."""
    p, q = np.ones(1), np.ones(1)
    for law, scale, move in parts:
        x, chance = chances(law, scale, abs(move))
        moved = weights(law, scale, x - move) / weights(law, scale, x).sum()
        p, q = np.multiply.outer(p, chance).ravel(), np.multiply.outer(q, moved).ravel()
    return float(np.maximum(p - exp(epsilon) * q, 0.0).sum())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("move", [1, 3, 8])
def test_the_sum_is_right_to_ten_digits_and_dp_accountings_loss_distribution_agrees(law: str, move: int) -> None:
    """The oracle of this file: float64 against 50 decimals, and against distributions that dp-accounting makes."""
    made = (
        pld.from_discrete_laplace_mechanism(1 / 4, move, value_discretization_interval=1e-4)
        if law == "laplace"
        else pld.from_discrete_gaussian_mechanism(4.0, move, value_discretization_interval=1e-4)
    )
    for epsilon in (0.0, 0.1, 0.7, 1.3):
        with localcontext() as context:
            context.prec = 50

            def weight(x: int) -> Decimal:
                return (-Decimal(abs(x)) / 4 if law == "laplace" else -Decimal(x * x) / 32).exp()

            reach = range(-300, 301)
            grown = Decimal(epsilon).exp()
            total = sum((weight(x) for x in reach), Decimal(0))
            exact = sum((max(Decimal(0), weight(x) - grown * weight(x - move)) for x in reach), Decimal(0)) / total
        found = delta_of(epsilon, (law, 4.0, move))
        assert found == pytest.approx(float(exact), rel=1e-10, abs=1e-16)
        assert found - 1e-12 <= made.get_delta_for_epsilon(epsilon) <= found + 1e-4


@pytest.mark.parametrize(
    ("bits", "moves"),
    [*((bits, moves) for bits in (2, 3, 5) for moves in ((1,), (5,), (3, 4), (1, 1))), (2, (2, 2, 1))],
)
def test_a_discrete_gaussian_has_the_mu_that_its_docstring_states(bits: int, moves: tuple[int, ...]) -> None:
    """At widths where it matters: mu = s / sqrt(sigma^2 - 9) in one, two and three dimensions, s the l2 length."""
    sigma, s = 2.0**bits, sqrt(sum(move**2 for move in moves))
    parts = [("gaussian", sigma, move) for move in moves]
    exact = np.array([delta_of(epsilon, *parts) for epsilon in EPSILONS])
    stated = np.array([accounting.gaussian_delta(epsilon, s / sqrt(sigma**2 - 9)) for epsilon in EPSILONS])
    continuous = np.array([accounting.gaussian_delta(epsilon, s / sigma) for epsilon in EPSILONS])
    assert (exact <= stated + 1e-14).all()
    np.testing.assert_allclose(exact, continuous, atol=0.1 / sigma**2)
    if len(moves) == 1:  # the 9 is not idle: without it the claim is false
        assert (exact > continuous + 1e-9).any()


def moved_by(grid: Grid, neighbours: str) -> int:
    """How many steps one unit can move the sum of one number over the probes, at most."""
    return (2 if neighbours == "replace" else 1) * grid.probes * isqrt(grid.longest)


def wide_gaussian_delta(epsilon: float, sigma: float, move: int) -> float:
    """The same sum for wide noise, in pieces: all x below the one where P(x) = e^eps P(x - move) count."""
    last = floor(move / 2 - epsilon * sigma**2 / move)
    reach, more, less, total = 10 * ceil(sigma), 0.0, 0.0, 0.0
    for start in range(-reach, reach, 2**19):
        x = np.arange(start, min(start + 2**19, reach), dtype=np.float64)
        p = weights("gaussian", sigma, x)
        total += float(p.sum())
        more += float(p[x <= last].sum())
        less += float(p[x <= last - move].sum())
    return (more - exp(epsilon) * less) / total


@pytest.mark.parametrize(
    ("neighbours", "probes", "epsilon", "delta"),
    [("zero_out", 1, 1.0, 5e-5), ("zero_out", 7, 0.3, 1e-6), ("replace", 3, 4.0, 1e-3)],
)
def test_noise_on_its_grid_spends_the_delta_that_was_asked_for(
    neighbours: str, probes: int, epsilon: float, delta: float
) -> None:
    """From budget to grid as a run does it, then the sum over the whole numbers, a million wide, that leave.

    Between the sum and the budget lie rounding toward zero (at most a step of the clipping norm) and the widening.
    """
    privacy = dpv.Privacy(epsilon, delta, neighbours=neighbours, mechanism="gaussian")
    grid = make_grid(make_mechanism(privacy, 0.7, privacy.noise_multiplier(1, 9)), 1, probes)
    move = moved_by(grid, neighbours)
    spent = wide_gaussian_delta(epsilon, 2.0**grid.bits, move)
    assert 0.998 * delta < spent <= delta
    assert wide_gaussian_delta(epsilon, 0.99 * 2.0**grid.bits, move) > 1.03 * delta


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 4.7])
def test_laplace_noise_on_its_grid_is_pure_at_the_epsilon_that_was_asked_for(epsilon: float, neighbours: str) -> None:
    """In fractions: the largest loss of a discrete Laplace law is move / scale. OpenDP's map says the same."""
    privacy = dpv.Privacy(epsilon, 0, neighbours=neighbours)
    grid = make_grid(make_mechanism(privacy, 0.7, privacy.noise_multiplier(1, 9, "laplace"), law="laplace"), 1, 1)
    move = moved_by(grid, neighbours)
    assert Fraction(9999, 10000) * Fraction(epsilon) < Fraction(move, 2**grid.bits) <= Fraction(epsilon)
    whole = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
    assert opendp.m.make_laplace(*whole, scale=2.0**grid.bits).map(move) <= epsilon * (1 + 1e-15)
    assert opendp.m.make_laplace(*whole, scale=0.99 * 2.0**grid.bits).map(move) > epsilon * 1.01


@pytest.mark.parametrize("move", [1, 2, 7, 8])
@pytest.mark.parametrize("bits", [1, 3])
def test_a_discrete_laplace_law_is_the_continuous_one_at_its_losses_and_a_chord_between(bits: int, move: int) -> None:
    """Its delta is 1 - e^((eps - s/t) / 2), as of Laplace noise, where eps is one of its losses (s - 2x) / t.

    Between two of them it is linear in e^eps, and so above: by at most 1 / (8 t^2), which is 2^-43 on a grid. So a
    delta (or an advantage) made from the continuous law may be that much too small; a pure epsilon is exact.
    """
    t = 2.0**bits

    def continuous(epsilon: float) -> float:
        return max(0.0, 1 - exp((epsilon - move / t) / 2))

    for x in range(move // 2 + 1):
        loss = (move - 2 * x) / t
        assert delta_of(loss, ("laplace", t, move)) == pytest.approx(continuous(loss), abs=1e-12)
    above = [delta_of(epsilon, ("laplace", t, move)) - continuous(epsilon) for epsilon in EPSILONS]
    assert min(above) > -1e-12
    assert 0.02 / t**2 < max(above) <= 1 / (8 * t**2)
    assert delta_of(move / t, ("laplace", t, move)) < 1e-15
    assert delta_of(move / t, ("laplace", 0.99 * t, move)) > 5e-4
    advantage = delta_of(0.0, ("laplace", t, move))
    assert 0 <= advantage - accounting.laplace_advantage(move / t) + 1e-12 <= 1 / (8 * t**2) + 1e-12


# Accounting: several releases


@pytest.mark.parametrize("releases", [1, 5, 40])
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_gaussian_composition_lies_between_the_exact_loss_and_opendps_zcdp(releases: int, delta: float) -> None:
    """Noise of 64 steps, a unit that moves each release by 16: exact (from below) <= ours <= OpenDP's.

    From below by dp-accounting's optimistic loss distribution of the discrete law, composed; OpenDP composes the
    discrete law in zCDP, which is looser, and turns that into epsilon and delta.
    """
    sigma, move = 64.0, 16
    claimed = accounting.epsilon(sqrt(sigma**2 - 9) / move, delta, releases)
    exact = pld.from_discrete_gaussian_mechanism(sigma, move, pessimistic_estimate=False).self_compose(releases)
    whole = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
    one = opendp.m.make_gaussian(*whole, scale=sigma)
    assert one.map(move) == pytest.approx((move / sigma) ** 2 / 2)
    bound = opendp.c.make_zCDP_to_approxDP(opendp.c.make_composition([one] * releases)).map(move).epsilon(delta)
    assert 0.98 * claimed < exact.get_epsilon_for_delta(delta) <= claimed < bound < 1.6 * claimed
    assert exact.get_delta_for_epsilon(claimed) <= delta
    worse = pld.from_discrete_gaussian_mechanism(0.97 * sigma, move, pessimistic_estimate=False).self_compose(releases)
    assert worse.get_epsilon_for_delta(delta) > claimed


@pytest.mark.parametrize("releases", [1, 4])
def test_laplace_composition_is_opendps_and_with_a_delta_the_discrete_laws(releases: int) -> None:
    """With delta = 0 epsilons add up, as in OpenDP. With a delta they are those of dp-accounting's discrete law.

    Its loss distribution has an interval that divides all losses, so that its bounds from below and above meet. Ours is
    made from the continuous law, rounded up: 2% less noise is more than the difference.
    """
    t, move, delta = 64.0, 16, 1e-3
    spent = [("laplace", t / move, releases)]
    whole = opendp.atom_domain(T=int), opendp.absolute_distance(T=int)
    several = opendp.c.make_composition([opendp.m.make_laplace(*whole, scale=t)] * releases)
    assert laws.total_epsilon(spent, 0.0) == pytest.approx(several.map(move), rel=1e-12)
    low, high = (
        pld.from_discrete_laplace_mechanism(1 / t, move, side, value_discretization_interval=1 / t)
        .self_compose(releases)
        .get_epsilon_for_delta(delta)
        for side in (False, True)
    )
    assert low == pytest.approx(high, rel=1e-6)
    assert laws.total_epsilon(spent, delta) == pytest.approx(low, rel=2e-3)
    assert laws.total_epsilon([("laplace", 0.98 * t / move, releases)], delta) > low * 1.01


@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_a_mixture_of_discrete_laws_spends_what_total_epsilon_says(delta: float) -> None:
    """One Gaussian and one Laplace release of 64 steps, moved by 12 and 20: the sum over all pairs of whole numbers."""
    parts = ("gaussian", 64.0, 12), ("laplace", 64.0, 20)
    ratios = [("gaussian", sqrt(64.0**2 - 9) / 12, 1), ("laplace", 64.0 / 20, 1)]
    claimed = laws.total_epsilon(ratios, delta)
    assert 0.97 * delta < delta_of(claimed, *parts) <= delta
    assert delta_of(claimed, ("gaussian", 0.98 * 64, 12), ("laplace", 0.98 * 64, 20)) > delta
