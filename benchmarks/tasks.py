"""Intervals and refits on one thread and on all cores, in turns, in one run.

    python benchmarks/tasks.py --json benchmarks/results/tasks.json

A ratio is the least time on one thread over the least on all, of several runs in turns. Values must be the same bits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpvalue as dpv
from dpvalue.engine.engines import usable_cores
from dpvalue.experiments.bench.machine import facts

PARTIES, RECORDS, FEATURES, PUBLIC = 12, 200, 20, 2000
MODELS = ("logistic", "trees")


def made(rows: int, seed: int) -> tuple[Any, Any]:
    """Rows of two classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, FEATURES))
    return x, (x[:, :5].sum(1) + generator.normal(size=rows) > 0).astype(int)


def refit(table: dpv.Table, threads: int) -> tuple[float, np.ndarray]:
    """Return the seconds of valuing all coalitions, and the values."""
    began = time.perf_counter()
    result = table.value(made(PUBLIC, 1), engine=dpv.Local("cpu", threads=threads), progress=False)
    return time.perf_counter() - began, result.values["shapley"]


def intervals(table: dpv.Table, threads: int) -> tuple[float, np.ndarray]:
    """Return the seconds of all draws for intervals, and the draws."""
    result = table.value(made(PUBLIC, 1), engine=dpv.Local("cpu", threads=threads), progress=False)
    began = time.perf_counter()
    draws = result.noise_draws()["shapley"].draws
    return time.perf_counter() - began, draws


def ratio(work: Callable[[dpv.Table, int], tuple[float, np.ndarray]], table: dpv.Table, repeats: int) -> dict[str, Any]:
    """Return the least seconds on one thread and on all cores, and what they say of the same values."""
    cores = usable_cores()
    seconds: dict[int, list[float]] = {1: [], cores: []}
    values = []
    for _ in range(repeats):
        for threads, taken in seconds.items():
            spent, found = work(table, threads)
            taken.append(spent)
            values.append(found)
    same = all(np.array_equal(values[0], one) for one in values)
    one, many = (round(min(taken), 3) for taken in seconds.values())
    return {"one thread": one, f"{cores} threads": many, "ratio": round(one / many, 2), "same bits": same}


def main() -> None:
    """Time everything, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": facts(), "parties": PARTIES, "records of a party": RECORDS, "public": PUBLIC}
    for model in MODELS:
        table = dpv.release(
            made(PARTIES * RECORDS, 0), made(PUBLIC, 1), groups=np.repeat(np.arange(PARTIES), RECORDS), model=model,
            privacy=dpv.Privacy(1.0, 1e-5, unit="record"), progress=False,
        )  # fmt: skip
        for work in (refit, intervals):
            found[f"{work.__name__}, {model}"] = ratio(work, table, given.repeats)
            print(f"{work.__name__}, {model}: {found[f'{work.__name__}, {model}']}", flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
