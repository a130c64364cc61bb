"""How long first uses take beside another version, in one run: an import, the help, a run on 400 rows, the demo.

    git worktree add ../before 181b65f
    python benchmarks/command.py --before ../before/src --json benchmarks/results/command.json

Both versions run in this environment, one after the other in turns, each in a process of its own; what is compared is
the smallest of their times, on a machine that others may use too. `dpvalue run` and `dpvalue demo` are timed from the
command to the report.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpvalue.experiments.bench.machine import facts


def write_files(folder: Path) -> None:
    """Write 400 private rows of 10 columns, one of them text, and 200 public ones."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(600, 9)), columns=[f"x{column}" for column in range(9)])
    frame["town"] = generator.choice(["north", "south", "east"], 600)
    score = frame["x0"] + 0.5 * frame["x1"] + (frame["town"] == "north") + generator.normal(0, 0.5, 600)
    frame["label"] = np.where(score > 0.3, "yes", "no")
    frame[:400].to_csv(folder / "train.csv", index=False)
    frame[400:].to_csv(folder / "test.csv", index=False)


COMMAND = "import sys; from dpvalue.cli import app; app()"
RUN = ("run", "train.csv", "--test", "test.csv", "--target", "label", "--epsilon", "3", "--yes", "--out")
COMMANDS: dict[str, tuple[str, ...]] = {
    "import dpvalue": ("import dpvalue",),
    "dpvalue --help": (COMMAND, "--help"),
    "dpvalue run": (COMMAND, *RUN),
    "dpvalue demo": (COMMAND, "demo", "--out"),
}
"""What Python is given; what ends in --out writes to a folder of its own."""


def timed(source: Path, folder: Path, command: tuple[str, ...], number: int) -> tuple[float, float]:
    """Return the wall time and the processor time of one command of a version."""
    given = (*command, f"{command[1]}-{number}") if command[-1] == "--out" else command
    before = os.times()
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", *given],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, used


def compared(times: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return the smallest times of both versions, and their ratios."""
    wall, used = ({name: min(run[kind] for run in runs) for name, runs in times.items()} for kind in (0, 1))
    return {
        "wall_seconds": wall,
        "processor_seconds": used,
        "ratio": wall["now"] / wall["before"],
        "processor_ratio": used["now"] / used["before"],
    }


def main() -> None:
    """Time both versions, and print and keep the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the folder src of the other version")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sources = {"before": given.before, "now": Path(__file__).parents[1] / "src"}
    times: dict[str, dict[str, list[tuple[float, float]]]] = {
        command: {name: [] for name in sources} for command in COMMANDS
    }
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for number in range(given.runs):
            for place, (name, source) in enumerate(sources.items()):
                for command, own in times.items():
                    own[name].append(timed(source, Path(folder), COMMANDS[command], 2 * number + place))
    found = {command: compared(own) for command, own in times.items()}
    print(json.dumps(found, indent=1))  # noqa: T201
    results = {"rows": 400, "runs": given.runs, "machine": facts(), "commands": found, "all": times}
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
