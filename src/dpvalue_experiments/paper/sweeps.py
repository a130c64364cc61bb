"""Which reading of the paper, and which learning rate, comes nearest to its numbers: on rows that no trial sees.

Every trial of a sweep is one split in one reading at one rate. What is nearest is called fitted, and is what tables
show as that; beside it they show the rate that public rows alone would choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue_experiments.paper.agreement import Cells, number
from dpvalue_experiments.paper.federated import round_rate
from dpvalue_experiments.paper.labels import (
    COVERTYPE,
    MNIST,
    PAPER_CELLS,
    QUICK_K,
    WALKED,
    K,
    Task,
    aucs,
    known_auc,
    no_check,
    or_nan,
)
from dpvalue_experiments.paper.methods import IID, no_dp, paper_rate, run_methods
from dpvalue_experiments.paper.pages import markdown, mean_and_error, plotted, save_figure
from dpvalue_experiments.paper.problem import CHOICES, Problem
from dpvalue_experiments.paper.readings import AS_PRINTED, AS_RUN, Reading
from dpvalue_experiments.paper.trials import Experiment, Scale, Trial
from dpvalue_experiments.paper.use_cases import CASES, Case, drawn, products, walked

Table = dict[str, dict[str, float | None]]
"""Row, column, number."""

CANDIDATES = tuple(
    replace(
        reading,
        name=f"{'clipped to 1' if reading.binds else 'no clip binds'}, pixels {'standardised' if scaled else '0 to 1'}",
        standardised=scaled,
    )
    for reading in (AS_PRINTED, AS_RUN)
    for scaled in (False, True)
)
ORDERS = 10


@dataclass(frozen=True)
class Sweep:
    """What is tried, and what it is compared with.

    Attributes:
        readings: those that are tried.
        rates: at each of these.
        paper: the cells to come near to.
        split: makes the problem of a split, in a reading, and how it is run.
        find: values a problem in a reading at its rate; returns rows of numbers, those of the paper among them.
        rules: the rates that public rows would choose, by name.
    """

    readings: tuple[Reading, ...]
    rates: tuple[float, ...]
    paper: Cells
    split: Callable[[Scale, int, Reading], tuple[Problem, dict[str, Any]]]
    find: Callable[[Scale, Problem, dict[str, Any], Reading], Table]
    rules: Callable[[Scale, Problem, dict[str, Any], Reading], dict[str, float]]

    def trial(self, scale: Scale, number: int) -> Trial:
        """Try one reading at one rate on one split; at the first rate, say what public rows would choose, too."""
        split, place = divmod(number, len(self.readings) * len(self.rates))
        reading, rate = self.readings[place // len(self.rates)], self.rates[place % len(self.rates)]
        problem, settings = self.split(scale, split, reading)
        first = rate == self.rates[0]
        return {
            "reading": reading.name,
            "split": split,
            "rate": f"{rate:g}",
            "found": self.find(scale, problem, settings, reading.at(rate)),
            **({"rules": self.rules(scale, problem, settings, reading)} if first else {}),
        }

    def show(self, trials: list[Trial], path: Path) -> str:
        """Return the tables, by reading and rate; draw how far each is from the paper."""
        figure, axes = plotted(width=6.0)
        found, best = self.means(trials), self.fitted(trials)
        columns = list(dict.fromkeys(column for row in next(iter(found.values())).values() for column in row))
        rows = []
        for (reading, rate), table in found.items():
            for row, cells in table.items():
                shown = ["-" if column not in cells else mean_and_error(cells[column]) for column in columns]
                gap = f"{self.gap(table):.3f}" + (" (fitted)" if (reading, rate) == best else "")
                gain = mean_and_error(np.subtract(cells[columns[-1]], cells[IID.name]).tolist())
                rows.append([reading, rate, row, *shown, gain, gap if row == next(iter(table)) else ""])
        for reading in dict.fromkeys(name for name, _ in found):
            gaps = {float(rate): self.gap(table) for (name, rate), table in found.items() if name == reading}
            axes[0, 0].plot(list(gaps), list(gaps.values()), marker="o", label=reading)
        axes[0, 0].set(xscale="log", xlabel="learning rate", ylabel="mean distance to the paper's cells")
        tried = sorted({float(rate) for _, rate in found})
        axes[0, 0].set_xticks(tried, [f"{rate:g}" for rate in tried])
        axes[0, 0].set_xticks([], minor=True)
        axes[0, 0].legend(fontsize="small")
        save_figure(figure, path)
        chosen = [
            [trial["reading"], str(trial["split"]), *(f"{rate:.2g}" for rate in trial["rules"].values())]
            for trial in trials
            if "rules" in trial
        ]
        head = ["reading", "rate", "", *columns, f"{columns[-1]} - {IID.name}", "mean distance to the paper"]
        rules = markdown(["reading", "split", *(f"rate, {name}" for name in trials[0]["rules"])], chosen)
        return f"{markdown(head, rows)}\nWhat public rows alone would choose:\n\n{rules}"

    def means(self, trials: list[Trial]) -> dict[tuple[str, str], dict[str, dict[str, list[float]]]]:
        """Return, for each reading and rate, the numbers of all splits by row and column."""
        found: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
        for trial in trials:
            here = found.setdefault((trial["reading"], trial["rate"]), {})
            for row, cells in trial["found"].items():
                for column, value in cells.items():
                    here.setdefault(row, {}).setdefault(column, []).append(or_nan(value))
        return found

    def gap(self, table: dict[str, dict[str, list[float]]]) -> float:
        """Return the mean distance of cells to those of the paper; infinite where something diverged."""
        gaps = [
            abs(float(np.mean(table[row][column])) - number(cell)[0])
            for row, cells in self.paper.items()
            for column, cell in cells.items()
            if column in table[row]
        ]
        return float(np.mean(gaps)) if np.isfinite(gaps).all() else float("inf")

    def fitted(self, trials: list[Trial]) -> tuple[str, str]:
        """Return the reading and the rate that are nearest to the paper."""
        found = self.means(trials)
        return min(found, key=lambda key: self.gap(found[key]))


def _labels(task: Task, readings: tuple[Reading, ...], rates: tuple[float, ...]) -> Sweep:
    """Return the sweep of a table of semivalues, walked in blocks of 50."""
    own = replace(task, block=50)
    methods = [no_dp(200), IID, own.correlated(0.9)]

    def find(scale: Scale, problem: Problem, settings: dict[str, Any], reading: Reading) -> Table:
        k = QUICK_K if scale.quick else K
        found = run_methods(methods, problem, k, reading=reading, semivalues=WALKED, **settings)
        scores = {name: aucs(one.values, problem.changed) for name, one in found.items()}
        return {
            printed: {name: kinds[reading.kind(printed)] for name, kinds in scores.items()}
            for printed in PAPER_CELLS[task.data]
        }

    def rules(scale: Scale, problem: Problem, settings: dict[str, Any], reading: Reading) -> dict[str, float]:
        k = QUICK_K if scale.quick else K
        names = {"none": "without noise", "paper": "with noise"}
        return {name: paper_rate(noise, problem, k, reading=reading, **settings) for noise, name in names.items()}

    def split(scale: Scale, number: int, reading: Reading) -> tuple[Problem, dict[str, Any]]:
        return reading.scaled(task.problem(scale, number, CHOICES)), task.settings(scale, number)

    return Sweep(readings, rates, PAPER_CELLS[task.data], split, find, rules)


def _case(case: Case, readings: tuple[Reading, ...], rates: tuple[float, ...]) -> Sweep:
    """Return the sweep of a use case."""

    def split(scale: Scale, number: int, reading: Reading) -> tuple[Problem, dict[str, Any]]:
        problem, settings = drawn(case.sized(scale.quick), scale, number, CHOICES)
        return case.scaled(problem, reading), settings

    def find(scale: Scale, problem: Problem, settings: dict[str, Any], reading: Reading) -> Table:
        here = case.sized(scale.quick)
        with products(here):
            found = walked(here, problem, reading, settings, ORDERS)
        scores = {name: known_auc(one.values["shapley"], problem.changed) for name, one in found.items()}
        quiet = or_nan(scores["no DP"])
        lost = {name: quiet - or_nan(score) for name, score in scores.items() if name != "no DP"}
        return {"AUC": scores, "lost": {name: None if np.isnan(one) else one for name, one in lost.items()}}

    def rules(scale: Scale, problem: Problem, settings: dict[str, Any], reading: Reading) -> dict[str, float]:
        here, search = case.sized(scale.quick), round_rate if case.orders else paper_rate
        names = {"none": "without noise", "paper": "with noise"}
        with products(here):
            return {
                name: search(noise, problem, here.k, here.epsilon, reading=reading, **settings)
                for noise, name in names.items()
            }

    return Sweep(readings, rates, case.cells, split, find, rules)


def _experiment(
    name: str, title: str, data: str, sweep: Sweep, splits: int, minutes: str, weights: tuple[str, ...] = ()
) -> Experiment:
    return Experiment(
        name=f"{name}-rates",
        title=f"{title}: readings and learning rates, on rows that no trial sees",
        data=(data,),
        trials=splits * len(sweep.readings) * len(sweep.rates),
        minutes=minutes,
        trial=sweep.trial,
        show=sweep.show,
        check=no_check,
        weights=weights,
    )


def _few(case: Case) -> Case:
    """Return a case on CIFAR-10 with fewer parties, as two in five of its rows have to do; ResNets take fewer walks."""
    return replace(case, n=70, k=case.k if case.model == "cnn" else 200)


_CLIPS = tuple(replace(one, name=one.name.split(",")[0]) for one in CANDIDATES if not one.standardised)
SWEEPS = {
    "semivalues": _labels(COVERTYPE, (COVERTYPE.run,), (0.005, 0.01, 0.02, 0.03, 0.05)),
    "semivalues-mnist": _labels(MNIST, (MNIST.run,), (0.01, 0.015, 0.02, 0.03)),
    "sets-mnist": _case(CASES["sets-mnist"], CANDIDATES, (0.005, 0.01, 0.02, 0.04)),
    "sets-cifar10": _case(_few(CASES["sets-cifar10"]), CANDIDATES, (0.003, 0.01, 0.03)),
    "sets-resnet18": _case(_few(CASES["sets-resnet18"]), _CLIPS, (0.001, 0.003)),
    "federated-mnist": _case(replace(CASES["federated-mnist"], spare=0), CANDIDATES, (0.01, 0.03, 0.1, 0.3)),
    "federated-cifar10": _case(replace(CASES["federated-cifar10"], spare=0), CANDIDATES, (0.01, 0.03, 0.1, 0.3)),
}
RATES = (
    _experiment("semivalues", "Covertype, logistic", "covertype", SWEEPS["semivalues"], 2, "10"),
    _experiment("semivalues-mnist", "MNIST, CNN", "mnist", SWEEPS["semivalues-mnist"], 1, "3 (GPU)"),
    *(
        _experiment(
            name, CASES[name].title, CASES[name].data, SWEEPS[name], 5 if CASES[name].orders else 1, "3 (GPU)",
            () if CASES[name].model == "cnn" else (CASES[name].model,),
        )
        for name in SWEEPS
        if name in CASES
    ),
)  # fmt: skip
