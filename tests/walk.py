"""Which files of the library a run and a study go through, in order, and which file calls which.

`python -m tests.walk FOLDER` makes both in an empty folder, in a process of their own (nothing is there from an earlier
call), and writes what was traced to `walk.json`. `test_walk.py` compares it with what CONTRIBUTING shows.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from typer.testing import CliRunner

import dpvalue
from dpvalue.cli import app
from dpvalue.engine import Local
from dpvalue.runs import execute as execute_module
from tests.federation import write_files

EXECUTE = execute_module.execute
SOURCE = f"{Path(dpvalue.__file__).parent}{os.sep}"

STEPS = {
    "choose": "choose",
    "ask": "ask",
    "Run.answer": "answer",
    "Run.combine": "combine",
    "value_answers": "value",
    "make_values": "value",
    "finish": "write",
}
"""The six steps of a run, by what `runs/execute.py::execute` calls."""


@dataclass
class Trace:
    """What was entered, step by step.

    Attributes:
        steps: of each step, the files that no step before it has entered, in order.
        order: the steps, as they began.
        calls: which function calls which other file, and there which function first.
    """

    steps: dict[str, list[str]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    calls: dict[str, str] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _step: str = ""

    def begin(self, step: str) -> None:
        if step != self._step:
            self._step = step
            self.order.append(step)
        self.steps.setdefault(step, [])

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note a call between files of the library; what lies between them, such as torch, is passed over."""
        if event != "call" or not frame.f_code.co_filename.startswith(SOURCE):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCE):
            caller = caller.f_back
        name, at = frame.f_code.co_qualname, _file(frame)
        if caller is not None and caller.f_code is EXECUTE.__code__ and name in STEPS:
            self.begin(STEPS[name])
        if at not in self._seen:
            self._seen.add(at)
            self.steps[self._step].append(at)
        if caller is not None and _file(caller) != at:
            self.calls.setdefault(f"{_file(caller)}:{_function(caller)} -> {at}", name)

    @contextlib.contextmanager
    def following(self, step: str) -> Iterator[None]:
        self.begin(step)
        sys.setprofile(self)
        threading.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def to_json(self) -> dict[str, Any]:
        return {"steps": self.steps, "order": self.order, "calls": self.calls}


def _file(frame: FrameType) -> str:
    return Path(frame.f_code.co_filename.removeprefix(SOURCE)).as_posix()


def _function(frame: FrameType) -> str:
    """The name of a function; of a comprehension in it, too."""
    return re.sub(r"(\.<locals>)?\.<(listcomp|setcomp|dictcomp|genexpr)>", "", frame.f_code.co_qualname)


def import_all() -> None:
    """Import the library first: what is called while a module is imported is part of no walk."""
    for module in pkgutil.walk_packages(dpvalue.__path__, "dpvalue."):
        if not any(part in module.name for part in ("experiments", "flower", "cnn_kernels")):
            importlib.import_module(module.name)


def command(*arguments: object) -> None:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def trace_run() -> Trace:
    """A run of four parties by file, from consent to the end."""
    trace = Trace()

    def execute(*given: Any) -> Any:
        with trace.following("choose"):
            return EXECUTE(*given)

    vars(execute_module)["execute"] = execute  # what the command imports when it runs
    try:
        files = [f"{name}.csv" for name in ("north", "east", "south", "west")]
        named = ("--test", "public.csv", "--target", "label", "--unit", "record", "--epsilon", "1", "--yes")
        command("run", *files, *named, "--out", "results")
    finally:
        vars(execute_module)["execute"] = EXECUTE
    return trace


def trace_study() -> Trace:
    """A study of the same parties, who answer at home, from the job to its verification."""
    trace, parties = Trace(), ("north", "east", "south", "west")
    for name in parties:
        command("ledger", "new", f"{name}.ledger", "--epsilon", "2", "--unit", "record", "--name", name)
    with trace.following("job"):
        command("job", "--test", "public.csv", "--target", "label", "--sizes", "90,60,60,90", "--epsilon", "1")
    with trace.following("answer"):
        for name in parties:
            command("party", "answer", "study.job", f"{name}.csv", "--name", name, "--ledger", f"{name}.ledger")
    with trace.following("value"):
        command("value", "study.job", *(f"{name}.release" for name in parties), "--out", "study")
    with trace.following("verify"):
        command("verify", "study")
    return trace


def main(folder: Path) -> None:
    os.chdir(folder)
    write_files(folder, {"north": 90, "east": 60, "south": 60, "west": 90})
    import_all()
    Local.workers = 1  # type: ignore[assignment,method-assign]  # one thread, so that the order is always the same
    traces = {"run": trace_run().to_json(), "study": trace_study().to_json()}
    (folder / "walk.json").write_text(json.dumps(traces, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
