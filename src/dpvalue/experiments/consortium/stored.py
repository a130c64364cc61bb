"""Files of the benchmark: the true values, and the data for a machine without scikit-learn."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.errors import DpvalueError
from dpvalue.experiments.bench.machine import facts
from dpvalue.experiments.consortium.cells import CELLS
from dpvalue.experiments.consortium.coverage import Coverage
from dpvalue.experiments.consortium.harness import Key, MethodScores, Scored
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import Truth
from dpvalue.experiments.paper.datasets import HOSPITALS, load, load_hospitals
from dpvalue.storage import write_whole

Truths = dict[tuple[str, int], Truth]
"""By the name of the cell, and the seed."""


def write_truths(truths: Truths, path: Path) -> None:
    """Write true values, one problem a line, in the benchmark's order; whole or not at all."""
    places = {cell.name: place for place, cell in enumerate(CELLS)}
    order = sorted(truths, key=lambda key: (places.get(key[0], len(places)), key))
    lines = ",\n".join(json.dumps(truths[key].as_json()) for key in order)
    _write(path, f'"truths": [\n{lines}\n]')


def read_truths(path: Path) -> Truths:
    """Return the true values of a file."""
    found = [Truth(**one) for one in json.loads(path.read_text())["truths"]]
    return {(one.cell, one.seed): one for one in found}


def truth_of(problem: PartyProblem, truths: Truths) -> Truth:
    """Return the true values of a problem; raise if they are not there, or those of other rows."""
    found = truths.get((problem.cell.name, problem.seed))
    if found is None:
        raise DpvalueError(f"no true values are stored for {problem.cell.name}, seed {problem.seed}")
    if found.fingerprint != problem.fingerprint():
        raise DpvalueError(f"the true values of {problem.cell.name}, seed {problem.seed} are those of other rows")
    return found


def write_scored(scored: dict[Key, Scored], path: Path) -> None:
    """Write scores, one problem and method a line; whole or not at all."""
    lines = []
    for key in sorted(scored):
        done = scored[key]
        scores = {name: _short(number) for name, number in asdict(done.scores).items() if number is not None}
        values = [_short(number) for number in done.values]
        lines.append(json.dumps([*key, scores, values, round(done.seconds, 2)]))
    _write(path, '"scored": [\n' + ",\n".join(lines) + "\n]")


def read_scored(path: Path) -> dict[Key, Scored]:
    """Return the scores of a file."""
    found = {}
    for *key, scores, values, seconds in json.loads(path.read_text())["scored"]:
        cell, seed, method, epsilon = key
        whole = cell, seed, method, float(epsilon)
        found[whole] = Scored(whole, MethodScores(**scores), tuple(values), seconds)
    return found


def write_coverage(found: list[Coverage], path: Path) -> None:
    """Write how often intervals held."""
    lines = ",\n".join(json.dumps({name: _short(one) for name, one in asdict(part).items()}) for part in found)
    _write(path, f'"coverage": [\n{lines}\n]')


def read_coverage(path: Path) -> list[Coverage]:
    """Return what a file says of how often intervals held."""
    return [Coverage(**part) for part in json.loads(path.read_text())["coverage"]]


def _short(number: Any) -> Any:
    return float(f"{number:.6g}") if isinstance(number, float) else number


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, f'{{"machine": {json.dumps(facts())},\n{content}}}\n'.encode())


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
