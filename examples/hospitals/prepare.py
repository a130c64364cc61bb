"""Writes public.csv and one CSV file for each of four hospitals, to try a study with.

python prepare.py --data heart-disease --out hospitals

--data names a folder with UCI's processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and
processed.va.data. Without it, scikit-learn's breast cancer data is split into four. Every fifth record of each site
becomes public; a real study has a public file of its own.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

SITES = {"site-a": "cleveland", "site-b": "hungarian", "site-c": "switzerland", "site-d": "va"}
COLUMNS = (
    "age", "sex", "chest_pain", "blood_pressure", "cholesterol", "blood_sugar", "ecg", "heart_rate", "angina",
    "depression", "slope", "vessels", "thal", "disease",
)  # fmt: skip


def heart_disease(folder: Path) -> dict[str, pd.DataFrame]:
    """The four hospitals of UCI's heart disease data; the label is whether there is any."""
    sites = {}
    for site, place in SITES.items():
        frame = pd.read_csv(folder / f"processed.{place}.data", header=None, names=list(COLUMNS), na_values="?")
        sites[site] = frame.assign(disease=(frame["disease"] > 0).astype(int))
    return sites


def breast_cancer() -> dict[str, pd.DataFrame]:
    """Breast cancer data, split into four hospitals of different sizes; in the last, 40% of the labels are wrong."""
    from sklearn.datasets import load_breast_cancer

    rng = np.random.default_rng(0)
    frame = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "disease"})
    frame = frame.iloc[rng.permutation(len(frame))].reset_index(drop=True)
    cuts = np.split(np.arange(len(frame)), [250, 400, 500])
    sites = {site: frame.iloc[rows].copy() for site, rows in zip(SITES, cuts, strict=True)}
    last = sites["site-d"]
    wrong = rng.random(len(last)) < 0.4
    last["disease"] = np.where(wrong, 1 - last["disease"], last["disease"])
    return sites


def main() -> None:
    """Write the files, and say how many records each has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the folder of UCI's heart disease data")
    parser.add_argument("--out", type=Path, default=Path("hospitals"))
    given = parser.parse_args()
    sites = breast_cancer() if given.data is None else heart_disease(given.data)
    given.out.mkdir(parents=True, exist_ok=True)
    public = []
    for site, frame in sites.items():
        held = np.arange(len(frame)) % 5 == 0
        public.append(frame[held])
        frame[~held].to_csv(given.out / f"{site}.csv", index=False)
        print(f"{given.out / site}.csv: {int((~held).sum())} records")
    pd.concat(public).to_csv(given.out / "public.csv", index=False)
    print(f"{given.out / 'public.csv'}: {sum(len(part) for part in public)} records")


if __name__ == "__main__":
    main()
