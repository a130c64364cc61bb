"""Is the plan honest: what it expects beside what is then found, over 30 settings of 30 runs; and what runs cost.

Every run draws its own public set, private rows, corrupted parties (30%) and noise, and has its own plan. Parties are
corrupted as the plan says that it expects: a wrong label, of parties with many records half of the labels.

    python benchmarks/plan.py [--runs 30] [--only expected|costs] [--json benchmarks/results/plan.json]

Data is made up, or comes with scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

BAD_SHARE, PERMUTATIONS = 0.3, 100


@dataclass(frozen=True)
class Case:
    """A setting: where rows come from, the parties' sizes, and the public rows (`repeat` copies of each)."""

    data: str
    sizes: str
    public: int
    epsilon: float
    unit: str = "party"
    repeat: int = 1

    @property
    def name(self) -> str:
        """In words, for the table."""
        copies = f" x {self.repeat}" if self.repeat > 1 else ""
        return f"{self.data}, {self.sizes}, public {self.public}{copies}, eps {self.epsilon:g} per {self.unit}"


SIZES: dict[str, list[int]] = {
    "150 rows": [1] * 150,
    "250 rows": [1] * 250,
    "60 of 10": [10] * 60,
    "40 of 30": [30] * 40,
    "16 of 100 and 14 of 2": [100] * 16 + [2] * 14,
    "10 of 100 and 50 of 1": [100] * 10 + [1] * 50,
    "60 from 1 to 100": np.geomspace(1, 100, 60).round().astype(int).tolist(),
}
CASES = [
    Case("breast cancer", "150 rows", 300, 1.0),
    Case("breast cancer", "150 rows", 50, 1.0),
    Case("breast cancer", "150 rows", 50, 4.0),
    Case("breast cancer", "150 rows", 12, 1.0),
    Case("breast cancer", "150 rows", 60, 2.0, repeat=5),
    Case("breast cancer", "60 from 1 to 100", 100, 1.0, "record"),
    Case("digits", "150 rows", 500, 2.0),
    Case("digits", "150 rows", 50, 8.0),
    Case("digits", "60 of 10", 100, 1.0, "record"),
    Case("digits", "150 rows", 40, 4.0, repeat=8),
    Case("2 classes", "250 rows", 1000, 1.0),
    Case("2 classes", "250 rows", 100, 8.0),
    Case("2 classes", "250 rows", 20, 4.0),
    Case("2 classes", "60 from 1 to 100", 200, 2.0),
    Case("2 classes", "40 of 30", 60, 0.5, "record", repeat=3),
    Case("3 classes", "16 of 100 and 14 of 2", 200, 1.0, "record"),
    Case("3 classes", "16 of 100 and 14 of 2", 200, 4.0),
    Case("3 classes", "60 from 1 to 100", 50, 0.5, "record"),
    Case("5 classes", "150 rows", 12, 4.0),
    Case("5 classes", "10 of 100 and 50 of 1", 300, 4.0, "record"),
    Case("10 classes", "250 rows", 400, 4.0),
    Case("10 classes", "60 of 10", 100, 2.0),
    Case("20 classes", "150 rows", 1000, 2.0),
    Case("20 classes", "150 rows", 80, 8.0),
    Case("20 classes", "60 from 1 to 100", 400, 1.0, "record"),
    Case("diabetes", "150 rows", 200, 4.0),
    Case("diabetes", "60 of 10", 60, 2.0, "record"),
    Case("regression", "150 rows", 300, 1.0),
    Case("regression", "150 rows", 30, 4.0, repeat=4),
    Case("regression", "60 from 1 to 100", 100, 0.5, "record"),
]


@cache
def rows_of(name: str) -> tuple[Any, Any]:
    """Return all rows and labels of a source."""
    from sklearn import datasets

    loaders: dict[str, Callable[..., Any]] = {
        "breast cancer": datasets.load_breast_cancer,
        "digits": datasets.load_digits,
        "diabetes": datasets.load_diabetes,
    }
    if name in loaders:
        X, y = loaders[name](return_X_y=True)
        return X, y
    if name == "regression":
        X, y = datasets.make_regression(6000, 12, n_informative=5, noise=40.0, random_state=20)
        return X, y
    classes = int(name.split()[0])
    X, y = datasets.make_classification(
        6000, 25, n_informative=12, n_classes=classes, n_clusters_per_class=1, class_sep=1.5, random_state=classes
    )
    return X, y


