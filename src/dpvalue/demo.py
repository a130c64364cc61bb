"""The demonstration: which hospital's data helps, when three of ten have bad labels and no record may be exposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvalue.errors import require_choice
from dpvalue.plan import plan
from dpvalue.plan_page import Plan
from dpvalue.privacy.budget import Privacy
from dpvalue.progress import Report
from dpvalue.result import Result
from dpvalue.streams import require_seed
from dpvalue.valuation import value

HOSPITALS, RECORDS, CORRUPTED = 10, 45, 3
EMBEDDED = ("breast-cancer", "diabetes")


@dataclass(frozen=True)
class Demo:
    """Ten made-up hospitals: rows, the public set that judges them, whose each row is, and who has bad labels.

    Each has 45 rows of scikit-learn's breast cancer set; three have half of their labels flipped. The rest of the set
    is public.
    """

    private: tuple[NDArray[np.float64], NDArray[np.int64]]
    public: tuple[NDArray[np.float64], NDArray[np.int64]]
    hospitals: list[str]
    corrupted: NDArray[np.bool_]
    settings: dict[str, Any]

    def plan(self) -> Plan:
        """Return what the budget can buy."""
        return plan(self.private, self.public, groups=self.hospitals, **self.settings)

    def value(self, progress: bool | Report = True) -> Result:
        """Return the values under record-level privacy."""
        kinds = ("shapley", "banzhaf", "loo")
        return value(
            self.private, self.public, groups=self.hospitals, semivalues=kinds, progress=progress, **self.settings
        )


def embedded(name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a data set of two classes that scikit-learn ships.

    "diabetes" is the one of 442 rows, its target split at the median.
    """
    from sklearn.datasets import load_breast_cancer, load_diabetes

    require_choice("data", name, EMBEDDED)
    if name == "breast-cancer":
        X, y = load_breast_cancer(return_X_y=True)
    else:
        X, target = load_diabetes(return_X_y=True)
        y = (target > np.median(target)).astype(np.int64)
    return X, y


def make_demo(epsilon: float = 1.0, seed: int = 0) -> Demo:
    """Return the demonstration for a budget per record; `seed` makes the hospitals and the permutations."""
    from sklearn.preprocessing import StandardScaler

    require_seed(seed)
    privacy = Privacy(epsilon=epsilon, unit="record")
    X, y = embedded("breast-cancer")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(X))
    private, public = order[: RECORDS * HOSPITALS], order[RECORDS * HOSPITALS :]
    hospital = np.repeat(np.arange(HOSPITALS), RECORDS)
    corrupted = np.isin(np.arange(HOSPITALS), generator.choice(HOSPITALS, CORRUPTED, replace=False))
    labels = y[private].copy()
    flip = corrupted[hospital] & (generator.random(len(private)) < 0.5)
    labels[flip] = 1 - labels[flip]
    return Demo(
        private=(X[private], labels),
        public=(X[public], y[public]),
        hospitals=[chr(ord("A") + number) for number in hospital],
        corrupted=corrupted,
        settings={"privacy": privacy, "preprocess": StandardScaler(), "seed": seed},
    )
