"""Figures on diabetes (and wine): what more permutations do, selecting data, how alike gradients are.

400 training points of scikit-learn's diabetes set with its target split at the median, the rest judges; logistic
regression. The regression figure has 400 training and 1000 test rows of red wine, linear regression and squared error.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpvalue.data.rows import PublicRows
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.models import build_model
from dpvalue.models.training import train
from dpvalue.privacy.mechanism import make_mechanism
from dpvalue.releasing.contributions import Contributions
from dpvalue.streams import Purpose, permutations
from dpvalue.valuation.diagnostics import mean_adjusted_variance
from dpvalue_experiments.paper.methods import IID, NO_DP, paper_multiplier, paper_rate, run_method, running_mean
from dpvalue_experiments.paper.pages import band, markdown, mean_and_error, plotted, save_figure, whole_ticks
from dpvalue_experiments.paper.problem import Problem, make_problem
from dpvalue_experiments.paper.trials import Experiment, Scale, Trial

ROWS, WINE_PUBLIC = 400, 1000
COUNTS = (50, 100, 200, 400, 800)
QUICK_COUNTS = (10, 40)
SHARES = tuple(np.linspace(0, 0.5, 6).tolist())


def _problem(data: str, scale: Scale, number: int) -> Problem:
    rows = 60 if scale.quick else ROWS
    X_rows = {"diabetes": 442, "wine": 1599}[data]
    public = WINE_PUBLIC if data == "wine" and not scale.quick else X_rows - ROWS
    return make_problem(data, scale.data, rows, public, number)


def _model(data: str) -> str:
    return "linear" if data == "wine" else "logistic"


CORRELATED = running_mean(0.8)


def larger_k_trial(data: str, scale: Scale, number: int) -> Trial:
    """Value one split with more and more permutations; remove the highest values, retrain, test."""
    problem = _problem(data, scale, number)
    counts = QUICK_COUNTS if scale.quick else COUNTS
    found: dict[str, dict[str, list[Any]]] = {}
    rate = paper_rate("none", problem, counts[0], model=_model(data), seed=number)
    for method in (IID, CORRELATED, NO_DP):
        found[method.name] = {"variance": [], "mean": [], "removal": []}
        for k in counts:
            result, _ = run_method(
                replace(method, walks=None), problem, k, model=_model(data), seed=number, learning_rate=rate
            )
            ratio = mean_adjusted_variance(result)
            found[method.name]["variance"].append(float(np.mean(ratio[np.isfinite(ratio)])))
            found[method.name]["mean"].append(float(np.mean(np.abs(result.values["shapley"]))))
            found[method.name]["removal"].append(_removal(problem, result.values["shapley"], _model(data)))
    return {"counts": list(counts), "methods": found}


def _removal(problem: Problem, values: Any, model: str, order: str = "high", kind: str = "removal") -> list[float]:
    """Test accuracy (or negated squared error) of models trained without (or with) the shares of the highest values."""
    ranked = np.argsort(-values if order == "high" else values, kind="stable")
    scores = []
    for share in SHARES:
        count = round(share * len(values))
        kept = ranked[count:] if kind == "removal" else ranked[: max(count, 2)]
        scores.append(_score(problem, kept, model))
    return scores


def _score(problem: Problem, kept: Any, kind: str) -> float:
    """Train on some rows, and test."""
    (X, y), (X_test, y_test) = problem.train, problem.test
    cpu, dtype = torch.device("cpu"), torch.float64
    classes = np.unique(np.concatenate([y, y_test]))
    task = "regression" if kind == "linear" else "classification"
    x = torch.tensor(X[kept], dtype=dtype)
    model = build_model(kind, task, x[0], 1 if kind == "linear" else len(classes), dtype, cpu)
    labels = torch.tensor(y[kept] if kind == "linear" else np.searchsorted(classes, y[kept]))
    fitted = train(
        model,
        model.initial(0),
        model.inputs(x),
        model.targets(labels.to(dtype) if kind == "linear" else labels),
        [300],
        0,
    )[0]
    outputs = model.outputs(fitted[None], model.inputs(torch.tensor(X_test, dtype=dtype)))[0].numpy()
    if kind == "linear":
        return -float(np.square(outputs[:, 0] - y_test).mean())
    return float((classes[outputs.argmax(1)] == y_test).mean())


def show_larger_k(trials: list[Trial], path: Path) -> str:
    """Return the table and the four panels of "larger_k_lower_acc"."""
    counts = trials[0]["counts"]
    figure, axes = plotted(2, 2)
    names = list(trials[0]["methods"])
    rows = []
    for name in names:
        ratios = [one["methods"][name]["variance"] for one in trials]
        band(axes[0, 0], counts, ratios, name, marker="o")
        band(axes[0, 1], counts, [one["methods"][name]["mean"] for one in trials], name, marker="o")
        rows.append([name, *(f"{np.mean([one[i] for one in ratios]):.3g}" for i in range(len(counts)))])
    axes[0, 0].set(xscale="log", yscale="log", xlabel="k", ylabel="mean of s_j^2 / |mu_j|")
    axes[0, 1].set(xscale="log", yscale="log", xlabel="k", ylabel="mean of |mu_j|")
    for panel in axes[0]:
        whole_ticks(panel, counts)
    for panel, name in ((axes[1, 0], names[0]), (axes[1, 1], names[1])):
        for place in (0, len(counts) - 1):
            removal = [one["methods"][name]["removal"][place] for one in trials]
            band(panel, SHARES, removal, f"{name}, k = {counts[place]}")
        last = [one["methods"]["no DP"]["removal"][-1] for one in trials]
        band(panel, SHARES, last, "no DP", linestyle="--")
        panel.set(xlabel="share of highest values removed", ylabel="test score")
    for panel in axes.flat:
        panel.legend(fontsize="small")
    save_figure(figure, path)
    return markdown(["mean of s_j^2/abs(mu_j)", *(f"k = {k}" for k in counts)], rows)


def check_larger_k(trials: list[Trial], quick: bool) -> None:
    """Raise unless correlated noise is far smaller, falls with k, and falls faster than i.i.d. noise does."""
    methods = [one["methods"] for one in trials]
    iid, correlated = (np.mean([one[name]["variance"] for one in methods], axis=0) for name in ("i.i.d.", "Y* q=0.8"))
    if not iid[-1] > 3 * correlated[-1]:
        raise DpvalueError(f"i.i.d. noise has a ratio of {iid[-1]:.3g}, correlated noise one of {correlated[-1]:.3g}")
    if not quick and not (correlated[-1] < correlated[0] and iid[-1] / correlated[-1] > iid[0] / correlated[0]):
        raise DpvalueError("with more permutations correlated noise must fall, and faster than i.i.d. noise")


LARGER_K = Experiment(
    name="larger-k",
    title="More permutations: diabetes, logistic (in the paper i.i.d. noise rises with k, correlated noise falls)",
    data=("diabetes",),
    trials=5,
    minutes="3",
    trial=partial(larger_k_trial, "diabetes"),
    show=show_larger_k,
    check=check_larger_k,
)
REGRESSION = replace(
    LARGER_K,
    name="regression",
    title="The same for regression: red wine quality, 400 training and 1000 test rows, squared error",
    data=("wine",),
    trial=partial(larger_k_trial, "wine"),
)


def selection_trial(scale: Scale, number: int) -> Trial:
    """Value one split; add or remove the highest or lowest, retrain, test."""
    problem = _problem("diabetes", scale, number)
    k = 40 if scale.quick else 400
    found = {}
    rate = paper_rate("none", problem, k, seed=number)
    for method in (NO_DP, IID, running_mean(0.8)):
        values = run_method(method, problem, k, seed=number, learning_rate=rate)[0].values["shapley"]
        found[method.name] = {
            f"{kind} {order}": _removal(problem, values, "logistic", order, kind)
            for kind in ("removal", "addition")
            for order in ("high", "low")
        }
    random = np.random.default_rng(number).permutation(problem.n).astype(float)
    found["random"] = {
        f"{kind} {order}": _removal(problem, random, "logistic", order, kind)
        for kind in ("removal", "addition")
        for order in ("high", "low")
    }
    return {"methods": found}


def show_selection(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "data_selection_additional"."""
    figure, axes = plotted(2, 2)
    names = list(trials[0]["methods"])
    rows = []
    for panel, task in zip(axes.flat, ("removal high", "removal low", "addition high", "addition low"), strict=True):
        for name in names:
            scores = [one["methods"][name][task] for one in trials]
            band(panel, SHARES, scores, name)
        panel.set(title=task, xlabel="share", ylabel="test accuracy")
        panel.legend(fontsize="small")
        areas = {name: [float(np.mean(one["methods"][name][task])) for one in trials] for name in names}
        rows.append([task, *(mean_and_error(areas[name]) for name in names)])
    save_figure(figure, path)
    return markdown(["mean accuracy over shares", *names], rows)


