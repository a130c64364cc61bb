"""The paper's theory in numbers: how the variance of an estimate grows with k, and the curve f(v) of its proof."""

from __future__ import annotations

from math import erf, exp, pi, sqrt
from pathlib import Path

import numpy as np
import torch

from dpvalue.diagnostics import estimation_uncertainty
from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.methods import DELTA
from dpvalue.experiments.paper.pages import band, markdown, mean_and_error, plotted, save_figure
from dpvalue.experiments.paper.problem import make_problem
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale
from dpvalue.privacy import accounting
from dpvalue.protocol.schedule import Schedule

COUNTS, QUICK_COUNTS = (32, 64, 128, 256, 512, 1024), (16, 64, 256)
SCHEDULES = {
    "i.i.d.": Schedule("independent"),
    "X*": Schedule("running-mean"),
    "Y* q=0.9": Schedule("running-mean", burn_in=0.9),
}
_RATE = 0.05


def uncertainty_trial(scale: TrialScale, number: int) -> Trial:
    """Var of an estimate with the models before a party held fixed; V is the negated squared error on diabetes.

    A utility that is quadratic in the model near its optimum is what the proof is about. The noise of a release grows
    like sqrt(k), as any accounting demands.
    """
    problem = make_problem("diabetes", scale.data, 60, 300, number)
    X, y = problem.test
    inputs = torch.tensor(np.c_[X, np.ones(len(X))])
    labels = torch.tensor(2.0 * y - 1.0)
    best = torch.linalg.lstsq(inputs, labels[:, None]).solution[:, 0]

    def utility(theta: torch.Tensor) -> torch.Tensor:
        return -(theta @ inputs.T - labels).square().mean(-1)

    generator = torch.Generator().manual_seed(number)
    row, label = torch.tensor(np.r_[problem.train[0][0], 1.0]), 2.0 * float(problem.train[1][0]) - 1.0
    found: dict[str, list[float]] = {name: [] for name in SCHEDULES}
    counts = QUICK_COUNTS if scale.quick else COUNTS
    for k in counts:
        models = best + 0.05 * torch.randn(k, len(best), generator=generator, dtype=torch.float64)
        gradients = 2 * (models @ row - label)[:, None] * row
        gradients = gradients / gradients.norm(dim=1, keepdim=True).clamp_min(1.0)
        noise = accounting.noise_multiplier(1.0, DELTA, k)
        for name, schedule in SCHEDULES.items():
            found[name].append(
                estimation_uncertainty(
                    models,
                    gradients,
                    utility,
                    schedule=schedule,
                    noise_std=noise,
                    learning_rate=_RATE,
                    repeats=60 if scale.quick else 400,
                    seed=number,
                )
            )
    return {"counts": list(counts), "variance": found}


def slopes(trials: list[Trial]) -> dict[str, list[float]]:
    """Return the slopes of log Var against log k, for each schedule and trial."""
    logs = np.log(trials[0]["counts"])
    return {
        name: [float(np.polyfit(logs, np.log(one["variance"][name]), 1)[0]) for one in trials] for name in SCHEDULES
    }


def f_of_v(v: float) -> float:
    """Return Var[x^2] of a standard normal variable that is cut off at plus and minus sqrt(v); tends to 2."""
    a = sqrt(v)
    inside, density = erf(a / sqrt(2)), exp(-v / 2) / sqrt(2 * pi)
    second = 1 - 2 * a * density / inside
    return 3 * second - 2 * a**3 * density / inside - second**2


def show_uncertainty(trials: list[Trial], path: Path) -> str:
    """Return the slopes; draw the variances, and f(v)."""
    figure, axes = plotted(2)
    counts, found = trials[0]["counts"], slopes(trials)
    theory = {"i.i.d.": "k: slope 1", "X*": "log^2 k", "Y* q=0.9": "constant: slope 0"}
    rows = []
    for name in SCHEDULES:
        band(axes[0, 0], counts, [one["variance"][name] for one in trials], name, marker="o")
        rows.append([name, theory[name], mean_and_error(found[name])])
    axes[0, 0].set(xscale="log", yscale="log", xlabel="k", ylabel="Var of the estimate, models fixed")
    axes[0, 0].legend()
    v = np.linspace(1, 50, 200)
    axes[0, 1].plot(v, [f_of_v(one) for one in v])
    axes[0, 1].axhline(2.0, linestyle="--", linewidth=0.8)
    axes[0, 1].set(xlabel="v", ylabel="f(v)")
    save_figure(figure, path)
    return markdown(["", "theory", "measured slope of log Var against log k"], rows)


def check_uncertainty(trials: list[Trial], quick: bool) -> None:
    """Raise unless the slopes are about 1, well below it, and about 0."""
    mean = {name: float(np.mean(found)) for name, found in slopes(trials).items()}
    room = 0.35 if quick else 0.15
    if abs(mean["i.i.d."] - 1) > room or abs(mean["Y* q=0.9"]) > room or not mean["X*"] < 0.75:
        raise DpvalueError(f"slopes must be near 1, below 0.75, and near 0 for i.i.d., X* and Y*; got {mean}")


UNCERTAINTY = Experiment(
    name="uncertainty",
    title="Variance of an estimate against k with the models held fixed, and f(v) of the truncated Gaussian",
    data=("diabetes",),
    trials=5,
    minutes="2",
    trial=uncertainty_trial,
    show=show_uncertainty,
    check=check_uncertainty,
)
