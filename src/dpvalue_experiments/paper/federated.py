"""Federated learning as in the paper's appendix: rounds with one global model that keeps moving.

In round t every party releases its gradient at the global model. A party's contribution is its own release (i.i.d.), or
decaying: X_tt = 0.75 - 0.7 t/k of it and the rest of its contribution before. A coalition moves the global model by the
mean of its members' contributions, as federated averaging does; the round's Shapley values come from 100 permutations.
Then all parties move the global model. A party's value is the mean over the rounds after the burn-in.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.errors import DpvalueError
from dpvalue.releasing.schedule import Schedule
from dpvalue.server.run import Run
from dpvalue.streams import Purpose, permutations
from dpvalue.valuation.estimates import Estimator
from dpvalue.valuation.semivalues import semivalue
from dpvalue_experiments.paper.methods import Method, Outcome, cost_of, open_run
from dpvalue_experiments.paper.problem import Problem

RATES = tuple(10 ** (exponent / 2) for exponent in range(-10, 3))  # 1e-5 to 10
ROUND_NO_DP = Method("no DP", Schedule("independent", burn_in=0.2), "none")
ROUND_IID = Method("i.i.d.", Schedule("independent", burn_in=0.2), "paper")
ROUND_DECAYING = Method("correlated", Schedule("decaying", burn_in=0.2), "paper")
ROUND_HONEST = replace(ROUND_DECAYING, name="correlated, honest", noise="honest")
ROUND_METHODS = (ROUND_NO_DP, ROUND_IID, ROUND_DECAYING, ROUND_HONEST)


def run_rounds(run: Run, orders_per_round: int) -> Outcome:
    """Train the global model for as many rounds as the run has permutations; return the mean of the rounds' values.

    Formal guarantee: reads the parties' data only through one release per party and round, of the clipped gradient at a
    model that is a function of earlier releases and public things.
    """
    began = time.perf_counter()
    if run.charging is not None or run.choice.schedule.block > 1 or run.choice.schedule.fresh_start:
        raise DpvalueError("federated rounds take no ledger, no blocks and no fresh starts")
    k, n = run.settings.permutations, run.contributions.n
    estimator = Estimator(semivalue("shapley"), n)
    with run.settings.engine.threading():
        for t, (theta, combined) in enumerate(_rounds(run)):
            if t >= run.choice.schedule.first_valued(k):
                orders = permutations(run.settings.seed, Purpose.PERMUTATION, t * orders_per_round, orders_per_round, n)
                estimator.add(orders, _marginals(run, theta, combined, orders))
        final = float(run.evaluate(_moved(run, theta, combined)[None])[0])
    cost = {**cost_of(run.choice.spent, run.walker.learning_rate, began), "final utility": final}
    return Outcome({"shapley": estimator.estimate.values}, cost)


def _rounds(run: Run) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the global model of each round, and the contributions (n, d) that will move it."""
    schedule, k, n = run.choice.schedule, run.settings.permutations, run.contributions.n
    theta = run.walker.initial
    everyone = torch.arange(n, device=theta.device)
    combined = torch.zeros(n, len(theta)).to(theta)
    for t in range(k):
        combined = combined.lerp(_release(run, t, theta, everyone), schedule.own_weight(t, t, k))
        yield theta, combined
        theta = _moved(run, theta, combined)


def _moved(run: Run, theta: Tensor, combined: Tensor) -> Tensor:
    return theta - run.walker.learning_rate * combined.mean(0)


def _marginals(run: Run, theta: Tensor, combined: Tensor, orders: Ints) -> Floats:
    """The marginals (orders, positions) of a round: a coalition moves the global model by its members' mean."""
    n, d = combined.shape
    members = torch.arange(1, n + 1, device=theta.device).unsqueeze(-1)
    start = run.evaluate(theta[None])
    found = []
    together = run.settings.engine.piece(2 * n * d, least=2048)
    for some in torch.from_numpy(orders).to(theta.device).split(together):
        models = theta - run.walker.learning_rate * (combined[some].cumsum(1) / members)
        utilities = run.evaluate(models.flatten(0, 1)).view(len(some), n)
        found.append(torch.cat([start.expand(len(some), 1), utilities], dim=1).diff(dim=1))
    return torch.cat(found).cpu().numpy()


def _release(run: Run, number: int, theta: Tensor, everyone: Tensor) -> Tensor:
    """What all parties release in a round (n, d)."""
    grid = run.contributions.grid()
    clipped = run.contributions.at(theta.expand(len(everyone), -1), everyone, grid)
    release = run.answering.release(number, clipped, grid)
    run.witness(everyone, release)
    return release


def at_rate(run: Run, rate: float) -> Run:
    """Return the run with another learning rate, before anything is released."""
    return replace(run, walker=replace(run.walker, learning_rate=rate))


def round_rate(noise: str, problem: Problem, k: int, epsilon: float, **settings: Any) -> float:
    """Return the learning rate of the best global model after k rounds, searched on public rows.

    Parties of rows from one half of the public set stand in for the clients, with as much noise as is planned (that of
    decaying contributions) but other draws; the other half judges, by loss.
    """
    method = ROUND_NO_DP if noise == "none" else replace(ROUND_DECAYING, noise=noise)
    X, y = problem.test
    generator = np.random.default_rng([int(settings["seed"]), problem.n])
    own = {**settings, "seed": int(generator.integers(2**31)), "learning_rate": RATES[0]}
    one, other = np.array_split(generator.permutation(len(X)), 2)
    rows = problem.n * problem.per_party
    drawn = generator.choice(one, rows, replace=rows > len(one))
    public = replace(problem, train=(X[drawn], y[drawn]), test=(X[other], y[other]))
    run = open_run([method], public, k, epsilon, metric="loss", **own)
    scores = []
    with run.settings.engine.threading():
        for rate in RATES:
            trained = at_rate(run, rate)
            *_, (theta, combined) = _rounds(trained)
            scores.append(float(run.evaluate(_moved(trained, theta, combined)[None])[0]))
    return RATES[int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))]