def check_selection(trials: list[Trial], quick: bool) -> None:
    """Raise unless removing high values hurts more than removing low ones, without noise and with correlated noise."""
    for name in ("no DP", "Y* q=0.8"):
        high, low = (
            float(np.mean([np.mean(one["methods"][name][f"removal {order}"]) for one in trials]))
            for order in ("high", "low")
        )
        if high > low + (0.02 if quick else 0.0):
            raise DpvalueError(f"{name}: removing the highest leaves {high:.3f}, removing the lowest {low:.3f}")


SELECTION = Experiment(
    name="selection",
    title="Adding and removing the highest and lowest values: diabetes, logistic",
    data=("diabetes",),
    trials=5,
    minutes="1",
    trial=selection_trial,
    show=show_selection,
    check=check_selection,
)


def similarity_trial(scale: Scale, number: int) -> Trial:
    """How much nearer to a clipped gradient the mean of the noisy ones so far is than its own noisy one.

    Delta_cos and Delta_l2 of the paper: the differences in cosine (higher is better) and distance (lower is better).
    """
    problem = _problem("diabetes", scale, number)
    counts = QUICK_COUNTS if scale.quick else COUNTS
    gradients = _gradients(problem, max(counts), number)
    generator = torch.Generator().manual_seed(number)
    found: dict[str, list[float]] = {"cosine": [], "distance": []}
    for k in counts:
        exact = gradients[:k]
        scale_of_noise = paper_multiplier(problem.n, k, 1.0)
        noisy = exact + scale_of_noise * torch.randn(exact.shape, generator=generator, dtype=exact.dtype)
        mean = noisy.cumsum(0) / torch.arange(1, k + 1)[:, None, None]
        cosine = torch.nn.functional.cosine_similarity
        found["cosine"].append(float((cosine(exact, mean, dim=-1) - cosine(exact, noisy, dim=-1)).mean()))
        found["distance"].append(float(((exact - mean).norm(dim=-1) - (exact - noisy).norm(dim=-1)).mean()))
    return {"counts": list(counts), **found}


