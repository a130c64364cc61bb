"""Federated learning as in the paper's appendix (`dpvalue.runs.federated`): its methods, noise and learning rates."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from dpvalue.experiments.paper.methods import PaperMethod, PaperOutcome, cost_of, open_run, seen_cost
from dpvalue.experiments.paper.problem import PaperProblem
from dpvalue.experiments.paper.readings import AS_PRINTED, WATCH
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.federated import RATES, learn, learning_of
from dpvalue.runs.run import Run

ROUND_NO_DP = PaperMethod("no DP", Schedule("independent", burn_in=0.2), "none")
ROUND_IID = PaperMethod("i.i.d.", Schedule("independent", burn_in=0.2), "paper")
ROUND_DECAYING = PaperMethod("correlated", Schedule("decaying", burn_in=0.2), "paper")
ROUND_METHODS = (ROUND_NO_DP, ROUND_IID, ROUND_DECAYING)


def run_rounds(run: Run, orders_per_round: int) -> PaperOutcome:
    """Train the global model for as many rounds as the run has permutations; return the mean of the rounds' values.

    Formal guarantee: as `dpvalue.runs.federated.learn`.
    """
    began = time.perf_counter()
    found = learn(run, orders_per_round)
    cost = {**cost_of(found.guarantee, found.learning_rate, began), "final utility": found.utility}
    return PaperOutcome(found.values, cost)


def value_rounds(
    method: PaperMethod, problem: PaperProblem, k: int, epsilon: float, orders_per_round: int, **settings: Any
) -> PaperOutcome:
    """Train the global model for k rounds by a method, judged by accuracy; return the values, and what they cost."""
    run = open_run([method], problem, k, epsilon, metric="accuracy", **settings)
    WATCH.start()
    found = run_rounds(run, orders_per_round)
    seen = seen_cost(method, problem.n, k, epsilon, settings.get("reading", AS_PRINTED), WATCH.longest())
    return replace(found, cost={**found.cost, **seen})


def round_rate(noise: str, problem: PaperProblem, k: int, epsilon: float, **settings: Any) -> float:
    """Return the learning rate of the best global model after k rounds, searched on public rows; or the reading's.

    Parties of rows from one half of the public set stand in for the clients, with as much noise as is planned (that of
    decaying contributions) but other draws; the other half judges, by loss.
    """
    known = settings.get("reading", AS_PRINTED).rate
    if known is not None:
        return float(known)
    method = ROUND_NO_DP if noise == "none" else replace(ROUND_DECAYING, noise=noise)
    X, y = problem.test
    generator = np.random.default_rng([int(settings["seed"]), problem.n])
    own = {**settings, "seed": int(generator.integers(2**31)), "learning_rate": RATES[0]}
    one, other = np.array_split(generator.permutation(len(X)), 2)
    rows = problem.n * problem.per_party
    drawn = generator.choice(one, rows, replace=rows > len(one))
    public = replace(problem, train=(X[drawn], y[drawn]), test=(X[other], y[other]))
    return learning_of(open_run([method], public, k, epsilon, metric="loss", **own)).best_rate()
