"""Figures of AUC for finding changed labels: other budgets, other burn-ins; in the fitted reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.labels import (  # fmt: skip
    COVERTYPE,
    MNIST,
    QUICK_K,
    K,
    LabelTask,
    known_auc,
    no_check,
    or_nan,
    scored,
)
from dpvalue.experiments.paper.methods import DEFAULT_EQUAL, IID
from dpvalue.experiments.paper.pages import band, markdown, mean_and_error, plotted, said_spent, save_figure
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale
from dpvalue.experiments.paper.valuing import run_methods

COVERTYPE_IN_BLOCKS = replace(COVERTYPE, block=10)  # many settings are tried


def _on_mnist(figure: Experiment, trial: Callable[[TrialScale, int], Trial], trials: int, minutes: str) -> Experiment:
    """Return a figure of Covertype for MNIST with the CNN."""
    return replace(
        figure,
        name=f"{figure.name}-mnist",
        title=figure.title.replace("Covertype, logistic", "MNIST, CNN"),
        data=(MNIST.data,),
        trials=trials,
        minutes=minutes,
        trial=trial,
    )


EPSILONS = (0.1, 1.0, 10.0)


def epsilon_trial(task: LabelTask, scale: TrialScale, number: int) -> Trial:
    """Value one split at each budget."""
    problem, k = task.problem(scale, number), QUICK_K if scale.quick else K
    settings, found = task.settings(scale, number), {}
    for epsilon in EPSILONS:
        methods = [IID, task.correlated(0.9), replace(DEFAULT_EQUAL, walks=task.default_walks)]
        outcomes = run_methods(methods, problem, k, epsilon, reading=task.shown, **settings)
        found[str(epsilon)] = scored(outcomes, problem)
    return {"epsilons": found}


def show_epsilons(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "different_eps"."""
    names = list(trials[0]["epsilons"]["1.0"])
    figure, axes = plotted(width=6.5)
    rows = []
    for name in names:
        scores = [[or_nan(one["epsilons"][str(e)][name]["auc"]["shapley"]) for e in EPSILONS] for one in trials]
        band(axes[0, 0], EPSILONS, scores, name, marker="o")
        cells = [
            f"{mean_and_error([one[place] for one in scores])}, {said_spent(trials[0]['epsilons'][str(e)][name])}"
            for place, e in enumerate(EPSILONS)
        ]
        rows.append([name, *cells])
    axes[0, 0].set(xscale="log", xlabel="claimed epsilon", ylabel="AUC")
    axes[0, 0].legend(fontsize="small")
    save_figure(figure, path)
    return markdown(["", *(f"claimed eps = {e:g}; really spent" for e in EPSILONS)], rows)


EPSILON = Experiment(
    name="epsilon", data=("covertype",), trials=5, minutes="25",
    title="AUC at claimed epsilon = 0.1, 1, 10: Covertype, logistic; at 0.1 all is random, at 10 i.i.d. catches up",
    trial=partial(epsilon_trial, COVERTYPE_IN_BLOCKS), show=show_epsilons, check=no_check,
)  # fmt: skip
EPSILON_MNIST = _on_mnist(EPSILON, partial(epsilon_trial, MNIST), 2, "5 (GPU)")

BURN_INS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)


def burn_in_trial(task: LabelTask, scale: TrialScale, number: int) -> Trial:
    """Value one split with each burn-in, by loss and by accuracy."""
    problem, k = task.problem(scale, number), QUICK_K if scale.quick else K
    settings = task.settings(scale, number)
    found: dict[str, list[float | None]] = {}
    for metric in ("loss", "accuracy"):
        methods = [task.correlated(q) for q in BURN_INS]
        outcomes = run_methods(methods, problem, k, metric=metric, reading=task.shown, **settings)
        scores = [known_auc(one.values["shapley"], problem.changed) for one in outcomes.values()]
        found[f"V = {metric}"] = scores
    return {"auc": found}


def show_burn_ins(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "warmup_ratio"."""
    figure, axes = plotted(width=5.0)
    rows = []
    for name in trials[0]["auc"]:
        scores = [[or_nan(score) for score in one["auc"][name]] for one in trials]
        band(axes[0, 0], BURN_INS, scores, name, marker="o")
        rows.append([name, *(mean_and_error([one[i] for one in scores]) for i in range(len(BURN_INS)))])
    axes[0, 0].set(xlabel="burn-in q", ylabel="AUC")
    axes[0, 0].legend(fontsize="small")
    save_figure(figure, path)
    return markdown(["", *(f"q = {q:g}" for q in BURN_INS)], rows)


def check_burn_ins(trials: list[Trial], quick: bool) -> None:
    """Raise unless the largest burn-in is better than none; few permutations show nothing."""
    if quick:
        return
    scores = np.mean([[or_nan(score) for score in one["auc"]["V = loss"]] for one in trials], axis=0)
    if not scores[-1] > scores[0]:
        raise DpvalueError(f"burn-in 0.9 has an AUC of {scores[-1]:.3f}, not above {scores[0]:.3f} without")


BURN_IN_COVERTYPE = Experiment(
    name="burn-in", data=("covertype",), trials=5, minutes="15",
    title="AUC against burn-in q, V = loss and accuracy: Covertype, logistic; best near 0.9",
    trial=partial(burn_in_trial, COVERTYPE_IN_BLOCKS), show=show_burn_ins, check=check_burn_ins,
)  # fmt: skip
BURN_IN_MNIST = _on_mnist(BURN_IN_COVERTYPE, partial(burn_in_trial, MNIST), 2, "2 (GPU)")
