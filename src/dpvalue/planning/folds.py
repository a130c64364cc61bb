"""The public set, cut into folds: directions come from all rows but a fold's, stand-ins for units from the fold.

Rows with equal features stay in one fold: a copy of a row that was trained on would be found too easily. Stand-ins are
made twice, once with their own labels and once with planted wrong ones: another class, or another row's number. Where
rows are valued by regression, they are made once more with labels that are far off, as a slip of the pen leaves them:
three standard deviations up or down.
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
from dpvalue.models import REGRESSION, Linear, Model, Score, project_model
from dpvalue.models.build import Training
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.clipping import find_rule
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.projection import Basis, Projection, make_basis, mean_gradient, path_basis, score_basis
from dpvalue.streams import Purpose, stream

STEPS = (16, 64, 256, 1024)
MOST_TOGETHER = 64  # rows of a unit, units of a stand-in, and gradients held at once
STAND_INS = 256
_MOST_NUMBERS = 2**18  # of gradients held at once, if that is more
_FOLDS = {True: 4, False: 2}  # of linear models, which train in no time, and of others
_FOLDS_OF_FEW, _FEW = 8, 64  # of fewer rows more folds: each must leave most of them to train on
_UNITS = {True: 1024, False: 384}
_FAR_OFF = 3.0  # standard deviations: where numbers are usually called outliers


@dataclass(frozen=True, eq=False)
class PublicFacts:
    """Everything public that a choice may depend on.

    Args:
        model: as it will be valued.
        initial: its initial parameters.
        public: the public set.
        sizes: the parties' public numbers of rows.
        units: their public numbers of protected units.
        engine: where to compute.
        seed: of what is drawn.
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
    """What is needed of units: the component of each one's gradient that raises its value, and the gradient's length.

    With one direction the length is the absolute value of the component.
    """

    score: Floats
    length: Floats

    def contribution(self, rule: str, clip: float, centre: float) -> Floats:
        """Return the component of what is released, less the centre (which is for one direction only)."""
        only: Floats = self.contributions(rule, np.array([clip]), np.array([centre]))[0]
        return only

    def contributions(self, rule: str, clips: Floats, centres: Floats) -> Floats:
        """Return the same for several clipping norms (k,) with a centre each: (k, units)."""
        score = self.score - centres[:, None]
        length = np.where(centres[:, None] == 0, self.length, np.abs(score))
        divisor = find_rule(rule).divisor(length / clips[:, None])
        return np.divide(score, divisor, out=np.zeros_like(score), where=np.isfinite(divisor) & (divisor > 0))


Sketches = tuple[
    GradientSketch, ...
]  # of clean units, of planted ones, and of units with labels that are far off, if tried


