"""What is compared: the refit game and the sum of steps at some epsilon, and federated averaging without noise."""

from __future__ import annotations

import time
import warnings

import numpy as np

import dpvalue as dpv
from dpvalue.experiments.consortium.averaging import averaged_values
from dpvalue.experiments.consortium.harness import CellOutcome, IntervalScores
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import Values
from dpvalue.models import TREES
from dpvalue.values.result import Result

DELTA = 1e-5
GAMES = ("refit", "steps")
AVERAGING = "averaging"


def settings_of(problem: PartyProblem, game: str, epsilon: float | None) -> dpv.Settings:
    """Return the settings of a run: all defaults, but for what the problem and the simulation need.

    Trees are a model, and have a game of their own.
    """
    return dpv.Settings(
        game="auto" if game == TREES else game,
        model=TREES if game == TREES else "linear" if problem.regression else "logistic",
        privacy=None if epsilon is None else dpv.Privacy(epsilon, DELTA, unit="record"),
        noise="fast",
        seed=problem.seed,
        engine=dpv.Local(device="cpu", threads=1),
        classes=None if problem.regression else tuple(range(problem.classes)),
    )


def run_game(problem: PartyProblem, game: str, epsilon: float | None, intervals: bool = False) -> CellOutcome:
    """Return what a game of ours says of a problem."""
    x, y, groups = problem.private()
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # delta is fixed, as in the issue, however many records there are
        result = dpv.value(
            (x, y),
            problem.utility(),
            settings_of(problem, game, epsilon),
            groups=groups,
            semivalues=("shapley", "loo"),
            progress=False,
        )
    seconds = time.perf_counter() - began
    order = places(result, problem)
    values = Values(result.values["shapley"][order], result.values["loo"][order])
    held = None
    if intervals and epsilon is not None:
        found = result.intervals("shapley")
        held = IntervalScores(found.low[order], found.high[order])
    return CellOutcome(game, problem.cell, problem.seed, epsilon, values, held, seconds=seconds)


def run_averaging(problem: PartyProblem) -> CellOutcome:
    """Return what size-weighted federated averaging says, without noise."""
    began = time.perf_counter()
    values = averaged_values(problem)
    return CellOutcome(AVERAGING, problem.cell, problem.seed, None, values, seconds=time.perf_counter() - began)


def places(result: Result, problem: PartyProblem) -> np.ndarray:
    """Return where the parties of a problem stand in a result."""
    names = list(result.table.names)
    return np.array([names.index(name) for name in problem.names])
