"""Folds of the public set: directions from the training rows of a fold, stand-ins for units from its held-out rows.

Rows with equal features stay in one fold: a copy of a training row would be detected too easily. Stand-ins have their
own labels, and wrong ones: another class, or the number of another row. For rows that a regression values, there is a
third kind with outliers, as typing errors leave them: three standard deviations up or down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Floats, Ints
from dpvalue.data.rows import PublicRows
from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.models import REGRESSION, Linear, Model, Score, projected
from dpvalue.models.build import Training
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.clipping import rule_named
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.projection import Basis, Projection, make_basis, mean_gradient, path_basis, score_basis
from dpvalue.streams import Purpose, stream

STEPS = (16, 64, 256, 1024)
MOST_TOGETHER = 64  # rows of a unit, units of a stand-in, and gradients in memory
STAND_INS = 256
_MOST_NUMBERS = 2**18  # numbers of gradients in memory, if that is more
_FOLDS = {True: 4, False: 2}  # for linear models, which train fast, and for others
_FOLDS_OF_FEW, _FEW = 8, 64  # more folds for fewer rows: each must leave most of them for training
_UNITS = {True: 1024, False: 384}
_FAR_OFF = 3.0  # standard deviations: where numbers are usually called outliers


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """The public inputs of a choice.

    Args:
        model: the model.
        initial: its initial parameters.
        public: the public set.
        sizes: the parties' public numbers of rows (n,).
        units: their public numbers of protected units (n,).
        engine: the engine.
        seed: seed of public randomness.
    """

    model: Model
    initial: Tensor
    public: PublicSet
    sizes: Ints
    units: Ints
    engine: Engine
    seed: int


@dataclass(frozen=True)
class GradientSketch:
    """Units' gradients in two numbers each: the component that raises the value, and the norm.

    With one direction the norm is the absolute value of the component.
    """

    score: Floats
    length: Floats

    def contribution(self, rule: str, clip: float, centre: float) -> Floats:
        """Return the clipped components (units,), relative to the centre, which is for one direction only."""
        only: Floats = self.contributions(rule, np.array([clip]), np.array([centre]))[0]
        return only

    def contributions(self, rule: str, clips: Floats, centres: Floats) -> Floats:
        """Return the clipped components (k, units) for several norms (k,) and centres (k,)."""
        score = self.score - centres[:, None]
        length = np.where(centres[:, None] == 0, self.length, np.abs(score))
        divisor = rule_named(rule).divisor(length / clips[:, None])
        return np.divide(score, divisor, out=np.zeros_like(score), where=np.isfinite(divisor) & (divisor > 0))


Sketches = tuple[
    GradientSketch, ...
]  # of clean units, of planted ones, and of units with labels that are far off, if tried


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold: training rows for directions, and stand-ins for units from held-out rows, clean and corrupted.

    Attributes:
        model: the model.
        initial: its initial parameters.
        public: the whole public set.
        training_rows: indices of the rows for directions.
        unit_rows: indices of the rows of the stand-ins for units, unit by unit.
        rows: number of rows of each unit (units,).
        labels: labels of the unit rows: their own, wrong ones and, for regression of rows, outliers.
        row_labels: a label per unit; units with equal labels consist of the same rows, and form no pair.
        distinct_rows: number of distinct held-out rows.
        engine: the engine.
        seed: seed of the training.
        train: returns the model after training on the training rows for a number of steps in `STEPS`.
    """

    model: Model
    initial: Tensor
    public: PublicSet
    training_rows: Tensor
    unit_rows: Tensor
    rows: Ints
    labels: tuple[Tensor, ...]
    row_labels: Ints
    distinct_rows: int
    engine: Engine
    seed: int
    train: Callable[[int], Tensor] = field(repr=False)

    @cached_property
    def x(self) -> Tensor:
        """The inputs of the training rows."""
        return self.model.inputs(self.public.x[self.training_rows])

    @cached_property
    def y(self) -> Tensor:
        """The targets of the training rows."""
        return self.model.targets(self.public.y[self.training_rows])

    def basis(self, projection: Projection) -> Basis:
        """Return the directions from the training rows."""
        if projection.m == 1 and projection.steps in STEPS:
            if projection.source == "path":
                return path_basis(projection, self.initial, [self.train(projection.steps)])
            if projection.is_score:
                return score_basis(projection, self.initial, self.train(projection.steps))
        return make_basis(projection, self.model, self.initial, self.x, self.y, self.seed)

    def sketches(self, projection: Projection | None) -> Sketches:
        """Return the sketches of the units with each kind of labels."""
        model: Model = self.model
        origin = self.initial
        points, shares = origin[None], origin.new_ones(1)
        directions = None
        if projection is not None:
            basis = self.basis(projection)
            line = projected(model, basis.origin, basis.vectors)
            model, origin = Score(line) if projection.is_score else line, basis.origin
            points, shares = basis.points, basis.shares
            directions = basis.vectors
        direction = origin.new_ones(1)
        if directions is None or model.size > 1:
            gradient = mean_gradient(self.model, origin, self.x, self.y)
            gradient = gradient if directions is None else directions @ gradient
            direction = gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
        contributions = Contributions(model, self._units, Mechanism(None, 0.0, "party", "zero_out"), self.engine)
        score, length = [], []
        batch = max(MOST_TOGETHER, _MOST_NUMBERS // model.size)
        for indices in torch.arange(contributions.n, device=points.device).split(batch):
            gradients = contributions.along(points, shares, indices).to(torch.float64)
            score.append(gradients @ direction.to(torch.float64))
            length.append(gradients.norm(dim=1))
        kinds = (np.split(_finite(torch.cat(numbers)), len(self.labels)) for numbers in (score, length))
        return tuple(GradientSketch(*kind) for kind in zip(*kinds, strict=True))

    @cached_property
    def _units(self) -> PublicRows:
        """The units with each kind of labels, kind by kind."""
        features, kinds = self.public.x[self.unit_rows].cpu().numpy(), len(self.labels)
        labels = torch.cat(self.labels).cpu().numpy()
        like, rows = self.initial, np.tile(self.rows, kinds)
        return PublicRows.by_party(np.concatenate([features] * kinds), labels, rows, like.dtype, like.device)


def make_folds(
    model: Model,
    initial: Tensor,
    public: PublicSet,
    sizes: Ints,
    whole: bool,
    engine: Engine,
    seed: int,
    far_off: bool = False,
) -> list[Fold]:
    """Return the folds of a public set.

    Args:
        model: the model.
        initial: its initial parameters.
        public: the public set.
        sizes: numbers of rows of the protected units.
        whole: whether a unit is a whole party: a corrupted party has wrong labels in half of its rows, a corrupted
            unit of many in all.
        engine: the engine.
        seed: seed of folds and wrong labels.
        far_off: whether to add units with outliers as labels; for regression.
    """
    x, y = public.x, public.y
    linear = isinstance(model, Linear)
    generator = stream(seed, Purpose.PLANTING)
    copies = same_features(x)
    groups = int(copies.max()) + 1
    count = _FOLDS_OF_FEW if linear and groups < _FEW else _FOLDS[linear]
    count = max(min(count, groups // 2), min(2, groups))
    labels = y.cpu().numpy()
    folds: list[Fold] = []
    paths = Paths(folds)
    order = generator.permutation(len(x))
    for part in np.array_split(_distinct_in_order(copies[order]), count):
        held_out = order[np.isin(copies[order], part)]
        training_rows = torch.from_numpy(np.setdiff1d(np.arange(len(x)), held_out)).to(x.device)
        if not len(training_rows):  # all rows are alike
            training_rows = torch.from_numpy(held_out).to(x.device)
        known_labels = labels[training_rows.cpu().numpy()]
        planted = torch.from_numpy(_wrong_labels(labels, known_labels, model.task, generator)).to(y)
        if model.task != REGRESSION and np.isin(labels[held_out], known_labels).sum() > 1:
            held_out = held_out[np.isin(labels[held_out], known_labels)]  # only classes of the training rows
        if sizes.max() <= 1:
            rows = np.ones(min(_UNITS[linear] // min(count, _FOLDS[linear]), len(held_out)), dtype=np.int64)
            unit_rows = held_out[: len(rows)]
            row_labels = copies[unit_rows]
        else:
            count_of_units = min(_UNITS[linear] // min(count, _FOLDS[linear]), STAND_INS)
            quantiles = (np.arange(count_of_units) + 0.5) / count_of_units
            rows = np.quantile(sizes, quantiles, method="inverted_cdf").astype(np.int64).clip(1, MOST_TOGETHER)
            unit_rows = generator.choice(held_out, rows.sum())
            row_labels = np.arange(count_of_units)
        place = np.arange(len(unit_rows)) - np.repeat(np.cumsum(rows) - rows, rows)
        is_wrong = torch.from_numpy(place < np.repeat((rows + 1) // 2 if whole else rows, rows)).to(x.device)
        unit_indices = torch.from_numpy(unit_rows).to(x.device)
        kinds = [y[unit_indices], torch.where(is_wrong, planted[unit_indices], y[unit_indices])]
        if far_off:
            shifts = torch.from_numpy(generator.choice([-_FAR_OFF, _FAR_OFF], len(unit_indices))).to(y) * y.std(
                correction=0
            )
            kinds.append(torch.where(is_wrong, y[unit_indices] + shifts, y[unit_indices]))
        labels_by_kind = tuple(kinds)
        fields = training_rows, unit_indices, rows, labels_by_kind, row_labels, len(part)
        folds.append(Fold(model, initial, public, *fields, engine, seed, partial(paths.after, len(folds))))
    return folds


class Paths:
    """Models trained on the training rows of each fold, as far as needed.

    Linear models are trained on all folds together, which takes little longer than on one.
    """

    def __init__(self, folds: list[Fold]) -> None:
        self._folds = folds
        self._models: dict[int, list[Tensor]] = {}

    @cached_property
    def _trainings(self) -> list[Training]:
        model, initial, seed = self._folds[0].model, self._folds[0].initial, self._folds[0].seed
        sets = [(fold.x, fold.y) for fold in self._folds]
        groups = [sets] if isinstance(model, Linear) else [[fold_set] for fold_set in sets]
        return [Training(model, initial, fold_sets, seed) for fold_sets in groups]

    def after(self, number: int, steps: int) -> Tensor:
        """Return the model of a fold after a number of steps in `STEPS`."""
        for stage in STEPS:
            if stage <= steps and stage not in self._models:
                self._models[stage] = [theta for training in self._trainings for theta in training.until(stage)]
        return self._models[steps][number]


def same_features(x: Tensor) -> Ints:
    """Return a label per row, equal for rows with equal features: 0, 1, ... in order of first occurrence."""
    labels: dict[bytes, int] = {}
    rows = x.flatten(1).cpu().numpy() + 0.0  # minus zero is zero
    return np.array([labels.setdefault(row.tobytes(), len(labels)) for row in rows], dtype=np.int64)


def _distinct_in_order(labels: Ints) -> Ints:
    """The distinct labels in order of first occurrence."""
    distinct, first = np.unique(labels, return_index=True)
    return np.asarray(distinct[np.argsort(first)])


def _wrong_labels(y: Array, known_labels: Array, task: str, generator: np.random.Generator) -> Array:
    """A wrong label per row: a uniform other class of the training rows; for regression the number of another row."""
    if task == REGRESSION:
        return np.asarray(y[(np.arange(len(y)) + generator.integers(1, max(2, len(y)), len(y))) % len(y)])
    classes = np.unique(known_labels) if len(np.unique(known_labels)) > 1 else np.unique(y)
    place = np.searchsorted(classes, y) % len(classes)
    return np.asarray(classes[(place + generator.integers(1, max(2, len(classes)), len(y))) % len(classes)])


def _finite(numbers: Tensor) -> Floats:
    finite: Floats = numbers.nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
    return finite
