"""Tables of AUC for finding changed labels: semivalues and leave-one-out, in every reading of the paper.

30% of the labels of 800 points are changed at random; k = 1000; Covertype with logistic regression, MNIST with a CNN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.detection import auc
from dpvalue.engine.engines import Local
from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.agreement import COUNTED, Cells, PaperAgreement, agreement, cell_number
from dpvalue.experiments.paper.methods import (
    DEFAULT_EQUAL,
    DEFAULT_HONEST,
    IID,
    NO_DP,
    PaperMethod,
    PaperOutcome,
    running_mean,
)
from dpvalue.experiments.paper.pages import markdown, mean_and_error, plotted, said_spent, save_figure
from dpvalue.experiments.paper.problem import TRIALS, PaperProblem, make_problem
from dpvalue.experiments.paper.readings import AS_PRINTED, AS_RUN, PaperReading
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale
from dpvalue.experiments.paper.valuing import run_methods

ROWS, PUBLIC, SHARE, K = 800, 1000, 0.3, 1000
QUICK_ROWS, QUICK_PUBLIC, QUICK_K = 100, 300, 60
SEMIVALUES = ("shapley", "banzhaf", "beta(4,1)", "beta(16,1)")
NAMES = {"shapley": "Shapley", "banzhaf": "Banzhaf", "beta(4,1)": "Beta(4,1)", "beta(16,1)": "Beta(16,1)", "loo": "LOO"}
WALKED = (*SEMIVALUES, "beta(1,4)", "beta(1,16)", "loo")
"""What is valued, for all readings of Beta."""


@dataclass(frozen=True)
class LabelTask:
    """A data set with its model, and how the paper may have run it.

    `block` walks of X* and Y* advance together, and `default_walks` limits those of the library's default. `run` is the
    second reading, at the rate of the public rule; `fitted` is the rate at which it is nearest to the paper on rows
    that no trial sees (`sweeps`).
    """

    data: str
    model: str
    run: PaperReading
    fitted: float
    block: int = 1
    default_walks: int | None = None

    @property
    def readings(self) -> tuple[PaperReading, ...]:
        """The readings of a table: as printed, and the second one at both rates."""
        return AS_PRINTED, self.run, self.run.at(self.fitted, f"{self.run.name}, fitted rate")

    @property
    def shown(self) -> PaperReading:
        """The reading of figures: the one that is nearest to the paper."""
        return self.readings[-1]

    def problem(self, scale: TrialScale, number: int, of: str = TRIALS) -> PaperProblem:
        """Return the split of a trial."""
        rows, public = (QUICK_ROWS, QUICK_PUBLIC) if scale.quick else (ROWS, PUBLIC)
        return make_problem(self.data, scale.data, rows, public, number, SHARE, of)

    def settings(self, scale: TrialScale, number: int) -> dict[str, Any]:
        """Return how the paper's methods are run in a trial."""
        return {"model": self.model, "engine": Local(device=scale.device), "seed": number}

    def correlated(self, burn_in: float, noise: str = "paper") -> PaperMethod:
        """Return X* or Y* as it is walked here."""
        return running_mean(burn_in, self.block, noise)


COVERTYPE = LabelTask("covertype", "logistic", replace(AS_RUN, binds=True), 0.01)
MNIST = LabelTask("mnist", "cnn", AS_RUN, 0.02, block=50, default_walks=200)


def paper_methods(task: LabelTask) -> list[PaperMethod]:
    """Return the paper's columns; without DP as many walks as with it."""
    return [NO_DP, IID, *(task.correlated(q) for q in (0.0, 0.3, 0.5, 0.9))]


def our_methods(task: LabelTask) -> list[PaperMethod]:
    """Return the columns at equal noise and at an honest epsilon: the library's default, and the paper's Y*."""
    equal, ours = (replace(one, walks=task.default_walks) for one in (DEFAULT_EQUAL, DEFAULT_HONEST))
    return [equal, task.correlated(0.9, "honest"), ours]


