"""Federated learning beside the refit game: who finds clients with wrong labels, at one budget, from how many messages.

    python benchmarks/federated.py --data-dir DIR --json benchmarks/results/federated.json

MNIST, 20 clients of 60 images, all labels of 6 of them wrong; 500 public images, to whose 20 leading directions all
images are reduced. Both train the same logistic model (210 parameters) and are judged by its public loss. Federated
learning is the paper's (50 rounds, 100 permutations a round, burn-in 0.2), and once with 5 rounds; its learning rate is
searched on public rows. Every seed draws other images, clients and noise; epsilon is for all that a client releases
(composition). Seconds are those of one core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.decomposition import PCA

import dpvalue as dpv
from dpvalue.experiments.paper.datasets import load
from dpvalue.experiments.paper.problem import PaperProblem, make_sets

CLIENTS, IMAGES, PUBLIC, SHARE, FEATURES = 20, 60, 500, 0.3, 20
ORDERS, DELTA, REFIT = 100, 1e-5, "refit game"
FEDERATED = {  # kind of schedule, rounds
    "federated, i.i.d.": ("independent", 50),
    "federated, decaying": ("decaying", 50),
    "federated, decaying, 5 rounds": ("decaying", 5),
}
BUDGETS = {
    f"eps {epsilon:g} per {unit}": dpv.Privacy(epsilon, DELTA, unit)
    for unit, epsilons in (("record", (0.25, 1.0)), ("party", (1.0, 4.0)))
    for epsilon in epsilons
}
CLAIMED = "claimed eps 1 per party (the paper's accounting)"
ENGINE = dpv.Local(device="cpu")


def problem(seed: int, folder: str) -> PaperProblem:
    """Return the clients and public rows of a seed, reduced by what the public rows say."""
    X, y = load("mnist", folder)
    drawn = make_sets((X.reshape(len(X), -1), y), CLIENTS, IMAGES, PUBLIC, seed, SHARE)
    (train, labels), (test, judges) = drawn.train, drawn.test
    reduce = PCA(FEATURES, random_state=0).fit(test)
    scale = float(np.sqrt(reduce.explained_variance_.mean()))
    return PaperProblem(
        (reduce.transform(train) / scale, labels), (reduce.transform(test) / scale, judges), drawn.changed, IMAGES
    )


def values(method: str, drawn: PaperProblem, privacy: dpv.Privacy | None, seed: int) -> dict[str, Any]:
    """Value the clients by a method; return the values, and what they took."""
    began = time.process_time()
    settings = dpv.Settings(privacy=privacy, noise="fast", engine=ENGINE, seed=seed)
    found: dpv.Result | dpv.FederatedResult
    if method == REFIT:
        found = dpv.value(drawn.parties, drawn.test, settings, game="refit", progress=False)
        messages = 1
    else:
        kind, messages = FEDERATED[method]
        found = dpv.federated(
            drawn.parties,
            drawn.test,
            settings,
            schedule=dpv.Schedule(kind, burn_in=0.2),
            rounds=messages,
            orders=ORDERS,
            progress=False,
        )
    shapley = found.values["shapley"]
    return {
        "auc": dpv.detection.auc(shapley, drawn.changed),
        "values": shapley.tolist(),
        "messages": messages,
        "seconds": time.process_time() - began,
        "epsilon": found.guarantee.epsilon,
        "noise": found.guarantee.noise_multiplier,
    }


def measure(seed: int, folder: str) -> dict[str, dict[str, Any]]:
    """Return what every method finds at every budget."""
    drawn = problem(seed, folder)
    found: dict[str, dict[str, Any]] = {}
    for method in (*FEDERATED, REFIT):
        quiet = values(method, drawn, None, seed)
        budgets = dict(BUDGETS)
        if method != REFIT:
            budgets[CLAIMED] = dpv.Privacy(1.0, DELTA, accounting="poisson")
        for name, privacy in budgets.items():
            one = values(method, drawn, privacy, seed)
            one["spearman"] = float(spearmanr(one["values"], quiet["values"]).statistic)
            found.setdefault(name, {})[method] = one
        found.setdefault("no privacy", {})[method] = {**quiet, "spearman": 1.0}
        for of in found.values():
            of.get(method, {}).pop("values", None)
        scores = {name: round(of[method]["auc"], 3) for name, of in found.items() if method in of}
        print(seed, method, scores, flush=True)  # noqa: T201
    return found


def summary(runs: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return means and standard errors over seeds."""
    first = next(iter(runs.values()))
    table: dict[str, dict[str, Any]] = {}
    for budget, methods in first.items():
        for method in methods:
            cells = [run[budget][method] for run in runs.values()]
            table.setdefault(budget, {})[method] = {
                name: _mean([cell[name] for cell in cells]) for name in ("auc", "spearman", "seconds")
            } | {name: cells[0][name] for name in ("messages", "epsilon", "noise")}
    return table


def _mean(numbers: list[float]) -> tuple[float, float]:
    return float(np.mean(numbers)), float(np.std(numbers, ddof=1) / len(numbers) ** 0.5) if len(numbers) > 1 else 0.0


def main() -> None:
    """Measure over seeds; print the table and keep every run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(12)))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs: dict[str, Any] = {}
    for seed in given.seeds:
        runs[str(seed)] = measure(seed, given.data_dir)
        if given.json is not None:  # after each seed: what was measured stays
            given.json.write_text(json.dumps({"summary": summary(runs), "runs": runs}, indent=1) + "\n")
    for budget, methods in summary(runs).items():
        for method, cell in methods.items():
            numbers = ", ".join(f"{name} {cell[name][0]:.3f} ({cell[name][1]:.3f})" for name in ("auc", "spearman"))
            print(f"{budget}; {method}: {numbers}, {cell['messages']} messages, {cell['seconds'][0]:.1f} s")  # noqa: T201


if __name__ == "__main__":
    main()
