"""Truncated Monte Carlo Shapley by pyDVL: `python by_pydvl.py problem.npz PERMUTATIONS SECONDS`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from common import GUESS, Counted, Problem, report
from pydvl.valuation import (
    Dataset,
    MinUpdates,
    ModelUtility,
    PermutationSampler,
    RelativeTruncation,
    ShapleyValuation,
    SupervisedScorer,
)

problem = Problem(sys.argv[1:])
names = [str(column) for column in range(problem.x.shape[1])]
train, test = Dataset(problem.x, problem.y, names), Dataset(problem.x_test, problem.y_test, names)
scorer = SupervisedScorer("neg_log_loss", test, default=GUESS, range=(-np.inf, 0.0))
valuation = ShapleyValuation(
    ModelUtility(Counted(), scorer, show_warnings=False),
    PermutationSampler(RelativeTruncation(rtol=0.01), seed=1),
    MinUpdates(problem.permutations),
    show_warnings=False,
    progress=False,
)


def values() -> Any:
    """Return the values in the order of the rows."""
    if not valuation.is_fitted or not valuation.result.counts.any():
        return None
    order = np.argsort(valuation.result.indices)
    return np.asarray(valuation.result.values)[order]


def walked() -> int:
    """Return how often every row was walked past."""
    return int(valuation.result.counts.min()) if valuation.is_fitted else 0


report(problem, lambda: valuation.fit(train), values, walked)
