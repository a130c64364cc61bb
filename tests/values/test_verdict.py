"""The verdict: who helps, who harms, who cannot be told apart; of many, which to look at first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.arrays import Floats
from dpvalue.privacy.laws import find_law
from dpvalue.values.intervals import NoiseDraws
from dpvalue.values.verdict import Verdict, expected_wrong, judge
from tests.datasets import classification, flipped_breast_cancer

SETTINGS: dict[str, Any] = {"noise": "fast", "progress": False}


@pytest.fixture(name="table", scope="module")
def made_table() -> dpv.Table:
    """Of 40 rows, whose rehearsal expected an AUC."""
    return dpv.release(*classification(40), privacy=dpv.Privacy(4.0), **SETTINGS)


def judged(table: dpv.Table, middle: Floats, std: float = 0.1, **given: Any) -> Verdict:
    """The verdict on values with draws around them."""
    n = len(middle)
    drawn = np.random.default_rng(0).normal(0, 1, (50, n))
    draws = middle + std * (drawn - drawn.mean(0)) / drawn.std(0, ddof=1)
    names = tuple("abcdefgh"[:n]) if n < 10 else tuple(range(n))
    few = replace(table, names=names, origin=replace(table.origin, sizes=np.full(n, 1 if n > 10 else 50)))
    return judge(few, NoiseDraws(middle, middle, draws, np.zeros(n), 0), **given)


def test_who_helps_who_harms_and_who_cannot_be_told_apart(table: dpv.Table) -> None:
    found = judged(table, np.array([1.0, 5.0, -3.0, 0.1, 1.1]))
    assert found.helps == ("b", "e", "a")
    assert found.harms == ("c",)
    assert found.unclear == ("d",)
    assert found.alike == (("e", "a"),)
    assert found.first == ()
    assert found.sentences[:4] == (
        "b, e and a improve the model: their values are above zero by more than the noise.",
        "c harms the model: its value is below zero by more than the noise.",
        "Inconclusive for d: its interval contains zero.",
        "Cannot be distinguished from each other: e and a.",
    )
    assert "the game itself" in found.sentences[-1]
    assert "is not included" in found.sentences[-1]
    assert str(found) == "\n".join(found.sentences)


def test_what_noise_hides_is_not_said(table: dpv.Table) -> None:
    hidden = judged(table, np.array([0.1, 0.2, -0.1]), std=3.0)
    assert hidden.sentences[0] == "Inconclusive for b, a and c: their intervals contain zero."
    assert hidden.sentences[1] == "No two parties can be distinguished."
    clear = judged(table, np.array([0.1, 0.2, -0.1]), std=0.0)
    assert clear.sentences[0] == "b and a improve the model: their values are above zero."
    assert "Every party can be distinguished from the next in the ranking." in clear.sentences
    assert clear.sentences[-1].startswith("These values have no noise.")
    missing = judged(table, np.array([1.0, np.nan, 2.0]))
    assert missing.unclear == ("b",)


def test_a_total_is_shared_in_words(table: dpv.Table) -> None:
    said = str(judged(table, np.array([1.0, 3.0, -3.0]), std=1e-6, pay=1000))
    assert "Shares of 1,000.00 in proportion to values: b 750.00 (750.00 to 750.00); a 250.00 (" in said
    assert "; a 250.00 (250.00 to 250.00). The others get nothing." in said
    assert "1,000.00 cannot be shared in proportion to these values" in str(
        judged(table, np.array([-1.0, -3.0, -3.0]), pay=1000)
    )


def test_of_many_it_says_which_to_look_at_first(table: dpv.Table) -> None:
    middle = np.linspace(-1, 1, 40)
    middle[7] = -9.0
    found = judged(table, middle)
    assert found.first == (7, 0, 1, 2, 3, 4, 5, 6, 8, 9)
    assert found.alike == ()
    assert found.sentences[0].startswith(
        f"Of 40 rows, {len(found.helps)} improve the model and {len(found.harms)} harm it"
    )
    assert "(lowest first; row numbers start at 0): 7, 0, 1, 2, 3, 4, 5, 6, 8 and 9." in found.sentences[1]
    auc = table.expected_auc
    assert auc is not None
    likely = expected_wrong(40, 10, 0.2, auc, find_law(table.guarantee.law))
    assert f"about {likely:.0f} if 20% of all rows are wrong (2 by chance)" in found.sentences[2]
    blind = replace(table, origin=replace(table.origin, expected_auc=None))
    assert "is unknown" in judged(blind, middle).sentences[2]
    guess = replace(table, origin=replace(table.origin, expected_auc=0.5))
    assert "no better than by chance" in judged(guess, middle).sentences[2]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_how_many_are_wrong_is_what_simulation_says(law: str) -> None:
    generator = np.random.default_rng(0)
    noise = find_law(law).sampling.numbers(generator, (400, 500))
    wrong = np.arange(500) < 50
    scores = noise - 1.5 * wrong
    auc = float(np.mean([dpv.detection.auc(row, wrong) for row in scores]))
    found = [wrong[np.argsort(row)[:20]].sum() for row in scores]
    error = float(np.std(found)) / 20
    assert expected_wrong(500, 20, 0.1, auc, find_law(law)) == pytest.approx(np.mean(found), abs=4 * error)
    other = find_law("laplace" if law == "gaussian" else "gaussian")
    assert expected_wrong(500, 20, 0.1, auc, other) != pytest.approx(np.mean(found), abs=4 * error)
    assert expected_wrong(500, 20, 0.1, 0.5, other) == pytest.approx(2.0)


def test_how_many_are_wrong_is_what_is_found_in_rows() -> None:
    expected, found = [], []
    for seed in range(3):
        train, test, flipped = flipped_breast_cancer(share=0.2, seed=seed)
        scale = test[0].mean(0), test[0].std(0)
        train, test = ((((X - scale[0]) / scale[1]), y) for X, y in (train, test))
        result = dpv.value(train, test, privacy=dpv.Privacy(2.0), seed=seed, **SETTINGS)
        verdict = result.verdict()
        assert len(verdict.first) == 20
        found.append(int(flipped[np.array(verdict.first, dtype=int)].sum()))
        assert result.table.expected_auc is not None
        expected.append(expected_wrong(400, 20, 0.2, result.table.expected_auc, find_law("laplace")))
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=3)


def test_names_in_sentences_cannot_steer(table: dpv.Table) -> None:
    hostile, values = replace(table, names=("a\nb\x1b[31m", "c")), np.array([1.0, 0.5])
    said = str(judge(hostile, NoiseDraws(values, values, values + np.zeros((3, 2)), np.zeros(2), 0)))
    assert "\x1b" not in said
    assert said.startswith("a\\x0ab\\x1b[31m and c improve the model")
