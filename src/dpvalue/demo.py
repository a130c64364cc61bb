"""The demonstration: which hospital's data helps, when three of ten have bad labels and no record may be exposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpvalue.privacy.budget import Privacy
from dpvalue.progress import Report
from dpvalue.result import Result
from dpvalue.streams import require_seed
from dpvalue.valuation import value

HOSPITALS, RECORDS, CORRUPTED = 10, 45, 3


@dataclass(frozen=True)
class Demo:
    """The result of the demonstration, and which hospitals really had bad labels."""

    result: Result
    corrupted: NDArray[np.bool_]


def run_demo(epsilon: float = 1.0, seed: int = 0, progress: bool | Report = True) -> Demo:
    """Value ten made-up hospitals, each with 45 rows of scikit-learn's breast cancer set, under record-level privacy.

    Three hospitals have half of their labels flipped. The rest of the set is the public utility set.
    """
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    require_seed(seed)
    X, y = load_breast_cancer(return_X_y=True)
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(X))
    private, public = order[: RECORDS * HOSPITALS], order[RECORDS * HOSPITALS :]
    hospital = np.repeat(np.arange(HOSPITALS), RECORDS)
    corrupted = np.isin(np.arange(HOSPITALS), generator.choice(HOSPITALS, CORRUPTED, replace=False))
    labels = y[private].copy()
    flip = corrupted[hospital] & (generator.random(len(private)) < 0.5)
    labels[flip] = 1 - labels[flip]
    result = value(
        (X[private], labels),
        (X[public], y[public]),
        groups=[chr(ord("A") + number) for number in hospital],
        semivalues=("shapley", "banzhaf", "loo"),
        privacy=Privacy(epsilon=epsilon, unit="record"),
        preprocess=StandardScaler(),
        seed=seed,
        progress=progress,
    )
    return Demo(result, corrupted)
