"""Regression by counts in public trees: what a prototype has beside retraining, in the natural cells with numbers.

    python benchmarks/tree_regression.py --data-dir FOLDER --json benchmarks/results/tree_regression.json

A record is a one and its label at its leaf of each tree; the label is scaled by 1.5 standard deviations of the public
ones and clipped to 1, so that a record moves a release by sqrt(2B) at most. A leaf predicts the mean label of a
coalition's records there, smoothed towards its parent's; trees are averaged, and a public row judges only trees that it
did not grow. Trees grow on quarters of the public labels as classes. Four ways: 8 leaves, 32 leaves, 64 stumps, and 8
leaves filled with the residuals of a public ridge regression. Beside them the refit game, and sizes alone.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.experiments.bench.machine import facts
from dpvalue.experiments.consortium.harness import spearman
from dpvalue.experiments.consortium.methods import DELTA
from dpvalue.experiments.consortium.natural.cells import chosen_natural
from dpvalue.experiments.consortium.natural.methods import EXACT, METHODS, Budget, effective_epsilon
from dpvalue.experiments.consortium.natural.problems import make_natural
from dpvalue.experiments.consortium.natural.stored import NaturalTruths, read_natural_truths
from dpvalue.experiments.consortium.natural.truth import BOOSTED, LINEAR
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import Values, exact_values
from dpvalue.methods.growing import even_salt, fold_of, grow_forest
from dpvalue.methods.leaf_rule import ForestShape
from dpvalue.methods.leaves import Grown
from dpvalue.privacy.budget import Privacy

CELLS = ("diabetes/*", "wine/*")
BUDGETS = (EXACT, Budget(4, 10), Budget(1, 10), Budget(4), Budget(1))
CLIPPED, BINS, SMOOTHING = 1.5, 4, 20.0


@dataclass(frozen=True)
class Way:
    """One way to count: the shape of the forest, and whether labels are residuals of a public model."""

    shape: ForestShape
    residuals: bool = False


WAYS = {
    "8 leaves": Way(ForestShape(32, 8, SMOOTHING)),
    "32 leaves": Way(ForestShape(32, 32, SMOOTHING)),
    "64 stumps": Way(ForestShape(64, 2, SMOOTHING)),
    "8 leaves of residuals": Way(ForestShape(32, 8, SMOOTHING), residuals=True),
}


def values_of(problem: PartyProblem, way: Way, budget: Budget, seed: int) -> Values:
    """Return the values of one way of counting."""
    public, known = problem.utility()
    parties = [problem.ready(records.take(records.valid)) for records in problem.parties]
    scale = CLIPPED * float(known.std())
    model = Ridge(1.0).fit(public, known)
    offsets = [model.predict(x) if way.residuals else np.zeros(len(x)) for x in (public, *(x for x, _ in parties))]
    grown = _grown(public, known - offsets[0], way.shape, seed)
    noise = np.random.default_rng(seed)
    std = 0.0
    if budget.epsilon:
        multiplier = Privacy(effective_epsilon(budget), DELTA).noise_multiplier(1, 1)
        std = multiplier * (2 * grown.forest.trees) ** 0.5
    released = []
    for (x, y), offset in zip(parties, offsets[1:], strict=True):
        leaves = grown.forest.leaf_of(torch.tensor(x, dtype=torch.float32)).cpu()
        ones = torch.nn.functional.one_hot(leaves.long(), grown.forest.leaves).double()
        labels = torch.from_numpy(np.clip((y - offset) / scale, -1, 1))
        both = torch.stack([ones.sum(0), (ones * labels[:, None, None]).sum(0)], dim=-1)
        released.append(both + std * torch.from_numpy(noise.standard_normal(tuple(both.shape))))
    coalitions = torch.tensor(np.arange(2**problem.n)[:, None] >> np.arange(problem.n) & 1, dtype=torch.float64)
    means = _means(grown, torch.einsum("sp,ptlc->tlcs", coalitions, torch.stack(released)))
    predicted = offsets[0] + scale * _predicted(grown, torch.tensor(public, dtype=torch.float32), means)
    return exact_values(-np.square(predicted - known).mean(1))


def _grown(public: Floats, labels: Floats, shape: ForestShape, seed: int) -> Grown:
    edges = np.quantile(labels, np.arange(1, BINS) / BINS)
    x, classes = torch.tensor(public, dtype=torch.float32), torch.tensor(np.searchsorted(edges, labels))
    salt = even_salt(x, classes, shape.folds)
    fold = fold_of(x, salt, shape.folds)
    forest, judged_by = grow_forest(x, classes, BINS, fold, shape, np.random.default_rng(seed))
    return Grown(forest, BINS, judged_by, salt, shape.smoothing, 1.0)


def _means(grown: Grown, both: Tensor) -> Tensor:
    """The mean label in each leaf (trees, leaves, coalitions), smoothed from the root down."""
    trees, leaves, _, count = both.shape
    nodes = torch.bmm(grown._below.to(both), both.reshape(trees, leaves, -1)).view(trees, -1, 2, count)
    counts, sums = nodes[:, :, 0].clamp_min(0.0), nodes[:, :, 1]
    level = sums[:, 0] / (counts[:, 0] + 1.0)
    kept = [level]
    for tree, node, places in grown._levels:
        level = (sums[tree, node] + grown.smoothing * level[places]) / (counts[tree, node] + grown.smoothing)
        kept.append(level)
    return torch.cat(kept)[grown._leaf_places].view(trees, leaves, count).clamp(-1.0, 1.0)


def _predicted(grown: Grown, x: Tensor, means: Tensor) -> Floats:
    """What coalitions predict for public rows (coalitions, rows), by trees that have not seen them."""
    leaves, fold = grown.forest.leaf_of(x).cpu().long(), fold_of(x, grown.salt, grown.folds)
    found = np.empty((means.shape[2], len(x)))
    for one in range(grown.folds):
        trees, rows = np.flatnonzero(grown.judged_by == one), np.flatnonzero(fold == one)
        picked = means[torch.from_numpy(trees)[None], leaves[rows][:, trees]]
        found[:, rows] = picked.mean(1).T.numpy()
    return found


def compared(problem: PartyProblem, truths: NaturalTruths, values: Values) -> dict[str, float]:
    """Return the correlations of Shapley values with both truths."""
    return {
        model: round(spearman(values.shapley, truths[problem.cell.name, problem.seed, model].values.shapley), 3)
        for model in (BOOSTED, LINEAR)
    }


def main() -> None:
    """Value all cells, and write means over seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--truths", type=Path, default=Path("benchmarks/results/natural-truth.json"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    truths = read_natural_truths(given.truths)
    found: dict[str, Any] = {
        "machine": facts(),
        "seeds": given.seeds,
        "correlation with boosted, linear retraining": {},
    }
    for cell in chosen_natural(CELLS):
        scores: dict[str, list[dict[str, float]]] = {}
        for seed in given.seeds:
            problem = make_natural(cell, seed, given.data_dir)
            sizes = METHODS["sizes"].value(problem, EXACT, seed)
            scores.setdefault("sizes", []).append(compared(problem, truths, sizes))
            for budget in BUDGETS:
                refit = METHODS["refit"].value(replace(problem, seed=seed), budget, seed)
                scores.setdefault(f"refit, {budget.name}", []).append(compared(problem, truths, refit))
                for name, way in WAYS.items():
                    counted = compared(problem, truths, values_of(problem, way, budget, seed))
                    scores.setdefault(f"{name}, {budget.name}", []).append(counted)
        means = {
            name: [round(float(np.mean([one[model] for one in runs])), 2) for model in (BOOSTED, LINEAR)]
            for name, runs in scores.items()
        }
        found["correlation with boosted, linear retraining"][cell.name] = means
        print(cell.name, cell.half, json.dumps(means), flush=True)  # noqa: T201
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
