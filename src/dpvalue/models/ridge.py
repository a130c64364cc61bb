"""Linear regression on public rows, fitted at once: whatever the units of features and labels are."""

from __future__ import annotations

import torch
from torch import Tensor

_RIDGES = tuple(10.0**exponent for exponent in range(-4, 4))  # per row, for columns of variance 1


def ridge(x: Tensor, y: Tensor) -> Tensor:
    """Return the parameters (features + 1,) of a linear regression with the ridge of least leave-one-out error.

    Columns are centred and scaled, so that the fit does not depend on units; the bias is not penalised.

    Args:
        x: rows with a column of ones at the end, as `Linear.inputs` makes them.
        y: their labels (rows, 1), as `Linear.targets` makes them.
    """
    features, labels = x[:, :-1].to(torch.float64), y[:, 0].to(torch.float64)
    count, means, spread = len(features), features.mean(0), features.std(0, correction=0)
    spread = torch.where(spread > 0, spread, 1.0)
    mean = labels.mean()
    left, values, right = torch.linalg.svd((features - means) / spread, full_matrices=False)
    along = left.T @ (labels - mean)
    best, least = torch.zeros_like(values), float("inf")
    for strength in _RIDGES:
        shrink = values.square() / (values.square() + strength * count)
        leverage = left.square() @ shrink + 1 / count  # what a row's label adds to its own prediction
        residuals = (labels - mean - left @ (shrink * along)) / (1 - leverage).clamp_min(1e-6)
        error = float(residuals.square().mean())
        if error < least:
            best, least = shrink / values.clamp_min(1e-12) * along, error
    weights = (right.T @ best) / spread
    return torch.cat([weights, (mean - weights @ means)[None]]).to(x)
