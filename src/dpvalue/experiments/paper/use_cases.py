"""The table "other_use_cases": data sets and clients of a federation as parties.

Each party holds B images; of 30% of the parties all labels are changed. Shown is AUC(no DP) - AUC(method), lower is
better. In data set valuation a party moves the model by the gradient of its mean loss, as a single point does. The
library's own columns have pixels standardised by the public rows; the refit game values a logistic model of the leading
public directions of the images, from one release a party.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpvalue.engine.engines import Local
from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.agreement import Cells
from dpvalue.experiments.paper.datasets import Arrays, load
from dpvalue.experiments.paper.federated import ROUND_METHODS, round_rate, value_rounds
from dpvalue.experiments.paper.labels import known_auc, or_nan
from dpvalue.experiments.paper.methods import (
    DEFAULT_EQUAL,
    DEFAULT_HONEST,
    IID,
    PaperMethod,
    PaperOutcome,
    no_dp,
    running_mean,
)
from dpvalue.experiments.paper.pages import markdown, mean_and_error, plotted, said_spent, save_figure
from dpvalue.experiments.paper.problem import TRIALS, PaperProblem, make_sets
from dpvalue.experiments.paper.readings import AS_PRINTED, AS_RUN, PaperReading
from dpvalue.experiments.paper.resnets import HeadFactory, features
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale, first_of
from dpvalue.experiments.paper.valuing import Key, ValuationSpec, run_methods, run_together

SHARE = 0.3
# The library's default releases before it walks: fewer permutations only cost it Monte Carlo error.
EQUAL, HONEST = replace(DEFAULT_EQUAL, walks=200), replace(DEFAULT_HONEST, walks=200)
REFIT_EQUAL, REFIT_HONEST = (
    PaperMethod(f"refit, {name}", None, noise, walks=50)
    for name, noise in (("equal noise", "equal"), ("honest", "honest"))
)
REFIT_DIRECTIONS = 20


@dataclass(frozen=True)
class Case:
    """A row of the table: the data, the model, k permutations (or rounds), n parties of B images, and the budget.

    `orders` are the permutations that value a round of a federation; 0 is data set valuation. `spare` are public rows
    that only the search for a learning rate of a federation sees. `run` is the second reading of the paper, and
    `fitted` the rate at which it is nearest to the paper on rows that no trial sees (`sweeps`).
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
    block: int = 1
    paper: tuple[str, str] = ("", "")
    run: PaperReading = AS_RUN
    fitted: float = 0.03

    @property
    def readings(self) -> tuple[PaperReading, ...]:
        """The readings of the table: as printed, and the second one at both rates."""
        return AS_PRINTED, self.run, self.run.at(self.fitted, f"{self.run.name}, fitted rate")

    @property
    def shares(self) -> bool:
        """Whether walks of several splits can be taken side by side: those of data sets, one by one."""
        return self.block == 1 and not self.orders

    @property
    def cells(self) -> Cells:
        """The paper's cells: what of the AUC is lost."""
        return {"lost": dict(zip(("i.i.d.", "correlated"), self.paper, strict=True))}

    def scaled(self, problem: PaperProblem, reading: PaperReading) -> PaperProblem:
        """Return the problem with pixels as a reading has them; features of a ResNet are as they are."""
        return reading.scaled(problem) if self.model == "cnn" else problem

    def sized(self, quick: bool) -> Case:
        """Return the case, in small if it is to be quick."""
        if not quick:
            return self
        return replace(self, k=20, n=20, per_party=8, public=200, spare=0, orders=min(self.orders, 10))


