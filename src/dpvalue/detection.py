"""How well corrupted parties can be found: the AUC of values, and the ceilings that a budget sets on it."""

from dpvalue.planning.detection import (
    auc,
    ceiling,
    efficiency,
    epsilon_of_ceiling,
    expected_auc,
    gaussian_ceiling,
    laplace_ceiling,
    precision_at,
)

__all__ = [
    "auc",
    "ceiling",
    "efficiency",
    "epsilon_of_ceiling",
    "expected_auc",
    "gaussian_ceiling",
    "laplace_ceiling",
    "precision_at",
]
