"""This library: `python by_dpvalue.py problem.npz PERMUTATIONS SECONDS [EPSILON]`; without it, without privacy."""

from __future__ import annotations

import sys
from typing import Any

from common import Problem, report

import dpvalue as dpv

problem = Problem(sys.argv[1:])
epsilon = float(sys.argv[4]) if len(sys.argv) > 4 else None
results: list[Any] = []


def work() -> None:
    """Value the rows: with as many permutations as the others, or under privacy with all defaults."""
    given: dict[str, Any] = {"privacy": None, "permutations": problem.permutations}
    if epsilon is not None:
        given = {"privacy": dpv.Privacy(epsilon)}
    rows, public = (problem.x, problem.y), (problem.x_test, problem.y_test)
    results.append(dpv.value(rows, public, progress=False, **given))


report(
    problem,
    work,
    lambda: results[0].values["shapley"] if results else None,
    lambda: results[0].walks if results else 0,
    lambda: {"epsilon": results[0].guarantee.epsilon, "delta": results[0].guarantee.delta} if results else {},
)
