"""Tables of AUC for finding changed labels: semivalues, leave-one-out, other budgets, other burn-ins.

30% of the labels of 800 points are changed at random; k = 1000; Covertype with logistic regression, MNIST with a CNN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.planning.detection import auc
from dpvalue_experiments.paper.methods import (
    DEFAULT_EQUAL,
    DEFAULT_HONEST,
    IID,
    NO_DP,
    Method,
    run_methods,
    running_mean,
)
from dpvalue_experiments.paper.pages import band, markdown, mean_and_error, plotted, save_figure
from dpvalue_experiments.paper.problem import Problem, make_problem
from dpvalue_experiments.paper.trials import Experiment, Scale, Trial

ROWS, PUBLIC, SHARE, K = 800, 1000, 0.3, 1000
QUICK_ROWS, QUICK_PUBLIC, QUICK_K = 100, 300, 60
SEMIVALUES = ("shapley", "banzhaf", "beta(4,1)", "beta(16,1)")
NAMES = {"shapley": "Shapley", "banzhaf": "Banzhaf", "beta(4,1)": "Beta(4,1)", "beta(16,1)": "Beta(16,1)", "loo": "LOO"}


@dataclass(frozen=True)
class Task:
    """A data set with its model; pixels are from 0 to 1.

    `block` walks of the CNN advance together, as its steps are dear, and `default_walks` limits those of the library's
    default. With `quiet_rate` the learning rate is that of the best model without noise; the CNN falls apart with that,
    and takes the best one with the noise of k releases' mean.
    """

    data: str
    model: str
    block: int = 1
    quiet_rate: bool = True
    default_walks: int | None = None

    def problem(self, scale: Scale, number: int) -> Problem:
        """Return the split of a trial."""
        rows, public = (QUICK_ROWS, QUICK_PUBLIC) if scale.quick else (ROWS, PUBLIC)
        return make_problem(self.data, scale.data, rows, public, number, SHARE)

    def settings(self, scale: Scale, number: int) -> dict[str, Any]:
        """Return how the paper's methods are run in a trial."""
        engine = Local(device=scale.device)
        return {"model": self.model, "engine": engine, "seed": number, "quiet_rate": self.quiet_rate}

    def correlated(self, burn_in: float, noise: str = "paper") -> Method:
        """Return X* or Y* as it is walked here."""
        return running_mean(burn_in, self.block, noise)


COVERTYPE, MNIST = Task("covertype", "logistic"), Task("mnist", "cnn", 10, quiet_rate=False, default_walks=200)
BLOCKS = Task("covertype", "logistic", block=10)  # where many settings are tried


def methods_of(task: Task) -> list[Method]:
    """Return the columns of a table."""
    correlated = [task.correlated(q) for q in (0.0, 0.3, 0.5, 0.9)]
    honest = task.correlated(0.9, "honest")
    equal, ours = (replace(one, walks=task.default_walks) for one in (DEFAULT_EQUAL, DEFAULT_HONEST))
    return [NO_DP, IID, *correlated, equal, honest, ours]


def trial(
    task: Task, semivalues: tuple[str, ...], methods: list[Method], epsilon: float, scale: Scale, number: int
) -> Trial:
    """Value one split by every method; return the AUCs."""
    problem, k = task.problem(scale, number), QUICK_K if scale.quick else K
    found = run_methods(methods, problem, k, epsilon, semivalues=semivalues, **task.settings(scale, number))
    return {"methods": {name: {"auc": aucs(one.values, problem.changed), **one.cost} for name, one in found.items()}}


def aucs(values: dict[str, Any], changed: Any) -> dict[str, float | None]:
    """Return the AUC of each semivalue."""
    return {kind: known_auc(found, changed) for kind, found in values.items()}


def known_auc(values: Any, changed: Any) -> float | None:
    """The AUC over the parties that have a value at all."""
    known = np.isfinite(values)
    return auc(values[known], changed[known]) if 0 < changed[known].sum() < known.sum() else None


def no_check(trials: list[Trial], quick: bool) -> None:
    """Accept all: the table is shown as it is."""


