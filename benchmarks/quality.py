"""How much of what a budget allows is found: efficiency of Shapley values under honest accounting, on real data.

30% of the labels of 800 private rows are changed to another class; 1,000 other rows are public. Every row is a party
(zero_out, composition). Settings are chosen by rehearsal on the public rows; answers are read only to score. Efficiency
is (AUC - 0.5) / (ceiling - 0.5).

    python benchmarks/quality.py --data-dir DIR [--sets digits covertype mnist cnn] [--json FILE]

DIR holds covtype.npz and mnist.npz; digits comes with scikit-learn (or as digits.npz, with x and y, in DIR).
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (1.0, 2.0, 4.0, 8.0)
PRIVATE, PUBLIC, CHANGED, DELTA = 800, 1000, 0.3, 5e-5
PAPER: dict[str, dict[str, Any]] = {
    "i.i.d. (paper)": {"kind": "independent"},
    "X*, q=0.9 (paper)": {"kind": "running-mean", "burn_in": 0.9, "block": 50},
    "replay, all directions": {"kind": "replay"},
}
TARGETS = {
    "covertype": (0.70, 0.72, 0.77, 0.79), "digits": (0.82, 0.86, 0.92, 0.95), "mnist": (0.75, 0.80, 0.87, 0.90),
}  # fmt: skip
OURS, YARDSTICK = "dpvalue, auto", "public_loss (no semivalue)"


@dataclass(frozen=True)
class Task:
    """One split of one data set."""

    name: str
    split: int
    folder: str
    draws: int
    permutations: int


def load(name: str, folder: str) -> tuple[Any, Any]:
    """Return features and labels; pixels are divided by their largest value."""
    if name == "digits":
        stored = Path(folder) / "digits.npz"
        if stored.exists():
            data = np.load(stored)
            return data["x"] / 16, data["y"]
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return X / 16, y
    if name == "covertype":
        data = np.load(Path(folder) / "covtype.npz")
        return data["x"].astype(float), data["y"]
    data = np.load(Path(folder) / "mnist.npz")
    X, y = data["x_train"] / 255.0, data["y_train"].astype(int)
    return (X if name == "cnn" else X.reshape(len(X), -1)), y


def split_of(task: Task) -> tuple[tuple[Any, Any], tuple[Any, Any], Any]:
    """Return (private, public, which private labels were changed)."""
    X, y = load(task.name, task.folder)
    generator = np.random.default_rng([task.split, 4])
    order = generator.permutation(len(X))
    private, public = order[:PRIVATE], order[PRIVATE : PRIVATE + PUBLIC]
    if task.name == "covertype":  # standardised by the public rows
        spread = X[public].std(0)
        X = (X - X[public].mean(0)) / np.where(spread > 0, spread, 1.0)
    classes = np.unique(y[public])
    private = private[np.isin(y[private], classes)]
    changed = np.zeros(len(private), dtype=bool)
    changed[generator.choice(len(private), round(CHANGED * len(private)), replace=False)] = True
    place = np.searchsorted(classes, y[private])
    other = classes[(place + generator.integers(1, len(classes), len(private))) % len(classes)]
    return (X[private], np.where(changed, other, y[private])), (X[public], y[public]), changed


def run(task: Task) -> dict[str, Any]:
    """Return AUCs of every method and budget on one split, and the rank correlation of ours to values without DP."""
    import torch

    import dpvalue as dpv
    from dpvalue.planning.settings import Settings
    from dpvalue.progress import reporting
    from dpvalue.runs.run import run_for

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    private, public, changed = split_of(task)
    engine = dpv.Local(device="cpu", threads=1)
    model = "cnn" if task.name == "cnn" else "logistic"
    common: dict[str, Any] = {
        "model": model, "engine": engine, "seed": task.split, "noise": "fast", "preprocess": None,
    }  # fmt: skip
    quiet = {**common, "progress": False}
    plain = dpv.value(private, public, privacy=None, permutations=40, **quiet).values["shapley"]
    found: dict[str, Any] = {"no DP": dpv.detection.auc(plain, changed), "auc": {}, "spearman": {}, "choice": {}}
    for epsilon in EPSILONS:
        privacy = dpv.Privacy(epsilon, DELTA)
        settings = Settings(
            privacy=privacy, schedule=dpv.Schedule("replay"), permutations=100, projection="auto", clip="auto",
            clip_rule="auto", learning_rate="auto", **common,
        )  # fmt: skip
        began = time.perf_counter()
        with engine.threading(), reporting(False) as tell:
            made = run_for(dpv.Parties(*private), dpv.Utility(*public), settings)
            chosen_in = time.perf_counter() - began
            for draw in range(task.draws):
                seeded = replace(made, settings=replace(settings, seed=1000 * task.split + draw))
                values = (
                    seeded.release(tell)[0]
                    .value(dpv.Utility(*public), permutations=100, engine=engine, progress=tell)
                    .values["shapley"]
                )
                found["auc"].setdefault(OURS, {}).setdefault(epsilon, []).append(dpv.detection.auc(values, changed))
                found["spearman"].setdefault(epsilon, []).append(spearman(values, plain))
        found["choice"][epsilon] = {
            "projection": str(made.choice.projection), "mechanism": made.choice.guarantee.mechanism,
            "expected_auc": made.choice.expected_auc, "seconds": chosen_in,
        }  # fmt: skip
        for draw in range(task.draws // 2):
            seeds = {**common, "seed": 1000 * task.split + draw}
            scores = dpv.baselines.public_loss(private, public, privacy=privacy, **seeds).scores
            found["auc"].setdefault(YARDSTICK, {}).setdefault(epsilon, []).append(dpv.detection.auc(scores, changed))
        for name, kind in PAPER.items() if task.name != "cnn" else ():
            values = dpv.value(
                private, public, privacy=privacy, schedule=dpv.Schedule(**kind), permutations=task.permutations,
                projection=None, clip=1.0, **quiet,
            ).values["shapley"]  # fmt: skip
            found["auc"].setdefault(name, {}).setdefault(epsilon, []).append(dpv.detection.auc(values, changed))
    return {"task": task.__dict__ | {"folder": ""}, **found}


def spearman(one: Any, other: Any) -> float:
    """Return the rank correlation of numbers without ties."""
    ranks = [np.argsort(np.argsort(numbers)) for numbers in (one, other)]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def summary(runs: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of one data set: mean and standard error over splits."""
    import dpvalue as dpv

    name = runs[0]["task"]["name"]
    plain = [one["no DP"] for one in runs]
    head = "".join(f"{f'eps = {epsilon:g}':>16}" for epsilon in EPSILONS)
    lines = [f"{name}: AUC without DP {np.mean(plain):.3f}", f"{'efficiency':28}{head}"]
    if name in TARGETS:
        lines.append(f"{'target':28}" + "".join(f"{target:16.2f}" for target in TARGETS[name]))
    for method in runs[0]["auc"]:
        cells = []
        for epsilon in EPSILONS:
            means = [dpv.detection.efficiency(float(np.mean(one["auc"][method][epsilon])), epsilon) for one in runs]
            cells.append(_cell(means))
        lines.append(f"{method:28}" + "".join(cells))
    aucs = [_cell([float(np.mean(one["auc"][OURS][epsilon])) for one in runs]) for epsilon in EPSILONS]
    lines.append(f"{'  AUC of dpvalue':28}" + "".join(aucs))
    expected = [_cell([one["choice"][epsilon]["expected_auc"] for one in runs]) for epsilon in EPSILONS]
    lines.append(f"{'  expected by the plan':28}" + "".join(expected))
    ranks = [_cell([float(np.mean(one["spearman"][epsilon])) for one in runs]) for epsilon in EPSILONS]
    lines.append(f"{'  Spearman to no DP':28}" + "".join(ranks))
    chosen = {f"{c['mechanism']}, {c['projection']}" for one in runs for c in one["choice"].values()}
    slowest = max(c["seconds"] for one in runs for c in one["choice"].values())
    return [*lines, f"  chosen (at most {slowest:.1f} s): " + "; ".join(sorted(chosen))]


def _cell(numbers: list[float]) -> str:
    error = np.std(numbers, ddof=1) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
    return f"{f'{np.mean(numbers):.3f} ({error:.3f})':>16}"


def main() -> None:
    """Run what was asked for and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=".", help="folder with covtype.npz and mnist.npz")
    parser.add_argument("--sets", nargs="+", default=["covertype", "digits", "mnist"], help="also: cnn")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--permutations", type=int, default=200, help="k of the paper's schedules")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write every trial here")
    asked = parser.parse_args()
    tasks = [
        Task(name, split, asked.data_dir, asked.draws, asked.permutations)
        for name in asked.sets
        for split in range(asked.splits)
    ]
    with ProcessPoolExecutor(asked.workers, mp_context=get_context("spawn")) as pool:
        runs = list(pool.map(run, tasks))
    for name in asked.sets:
        print("\n".join(summary([one for one in runs if one["task"]["name"] == name])), flush=True)  # noqa: T201
        print()  # noqa: T201
    if asked.json:
        from dpvalue.experiments.bench.machine import facts

        asked.json.write_text(json.dumps({"machine": facts(), "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
