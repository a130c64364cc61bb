"""`python -m dpvalue.experiments.consortium data | truth | check | run | ...`: values beside retraining.

data      writes a folder of all data sets, for a machine without scikit-learn
truth     retrains on all coalitions, with torch and numpy alone, and writes the values as one file
check     compares our fits with scikit-learn's
run       values all cells and seeds by each method, and scores them by the truth
coverage  counts how often intervals hold the noise-free value
page      writes the page and its pictures from what was run
natural   the same for parties that differ in who their records are: natural truth | run | tables
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

import numpy as np

from dpvalue.experiments.consortium.cells import CELLS, chosen_cells
from dpvalue.experiments.consortium.check import compare
from dpvalue.experiments.consortium.coverage import coverage, draw
from dpvalue.experiments.consortium.methods import AVERAGING
from dpvalue.experiments.consortium.natural.command import add_natural, run_natural
from dpvalue.experiments.consortium.page import write_page
from dpvalue.experiments.consortium.problems import make_problem
from dpvalue.experiments.consortium.stored import (
    keep_data,
    read_coverage,
    read_scored,
    read_truths,
    write_coverage,
    write_scored,
    write_truths,
)
from dpvalue.experiments.consortium.tasks import CellTask, work
from dpvalue.experiments.consortium.truth import retrain

RESULTS = Path("benchmarks/results")
TRUTHS, OUTCOMES, COVERAGE = (RESULTS / f"consortium-{name}.json" for name in ("truth", "outcomes", "coverage"))


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="dpvalue.experiments.consortium", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    data = commands.add_parser("data", help="write a folder of all data sets")
    data.add_argument("--out", type=Path, default=Path("local/consortium"))
    truth = commands.add_parser("truth", help="retrain on all coalitions; what is in the file already is kept")
    truth.add_argument("--out", type=Path, default=TRUTHS)
    truth.add_argument("--device", default="cpu")
    check = commands.add_parser("check", help="compare our fits with scikit-learn's")
    check.add_argument("--coalitions", type=int, default=10, help="of each cell, drawn at random")
    run = commands.add_parser("run", help="value and score; what is in the file already is kept")
    run.add_argument("--out", type=Path, default=OUTCOMES)
    run.add_argument("--truths", type=Path, default=TRUTHS)
    run.add_argument("--methods", nargs="+", default=["refit", "steps", "averaging"])
    run.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0, 0.0], help="0 means without privacy")
    run.add_argument("--intervals", action="store_true", help="with intervals, which take longer")
    run.add_argument("--seconds", type=float, help="stop after so many")
    covered = commands.add_parser("coverage", help="count how often intervals hold the noise-free value")
    covered.add_argument("--out", type=Path, default=COVERAGE)
    covered.add_argument("--epsilons", nargs="+", type=float, default=[1.0])
    covered.add_argument("--draws", type=int, default=200)
    for command in (run, covered):
        command.add_argument("--workers", type=int, default=2)
    page = commands.add_parser("page", help="write the page and its pictures")
    page.add_argument("--out", type=Path, default=Path("docs"))
    planted = ["*/8/range/planted"]
    for command, cells, seeds in (
        (truth, ["*"], range(10)), (check, [*planted, "heart/*"], range(1)), (run, ["*"], range(10)),
        (covered, planted, range(1)),
    ):  # fmt: skip
        command.add_argument("--cells", nargs="+", default=cells, help=f"patterns of names such as {CELLS[0].name}")
        command.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    for command in (data, truth, check, run, covered):
        command.add_argument("--data-dir", help="where covtype.npz, winequality-red.csv and heart-disease/ are")
    add_natural(commands)
    given = parser.parse_args()
    does = {
        "data": _data, "truth": _truth, "check": _check, "run": _run, "coverage": _coverage, "page": _page,
        "natural": run_natural,
    }  # fmt: skip
    does[given.command](given)


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


def _run(given: argparse.Namespace) -> None:
    scored = read_scored(given.out) if given.out.is_file() else {}
    tasks = []
    for cell in chosen_cells(given.cells):
        for method in given.methods:
            for epsilon in [0.0] if method == AVERAGING else given.epsilons:
                keys = ((cell.name, seed, method, epsilon) for seed in given.seeds)
                tasks += [CellTask(*key, str(given.data_dir), str(given.truths), given.intervals) for key in keys]
    tasks = [task for task in tasks if task.key not in scored or (task.intervals and not scored[task.key].intervals)]
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(given.workers, maxtasksperchild=50) as pool:
        for number, done in enumerate(pool.imap_unordered(work, tasks), start=1):
            scored[done.key] = done
            late = given.seconds is not None and time.perf_counter() - began > given.seconds
            if number % 100 == 0 or number == len(tasks) or late:
                write_scored(scored, given.out)
                _say(f"{number} of {len(tasks)} in {time.perf_counter() - began:.0f} s")
            if late:
                pool.terminate()
                return


def _coverage(given: argparse.Namespace) -> None:
    found = read_coverage(given.out) if given.out.is_file() else []
    sizes = [len(part) for part in np.array_split(np.arange(given.draws), min(given.workers, given.draws))]
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for cell in chosen_cells(given.cells):
            for seed in given.seeds:
                for epsilon in given.epsilons:
                    problem = make_problem(cell, seed, given.data_dir)
                    parts = pool.starmap(draw, [(problem, epsilon, size, part) for part, size in enumerate(sizes)])
                    found.append(coverage(problem, epsilon, parts))
                    write_coverage(found, given.out)
                    _say(str(found[-1]))


def _page(given: argparse.Namespace) -> None:
    covered = read_coverage(COVERAGE) if COVERAGE.is_file() else []
    write_page(read_scored(OUTCOMES), covered, read_truths(TRUTHS), given.out)
    _say(f"{given.out / 'consortium.md'}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
