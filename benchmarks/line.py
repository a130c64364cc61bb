"""One number a party, or a few: games of few variables beside the game of models, on the same tables, in one run.

    python benchmarks/line.py --json benchmarks/results/line.json

Seconds of one walk of all parties by either game; of all Shapley values as expectations, and how far they are from
summing to what everybody is worth; of a million parties, too, where no model is walked. Two and three numbers a party
(of a problem of three and of four classes) have expectations from some thousands of parties on.
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
from dpvalue.experiments.bench.machine import facts
from dpvalue.games.semivalues import semivalue
from dpvalue.methods.few import FewGame, LineGame
from dpvalue.methods.sums import TableGame

SIZES = (1_000, 10_000, 100_000, 1_000_000)
MOST_WALKED = 100_000
PUBLIC, FEATURES = 500, 20
FEW, FEW_SIZES, FEW_ROWS = (2, 3), (100_000, 1_000_000), 10_000


def made(rows: int, seed: int) -> tuple[Any, Any]:
    """Rows of two classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, FEATURES))
    return x, (x[:, :5].sum(1) + generator.normal(size=rows) > 0).astype(int)


def of_classes(rows: int, classes: int, seed: int) -> tuple[Any, Any]:
    """Rows of several classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, FEATURES))
    return x, (x[:, :classes] + generator.normal(size=(rows, classes))).argmax(1)


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
    known = fresh.direct_estimate(shapley)
    assert known is not None
    found["expectations"] = seconds(lambda: LineGame(line.walker, line.evaluate, line.rows).direct_estimate(shapley))
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


def measured_few(n: int, m: int) -> dict[str, float | int]:
    """Time both games on a table of n parties that released m numbers each, drawn from those of fewer parties."""
    public = of_classes(PUBLIC, m + 1, 1)
    table = dpv.release(
        of_classes(FEW_ROWS, m + 1, 2),
        public,
        privacy=dpv.Privacy(2.0),
        projection=dpv.Projection(m, "classes"),
        noise="fast",
        progress=False,
    )
    few = table.game(dpv.Utility(*public), dpv.Local())
    assert isinstance(few, FewGame)
    few = few.with_rows((few.rows * (FEW_ROWS / n)).repeat(n // FEW_ROWS, 1))
    shapley = semivalue("shapley")
    known = few.direct_estimate(shapley)
    assert known is not None
    worth = few.worth(np.array([[False] * n, [True] * n]))
    found: dict[str, float | int] = {"parties": n, "numbers": m}
    found["expectations"] = seconds(lambda: few.with_rows(few.rows).direct_estimate(shapley))
    found["sum is off by"] = abs(float(known.values.sum() - (worth[1] - worth[0]))) / abs(float(worth[1] - worth[0]))
    if n <= MOST_WALKED:
        orders = np.random.default_rng(0).permutation(n)[None]
        whole = TableGame(few.walker, few.evaluate, few.rows)
        found["walk of models"] = seconds(lambda: whole.walk(orders))
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
    few = []
    for m in FEW:
        for n in FEW_SIZES:
            few.append(measured_few(n, m))
            print(few[-1], flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps({"machine": facts(), "sizes": rows, "few": few}, indent=1) + "\n")


if __name__ == "__main__":
    main()
