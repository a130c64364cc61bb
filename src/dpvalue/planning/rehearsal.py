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

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError
from dpvalue.models import REGRESSION
from dpvalue.planning.crowd import Crowd, Way, make_crowd
from dpvalue.planning.folds import STEPS, Fold, GradientSketch, PublicFacts, Sketches, make_folds
from dpvalue.privacy.clipping import RULES
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.mechanism import Mechanism, Scale
from dpvalue.protocol.projection import Projection

_CENTRES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
_WIDTHS = (0.05, 0.1, 0.2, 0.3, 0.45, 0.7)
_NORMS = (0.1, 0.25, 0.5, 0.75)
_AS_GOOD = 0.98
_SINGULAR = 16


@dataclass(frozen=True)
class Option:
    """One way to release, and the AUC that it is expected to have, fold by fold and on average.

    `projection` None is all d directions. `ways` are the clipping rule, norm and centre that are best on the other
    folds; `mechanism` has a norm of 1. `places` are the numbers of the folds, which may lack some.
    """

    projection: Projection | None
    mechanism: Mechanism
    clip: float
    rule: str
    scale: Scale
    folds: tuple[float, ...]
    auc: float
    ways: tuple[Way, ...]
    places: tuple[int, ...] = ()

    @property
    def law(self) -> str:
        """Which noise is added."""
        return self.mechanism.law


