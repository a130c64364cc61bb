"""One number a party: the game of one variable beside the game of models, on the same tables, in one run.

    python benchmarks/line.py --json benchmarks/results/line.json

Seconds of one walk of all parties by either game; of all Shapley values as expectations, and how far they are from
summing to what everybody is worth; of a million parties, too, where no model is walked.
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
from dpvalue.valuation.line import LineGame
from dpvalue.valuation.replay import TableGame
from dpvalue.valuation.semivalues import semivalue
from dpvalue_experiments.bench.machine import facts

SIZES = (1_000, 10_000, 100_000, 1_000_000)
MOST_WALKED = 100_000
PUBLIC, FEATURES = 500, 20


def made(rows: int, seed: int) -> tuple[Any, Any]:
    """Rows of two classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, FEATURES))
    return x, (x[:, :5].sum(1) + generator.normal(size=rows) > 0).astype(int)


def seconds(work: Callable[[], Any]) -> float:
    """Of the fastest of three."""
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def measured(n: int) -> dict[str, float | int]:
    """Time both games on a table of n parties."""
    public = made(PUBLIC, 1)
    rows = made(min(n, MOST_WALKED), 2)
    table = dpv.release(
        rows, public, privacy=dpv.Privacy(2.0), projection=dpv.Projection(1), noise="fast", progress=False
    )
    line = table.game(dpv.Utility(*public), dpv.Local())
    assert isinstance(line, LineGame)
    if n > MOST_WALKED:
        line = line.with_rows((line.rows * (MOST_WALKED / n)).repeat(n // MOST_WALKED, 1))
    shapley = semivalue("shapley")
    found: dict[str, float | int] = {"parties": n}
    fresh = LineGame(line.walker, line.evaluate, line.rows)
    known = fresh.known(shapley)
    assert known is not None
    found["expectations"] = seconds(lambda: LineGame(line.walker, line.evaluate, line.rows).known(shapley))
    worth = line.worth(np.array([[False] * n, [True] * n]))
    found["sum is off by"] = abs(float(known.values.sum() - (worth[1] - worth[0]))) / abs(float(worth[1] - worth[0]))
    if n <= MOST_WALKED:
        orders = np.random.default_rng(0).permutation(n)[None]
        whole = TableGame(line.walker, line.evaluate, line.rows)
        found["walk of models"] = seconds(lambda: whole.walk(orders))
        found["walk of the line"] = seconds(lambda: line.walk(orders))
        found["ratio of a walk"] = found["walk of models"] / found["walk of the line"]
        found["ratio of 20 walks of models to expectations"] = 20 * found["walk of models"] / found["expectations"]
    return found


def main() -> None:
    """Measure all sizes, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for n in SIZES:
        rows.append(measured(n))
        print(rows[-1], flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": facts(), "sizes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
