"""What a party gains by lying: by sending the description of good data, and by claiming more records than it has.

    python benchmarks/lying.py --json benchmarks/results/lying.json

Six hospitals of scikit-learn's breast cancer set with 15 to 90 records, one of which (60 records) has garbage; 200
public rows; no noise, so that what is measured is the game. Means over seeds, with standard errors.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue.methods.refit import Refit

SIZES = {"a": 90, "b": 60, "c": 30, "d": 15, "e": 50, "f": 40}
PUBLIC, LIAR = 200, "b"
CLAIMS = (60, 600, 6000)


def value(parts: dict[str, tuple[np.ndarray, np.ndarray]], public: tuple[np.ndarray, np.ndarray]) -> dpv.Result:
    """Return the values of the parties."""
    x, y = (np.concatenate(of_all) for of_all in zip(*parts.values(), strict=True))
    groups = np.repeat(list(parts), [len(labels) for _, labels in parts.values()])
    return dpv.value(
        (x, y), public, game="refit", privacy=None, groups=groups, preprocess=StandardScaler(), progress=False
    )


def measure(seed: int) -> dict[str, float]:
    """Return the liar's value, and its share of payouts, for what it may say."""
    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order], y[order]
    public, ends = (x[:PUBLIC], y[:PUBLIC]), PUBLIC + np.cumsum(list(SIZES.values()))
    parts = {
        name: (x[end - size : end], y[end - size : end].copy())
        for (name, size), end in zip(SIZES.items(), ends, strict=True)
    }
    parts["e"] = parts["e"][0], 1 - parts["e"][1]
    parts["f"][1][np.arange(SIZES["f"]) % 5 < 2] ^= 1
    place, generator = list(SIZES).index(LIAR), np.random.default_rng(seed)
    own = parts[LIAR][0]
    garbage = generator.normal(own.mean(0), own.std(0), own.shape), generator.integers(2, size=len(own))
    found = {
        "honest": _value(value(parts, public), place),
        "garbage": _value(value({**parts, LIAR: garbage}, public), place),
    }
    for claimed in CLAIMS:
        nothing = np.full((claimed, own.shape[1]), np.nan), np.zeros(claimed, dtype=int)
        table = value({**parts, LIAR: nothing}, public).table
        assert isinstance(table.method, Refit)
        surrogate = table.method.surrogate
        window, rows = surrogate.window(place), table.rows.clone()
        rows[place, : window.count] = window.centre[:-2] / window.norm
        rows[place, -2:] = window.centre[-2:] / window.norm
        lied = replace(table, rows=rows).value(public, progress=False)
        found[f"claims {claimed}"] = _value(lied, place)
        found[f"share of {claimed}"] = float(lied.shares(1.0, draws=2).payouts[place])
    return found


def _value(result: dpv.Result, place: int) -> float:
    return float(result.values["shapley"][place])


def main() -> None:
    """Measure over seeds, print and keep the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[51, 52, 53, 54])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    runs = [measure(seed) for seed in given.seeds]
    table = {}
    for name in runs[0]:
        numbers = [run[name] for run in runs]
        table[name] = float(np.mean(numbers)), float(np.std(numbers, ddof=1) / len(numbers) ** 0.5)
        print(f"{name:16} {table[name][0]:+.3f} ({table[name][1]:.3f})")  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps({"seeds": given.seeds, "mean and standard error": table}, indent=1) + "\n")


if __name__ == "__main__":
    main()
