"""One piece of the benchmark: a problem, valued by one method and scored by the truth; a process does many."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from dpvalue.experiments.consortium.cells import chosen_cells
from dpvalue.experiments.consortium.harness import Key, Scored, judge
from dpvalue.experiments.consortium.methods import AVERAGING, run_averaging, run_game
from dpvalue.experiments.consortium.problems import make_problem
from dpvalue.experiments.consortium.stored import Truths, read_truths, truth_of


@dataclass(frozen=True)
class CellTask:
    """What is to be done: a key, where the data and the truths are, and whether intervals are wanted."""

    cell: str
    seed: int
    method: str
    epsilon: float
    folder: str
    truths: str
    intervals: bool

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.cell, self.seed, self.method, self.epsilon


def work(task: CellTask) -> Scored:
    """Value a problem and score the values."""
    torch.set_num_threads(1)
    (cell,) = chosen_cells([task.cell])
    problem = make_problem(cell, task.seed, task.folder)
    truth = truth_of(problem, _truths(task.truths)).values
    if task.method == AVERAGING:
        outcome = run_averaging(problem)
    else:
        outcome = run_game(problem, task.method, task.epsilon or None, task.intervals)
    return Scored(task.key, judge(outcome, truth), tuple(outcome.values.shapley.tolist()), outcome.seconds)


@lru_cache
def _truths(path: str) -> Truths:
    return read_truths(Path(path))
