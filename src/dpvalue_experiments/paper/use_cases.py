"""The table "other_use_cases": data sets and clients of a federation as parties.

Each party holds B images; of 30% of the parties all labels are changed. Shown is AUC(no DP) - AUC(method), lower is
better. In data set valuation a party moves the model by the gradient of its mean loss, as a single point does. Pixels
are standardised by the public rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue_experiments.paper.datasets import Arrays, load
from dpvalue_experiments.paper.federated import ROUND_METHODS, round_rate, run_rounds
from dpvalue_experiments.paper.labels import known_auc, or_nan
from dpvalue_experiments.paper.methods import (
    DEFAULT_EQUAL,
    DEFAULT_HONEST,
    Method,
    Outcome,
    iid,
    no_dp,
    open_run,
    run_methods,
    running_mean,
)
from dpvalue_experiments.paper.pages import markdown, mean_and_error, plotted, save_figure
from dpvalue_experiments.paper.problem import Problem, make_sets
from dpvalue_experiments.paper.resnets import HeadFactory, features
from dpvalue_experiments.paper.trials import Experiment, Scale, Trial

SHARE = 0.3
# The library's default releases before it walks: fewer permutations only cost it Monte Carlo error.
EQUAL, HONEST = replace(DEFAULT_EQUAL, walks=200), replace(DEFAULT_HONEST, walks=200)


@dataclass(frozen=True)
class Case:
    """A row of the table: the data, the model, k permutations (or rounds), n parties of B images, and the budget.

    `orders` are the permutations that value a round of a federation; 0 is data set valuation. `spare` are public rows
    that only the search for a learning rate of a federation sees.
    """

    title: str
    data: str
    model: str
    k: int
    n: int
    per_party: int
    public: int = 1000
    spare: int = 0
    epsilon: float = 1.0
    orders: int = 0
    block: int = 10
    paper: tuple[str, str] = ("", "")

    def sized(self, quick: bool) -> Case:
        """Return the case, in small if it is to be quick."""
        if not quick:
            return self
        return replace(self, k=20, n=20, per_party=8, public=200, spare=0, orders=min(self.orders, 10))


CASES = {
    "sets-mnist": Case(
        "data set valuation, MNIST + CNN", "mnist", "cnn", 200, 800, 8, paper=("0.290 (.016)", "0.170 (.037)")
    ),
    "sets-cifar10": Case(
        "data set valuation, CIFAR10 + CNN", "cifar10", "cnn", 1000, 100, 32, public=500,
        paper=("0.178 (.059)", "0.0303 (.015)"),
    ),
    "sets-resnet18": Case(
        "data set valuation, CIFAR10 + ResNet18", "cifar10", "resnet18", 1000, 100, 32, public=300,
        paper=("0.204 (.053)", "0.119 (.017)"),
    ),
    "sets-resnet34": Case(
        "data set valuation, CIFAR10 + ResNet34, epsilon = 10", "cifar10", "resnet34", 1000, 100, 32, public=300,
        epsilon=10.0, paper=("0.141 (.009)", "0.0433 (.007)"),
    ),
    "federated-mnist": Case(
        "federated, MNIST + CNN", "mnist", "cnn", 50, 50, 32, spare=4000, orders=100,
        paper=("0.195 (.009)", "0.0810 (.008)"),
    ),
    "federated-cifar10": Case(
        "federated, CIFAR10 + CNN", "cifar10", "cnn", 50, 50, 32, public=500, spare=4000, orders=100,
        paper=("0.167 (.040)", "0.0415 (.010)"),
    ),
}  # fmt: skip


def trial(case: Case, scale: Scale, number: int) -> Trial:
    """Value one split by every method; return the AUCs."""
    case = case.sized(scale.quick)
    problem, settings = drawn(case, scale, number)
    with _products("highest" if settings["model"] == "cnn" else "high"):
        found = _rounds(case, problem, settings) if case.orders else _sets(case, problem, settings)
    return {
        "methods": {
            name: {"auc": known_auc(one.values["shapley"], problem.changed), **one.cost} for name, one in found.items()
        }
    }


def drawn(case: Case, scale: Scale, number: int) -> tuple[Problem, dict[str, Any]]:
    """Return the split of a trial, and how its methods are run."""
    arrays, model = _data(case, scale)
    problem = make_sets(arrays, case.n, case.per_party, case.public + case.spare, number, SHARE)
    settings = {"model": model, "engine": Local(device=scale.device), "seed": number}
    return problem.standardised() if model == "cnn" else problem, settings


@contextmanager
def _products(precision: str) -> Iterator[None]:
    """Multiply matrices in this precision: with "high" a GPU may round factors to 10 bits (TF32).

    A gradient is clipped after it is made, without products: what a release may depend on stays bounded.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _data(case: Case, scale: Scale) -> tuple[Arrays, Any]:
    """The rows, and the model: named, or what makes it. A quick ResNet trains its head alone: that is logistic."""
    arrays = load(case.data, scale.data)
    if case.model == "cnn":
        return arrays, "cnn"
    if scale.quick:
        few = arrays[0][:400], arrays[1][:400]
        return features(case.model, few, scale.data, scale.device, pooled=True), "logistic"
    return features(case.model, arrays, scale.data, scale.device), HeadFactory(case.model, scale.data, 10)


