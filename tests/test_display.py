"""What a prompt and a notebook show: short texts and small tables, with names that cannot steer them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import dpvalue as dpv
from tests.datasets import classification

TRAIN, TEST = classification(60)
PRIVACY = dpv.Privacy(4.0, 1e-4, unit="record")
NASTY = ["<script>alert(1)</script>", "a\x1b[31mred", 'x" onload="y', "line\nbreak", "&amp;", "\u202egnp.exe"]


class Reader(HTMLParser):
    """Collects the tags, attributes and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.texts = list[tuple[str, Any]](), list[str]()
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def result() -> dpv.Result:
    groups = np.array(NASTY, dtype=object)[np.arange(60) % len(NASTY)]
    return dpv.value(
        TRAIN, TEST, groups=groups, privacy=PRIVACY, noise="fast", semivalues=("shapley", "loo"), progress=False
    )


def shown(result: dpv.Result) -> list[Any]:
    first, second, *_ = result
    plan = dpv.plan(dpv.Parties(*TRAIN, groups=np.arange(60) % 6), TEST, privacy=PRIVACY)
    return [
        result, plan, dpv.plan(20), result.verdict(draws=2), result.compare(first, second, draws=2),
        result.shares(100.0, draws=2), dpv.audit(20, TEST, runs=5, noise="fast", progress=False),
    ]  # fmt: skip


def test_tables_of_a_notebook_are_small_and_escaped(result: dpv.Result) -> None:
    for given in shown(result):
        page = given._repr_html_()
        read = Reader(page)
        assert {tag for tag, _ in read.tags} == {"table", "caption", "thead", "tr", "th", "tbody", "td"}
        assert not any(attributes for _, attributes in read.tags)
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e]", page)
        assert len(page) < 4000
    cells = Reader(result._repr_html_()).texts
    assert NASTY[0] in cells
    assert "a\\x1b[31mred" in cells
    for values in result.values.values():
        assert {f"{value:.3g}" for value in values} <= set(cells)


def test_a_table_of_many_parties_shows_the_first_and_the_last() -> None:
    result = dpv.value(TRAIN, TEST, privacy=None, progress=False, permutations=20)
    read = Reader(result._repr_html_())
    assert [tag for tag, _ in read.tags].count("tr") == 1 + 20 + 1
    order = np.argsort(-result.values["shapley"], kind="stable")
    names = [text for text in read.texts if text.isdigit()]
    assert names == [str(place) for place in (*order[:10], *order[-10:])]


def test_reprs_are_short_and_on_one_line(result: dpv.Result) -> None:
    job = dpv.plan(dpv.Parties(*TRAIN, groups=np.arange(60) % 6), TEST, privacy=PRIVACY).job()
    release = dpv.Party("<b>", *TRAIN).answer(job, job.first_request(60))
    given: list[Any] = [
        *shown(result), result.table, result.guarantee, dpv.Guarantee(), PRIVACY, dpv.Settings(privacy=PRIVACY),
        dpv.Schedule("replay"), dpv.Projection(), dpv.semivalue("beta(4,1)"), dpv.Utility(*TEST), dpv.Local(), job,
        job.first_request(60), release, dpv.tasks.removal_curve(result),
        dpv.tasks.rank_stability([[1.0, 2.0], [2.0, 1.0]], 1),
        dpv.baselines.public_loss(TRAIN, TEST, noise="fast", groups=np.arange(60) % 6),
        dpv.federated(TRAIN, TEST, rounds=2, orders=2, privacy=None, learning_rate=0.1, progress=False),
        dpv.MembershipAttack(np.array([0.5, 0.6]), result.guarantee, 0.7), dpv.Parties(*TRAIN),
    ]  # fmt: skip
    for one in given:
        text = repr(one)
        assert text.startswith(f"{type(one).__name__}("), text
        assert len(text) < 300, text
        assert text.isprintable(), text
        assert "array(" not in text, text
        assert "object at" not in text, text


def test_a_repr_of_settings_names_what_differs_from_the_defaults() -> None:
    assert repr(dpv.Privacy()) == "Privacy(epsilon=1.0, delta=5e-05, unit='party')"
    assert repr(dpv.Privacy(2.0, neighbours="replace")) == (
        "Privacy(epsilon=2.0, delta=5e-05, unit='party', neighbours='replace')"
    )
    assert repr(dpv.Schedule("replay", rounds=1)) == "Schedule(kind='replay', rounds=1)"
    assert repr(dpv.Projection(2, steps=4)) == "Projection(m=2, source='path', steps=4)"
    assert repr(dpv.Local(threads=2)) == "Local(device='auto', dtype='float32', threads=2)"
    given = dpv.Settings(model="linear", privacy=None, seed=3, classes=(0, 1, 2))
    assert repr(given) == "Settings(model='linear', privacy=None, classes=(0, 1, 2), seed=3)"
    for value in (dpv.Privacy(2.0, unit="record"), dpv.Schedule("lagged", rounds=2), dpv.Projection(2), dpv.Local()):
        assert eval(repr(value), {name: getattr(dpv, name) for name in dpv.__all__}) == value


def test_what_was_spent_in_a_few_words_is_the_honest_epsilon(result: dpv.Result) -> None:
    assert result.guarantee.terms == "epsilon = 4, delta = 0.0001 per record, simulation"
    assert dpv.Guarantee().terms == "no differential privacy"
    claimed = dpv.value(
        TRAIN, TEST, privacy=dpv.Privacy(1.0, accounting="poisson"), schedule="running-mean", permutations=20,
        noise="fast", progress=False,
    )  # fmt: skip
    assert claimed.guarantee.epsilon is not None
    assert claimed.guarantee.epsilon > 2
    assert f"epsilon = {claimed.guarantee.epsilon:.4g}, delta" in repr(claimed)
