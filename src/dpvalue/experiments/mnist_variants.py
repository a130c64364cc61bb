"""What the paper leaves open for MNIST with a CNN, and what each way to fill it gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpvalue.engine.local import Local
from dpvalue.experiments.labels import (
    MNIST,
    PUBLIC,
    QUICK_K,
    QUICK_PUBLIC,
    QUICK_ROWS,
    ROWS,
    SHARE,
    K,
    known_auc,
    no_check,
)  # fmt: skip
from dpvalue.experiments.methods import Method, run_method
from dpvalue.experiments.pages import markdown, mean_and_error, plotted, save_figure
from dpvalue.experiments.problem import make_problem
from dpvalue.experiments.trials import Experiment, Scale, Trial
from dpvalue.models import paper_cnn
from dpvalue.schedule import Schedule

RATES, QUICK_RATES = (0.02, 0.05, 0.1, 0.2), (0.05,)
VARIANTS = ("as printed", "pixels standardised", "softmax inside", "fresh starts")


def variants_trial(scale: Scale, number: int) -> Trial:
    """Value one split of MNIST by the CNN in the ways that the paper leaves open, with several learning rates."""
    rows, public, k = (QUICK_ROWS, QUICK_PUBLIC, QUICK_K) if scale.quick else (ROWS, PUBLIC, K)
    plain = make_problem("mnist", scale.data, rows, public, number, SHARE)
    found: dict[str, Any] = {}
    for variant in VARIANTS:
        problem, model, fresh = plain, "cnn", variant == "fresh starts"
        if variant == "pixels standardised":
            (X, y), (X_test, y_test) = plain.train, plain.test
            mean, spread = X_test.mean(), X_test.std()
            problem = replace(plain, train=((X - mean) / spread, y), test=((X_test - mean) / spread, y_test))
        ways: dict[str, Method] = {
            "no DP": Method("no DP", Schedule("independent", fresh_start=fresh), "none", walks=100),
            "Y* q=0.9": Method("Y*", Schedule("running-mean", 0.9, block=MNIST.block, fresh_start=fresh), "paper"),
        }
        for rate in QUICK_RATES if scale.quick else RATES:
            scores = {}
            for name, method in ways.items():
                result, _ = run_method(
                    method, problem, k, model=_with_softmax if variant == "softmax inside" else model,
                    engine=Local(device=scale.device), seed=number, learning_rate=rate,
                )  # fmt: skip
                scores[name] = known_auc(result.values["shapley"], problem.changed)  # None: training diverged
            found[f"{variant}, rate {rate:g}"] = scores
    return {"variants": found}


def _with_softmax() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 28)), paper_cnn((1, 28, 28), 10), nn.Softmax(-1))


def show_variants(trials: list[Trial], path: Path) -> str:
    """Return the table; draw the AUCs of Y* against those without noise."""
    names = list(trials[0]["variants"])
    ways = list(trials[0]["variants"][names[0]])
    rows = []
    for name in names:
        scores = {way: [one["variants"][name][way] for one in trials] for way in ways}
        rows.append([name, *("diverged" if None in found else mean_and_error(found) for found in scores.values())])
    figure, axes = plotted(width=5.0)
    for variant in VARIANTS:
        mine = [name for name in names if name.startswith(variant)]
        points = [[np.mean([one["variants"][name][way] or np.nan for one in trials]) for way in ways] for name in mine]
        axes[0, 0].plot(*np.transpose(points), marker="o", label=variant)
    axes[0, 0].set(xlabel="AUC, no DP", ylabel="AUC, Y* q=0.9")
    axes[0, 0].legend(fontsize="small")
    save_figure(figure, path)
    return markdown(["", *ways], rows)


MNIST_VARIANTS = Experiment(
    name="mnist-variants",
    title="What the paper leaves open for MNIST with a CNN: softmax inside, fresh starts, scaling, learning rate",
    data=("mnist",),
    trials=1,
    minutes="8 (GPU)",
    trial=variants_trial,
    show=show_variants,
    check=no_check,
)
