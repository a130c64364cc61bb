"""Permutation sampling by shapiq: `python by_shapiq.py problem.npz PERMUTATIONS SECONDS`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import shapiq
from common import Problem, report

problem = Problem(sys.argv[1:])
# Another seed than pyDVL's: from the same one both draw the same permutations, and agree because of it.
approximator = shapiq.PermutationSamplingSV(n=problem.n, random_state=3)
estimates: list[Any] = []
ends: dict[bool, float] = {}  # what nobody and everybody is worth: each call asks again


def game(coalitions: Any) -> Any:
    """Return what coalitions are worth, a row of booleans each."""
    worths = []
    for coalition in np.atleast_2d(coalitions):
        if coalition.all() or not coalition.any():
            whole = bool(coalition.all())
            if whole not in ends:
                ends[whole] = problem.worth(coalition)
            worths.append(ends[whole])
        else:
            worths.append(problem.worth(coalition))
    return np.array(worths)


def work() -> None:
    """Ask for one permutation at a time, so that something is known when time is up; the mean is the estimate."""
    for _ in range(problem.permutations):
        found = approximator.approximate(budget=problem.n + 1, game=game, batch_size=1)
        estimates.append(found.get_n_order_values(1))


report(problem, work, lambda: np.mean(estimates, axis=0) if estimates else None, lambda: len(estimates))
