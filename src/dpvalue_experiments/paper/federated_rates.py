"""What a federation finds at every learning rate: where i.i.d. and correlated noise differ, and where they cannot.

The use cases take no setting from here: these are other splits, valued by ten permutations a round.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue_experiments.paper.federated import ROUND_DECAYING, ROUND_IID, ROUND_METHODS, at_rate, run_rounds
from dpvalue_experiments.paper.labels import known_auc, no_check, or_nan
from dpvalue_experiments.paper.methods import open_run
from dpvalue_experiments.paper.pages import band, markdown, mean_and_error, plotted, save_figure
from dpvalue_experiments.paper.trials import Experiment, Scale, Trial
from dpvalue_experiments.paper.use_cases import CASES, Case, drawn

FIRST_SPLIT, ORDERS = 100, 10
RATES, QUICK_RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), (0.1,)


def rates_trial(case: Case, scale: Scale, number: int) -> Trial:
    """Value one split by every method at every rate; return the AUCs."""
    case = replace(case.sized(scale.quick), spare=0)
    problem, settings = drawn(case, scale, FIRST_SPLIT + number)
    rates = QUICK_RATES if scale.quick else RATES
    found: dict[str, Any] = {}
    for method in ROUND_METHODS:
        run = open_run([method], problem, case.k, case.epsilon, metric="accuracy", learning_rate=rates[0], **settings)
        values = [run_rounds(at_rate(run, rate), ORDERS).values["shapley"] for rate in rates]
        found[method.name] = [known_auc(one, problem.changed) for one in values]
    return {"rates": rates, "auc": found}


def show_rates(trials: list[Trial], path: Path) -> str:
    """Return the table; draw the AUCs against the rate."""
    rates = trials[0]["rates"]
    scores = {name: [[or_nan(one) for one in trial["auc"][name]] for trial in trials] for name in trials[0]["auc"]}
    figure, axes = plotted(width=5.5)
    for name, found in scores.items():
        band(axes[0, 0], rates, found, name, marker="o")
    axes[0, 0].set(xlabel="learning rate", ylabel="AUC", xscale="log")
    axes[0, 0].legend(fontsize="small")
    save_figure(figure, path)
    gain = np.subtract(scores[ROUND_DECAYING.name], scores[ROUND_IID.name]).tolist()
    columns = {**scores, "correlated - i.i.d.": gain}
    rows = [
        [f"{rate:g}", *(mean_and_error([trial[place] for trial in found]) for found in columns.values())]
        for place, rate in enumerate(rates)
    ]
    return markdown(["learning rate", *columns], rows)


def _experiment(name: str, trials: int, minutes: str) -> Experiment:
    case = CASES[name]
    return Experiment(
        name=f"{name}-rates",
        title=f"{case.title}: AUC against the learning rate, other splits, {ORDERS} permutations a round",
        data=(case.data,),
        trials=trials,
        minutes=minutes,
        trial=partial(rates_trial, case),
        show=show_rates,
        check=no_check,
    )


FEDERATED_RATES = (_experiment("federated-mnist", 10, "2 (GPU)"), _experiment("federated-cifar10", 5, "2 (GPU)"))
