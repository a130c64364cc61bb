"""What methods share whose releases are made along a projection: expectation, and what files hold."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dpvalue.archive import Tensors
from dpvalue.errors import DpvalueError
from dpvalue.planning.expectation import Expectation
from dpvalue.planning.offers import expected_at
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.situation import Situation
from dpvalue.releasing.projection import Projection
from dpvalue.stored import build
from dpvalue.valuation.method import Choice


def expected_auc(at: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
    """Return how well corrupted parties are expected to be found, by what was chosen or by all directions."""
    if choice.expected is not None or rehearsal is None or at.settings.privacy is None:
        return choice.expected
    return expected_at(at, at.settings.privacy, rehearsal)  # at a given norm: nothing had to be chosen


def require_no_tensors(name: str, tensors: Tensors) -> None:
    """Raise unless a file holds no tensors for such a method."""
    if tensors:
        raise DpvalueError(f"the method {name!r} has no tensors of its own, got {', '.join(sorted(tensors))}")


def projection_header(projection: Projection | None) -> dict[str, Any]:
    """Return what a file holds of a projection."""
    return {"projection": None if projection is None else vars(projection)}


def projection_of(header: dict[str, Any], basis: Tensor | None) -> Projection | None:
    """Return the projection of a file; raises unless it comes with a basis, or neither is there."""
    stored = header.get("projection")
    if (basis is None) != (stored is None):
        raise DpvalueError("projection and basis go together, got one of them")
    return None if stored is None else build(Projection, "projection", stored)
