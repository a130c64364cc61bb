"""`python -m dpvalue.experiments.consortium natural truth | run | tables | page`.

truth     retrains on all coalitions by both kinds of model; what is in the file already is kept
run       values all cells and seeds by each method, at each budget; what is in the file already is kept
tables    prints how methods agree with the truth, for one half
page      writes docs/natural.md, with the tables of both halves
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from dpvalue.experiments.consortium.natural.cells import DEVELOPMENT, HALVES, NATURAL_CELLS, NaturalCell, chosen_natural
from dpvalue.experiments.consortium.natural.methods import METHODS, Budget
from dpvalue.experiments.consortium.natural.page import write_natural_page
from dpvalue.experiments.consortium.natural.problems import make_natural
from dpvalue.experiments.consortium.natural.stored import (
    Said,
    SaidKey,
    TruthKey,
    read_natural_truths,
    read_said,
    write_natural_truths,
    write_said,
)
from dpvalue.experiments.consortium.natural.tables import tables
from dpvalue.experiments.consortium.natural.truth import BOOSTED, LINEAR, SEEDS, NaturalTruth, retrain_natural
from dpvalue.experiments.processes import Processes

RESULTS = Path("benchmarks/results")
TRUTHS, OUTCOMES = (RESULTS / f"natural-{name}.json" for name in ("truth", "outcomes"))
_WRITE_EVERY = 25


@dataclass(frozen=True)
class TruthTask:
    """One problem to retrain by one kind of model."""

    cell: NaturalCell
    seed: int
    model: str
    folder: str | None

    @property
    def key(self) -> TruthKey:
        """What tells it from others."""
        return self.cell.name, self.seed, self.model


@dataclass(frozen=True)
class RunTask:
    """One problem to value by one method at one budget."""

    cell: NaturalCell
    seed: int
    method: str
    budget: Budget
    folder: str | None

    @property
    def key(self) -> SaidKey:
        """What tells it from others."""
        return self.cell.name, self.seed, self.method, self.budget.epsilon, self.budget.divisor


def add_natural(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and what it can do."""
    natural = commands.add_parser("natural", help="parties that differ in who their records are")
    what = natural.add_subparsers(dest="what", required=True)
    truth = what.add_parser("truth", help="retrain on all coalitions; what is in the file already is kept")
    truth.add_argument("--out", type=Path, default=TRUTHS)
    truth.add_argument("--models", nargs="+", choices=tuple(SEEDS), default=list(SEEDS))
    run = what.add_parser("run", help="value all problems; what is in the file already is kept")
    run.add_argument("--out", type=Path, default=OUTCOMES)
    shown = what.add_parser("tables", help="print how methods agree with retraining")
    page = what.add_parser("page", help="write the page")
    page.add_argument("--folder", type=Path, default=Path("docs"))
    for command in (shown, page):
        command.add_argument("--outcomes", type=Path, default=OUTCOMES)
        command.add_argument("--truths", type=Path, default=TRUTHS)
    for command in (run, shown):
        command.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=list(METHODS))
    for command, half in ((truth, None), (run, None), (shown, DEVELOPMENT)):
        command.add_argument("--cells", nargs="+", default=["*"], help=f"patterns like {NATURAL_CELLS[0].name}")
        command.add_argument("--half", choices=HALVES, default=half, help=f"by default {half or 'both'}")
    for command in (truth, run):
        command.add_argument("--seeds", nargs="+", type=int, help="by default all that the benchmark has")
        command.add_argument("--workers", type=int, default=2)
        command.add_argument("--data-dir", help="where covtype.npz, mnist.npz, the wine and the hospitals are")


def run_natural(given: argparse.Namespace) -> None:
    """Do what the command line says."""
    {"truth": _truth, "run": _run, "tables": _tables, "page": _page}[given.what](given)


def _truth(given: argparse.Namespace) -> None:
    known = read_natural_truths(given.out) if given.out.is_file() else {}
    tasks = [task for task in truth_tasks(given) if task.key not in known]
    for number, made in enumerate(Processes(processes=given.workers).tasks(retrain_task, tasks), start=1):
        known[made.key] = made
        write_natural_truths(known, given.out)
        _say(f"{number} of {len(tasks)}: {made.cell}, seed {made.seed}, {made.model}: {made.seconds:.1f} s")


def _run(given: argparse.Namespace) -> None:
    known = read_said(given.out) if given.out.is_file() else {}
    tasks = [task for task in run_tasks(given) if task.key not in known]
    began = time.perf_counter()
    for number, made in enumerate(Processes(processes=given.workers).tasks(value_task, tasks), start=1):
        known[made.key] = made
        if number % _WRITE_EVERY == 0 or number == len(tasks):
            write_said(known, given.out)
            _say(f"{number} of {len(tasks)} in {time.perf_counter() - began:.0f} s: {made.cell}, {made.method}")


def _tables(given: argparse.Namespace) -> None:
    said = [one for one in read_said(given.outcomes).values() if one.method in given.methods]
    _say(tables(chosen_natural(given.cells, given.half), said, read_natural_truths(given.truths)))


def _page(given: argparse.Namespace) -> None:
    write_natural_page(read_said(given.outcomes).values(), read_natural_truths(given.truths), given.folder)
    _say(f"{given.folder / 'natural.md'}")


def truth_tasks(given: argparse.Namespace) -> list[TruthTask]:
    """Return what is to be retrained, development before judging."""
    tasks = [
        TruthTask(cell, seed, model, given.data_dir)
        for cell in chosen_natural(given.cells, given.half)
        for model in given.models
        if model == LINEAR or cell.boosted
        for seed in (range(SEEDS[model]) if given.seeds is None else given.seeds)
    ]
    return sorted(tasks, key=_turn)


def run_tasks(given: argparse.Namespace) -> list[RunTask]:
    """Return what is to be valued, development before judging."""
    tasks = [
        RunTask(cell, seed, name, budget, given.data_dir)
        for cell in chosen_natural(given.cells, given.half)
        for name in given.methods
        if METHODS[name].applies(cell)
        for budget in METHODS[name].budgets
        for seed in (range(budget.seeds) if given.seeds is None else given.seeds)
    ]
    return sorted(tasks, key=_turn)


def _turn(task: TruthTask | RunTask) -> tuple[bool, bool, bool, int]:
    """Development before judging, first the seeds that all have, twelve parties last, seed after seed."""
    return task.cell.half != DEVELOPMENT, task.seed >= SEEDS[BOOSTED], task.cell.n > 10, task.seed


def retrain_task(task: TruthTask) -> NaturalTruth:
    """Retrain one problem."""
    return retrain_natural(make_natural(task.cell, task.seed, task.folder), task.model)


def value_task(task: RunTask) -> Said:
    """Value one problem; the seed of noise is that of the problem."""
    problem = make_natural(task.cell, task.seed, task.folder)
    began = time.perf_counter()
    values = METHODS[task.method].value(problem, task.budget, task.seed)
    seconds = round(time.perf_counter() - began, 2)
    return Said(*task.key, problem.fingerprint(), values.shapley.tolist(), values.loo.tolist(), seconds)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
