"""Truncated Monte Carlo Shapley by OpenDataVal: `python by_opendataval.py problem.npz PERMUTATIONS SECONDS`."""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from common import GUESS, Counted, Problem, report

# It imports what its images, texts and distances between data sets need, in versions that go with a torch of 2023.
for name in ("datasets", "models", "models.resnet", "transforms", "transforms.functional"):
    sys.modules[f"torchvision.{name}"] = MagicMock()
for name in ("torchvision", "transformers", "geomloss"):
    sys.modules[name] = MagicMock()
from opendataval.dataval import DataShapley, TMCSampler  # noqa: E402
from opendataval.model import ClassifierSkLearnWrapper  # noqa: E402

problem = Problem(sys.argv[1:])


def log_loss(labels: Any, chances: Any) -> float:
    """Return minus the log-loss; of the library's stand-in for a model of one class, that of a guess."""
    if (chances == chances[0]).all() and float(chances[0].max()) == 1.0:
        return GUESS
    return float((labels * chances.clamp(1e-15, 1.0).log()).sum(1).mean())


def one_hot(labels: Any) -> Any:
    """Return labels as the library takes them."""
    return torch.nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64)), 2).float()


sampler = TMCSampler(mc_epochs=problem.permutations, cache_name=None, random_state=2)
evaluator = DataShapley(sampler)
evaluator.input_model_metric(ClassifierSkLearnWrapper(Counted, 2), log_loss).input_data(
    torch.from_numpy(problem.x).float(),
    one_hot(problem.y),
    torch.from_numpy(problem.x_test).float(),
    one_hot(problem.y_test),
)


def values() -> Any:
    """Return the values by what the sampler has counted so far."""
    if not walked():
        return None
    evaluator.marg_contrib = sampler.marginal_contrib_sum / sampler.marginal_count
    return evaluator.evaluate_data_values()


def walked() -> float:
    """Return how often a row was walked past, on average."""
    return round(float(sampler.marginal_count.sum()) / (problem.n - sampler.min_cardinality), 2)


report(problem, evaluator.train_data_values, values, walked)