def trial(task: LabelTask, scale: TrialScale, number: int) -> Trial:
    """Value one split by every method, the paper's in every reading; return the AUCs."""
    problem, k = task.problem(scale, number), QUICK_K if scale.quick else K
    settings = task.settings(scale, number)
    found: dict[str, dict[str, PaperOutcome]] = {}
    for reading in task.readings:
        first = found.get(AS_PRINTED.name, {})
        known = first if reading.walks_like(AS_PRINTED) else {}
        if reading.rate is None:  # without noise nothing but the rate matters
            known = {**{name: first[name] for name in first if name == NO_DP.name}, **known}
        rest = [one for one in paper_methods(task) if one.name not in known]
        walked = run_methods(rest, problem, k, reading=reading, semivalues=WALKED, **settings)
        found[reading.name] = {one.name: {**walked, **known}[one.name] for one in paper_methods(task)}
    ours = run_methods(our_methods(task), problem, k, semivalues=WALKED, **settings)
    return {
        "readings": {name: scored(outcomes, problem) for name, outcomes in found.items()},
        "methods": scored(ours, problem),
    }


def scored(found: dict[str, PaperOutcome], problem: PaperProblem) -> dict[str, Any]:
    """Return the AUCs of each method, and what it cost."""
    return {name: {"auc": aucs(one.values, problem.changed), **one.cost} for name, one in found.items()}


def aucs(values: dict[str, Any], changed: Any) -> dict[str, float | None]:
    """Return the AUC of each semivalue."""
    return {kind: known_auc(found, changed) for kind, found in values.items()}


def known_auc(values: Any, changed: Any) -> float | None:
    """The AUC over the parties that have a value at all."""
    known = np.isfinite(values)
    return auc(values[known], changed[known]) if 0 < changed[known].sum() < known.sum() else None


def no_check(trials: list[Trial], quick: bool) -> None:
    """Accept all: the table is shown as it is."""


def show_table(task: LabelTask, paper: Cells, trials: list[Trial], path: Path) -> str:
    """Return the table: for each semivalue the paper's numbers, then each reading's; how far they agree; a figure."""
    columns, ours = list(next(iter(paper.values()))), list(trials[0]["methods"])
    rows = []
    for kind, cells in paper.items():
        rows.append([f"{NAMES[kind]}, paper", *cells.values(), *[""] * len(ours)])
        for reading in task.readings:
            found = [mean_and_error(_of(trials, reading, name, kind)) for name in columns]
            default = [mean_and_error(_ours(trials, name, kind)) for name in ours]
            rows.append(
                [f"{NAMES[kind]}, {reading.name}", *found, *(default if reading == AS_PRINTED else [""] * len(ours))]
            )
    for reading in task.readings:
        one = trials[0]["readings"][reading.name]
        rows.append([f"really spent, {reading.name}", *(said_spent(one[name]) for name in columns), *[""] * len(ours)])
    rows.append(["really spent", *[""] * len(columns), *(said_spent(trials[0]["methods"][name]) for name in ours)])
    for reading in task.readings:
        rates = [_rates(trials, reading, name) for name in columns]
        rows.append([f"learning rate, {reading.name}", *rates, *[""] * len(ours)])
    _bars(task, paper, trials, path)
    counted = [[reading.name, *agreement_of(paper, trials, reading).cells()] for reading in task.readings]
    return f"{markdown(['', *columns, *ours], rows)}\n{markdown(['agreement with the paper', *COUNTED], counted)}"


