"""How long it takes to choose settings, beside another version, in one run; and whether both choose the same.

    git worktree add ../before 181b65f
    python benchmarks/choosing.py --before ../before/src --data-dir DIR --json benchmarks/results/choosing.json

400 rows of 10 columns with 200 public ones, and the splits of `quality.py`: Covertype, digits and MNIST's pixels, 800
rows with 1,000 public ones. DIR holds covtype.npz and mnist.npz. Both versions run in this environment, each in a
process of its own, in turns; a time is processor time, the smallest of several. What is compared of choices is what is
released (projection, steps, noise), and the AUC that is expected of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (1.0, 2.0, 4.0, 8.0)
SETS = ("readme", "covertype", "digits", "mnist")


def data_of(name: str, split: int, folder: str) -> tuple[Any, Any]:
    """Return private and public rows of one problem."""
    if name != "readme":
        from quality import Task, split_of

        private, public, _ = split_of(Task(name, split, folder, 1, 1))
        return private, public
    generator = np.random.default_rng(split)
    x = generator.normal(size=(600, 10))
    y = (x[:, 0] + 0.5 * x[:, 1] + generator.normal(0, 0.5, 600) > 0.3).astype(int)
    return (x[:400], y[:400]), (x[400:], y[400:])


def chosen(name: str, split: int, folder: str, repeats: int) -> list[dict[str, Any]]:
    """Choose at each budget with whatever version is imported; also one of before modules had packages."""
    import time

    import torch

    import dpvalue as dpv

    try:
        from dpvalue.planning.settings import Settings
        from dpvalue.runs.run import run_for
    except ModuleNotFoundError:
        from dpvalue.run import prepare as run_for  # type: ignore[import-not-found, no-redef]
        from dpvalue.settings import Settings  # type: ignore[import-not-found, no-redef]
    torch.set_num_threads(1)
    engine = dpv.Local(device="cpu", threads=1)
    private, public = data_of(name, split, folder)
    found = []
    for epsilon in EPSILONS:
        settings = Settings(
            privacy=dpv.Privacy(epsilon, 5e-5), schedule=dpv.Schedule("replay"), permutations=100, engine=engine,
            seed=split, noise="fast", preprocess=None, model="logistic", projection="auto", clip="auto",
            clip_rule="auto", learning_rate="auto",
        )  # fmt: skip
        seconds = []
        for _ in range(repeats):
            began = time.process_time()
            with engine.threading():
                choice = run_for(dpv.Parties(*private), dpv.Utility(*public), settings).choice
            seconds.append(time.process_time() - began)
        found.append(
            {
                "epsilon": epsilon, "seconds": min(seconds), "released": str(choice.projection),
                "noise": choice.guarantee.mechanism, "expected_auc": choice.expected_auc,
            }
        )  # fmt: skip
    return found


def asked(source: Path, *arguments: str) -> list[dict[str, Any]]:
    """Let a version choose, in a process of its own."""
    paths = os.pathsep.join([str(source.resolve()), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, __file__, "--one", *arguments],
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ratios of one data set, and how many choices are the same."""
    ratios = [row["before"]["seconds"] / row["now"]["seconds"] for row in rows]
    same = [all(row["before"][key] == row["now"][key] for key in ("released", "noise")) for row in rows]
    moved = [row["now"]["expected_auc"] - row["before"]["expected_auc"] for row in rows]
    means = {name: float(np.mean([row[name]["seconds"] for row in rows])) for name in ("before", "now")}
    return {
        "seconds": means, "ratio": means["before"] / means["now"], "smallest ratio": min(ratios),
        "same choices": f"{sum(same)} of {len(same)}",
        "expected AUC, now minus before": {"mean": float(np.mean(moved)), "lowest": min(moved), "highest": max(moved)},
    }  # fmt: skip


def main() -> None:
    """Let both versions choose, and print and keep times and choices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the folder src of the other version")
    parser.add_argument("--data-dir", default=".")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        print(json.dumps(chosen(given.one[0], int(given.one[1]), given.data_dir, given.repeats)))  # noqa: T201
        return
    sources = {"before": given.before, "now": Path(__file__).parents[1] / "src"}
    results: dict[str, Any] = {"sets": {}, "all": {}}
    for name in given.sets:
        rows: list[dict[str, Any]] = []
        for split in range(given.splits):
            common = [name, str(split), "--data-dir", given.data_dir, "--repeats", str(given.repeats)]
            both = {version: asked(source, *common) for version, source in sources.items()}
            for before, now in zip(both["before"], both["now"], strict=True):
                rows.append({"split": split, "before": before, "now": now})
        results["sets"][name], results["all"][name] = summary(rows), rows
        print(name, json.dumps(results["sets"][name], indent=1), flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
