"""An engine from outside the package, by public names only: how CONTRIBUTING says one is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

import dpvalue as dpv
from tests.datasets import classification

Item = TypeVar("Item")
Done = TypeVar("Done")
SETTINGS: dict[str, Any] = {
    "progress": False, "noise": "fast", "clip": 1.0, "learning_rate": 0.1, "projection": None, "permutations": 30,
    "privacy": dpv.Privacy(4.0, 1e-4, unit="record"), "groups": np.repeat(np.arange(6), [1, 2, 3, 9, 20, 5]),
}  # fmt: skip


class Backwards:
    """Does the pieces of the work last first, in a thread of its own, and notes what it was asked for."""

    torch_device, torch_dtype = torch.device("cpu"), torch.float32

    def __init__(self, most: int | None = None) -> None:
        self.most, self.asked = most, set[str]()

    def piece(self, numbers: int, least: int = 1) -> int:
        self.asked.add("piece")
        return self.most or dpv.Local(device="cpu").piece(numbers, least)

    def map(self, work: Callable[[Item], Done], items: Iterable[Item], share: bool = True) -> list[Done]:
        self.asked.add("map")
        with ThreadPoolExecutor(1) as pool:
            return list(pool.map(work, list(items)[::-1]))[::-1]

    def ahead(self, work: Callable[[Item], Done], items: Iterable[Item]) -> Iterator[Done]:
        self.asked.add("ahead")
        return map(work, items)

    def tasks(self, function: Callable[[Item], Done], payloads: Iterable[Item]) -> Iterator[Done]:
        self.asked.add("tasks")
        return iter(self.map(function, payloads))

    @contextmanager
    def threading(self) -> Iterator[None]:
        self.asked.add("threading")
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(before)

    def require_room(self, parties: int, size: int) -> None:
        self.asked.add("require_room")


@pytest.mark.parametrize("schedule", ["replay", "running-mean"])
def test_another_engine_gives_the_same_bits(schedule: str, tmp_path: Path) -> None:
    train, test = classification(40)
    engine = Backwards()
    assert isinstance(engine, dpv.Engine)
    found = dpv.value(train, test, schedule=schedule, engine=engine, **SETTINGS)
    expected = dpv.value(train, test, schedule=schedule, engine=dpv.Local(device="cpu"), **SETTINGS)
    assert torch.equal(found.table.rows, expected.table.rows)
    assert (found.values["shapley"] == expected.values["shapley"]).all()
    assert engine.asked >= {"piece", "map", "threading", "require_room"}
    assert ("ahead" in engine.asked) == (schedule == "running-mean")
    tables = ((found.table, Backwards()), (expected.table, dpv.Local(device="cpu")))
    again = [table.value(test, permutations=20, engine=where, progress=False) for table, where in tables]
    assert (again[0].values["shapley"] == again[1].values["shapley"]).all()
    found.save(tmp_path / "result.safetensors")
    assert isinstance(dpv.load(tmp_path / "result.safetensors"), dpv.Result)


def test_pieces_of_another_size_move_last_bits_alone() -> None:
    train, test = classification(40)
    found, expected = (dpv.value(train, test, engine=engine, **SETTINGS) for engine in (Backwards(most=3), dpv.Local()))
    scale = np.abs(expected.values["shapley"]).max()
    np.testing.assert_allclose(found.values["shapley"], expected.values["shapley"], rtol=0, atol=1e-4 * scale)


def test_what_is_no_engine_is_refused() -> None:
    train, test = classification(40)
    with pytest.raises(dpv.DpvalueError, match=r"engine must be an Engine, such as Local\(\), got 'cuda'"):
        dpv.value(train, test, engine="cuda", **SETTINGS)  # type: ignore[arg-type]