def _rates(trials: list[Trial], reading: PaperReading, name: str) -> str:
    """The learning rates of a method in all trials, from the least to the largest."""
    found = sorted({f"{one['readings'][reading.name][name]['learning_rate']:.2g}" for one in trials}, key=float)
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _bars(task: LabelTask, paper: Cells, trials: list[Trial], path: Path) -> None:
    """Draw the paper's numbers beside those of each reading, a panel for each semivalue."""
    columns = list(next(iter(paper.values())))
    figure, axes = plotted(len(paper), width=4.6)
    width = 0.8 / (1 + len(task.readings))
    for panel, (kind, cells) in zip(axes[0], paper.items(), strict=True):
        bars = {"paper": [cell_number(cell)[0] for cell in cells.values()]}
        for reading in task.readings:
            bars[reading.name] = [float(np.mean(_of(trials, reading, name, kind))) for name in columns]
        for place, (name, heights) in enumerate(bars.items()):
            panel.bar(np.arange(len(columns)) + place * width, heights, width, label=name)
        panel.set_xticks(np.arange(len(columns)) + 0.3, columns, fontsize="small", rotation=20)
        panel.set(ylabel="AUC", ylim=(0.3, 1.4), title=NAMES[kind])
        panel.set_yticks(np.arange(0.3, 1.05, 0.1))
    axes[0, 0].legend(fontsize="small", loc="upper left")
    save_figure(figure, path)


def _of(trials: list[Trial], reading: PaperReading, name: str, printed: str) -> list[float]:
    """The AUCs of a method for what the paper prints as this semivalue, in a reading."""
    return _known(one["readings"][reading.name][name]["auc"][reading.kind(printed)] for one in trials)


def _ours(trials: list[Trial], name: str, kind: str) -> list[float]:
    return _known(one["methods"][name]["auc"][kind] for one in trials)


def _known(scores: Iterable[float | None]) -> list[float]:
    return [float(score) for score in scores if score is not None] or [float("nan")]


def agreement_of(paper: Cells, trials: list[Trial], reading: PaperReading) -> PaperAgreement:
    """Return how far a reading agrees with the paper."""
    ours = {
        kind: {name: float(np.mean(_of(trials, reading, name, kind))) for name in cells}
        for kind, cells in paper.items()
    }
    return agreement(paper, ours)


def or_nan(score: float | None) -> float:
    """Return an AUC, NaN where there is none."""
    return float("nan") if score is None else score


def check_order(task: LabelTask, trials: list[Trial], quick: bool) -> None:
    """Raise unless correlated noise beats i.i.d. noise, and our default is at least as good at equal noise."""
    best, reading = "Y* q=0.9", task.shown
    mean = {name: float(np.mean(_of(trials, reading, name, "shapley"))) for name in ("no DP", "i.i.d.", best)}
    mean["ours"] = float(np.mean(_ours(trials, DEFAULT_EQUAL.name, "shapley")))
    room = 0.05 if quick else 0.02
    for better, worse, less in (("no DP", best, room), (best, "i.i.d.", 0.0), ("ours", best, room)):
        if mean[better] < mean[worse] - less:
            raise DpvalueError(f"{better} has an AUC of {mean[better]:.3f}, below {worse} with {mean[worse]:.3f}")


def check_agreement(task: LabelTask, paper: Cells, trials: list[Trial], quick: bool) -> None:
    """Raise unless the fitted reading has most cells within 0.05 of the paper, all within 0.08, most rows in order."""
    check_order(task, trials, quick)
    found = agreement_of(paper, trials, task.shown)
    for gap, share in () if quick else ((0.05, 0.75), (0.08, 1.0)):
        if found.within[gap] < share * found.cells_in_all:
            raise DpvalueError(f"{found.within[gap]} of {found.cells_in_all} cells are within {gap} of the paper")
    if not quick and found.rows_in_order < found.rows_in_all - 1:
        raise DpvalueError(f"{found.rows_in_order} of {found.rows_in_all} rows have the paper's order")


