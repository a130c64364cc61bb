"""The plan of the refit game: what agreement to expect, who is too small, and what cannot work."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue.methods.retraining import spearman
from dpvalue.planning.situation import Agreement, RehearsedMean
from dpvalue.runs.plan import advice
from tests.datasets import Arrays, classification

QUIET: dict[str, Any] = {"noise": "fast", "preprocess": StandardScaler()}


def hospitals(sizes: tuple[int, ...], public: int = 150, seed: int = 0) -> tuple[Arrays, Arrays, Any]:
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = X[order], y[order]
    count = sum(sizes)
    groups = np.repeat([f"h{number}" for number in range(len(sizes))], sizes)
    return (X[public : public + count], y[public : public + count]), (X[:public], y[:public]), groups


def planned(sizes: tuple[int, ...], privacy: dpv.Privacy, public: int = 150, **given: Any) -> dpv.Plan:
    private, utility, groups = hospitals(sizes, public)
    return dpv.plan(private, utility, groups=groups, privacy=privacy, **{**QUIET, **given})


def test_the_plan_says_what_agreement_to_expect() -> None:
    """Four sites of very different sizes, and public rows enough to rehearse with: their order is known."""
    private, public = classification(200, classes=3, test=500)
    sites = np.repeat(list("abcd"), [140, 40, 15, 5])
    made = dpv.plan(private, public, groups=sites, privacy=dpv.Privacy(50.0, 1e-5, unit="record"), **QUIET)
    assert isinstance(made.expected, Agreement)
    assert 0.5 < made.expected.spearman <= 1
    assert made.expected.too_small == ()
    assert made.expected_auc is None
    page = str(made)
    assert f"agreement with retraining: expected rank correlation {made.expected.spearman:.2f}" in page
    assert "released: a description in up to" in page
    assert "parties: 4, 27 records each" in page
    assert "releases: 1 per party (refit game)" in page
    assert f"{made.expected.sizes:.2f} for sizes alone" in page
    assert made.advice.startswith("epsilon = 50 per record can work: expected correlation")
    assert not made.cannot_work


@pytest.mark.slow
def test_what_was_planned_is_what_is_done() -> None:
    private, public, groups = hospitals((60, 60, 60, 20))
    given: dict[str, Any] = {"privacy": dpv.Privacy(2.0, 1e-5, unit="record"), "seed": 5, **QUIET}
    made = dpv.plan(private, public, groups=groups, **given)
    direct = dpv.value(private, public, groups=groups, progress=False, **given)
    np.testing.assert_array_equal(
        made.value(private, groups=groups, progress=False).values["shapley"], direct.values["shapley"]
    )
    junk = np.random.default_rng(0).normal(size=private[0].shape), 1 - private[1]
    again = dpv.plan(junk, public, groups=groups, **given)  # no private row is read
    assert again.expected == made.expected
    assert made.prepared is not None
    assert again.prepared is not None
    first, second = made.prepared.job(), again.prepared.job()
    assert (first.statistic, first.mechanism) == (second.statistic, second.mechanism)
    assert first.basis is not None
    assert torch.equal(first.basis, second.basis)  # type: ignore[arg-type]


def test_parties_that_are_too_small_are_counted_and_named() -> None:
    made = planned((80, 80, 80, 80, 3, 2), dpv.Privacy(1.0, 1e-5, unit="record"))
    assert isinstance(made.expected, Agreement)
    assert made.expected.too_small == (2, 3)
    assert "2 of 6 parties are too small for epsilon = 1 per record (up to 3 records)" in str(made)
    assert "The other parties are not affected" in made.advice
    assert not made.cannot_work
    everyone = planned((80, 80, 3, 2), dpv.Privacy(0.02, 1e-5, unit="record"))
    assert "All 4 parties are too small for epsilon = 0.02 per record (up to 80 records)" in everyone.advice
    assert "other parties" not in everyone.advice


def test_a_hopeless_budget_cannot_work() -> None:
    made = planned((60, 60, 60, 20), dpv.Privacy(0.01, 1e-5, unit="party"))
    assert made.cannot_work
    assert made.advice.startswith("epsilon = 0.01 per party cannot work")
    assert "unit='record'" in made.advice
    assert isinstance(made.expected, Agreement)
    assert len(made.expected.too_small) == 4


def test_few_public_rows_are_said_to_be_few() -> None:
    private = dpv.Privacy(4.0, 1e-5, unit="record")
    few, many = planned((60, 60, 60, 60), private, public=40), planned((15, 15, 15, 15), private, public=200)
    assert "too few public rows: rehearsal parties had" in str(few)
    assert "too few" not in str(many)
    assert isinstance(few.expected, Agreement)
    assert isinstance(many.expected, Agreement)
    assert few.expected.size_ratio < 0.2
    assert many.expected.size_ratio == 1


def test_persons_are_counted_where_they_are_protected() -> None:
    private, public, groups = hospitals((60, 60, 60))
    persons = np.arange(180) // 2
    given: dict[str, Any] = {"groups": groups, "persons": persons, **QUIET}
    made = dpv.plan(private, public, privacy=dpv.Privacy(4.0, 1e-5, unit="person"), **given)
    assert "parties: 3, 30 persons each" in str(made)
    assert isinstance(made.expected, Agreement)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_engines_of_either_type_rehearse(dtype: str) -> None:
    engine = dpv.Local(device="cpu", dtype=dtype)
    made = planned((60, 60, 20), dpv.Privacy(4.0, 1e-5, unit="record"), engine=engine)
    assert isinstance(made.expected, Agreement)
    assert np.isfinite(made.expected.spearman)


@cache
def usual() -> dpv.Plan:
    return planned((30, 30, 30), dpv.Privacy(4.0, 1e-5, unit="record"))


def agreed(spearman: float, error: float, sizes: float, beyond: tuple[float, float]) -> Agreement:
    return Agreement(spearman, error, sizes, RehearsedMean(*beyond), 1.0, ())


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        (agreed(0.8, 0.14, 0.0, (0.8, 0.14)), "can work"),
        (agreed(0.8, 0.16, 0.0, (0.8, 0.16)), "cannot tell"),  # may be 0.48
        (agreed(0.55, 0.03, 0.0, (0.55, 0.03)), "cannot tell"),
        (agreed(0.2, 0.06, 0.0, (0.2, 0.06)), "cannot tell"),  # may be 0.32
        (agreed(0.2, 0.04, 0.0, (0.2, 0.04)), "cannot work"),
        (agreed(0.8, 0.05, 0.78, (0.02, 0.1)), "can work, sizes"),  # may be no better
        (agreed(0.8, 0.05, 0.6, (0.2, 0.11)), "can work, sizes"),
        (agreed(0.7, 0.05, 0.7, (0.0, 0.02)), "cannot work, sizes"),  # for sure no better
        (agreed(0.95, 0.01, 0.95, (0.0, 0.02)), "can work, sizes"),  # but nothing is left to say
        (agreed(0.5, 0.2, 0.5, (0.0, 0.2)), "cannot tell, sizes"),
    ],
)
def test_what_is_said_follows_from_the_standard_errors(expected: Agreement, verdict: str) -> None:
    made = replace(usual(), expected=expected)
    said = advice(made, None, None)
    assert made.cannot_work == ("cannot work" in verdict)
    assert expected.can_work == verdict.startswith("can work")
    assert ("epsilon = 4 per record can work: " in said) == verdict.startswith("can work")
    assert (said.startswith("Inconclusive: ")) == ("cannot tell" in verdict)
    assert ("epsilon = 4 per record cannot work" in said) == ("cannot work" in verdict)
    assert ("for sizes alone" in said) == ("sizes" in verdict)


@pytest.mark.slow
def test_sizes_alone_are_compared_on_the_same_rehearsals() -> None:
    """Equal sizes say nothing; where noise drowns all, unequal ones say what values do, and the budget is not spent."""
    equal = planned((40, 40, 40, 40), dpv.Privacy(20.0, 1e-5, unit="record")).expected
    assert isinstance(equal, Agreement)
    assert equal.sizes == 0
    assert equal.gain_over_sizes == RehearsedMean(equal.spearman, equal.error)
    hopeless = planned((120, 60, 30, 15, 60, 30), dpv.Privacy(0.01, 1e-5, unit="record"), public=200)
    assert isinstance(hopeless.expected, Agreement)
    assert not hopeless.expected.can_work
    assert not hopeless.expected.is_more_than_sizes
    assert hopeless.expected.gain_over_sizes.mean < 0.1
    assert "sizes" in hopeless.advice


def test_a_standard_error_is_that_of_all_or_of_the_splits() -> None:
    alike = np.array([[0.0, 1.0, 0.0, 1.0]] * 3)
    assert RehearsedMean.of(alike) == RehearsedMean(0.5, float(np.std(alike, ddof=1)) / 12**0.5)
    apart = np.array([[0.0] * 4, [0.5] * 4, [1.0] * 4])
    assert RehearsedMean.of(apart) == RehearsedMean(0.5, 0.5 / 3**0.5)
    assert (RehearsedMean(0.5, 0.1).low, RehearsedMean(0.5, 0.1).high) == pytest.approx((0.3, 0.7))


def test_rank_correlations_share_ranks() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        first, second = generator.integers(4, size=7), generator.normal(size=7)
        assert spearman(first, second) == pytest.approx(float(spearmanr(first, second).statistic))
    assert spearman(np.ones(5), generator.normal(size=5)) == 0