@dataclass(frozen=True, eq=False)
class Fold:
    """The rows that directions are made from (`rest`), and units of the others (`drawn`), clean and planted.

    Attributes:
        model: as it will be valued.
        initial: its initial parameters.
        public: the whole public set.
        rest: the rows that directions are made from.
        drawn: the rows of the stand-ins for units, one after the other.
        rows: how many of them each unit has.
        labels: of the drawn rows: their own, with planted wrong ones and, if tried, with those that are far off.
        alike: a label per unit; units with the same label are the same rows, and no pair to be told apart.
        distinct: how many different rows were held out.
        engine: where to compute.
        seed: of the training.
        trained: returns the model that was trained on the rest for so many steps, one of `STEPS`.
    """

    model: Model
    initial: Tensor
    public: PublicSet
    rest: Tensor
    drawn: Tensor
    rows: Ints
    labels: tuple[Tensor, ...]
    alike: Ints
    distinct: int
    engine: Engine
    seed: int
    trained: Callable[[int], Tensor] = field(repr=False)

    @cached_property
    def x(self) -> Tensor:
        """The rows to train on, as the model takes them."""
        return self.model.inputs(self.public.x[self.rest])

    @cached_property
    def y(self) -> Tensor:
        """Their labels."""
        return self.model.targets(self.public.y[self.rest])

    def basis(self, projection: Projection) -> Basis:
        """Return the directions that the rest of the public set gives."""
        if projection.m == 1 and projection.steps in STEPS:
            if projection.source == "path":
                return path_basis(projection, self.initial, [self.trained(projection.steps)])
            if projection.is_score:
                return score_basis(projection, self.initial, self.trained(projection.steps))
        return make_basis(projection, self.model, self.initial, self.x, self.y, self.seed)

    def sketches(self, projection: Projection | None) -> Sketches:
        """Return the sketches of the clean and of the planted units."""
        model: Model = self.model
        origin = self.initial
        points, shares = origin[None], origin.new_ones(1)
        uphill = None
        if projection is not None:
            basis = self.basis(projection)
            line = project_model(model, basis.origin, basis.vectors)
            model, origin = Score(line) if projection.is_score else line, basis.origin
            points, shares = basis.points, basis.shares
            uphill = basis.vectors
        towards = origin.new_ones(1)
        if uphill is None or model.size > 1:
            gradient = mean_gradient(self.model, origin, self.x, self.y)
            gradient = gradient if uphill is None else uphill @ gradient
            towards = gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
        contributions = Contributions(model, self._units, Mechanism(None, 0.0, "party", "zero_out"), self.engine)
        score, length = [], []
        together = max(MOST_TOGETHER, _MOST_NUMBERS // model.size)
        for who in torch.arange(contributions.n, device=points.device).split(together):
            gradients = contributions.mean_gradients(points, shares, who).to(torch.float64)
            score.append(gradients @ towards.to(torch.float64))
            length.append(gradients.norm(dim=1))
        kinds = (np.split(_finite(torch.cat(numbers)), len(self.labels)) for numbers in (score, length))
        return tuple(GradientSketch(*kind) for kind in zip(*kinds, strict=True))

    @cached_property
    def _units(self) -> PublicRows:
        """The units with each kind of labels, one kind after the other."""
        features, kinds = self.public.x[self.drawn].cpu().numpy(), len(self.labels)
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
        model: as it will be valued.
        initial: its initial parameters.
        public: the public set.
        sizes: how many rows the protected units have.
        whole: whether such a unit is a whole party: of a corrupted one half of the rows are planted, of one of many
            units all.
        engine: where to compute.
        seed: of folds and planted labels.
        far_off: whether units with labels that are far off are made too; for regression.
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
    for part in np.array_split(_first_seen(copies[order]), count):
        held = order[np.isin(copies[order], part)]
        rest = torch.from_numpy(np.setdiff1d(np.arange(len(x)), held)).to(x.device)
        if not len(rest):  # all rows are alike
            rest = torch.from_numpy(held).to(x.device)
        known = labels[rest.cpu().numpy()]
        planted = torch.from_numpy(_wrong_labels(labels, known, model.task, generator)).to(y)
        if model.task != REGRESSION and np.isin(labels[held], known).sum() > 1:
            held = held[np.isin(labels[held], known)]  # of the classes that are valued, the public set shows rows
        if sizes.max() <= 1:
            rows = np.ones(min(_UNITS[linear] // min(count, _FOLDS[linear]), len(held)), dtype=np.int64)
            drawn = held[: len(rows)]
            alike = copies[drawn]
        else:
            many = min(_UNITS[linear] // min(count, _FOLDS[linear]), STAND_INS)
            at = (np.arange(many) + 0.5) / many
            rows = np.quantile(sizes, at, method="inverted_cdf").astype(np.int64).clip(1, MOST_TOGETHER)
            drawn = generator.choice(held, rows.sum())
            alike = np.arange(many)
        place = np.arange(len(drawn)) - np.repeat(np.cumsum(rows) - rows, rows)
        wrong = torch.from_numpy(place < np.repeat((rows + 1) // 2 if whole else rows, rows)).to(x.device)
        chosen = torch.from_numpy(drawn).to(x.device)
        kinds = [y[chosen], torch.where(wrong, planted[chosen], y[chosen])]
        if far_off:
            moved = torch.from_numpy(generator.choice([-_FAR_OFF, _FAR_OFF], len(chosen))).to(y) * y.std(correction=0)
            kinds.append(torch.where(wrong, y[chosen] + moved, y[chosen]))
        made = tuple(kinds)
        held_out = rest, chosen, rows, made, alike, len(part)
        folds.append(Fold(model, initial, public, *held_out, engine, seed, partial(paths.after, len(folds))))
    return folds


class Paths:
    """Models trained on the rest of each fold, by steps, no farther than is asked for.

    Linear models are trained on all folds at once, which takes little longer than on one.
    """

    def __init__(self, folds: list[Fold]) -> None:
        self._folds = folds
        self._known: dict[int, list[Tensor]] = {}

    @cached_property
    def _trainings(self) -> list[Training]:
        model, initial, seed = self._folds[0].model, self._folds[0].initial, self._folds[0].seed
        sets = [(fold.x, fold.y) for fold in self._folds]
        together = [sets] if isinstance(model, Linear) else [[one] for one in sets]
        return [Training(model, initial, some, seed) for some in together]

    def after(self, number: int, steps: int) -> Tensor:
        """Return the model of a fold after so many steps, one of `STEPS`."""
        for stage in STEPS:
            if stage <= steps and stage not in self._known:
                self._known[stage] = [theta for training in self._trainings for theta in training.run_until(stage)]
        return self._known[steps][number]


def same_features(x: Tensor) -> Ints:
    """Return a label per row, the same for rows with equal features: 0, 1, ... as they are first seen."""
    seen: dict[bytes, int] = {}
    rows = x.flatten(1).cpu().numpy() + 0.0  # minus zero is zero
    return np.array([seen.setdefault(row.tobytes(), len(seen)) for row in rows], dtype=np.int64)


def _first_seen(labels: Ints) -> Ints:
    """The different labels in the order in which they come."""
    distinct, first = np.unique(labels, return_index=True)
    return np.asarray(distinct[np.argsort(first)])


def _wrong_labels(y: Array, known: Array, task: str, generator: np.random.Generator) -> Array:
    """Another class for each row, drawn evenly from the others that are known; for regression another row's number."""
    if task == REGRESSION:
        return np.asarray(y[(np.arange(len(y)) + generator.integers(1, max(2, len(y)), len(y))) % len(y)])
    classes = np.unique(known) if len(np.unique(known)) > 1 else np.unique(y)
    place = np.searchsorted(classes, y) % len(classes)
    return np.asarray(classes[(place + generator.integers(1, max(2, len(classes)), len(y))) % len(classes)])


def _finite(numbers: Tensor) -> Floats:
    finite: Floats = numbers.nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
    return finite
