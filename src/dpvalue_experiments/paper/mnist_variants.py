"""What the paper leaves open for MNIST with a CNN, and what each way to fill it gives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dpvalue.engine.local import Local
from dpvalue.models import paper_cnn
from dpvalue_experiments.paper.labels import (  # fmt: skip
    PUBLIC,
    QUICK_K,
    QUICK_PUBLIC,
    QUICK_ROWS,
    ROWS,
    SHARE,
    K,
    known_auc,
    no_check,
)
from dpvalue_experiments.paper.methods import CLIP, no_dp, run_methods, running_mean
from dpvalue_experiments.paper.pages import markdown, plotted, save_figure
from dpvalue_experiments.paper.problem import make_problem
from dpvalue_experiments.paper.trials import Experiment, Scale, Trial

BLOCK = 50  # walks that advance together: these are many runs
RATES, QUICK_RATES = (0.002, 0.05), (0.05,)


@dataclass(frozen=True)
class Variant:
    """One way to fill what the paper leaves open."""

    name: str
    raw: bool = False
    mean_image: bool = False
    public: int = PUBLIC
    softmax: bool = False
    fresh: bool = False
    clipped: bool = False
    zero_head: bool = False
    k: int = K
    rates: tuple[float, ...] = RATES


VARIANTS = (
    Variant("pixels standardised"), Variant("pixels from 0 to 1", raw=True), Variant("fresh starts", fresh=True),
    Variant("softmax inside", softmax=True), Variant("gradients clipped without DP too", clipped=True),
    Variant("5000 test rows", public=5000), Variant("k = 4000", k=4 * K, rates=(0.002,)),
    Variant("last layer starts at zero, 5000 test rows", zero_head=True, public=5000),
    Variant("mean image subtracted", mean_image=True, rates=(0.002,)),
)  # fmt: skip


def variants_trial(scale: Scale, number: int) -> Trial:
    """Value one split of MNIST by the CNN in one of the ways that the paper leaves open: trial t is variant t."""
    variant = VARIANTS[number]
    rows, public, k = (QUICK_ROWS, QUICK_PUBLIC, QUICK_K) if scale.quick else (ROWS, variant.public, variant.k)
    problem = make_problem("mnist", scale.data, rows, public, 0, SHARE)
    if not variant.raw:
        problem = problem.standardised(variant.mean_image)
    found: dict[str, Any] = {}
    for rate in QUICK_RATES if scale.quick else variant.rates:
        settings: dict[str, Any] = {
            "model": partial(_network, variant) if variant.softmax or variant.zero_head else "cnn",
            "engine": Local(device=scale.device), "seed": 0, "learning_rate": rate,
        }  # fmt: skip
        only: dict[str, Any] = {"clip": CLIP} if variant.clipped else {}
        values = run_methods([no_dp(variant.fresh, 100)], problem, k, **settings, **only)
        values |= run_methods([running_mean(0.9, BLOCK, fresh=variant.fresh)], problem, k, **settings)
        found[f"{rate:g}"] = {name: known_auc(one.values["shapley"], problem.changed) for name, one in values.items()}
    return {"variant": variant.name, "rates": found}


def _network(variant: Variant) -> nn.Module:
    cnn = paper_cnn((1, 28, 28), 10)
    if variant.zero_head:
        for parameter in [*cnn.children()][-1].parameters():
            nn.init.zeros_(parameter)
    return nn.Sequential(nn.Unflatten(1, (1, 28)), cnn, nn.Softmax(-1) if variant.softmax else nn.Identity())


def show_variants(trials: list[Trial], path: Path) -> str:
    """Return the table; draw the AUCs of Y* against those without noise."""
    figure, axes = plotted(width=8.0)
    rows = []
    for trial in trials:
        for rate, found in trial["rates"].items():
            cells = ["diverged" if score is None else f"{score:.3f}" for score in found.values()]
            rows.append([trial["variant"], rate, *cells])
        points = [[np.nan if score is None else score for score in one.values()] for one in trial["rates"].values()]
        axes[0, 0].plot(*np.transpose(points), marker="o", label=trial["variant"])
    axes[0, 0].set(xlabel="AUC, no DP", ylabel="AUC, Y* q=0.9")
    axes[0, 0].legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save_figure(figure, path)
    return markdown(["", "learning rate", "no DP (paper: 0.988)", "Y* q=0.9 (paper: 0.828)"], rows)


MNIST_VARIANTS = Experiment(
    name="mnist-variants",
    title="What the paper leaves open for MNIST with a CNN: variants of standardised pixels, one split, blocks of 50",
    data=("mnist",),
    trials=len(VARIANTS),
    minutes="7 (GPU)",
    trial=variants_trial,
    show=show_variants,
    check=no_check,
)