def drawn(case: Case, run: int) -> tuple[Any, Any, Any, Any]:
    """Return private rows, public rows, groups (None: each row is a party) and which parties are corrupted."""
    X, y = rows_of(case.data)
    generator = np.random.default_rng([run, 16])
    order = generator.permutation(len(X))
    X, y = X[order], y[order]
    public, left = (X[: case.public], y[: case.public]), (X[case.public :], y[case.public :])
    classification = y.dtype.kind == "i"
    if classification:  # rows of a class that the public set does not show count for nothing in a run
        known = np.isin(left[1], np.unique(public[1]))
        left = left[0][known], left[1][known]
    sizes = np.array(SIZES[case.sizes])
    picked = np.arange(sizes.sum())
    if len(picked) > len(left[0]):
        picked = generator.integers(len(left[0]), size=len(picked))
    features, labels = left[0][picked], left[1][picked].copy()
    bad = np.zeros(len(sizes), dtype=bool)
    bad[generator.choice(len(sizes), round(BAD_SHARE * len(sizes)), replace=False)] = True
    if classification:
        classes = np.unique(public[1])
        place = np.searchsorted(classes, labels)
        other = classes[(place + generator.integers(1, len(classes), len(labels))) % len(classes)]
    else:
        other = labels[generator.permutation(len(labels))]
    within = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    wrong = np.repeat(bad, sizes) & (within < np.repeat((sizes + 1) // 2, sizes))
    groups = None if sizes.max() == 1 else np.repeat(np.arange(len(sizes)), sizes)
    copies = np.repeat(public[0], case.repeat, axis=0), np.repeat(public[1], case.repeat)
    return (features, np.where(wrong, other, labels)), copies, groups, bad


def one_run(case: Case, run: int) -> dict[str, Any]:
    """Return what one run's plan expects, with its error, and what the run finds."""
    from sklearn.preprocessing import StandardScaler

    import dpvalue as dpv
    from dpvalue.games.semivalues import semivalues
    from dpvalue.planning.settings import Settings
    from dpvalue.progress import reporting
    from dpvalue.runs.run import run_for, value_run

    private, public, groups, bad = drawn(case, run)
    utility = dpv.Utility(*public)
    engine = dpv.Local(device="cpu", threads=1)
    settings = Settings(
        model="logistic" if public[1].dtype.kind == "i" else "linear",
        privacy=dpv.Privacy(case.epsilon, unit=case.unit), schedule=dpv.Schedule("replay"), permutations=PERMUTATIONS,
        projection="auto", clip="auto", clip_rule="auto", learning_rate="auto", noise="fast",
        preprocess=StandardScaler(), engine=engine, seed=run,
    )  # fmt: skip
    with engine.threading(), reporting(False) as tell:
        made = run_for(dpv.Parties(private[0], private[1], groups), utility, settings)
        values = value_run(made, utility, semivalues("shapley"), tell).values["shapley"]
    expected = made.choice.expectation
    assert expected is not None
    return {
        "expected": expected.auc,
        "error": expected.error,
        "found": dpv.detection.auc(values, bad),
        "parties": [int((~bad).sum()), int(bad.sum())],
        "released": f"{made.choice.guarantee.mechanism}, {made.choice.projection}",
    }


def summary(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the setting's means, and how often an error covers what the same run found."""
    expected, error, found = (np.array([run[name] for run in runs]) for name in ("expected", "error", "found"))
    clean, bad = runs[0]["parties"]
    spread = np.sqrt(error**2 + np.square([auc_error(min(max(auc, 0.5), 0.995), clean, bad) for auc in expected]))
    return {
        "case": asdict(case),
        "name": case.name,
        "expected": float(expected.mean()),
        "found": float(found.mean()),
        "difference": float((expected - found).mean()),
        "difference_error": float((expected - found).std(ddof=1) / len(runs) ** 0.5),
        "stated_error": float(error.mean()),
        "too_few": float((error > 0.05).mean()),
        "within_two_errors": float((np.abs(expected - found) <= 2 * spread).mean()),
        "runs": runs,
    }


def auc_error(auc: float, clean: int, bad: int) -> float:
    """Return the standard error of an AUC found among so many parties (Hanley and McNeil)."""
    first, second = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (bad - 1) * (first - auc**2) + (clean - 1) * (second - auc**2)
    return float((variance / (clean * bad)) ** 0.5)


def table(settings: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table, and what the bars ask for."""
    lines = ["| setting | expected (stated error) | found | difference (its error) |", "|---|---|---|---|"]
    for one in settings:
        lines.append(
            f"| {one['name']} | {one['expected']:.3f} ({one['stated_error']:.3f}) | {one['found']:.3f} | "
            f"{one['difference']:+.3f} ({one['difference_error']:.3f}) |"
        )
    gaps = np.array([one["difference"] for one in settings])
    inside = np.mean([one["within_two_errors"] for one in settings])
    return [
        *lines, "",
        f"mean {gaps.mean():+.4f} (bar: 0.02), mean absolute {np.abs(gaps).mean():.4f} (bar: 0.04), largest "
        f"{np.abs(gaps).max():.3f} (bar: 0.08); a run's AUC within two errors of its plan: {inside:.0%}",
    ]  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """A run to be timed: from files as `dpvalue run` does it, or by `dpvalue.value`."""

    rows: int
    features: int
    public: int
    data: str = "2 classes"
    groups: int = 0
    files: bool = True
    schedule: str = "replay"
    permutations: int = 1000
    model: str = "logistic"
    projection: str | None = "auto"

    @property
    def name(self) -> str:
        """In words, for the table."""
        how = "dpvalue run" if self.files else "dpvalue.value"
        parties = f"{self.rows} rows in {self.groups} groups" if self.groups else f"{self.rows} rows"
        where = "" if self.projection else ", all directions"
        kind = "" if self.data == self.model else f"{self.data}, "
        return f"{how}: {parties} x {self.features}, public {self.public}, {kind}{self.model}, {self.schedule}{where}"


COSTS = [
    Cost(400, 20, 200),
    Cost(5_000, 20, 500),
    Cost(20_000, 10, 1000),
    Cost(4_000, 20, 300, groups=40),
    Cost(2_000, 10, 300, data="regression", model="linear"),
    Cost(100, 20, 200, schedule="running-mean", permutations=200),
    Cost(400, 20, 200, files=False),
    Cost(5_000, 20, 500, data="10 classes", files=False),
    Cost(500, 300, 500, data="10 classes", files=False, projection=None, permutations=200),
    Cost(100, 64, 60, data="3 classes", files=False, model="cnn", permutations=100),
]


def cost_rows(case: Cost) -> tuple[Any, Any]:
    """Return made-up rows and labels, private and public."""
    generator = np.random.default_rng(3)
    count = case.rows + case.public
    X = generator.normal(size=(count, case.features))
    if case.model == "linear":
        return X, X @ generator.normal(size=case.features) + generator.normal(size=count)
    classes = int(case.data.split()[0])
    y = (X @ generator.normal(size=(case.features, classes)) + 2 * generator.normal(size=(count, classes))).argmax(1)
    return (X.reshape(count, 1, 8, 8) if case.model == "cnn" else X), y


def one_cost(case: Cost, folder: Path) -> dict[str, Any]:
    """Return what the plan states and what the run takes, in this process."""
    import dpvalue as dpv
    from dpvalue.experiments.bench.machine import peak_bytes
    from dpvalue.runs.plan import plan_sizes

    X, y = cost_rows(case)
    site = np.arange(case.rows) % case.groups if case.groups else None
    private = X[: case.rows], y[: case.rows]
    public = X[case.rows :], y[case.rows :]
    unit = "record" if case.groups else "party"
    if case.files:
        import pandas as pd

        from dpvalue.progress import reporting
        from dpvalue.runs.config import make_config
        from dpvalue.runs.execute import execute
        from dpvalue.runs.sources import open_run

        for name, (features, labels) in (("train", private), ("test", public)):
            frame = pd.DataFrame(features).add_prefix("x").assign(label=labels)
            if site is not None:
                frame["site"] = site[: len(frame)] if name == "train" else 0
            frame.to_csv(folder / f"{name}.csv", index=False)
        given: dict[str, Any] = {
            "train": [str(folder / "train.csv")], "test": str(folder / "test.csv"), "target": "label", "epsilon": 2.0,
            "schedule": case.schedule, "permutations": case.permutations, "unit": unit,
        }  # fmt: skip
        job = open_run(make_config(given | ({"group": "site"} if case.groups else {})))
        began = time.perf_counter()
        planned = job.plan()
        with reporting(False) as tell:
            done = execute(job, planned, folder / "out", tell)
        seconds, walks = time.perf_counter() - began, done.result.walks
        assert planned.prepared is not None
        taken = plan_sizes(job.utility, job.settings, planned.prepared.sizes, timed=True).costs
        assert taken.seconds is not None
        stated, most = taken.seconds
    else:
        settings: dict[str, Any] = {
            "privacy": dpv.Privacy(2.0, unit=unit), "schedule": case.schedule, "permutations": case.permutations,
            "model": case.model, "projection": case.projection, "groups": site,
        }  # fmt: skip
        planned = dpv.plan(private, public, **settings)
        began = time.perf_counter()
        walks = dpv.value(private, public, progress=False, **settings).walks
        seconds = time.perf_counter() - began
        assert planned.prepared is not None
        at = planned.prepared.situation
        taken = plan_sizes(planned.prepared.utility, at.settings, planned.prepared.sizes, timed=True).costs
        assert taken.seconds is not None
        assert taken.value_seconds is not None
        stated, most = taken.value_seconds, taken.seconds[1]
    assert planned.costs.memory_bytes is not None
    return {
        "name": case.name, "stated_s": stated, "at_most_s": most, "measured_s": seconds, "walks": walks,
        "seconds_ratio": stated / seconds, "stated_bytes": planned.costs.memory_bytes, "measured_bytes": peak_bytes(),
        "memory_ratio": planned.costs.memory_bytes / peak_bytes(),
    }  # fmt: skip


def costs() -> list[dict[str, Any]]:
    """Return stated and measured costs, each of a process of its own."""
    found = []
    for number in range(len(COSTS)):
        command = [sys.executable, __file__, "--cost", str(number)]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(cost_table(found[-1:])[2], flush=True)  # noqa: T201
    return found


def cost_table(found: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table of costs."""
    lines = [
        "| run | time stated | measured | ratio | memory stated | measured | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in found:
        lines.append(
            f"| {one['name']} | {one['stated_s']:.3g} s | {one['measured_s']:.3g} s | {one['seconds_ratio']:.2f} | "
            f"{one['stated_bytes'] / 1e6:.0f} MB | {one['measured_bytes'] / 1e6:.0f} MB | {one['memory_ratio']:.2f} |"
        )
    return lines


def main() -> None:
    """Run what was asked for, print the tables and write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--only", choices=["expected", "costs"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cost", type=int, help="one of the runs to be timed, in this process")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.cost is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(one_cost(COSTS[asked.cost], Path(folder))))  # noqa: T201
        return
    stored = json.loads(asked.json.read_text()) if asked.json and asked.json.exists() else {}
    if asked.only != "costs":
        stored["settings"] = []
        for case in CASES:
            began = time.perf_counter()
            stored["settings"].append(summary(case, [one_run(case, run) for run in range(asked.runs)]))
            print(f"{table(stored['settings'][-1:])[2]} {time.perf_counter() - began:.0f} s", flush=True)  # noqa: T201
        print("\n".join(table(stored["settings"])), flush=True)  # noqa: T201
    if asked.only != "expected":
        from dpvalue.experiments.bench.machine import facts

        stored |= {"costs": costs(), "machine": facts()}
    if asked.json:
        asked.json.write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()
