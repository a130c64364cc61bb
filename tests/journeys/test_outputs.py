"""Outputs are functions of releases and of public things: private content, clocks and memory do not move a byte."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

import dpvalue as dpv
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import conduct
from dpvalue.data import files
from dpvalue.flower.records import Memory, StoredTask
from dpvalue.party import party as home_rows
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release
from dpvalue.protocol.transport import Question
from dpvalue.report.record import Record
from dpvalue.runs import costs, execute
from dpvalue.runs import plan as plan_module
from dpvalue.runs import sources as jobs_module
from tests import fields
from tests.coordinator.test_conducting import SOON, answering
from tests.federation import LocalNodes, simulated, write_files
from tests.held import held_fixed
from tests.outputs import COMMAND, Case, Seen, observed, write_public

CASES = [
    Case("csv", "record"),
    Case("parquet", "person"),
    Case("csv", "record", "trees"),
    Case("parquet", "record"),
    Case("csv", "person"),
]


@dataclass(frozen=True)
class Known:
    """A folder with what is public, what came out of the plain world there, and what that contributed."""

    case: Case
    public: Path
    plain: Seen
    contributed: list[Any]

    def world(self, folder: Path, seed: int | None) -> tuple[Seen, list[Any]]:
        """Return what comes out of a world in a new folder, and what it contributed."""
        return world(self.public, folder / "world", self.case, seed)


def world(public: Path, folder: Path, case: Case, seed: int | None) -> tuple[Seen, list[Any]]:
    shutil.copytree(public, folder)
    with held_fixed() as contributed:
        seen = observed(folder, case, seed)
    shutil.rmtree(folder)
    return seen, contributed


@pytest.fixture(
    scope="module",
    params=[pytest.param(case, marks=pytest.mark.slow if number > 1 else ()) for number, case in enumerate(CASES)],
    ids=lambda case: f"{case.unit} {case.format} {case.model}",
)
def known(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Known:
    case, folder = request.param, tmp_path_factory.mktemp("outputs")
    (folder / "public").mkdir()
    write_public(folder / "public", case)
    return Known(case, folder / "public", *world(folder / "public", folder / "plain", case, None))


def compare(one: Any, other: Any, where: str = "") -> None:
    """One place at a time, so that a failure says what differs."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name in one:
            compare(one[name], other[name], f"{where}/{name}")
    else:
        assert one == other, where


def test_random_private_content_changes_no_output(known: Known, tmp_path: Path) -> None:
    assert [told for told in known.plain.printed.values() if told[0]] == []
    assert len(known.plain.messages) == 6
    assert {stage for stage, *_ in known.plain.progress} >= {"reading"}
    assert any(bool(torch.as_tensor(one).any()) for one in known.contributed)
    tainted, others = known.world(tmp_path, 1)
    compare(vars(tainted), vars(known.plain))
    assert any(not torch.equal(one, other) for one, other in zip(known.contributed, others, strict=True))


def telling_a_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line."""
    encode = dpv.Parties.encode

    def planted(self: dpv.Parties, *given: Any) -> Any:
        rows = encode(self, *given)
        logging.getLogger("dpvalue").info("a mean of %s", float(rows.x.nan_to_num().mean()))
        return rows

    monkeypatch.setattr(dpv.Parties, "encode", planted)


def warning_of_odd_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning."""
    encode = dpv.Parties.encode

    def planted(self: dpv.Parties, *given: Any) -> Any:
        rows = encode(self, *given)
        warnings.warn(f"{int((rows.weights == 0).sum())} rows count for nothing", stacklevel=2)
        return rows

    monkeypatch.setattr(dpv.Parties, "encode", planted)


