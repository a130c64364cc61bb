"""What was paid for survives: kills at random points, a full disk, Ctrl-C, and an error in the page."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import Tensor

import dpvalue as dpv
from dpvalue import storage
from dpvalue.games.estimates import Estimate
from dpvalue.methods.choosing import choose
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.progress import silent
from dpvalue.runs import execute as execute_module
from dpvalue.runs import folder as folder_module
from dpvalue.runs import run as run_module
from dpvalue.runs.charging import Charging
from dpvalue.runs.config import RunConfig, make_config
from dpvalue.runs.execute import FinishedRun, RunInterrupted, execute, revalue
from dpvalue.runs.folder import open_folder, require_free, write_page
from dpvalue.runs.sources import FileRun, open_run

WATCHED = ("execute", "folder", "durable", "checkpoint", "charging", "files", "ledger", "rounds")
KILLS = 60
CHARGE = Charge("laplace", 1.0, 1, 1.0, "party", "zero_out")
FILES = ["report.html", "run.json", "run.toml", "table.safetensors", "values.csv"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(40, 2)), columns=["a", "b"])
    frame["label"] = (frame["a"] > 0).astype(int)
    frame.insert(0, "site", [f"site {row % 4}" for row in range(40)])
    frame[:16].to_csv(folder / "train.csv", index=False)
    frame[16:].to_csv(folder / "test.csv", index=False)
    return folder


@pytest.fixture(autouse=True)
def choosing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are chosen from public things alone; here once for all of a test, to have time for kills."""
    chosen: dict[str, Any] = {}

    def choose_once(at: Any) -> Any:
        name = str(at.settings.schedule)
        if name not in chosen:
            chosen[name] = choose(at)
        return chosen[name]

    monkeypatch.setattr(run_module, "choose", choose_once)


def options(data: Path, **others: Any) -> RunConfig:
    given = {"train": [str(data / "train.csv")], "test": str(data / "test.csv"), "target": "label", "group": "site"}
    return make_config({**given, "unit": "record", "epsilon": 4.0, **others})


def job_of(config: RunConfig) -> FileRun:
    return open_run(config)


class Told:
    """What left a process: the digest of each release that its keeper handed out, by slot."""

    def __init__(self) -> None:
        self.by_slot: dict[int, set[str]] = {}

    def read(self, pipe: int) -> None:
        data = b""
        while piece := os.read(pipe, 65536):
            data += piece
        os.close(pipe)
        for line in data.decode().splitlines():
            slot, digest = line.split()
            self.by_slot.setdefault(int(slot), set()).add(digest)


def telling(pipe: int) -> None:
    """Make this process tell what its keeper hands out, as soon as it does."""

    def tell(slot: int, tensor: Tensor) -> None:
        os.write(pipe, f"{slot} {hashlib.sha256(tensor.numpy().tobytes()).hexdigest()}\n".encode())

    in_rounds, in_walks = Charging.round, Charging.walks

    def told_round(self: Charging, number: int, table: Tensor, make: Callable[[], Tensor]) -> Tensor:
        found = in_rounds(self, number, table, make)
        tell(number, found)
        return found

    def told_walks(self: Charging, *given: Any) -> tuple[Tensor, dict[str, Estimate]]:
        rows, estimates = in_walks(self, *given)
        tell(0, rows)
        return rows, estimates

    Charging.round, Charging.walks = told_round, told_walks  # type: ignore[method-assign, assignment]


def killed_at(step: int) -> None:
    """Kill this process, as kill -9 does, at a step of what reads and writes files, or of what it calls."""
    left = step

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal left
        if Path(frame.f_code.co_filename).stem in WATCHED:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def steps_of(work: Callable[[], object]) -> int:
    """How many such steps a piece of work has."""
    steps = 0

    def count(frame: Any, event: str, argument: object) -> None:
        nonlocal steps
        steps += Path(frame.f_code.co_filename).stem in WATCHED

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return steps


