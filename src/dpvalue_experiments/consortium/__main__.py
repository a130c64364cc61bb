"""`python -m dpvalue_experiments.consortium data | truth | check`: what retraining says, for all cells and seeds.

data   writes a folder of all data sets, for a machine without scikit-learn
truth  retrains on all coalitions, with torch and numpy alone, and writes the values as one file
check  compares our fits with scikit-learn's
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from dpvalue_experiments.consortium.cells import CELLS, chosen_cells
from dpvalue_experiments.consortium.check import compare
from dpvalue_experiments.consortium.problems import make_problem
from dpvalue_experiments.consortium.stored import keep_data, read_truths, write_truths
from dpvalue_experiments.consortium.truth import retrain

TRUTHS = Path("benchmarks/results/consortium-truth.json")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="dpvalue_experiments.consortium", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="write a folder of all data sets")
    data.add_argument("--out", type=Path, default=Path("local/consortium"))
    truth = commands.add_parser("truth", help="retrain on all coalitions; what is in the file already is kept")
    truth.add_argument("--out", type=Path, default=TRUTHS)
    truth.add_argument("--device", default="cpu")
    check = commands.add_parser("check", help="compare our fits with scikit-learn's")
    check.add_argument("--coalitions", type=int, default=10, help="of each cell, drawn at random")
    for command, cells, seeds in ((truth, ["*"], range(10)), (check, ["*/8/range/planted", "heart/*"], range(1))):
        command.add_argument("--cells", nargs="+", default=cells, help=f"patterns of names such as {CELLS[0].name}")
        command.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    for command in (data, truth, check):
        command.add_argument("--data-dir", help="where covtype.npz, winequality-red.csv and heart-disease/ are")
    given = parser.parse_args()
    {"data": _data, "truth": _truth, "check": _check}[given.command](given)


def _data(given: argparse.Namespace) -> None:
    keep_data(given.data_dir, given.out)
    _say(f"{given.out}: {sum(path.stat().st_size for path in given.out.rglob('*') if path.is_file()) / 1e6:.1f} MB")


def _truth(given: argparse.Namespace) -> None:
    known = read_truths(given.out) if given.out.is_file() else {}
    for cell in chosen_cells(given.cells):
        began, made = time.perf_counter(), 0
        for seed in given.seeds:
            problem = make_problem(cell, seed, given.data_dir)
            stored = known.get((cell.name, seed))
            if stored is None or stored.fingerprint != problem.fingerprint():
                known[cell.name, seed] = retrain(problem, given.device)
                made += 1
        if made:
            write_truths(known, given.out)
            _say(f"{cell.name}: {made} problem(s) in {time.perf_counter() - began:.1f} s")


def _check(given: argparse.Namespace) -> None:
    worst, count = 0.0, 0
    for cell in chosen_cells(given.cells):
        for seed in given.seeds:
            masks = np.random.default_rng(seed).choice(2**cell.n - 1, min(given.coalitions, 2**cell.n - 1), False) + 1
            coalitions = (masks[:, None] >> np.arange(cell.n) & 1).astype(bool)
            found = compare(make_problem(cell, seed, given.data_dir), coalitions)
            worst, count = max(worst, found.difference), count + len(masks)
            _say(f"{cell.name}, seed {seed}: worths {found.difference:.1e}, predictions {found.predictions:.1e}")
    _say(f"{count} coalitions: the largest difference in worth is {worst:.1e}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