@dataclass(frozen=True, eq=False)
class Rehearsal(PublicFacts):
    """The public set, cut into folds with planted labels, on which ways to release are tried."""

    _sketches: dict[Projection | None, dict[int, Sketches]] = field(default_factory=dict, init=False, repr=False)

    def candidates(self) -> list[Projection | None]:
        """Return the projections worth trying; None, all directions, among them."""
        tried: list[Projection | None] = [None, Projection(1, "utility")]
        tried += [Projection(1, "path", steps) for steps in STEPS]
        classes = 1 if self.model.task == REGRESSION else len(self.public.y.unique())
        wide = {"classes": classes, "singular": min(_SINGULAR, len(self.public.y) // 4)}
        tried += [Projection(m, source) for source, m in wide.items() if 1 < m <= min(_SINGULAR, self.model.size - 1)]
        if self._rows_by_regression:  # of a classifier's path, the component is its loss already, up to a constant
            tried += self.lengths(Projection(1, "loss"))
        return tried

    def lengths(self, projection: Projection) -> list[Projection]:
        """Return a projection with each of the lengths of public training that it leaves open."""
        if not projection.leaves_open(self.model):
            return [projection]
        return [replace(projection, steps=steps) for steps in STEPS]

    @property
    def _rows_by_regression(self) -> bool:
        """Whether every party is a row, valued by a regression: data sets have coalitions that are worth a game."""
        return self.model.task == REGRESSION and int(self.sizes.max(initial=0)) <= 1

    def options(
        self,
        candidates: list[Projection | None],
        mechanisms: list[Mechanism],
        clip: float | None,
        rule: str | None,
        given: bool = True,
    ) -> list[Option]:
        """Return the best option of each projection and mechanism; a scalar law (Laplace) is for one direction.

        Without those that cannot be preferred to another, as their noise alone would hide even units that are as far
        apart as clipping leaves any; they are not tried.

        Args:
            candidates: projections to try.
            mechanisms: mechanisms with a clipping norm of 1 and the noise of a row of the final table.
            clip: the clipping norm; None to choose it.
            rule: the clipping rule; None to choose it.
            given: whether the projections were asked for; others are left out where public rows do not span them, as
                few of them, or features of zeros, may not.
        """
        bounds = [self.crowd.bound(mechanism) for mechanism in mechanisms]
        tried = [
            (single, place, number)
            for place, projection in enumerate(candidates)
            for single in [projection is not None and projection.m == 1]
            for number, mechanism in enumerate(mechanisms)
            if single or not find_law(mechanism.law).scalar
        ]
        fitted: dict[tuple[int, int], Option] = {}
        for _, place, number in sorted(tried, key=lambda one: (-bounds[one[2]], not one[0])):  # the strongest first
            same_law = [option for (_, other), option in fitted.items() if other == number]
            if not can_win(bounds[number], list(fitted.values())) or is_past_best(candidates[place], same_law):
                continue
            try:
                sketches = self.sketches(candidates[place])
            except DpvalueError:
                if given:
                    raise
                continue
            option = self.fit(candidates[place], list(sketches.values()), mechanisms[number], clip, rule)
            fitted[place, number] = replace(option, places=tuple(sketches))
        return [fitted[key] for key in sorted(fitted)]

    def fit(
        self,
        projection: Projection | None,
        sketches: list[Sketches],
        mechanism: Mechanism,
        clip: float | None,
        rule: str | None,
    ) -> Option:
        """Return the best centre, clipping rule and norm for the clean and planted units of some folds.

        The expected AUC of each fold is that of what is best on the other folds, so that choosing does not flatter.
        Where several kinds of wrong labels are tried, it is the mean over them.
        """
        kinds = [_joined(kind) for kind in zip(*sketches, strict=True)]
        clean, bad, *_ = kinds
        single = projection is not None and projection.m == 1
        scores = np.concatenate([kind.score for kind in kinds])
        centres = np.quantile(scores, _CENTRES).tolist() if single else [0.0]
        if clip is not None:
            norms = [clip]
        elif single:
            spread = float(np.subtract(*np.quantile(scores, [0.95, 0.05])))
            norms = [width * spread for width in _WIDTHS]
        else:
            norms = np.quantile(np.concatenate([kind.length for kind in kinds]), _NORMS).tolist()
        norms = [norm if norm > 0 else 1.0 for norm in norms]
        grid = [
            (how, norm, centre)
            for how in ([name for name in RULES if RULES[name].automatic] if rule is None else [rule])
            for norm in (norms[:1] if RULES[how].equal_lengths else norms)
            for centre in centres
        ]
        aucs = np.stack([self._aucs(fold, grid, mechanism) for fold in sketches], axis=1)
        how, norm, centre = grid[int(aucs.mean(1).argmax())]
        others = aucs.sum(1, keepdims=True) - aucs if len(sketches) > 1 else aucs
        elsewhere = others.argmax(0)
        folds = aucs[elsewhere, np.arange(len(sketches))]
        best = Option(
            projection, mechanism, norm, how, Scale(centre, centre), tuple(folds.tolist()), float(folds.mean()),
            tuple(grid[way] for way in elsewhere),
        )  # fmt: skip
        if projection is not None and projection.is_score:
            # Zero is what public rows score on average under models that were trained on others.
            return replace(best, scale=Scale(centre, -float(clean.contribution(how, norm, centre).mean())))
        return replace(best, scale=_calibrated(best, clean, bad)) if single else best

    def _aucs(self, fold: Sketches, ways: list[Way], mechanism: Mechanism) -> Floats:
        """The AUC of each way (ways,), on average over the kinds of wrong labels that are tried."""
        clean, *planted = fold
        aucs: Floats = np.mean([self.crowd.aucs((clean, bad), ways, mechanism) for bad in planted], axis=0)
        return aucs

    def sketches(self, projection: Projection | None) -> dict[int, Sketches]:
        """Return the sketches of clean and of planted units, by the number of the fold, where its rest spans it."""
        if projection not in self._sketches:
            made, refused = {}, None
            for place, fold in enumerate(self.folds):
                try:
                    made[place] = fold.sketches(projection)
                except DpvalueError as error:  # a fold may lack a class
                    refused = error
            if refused is not None and not made:
                raise refused
            self._sketches[projection] = made
        return self._sketches[projection]

    @cached_property
    def folds(self) -> list[Fold]:
        """The folds of the public set; a unit that is a whole party has the sizes that the parties have."""
        whole = self.units.max(initial=1) <= 1
        rows = self.sizes if whole else np.maximum(1, self.sizes // np.maximum(self.units, 1))
        if not whole:
            rows = np.full(1, int(np.median(rows)))
        far_off = self._rows_by_regression
        return make_folds(self.model, self.initial, self.public, rows, whole, self.engine, self.seed, far_off)

    @cached_property
    def crowd(self) -> Crowd:
        """The parties' numbers of units, and which units speak for a party."""
        return make_crowd(self.units, self.seed)


def _calibrated(option: Option, clean: GradientSketch, bad: GradientSketch) -> Scale:
    """The scale on which clipped components have, among clean and among planted units, the means of unclipped ones.

    But a planted unit takes back at most what a clean one gives: the loss of a wrong label knows no bounds, and a few
    of them would turn the walk of all parties around.
    """
    ends = [sketch.contribution(option.rule, option.clip, option.scale.centre).mean() for sketch in (clean, bad)]
    means = clean.score.mean(), max(bad.score.mean(), -clean.score.mean())
    if not (ends[0] > ends[1] and means[0] > means[1]):
        return option.scale
    gain = (means[0] - means[1]) / (ends[0] - ends[1])
    return Scale(option.scale.centre, float(means[0] - gain * ends[0]), float(gain))


def _joined(parts: tuple[GradientSketch, ...]) -> GradientSketch:
    """The sketches of all folds together."""
    return GradientSketch(
        np.concatenate([part.score for part in parts]), np.concatenate([part.length for part in parts])
    )


def prefer(options: list[Option], size: int) -> tuple[Option, list[Option]]:
    """Return the option that is expected to find most, or one of more directions that finds 98% of it.

    More directions show redundancy between parties, which one number per party cannot; a score, which has no direction
    and no coalitions, is taken only if it finds more than that. With it, for each fold, what
    would have been preferred on the other folds: the winner of many is a little lucky, and should not be believed.
    """
    chosen = _preferred(options, [option.auc for option in options], size)
    folds = len(chosen.folds)
    rivals = [option for option in options if (len(option.folds), option.places) == (folds, chosen.places)]
    if folds < 2:
        return chosen, [chosen] * folds
    elsewhere = []
    for fold in range(folds):
        others = [(sum(option.folds) - option.folds[fold]) / (folds - 1) for option in rivals]
        elsewhere.append(_preferred(rivals, others, size))
    return chosen, elsewhere


def is_past_best(projection: Projection | None, options: list[Option]) -> bool:
    """Return whether public training found less the longer it was: still longer is then not tried.

    Longer training fits the public rows more closely, and other rows less so from some length on.
    """
    if projection is None or projection.steps is None:
        return False
    by_steps = {
        option.projection.steps: option.auc
        for option in options
        if option.projection is not None
        and replace(option.projection, steps=projection.steps) == projection
        and (option.projection.steps or projection.steps) < projection.steps
    }
    *_, before, last = [-1.0, -1.0, *(by_steps[steps] for steps in sorted(by_steps, key=lambda steps: steps or 0))]
    return last < before


def can_win(bound: float, options: list[Option]) -> bool:
    """Return whether an option of at most this AUC, on any fold, could be preferred to these, on all folds but one."""
    if not options:
        return True
    best = max(options, key=lambda option: option.auc)
    count = len(best.folds)
    views = [best.auc, *((sum(best.folds) - own) / max(count - 1, 1) for own in best.folds if count > 1)]
    return any(bound - 0.5 >= _AS_GOOD * (view - 0.5) for view in views)


def _preferred(options: list[Option], aucs: list[float], size: int) -> Option:
    best = max(aucs)
    pairs = [(option, auc) for option, auc in zip(options, aucs, strict=True) if auc - 0.5 >= _AS_GOOD * (best - 0.5)]
    if best <= 0.5:
        pairs = list(zip(options, aucs, strict=True))
    return max(pairs, key=lambda pair: (_directions(pair[0].projection, size), pair[1]))[0]


def _directions(projection: Projection | None, size: int) -> int:
    if projection is None:
        return size
    return 0 if projection.is_score else projection.m