def in_a_child(work: Callable[[], object], told: Told, step: int | None = None) -> int:
    """Do work in a process of its own, which is killed at a step; return its exit code, -9 if it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reader)
            telling(writer)
            if step is not None:
                killed_at(step)
            work()
            code = 0
        except BaseException:
            sys.setprofile(None)
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    told.read(reader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def go_on(job: FileRun, folder: Path) -> bool:
    """Do what a user is told to do with an unfinished folder; return whether releases had to be made."""
    if (folder / "values.csv").is_file():
        found = open_folder(folder)
        write_page(folder, found.record, found.values())
        shutil.rmtree(folder / "releases", ignore_errors=True)
        return False
    if (folder / "run.json").is_file() and not list(folder.glob("releases/release-*")):
        revalue(open_folder(folder), None, (), None, silent)
        return False
    goes_on = require_free(folder, False, job.config)
    execute(job, None, folder, silent, goes_on)
    return not goes_on


def kill_points(steps: int, seed: int, count: int = KILLS) -> Iterator[int]:
    generator = random.Random(seed)
    yield from (generator.randint(1, steps) for _ in range(count))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["replay", "lagged", "running-mean"])
@pytest.mark.parametrize("ledger", [False, True])
def test_a_run_that_is_killed_anywhere_goes_on_and_draws_nothing_twice(
    schedule: str, ledger: bool, data: Path, tmp_path: Path
) -> None:
    permutations = {"replay": 50, "lagged": 150, "running-mean": 6}[schedule]
    given: dict[str, Any] = {"schedule": schedule, "permutations": permutations}
    if ledger:
        given["ledger"] = str(tmp_path / "ledger")
    budget = dpv.Privacy(4.001, unit="record")

    def fresh(name: str) -> Path:
        (tmp_path / "ledger").unlink(missing_ok=True)
        if ledger:
            dpv.Ledger.create(tmp_path / "ledger", budget, "me")
        return tmp_path / name

    folder = fresh("whole")
    job = job_of(options(data, **given))
    steps = steps_of(lambda: execute(job, None, folder, silent))
    killed = again = 0
    for number, step in enumerate(kill_points(steps, seed=len(schedule), count=KILLS // 2)):
        folder, told = fresh(str(number)), Told()
        job = job_of(options(data, **given))  # a process has its own, with the ledger that it opened
        killed += in_a_child(partial(execute, job, None, folder, silent), told, step) == -signal.SIGKILL
        left = bool(told.by_slot)
        assert in_a_child(partial(go_on, job, folder), told) == 0, step
        assert all(len(digests) == 1 for digests in told.by_slot.values()), step  # never other noise for what left
        assert sorted(file.name for file in folder.iterdir()) == FILES, step
        if ledger:
            kept = dpv.Ledger(tmp_path / "ledger")
            assert len(kept.entries()) == (3 if schedule == "lagged" else 1)
            assert kept.spent_epsilon == pytest.approx(4.0, abs=0.01)
        again += left
    assert killed > KILLS // 3
    assert again > 3  # of them after something had left


@pytest.mark.slow
def test_a_valuation_that_is_killed_anywhere_is_made_again_from_the_same_table(data: Path, tmp_path: Path) -> None:
    job = job_of(options(data, permutations=50))
    done = execute(job, None, tmp_path / "results", silent)
    table = (tmp_path / "results" / "table.safetensors").read_bytes()
    other = tmp_path / "results" / "revalue-banzhaf-test"

    def again() -> FinishedRun:
        return revalue(open_folder(tmp_path / "results"), None, ("banzhaf",), None, silent)

    expected = done.result.revalue(job.utility, semivalues="banzhaf", progress=False).values["banzhaf"]
    killed = 0
    for step in kill_points(steps_of(again), seed=1):
        for file in other.iterdir():
            file.unlink()
        killed += in_a_child(again, Told(), step) == -signal.SIGKILL
        assert (tmp_path / "results" / "table.safetensors").read_bytes() == table
        np.testing.assert_allclose(again().values["banzhaf"], expected, rtol=1e-9)
        assert open_folder(tmp_path / "results").values().shape == done.values.shape
        assert sorted(file.name for file in other.iterdir() if not file.name.endswith(".part")) == FILES
    assert killed > KILLS // 2


def test_a_checkpoint_gives_the_same_bytes_for_the_same_question_alone(tmp_path: Path) -> None:
    first = Checkpoint(tmp_path / "kept")
    made = first.release(0, "question", CHARGE, lambda: b"noisy\nbytes")
    assert first.repeat_dates == {}
    again = Checkpoint(tmp_path / "kept")
    assert again.release(0, "question", CHARGE, pytest.fail) == made
    assert list(again.repeat_dates) == [0]
    with pytest.raises(dpv.DpvalueError, match="belongs to a run with other settings"):
        again.release(0, "other", CHARGE, lambda: b"")
    content = (tmp_path / "kept" / "release-0").read_bytes()
    for place in range(len(content)):
        (tmp_path / "kept" / "release-0").write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        )
        try:
            assert Checkpoint(tmp_path / "kept").release(0, "question", CHARGE, lambda: b"fresh") == made
        except dpv.DpvalueError:
            continue
        assert b"made" in content[max(0, place - 30) : place]  # the date alone is not covered by anything
    (tmp_path / "kept" / "release-0").write_bytes(content[:-1])
    with pytest.raises(dpv.DpvalueError, match="altered"):
        Checkpoint(tmp_path / "kept").release(0, "question", CHARGE, lambda: b"fresh")


def test_checkpoints_are_for_private_runs_without_a_ledger(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2
    for others in ({"privacy": None}, {"ledger": dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(9.0), "me")}):
        with pytest.raises(dpv.DpvalueError, match="checkpoint must not be given without privacy or with a ledger"):
            dpv.value((X, y), (X.copy(), y.copy()), checkpoint=tmp_path / "kept", **others)


def test_the_library_goes_on_from_a_checkpoint_and_says_so(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(24, 2)), np.arange(24) % 2
    public = X.copy(), y.copy()
    settings: dict[str, Any] = {"projection": None, "clip": 1.0, "learning_rate": 0.1, "progress": False}
    settings |= {"schedule": dpv.Schedule("replay", rounds=3, probes=2), "checkpoint": tmp_path / "kept"}

    def stop(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpv.release((X, y), public, **{**settings, "progress": stop})
    kept = {file.name: file.read_bytes() for file in (tmp_path / "kept").iterdir()}
    assert sorted(kept) == ["release-0", "release-1"]
    table = dpv.release((X, y), public, **settings)
    assert {name: (tmp_path / "kept" / name).read_bytes() for name in kept} == kept
    assert table.guarantee.charged.returned is not None
    assert "returned again" in str(table.guarantee)
    same = dpv.release((X, y), public, **settings)
    np.testing.assert_array_equal(same.rows, table.rows)


def test_a_full_disk_keeps_what_was_paid_for(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write in turn finds no room: afterwards the run goes on, and no release is drawn twice."""
    job = job_of(options(data, permutations=50))
    writes = 0

    def counted(path: Path, content: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == full:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        storage.write_whole(path, content)

    for name in ("dpvalue.privacy.checkpoint", "dpvalue.protocol.archive", "dpvalue.runs.folder"):
        monkeypatch.setattr(f"{name}.write_whole", counted)
    full = 0
    execute(job, None, tmp_path / "whole", silent)
    for full in range(1, writes + 1):
        writes, folder = 0, tmp_path / str(full)
        with pytest.raises(dpv.DpvalueError, match="No space left on device; "):
            execute(job, None, folder, silent)
        stored = folder / "releases" / "release-0"
        release = stored.read_bytes() if stored.is_file() else None
        full_was, full = full, 0
        fresh = go_on(job, folder)
        assert fresh == (full_was <= 2)  # only before the release itself is written is there nothing to go on from
        assert release is None or not fresh
        assert sorted(file.name for file in folder.iterdir()) == FILES
        full = full_was


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "kept"), [
    ("releasing", "releases are kept"), ("errors", "releases are kept"), ("curves", "releases are kept"),
])  # fmt: skip
def test_ctrl_c_in_every_stage_says_what_was_kept(stage: str, kept: str, data: Path, tmp_path: Path) -> None:
    job = job_of(options(data, permutations=50))
    shown: list[str] = []

    def stop(name: str, done: int, total: int) -> None:
        shown.append(name)
        if name == stage and done:
            raise KeyboardInterrupt

    with pytest.raises(RunInterrupted, match=kept):
        execute(job, None, tmp_path / "results", stop)
    assert shown[-1] == stage
    assert not go_on(job, tmp_path / "results")
    assert sorted(file.name for file in (tmp_path / "results").iterdir()) == FILES


