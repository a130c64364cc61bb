"""Projections: a release in a small basis of directions, which the coordinator makes from public rows.

A projection spends the budget only on directions that matter for the utility. The sources:

    path       the path of a public model: from the initial model to the one trained on the public set. The gradient is
               averaged over the straight line between them. Its component along the line is exactly the decrease of
               the party's loss by public training, per unit of length: int_0^1 grad l . u dt = (l_0 - l_1) / L.
    utility    the gradient of the public loss at the initial model (and at models trained on from there)
    classes    its gradients class by class
    singular   the leading singular vectors of the public rows' gradients
    loss       no direction: the score, which is the negated loss under a public model. For regression the component
               along a path is linear in the label, (y - f_0)^2 - (y - f_1)^2, and does not separate a distant label
               from one that agrees; the loss does. The game of scores is their sum (`methods.scores`), which depends
               on neither the utility nor a learning rate.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.display import changed_fields, counted
from dpvalue.errors import DpvalueError, require_choice, require_count
from dpvalue.models import REGRESSION, Linear, Model
from dpvalue.models.build import ridge, train

SOURCES = ("refit", "path", "utility", "classes", "singular", "loss")

_LINE_POINTS = 4  # Gauss-Legendre: exact for losses that are polynomials of degree 8 along the line

_STEPS_BETWEEN = 8

_MOST_ROWS = 256


@dataclass(frozen=True)
class Projection:
    """A release in m public directions instead of all d.

    Args:
        m: the number of directions. With 1, every value is a function of one number per party, with the least noise (a
            monotone function while walks stay before the optimum, which "auto" rates ensure). Redundancy between
            parties shows only with more.
        source: "path", "utility", "classes", "singular", or "loss" for a score; see the module.
        steps: the number of training steps of the public model. For "path" and "loss", the end of the path or the model
            of the score (None: chosen on the public set; a linear regression is fitted in closed form). For the other
            sources, the start of the walks, trained on half of the public set (None: the initial model).

    Example:
        >>> print(Projection(2, "utility"))
        2 directions from 'utility'
    """

    m: int = 1
    source: str = "path"
    steps: int | None = None

    def __post_init__(self) -> None:
        require_count("m", self.m)
        require_choice("source", self.source, SOURCES)
        if self.steps is not None:
            require_count("steps", self.steps)
        if self.is_score and self.m != 1:
            raise DpvalueError(f"m must be 1 for the source 'loss', which is one number, got {self.m}")

    @property
    def is_score(self) -> bool:
        """Whether a score is released instead of a gradient; the game is then the sum of scores."""
        return self.source == "loss"

    def leaves_open(self, model: Model) -> bool:
        """Return whether the number of training steps is still to be chosen."""
        at_once = isinstance(model, Linear) and model.task == REGRESSION
        return self.steps is None and (self.source == "path" or (self.is_score and not at_once))

    def __repr__(self) -> str:
        return changed_fields(self, "m", "source")

    def __str__(self) -> str:
        training = f", {self.steps} public steps" if self.steps else ""
        if self.source == "refit":
            return f"a description in up to {counted(self.m, 'whitened direction')}"
        if self.is_score:
            return f"a score: minus the loss under a public model{training} (additive game)"
        return f"{counted(self.m, 'direction')} from {self.source!r}{training}"


@dataclass(frozen=True)
class Basis:
    """The start of walks (d,), orthonormal directions (m, d), and the points (q, m) of the first release.

    The shares (q,) of the points sum to 1. Directions (of a path, the first) point uphill on the public loss, as
    gradients do: a party whose data agrees with the public set has a positive component.
    """

    origin: Tensor
    vectors: Tensor
    points: Tensor
    shares: Tensor


def make_basis(projection: Projection, model: Model, initial: Tensor, x: Tensor, y: Tensor, seed: int) -> Basis:
    """Return the basis of a projection, from public rows x and labels y as the model takes them.

    Formal guarantee: reads public rows only.
    """
    m = projection.m
    if projection.source == "refit":
        raise DpvalueError("source 'refit' is for game='refit', which chooses its own directions")
    if projection.leaves_open(model):
        raise DpvalueError(f"steps must be given to make one basis of source {projection.source!r}")
    if projection.is_score:
        if projection.steps is None:
            return score_basis(projection, initial, ridge(x, y))
        return score_basis(projection, initial, train(model, initial, x, y, [projection.steps], seed)[0])
    if projection.source == "path":
        assert projection.steps is not None
        marks = sorted({max(1, projection.steps * part // m) for part in range(1, m + 1)})
        return path_basis(projection, initial, train(model, initial, x, y, marks, seed))
    origin = initial
    if projection.steps is not None:
        origin = train(model, initial, x[::2], y[::2], [projection.steps], seed)[0]
    if projection.source == "utility":
        marks = [_STEPS_BETWEEN * part for part in range(1, m)]
        models = [origin, *train(model, origin, x, y, marks, seed)]
        directions = torch.stack([mean_gradient(model, theta, x, y) for theta in models])
    elif projection.source == "classes":
        directions = _class_gradients(model, origin, x, y)
    else:
        evenly = slice(None, None, -(-len(x) // _MOST_ROWS))  # evenly over the set, however it is sorted
        rows = model.record_gradients(origin[None], x[None, evenly], y[None, evenly])[0]
        squares, left = torch.linalg.eigh(rows @ rows.T)  # rows = left s right: far smaller than rows when d is large
        directions = (left.T @ rows).flip(0)[:m][squares.flip(0)[:m] > 1e-6 * squares[-1]]
    vectors = _orthonormal(directions, projection)
    slopes = vectors @ mean_gradient(model, origin, x, y)
    vectors = torch.where(slopes < 0, -1.0, 1.0).unsqueeze(-1) * vectors
    return Basis(origin, vectors, origin.new_zeros(1, m), origin.new_ones(1))


def path_basis(projection: Projection, initial: Tensor, models: list[Tensor]) -> Basis:
    """Return the basis of the straight line from the initial to the last model, and of the models between."""
    path = [initial, *models]
    steps = [before - after for before, after in itertools.pairwise(path[:-1])]
    vectors = _orthonormal(torch.stack([initial - path[-1], *steps]), projection)
    places, shares = np.polynomial.legendre.leggauss(_LINE_POINTS)
    points = initial.new_zeros(_LINE_POINTS, projection.m)
    points[:, 0] = torch.from_numpy((places + 1) / 2).to(initial) * (vectors[0] @ (path[-1] - initial))
    return Basis(initial, vectors, points, torch.from_numpy(shares / 2).to(initial))


def score_basis(projection: Projection, initial: Tensor, public_model: Tensor) -> Basis:
    """Return the line from the initial model to a public one; the point is its end, for losses of rows."""
    vectors = _orthonormal((initial - public_model)[None], projection)
    return Basis(initial, vectors, (vectors @ (public_model - initial))[None], initial.new_ones(1))


def mean_gradient(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient (d,) of the mean loss of rows x with labels y."""
    weights = torch.full((1, len(x)), 1 / len(x)).to(theta)
    return model.gradients(theta[None], x[None], y[None], weights)[0]


def _class_gradients(model: Model, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    if model.task == REGRESSION:
        raise DpvalueError("source='classes' is for classification, got a regression model")
    labels = y.argmax(-1) if y.dim() > 1 else y
    gradients = [mean_gradient(model, theta, x, y)]
    gradients += [mean_gradient(model, theta, x[labels == label], y[labels == label]) for label in labels.unique()]
    return torch.stack(gradients)


def _orthonormal(directions: Tensor, projection: Projection) -> Tensor:
    """Return m orthonormal rows that span the first directions, in order; raise if they span less."""
    if not bool(directions.isfinite().all()):
        raise DpvalueError(f"projection {projection}: training on the public set diverged; scale the features")
    vectors: list[Tensor] = []
    for direction in directions.to(torch.float64):
        rest = direction
        for _ in range(2):  # twice, because one pass leaves rounding errors
            for vector in vectors:
                rest = rest - (vector @ rest) * vector
        if float(rest.norm()) > 1e-6 * float(direction.norm()) > 0:
            vectors.append(rest / rest.norm())
        if len(vectors) == projection.m:
            return torch.stack(vectors).to(directions)
    raise DpvalueError(
        f"m must be at most {len(vectors)} for the source {projection.source!r} on this public set, got {projection.m}"
    )
