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
from dpvalue.diagnostics import mean_adjusted_variance
from dpvalue.engine.engines import Local
from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.methods import IID, NO_DP, paper_multiplier, paper_rate, run_method, running_mean
from dpvalue.experiments.paper.pages import band, markdown, mean_and_error, plotted, save_figure, whole_ticks
from dpvalue.experiments.paper.problem import PaperProblem, make_problem
from dpvalue.experiments.paper.readings import AS_PRINTED, AS_RUN, PaperReading
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale
from dpvalue.models import build_model
from dpvalue.models.build import train
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.mechanism import make_mechanism
from dpvalue.streams import Purpose, permutations

ROWS, WINE_PUBLIC = 400, 1000
COUNTS = (50, 100, 200, 400, 800)
QUICK_COUNTS = (10, 40)
SHARES = tuple(np.linspace(0, 0.5, 6).tolist())


def _problem(data: str, scale: TrialScale, number: int) -> PaperProblem:
    rows = 60 if scale.quick else ROWS
    X_rows = {"diabetes": 442, "wine": 1599}[data]
    public = WINE_PUBLIC if data == "wine" and not scale.quick else X_rows - ROWS
    return make_problem(data, scale.data, rows, public, number)


def _model(data: str) -> str:
    return "linear" if data == "wine" else "logistic"


CORRELATED = running_mean(0.8)
LARGER = 10.0
_FLAT = {"clip_rule": "flat"}  # walked far faster than watched; a row is as long as its gradient at most


def _readings(problem: PaperProblem, k: int, model: str, seed: int) -> tuple[PaperReading, ...]:
    """As printed, and as networks seem to have been run, at the rate that is best without noise; and at larger steps.

    So few rows cannot be parted: no reading is chosen here, all are shown.
    """
    rate = paper_rate("none", problem, k, model=model, seed=seed)
    larger = AS_RUN.at(LARGER * rate, f"{AS_RUN.name}, {LARGER:g} times the rate")
    return AS_PRINTED.at(rate), AS_RUN.at(rate), larger


def larger_k_trial(data: str, scale: TrialScale, number: int) -> Trial:
    """Value one split with more and more permutations; remove the highest values, retrain, test."""
    problem, model = _problem(data, scale, number), _model(data)
    counts = QUICK_COUNTS if scale.quick else COUNTS
    readings = _readings(problem, counts[0], model, number)
    found: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for reading in readings:
        for method in (IID, CORRELATED, NO_DP):
            here: dict[str, list[Any]] = {"variance": [], "mean": [], "signed": [], "removal": []}
            for k in counts:
                own: dict[str, Any] = {"model": model, "seed": number, "learning_rate": reading.rate, **_FLAT}
                result, _ = run_method(method, problem, k, reading=reading, **own)
                ratio, values = mean_adjusted_variance(result), result.values["shapley"]
                here["variance"].append(float(np.mean(ratio[np.isfinite(ratio)])))
                here["mean"].append(float(np.mean(np.abs(values))))
                here["signed"].append(float(np.mean(values)))
                here["removal"].append(_removal(problem, values, model))
            found.setdefault(reading.name, {})[method.name] = here
    rates = {reading.name: reading.rate for reading in readings}
    return {"counts": list(counts), "rates": rates, "readings": found}


def _removal(problem: PaperProblem, values: Any, model: str, order: str = "high", kind: str = "removal") -> list[float]:
    """Test accuracy (or negated squared error) of models trained without (or with) the shares of the highest values."""
    ranked = np.argsort(-values if order == "high" else values, kind="stable")
    scores = []
    for share in SHARES:
        count = round(share * len(values))
        kept = ranked[count:] if kind == "removal" else ranked[: max(count, 2)]
        scores.append(_score(problem, kept, model))
    return scores


def _score(problem: PaperProblem, kept: Any, kind: str) -> float:
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
    """Return the tables, and the four panels of "larger_k_lower_acc" for each reading."""
    counts, names = trials[0]["counts"], list(trials[0]["readings"])
    figure, axes = plotted(4, len(names), width=3.6)
    ratios, means = [], []
    for panels, reading in zip(axes, names, strict=True):
        found = [one["readings"][reading] for one in trials]
        _panels(panels, counts, reading, found)
        for name in found[0]:
            ratios.append([reading, name, *_across(found, name, "variance", len(counts))])
            means.append([reading, name, *_across(found, name, "signed", len(counts))])
    save_figure(figure, path)
    head = [f"k = {k}" for k in counts]
    rates = ", ".join(f"{name} {np.mean([one['rates'][name] for one in trials]):.2g}" for name in names)
    return (
        f"{markdown(['mean of s_j^2/abs(mu_j)', '', *head], ratios)}\n"
        f"{markdown(['mean of mu_j, with its sign', '', *head], means)}\nMean learning rates: {rates}.\n"
    )


