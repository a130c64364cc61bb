"""Files of the natural benchmark: true values, and what methods said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpvalue.errors import DpvalueError
from dpvalue.experiments.bench.machine import facts
from dpvalue.experiments.consortium.natural.cells import NATURAL_CELLS
from dpvalue.experiments.consortium.natural.truth import NaturalTruth
from dpvalue.experiments.consortium.truth import Values
from dpvalue.storage import write_whole

TruthKey = tuple[str, int, str]
"""The name of a cell, a seed, and a kind of model."""
NaturalTruths = dict[TruthKey, NaturalTruth]
SaidKey = tuple[str, int, str, float, float]
"""The name of a cell, a seed, a method, epsilon (0: no noise), and what noise is divided by."""
_PLACES = {cell.name: place for place, cell in enumerate(NATURAL_CELLS)}


@dataclass(frozen=True)
class Said:
    """What one method said of one problem, and how long that took."""

    cell: str
    seed: int
    method: str
    epsilon: float
    divisor: float
    fingerprint: str
    shapley: list[float]
    loo: list[float]
    seconds: float

    @property
    def key(self) -> SaidKey:
        """What tells it from others."""
        return self.cell, self.seed, self.method, self.epsilon, self.divisor

    @property
    def values(self) -> Values:
        """The values as arrays."""
        return Values(np.array(self.shapley), np.array(self.loo))


def write_natural_truths(truths: NaturalTruths, path: Path) -> None:
    """Write true values, one problem and model a line, and the seconds of a processor that all took, whole or not."""
    order = sorted(truths, key=lambda key: (_place(key[0]), key))
    seconds = round(sum(one.seconds for one in truths.values()))
    _write(path, f'"seconds": {seconds},\n"truths"', [json.dumps(truths[key].as_json()) for key in order])


def read_natural_truths(path: Path) -> NaturalTruths:
    """Return the true values of a file."""
    found = [NaturalTruth(**one) for one in json.loads(path.read_text())["truths"]]
    return {one.key: one for one in found}


def write_said(said: dict[SaidKey, Said], path: Path) -> None:
    """Write what methods said, one problem a line; whole or not at all."""
    problems: dict[tuple[str, int, str], list[Said]] = {}
    for key in sorted(said, key=lambda key: (_place(key[0]), key)):
        one = said[key]
        problems.setdefault((one.cell, one.seed, one.fingerprint), []).append(one)
    lines = []
    for problem, of_problem in problems.items():
        values = [
            [one.method, one.epsilon, one.divisor, _rounded(one.shapley), _rounded(one.loo), one.seconds]
            for one in of_problem
        ]
        lines.append(json.dumps([*problem, values], separators=(",", ":")))
    _write(path, '"said"', lines)


def read_said(path: Path) -> dict[SaidKey, Said]:
    """Return what a file says that methods said."""
    found = [
        Said(cell, seed, method, epsilon, divisor, fingerprint, shapley, loo, seconds)
        for cell, seed, fingerprint, values in json.loads(path.read_text())["said"]
        for method, epsilon, divisor, shapley, loo, seconds in values
    ]
    return {one.key: one for one in found}


def true_values(said: Said, truths: NaturalTruths, model: str) -> Values | None:
    """Return the values that a method's are compared with; None if there are none; raise if they are of other rows."""
    found = truths.get((said.cell, said.seed, model))
    if found is None:
        return None
    if found.fingerprint != said.fingerprint:
        raise DpvalueError(f"the true values of {said.cell}, seed {said.seed} are those of other rows")
    return found.values


def _rounded(values: list[float]) -> list[float]:
    return [float(f"{one:.4g}") for one in values]


def _place(cell: str) -> int:
    return _PLACES.get(cell, len(_PLACES))


def _write(path: Path, head: str, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = ",\n".join(lines)
    write_whole(path, f'{{"machine": {json.dumps(facts())},\n{head}: [\n{content}\n]}}\n'.encode())