@pytest.mark.slow
@pytest.mark.parametrize("known", CASES[:1], indirect=True)
@pytest.mark.parametrize("fault", [telling_a_mean, warning_of_odd_rows])
def test_a_planted_leak_is_found(fault: Any, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    plain, _ = known.world(tmp_path, None)
    tainted, _ = known.world(tmp_path, 1)
    with pytest.raises(AssertionError):
        compare(vars(tainted), vars(plain))


class Absurd:
    """Clocks and sizes that are right until a private file is opened, and absurd from then on."""

    def __init__(self) -> None:
        self.open_sealed = False
        self.calls = 0

    def after(self, right: Callable[..., Any], wrong: Callable[..., Any]) -> Callable[..., Any]:
        def told(*given: Any, **more: Any) -> Any:
            if not self.open_sealed:
                return right(*given, **more)
            self.calls += 1
            return wrong(*given, **more)

        return told

    def clock(self, right: Callable[[], Any]) -> Callable[..., Any]:
        return self.after(right, lambda: type(right())(10**6 * self.calls))

    def opening(self, right: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Path) -> Any:
            self.open_sealed = True
            return right(path)

        return opened


CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")


@contextmanager
def absurd_after_opening() -> Iterator[Absurd]:
    """Each clock, the use of memory, the room on the disk, and the size of every file."""
    found, stat = Absurd(), os.stat

    def sized(path: Any, **more: Any) -> os.stat_result:
        told = stat(path, **more)
        names = {name: getattr(told, name) for name in dir(told) if name.startswith("st_")}
        return os.stat_result([*told[:6], 10**15 + found.calls, *told[7:10]], names | {"st_mtime_ns": 0})

    usage = resource.getrusage
    used = resource.struct_rusage([1e9] * 2 + [10**9] * 14)
    with ExitStack() as patched:
        for name in (*CLOCKS, *(f"{name}_ns" for name in CLOCKS)):
            patched.enter_context(mock.patch.object(time, name, found.clock(getattr(time, name))))
        for module in (files, jobs_module, home_rows):
            patched.enter_context(mock.patch.object(module, "open_private", found.opening(module.open_private)))
        patched.enter_context(mock.patch.object(os, "stat", found.after(stat, sized)))
        patched.enter_context(mock.patch.object(resource, "getrusage", found.after(usage, lambda who: used)))
        for holder, name in ((dpv.Local, "free_bytes"), (shutil, "disk_usage")):
            much = mock.Mock(free=10**18) if holder is shutil else 10**18
            patched.enter_context(
                mock.patch.object(holder, name, found.after(getattr(holder, name), lambda _, m=much: m))
            )
        yield found


def test_no_clock_and_no_size_reaches_an_output(known: Known, tmp_path: Path) -> None:
    with absurd_after_opening() as absurd:
        wrong, _ = known.world(tmp_path, None)
    assert absurd.open_sealed
    assert absurd.calls > 10  # there was something to be told
    compare(vars(wrong), vars(known.plain))


SOURCES = Path(dpv.__file__).parent
MEASURES = re.compile(
    r"getrusage|ru_maxrss|tracemalloc|psutil|VmHWM|VmRSS|\bst_size|getsize|perf_counter|process_time|thread_time"
    r"|time\.time\b|memory_allocated|mem_get_info|meminfo|monotonic"
)
ALLOWED = {  # seconds of a plan that was typed as numbers; what decides and is not told; waiting, and a bar
    "runs/costs.py": {"perf_counter"}, "runs/plan.py": {"perf_counter"},
    "engine/engines.py": {"mem_get_info", "meminfo"}, "engine/tasks.py": {"perf_counter"},  # of public work
    "progress.py": {"monotonic"},
    "protocol/transport.py": {"monotonic"},
    **{f"flower/{name}.py": {"monotonic"} for name in ("app", "supervise", "serve")},
}  # fmt: skip


def test_nothing_else_of_the_library_measures() -> None:
    """Who adds a clock or a size must say here why nothing of it is told."""
    found: dict[str, set[str]] = {}
    for path in SOURCES.rglob("*.py"):
        if "experiments" in path.parts:
            continue
        if measures := set(MEASURES.findall(path.read_text())):
            found[path.relative_to(SOURCES).as_posix()] = measures
    assert found == ALLOWED


def stating_peak_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan once stated."""
    stated = costs.byte_costs

    def planted(*given: Any) -> Any:
        return replace(stated(*given), memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)

    monkeypatch.setattr(plan_module, "byte_costs", planted)


def timing_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a plan once stated, too."""
    made = plan_module.plan_sizes
    monkeypatch.setattr(jobs_module, "plan_sizes", lambda *given, timed: made(*given, timed=True))


def keeping_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """When exactly a run was made."""
    made = execute.record_of_release
    monkeypatch.setattr(execute, "record_of_release", lambda *given: replace(made(*given), made=f"{time.time():.0f}"))


def logging_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """How large a private file is."""
    units = home_rows.PartyFile.units

    def planted(self: home_rows.PartyFile) -> int:
        logging.getLogger("dpvalue").info("%d bytes", self.path.stat().st_size)
        return units(self)

    monkeypatch.setattr(home_rows.PartyFile, "units", planted)


@pytest.mark.slow
@pytest.mark.parametrize("known", CASES[:1], indirect=True)
@pytest.mark.parametrize("fault", [stating_peak_memory, timing_the_plan, keeping_the_hour, logging_the_size])
def test_a_planted_measurement_is_found(
    fault: Any, known: Known, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    right, _ = known.world(tmp_path, None)
    with absurd_after_opening():
        wrong, _ = known.world(tmp_path, None)
    with pytest.raises(AssertionError):
        compare(vars(wrong), vars(right))


PROOF = (Path(__file__).parents[2] / "docs" / "privacy-proof.md").read_text()


def fields_of(seen: Seen) -> fields.Fields:
    """The fields of everything that came out of a world."""
    found = fields.of_messages(seen.messages)
    known: set[str] = set()
    for path, content in seen.files.items():
        found |= fields.of_file(path, content)
        if path.endswith("run.json"):
            record = Record.from_json(json.loads(content), path)
            told = [str(record.guarantee), *(record.values.verdict if record.values else ())]
            told += record.plan.text.splitlines() if record.plan else []
            known |= {line.strip() for line in told}
    prefixes = sorted((name for output, name in fields.listed(PROOF) if output == "terminal"), key=len, reverse=True)
    for name, (_, _, *printed) in seen.printed.items():
        if name == "plan":
            found |= fields.of_json("plan --json", json.loads(printed[0]))
        else:
            found |= fields.of_terminal("\n".join(printed), known, prefixes)
    logged = "\n".join(seen.logs)
    return found | fields.of_terminal(logged, known, prefixes)


def test_every_field_of_an_output_is_in_the_table(known: Known) -> None:
    found = fields_of(known.plain)
    assert found - fields.listed(PROOF) == set()
    assert len(found) > 250


def test_every_field_of_a_study_in_rounds_and_of_what_outlives_a_crash_is_in_the_table(tmp_path: Path) -> None:
    """Requests, who is asked next, a checkpoint, the task of an agent; and a known answer that is compared with."""
    study = write_files(tmp_path, {"east": 30, "west": 25})
    schedule = dpv.Schedule("replay", rounds=2, probes=3)
    job = simulated(study, game="steps", projection=None, schedule=schedule)[1]
    nodes = LocalNodes({number: answering(study, name, []) for number, name in enumerate(study.sizes)})
    conduct(Coordinator(tmp_path / "study", job.to_bytes()), nodes, SOON)
    charge = Charge("gaussian", 1.0, 1, 1.0, "record", "zero_out")
    Checkpoint(tmp_path / "checkpoint").release(0, "asked", charge, lambda: b"made")
    Memory(tmp_path / "task.json").keep(StoredTask("token", b"message", Question(b"job", b"request")))
    frame = pd.read_csv(study.own("east")).assign(wrong=np.arange(30) < 5)
    frame.to_csv(tmp_path / "train.csv", index=False)
    run = ["run", str(tmp_path / "train.csv"), "--test", str(study.public), "--target", "label", "--truth", "wrong"]
    done = CliRunner().invoke(COMMAND, [*run, "--no-privacy", "--yes", "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    found: fields.Fields = set()
    for place in ("study", "checkpoint", "out"):
        for path in (tmp_path / place).rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                found |= fields.of_file(str(path), path.read_bytes())
    found |= fields.of_file("task.json", (tmp_path / "task.json").read_bytes())
    assert {output for output, _ in found} >= {"request", "parties.json", "checkpoint", "task.json", "nodes.json"}
    assert ("run.json", "detection.auc") in found
    assert found - fields.listed(PROOF) == set()


@pytest.mark.parametrize("known", CASES[:1], indirect=True)
@pytest.mark.parametrize("name", ["run.json", "east.release", "run.ledger", "values.csv", "report.html", "study.job"])
def test_a_field_that_is_not_in_the_table_is_found(name: str, known: Known) -> None:
    """Of every kind of file: one more field is one more pair."""
    folder = {"run.json": "results/", "values.csv": "results/", "report.html": "results/", "study.job": "study/study/"}
    content = known.plain.files[folder.get(name, "") + name]
    if name == "run.ledger":
        more: Any = [*content[:-1], "CREATE TABLE times (seconds REAL);", content[-1]]
    elif name == "report.html":
        more = content.replace(b"<h2>Parties", b"<h2>Seconds</h2><h2>Parties")
    elif name == "values.csv":
        more = content.replace(b"party,", b"party,seconds,", 1)
    elif name == "run.json":
        more = json.dumps({**json.loads(content), "seconds": 1.0}).encode()
    else:
        kind = Release if name.endswith("release") else Job
        header, tensors = kind.from_bytes(content).parts()
        more = kind.archive.pack({**header, "seconds": 1.0}, tensors)
    new = fields.of_file(name, more) - fields.of_file(name, content)
    assert len(new) == 1
    assert not new & fields.listed(PROOF)