CASES = {
    "sets-mnist": Case(
        "data set valuation, MNIST + CNN", "mnist", "cnn", 200, 800, 8, block=10,
        paper=("0.290 (.016)", "0.170 (.037)"), run=replace(AS_RUN, binds=True), fitted=0.005,
    ),
    "sets-cifar10": Case(
        "data set valuation, CIFAR10 + CNN", "cifar10", "cnn", 1000, 100, 32, public=500,
        paper=("0.178 (.059)", "0.0303 (.015)"), run=replace(AS_RUN, standardised=True), fitted=0.002,
    ),
    "sets-resnet18": Case(
        "data set valuation, CIFAR10 + ResNet18", "cifar10", "resnet18", 200, 100, 32, public=300, block=10,
        paper=("0.204 (.053)", "0.119 (.017)"), fitted=0.003,
    ),
    "sets-resnet34": Case(
        "data set valuation, CIFAR10 + ResNet34, epsilon = 10", "cifar10", "resnet34", 200, 100, 32, public=300,
        epsilon=10.0, block=10, paper=("0.141 (.009)", "0.0433 (.007)"), fitted=0.003,
    ),
    "federated-mnist": Case(
        "federated, MNIST + CNN", "mnist", "cnn", 50, 50, 32, spare=4000, orders=100,
        paper=("0.195 (.009)", "0.0810 (.008)"), run=replace(AS_RUN, standardised=True), fitted=0.15,
    ),
    "federated-cifar10": Case(
        "federated, CIFAR10 + CNN", "cifar10", "cnn", 50, 50, 32, public=500, spare=2000, orders=100,
        paper=("0.167 (.040)", "0.0415 (.010)"), run=replace(AS_RUN, standardised=True), fitted=0.1,
    ),
}  # fmt: skip


def make_trials(case: Case, scale: TrialScale, numbers: Sequence[int]) -> list[Trial]:
    """Value splits by every method, the paper's in every reading; return the AUCs of each."""
    case = case.sized(scale.quick)
    raw = {number: drawn(case, scale, number) for number in numbers}
    own_walks = [one for one in case.readings if one == AS_PRINTED or not one.walks_like(AS_PRINTED)]
    with products(case):
        found = walked(
            case,
            {
                (number, reading): Split(case.scaled(problem, reading), reading, settings)
                for number, (problem, settings) in raw.items()
                for reading in own_walks
            },
        )
        ours = {number: _ours(case, *split) for number, split in raw.items()}
    return [
        {
            "readings": {
                reading.name: scored(found[number, reading if reading in own_walks else AS_PRINTED], problem)
                for reading in case.readings
            },
            "methods": scored(ours[number], problem),
        }
        for number, (problem, _) in raw.items()
    ]


def _ours(case: Case, raw: PaperProblem, settings: dict[str, Any]) -> dict[str, PaperOutcome]:
    """What the library's own methods find."""
    problem = judged(case, raw.standardised() if case.model == "cnn" else raw)
    return run_methods([EQUAL, HONEST], problem, case.k, case.epsilon, **settings) | _refit(case, raw, settings)


def scored(found: dict[str, PaperOutcome], problem: PaperProblem) -> dict[str, Any]:
    """Return the AUC of each method, and what it cost."""
    return {name: {"auc": known_auc(one.values["shapley"], problem.changed), **one.cost} for name, one in found.items()}


def drawn(case: Case, scale: TrialScale, number: int, of: str = TRIALS) -> tuple[PaperProblem, dict[str, Any]]:
    """Return the split of a trial, its pixels from 0 to 1, and how its methods are run."""
    arrays, model = _data(case, scale)
    problem = make_sets(arrays, case.n, case.per_party, case.public + case.spare, number, SHARE, of)
    return problem, {"model": model, "engine": Local(device=scale.device), "seed": number}


def judged(case: Case, problem: PaperProblem) -> PaperProblem:
    """Return the problem without the public rows that only a search sees."""
    X, y = problem.test
    return replace(problem, test=(X[: case.public], y[: case.public]))