@pytest.mark.slow
def test_an_error_in_the_page_loses_no_value(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(options(data, permutations=50))

    def broken(*given: object) -> str:
        raise ZeroDivisionError("a page that cannot be made")

    with monkeypatch.context() as patch:
        patch.setattr(folder_module, "report_page", broken)
        with pytest.raises(ZeroDivisionError) as caught:
            execute(job, None, tmp_path / "results", silent)
    assert "dpvalue report" in "".join(caught.value.__notes__)
    with monkeypatch.context() as patch:
        patch.setattr(execute_module, "values_frame", broken)
        with pytest.raises(ZeroDivisionError) as caught:
            execute(job, None, tmp_path / "other", silent)
    assert "dpvalue revalue" in "".join(caught.value.__notes__)
    for name in ("results", "other"):
        assert not go_on(job, tmp_path / name)
        assert sorted(file.name for file in (tmp_path / name).iterdir()) == FILES


def test_an_unfinished_run_is_not_thrown_away_without_leave(data: Path, tmp_path: Path) -> None:
    config = options(data, permutations=50)
    folder = tmp_path / "results"

    def stop(name: str, done: int, total: int) -> None:
        if name == at and done:
            raise KeyboardInterrupt

    at = "reading"
    with pytest.raises(RunInterrupted, match="nothing was written: repeat the command to start again"):
        execute(job_of(config), None, folder, stop)
    assert not folder.exists()
    at = "releasing"
    with pytest.raises(RunInterrupted):
        execute(job_of(config), None, folder, stop)
    assert require_free(folder, False, config)
    assert require_free(folder, True, config)  # leave to overwrite is no leave to draw again
    assert not require_free(folder, True, options(data, permutations=60))
    with pytest.raises(dpv.DpvalueError, match="the releases of an unfinished run with other options"):
        require_free(folder, False, options(data, permutations=60))
    with pytest.raises(dpv.DpvalueError, match="repeat the dpvalue run command to resume it"):
        open_folder(folder)
    execute(job_of(config), None, folder, silent, goes_on=True)
    with pytest.raises(dpv.DpvalueError, match="other results"):
        require_free(folder, False, config)
    (folder / "values.csv").unlink()
    with pytest.raises(dpv.DpvalueError, match=r"releases without values \(run dpvalue revalue"):
        require_free(folder, False, config)


def test_what_was_kept_is_said_of_errors_of_every_kind() -> None:
    """Some hold more than a text."""
    with (
        pytest.raises(dpv.BudgetExceeded, match=r"1 is needed, and 0.5 is left; it is kept$") as caught,
        execute_module._saying(lambda: "it is kept"),
    ):
        raise dpv.BudgetExceeded(2.0, 1.0, 0.5)
    assert caught.value.remaining_epsilon == 0.5
