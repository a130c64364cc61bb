"""Which reading of the paper, and which learning rate, comes nearest to its numbers: on rows that no trial sees.

Every trial of a sweep is one split in one reading at one rate. What is nearest is called fitted, and is what tables
show as that; beside it they show the rate that public rows alone would choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from dpvalue.experiments.paper.agreement import COUNTED, Cells, agreement, cell_number, each_cell
from dpvalue.experiments.paper.federated import round_rate
from dpvalue.experiments.paper.labels import (
    COVERTYPE,
    MNIST,
    PAPER_CELLS,
    QUICK_K,
    WALKED,
    K,
    LabelTask,
    aucs,
    known_auc,
    no_check,
    or_nan,
)
from dpvalue.experiments.paper.methods import IID, PaperOutcome, no_dp, paper_rate
from dpvalue.experiments.paper.pages import markdown, mean_and_error, plotted, save_figure
from dpvalue.experiments.paper.problem import CHOICES
from dpvalue.experiments.paper.readings import AS_PRINTED, AS_RUN, PaperReading
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale, first_of
from dpvalue.experiments.paper.use_cases import CASES, Case, Split, drawn, products, walked
from dpvalue.experiments.paper.valuing import ValuationSpec, run_together

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
RULES = {"none": "without noise", "paper": "with noise"}
"""The noise that a rate is searched for, and what it is called."""


@dataclass(frozen=True)
class Sweep:
    """What is tried, and what it is compared with.

    Attributes:
        readings: those that are tried.
        rates: at each of these.
        paper: the cells to come near to.
        split: makes the problem of a split in a reading, and says how it is run.
        find: values splits, by number; returns rows of numbers for each, those of the paper among them.
        rules: the rates that public rows would choose for a split, by name.
    """

    readings: tuple[PaperReading, ...]
    rates: tuple[float, ...]
    paper: Cells
    split: Callable[[TrialScale, int, PaperReading], Split]
    find: Callable[[TrialScale, dict[int, Split]], dict[int, Table]]
    rules: Callable[[TrialScale, Split], dict[str, float]]

    def trials(self, scale: TrialScale, numbers: Sequence[int]) -> list[Trial]:
        """Try readings at rates on splits, one a number; for the first split, say what public rows would choose."""
        places = {number: divmod(number, len(self.readings) * len(self.rates)) for number in numbers}
        splits, rules = {}, {}
        for number, (split, place) in places.items():
            reading, rate = self.readings[place // len(self.rates)], self.rates[place % len(self.rates)]
            here = self.split(scale, split, reading)
            splits[number] = replace(here, reading=reading.at(rate))
            if rate == self.rates[0] and split == 0:
                rules[number] = {"rules": self.rules(scale, here)}
        found = self.find(scale, splits)
        return [
            {
                "reading": splits[number].reading.name,
                "split": split,
                "rate": f"{splits[number].reading.rate:g}",
                "found": found[number],
                **rules.get(number, {}),
            }
            for number, (split, _) in places.items()
        ]

    def show(self, trials: list[Trial], path: Path) -> str:
        """Return the tables, by reading and rate; draw how far each is from the paper."""
        figure, axes = plotted(width=6.0)
        found, best = self.means(trials), self.fitted(trials)
        columns = list(dict.fromkeys(column for row in next(iter(found.values())).values() for column in row))
        rows = []
        for (reading, rate), table in found.items():
            for row, cells in table.items():
                shown = ["-" if column not in cells else mean_and_error(cells[column]) for column in columns]
                gain = mean_and_error(np.subtract(cells[columns[-1]], cells[IID.name]).tolist())
                near = self.near(table, (reading, rate) == best) if row == next(iter(table)) else ["", ""]
                rows.append([reading, rate, row, *shown, gain, *near])
        for reading in dict.fromkeys(name for name, _ in found):
            gaps = {float(rate): self.gap(table) for (name, rate), table in found.items() if name == reading}
            axes[0, 0].plot(list(gaps), list(gaps.values()), marker="o", label=reading)
        axes[0, 0].set(xscale="log", xlabel="learning rate", ylabel="mean distance to the paper's cells")
        tried = sorted({float(rate) for _, rate in found})
        axes[0, 0].set_xticks(tried, [f"{rate:g}" for rate in tried])
        axes[0, 0].set_xticks([], minor=True)
        axes[0, 0].legend(fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        save_figure(figure, path)
        chosen = [
            [trial["reading"], *(f"{rate:.2g}" for rate in trial["rules"].values())]
            for trial in trials
            if "rules" in trial
        ]
        head = [
            "reading",
            "rate",
            "",
            *columns,
            f"{columns[-1]} - {IID.name}",
            "mean distance to the paper",
            COUNTED[1],
        ]
        rules = markdown(["reading", *(f"rate, {name}" for name in trials[0]["rules"])], chosen)
        return f"{markdown(head, rows)}\nWhat public rows alone would choose, on the first split:\n\n{rules}"

    def means(self, trials: list[Trial]) -> dict[tuple[str, str], dict[str, dict[str, list[float]]]]:
        """Return, for each reading and rate, the numbers of all splits by row and column."""
        found: dict[tuple[str, str], dict[str, dict[str, list[float]]]] = {}
        for trial in trials:
            here = found.setdefault((trial["reading"], trial["rate"]), {})
            for row, cells in trial["found"].items():
                for column, value in cells.items():
                    here.setdefault(row, {}).setdefault(column, []).append(or_nan(value))
        return found

    def near(self, table: dict[str, dict[str, list[float]]], best: bool) -> list[str]:
        """Return, as cells of a page, how far the numbers are from the paper's, and how many are within 0.05 of it."""
        counted = agreement(self.paper, self._ours(table)).cells()[1]
        return [f"{self.gap(table):.3f}" + (" (fitted)" if best else ""), counted]

    def gap(self, table: dict[str, dict[str, list[float]]]) -> float:
        """Return the mean distance of cells to those of the paper; infinite where something diverged."""
        ours = self._ours(table)
        gaps = [abs(ours[row][name] - cell_number(cell)[0]) for row, name, cell in each_cell(self.paper)]
        return float(np.mean(gaps)) if np.isfinite(gaps).all() else float("inf")

    def _ours(self, table: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
        """The means over splits in the place of the paper's cells."""
        ours: dict[str, dict[str, float]] = {row: {} for row in self.paper}
        for row, name, _ in each_cell(self.paper):
            ours[row][name] = float(np.mean(table[row][name]))
        return ours

    def fitted(self, trials: list[Trial]) -> tuple[str, str]:
        """Return the reading and the rate that are nearest to the paper."""
        found = self.means(trials)
        return min(found, key=lambda key: self.gap(found[key]))


def _labels(task: LabelTask, readings: tuple[PaperReading, ...], rates: tuple[float, ...]) -> Sweep:
    """Return the sweep of a table of semivalues."""
    methods = [no_dp(200), IID, *(task.correlated(q) for q in (0.0, 0.5, 0.9))]

    def size(scale: TrialScale) -> int:
        return QUICK_K if scale.quick else K

    def find(scale: TrialScale, splits: dict[int, Split]) -> dict[int, Table]:
        found = run_together(
            {
                number: ValuationSpec(
                    methods, one.problem, size(scale), semivalues=WALKED,
                    settings={**one.settings, "reading": one.reading},
                )
                for number, one in splits.items()
            }
        )  # fmt: skip
        return {number: table(one, found[number]) for number, one in splits.items()}

    def table(split: Split, found: dict[str, PaperOutcome]) -> Table:
        scores = {name: aucs(one.values, split.problem.changed) for name, one in found.items()}
        return {
            printed: {name: kinds[split.reading.kind(printed)] for name, kinds in scores.items()}
            for printed in PAPER_CELLS[task.data]
        }

    def rules(scale: TrialScale, split: Split) -> dict[str, float]:
        own = {**split.settings, "reading": split.reading}
        return {name: paper_rate(noise, split.problem, size(scale), **own) for noise, name in RULES.items()}

    def split(scale: TrialScale, number: int, reading: PaperReading) -> Split:
        problem = reading.scaled(task.problem(scale, number, CHOICES))
        return Split(problem, reading, task.settings(scale, number))

    return Sweep(readings, rates, PAPER_CELLS[task.data], split, find, rules)


def _case(case: Case, readings: tuple[PaperReading, ...], rates: tuple[float, ...], orders: int | None = None) -> Sweep:
    """Return the sweep of a use case; `orders` value a round of a federation instead of the case's own number."""

    def split(scale: TrialScale, number: int, reading: PaperReading) -> Split:
        problem, settings = drawn(case.sized(scale.quick), scale, number, CHOICES)
        return Split(case.scaled(problem, reading), reading, settings)

    def find(scale: TrialScale, splits: dict[int, Split]) -> dict[int, Table]:
        here = case.sized(scale.quick)
        with products(here):
            found = walked(here, splits, orders)
        return {number: table(one, found[number]) for number, one in splits.items()}

    def table(split: Split, found: dict[str, PaperOutcome]) -> Table:
        scores = {name: known_auc(one.values["shapley"], split.problem.changed) for name, one in found.items()}
        quiet = or_nan(scores["no DP"])
        lost = {name: quiet - or_nan(score) for name, score in scores.items() if name != "no DP"}
        return {"AUC": scores, "lost": {name: None if np.isnan(one) else one for name, one in lost.items()}}

    def rules(scale: TrialScale, split: Split) -> dict[str, float]:
        here, search = case.sized(scale.quick), round_rate if case.orders else paper_rate
        own = {**split.settings, "reading": split.reading}
        with products(here):
            return {name: search(noise, split.problem, here.k, here.epsilon, **own) for noise, name in RULES.items()}

    return Sweep(readings, rates, case.cells, split, find, rules)


def _experiment(
    name: str, title: str, data: str, sweep: Sweep, splits: int, minutes: str, weights: tuple[str, ...] = (),
    shares: bool = False,
) -> Experiment:  # fmt: skip
    """Return a sweep over some splits; `shares` says whether its walks can be taken side by side."""
    return Experiment(
        name=f"{name}-rates",
        title=f"{title}: readings and learning rates, on rows that no trial sees",
        data=(data,),
        trials=splits * len(sweep.readings) * len(sweep.rates),
        minutes=minutes,
        trial=partial(first_of, sweep.trials),
        show=sweep.show,
        check=no_check,
        weights=weights,
        together=sweep.trials if shares else None,
    )


def _few(case: Case) -> Case:
    """Return a case on CIFAR-10 with fewer parties, as two in five of its rows have to do; ResNets take fewer walks."""
    return replace(case, n=70, k=case.k if case.model == "cnn" else 200)


_LOOSE = tuple(one for one in CANDIDATES if not one.binds)
_CLIPS = tuple(replace(one, name=one.name.split(",")[0]) for one in CANDIDATES if not one.standardised)
SWEEPS = {
    "semivalues": _labels(COVERTYPE, (COVERTYPE.run,), (0.005, 0.01, 0.02, 0.03, 0.05)),
    "semivalues-mnist": _labels(MNIST, (MNIST.run,), (0.015, 0.02, 0.03)),
    "sets-mnist": _case(CASES["sets-mnist"], CANDIDATES, (0.005, 0.01, 0.02, 0.04)),
    "sets-cifar10": _case(_few(CASES["sets-cifar10"]), CANDIDATES, (0.002, 0.004, 0.008)),
    "sets-resnet18": _case(_few(CASES["sets-resnet18"]), _CLIPS, (0.001, 0.003)),
    "federated-mnist": _case(replace(CASES["federated-mnist"], spare=0), _LOOSE, (0.1, 0.12, 0.15)),
    # Ten permutations a round: those of the paper, a hundred, would take ten times as long.
    "federated-cifar10": _case(replace(CASES["federated-cifar10"], spare=0), CANDIDATES, (0.01, 0.03, 0.1, 0.3), 10),
}
ONE_BY_ONE = _labels(replace(MNIST, block=1), (MNIST.run,), (0.02, 0.03, 0.04, 0.06))
"""Whether the blocks of the table matter: the same walk by walk, at larger rates, as it finds more at small ones."""
SPLITS = {"sets-mnist": 1, "sets-cifar10": 3, "sets-resnet18": 1, "federated-mnist": 5, "federated-cifar10": 5}
RATES = (
    _experiment("semivalues", "Covertype, logistic", "covertype", SWEEPS["semivalues"], 2, "10"),
    _experiment("semivalues-mnist", "MNIST, CNN, blocks of 50", "mnist", SWEEPS["semivalues-mnist"], 1, "2 (GPU)"),
    _experiment(
        "semivalues-mnist-one-by-one", "MNIST, CNN, walk by walk", "mnist", ONE_BY_ONE, 2, "4 (GPU)", shares=True
    ),
    *(
        _experiment(
            name, CASES[name].title, CASES[name].data, SWEEPS[name], splits, "5 (GPU)",
            () if CASES[name].model == "cnn" else (CASES[name].model,), CASES[name].shares,
        )
        for name, splits in SPLITS.items()
    ),
)  # fmt: skip