@contextmanager
def products(case: Case) -> Iterator[None]:
    """Multiply matrices of a ResNet in the precision "high": a GPU may round factors to 10 bits (TF32).

    A gradient is clipped after it is made, without products: what a release may depend on stays bounded.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if case.model == "cnn" else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _data(case: Case, scale: TrialScale) -> tuple[Arrays, Any]:
    """The rows, and the model: named, or what makes it. A quick ResNet trains its head alone: that is logistic."""
    arrays = load(case.data, scale.data)
    if case.model == "cnn":
        return arrays, "cnn"
    if scale.quick:
        few = arrays[0][:900], arrays[1][:900]
        return features(case.model, few, scale.data, scale.device, pooled=True), "logistic"
    return features(case.model, arrays, scale.data, scale.device), HeadFactory(case.model, scale.data, 10)


@dataclass(frozen=True, eq=False)
class Split:
    """A problem in a reading, its pixels as the reading has them, and how its methods are run."""

    problem: PaperProblem
    reading: PaperReading
    settings: dict[str, Any]


def walked(case: Case, splits: Mapping[Key, Split], orders: int | None = None) -> dict[Key, dict[str, PaperOutcome]]:
    """Value splits by the paper's methods; `orders` value a round instead of the case's own number.

    Without DP at the rate that is best without noise, i.i.d. and correlated noise at the one that is best with it.
    """
    if case.orders:
        return {key: _federated(case, split, orders or case.orders) for key, split in splits.items()}
    methods = [no_dp(200), IID, PaperMethod("correlated", running_mean(0.9, case.block).schedule, "paper")]
    return run_together(
        {
            key: ValuationSpec(
                methods, one.problem, case.k, case.epsilon, settings={**one.settings, "reading": one.reading}
            )
            for key, one in splits.items()
        }
    )


def _federated(case: Case, split: Split, orders: int) -> dict[str, PaperOutcome]:
    """The same for the clients of a federation, whose global model is trained round by round."""
    asked = {**split.settings, "reading": split.reading}
    rates = {noise: round_rate(noise, split.problem, case.k, case.epsilon, **asked) for noise in ("none", "paper")}
    found, judges = {}, judged(case, split.problem)
    for method in ROUND_METHODS:
        own = {**asked, "learning_rate": rates[method.noise]}
        found[method.name] = value_rounds(method, judges, case.k, case.epsilon, orders, **own)
    return found


def _refit(case: Case, problem: PaperProblem, settings: dict[str, Any]) -> dict[str, PaperOutcome]:
    """The refit game of a logistic model on the leading public directions of the images (or a ResNet's features)."""
    (X, y), (X_test, y_test) = problem.train, judged(case, problem).test
    flat, public = (torch.from_numpy(np.ascontiguousarray(part)).flatten(1).double() for part in (X, X_test))
    mean = public.mean(0)
    _, sizes, directions = torch.linalg.svd(public - mean, full_matrices=False)
    basis = directions[:REFIT_DIRECTIONS].T * (len(public) ** 0.5 / sizes[:REFIT_DIRECTIONS].square().mean().sqrt())
    reduced = replace(
        problem, train=(((flat - mean) @ basis).numpy(), y), test=(((public - mean) @ basis).numpy(), y_test)
    )
    own = {**settings, "model": "logistic", "game": "refit", "engine": Local(device="cpu")}
    return run_methods([REFIT_EQUAL, REFIT_HONEST], reduced, case.k, case.epsilon, **own)


def _scores(trials: list[Trial], reading: PaperReading | None, name: str) -> list[float]:
    """The AUCs of a method in a reading, or of ours; NaN where it diverged."""
    found = [one["methods"] if reading is None else one["readings"][reading.name] for one in trials]
    return [or_nan(one[name]["auc"]) for one in found]


def show(case: Case, trials: list[Trial], path: Path) -> str:
    """Return the row of the table in each reading, and a figure of it."""
    columns, ours = ["i.i.d.", "correlated"], list(trials[0]["methods"])
    rows = [["lost, paper", "", *case.paper, *[""] * len(ours)]]
    for reading in case.readings:
        quiet = _scores(trials, reading, "no DP")
        lost = [np.subtract(quiet, _scores(trials, reading, name)).tolist() for name in columns]
        default = [np.subtract(quiet, _scores(trials, None, name)).tolist() for name in ours]
        shown = [mean_and_error(one) for one in default] if reading == AS_PRINTED else [""] * len(ours)
        rows.append([f"lost, {reading.name}", "", *(mean_and_error(one) for one in lost), *shown])
    for reading in case.readings:
        found = [mean_and_error(_scores(trials, reading, name)) for name in ("no DP", *columns)]
        shown = [mean_and_error(_scores(trials, None, name)) for name in ours]
        rows.append([f"AUC, {reading.name}", *found, *(shown if reading == AS_PRINTED else [""] * len(ours))])
    for reading in case.readings:
        gain = np.subtract(_scores(trials, reading, "correlated"), _scores(trials, reading, "i.i.d.")).tolist()
        rows.append([f"correlated - i.i.d., {reading.name}", "", "", mean_and_error(gain), *[""] * len(ours)])
    for reading in case.readings:
        one, own = trials[0]["readings"][reading.name], trials[0]["methods"]
        spent = [said_spent(own[name]) for name in ours] if reading == AS_PRINTED else [""] * len(ours)
        rows.append([f"really spent, {reading.name}", *(said_spent(one[name]) for name in ("no DP", *columns)), *spent])
        rates = [f"{one[name]['learning_rate']:.2g}" for name in ("no DP", *columns)]
        rows.append([f"learning rate, {reading.name}, first trial", *rates, *[""] * len(ours)])
    _bars(case, trials, path)
    return markdown(["", "no DP", *columns, *ours], rows)


def _bars(case: Case, trials: list[Trial], path: Path) -> None:
    figure, axes = plotted(width=8.0)
    bars = {f"{name}, {reading.name}": _scores(trials, reading, name) for reading in case.readings for name in _SHOWN}
    bars |= {name: _scores(trials, None, name) for name in trials[0]["methods"]}
    errors = [float(np.std(one, ddof=1) / len(trials) ** 0.5) for one in bars.values()] if len(trials) > 1 else None
    axes[0, 0].barh(list(bars), [float(np.mean(one)) for one in bars.values()], xerr=errors, capsize=3)
    axes[0, 0].invert_yaxis()
    axes[0, 0].set(xlabel="AUC", xlim=(0.3, 1.05), title=case.title)
    axes[0, 0].tick_params(axis="y", labelsize="small")
    save_figure(figure, path)


_SHOWN = ("no DP", "i.i.d.", "correlated")


def check(case: Case, trials: list[Trial], quick: bool) -> None:
    """Raise unless our default and, as fitted, correlated noise beat i.i.d. noise; quick trials show that it runs."""
    if quick:
        return
    baseline = float(np.mean(_scores(trials, case.readings[-1], "i.i.d.")))
    correlated = float(np.mean(_scores(trials, case.readings[-1], "correlated")))
    for name, found in ((EQUAL.name, float(np.mean(_scores(trials, None, EQUAL.name)))), ("correlated", correlated)):
        if not found > baseline:
            raise DpvalueError(f"{name} has an AUC of {found:.3f}, not above {baseline:.3f} of i.i.d. noise")


def use_case(name: str, count: int, minutes: str) -> Experiment:
    """Return a row of the table as an experiment of its own."""
    case = CASES[name]
    return Experiment(
        name=name,
        title=f"{case.title}: k = {case.k}, n = {case.n}, B = {case.per_party}"
        + ("" if case.orders else ", no DP by 200 walks")
        + ("" if case.block == 1 else f", correlated walks in blocks of {case.block}")
        + ("" if case.model == "cnn" else "; --quick trains the head alone"),
        data=(case.data,),
        trials=count,
        minutes=minutes,
        trial=partial(first_of, partial(make_trials, case)),
        show=partial(show, case),
        check=partial(check, case),
        weights=() if case.model == "cnn" else (case.model,),
        together=partial(make_trials, case) if case.shares else None,
    )


USE_CASES = (
    use_case("sets-mnist", 3, "2 (GPU)"), use_case("sets-cifar10", 5, "4 (GPU)"),
    use_case("sets-resnet18", 2, "10 (GPU)"), use_case("sets-resnet34", 1, "4 (GPU)"),
    use_case("federated-mnist", 5, "2 (GPU)"), use_case("federated-cifar10", 5, "4 (GPU)"),
)  # fmt: skip