PAPER_COVERTYPE: dict[str, tuple[str, ...]] = {
    "shapley": ("0.905 (.001)", "0.675 (.006)", "0.735 (.020)", "0.774 (.008)", "0.788 (.004)"),
    "banzhaf": ("0.896 (.002)", "0.533 (.017)", "0.725 (.020)", "0.770 (.008)", "0.777 (.004)"),
    "beta(4,1)": ("0.882 (.001)", "0.612 (.014)", "0.721 (.021)", "0.766 (.008)", "0.777 (.004)"),
    "beta(16,1)": ("0.875 (.000)", "0.557 (.024)", "0.707 (.020)", "0.757 (.008)", "0.767 (.005)"),
}
PAPER_MNIST: dict[str, tuple[str, ...]] = {
    "shapley": ("0.988 (.000)", "0.600 (.015)", "0.627 (.023)", "0.803 (.004)", "0.828 (.006)"),
    "banzhaf": ("0.985 (.001)", "0.532 (.020)", "0.616 (.023)", "0.808 (.004)", "0.827 (.007)"),
    "beta(4,1)": ("0.991 (.000)", "0.569 (.015)", "0.618 (.021)", "0.789 (.004)", "0.810 (.007)"),
    "beta(16,1)": ("0.992 (.000)", "0.539 (.010)", "0.615 (.011)", "0.773 (.005)", "0.793 (.009)"),
}
_COLUMNS = ("no DP", "i.i.d.", "X*", "Y* q=0.5", "Y* q=0.9")


def _columns(paper: dict[str, tuple[str, ...]]) -> Cells:
    return {kind: dict(zip(_COLUMNS, numbers, strict=True)) for kind, numbers in paper.items()}


def semivalues_experiment(
    name: str, task: LabelTask, paper: dict[str, tuple[str, ...]], trials: int, minutes: str
) -> Experiment:
    """Return the table "semivalues" of one data set."""
    cells = _columns(paper)
    return Experiment(
        name=name,
        title=f"AUC of semivalues for 30% changed labels, 800 points, k = 1000: {task.data}, {task.model}"
        + ("" if task.block == 1 else f"; X* and Y* in blocks of {task.block}")
        + ("" if task.default_walks is None else "; dpvalue by 200 walks"),
        data=(task.data,),
        trials=trials,
        minutes=minutes,
        trial=partial(trial, task),
        show=partial(show_table, task, cells),
        check=partial(check_agreement, task, cells),
    )


SEMIVALUES_COVERTYPE = semivalues_experiment("semivalues", COVERTYPE, PAPER_COVERTYPE, 5, "20")
SEMIVALUES_MNIST = semivalues_experiment("semivalues-mnist", MNIST, PAPER_MNIST, 5, "10 (GPU)")
PAPER_CELLS = {"covertype": _columns(PAPER_COVERTYPE), "mnist": _columns(PAPER_MNIST)}


_LOO = {
    "covertype": ("0.832", "0.511", "0.659", "0.720", "0.561", "0.311"),
    "mnist": ("0.945", "0.487", "0.552", "0.653", "0.528", "0.305"),
}


def loo_experiment(name: str, task: LabelTask, semivalues: Experiment) -> Experiment:
    """Return the table "semivalues_additional" of one data set: leave-one-out, from the same walks.

    In the paper's schedules it is sampled: only the last party of a permutation counts, and a party that never was last
    has no value (it is left out of the AUC). From a fixed table it is exact.
    """
    columns = ("no DP", "i.i.d.", "X*", "Y* q=0.3", "Y* q=0.5", "Y* q=0.9")
    paper = {"loo": dict(zip(columns, _LOO[task.data], strict=True))}
    return replace(
        semivalues,
        name=name,
        title=f"AUC of leave-one-out, 800 points, k = 1000: {task.data}, from the walks of {semivalues.name}",
        show=partial(show_table, task, paper),
        check=no_check,
        walks=semivalues.name,
    )


LOO_COVERTYPE = loo_experiment("loo", COVERTYPE, SEMIVALUES_COVERTYPE)
LOO_MNIST = loo_experiment("loo-mnist", MNIST, SEMIVALUES_MNIST)