def _gradients(problem: Problem, k: int, seed: int) -> torch.Tensor:
    """The clipped gradients (k, n, d) of every party in every permutation of a walk with own gradients."""
    (X, y), n = problem.train, problem.n
    cpu = torch.device("cpu")
    model = build_model("logistic", "classification", torch.tensor(X[0]), 2, torch.float64, cpu)
    rows = PublicRows.by_party(X, y.astype(np.int64), np.ones(n, dtype=np.int64), torch.float64, cpu)
    contributions = Contributions(model, rows, make_mechanism(None, 1.0, 0.0), Local(dtype="float64"))
    orders = torch.from_numpy(permutations(seed, Purpose.PERMUTATION, 0, k, n))
    theta = model.initial(0).expand(k, -1).clone()
    found = torch.empty(k, n, model.size, dtype=torch.float64)
    for place in range(n):
        who = orders[:, place]
        moves = contributions.at(theta, who)
        found[torch.arange(k), who] = moves
        theta -= 0.02 * moves
    return found


def show_similarity(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "similarity"."""
    counts = trials[0]["counts"]
    figure, axes = plotted(2)
    rows = []
    for panel, name in zip(axes.flat, ("cosine", "distance"), strict=True):
        scores = [one[name] for one in trials]
        label = {"cosine": "Delta_cos", "distance": "Delta_l2"}[name]
        band(panel, counts, scores, "diabetes, logistic", marker="o")
        panel.set(xscale="log", xlabel="k", ylabel=label)
        whole_ticks(panel, counts)
        rows.append([label, *(mean_and_error([one[i] for one in scores]) for i in range(len(counts)))])
    save_figure(figure, path)
    return markdown(["", *(f"k = {k}" for k in counts)], rows)


def check_similarity(trials: list[Trial], quick: bool) -> None:
    """Raise unless the mean of noisy gradients is nearer than a single one, the more so the more there are."""
    for name, sign in (("cosine", 1), ("distance", -1)):
        scores = sign * np.mean([one[name] for one in trials], axis=0)
        if not scores[-1] > scores[0] > 0:
            raise DpvalueError(
                f"{name}: {sign * scores[-1]:.3g} for the most permutations, {sign * scores[0]:.3g} before"
            )


SIMILARITY = Experiment(
    name="similarity",
    title="How much nearer to the gradient the mean of noisy ones is than a single one: diabetes, 400 points, logistic",
    data=("diabetes",),
    trials=5,
    minutes="2",
    trial=similarity_trial,
    show=show_similarity,
    check=check_similarity,
)
