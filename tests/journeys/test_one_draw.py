"""One slot, one draw: whatever threads, processes, copies and kills do, a round is answered with one noise."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.noise import ChaChaWords, SecureNoise
from dpvalue.runs.run import prepare
from tests.datasets import classification
from tests.processes import at_once, begun, killed

CHARGE = Charge("laplace", 1.0, 1, 1.0, "party", "zero_out")
(X, Y), PUBLIC = classification(24, classes=2, features=3, test=30)
ENGINE = dpv.Local(device="cpu", dtype="float64", threads=1)
Keeper = Checkpoint | Ledger


@pytest.fixture(scope="module")
def job() -> dpv.Job:
    settings = dpv.Settings(
        engine=ENGINE, privacy=dpv.Privacy(1.0, unit="record"), projection=None, clip=1.0, learning_rate=0.1
    )
    sizes = np.array([12, 12])
    return prepare(dpv.Utility(*PUBLIC), settings, sizes, sizes).job(["north", "south"])


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let making a release take long enough that all are in it at once, if they can be."""
    release = Contributions.release

    def delayed(self: Contributions, *given: Any) -> Any:
        time.sleep(0.05)
        return release(self, *given)

    monkeypatch.setattr(Contributions, "release", delayed)


def party(**given: Any) -> dpv.Party:
    return dpv.Party("north", X[:12], Y[:12], engine=ENGINE, **given)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize("ledgered", [False, True])
def test_eight_threads_get_one_release_of_a_party(ledgered: bool, job: dpv.Job, tmp_path: Path) -> None:
    budget = dpv.Privacy(1.01, unit="record")
    ledger = Ledger.create(tmp_path / "ledger", budget, "north") if ledgered else None
    mine = party(ledger=ledger)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: mine.answer(job).to_bytes(), range(8)))
    assert len(set(answers)) == 1
    other = dataclasses.replace(job.first_request(12), points=job.first_request(12).points + 1)
    with pytest.raises(dpv.DpvalueError, match="already requested with other settings"):
        mine.answer(job, other)


def test_a_round_that_failed_is_answered_later_and_only_to_the_same_request(
    job: dpv.Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = party()
    with monkeypatch.context() as patch:
        patch.setattr(Contributions, "release", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            mine.answer(job)
    first = mine.answer(job).to_bytes()
    assert mine.answer(job).to_bytes() == first


@pytest.mark.parametrize("make", [
    copy.copy, copy.deepcopy, pickle.dumps, lambda one: dataclasses.replace(one, asker="x"),
], ids=["copy", "deepcopy", "pickle", "replace"])  # fmt: skip
def test_what_draws_noise_once_cannot_be_copied(make: Callable[[Any], Any], job: dpv.Job) -> None:
    """A copy would not know what has been answered, or draw the same noise for something else."""
    stream = SecureNoise().stream(0, torch.zeros(2), "gaussian", 20)
    for one in (party(), stream, ChaChaWords()):
        with pytest.raises((dpv.DpvalueError, TypeError), match=r"cannot be copied|dataclass instances"):
            make(one)


def test_a_forked_child_draws_nothing_for_a_party_without_a_ledger(job: dpv.Job, tmp_path: Path) -> None:
    mine = party()
    first = digest(mine.answer(job).to_bytes())
    fresh = party()

    def answer(number: int) -> str:
        return digest((mine if number else fresh).answer(job).to_bytes())

    for said in at_once(2, answer):
        assert "a party without a ledger must answer in the process that created it" in said
    assert digest(mine.answer(job).to_bytes()) == first
    kept = party(ledger=Ledger.create(tmp_path / "ledger", dpv.Privacy(1.01, unit="record"), "north"))
    assert len(set(at_once(4, lambda _: digest(kept.answer(job).to_bytes())))) == 1  # the ledger is one for all


def keeper(kind: str, folder: Path) -> Callable[[], Keeper]:
    if kind == "checkpoint":
        return partial(Checkpoint, folder / "kept")
    Ledger.create(folder / "ledger", dpv.Privacy(50.0), "me")
    return partial(Ledger, folder / "ledger")


def drawn(pause: float = 0.05) -> bytes:
    time.sleep(pause)
    return os.urandom(32)


@pytest.mark.parametrize("kind", ["checkpoint", "ledger"])
def test_threads_and_processes_draw_once_for_each_slot(kind: str, tmp_path: Path) -> None:
    opened = keeper(kind, tmp_path)

    def slots(_: int) -> list[str]:
        return [opened().release(slot, "question", CHARGE, drawn).hex() for slot in range(3)]

    with ThreadPoolExecutor(8) as pool:
        first = list(pool.map(slots, range(8)))
    assert all(found == first[0] for found in first)
    assert at_once(4, slots) == [first[0]] * 4
    fresh = at_once(4, lambda _: opened().release(7, "question", CHARGE, drawn).hex())
    assert len(set(fresh)) == 1
    others = at_once(4, lambda number: opened().release(8, f"question {number}", CHARGE, drawn).hex())
    assert sum(len(said) == 64 for said in others) == 1  # and of four questions one is answered
    assert not list((tmp_path / "kept").glob(".*"))


@pytest.mark.parametrize("kind", ["checkpoint", "ledger"])
def test_who_is_killed_while_it_draws_lets_the_next_one_go_on(kind: str, tmp_path: Path) -> None:
    opened = keeper(kind, tmp_path)

    def stays() -> bytes:
        (tmp_path / "sign").touch()
        time.sleep(600)
        return b""

    child = begun(lambda: opened().release(0, "question", CHARGE, stays), tmp_path / "sign")
    killed(child)
    made = opened().release(0, "question", CHARGE, partial(drawn, 0.0))
    assert opened().release(0, "question", CHARGE, pytest.fail) == made


def test_a_run_of_rounds_in_four_processes_on_one_folder_is_one_run(tmp_path: Path) -> None:
    """As the library's user would by mistake: the same call, the same checkpoint, at once."""
    given: dict[str, Any] = {
        "privacy": dpv.Privacy(2.0), "projection": None, "clip": 1.0, "learning_rate": 0.1, "progress": False,
        "schedule": dpv.Schedule("replay", rounds=3, probes=2), "checkpoint": tmp_path / "kept", "engine": ENGINE,
    }  # fmt: skip

    def table(_: int) -> str:
        return digest(dpv.release((X, Y), PUBLIC, **given).rows.numpy().tobytes())

    assert len(set(at_once(4, table))) == 1
    assert sorted(file.name for file in (tmp_path / "kept").iterdir()) == ["release-0", "release-1", "release-2"]