def _sets(case: Case, problem: Problem, settings: dict[str, Any]) -> dict[str, Outcome]:
    """Data set valuation; without DP at the rate that is best without noise, i.i.d. and Y* at the one with noise."""
    correlated = running_mean(0.9, case.block)
    methods = [
        no_dp(), iid(), Method("correlated", correlated.schedule, "paper"), EQUAL,
        Method("correlated, honest", correlated.schedule, "honest"), HONEST,
    ]  # fmt: skip
    return run_methods(methods, problem, case.k, case.epsilon, **settings)


def _rounds(case: Case, problem: Problem, settings: dict[str, Any]) -> dict[str, Outcome]:
    """A federation: a global model through k rounds; the library's default values the clients as data sets."""
    kinds = ("none", "paper", "honest")
    rates = {noise: round_rate(noise, problem, case.k, case.epsilon, **settings) for noise in kinds}
    X, y = problem.test
    problem = replace(problem, test=(X[: case.public], y[: case.public]))
    found = {}
    for method in ROUND_METHODS:
        asked = {**settings, "learning_rate": rates[method.noise], "metric": "accuracy"}
        found[method.name] = run_rounds(open_run([method], problem, case.k, case.epsilon, **asked), case.orders)
    return found | run_methods([EQUAL, HONEST], problem, case.k, case.epsilon, **settings)


def _scores(trials: list[Trial], name: str) -> list[float]:
    """The AUCs of a method; NaN where it diverged."""
    return [or_nan(one["methods"][name]["auc"]) for one in trials]


def show(case: Case, trials: list[Trial], path: Path) -> str:
    """Return the row of the table, and a figure of it."""
    names = list(trials[0]["methods"])
    scores = {name: _scores(trials, name) for name in names}
    lost = {name: np.subtract(scores["no DP"], scores[name]).tolist() for name in names}
    gain = {name: np.subtract(scores[name], scores["i.i.d."]).tolist() for name in names}
    paper = {"i.i.d.": case.paper[0], "correlated": case.paper[1]}
    spent = [trials[0]["methods"][name] for name in names]
    rows = [
        ["no DP - method, paper", *(paper.get(name, "") for name in names)],
        ["no DP - method, ours", *("-" if name == "no DP" else mean_and_error(lost[name]) for name in names)],
        ["method - i.i.d., ours", *("-" if name == "i.i.d." else mean_and_error(gain[name]) for name in names)],
        ["AUC, ours", *(mean_and_error(scores[name]) for name in names)],
        ["really spent", *("-" if one["epsilon"] is None else f"eps = {one['epsilon']:.3g}" for one in spent)],
        ["noise", *("-" if one["multiplier"] is None else f"{one['multiplier']:.4g}" for one in spent)],
        ["learning rate, first trial", *(f"{one['learning_rate']:.2g}" for one in spent)],
    ]
    figure, axes = plotted(width=7.0)
    means = [float(np.mean(scores[name])) for name in names]
    errors = [float(np.std(scores[name], ddof=1) / len(trials) ** 0.5) for name in names] if len(trials) > 1 else None
    axes[0, 0].bar(names, means, yerr=errors, capsize=3)
    axes[0, 0].set(ylabel="AUC", ylim=(0.3, 1.05), title=case.title)
    axes[0, 0].tick_params(axis="x", labelrotation=20)
    save_figure(figure, path)
    return markdown(["", *names], rows)


def check(better: tuple[str, ...], trials: list[Trial], quick: bool) -> None:
    """Raise unless these methods beat i.i.d. noise; a few permutations of a few parties show only that it runs."""
    baseline = float(np.mean(_scores(trials, "i.i.d.")))
    for name in better:
        found = float(np.mean(_scores(trials, name)))
        if not quick and not found > baseline:
            raise DpvalueError(f"{name} has an AUC of {found:.3f}, not above {baseline:.3f} of i.i.d. noise")


def use_case(name: str, trials: int, minutes: str) -> Experiment:
    """Return a row of the table as an experiment of its own."""
    case = CASES[name]
    return Experiment(
        name=name,
        title=f"{case.title}: k = {case.k}, n = {case.n}, B = {case.per_party}"
        + ("" if case.orders else f", correlated walks in blocks of {case.block}, no DP by 200 walks")
        + ("" if case.model == "cnn" else "; --quick trains the head alone"),
        data=(case.data,),
        trials=trials,
        minutes=minutes,
        trial=partial(trial, case),
        show=partial(show, case),
        # Whether correlated noise helps a federation these trials cannot tell: see federated_rates.
        check=partial(check, ("no DP", EQUAL.name) if case.orders else ("no DP", "correlated", EQUAL.name)),
        weights=() if case.model == "cnn" else (case.model,),
    )


USE_CASES = (
    use_case("sets-mnist", 3, "2 (GPU)"), use_case("sets-cifar10", 3, "2 (GPU)"),
    use_case("sets-resnet18", 2, "10 (GPU)"), use_case("sets-resnet34", 1, "4 (GPU)"),
    use_case("federated-mnist", 5, "2 (GPU)"), use_case("federated-cifar10", 5, "4 (GPU)"),
)  # fmt: skip
