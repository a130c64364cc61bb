"""A baseline: federated averaging by size, without noise.

Each party trains a model of its own, once; a coalition's model is the mean of its members' models, by the numbers of
records that they say they have. Values are exact, over all coalitions.
"""

from __future__ import annotations

import numpy as np
import torch

from dpvalue.arrays import Floats
from dpvalue.experiments.consortium.fits import fit, worth
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import Values, exact_values, private_stack, public_stack


def averaged_values(problem: PartyProblem, device: str = "cpu") -> Values:
    """Return the values of the game in which a coalition averages its members' models."""
    return exact_values(averaged_worths(problem, device))


def averaged_worths(problem: PartyProblem, device: str = "cpu") -> Floats:
    """Return the worths of all 2^n coalitions; nobody has the model of zeros."""
    records, n = private_stack(problem, device), problem.n
    alone = fit(records, torch.eye(n, dtype=torch.long, device=device))
    weights = (np.arange(2**n)[:, None] >> np.arange(n) & 1) * problem.sizes
    shares = weights / np.maximum(weights.sum(1, keepdims=True), 1)
    theta = torch.from_numpy(shares).to(device) @ alone.flatten(1)
    return worth(public_stack(problem, device), theta.view(-1, *alone.shape[1:]))
