"""Wrong labels among rows that a linear regression values, on the quality of red wine.

20% of the labels of 400 private rows are moved by 3 (their standard deviation is 0.8), 1,000 other rows are public, and
features are standardised by the public rows. Every row is a party, everything else is a default of `dpvalue.value`;
answers are read only to score. Beside it, on the same rows, what was chosen before there were scores: one number along
a path. `swapped` has another row's label in place of a moved one, which is often the same number.

    python benchmarks/rows_regression.py --data-dir DIR [--seeds 10] [--json FILE]

DIR holds winequality-red.csv.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (2.0, 4.0, 8.0)
PRIVATE, PUBLIC, CHANGED, SHIFT = 400, 1000, 0.2, 3.0
BARS = {("up", 2.0): 0.90, ("up", 8.0): 0.97}
LEAST = 0.80
KINDS = ("up", "down", "swapped")
AUTO, PATH = "dpvalue, auto", "one number along a path"


def split_of(folder: str, kind: str, seed: int) -> tuple[tuple[Any, Any], tuple[Any, Any], Any]:
    """Return (private, public, which private labels were changed)."""
    rows = np.genfromtxt(Path(folder) / "winequality-red.csv", delimiter=";", skip_header=1)
    generator = np.random.default_rng([seed, 5])
    order = generator.permutation(len(rows))
    private, public = rows[order[:PRIVATE]], rows[order[PRIVATE : PRIVATE + PUBLIC]]
    mean, spread = public[:, :-1].mean(0), public[:, :-1].std(0)
    changed = np.zeros(PRIVATE, dtype=bool)
    changed[generator.choice(PRIVATE, round(CHANGED * PRIVATE), replace=False)] = True
    labels = private[:, -1]
    wrong = {"up": labels + SHIFT, "down": labels - SHIFT, "swapped": labels[generator.permutation(PRIVATE)]}[kind]
    features = (private[:, :-1] - mean) / spread, (public[:, :-1] - mean) / spread
    return (features[0], np.where(changed, wrong, labels)), (features[1], public[:, -1]), changed


def run(folder: str, kind: str, seed: int, epsilon: float) -> dict[str, Any]:
    """Return the AUC of either way on one split, and what was released and expected."""
    import dpvalue as dpv

    private, public, changed = split_of(folder, kind, seed)
    found: dict[str, Any] = {"kind": kind, "seed": seed, "epsilon": epsilon}
    ways: dict[str, dict[str, Any]] = {AUTO: {}, PATH: {"projection": dpv.Projection(1, "path")}}
    for name, given in ways.items():
        result = dpv.value(
            private, public, model="linear", privacy=dpv.Privacy(epsilon), noise="fast", seed=seed, progress=False,
            **given,
        )  # fmt: skip
        found[name] = {
            "auc": dpv.detection.auc(result.values["shapley"], changed),
            "expected_auc": result.table.expected_auc,
            "released": f"{result.guarantee.mechanism}, {result.table.projection}",
        }
    return found


def summary(runs: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table: mean, standard error and smallest AUC over seeds."""
    lines = [f"{'AUC: mean (standard error), smallest':40}" + "".join(f"{f'eps = {e:g}':>24}" for e in EPSILONS)]
    for kind in KINDS:
        for name in (AUTO, PATH):
            cells = []
            for epsilon in EPSILONS:
                aucs = [r[name]["auc"] for r in runs if (r["kind"], r["epsilon"]) == (kind, epsilon)]
                error = np.std(aucs, ddof=1) / len(aucs) ** 0.5 if len(aucs) > 1 else 0.0
                bar = BARS.get((kind, epsilon)) if name == AUTO else None
                missed = bar is not None and (np.mean(aucs) < bar or min(aucs) < LEAST)
                cells.append(f"{f'{np.mean(aucs):.3f} ({error:.3f}), {min(aucs):.3f}':>23}{'!' if missed else ' '}")
            lines.append(f"{f'{kind}: {name}':40}" + "".join(cells))
    released = sorted({r[AUTO]["released"] for r in runs})
    return [*lines, "released: " + "; ".join(released), "a ! marks a bar that is missed"]


def main() -> None:
    """Run all seeds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", default=".", help="folder with winequality-red.csv")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write every run here")
    asked = parser.parse_args()
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    runs = [run(asked.data_dir, kind, seed, e) for kind in KINDS for seed in seeds for e in EPSILONS]
    print("\n".join(summary(runs)))  # noqa: T201
    if asked.json:
        from dpvalue.experiments.bench.machine import facts

        asked.json.write_text(json.dumps({"machine": facts(), "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
