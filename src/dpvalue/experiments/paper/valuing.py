"""Problems valued by methods: each walk serves all methods that it can, and a GPU walks several problems at once."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpvalue.arrays import Floats, Ints
from dpvalue.experiments.paper.abreast import MOST_LANES, Lane, walk_abreast
from dpvalue.experiments.paper.methods import (
    PaperMethod,
    PaperOutcome,
    cost_of,
    open_run,
    paper_rate,
    run_method,
    seen_cost,
)
from dpvalue.experiments.paper.problem import PaperProblem
from dpvalue.experiments.paper.readings import AS_PRINTED, WATCH, PaperReading
from dpvalue.games.estimates import Estimator
from dpvalue.games.semivalues import semivalue
from dpvalue.progress import silent

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class ValuationSpec:
    """What is to be found: the values of a problem by some methods, for some semivalues.

    `settings` are those of `dpvalue.value`; with them there may be a `reading` of the paper.
    """

    methods: Sequence[PaperMethod]
    problem: PaperProblem
    k: int
    epsilon: float = 1.0
    semivalues: tuple[str, ...] = ("shapley",)
    metric: str = "loss"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reading(self) -> PaperReading:
        """How the paper is read."""
        reading: PaperReading = self.settings.get("reading", AS_PRINTED)
        return reading


def run_methods(
    methods: Sequence[PaperMethod], problem: PaperProblem, k: int, epsilon: float = 1.0, **given: Any
) -> dict[str, PaperOutcome]:
    """Value one problem by several methods; `given` are the semivalues, metric and settings of `ValuationSpec`."""
    own = {name: given.pop(name) for name in ("semivalues", "metric") if name in given}
    return run_together({"": ValuationSpec(methods, problem, k, epsilon, settings=given, **own)})[""]


def run_together(asked: Mapping[Key, ValuationSpec]) -> dict[Key, dict[str, PaperOutcome]]:
    """Return what each method finds for each that is asked, the paper's with the learning rates of `paper_rate`.

    Methods that differ in burn-in alone walk and release the same: they are walked once. On a GPU running means are
    walked side by side, whoever asked for them.
    """
    found: dict[Key, dict[str, PaperOutcome]] = {key: {} for key in asked}
    waiting: dict[Hashable, list[tuple[Key, _Walks]]] = {}
    for key, ask in asked.items():
        for methods, rate in _groups(ask):
            walks = _Walks(ask, methods, rate)
            if walks.kind is None:
                found[key] |= _walk_alone(walks)
            else:
                waiting.setdefault(walks.kind, []).append((key, walks))
    for alike in waiting.values():
        for start in range(0, len(alike), MOST_LANES):
            some = alike[start : start + MOST_LANES]
            for (key, _), outcomes in zip(some, _walk_together([walks for _, walks in some]), strict=True):
                found[key] |= outcomes
    for key, ask in asked.items():
        for method in ask.methods:
            if method.schedule is None:
                own = {"semivalues": ask.semivalues, "metric": ask.metric, **ask.settings}
                result, cost = run_method(method, ask.problem, ask.k, ask.epsilon, **own)
                found[key][method.name] = PaperOutcome(dict(result.values), cost)
    return {key: {one.name: found[key][one.name] for one in ask.methods} for key, ask in asked.items()}


class _Walks:
    """A run that is about to be walked, and what it is walked for: methods that differ in burn-in alone."""

    def __init__(self, ask: ValuationSpec, methods: Sequence[PaperMethod], rate: float) -> None:
        own = {**ask.settings, "learning_rate": rate}
        run = open_run(methods, ask.problem, ask.k, ask.epsilon, metric=ask.metric, **own)
        self.lane = Lane(run, ask.problem, self._add)
        self._ask, self._methods = ask, methods
        n, k = ask.problem.n, run.settings.permutations
        self._first = {one.name: one.schedule.first_valued(k) for one in methods if one.schedule is not None}
        self._estimators = {
            one.name: {kind: Estimator(semivalue(kind), n) for kind in ask.semivalues} for one in methods
        }
        self._seen = min(self._first.values())

    @property
    def kind(self) -> Hashable | None:
        """Runs of the same kind are walked side by side; None for one that is walked by itself."""
        return self.lane.kind if self.lane.run.walker.initial.is_cuda else None

    def _add(self, orders: Ints, marginals: Floats) -> None:
        for name, own in self._estimators.items():
            skip = max(self._first[name] - self._seen, 0)
            for estimator in own.values():
                estimator.add(orders[skip:], marginals[skip:])
        self._seen += len(orders)

    def outcomes(self, began: float, longest: float, among: int = 1) -> dict[str, PaperOutcome]:
        """What the methods found, and at which cost; the time since `began` was shared by so many runs."""
        ask, run = self._ask, self.lane.run
        seen = seen_cost(self._methods[0], ask.problem.n, ask.k, ask.epsilon, ask.reading, longest)
        cost = {**cost_of(run.choice.guarantee, run.choice.learning_rate, began), **seen}
        cost["seconds"] /= among
        return {
            name: PaperOutcome({kind: estimator.estimate.values for kind, estimator in own.items()}, cost)
            for name, own in self._estimators.items()
        }


def _groups(ask: ValuationSpec) -> list[tuple[list[PaperMethod], float]]:
    """Methods that can share their walks, and their learning rate."""
    walked = [one for one in ask.methods if one.schedule is not None]
    rates = {
        noise: paper_rate(noise, ask.problem, ask.k, ask.epsilon, **ask.settings)
        for noise in sorted({one.noise for one in walked})
    }
    groups: list[list[PaperMethod]] = []
    for method in walked:
        same = next((group for group in groups if method.shares_walks(group[0])), None)
        if same is None:
            groups.append([method])
        else:
            same.append(method)
    return [(group, rates[group[0].noise]) for group in groups]


def _walk_alone(walks: _Walks) -> dict[str, PaperOutcome]:
    """Walk one run; return what it was walked for."""
    began, run = time.perf_counter(), walks.lane.run
    WATCH.start()
    with run.settings.engine.threading():
        run.walks().run(silent, run.evaluate, walks.lane.add)
    return walks.outcomes(began, WATCH.longest())


def _walk_together(walks: Sequence[_Walks]) -> list[dict[str, PaperOutcome]]:
    """Walk runs of a kind side by side; return what each was walked for."""
    began = time.perf_counter()
    longest = walk_abreast([one.lane for one in walks])
    return [one.outcomes(began, length, len(walks)) for one, length in zip(walks, longest, strict=True)]
