"""The demonstration: ten hospitals with protected records, three of them with wrong labels."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Floats, Ints
from dpvalue.errors import require_choice
from dpvalue.streams import require_seed

HOSPITALS, RECORDS, CORRUPTED = 10, 45, 3

MEASURED = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave_points", "symmetry",
    "fractal_dimension",
)  # fmt: skip

EMBEDDED = ("breast-cancer", "diabetes")


def embedded(name: str) -> tuple[Floats, Ints]:
    """Return a data set of two classes that scikit-learn ships.

    "diabetes" is the one of 442 rows, its target split at the median.
    """
    require_choice("data", name, EMBEDDED)
    if name == "breast-cancer":
        return _breast_cancer()
    from sklearn.datasets import load_diabetes

    X, target = load_diabetes(return_X_y=True)
    return X, (target > np.median(target)).astype(np.int64)


def _breast_cancer() -> tuple[Floats, Ints]:
    """The file that scikit-learn reads: to import scikit-learn for it takes longer than a plan."""
    spec = find_spec("sklearn")
    places = (spec and spec.submodule_search_locations) or [""]
    path = Path(places[0]) / "datasets" / "data" / "breast_cancer.csv"
    if not path.is_file():  # of a version that keeps it elsewhere
        from sklearn.datasets import load_breast_cancer

        X, y = load_breast_cancer(return_X_y=True)
        return X, y
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    return rows[:, :-1], rows[:, -1].astype(np.int64)


def write_demo(folder: Path, seed: int = 0) -> dict[str, Any]:
    """Write the demonstration's files, and return the options of `dpvalue run` for them.

    Ten fictitious hospitals have 45 rows each of scikit-learn's breast cancer set. Three of them, marked in the column
    `bad_labels`, have half of their labels flipped. The other rows are public. `seed` determines the hospitals.
    """
    import pandas as pd

    require_seed(seed)
    names = [head + name + tail for head, tail in (("mean_", ""), ("", "_error"), ("worst_", "")) for name in MEASURED]
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