def _across(found: list[dict[str, Any]], name: str, what: str, count: int) -> list[str]:
    """The means over trials of something of a method, for each k."""
    return [f"{np.mean([one[name][what][place] for one in found]):.3g}" for place in range(count)]


def _panels(panels: Any, counts: list[int], reading: str, found: list[dict[str, Any]]) -> None:
    """Draw the panels of a reading: variance over mean, mean, and accuracy without the highest values."""
    names = list(found[0])
    for name in names:
        band(panels[0], counts, [one[name]["variance"] for one in found], name, marker="o")
        band(panels[1], counts, [one[name]["signed"] for one in found], name, marker="o")
    panels[0].set(xscale="log", yscale="log", xlabel="k", ylabel="mean of s_j^2 / |mu_j|", title=reading)
    panels[0].title.set_fontsize("small")
    panels[1].set(xscale="log", xlabel="k", ylabel="mean of mu_j")
    for panel in panels[:2]:
        whole_ticks(panel, counts)
    for panel, name in ((panels[2], names[0]), (panels[3], names[1])):
        for place in (0, len(counts) - 1):
            band(panel, SHARES, [one[name]["removal"][place] for one in found], f"{name}, k = {counts[place]}")
        band(panel, SHARES, [one["no DP"]["removal"][-1] for one in found], "no DP", linestyle="--")
        panel.set(xlabel="share of highest values removed", ylabel="test score")
    for panel in panels:
        panel.legend(fontsize="x-small")


def check_larger_k(trials: list[Trial], quick: bool) -> None:
    """Raise unless correlated noise is far smaller, falls with k, and falls faster than i.i.d. noise does."""
    methods = [one["readings"][AS_PRINTED.name] for one in trials]
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


def selection_trial(scale: TrialScale, number: int) -> Trial:
    """Value one split in every reading; add or remove the highest or lowest, retrain, test."""
    problem, k = _problem("diabetes", scale, number), 40 if scale.quick else 400
    random = np.random.default_rng(number).permutation(problem.n).astype(float)
    found = {"random": _selected(problem, random)}
    for reading in _readings(problem, k, "logistic", number):
        for method in (NO_DP, IID, CORRELATED):
            own: dict[str, Any] = {"seed": number, "learning_rate": reading.rate, **_FLAT}
            values = run_method(method, problem, k, reading=reading, **own)[0].values["shapley"]
            found[f"{method.name}, {reading.name}"] = _selected(problem, values)
    return {"methods": found}


_SELECTIONS = tuple(f"{kind} {order}" for kind in ("removal", "addition") for order in ("high", "low"))


def _selected(problem: PaperProblem, values: Any) -> dict[str, list[float]]:
    """The test scores of all selections by values."""
    return {one: _removal(problem, values, "logistic", *reversed(one.split())) for one in _SELECTIONS}


def show_selection(trials: list[Trial], path: Path) -> str:
    """Return the table and the figure "data_selection_additional"."""
    figure, axes = plotted(2, 2, width=5.5)
    rows = []
    for name in trials[0]["methods"]:
        scores = {task: [one["methods"][name][task] for one in trials] for task in _SELECTIONS}
        for panel, task in zip(axes.flat, _SELECTIONS, strict=True):
            band(panel, SHARES, scores[task], name)
            panel.set(title=task, xlabel="share", ylabel="test accuracy")
        rows.append([name, *(mean_and_error([float(np.mean(one)) for one in found]) for found in scores.values())])
    axes[0, 0].legend(fontsize="x-small")
    save_figure(figure, path)
    return markdown(["mean accuracy over shares", *_SELECTIONS], rows)


def check_selection(trials: list[Trial], quick: bool) -> None:
    """Raise unless removing high values hurts more than removing low ones, without noise and with correlated noise."""
    for name in (f"{method.name}, {AS_PRINTED.name}" for method in (NO_DP, CORRELATED)):
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


def similarity_trial(scale: TrialScale, number: int) -> Trial:
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


def _gradients(problem: PaperProblem, k: int, seed: int) -> torch.Tensor:
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
        moves = contributions.gradients_at(theta, who)
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
