"""What retraining says of natural cells, by two kinds of model, and how far that itself can be trusted.

"linear" is the ridge fit of `consortium/fits.py` (logistic, softmax for many classes, or least squares); nobody has the
model of zeros. "boosted" is scikit-learn's histogram gradient boosting, 30 iterations of at most 8 leaves without early
stopping; nobody says one half for each of two classes, or the public mean of a number, as the model of zeros does. A
coalition that has one class alone predicts shares of classes, one added to the count of each. Every coalition is fitted
on its members' own records, and judged by the mean log loss, or squared error, on the public rows.

The ceiling is the rank correlation of values judged by two halves of the public rows: what the choice of the rows
that judge leaves undecided, no method can agree with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from dpvalue.arrays import Array, Floats
from dpvalue.experiments.consortium.fits import fit_all
from dpvalue.experiments.consortium.harness import spearman
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import Values, exact_values, private_stack, public_stack

LINEAR, BOOSTED = "linear", "boosted"
SEEDS = {LINEAR: 10, BOOSTED: 4}
ITERATIONS, LEAVES = 30, 8
_BATCH = 256


@dataclass(frozen=True)
class NaturalTruth:
    """The values of one problem by retraining one kind of model.

    Attributes:
        cell: the name of its cell.
        seed: of the problem.
        model: "linear" or "boosted".
        fingerprint: of its rows and labels.
        marks: what is special about each party, "" for nothing; empty if nothing is about any.
        nobody: the worth of the empty coalition.
        everybody: the worth of all parties.
        shapley: the Shapley values.
        loo: the leave-one-out values.
        ceiling: rank correlation of Shapley values judged by two halves of the public rows.
        ceiling_loo: the same of leave-one-out values.
        seconds: of a processor that all fits took, in one thread.
    """

    cell: str
    seed: int
    model: str
    fingerprint: str
    marks: list[str]
    nobody: float
    everybody: float
    shapley: list[float]
    loo: list[float]
    ceiling: float
    ceiling_loo: float
    seconds: float

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from others."""
        return self.cell, self.seed, self.model

    @property
    def values(self) -> Values:
        """The values as arrays."""
        return Values(np.array(self.shapley), np.array(self.loo))

    def as_json(self) -> dict[str, Any]:
        """Return what a file holds: values to six digits."""
        return {
            name: [_short(one) for one in content] if isinstance(content, list) else _short(content)
            for name, content in asdict(self).items()
        }


def retrain_natural(problem: PartyProblem, model: str) -> NaturalTruth:
    """Return the values of a problem, from fits of all coalitions of its parties."""
    began = time.process_time()
    losses = LOSSES[model](problem)
    seconds = time.process_time() - began
    values = exact_values(-losses.mean(1))
    first, second = (exact_values(-losses[:, half::2].mean(1)) for half in (0, 1))  # rows stand in random order
    return NaturalTruth(
        cell=problem.cell.name,
        seed=problem.seed,
        model=model,
        fingerprint=problem.fingerprint(),
        marks=list(problem.defects) if any(problem.defects) else [],
        nobody=float(-losses[0].mean()),
        everybody=float(-losses[-1].mean()),
        shapley=values.shapley.tolist(),
        loo=values.loo.tolist(),
        ceiling=spearman(first.shapley, second.shapley),
        ceiling_loo=spearman(first.loo, second.loo),
        seconds=round(seconds, 2),
    )


def linear_losses(problem: PartyProblem) -> Floats:
    """Return the loss of each coalition's ridge fit on each public row (2^n, rows)."""
    public, theta = public_stack(problem), fit_all(private_stack(problem))
    return np.asarray(torch.cat([public.losses(public.logits(some)) for some in theta.split(_BATCH)]).numpy())


def boosted_losses(problem: PartyProblem) -> Floats:
    """Return the loss of each coalition's boosted trees on each public row (2^n, rows); two classes or numbers."""
    parts = [problem.ready(records.take(records.valid)) for records in problem.parties]
    judging, known = problem.utility()
    losses = np.empty((2**problem.n, len(known)))
    losses[0] = known**2 if problem.regression else np.log(2)
    for coalition in range(1, 2**problem.n):
        members = [part for j, part in enumerate(parts) if coalition >> j & 1]
        x, y = (np.concatenate(of_all) for of_all in zip(*members, strict=True))
        varies = x.min(0) < x.max(0)  # no tree splits by the others, which only take time
        if problem.regression:
            losses[coalition] = (_boosted_numbers(x[:, varies], y, judging[:, varies]) - known) ** 2
        else:
            chance = _boosted_chances(x[:, varies], y, judging[:, varies])
            losses[coalition] = -np.log(np.where(known == 1, chance, 1 - chance))
    return losses


def _boosted_numbers(x: Floats, y: Array, judging: Floats) -> Floats:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(
        max_iter=ITERATIONS, max_leaf_nodes=LEAVES, early_stopping=False, random_state=0
    )
    return np.asarray(model.fit(x, y).predict(judging))


def _boosted_chances(x: Floats, y: Array, judging: Floats) -> Floats:
    """Chances of the second of two classes."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    if len(np.unique(y)) == 1:
        return np.full(len(judging), (y.sum() + 1) / (len(y) + 2))
    model = HistGradientBoostingClassifier(
        max_iter=ITERATIONS, max_leaf_nodes=LEAVES, early_stopping=False, random_state=0
    )
    return np.asarray(model.fit(x, y).predict_proba(judging)[:, 1])


LOSSES: dict[str, Callable[[PartyProblem], Floats]] = {LINEAR: linear_losses, BOOSTED: boosted_losses}


def _short(content: Any) -> Any:
    return float(f"{content:.6g}") if isinstance(content, float) else content
