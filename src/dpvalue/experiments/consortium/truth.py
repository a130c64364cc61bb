"""What retraining says: the exact values of the game in which a coalition is worth what its own records teach.

A coalition's model is the ridge fit of the union of its records (`fits.py`); its worth is minus the mean log loss, or
the mean squared error of the standardised number, on the public rows. Nobody has the model of zeros. A record without
features, or without a known label, is no data.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.experiments.consortium.fits import Stack, fit_all, stack, worth
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.games.semivalues import semivalue
from dpvalue.games.solving import ListedGame, enumerate_values


@dataclass(frozen=True, eq=False)
class Values:
    """The Shapley and leave-one-out values of all parties."""

    shapley: Floats
    loo: Floats


@dataclass(frozen=True)
class Truth:
    """The values of one problem by retraining, and what tells the problem from others.

    Attributes:
        cell: the name of its cell.
        seed: of the problem.
        fingerprint: of its rows and labels; values of another problem are not compared with these.
        sizes: the number of records of each party.
        defects: of each party; "" for none.
        scale: by how much sizes were cut, because rows do not suffice.
        nobody: the worth of the model of zeros.
        everybody: the worth of the model of all records.
        shapley: the Shapley values.
        loo: the leave-one-out values.
    """

    cell: str
    seed: int
    fingerprint: str
    sizes: list[int]
    defects: list[str]
    scale: float
    nobody: float
    everybody: float
    shapley: list[float]
    loo: list[float]

    @property
    def values(self) -> Values:
        """The values as arrays."""
        return Values(np.array(self.shapley), np.array(self.loo))

    def as_json(self) -> dict[str, Any]:
        """Return what a file holds: numbers to nine digits."""
        return {
            name: [_short(one) for one in content] if isinstance(content, list) else _short(content)
            for name, content in asdict(self).items()
        }


def retrain(problem: PartyProblem, device: str = "cpu") -> Truth:
    """Return the values of a problem, from the fits of all coalitions of its parties."""
    worths = coalition_worths(problem, device)
    values = exact_values(worths)
    return Truth(
        cell=problem.cell.name,
        seed=problem.seed,
        fingerprint=problem.fingerprint(),
        sizes=problem.sizes.tolist(),
        defects=list(problem.defects),
        scale=problem.scale,
        nobody=float(worths[0]),
        everybody=float(worths[-1]),
        shapley=values.shapley.tolist(),
        loo=values.loo.tolist(),
    )


def coalition_worths(problem: PartyProblem, device: str = "cpu") -> Floats:
    """Return the worths of all 2^n coalitions; bit j of a coalition's number is set if party j is in."""
    return worth(public_stack(problem, device), fit_all(private_stack(problem, device)))


def exact_values(worths: Floats) -> Values:
    """Return the values of a game that is given as the worths of all coalitions."""
    game = ListedGame(worths)
    return Values(enumerate_values(game.worths, game.n, semivalue("shapley")), game.leave_one_out())


def private_stack(problem: PartyProblem, device: str = "cpu") -> Stack:
    """Return the records that can be learned from."""
    parts = [problem.ready(records.take(records.valid)) for records in problem.parties]
    return stack(parts, problem.classes, device)


def public_stack(problem: PartyProblem, device: str = "cpu") -> Stack:
    """Return the rows that judge."""
    return stack([problem.utility()], problem.classes, device)


def _short(content: Any) -> Any:
    return float(f"{content:.9g}") if isinstance(content, float) else content
