"""The walk of a run and of a study: they go through the files that CONTRIBUTING shows, and calls go downwards."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.journeys.test_package import LAYERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()

# Functions that call into a layer above their own: always what that layer has handed down to them.
HANDED_DOWN = {
    "data/parties.py:Parties.names": "the one party of an agent is a `Parties` of its own",
    "engine/engines.py:Local.map": "the work on an item",
    "engine/tasks.py:checked": "the payloads, which are made as they are needed",
    "engine/tasks.py:run_task": "the function of a task",
    "display.py:safe": "str() of whatever is shown",
    "games/solving.py:worths_of": "the worth of coalitions, which a `Game` defines",
    "privacy/checkpoint.py:Checkpoint._release": "draws the release that is to be kept",
    "privacy/ledger.py:Ledger.release": "draws the release that is to be kept",
    "storage.py:write_whole": "the pieces of a file",
    "stored.py:_read": "the type that is read from a file",
    "stored.py:_read_fields": "the type that is read from a file",
    "stored.py:build": "the type that is read from a file",
    "stored.py:fields.<locals>.check": "the check of a field",
    "stored.py:must_be.<locals>.check": "the check of a field",
}

Walk = dict[str, Any]


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Walk]:
    folder = tmp_path_factory.mktemp("walk")
    given = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.walk", str(folder)],
        cwd=ROOT, env=given, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Walk] = json.loads((folder / "walk.json").read_text())
    return found


def room(file: str) -> int:
    return LAYERS.index(file.split("/")[0].removesuffix(".py"))


def shown(name: str) -> dict[str, list[str]]:
    """The steps of a walk, and their files, as CONTRIBUTING shows them."""
    (block,) = re.findall(rf"### {name}\n.*?```\n(.*?)```", PAGE, re.DOTALL)
    steps: dict[str, list[str]] = {}
    for line in block.splitlines():
        step, *files = line.split() if line[0] != " " else (list(steps)[-1], *line.split())
        steps.setdefault(step, []).extend(files)
    return steps


@pytest.mark.parametrize(
    ("name", "title", "steps"),
    [
        ("run", "A run", ["choose", "ask", "answer", "combine", "value", "write"]),
        ("study", "A study", ["job", "answer", "value", "verify"]),
    ],
)
def test_contributing_shows_the_walk(walks: dict[str, Walk], name: str, title: str, steps: list[str]) -> None:
    walk = walks[name]
    assert walk["order"] == steps  # each begins once, in this order
    assert walk["steps"] == shown(title)
    count = sum(map(len, walk["steps"].values()))
    section = PAGE.split(f"### {title}\n")[1].split("\n#")[0]
    assert f"through {count} files." in section


@pytest.mark.parametrize("name", ["run", "study"])
def test_calls_go_downwards(walks: dict[str, Walk], name: str) -> None:
    """From an upper layer to a lower one, or within a layer: a package is left only by returning from it."""
    upwards = {}
    for call, function in walks[name]["calls"].items():
        caller, callee = call.split(" -> ")
        if room(caller.split(":")[0]) < room(callee) and caller not in HANDED_DOWN:
            upwards[call] = function
    assert upwards == {}


def test_what_is_handed_down_is_still_called(walks: dict[str, Walk]) -> None:
    calls = [call.split(" -> ") for walk in walks.values() for call in walk["calls"]]
    upwards = {caller for caller, callee in calls if room(caller.split(":")[0]) < room(callee)}
    assert upwards == set(HANDED_DOWN)
