"""How well a way to release would do, tried on the public set: no private row is read.

The public rows are cut into folds. Directions are made from all but one fold; rows of that fold stand in for the
parties' units, once with their own labels and once with planted wrong ones. From their projected gradients the expected
AUC of a first-order value (the released row times the direction of the utility) follows exactly in the noise, for each
mechanism, centre and clipping norm.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Floats
from dpvalue.data.rows import party_rows
from dpvalue.data.utility import PublicSet
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.models import REGRESSION, FixedModelLoss, Linear, Model, projected
from dpvalue.models.training import train
from dpvalue.planning.detection import expected_auc
from dpvalue.planning.projection import Basis, Projection, make_basis, mean_gradient, path_basis
from dpvalue.privacy.clipping import RULES, rule_named
from dpvalue.privacy.laws import law_named
from dpvalue.privacy.mechanism import Mechanism, Scale
from dpvalue.releasing.contributions import Contributions
from dpvalue.streams import Purpose, stream

STEPS = (16, 64, 256, 1024)
_FOLDS = {True: 4, False: 2}  # of linear models, which train in no time, and of others
_UNITS = {True: 1024, False: 384}
_MOST_TOGETHER = 64  # rows of a unit, units of a stand-in, and gradients held at once
_STAND_INS = 256
_QUANTILES = (np.arange(48) + 0.5) / 48
_CENTRES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_WIDTHS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.7)
_NORMS = (0.1, 0.25, 0.5, 0.75)
_AS_GOOD = 0.98
_SINGULAR = 16


@dataclass(frozen=True)
class Option:
    """One way to release, and the AUC that it is expected to have, fold by fold and on average.

    `projection` None is all d directions.
    """

    projection: Projection | None
    law: str
    clip: float
    rule: str
    scale: Scale
    folds: tuple[float, ...]
    auc: float


@dataclass(frozen=True)
class Sketch:
    """What is needed of units: the component of each one's gradient that raises its value, and the gradient's length.

    With one direction the length is the absolute value of the component.
    """

    score: Floats
    length: Floats

    def contribution(self, rule: str, clip: float, centre: float) -> Floats:
        """Return the component of what is released, less the centre (which is for one direction only)."""
        score, length = self.score, self.length
        if centre:
            score, length = score - centre, np.abs(score - centre)
        divisor = rule_named(rule).divisor(length / clip)
        return np.divide(score, divisor, out=np.zeros_like(score), where=np.isfinite(divisor) & (divisor > 0))


Sketches = tuple[Sketch, Sketch]  # of clean and of planted units


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """The public set, cut into folds with planted labels, on which ways to release are tried.

    Args:
        model: as it will be valued.
        initial: its initial parameters.
        public: the public set.
        rows: how many rows a protected unit has, typically.
        units: how many protected units a party has, typically.
        engine: where to compute.
        seed: of folds and planted labels.
    """

    model: Model
    initial: Tensor
    public: PublicSet
    rows: int
    units: int
    engine: Local
    seed: int
    _sketches: dict[Projection | None, list[Sketches]] = field(default_factory=dict, init=False, repr=False)

    def candidates(self) -> list[Projection | None]:
        """Return the projections worth trying; None, all directions, among them."""
        found: list[Projection | None] = [None, Projection(1, "utility")]
        found += [Projection(1, "path", steps) for steps in STEPS]
        classes = 1 if self.model.task == REGRESSION else len(self.public.y.unique())
        wide = {"classes": classes, "singular": min(_SINGULAR, len(self.public.y) // 4)}
        found += [Projection(m, source) for source, m in wide.items() if 1 < m <= min(_SINGULAR, self.model.size - 1)]
        return [projection for projection in found if self._can_be_made(projection)]

    def _can_be_made(self, projection: Projection | None) -> bool:
        """Whether the public rows span so many directions: few of them, or features of zeros, may not."""
        try:
            self.sketches(projection)
        except DpvalueError:
            return False
        return True

    def options(
        self, candidates: list[Projection | None], doors: list[Mechanism], clip: float | None, rule: str | None
    ) -> list[Option]:
        """Return the best option of each projection and mechanism; a scalar law (Laplace) is for one direction.

        Args:
            candidates: projections to try.
            doors: mechanisms with a clipping norm of 1 and the noise of a row of the final table.
            clip: the clipping norm; None to choose it.
            rule: the clipping rule; None to choose it.
        """
        found = []
        for projection in candidates:
            single = projection is not None and projection.m == 1
            for door in doors:
                if single or not law_named(door.law).scalar:
                    found.append(self.fit(projection, self.sketches(projection), door, clip, rule))
        return found

    def loss_options(self, doors: list[Mechanism]) -> list[Option]:
        """Return the best option of each mechanism for releasing the loss under a public model, by its steps."""
        found = []
        for steps in STEPS:
            sketches = [fold.losses(steps) for fold in self._folds]
            found += [self.fit(Projection(1, "path", steps), sketches, door, None, None) for door in doors]
        return found

    def fit(
        self,
        projection: Projection | None,
        sketches: list[Sketches],
        door: Mechanism,
        clip: float | None,
        rule: str | None,
    ) -> Option:
        """Return the best centre, clipping rule and norm for the clean and planted units of some folds.

        The expected AUC of each fold is that of what is best on the other folds, so that choosing does not flatter.
        """
        clean, bad = (_joined(kind) for kind in zip(*sketches, strict=True))
        single = projection is not None and projection.m == 1
        scores = np.concatenate([clean.score, bad.score])
        centres = np.quantile(scores, _CENTRES).tolist() if single else [0.0]
        if clip is not None:
            norms = [clip]
        elif single:
            spread = float(np.subtract(*np.quantile(scores, [0.95, 0.05])))
            norms = [width * spread for width in _WIDTHS]
        else:
            norms = np.quantile(np.concatenate([clean.length, bad.length]), _NORMS).tolist()
        norms = [norm if norm > 0 else 1.0 for norm in norms]
        scale = float(door.noise_scale(torch.tensor([self.units]))[0])
        grid = [
            (how, norm, centre)
            for how in ([name for name in RULES if RULES[name].automatic] if rule is None else [rule])
            for norm in (norms[:1] if RULES[how].equal_lengths else norms)
            for centre in centres
        ]
        aucs = np.array([[self._auc(pair, way, door.law, scale) for pair in sketches] for way in grid])
        how, norm, centre = grid[int(aucs.mean(1).argmax())]
        others = aucs.sum(1, keepdims=True) - aucs if len(sketches) > 1 else aucs
        folds = aucs[others.argmax(0), np.arange(len(sketches))]
        best = Option(
            projection, door.law, norm, how, Scale(centre, centre), tuple(folds.tolist()), float(folds.mean())
        )
        return replace(best, scale=_calibrated(best, clean, bad)) if single else best

    def _auc(self, pair: Sketches, way: tuple[str, float, float], law: str, scale: float) -> float:
        clean, bad = (one.contribution(*way) for one in pair)
        return expected_auc(*self._parties(clean, bad), law, scale * way[1])

    def _parties(self, clean: Floats, bad: Floats) -> tuple[Floats, Floats]:
        """Quantiles of what clean and corrupted parties would release; half of a corrupted one's units are planted."""
        units = min(self.units, _MOST_TOGETHER)
        if units > 1:
            some = stream(self.seed, Purpose.PLANTING, 1).integers(len(clean), size=(2, _STAND_INS, units))
            spoilt = np.where(np.arange(units) < (units + 1) // 2, bad[some[1]], clean[some[1]])
            clean, bad = clean[some[0]].mean(1), spoilt.mean(1)
        return np.quantile(clean, _QUANTILES), np.quantile(bad, _QUANTILES)

    def sketches(self, projection: Projection | None) -> list[Sketches]:
        """Return the sketches of clean and of planted units, of each fold whose rows span the projection."""
        if projection not in self._sketches:
            found, refused = [], None
            for fold in self._folds:
                try:
                    found.append(fold.sketches(projection))
                except DpvalueError as error:  # a fold may lack a class
                    refused = error
            if refused is not None and not found:
                raise refused
            self._sketches[projection] = found
        return self._sketches[projection]

    @cached_property
    def _folds(self) -> list[_Fold]:
        x, y = self.public.x, self.public.y
        linear = isinstance(self.model, Linear)
        generator = stream(self.seed, Purpose.PLANTING)
        count = min(_FOLDS[linear], len(x))
        planted = torch.from_numpy(_wrong_labels(y.cpu().numpy(), self.model.task, generator)).to(y)
        rows, made = min(self.rows, _MOST_TOGETHER), []
        for held in np.array_split(generator.permutation(len(x)), count):
            rest = torch.from_numpy(np.setdiff1d(np.arange(len(x)), held)).to(x.device)
            many = min(_UNITS[linear] // count, len(held) if rows == 1 else _STAND_INS)
            drawn = held[:many, None] if rows == 1 else generator.choice(held, (many, rows))
            chosen = torch.from_numpy(drawn.flatten()).to(x.device)
            # A unit that is the whole party is corrupted by half of its rows, one of many units by all of them.
            share = (rows + 1) // 2 if self.units == 1 else rows
            wrong = torch.from_numpy(np.tile(np.arange(rows) < share, many)).to(x.device)
            labels = y[chosen], torch.where(wrong, planted[chosen], y[chosen])
            made.append(_Fold(self, rest, chosen, labels, rows))
        return made


class _Fold:
    """The public rows that directions are made from (`rest`); units of the others, clean and with planted labels."""

    def __init__(self, of: Rehearsal, rest: Tensor, chosen: Tensor, labels: tuple[Tensor, Tensor], rows: int) -> None:
        self._of, self._labels, self._rows = of, labels, rows
        self._units = of.public.x[chosen]
        self._x, self._y = of.model.inputs(of.public.x[rest]), of.model.targets(of.public.y[rest])

    @cached_property
    def _trained(self) -> dict[int, Tensor]:
        of = self._of
        return dict(zip(STEPS, train(of.model, of.initial, self._x, self._y, STEPS, of.seed), strict=True))

    def _basis(self, projection: Projection) -> Basis:
        of = self._of
        if projection.source == "path" and projection.m == 1 and projection.steps in STEPS:
            return path_basis(projection, of.initial, [self._trained[projection.steps]])
        return make_basis(projection, of.model, of.initial, self._x, self._y, of.seed)

    def sketches(self, projection: Projection | None) -> Sketches:
        """Return the sketches of the clean and of the planted units."""
        model, origin = self._of.model, self._of.initial
        points, shares = origin[None], origin.new_ones(1)
        uphill = None
        if projection is not None:
            basis = self._basis(projection)
            model, origin = projected(model, basis.origin, basis.vectors), basis.origin
            points, shares = basis.points, basis.shares
            uphill = basis.vectors
        towards = origin.new_ones(1)
        if uphill is None or model.size > 1:
            gradient = mean_gradient(self._of.model, origin, self._x, self._y)
            gradient = gradient if uphill is None else uphill @ gradient
            towards = gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
        clean, planted = (self._sketch(model, points, shares, towards, labels) for labels in self._labels)
        return clean, planted

    def losses(self, steps: int) -> Sketches:
        """Return the sketches of negated losses under the model trained for so long."""
        model, one = FixedModelLoss(self._of.model, self._trained[steps]), self._of.initial.new_ones(1)
        clean, planted = (self._sketch(model, model.initial(0)[None], one, one, labels) for labels in self._labels)
        return clean, planted

    def _sketch(self, model: Model, points: Tensor, shares: Tensor, towards: Tensor, labels: Tensor) -> Sketch:
        sizes = np.full(len(labels) // self._rows, self._rows)
        units = party_rows(self._units.cpu().numpy(), labels.cpu().numpy(), sizes, points.dtype, points.device)
        contributions = Contributions(model, units, Mechanism(None, 0.0, "party", "zero_out"), self._of.engine)
        score, length = [], []
        for who in torch.arange(contributions.n, device=points.device).split(_MOST_TOGETHER):
            gradients = contributions.along(points, shares, who).to(torch.float64)
            score.append(gradients @ towards.to(torch.float64))
            length.append(gradients.norm(dim=1))
        return Sketch(_finite(torch.cat(score)), _finite(torch.cat(length)))


def _calibrated(option: Option, clean: Sketch, bad: Sketch) -> Scale:
    """The scale on which clipped components have, among clean and among planted units, the means of unclipped ones.

    But a planted unit takes back at most what a clean one gives: the loss of a wrong label knows no bounds, and a few
    of them would turn the walk of all parties around.
    """
    ends = [one.contribution(option.rule, option.clip, option.scale.centre).mean() for one in (clean, bad)]
    means = clean.score.mean(), max(bad.score.mean(), -clean.score.mean())
    if not (ends[0] > ends[1] and means[0] > means[1]):
        return option.scale
    gain = (means[0] - means[1]) / (ends[0] - ends[1])
    return Scale(option.scale.centre, float(means[0] - gain * ends[0]), float(gain))


def _joined(parts: tuple[Sketch, ...]) -> Sketch:
    """The sketches of all folds together."""
    return Sketch(np.concatenate([part.score for part in parts]), np.concatenate([part.length for part in parts]))


def prefer(options: list[Option], size: int) -> Option:
    """Return the option that is expected to find most, or one of more directions that finds 98% of it.

    More directions show redundancy between parties, which one number per party cannot. The AUC of the option that is
    returned is the mean over folds of what would have been preferred on the other folds: the winner of many is a
    little lucky, and should not be believed.
    """
    folds = len(options[0].folds)
    chosen = _preferred(options, [option.auc for option in options], size)
    if folds < 2 or any(len(option.folds) != folds for option in options):
        return chosen
    honest = []
    for fold in range(folds):
        others = [(sum(option.folds) - option.folds[fold]) / (folds - 1) for option in options]
        honest.append(_preferred(options, others, size).folds[fold])
    return replace(chosen, auc=float(np.mean(honest)))


def _preferred(options: list[Option], aucs: list[float], size: int) -> Option:
    best = max(aucs)
    pairs = [(one, auc) for one, auc in zip(options, aucs, strict=True) if auc - 0.5 >= _AS_GOOD * (best - 0.5)]
    if best <= 0.5:
        pairs = list(zip(options, aucs, strict=True))
    return max(pairs, key=lambda pair: (size if pair[0].projection is None else pair[0].projection.m, pair[1]))[0]


def _wrong_labels(y: Array, task: str, generator: np.random.Generator) -> Array:
    """Another class for each row, drawn evenly from the others; for regression another row's number."""
    if task == REGRESSION:
        return np.asarray(y[(np.arange(len(y)) + generator.integers(1, max(2, len(y)), len(y))) % len(y)])
    classes = np.unique(y)
    place = np.searchsorted(classes, y)
    return np.asarray(classes[(place + generator.integers(1, len(classes), len(y))) % len(classes)])


def _finite(numbers: Tensor) -> Floats:
    found: Floats = numbers.nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
    return found
