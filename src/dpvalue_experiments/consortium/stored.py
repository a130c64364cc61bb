"""Files of the benchmark: the true values, and the data for a machine without scikit-learn."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from dpvalue.errors import DpvalueError
from dpvalue_experiments.bench.machine import facts
from dpvalue_experiments.consortium.cells import CELLS
from dpvalue_experiments.consortium.problems import Problem
from dpvalue_experiments.consortium.truth import Truth
from dpvalue_experiments.paper.datasets import HOSPITALS, load, load_hospitals

Truths = dict[tuple[str, int], Truth]
"""By the name of the cell, and the seed."""


def write_truths(truths: Truths, path: Path) -> None:
    """Write true values, one problem a line, in the benchmark's order; whole or not at all."""
    places = {cell.name: place for place, cell in enumerate(CELLS)}
    order = sorted(truths, key=lambda key: (places.get(key[0], len(places)), key))
    lines = ",\n".join(json.dumps(truths[key].as_json()) for key in order)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(f'{{"machine": {json.dumps(facts())},\n"truths": [\n{lines}\n]}}\n')
    scratch.replace(path)


def read_truths(path: Path) -> Truths:
    """Return the true values of a file."""
    found = [Truth(**one) for one in json.loads(path.read_text())["truths"]]
    return {(one.cell, one.seed): one for one in found}


def truth_of(problem: Problem, truths: Truths) -> Truth:
    """Return the true values of a problem; raise if they are not there, or those of other rows."""
    found = truths.get((problem.cell.name, problem.seed))
    if found is None:
        raise DpvalueError(f"no true values are stored for {problem.cell.name}, seed {problem.seed}")
    if found.fingerprint != problem.fingerprint():
        raise DpvalueError(f"the true values of {problem.cell.name}, seed {problem.seed} are those of other rows")
    return found


def keep_data(folder: str | None, out: Path) -> None:
    """Write all data sets as files that `load` and `load_hospitals` read without scikit-learn."""
    out.mkdir(parents=True, exist_ok=True)
    for name in ("breast-cancer", "digits"):
        x, y = load(name, folder)
        np.savez_compressed(out / f"{name}.npz", x=x, y=y)
    x, y = load("covertype", folder)
    np.savez_compressed(out / "covtype.npz", x=x.astype(np.int16), y=(y + 1).astype(np.uint8))
    x, y = load("wine", folder)
    lines = [";".join(map(repr, row)) for row in np.c_[x, y].tolist()]
    (out / "winequality-red.csv").write_text("\n".join(["columns", *lines]) + "\n")
    x, y, hospital = load_hospitals(folder)
    place = out / "heart-disease"
    place.mkdir(exist_ok=True)
    for name in HOSPITALS:
        rows = np.c_[x, y][hospital == name].tolist()
        text = "\n".join(",".join("?" if cell != cell else repr(cell) for cell in row) for row in rows)
        (place / f"processed.{name}.data").write_text(text + "\n")
