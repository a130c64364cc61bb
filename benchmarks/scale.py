"""`dpvalue run` from CSV to report, all defaults, as rows grow: seconds, and the peak of memory by the system's count.

    python benchmarks/scale.py --json benchmarks/results/scale.json

Rows of 20 numbers and a label, each a party; 1,000 public rows; epsilon = 3. The plan's own estimate stands beside.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from dpvalue.experiments.bench.machine import facts

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
MOST_MADE = 200_000  # more rows are these again; this process stays smaller than those it measures
PUBLIC, FEATURES = 1_000, 20


def made(rows: int, seed: int) -> pd.DataFrame:
    """Rows of two classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, FEATURES)).round(4)
    label = (x[:, :5].sum(1) + generator.normal(size=rows) > 0).astype(int)
    return pd.DataFrame(x, columns=[f"x{number}" for number in range(FEATURES)]).assign(label=label)


def measured(rows: int, folder: Path) -> dict[str, float | int]:
    """Run the command once on so many rows."""
    made(PUBLIC, 0).to_csv(folder / "public.csv", index=False)
    head, *lines = made(min(MOST_MADE, rows), 1).to_csv(index=False).splitlines(keepends=True)
    with (folder / "rows.csv").open("w") as file:
        file.write(head)
        for first in range(0, rows, MOST_MADE):
            file.writelines(lines[: rows - first])
    command = [str(Path(sys.executable).with_name("dpvalue")), "run", "rows.csv", "--test", "public.csv"]
    command += ["--target", "label", "--epsilon", "3", "--out", f"results-{rows}", "--yes"]
    began, before = time.perf_counter(), os.times()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    taken, after = time.perf_counter() - began, os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # of the largest child: sizes grow
    planned = re.search(r"time: about ([\d.e+]+) s", done.stdout)
    memory = re.search(r"memory: about ([\d.e+]+) MB", done.stdout)
    report = (folder / f"results-{rows}" / "report.html").stat().st_size
    assert planned is not None
    assert memory is not None
    return {
        "rows": rows, "seconds": round(taken, 1), "processor seconds": round(used, 1),
        "planned seconds": float(planned[1]), "peak MB": round(peak / 1e6),
        "planned MB": float(memory[1]), "report kB": round(report / 1e3),
        "processor microseconds a row": round(used / rows * 1e6, 1), "bytes a row": round(peak / rows),
    }  # fmt: skip


def main() -> None:
    """Measure all sizes, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in given.sizes:
            found.append(measured(rows, Path(folder)))
            print(found[-1], flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": facts(), "sizes": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