def show_table(paper: dict[str, dict[str, str]], semivalues: tuple[str, ...], trials: list[Trial], path: Path) -> str:
    """Return the table: the paper's number, then ours, for each semivalue; and a figure of bars."""
    shown = set(next(iter(paper.values())))
    names = [name for name in trials[0]["methods"] if name in shown or "dpvalue" in name or "honest" in name]
    rows = []
    for kind in semivalues:
        rows.append([f"{NAMES[kind]}, paper", *(paper.get(kind, {}).get(name, "") for name in names)])
        rows.append([f"{NAMES[kind]}, ours", *(mean_and_error(_of(trials, name, kind)) for name in names)])
    spent = [trials[0]["methods"][name] for name in names]
    rows.append(["really spent", *("-" if one["epsilon"] is None else f"eps = {one['epsilon']:.3g}" for one in spent)])
    rows.append(["noise", *("-" if one["multiplier"] is None else f"{one['multiplier']:.4g}" for one in spent)])
    figure, axes = plotted(width=8.0)
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        means = [np.mean(_of(trials, name, kind)) for kind in semivalues]
        axes[0, 0].bar(np.arange(len(semivalues)) + place * width, means, width, label=name)
    axes[0, 0].set_xticks(np.arange(len(semivalues)) + 0.4, [NAMES[kind] for kind in semivalues])
    axes[0, 0].set(ylabel="AUC", ylim=(0.3, 1.0))
    axes[0, 0].legend(fontsize="small", ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save_figure(figure, path)
    return markdown(["", *names], rows)


def _of(trials: list[Trial], name: str, kind: str) -> list[float]:
    found = [one["methods"][name]["auc"][kind] for one in trials]
    return [float(score) for score in found if score is not None] or [float("nan")]


def or_nan(score: float | None) -> float:
    """Return an AUC, NaN where there is none."""
    return float("nan") if score is None else score


def check_order(trials: list[Trial], quick: bool) -> None:
    """Raise unless correlated noise beats i.i.d. noise, and our default is at least as good at equal noise."""
    mean = {name: float(np.mean(_of(trials, name, "shapley"))) for name in trials[0]["methods"]}
    best = next(name for name in mean if name.startswith("Y* q=0.9") and "honest" not in name)
    room = 0.05 if quick else 0.02
    for better, worse in (("no DP", best), (best, "i.i.d."), ("dpvalue, equal noise", best)):
        if mean[better] < mean[worse] - (room if better != best else 0.0):
            raise DpvalueError(f"{better} has an AUC of {mean[better]:.3f}, below {worse} with {mean[worse]:.3f}")


def check_agreement(paper: dict[str, dict[str, str]], trials: list[Trial], quick: bool) -> None:
    """Raise unless all of the paper's numbers are met within 0.04, too, at its sizes."""
    check_order(trials, quick)
    for kind, numbers in () if quick else paper.items():
        for name, number in numbers.items():
            ours = float(np.mean(_of(trials, name, kind)))
            if abs(ours - float(number.split()[0])) > 0.04:
                raise DpvalueError(f"{NAMES[kind]}, {name}: an AUC of {ours:.3f}, more than 0.04 from {number}")


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


def _columns(paper: dict[str, tuple[str, ...]]) -> dict[str, dict[str, str]]:
    return {kind: dict(zip(_COLUMNS, numbers, strict=True)) for kind, numbers in paper.items()}


def semivalues_experiment(
    name: str, task: Task, paper: dict[str, tuple[str, ...]], trials: int, minutes: str
) -> Experiment:
    """Return the table "semivalues" of one data set."""
    return Experiment(
        name=name,
        title=f"AUC of semivalues for 30% changed labels, 800 points, k = 1000: {task.data}, {task.model}"
        + ("" if task.block == 1 else f"; X* and Y* in blocks of {task.block}")
        + f"; no DP{'' if task.default_walks is None else ' and dpvalue'} by 200 walks",
        data=(task.data,),
        trials=trials,
        minutes=minutes,
        trial=partial(trial, task, (*SEMIVALUES, "loo"), methods_of(task), 1.0),
        show=partial(show_table, _columns(paper), SEMIVALUES),
        check=check_order,
    )


SEMIVALUES_COVERTYPE = replace(
    semivalues_experiment("semivalues", COVERTYPE, PAPER_COVERTYPE, 5, "10"),
    check=partial(check_agreement, _columns(PAPER_COVERTYPE)),
)
SEMIVALUES_MNIST = semivalues_experiment("semivalues-mnist", MNIST, PAPER_MNIST, 4, "5 (GPU)")


_LOO = {
    "covertype": ("0.832", "0.511", "0.659", "0.720", "0.561", "0.311"),
    "mnist": ("0.945", "0.487", "0.552", "0.653", "0.528", "0.305"),
}


def loo_experiment(name: str, semivalues: Experiment) -> Experiment:
    """Return the table "semivalues_additional" of one data set: leave-one-out, from the same walks.

    In the paper's schedules it is sampled: only the last party of a permutation counts, and a party that never was last
    has no value (it is left out of the AUC). From a fixed table it is exact.
    """
    columns = ("no DP", "i.i.d.", "X*", "Y* q=0.3", "Y* q=0.5", "Y* q=0.9")
    task = semivalues.data[0]
    paper = {"loo": dict(zip(columns, _LOO[task], strict=True))}
    return replace(
        semivalues,
        name=name,
        title=f"AUC of leave-one-out, 800 points, k = 1000: {task}, from the walks of {semivalues.name}",
        show=partial(show_table, paper, ("loo",)),
        check=no_check,
        walks=semivalues.name,
    )


LOO_COVERTYPE = loo_experiment("loo", SEMIVALUES_COVERTYPE)
LOO_MNIST = loo_experiment("loo-mnist", SEMIVALUES_MNIST)

EPSILONS = (0.1, 1.0, 10.0)


def epsilon_trial(task: Task, scale: Scale, number: int) -> Trial:
    """Value one split at each budget."""
    methods = [NO_DP, IID, task.correlated(0.0), task.correlated(0.9), DEFAULT_EQUAL]
    return {
        "epsilons": {
            str(epsilon): trial(task, ("shapley",), methods, epsilon, scale, number)["methods"] for epsilon in EPSILONS
        }
    }


def show_epsilons(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "different_eps"."""
    names = list(trials[0]["epsilons"]["1.0"])
    figure, axes = plotted(width=5.5)
    rows = []
    for name in names:
        scores = [[or_nan(one["epsilons"][str(e)][name]["auc"]["shapley"]) for e in EPSILONS] for one in trials]
        band(axes[0, 0], EPSILONS, scores, name, marker="o")
        spent = [trials[0]["epsilons"][str(e)][name]["epsilon"] for e in EPSILONS]
        cells = [
            mean_and_error([one[place] for one in scores]) + ("" if eps is None else f", really eps = {eps:.3g}")
            for place, eps in enumerate(spent)
        ]
        rows.append([name, *cells])
    axes[0, 0].set(xscale="log", xlabel="claimed epsilon", ylabel="AUC")
    axes[0, 0].legend()
    save_figure(figure, path)
    return markdown(["", *(f"eps = {e:g}" for e in EPSILONS)], rows)


EPSILON = Experiment(
    name="epsilon",
    title="AUC at claimed epsilon = 0.1, 1, 10: Covertype, logistic; at 0.1 all is random, at 10 i.i.d. catches up",
    data=("covertype",),
    trials=5,
    minutes="25",
    trial=partial(epsilon_trial, BLOCKS),
    show=show_epsilons,
    check=no_check,
)

BURN_INS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def burn_in_trial(task: Task, scale: Scale, number: int) -> Trial:
    """Value one split with each burn-in, by loss and by accuracy."""
    problem, k = task.problem(scale, number), QUICK_K if scale.quick else K
    settings = task.settings(scale, number)
    found: dict[str, list[float | None]] = {}
    for metric in ("loss", "accuracy"):
        outcomes = run_methods([task.correlated(q) for q in BURN_INS], problem, k, metric=metric, **settings)
        found[metric] = [known_auc(one.values["shapley"], problem.changed) for one in outcomes.values()]
    return {"auc": found}


def show_burn_ins(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "warmup_ratio"."""
    figure, axes = plotted(width=5.0)
    rows = []
    for metric in ("loss", "accuracy"):
        scores = [[or_nan(score) for score in one["auc"][metric]] for one in trials]
        band(axes[0, 0], BURN_INS, scores, f"V = {metric}", marker="o")
        rows.append([f"V = {metric}", *(mean_and_error([one[i] for one in scores]) for i in range(len(BURN_INS)))])
    axes[0, 0].set(xlabel="burn-in q", ylabel="AUC")
    axes[0, 0].legend()
    save_figure(figure, path)
    return markdown(["", *(f"q = {q:g}" for q in BURN_INS)], rows)


def check_burn_ins(trials: list[Trial], quick: bool) -> None:
    """Raise unless the largest burn-in is better than none; few permutations show nothing."""
    if quick:
        return
    scores = np.mean([[or_nan(score) for score in one["auc"]["loss"]] for one in trials], axis=0)
    if not scores[-1] > scores[0]:
        raise DpvalueError(f"burn-in 0.9 has an AUC of {scores[-1]:.3f}, not above {scores[0]:.3f} without")


def burn_in_experiment(name: str, task: Task, trials: int, minutes: str) -> Experiment:
    """Return the figure "warmup_ratio" of one data set."""
    return Experiment(
        name=name,
        title=f"AUC against burn-in q, V = loss and accuracy: {task.data}, {task.model}; best near 0.9",
        data=(task.data,),
        trials=trials,
        minutes=minutes,
        trial=partial(burn_in_trial, task),
        show=show_burn_ins,
        check=check_burn_ins,
    )


BURN_IN_COVERTYPE = burn_in_experiment("burn-in", BLOCKS, 5, "15")
BURN_IN_MNIST = burn_in_experiment("burn-in-mnist", MNIST, 2, "2 (GPU)")
