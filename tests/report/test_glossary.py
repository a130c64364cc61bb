"""The glossary: one source for its page in docs and for the tooltips of the report."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.progress import silent
from dpvalue.report import report_page
from dpvalue.report.glossary import FIELD, OURS, TERMS, tooltip
from dpvalue.runs.config import make_config
from dpvalue.runs.execute import record_of_release, record_of_values
from dpvalue.runs.folder import values_frame
from dpvalue.runs.sources import GroundTruth
from tests.datasets import classification

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"


def test_the_page_of_docs_is_made_of_the_terms() -> None:
    listed = [[f"- **{term}**: {meaning}" for term, meaning in terms.items()] for terms in (FIELD, OURS)]
    parts = [[line for line in part.splitlines() if line] for part in PAGE.read_text().split("## ")[1:]]
    assert [part[1:] for part in parts] == listed


def test_there_are_at_most_forty_terms_of_one_line_each() -> None:
    assert len(TERMS) == len(FIELD) + len(OURS) <= 40
    for meaning in TERMS.values():
        assert meaning.endswith(".")
        assert meaning[0].isupper()
        assert "\n" not in meaning
    with pytest.raises(KeyError):
        tooltip("no such term")


@pytest.fixture(scope="module", params=["record", "person"])
def page(request: pytest.FixtureRequest) -> str:
    """The report of a private run with payouts, several semivalues and a column that marks parties."""
    train, test = classification(60)
    groups, persons = np.repeat(list("abcd"), 15), np.arange(60)
    result = dpv.value(
        train, test, groups=groups, persons=persons if request.param == "person" else None,
        privacy=dpv.Privacy(8.0, unit=request.param), noise="fast", progress=False, permutations=20,
        semivalues=("shapley", "banzhaf"),
    )  # fmt: skip
    config = make_config({"train": ["train.csv"], "test": "test.csv", "target": "label", "pay": 100.0})
    known = GroundTruth("wrong", np.array([True, False, False, False]))
    record = record_of_values(record_of_release(config, result.table, None), result, known, [], 100.0)
    return report_page(values_frame(result, silent, 100.0), record)


def test_every_column_and_number_of_the_report_has_a_tooltip_of_the_glossary(page: str) -> None:
    table = re.findall(r"<th [^>]*><button([^>]*)>(.*?)</button>", page)
    promise = re.findall(r"<dt([^>]*)>(.*?)</dt>", page.split("<h2>Guarantee</h2>")[1].split("</section>")[0])
    assert len(table) > 15
    assert len(promise) == 8
    for attributes, head in table + promise:
        shown = re.findall(r'title="([^"]*)"', attributes)
        assert len(shown) == 1, head
        assert unescape(shown[0]) in TERMS.values(), head
    meanings = {unescape(head): unescape(re.findall(r'title="([^"]*)"', text)[0]) for text, head in table + promise}
    assert meanings["DP noise"] == TERMS["DP noise"]
    assert meanings["shapley"] == TERMS["value"]
    assert meanings["epsilon"] == TERMS["epsilon"]


def test_the_report_lists_the_glossary(page: str) -> None:
    listed = re.findall(r"<li><b>(.*?)</b>: (.*?)</li>", page.split("<summary>Glossary</summary>")[1])
    assert {unescape(term): unescape(meaning) for term, meaning in listed} == TERMS
