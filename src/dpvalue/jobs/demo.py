"""The demonstration: which hospital's data helps, when three of ten have bad labels and no record may be exposed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Floats, Ints
from dpvalue.errors import require_choice
from dpvalue.streams import require_seed

HOSPITALS, RECORDS, CORRUPTED = 10, 45, 3
EMBEDDED = ("breast-cancer", "diabetes")


def embedded(name: str) -> tuple[Floats, Ints]:
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


def write_demo(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Write the demonstration's files, and return the options of `dpvalue run` for them.

    Ten made-up hospitals have 45 rows of scikit-learn's breast cancer set each; three of them have half of their labels
    flipped, which the column `bad_labels` tells. The rest of the set is public. `seed` makes the hospitals.
    """
    import pandas as pd
    from sklearn.datasets import load_breast_cancer

    require_seed(seed)
    names = [str(name).replace(" ", "_") for name in load_breast_cancer().feature_names]
    X, y = embedded("breast-cancer")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(X))
    private, public = order[: RECORDS * HOSPITALS], order[RECORDS * HOSPITALS :]
    hospital = np.repeat(np.arange(HOSPITALS), RECORDS)
    corrupted = np.isin(np.arange(HOSPITALS), generator.choice(HOSPITALS, CORRUPTED, replace=False))[hospital]
    flip = corrupted & (generator.random(len(private)) < 0.5)
    diagnoses = np.array(["malignant", "benign"])
    folder.mkdir(parents=True, exist_ok=True)
    train = pd.DataFrame(X[private], columns=names)
    train.insert(0, "hospital", [chr(ord("A") + number) for number in hospital])
    train["diagnosis"] = diagnoses[np.where(flip, 1 - y[private], y[private])]
    train["bad_labels"] = corrupted.astype(int)
    train.to_csv(folder / "hospitals.csv", index=False)
    test = pd.DataFrame(X[public], columns=names)
    test["diagnosis"] = diagnoses[y[public]]
    test.to_csv(folder / "public.csv", index=False)
    return {
        "train": [str(folder / "hospitals.csv")],
        "test": str(folder / "public.csv"),
        "target": "diagnosis",
        "group": "hospital",
        "truth": "bad_labels",
        "unit": "record",
        "semivalue": ["shapley", "banzhaf", "loo"],
        "pay": 100_000,
        "seed": seed,
    }
