"""The table "mia": membership inference by a likelihood-ratio test on values."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.auditing.membership import membership_attack
from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.methods import DELTA
from dpvalue.experiments.paper.pages import markdown, mean_and_error, plotted, save_figure
from dpvalue.experiments.paper.problem import make_problem
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale
from dpvalue.privacy.budget import Privacy
from dpvalue.protocol.schedule import Schedule

PERMUTATIONS = {"breast-cancer": 200, "diabetes": 200, "covertype": 500}
PAPER = {"breast-cancer": ("0.583", "0.477"), "diabetes": ("0.567", "0.513"), "covertype": ("0.554", "0.490")}
_ATTACKS = 8  # of each trial


def mia_trial(sets: tuple[str, ...], scale: TrialScale, number: int) -> Trial:
    """Attack values without noise, values of the paper's schedule at honest noise, and the library's default."""
    found: dict[str, Any] = {}
    gaussian = Privacy(1.0, DELTA, mechanism="gaussian")
    ways: dict[str, dict[str, Any]] = {
        "no DP": {"privacy": None},
        "Y* q=0.9": {"privacy": gaussian, "schedule": Schedule("running-mean", burn_in=0.9, block=20)},
        "dpvalue": {"privacy": Privacy(1.0, DELTA)},
    }
    for name in sets:
        problem = make_problem(name, scale.data, 300, 140, number)
        found[name] = {}
        for way, settings in ways.items():
            attack = membership_attack(
                problem.train,
                problem.test,
                permutations=40 if scale.quick else PERMUTATIONS[name],
                trials=2 if scale.quick else _ATTACKS,
                shadows=16 if scale.quick else 32,
                seed=number,
                progress=False,
                **settings,
            )
            found[name][way] = {"aurocs": attack.aurocs.tolist(), "bound": attack.bound}
    return {"sets": found}


def _aurocs(trials: list[Trial], name: str, way: str) -> list[float]:
    return [score for one in trials for score in one["sets"][name][way]["aurocs"]]


def show_mia(trials: list[Trial], path: Path) -> str:
    """Return the table; draw the AUROCs with their bounds."""
    sets = list(trials[0]["sets"])
    ways = list(trials[0]["sets"][sets[0]])
    figure, axes = plotted(width=5.5)
    rows = []
    for place, name in enumerate(sets):
        scores = [_aurocs(trials, name, way) for way in ways]
        axes[0, 0].boxplot(scores, positions=np.arange(len(ways)) + place * (len(ways) + 1), widths=0.6)
        rows.append([name, *PAPER[name], *(mean_and_error(one) for one in scores)])
    bounds = [trials[0]["sets"][sets[0]][way]["bound"] for way in ways]
    rows.append(["at most, by the guarantee", "", "", *("-" if bound == 1 else f"{bound:.3f}" for bound in bounds)])
    labels = [f"{way}\n{name}" for name in sets for way in ways]
    places = [i + p * (len(ways) + 1) for p in range(len(sets)) for i in range(len(ways))]
    axes[0, 0].set_xticks(places, labels, fontsize="x-small")
    axes[0, 0].axhline(0.5, linewidth=0.8)
    axes[0, 0].set(ylabel="AUROC of the attack")
    save_figure(figure, path)
    return markdown(["", "paper, no DP", "paper, theirs", *ways], rows)


def check_mia(trials: list[Trial], quick: bool) -> None:
    """Raise unless attacks on private values stay under the bound of their budget."""
    for name in trials[0]["sets"]:
        for way in ("Y* q=0.9", "dpvalue"):
            scores = np.array(_aurocs(trials, name, way))
            bound = trials[0]["sets"][name][way]["bound"]
            if scores.mean() > bound + 3 * scores.std(ddof=1) / np.sqrt(len(scores)):
                raise DpvalueError(f"{name}, {way}: a mean AUROC of {scores.mean():.3f} exceeds its bound {bound:.3f}")


def mia_experiment(name: str, sets: tuple[str, ...], minutes: str) -> Experiment:
    """Return the table for some data sets."""
    return Experiment(
        name=name,
        title="Membership inference from values: 25 members, 25 others, 200 rows for shadow sets, epsilon = 1",
        data=sets,
        trials=5,
        minutes=minutes,
        trial=partial(mia_trial, sets),
        show=show_mia,
        check=check_mia,
    )


MIA = mia_experiment("mia", ("breast-cancer", "diabetes"), "5")
MIA_COVERTYPE = mia_experiment("mia-covertype", ("covertype",), "12")
