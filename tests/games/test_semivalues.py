"""Position weights: closed forms, sums, limits; and which names are understood."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.special import beta as beta_function

import dpvalue as dpv


@pytest.mark.parametrize("n", [1, 2, 5, 17])
@pytest.mark.parametrize(("name", "a", "b"), [("beta(4,1)", 4, 1), ("beta(16, 1)", 16, 1), ("beta(0.5,2)", 0.5, 2)])
def test_beta_weights_are_their_formula(n: int, name: str, a: float, b: float) -> None:
    formula = [
        n * comb(n - 1, r - 1) * beta_function(r + b - 1, n - r + a) / beta_function(a, b) for r in range(1, n + 1)
    ]
    np.testing.assert_allclose(dpv.semivalue(name).position_weights(n), formula, rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 17])
def test_the_others_are_their_formulas(n: int) -> None:
    banzhaf = [n * comb(n - 1, r - 1) / 2 ** (n - 1) for r in range(1, n + 1)]
    np.testing.assert_allclose(dpv.semivalue("banzhaf").position_weights(n), banzhaf, rtol=1e-12)
    np.testing.assert_allclose(dpv.semivalue("shapley").position_weights(n), np.ones(n))
    np.testing.assert_allclose(dpv.semivalue("beta(1,1)").position_weights(n), np.ones(n), rtol=1e-12)
    assert dpv.semivalue("loo").position_weights(n).tolist() == [0.0] * (n - 1) + [float(n)]


@pytest.mark.parametrize("name", ["shapley", "banzhaf", "beta(4,1)", "beta(16,1)", "beta(1,4)", "loo"])
@pytest.mark.parametrize("n", [2, 1000, 100_000])
def test_weights_are_finite_and_sum_to_n(name: str, n: int) -> None:
    p = dpv.semivalue(name).position_weights(n)
    assert np.isfinite(p).all()
    assert (p >= 0).all()
    assert p.sum() == pytest.approx(n, rel=1e-9)


def test_large_n_agrees_with_exact_integers() -> None:
    n, r = 2000, 960
    exact = n * comb(n - 1, r - 1) / 2 ** (n - 1)
    assert dpv.semivalue("banzhaf").position_weights(n)[r - 1] == pytest.approx(exact, rel=1e-9)


def test_larger_a_favours_small_coalitions() -> None:
    p = dpv.semivalue("beta(4,1)").position_weights(10)
    assert (np.diff(p) < 0).all()


@pytest.mark.parametrize("name", ["shapely", "beta(4)", "beta(0,1)", "beta(-1,2)", "beta(.,1)", "beta(inf,1)", "", 3])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(dpv.DpvalueError, match="semivalue must be one of"):
        dpv.semivalue(name)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (lambda n: np.ones(n + 1), "shape"),
        (lambda n: np.full(n, 2.0), "sum to n"),
        (lambda n: np.full(n, np.nan), "finite"),
        (lambda n: np.array([n + 1.0, -1.0] + [0.0] * (n - 2)), "not negative"),
    ],
)
def test_custom_weights_are_checked(weights: object, message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.Semivalue("mine", weights).position_weights(4)  # type: ignore[arg-type]
