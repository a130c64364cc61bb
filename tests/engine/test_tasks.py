"""Tasks: in order, the same bits on any engine, nothing private in a payload, tiny work in one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.data.rows import PrivateRows, PublicRows
from dpvalue.engine.tasks import inside_task, require_public
from dpvalue.experiments.processes import Processes
from tests.datasets import classification

TWO = dpv.Local(device="cpu", threads=2)
ENGINES = [dpv.Local(device="cpu", threads=1), TWO, Processes(device="cpu", processes=2)]


def rows(kind: Any) -> Any:
    return kind.by_party(np.ones((4, 2)), np.ones(4), np.array([2, 2]), torch.float32, torch.device("cpu"))


def negated(number: int) -> int:
    time.sleep(0.001 * (7 - number % 7))
    return -number


@pytest.mark.parametrize("engine", ENGINES)
def test_results_come_in_the_order_of_payloads(engine: dpv.Local) -> None:
    assert list(engine.tasks(negated, iter(range(23)))) == [-number for number in range(23)]
    assert list(engine.tasks(negated, [])) == []


def test_payloads_are_made_as_they_are_needed() -> None:
    made = []

    def payloads() -> Iterator[int]:
        for number in range(1000):
            made.append(number)
            yield number

    results = TWO.tasks(negated, payloads())
    assert next(results) == 0
    assert len(made) < 20


@pytest.mark.parametrize(
    "hide",
    [
        lambda private: private,
        lambda private: {"part": [1, (private,)]},
        lambda private: SimpleNamespace(inner=SimpleNamespace(rows=private)),
        lambda private: partial(max, private),
        lambda private: lambda: private,
        lambda private: np.array([None, private], dtype=object),
        lambda private: SimpleNamespace(rows=private).__eq__,
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_task_is_given_private_rows(engine: dpv.Local, hide: Callable[[Any], Any]) -> None:
    with pytest.raises(dpv.DpvalueError, match="a task must not be given private data, got PrivateRows"):
        list(engine.tasks(type, [hide(rows(PrivateRows))]))
    assert len(list(TWO.tasks(type, [hide(rows(PublicRows))]))) == 1


def test_payloads_and_their_arrays_are_let_go() -> None:
    shared, known = {"rows": np.ones(3)}, dict[int, Any]()
    for _ in range(5):
        require_public((shared, np.ones(1000), torch.ones(1000)), known)
    assert list(known.values()) == [shared]


def test_no_task_is_given_parties() -> None:
    (X, y), _ = classification(20)
    with pytest.raises(dpv.DpvalueError, match="private data, got Parties"):
        list(TWO.tasks(type, [(1, dpv.Parties(X, y))]))


def thread(pause: float) -> int:
    time.sleep(pause)
    return threading.get_ident()


@pytest.mark.parametrize("is_tiny", [True, False])
def test_tiny_work_stays_in_one_thread_and_coarse_work_does_not(is_tiny: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpvalue.engine.tasks.COARSE_SECONDS", np.inf if is_tiny else 0.0)
    used = list(TWO.tasks(thread, [0.01] * 20))
    here = threading.get_ident()
    assert used[0] == here
    assert (set(used[10:]) == {here}) is is_tiny
    assert (here in used[1:]) is is_tiny
    assert len(set(used[1:])) >= 2


def within(number: int) -> tuple[bool, set[int]]:
    here = threading.get_ident()
    used = {*TWO.map(lambda _: threading.get_ident(), range(9)), *TWO.tasks(thread, [0.003] * 9)}
    return inside_task(), used - {here}


def test_work_inside_a_task_is_not_divided_further() -> None:
    assert list(TWO.tasks(within, range(6))) == [(True, set())] * 6
    assert not inside_task()


def test_an_error_ends_the_tasks_and_reaches_the_caller() -> None:
    began = []

    def work(number: int) -> int:
        began.append(number)
        time.sleep(0.003)
        if number == 2:
            raise dpv.DpvalueError("two")
        return number

    with pytest.raises(dpv.DpvalueError, match="two"):
        list(TWO.tasks(work, range(100)))
    assert len(began) < 20


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", "trees"])
def test_values_and_intervals_have_the_same_bits_on_any_engine(model: str) -> None:
    private, public = classification(240, test=80)
    groups = np.repeat(np.arange(4), 60)
    table = dpv.release(
        private, public, groups=groups, model=model, progress=False,
        privacy=dpv.Privacy(2.0, 1e-4, unit="record"),
    )  # fmt: skip
    results = [table.value(public, engine=engine, progress=False) for engine in ENGINES]
    for result in results[1:]:
        np.testing.assert_array_equal(result.values["shapley"], results[0].values["shapley"])
        for name in ("draws", "noise_free"):
            first, other = (getattr(one.noise_draws(draws=4)["shapley"], name) for one in (results[0], result))
            np.testing.assert_array_equal(first, other)


def test_a_callers_metric_is_called_by_one_thread_at_a_time() -> None:
    private, public = classification(240, test=60)
    busy, clashes = threading.Lock(), list[int]()

    def metric(outputs: np.ndarray, labels: np.ndarray) -> float:
        if not busy.acquire(blocking=False):
            clashes.append(1)
            return 0.0
        time.sleep(0.0002)
        busy.release()
        return float((outputs.argmax(1) == labels).mean())

    for model in ("logistic", "trees"):
        result = dpv.value(
            private, dpv.Utility(*public, metric=metric), groups=np.repeat(np.arange(4), 60),
            model=model, privacy=dpv.Privacy(2.0, 1e-4, unit="record"), engine=TWO, progress=False,
        )  # fmt: skip
        result.noise_draws(draws=6)
    assert not clashes
