"""Rehearse releases on the public set: the expected AUC of each projection, mechanism and clipping rule.

Directions come from all folds but one; rows of that fold are stand-ins for the parties' units, with their own and with
wrong labels. Their projected gradients give the expected AUC of a first-order value (the released row times the
direction of the utility), exact in the noise, for each mechanism, centre and clipping norm. No private row is read.
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
    """A projection, mechanism and clipping rule, with its expected AUC by fold and on average.

    `projection` None stands for all d directions. `ways` are the clipping rule, norm and centre that are best on the
    other folds; `mechanism` has a norm of 1. `places` are the indices of the folds with a result.
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
        """The name of the noise law."""
        return self.mechanism.law


@dataclass(frozen=True, eq=False)
class Rehearsal(PublicFacts):
    """The folds of the public set with wrong labels, on which releases are rehearsed."""

    _sketches: dict[Projection | None, dict[int, Sketches]] = field(default_factory=dict, init=False, repr=False)

    def candidates(self) -> list[Projection | None]:
        """Return the candidate projections; None stands for all directions."""
        projections: list[Projection | None] = [None, Projection(1, "utility")]
        projections += [Projection(1, "path", steps) for steps in STEPS]
        classes = 1 if self.model.task == REGRESSION else len(self.public.y.unique())
        wide = {"classes": classes, "singular": min(_SINGULAR, len(self.public.y) // 4)}
        projections += [
            Projection(m, source) for source, m in wide.items() if 1 < m <= min(_SINGULAR, self.model.size - 1)
        ]
        if self._rows_by_regression:  # for a classifier, the component of a path equals the loss, up to a constant
            projections += self.lengths(Projection(1, "loss"))
        return projections

    def lengths(self, projection: Projection) -> list[Projection]:
        """Return the projection with each number of public training steps, if it leaves that open."""
        if not projection.leaves_open(self.model):
            return [projection]
        return [replace(projection, steps=steps) for steps in STEPS]

    @property
    def _rows_by_regression(self) -> bool:
        """Whether every party is a single row and the model is a regression."""
        return self.model.task == REGRESSION and int(self.sizes.max(initial=0)) <= 1

    def options(
        self,
        candidates: list[Projection | None],
        mechanisms: list[Mechanism],
        clip: float | None,
        rule: str | None,
        is_requested: bool = True,
    ) -> list[Option]:
        """Return the best option of each projection and mechanism; a scalar law (Laplace) needs one direction.

        Options whose upper bound is too low to be preferred are skipped.

        Args:
            candidates: the projections.
            mechanisms: mechanisms with a clipping norm of 1 and the noise of a row of the final table.
            clip: the clipping norm; None to choose it.
            rule: the clipping rule; None to choose it.
            is_requested: whether the settings name the projections. Other projections are skipped if the public rows do
                not span them.
        """
        bounds = [self.crowd.bound(mechanism) for mechanism in mechanisms]
        trials = [
            (is_line, place, number)
            for place, projection in enumerate(candidates)
            for is_line in [projection is not None and projection.m == 1]
            for number, mechanism in enumerate(mechanisms)
            if is_line or not find_law(mechanism.law).scalar
        ]
        options: dict[tuple[int, int], Option] = {}
        for _, place, number in sorted(
            trials, key=lambda trial: (-bounds[trial[2]], not trial[0])
        ):  # largest bound first
            same_law = [option for (_, index), option in options.items() if index == number]
            if not can_win(bounds[number], list(options.values())) or is_past_best(candidates[place], same_law):
                continue
            try:
                sketches = self.sketches(candidates[place])
            except DpvalueError:
                if is_requested:
                    raise
                continue
            option = self.fit(candidates[place], list(sketches.values()), mechanisms[number], clip, rule)
            options[place, number] = replace(option, places=tuple(sketches))
        return [options[key] for key in sorted(options)]

    def fit(
        self,
        projection: Projection | None,
        sketches: list[Sketches],
        mechanism: Mechanism,
        clip: float | None,
        rule: str | None,
    ) -> Option:
        """Return the option with the best clipping rule, norm and centre for the sketches of the folds.

        The expected AUC of each fold uses the best choice on the other folds, which avoids selection bias. It is the
        mean over the kinds of wrong labels.
        """
        kinds = [_join(kind) for kind in zip(*sketches, strict=True)]
        clean, bad, *_ = kinds
        is_line = projection is not None and projection.m == 1
        scores = np.concatenate([kind.score for kind in kinds])
        centres = np.quantile(scores, _CENTRES).tolist() if is_line else [0.0]
        if clip is not None:
            norms = [clip]
        elif is_line:
            spread = float(np.subtract(*np.quantile(scores, [0.95, 0.05])))
            norms = [width * spread for width in _WIDTHS]
        else:
            norms = np.quantile(np.concatenate([kind.length for kind in kinds]), _NORMS).tolist()
        norms = [norm if norm > 0 else 1.0 for norm in norms]
        grid = [
            (rule_name, norm, centre)
            for rule_name in ([name for name in RULES if RULES[name].automatic] if rule is None else [rule])
            for norm in (norms[:1] if RULES[rule_name].equal_lengths else norms)
            for centre in centres
        ]
        aucs = np.stack([self._aucs(fold, grid, mechanism) for fold in sketches], axis=1)
        rule_name, norm, centre = grid[int(aucs.mean(1).argmax())]
        other_sums = aucs.sum(1, keepdims=True) - aucs if len(sketches) > 1 else aucs
        best_elsewhere = other_sums.argmax(0)
        folds = aucs[best_elsewhere, np.arange(len(sketches))]
        best = Option(
            projection, mechanism, norm, rule_name, Scale(centre, centre), tuple(folds.tolist()), float(folds.mean()),
            tuple(grid[way] for way in best_elsewhere),
        )  # fmt: skip
        if projection is not None and projection.is_score:
            # Zero is the mean score of public rows under models that were not trained on them.
            return replace(best, scale=Scale(centre, -float(clean.contribution(rule_name, norm, centre).mean())))
        return replace(best, scale=_calibrate(best, clean, bad)) if is_line else best

    def _aucs(self, fold: Sketches, ways: list[Way], mechanism: Mechanism) -> Floats:
        """The AUC of each way (ways,), the mean over the kinds of wrong labels."""
        clean, *planted = fold
        aucs: Floats = np.mean([self.crowd.aucs((clean, bad), ways, mechanism) for bad in planted], axis=0)
        return aucs

    def sketches(self, projection: Projection | None) -> dict[int, Sketches]:
        """Return the sketches of the units by fold, for folds whose training rows span the projection."""
        if projection not in self._sketches:
            sketches, error_of_fold = {}, None
            for place, fold in enumerate(self.folds):
                try:
                    sketches[place] = fold.sketches(projection)
                except DpvalueError as error:  # a fold may lack a class
                    error_of_fold = error
            if error_of_fold is not None and not sketches:
                raise error_of_fold
            self._sketches[projection] = sketches
        return self._sketches[projection]

    @cached_property
    def folds(self) -> list[Fold]:
        """The folds of the public set; units have the sizes of the parties if a unit is a whole party."""
        whole = self.units.max(initial=1) <= 1
        rows = self.sizes if whole else np.maximum(1, self.sizes // np.maximum(self.units, 1))
        if not whole:
            rows = np.full(1, int(np.median(rows)))
        far_off = self._rows_by_regression
        return make_folds(self.model, self.initial, self.public, rows, whole, self.engine, self.seed, far_off)

    @cached_property
    def crowd(self) -> Crowd:
        """The distribution of the parties' numbers of units."""
        return make_crowd(self.units, self.seed)


def _calibrate(option: Option, clean: GradientSketch, bad: GradientSketch) -> Scale:
    """The scale at which clipped components of clean and of corrupted units have the means of the unclipped ones.

    The mean of corrupted units is bounded by minus that of clean ones: the loss of a wrong label is unbounded, and a
    few large ones would reverse the walk of all parties.
    """
    ends = [sketch.contribution(option.rule, option.clip, option.scale.centre).mean() for sketch in (clean, bad)]
    means = clean.score.mean(), max(bad.score.mean(), -clean.score.mean())
    if not (ends[0] > ends[1] and means[0] > means[1]):
        return option.scale
    gain = (means[0] - means[1]) / (ends[0] - ends[1])
    return Scale(option.scale.centre, float(means[0] - gain * ends[0]), float(gain))


def _join(parts: tuple[GradientSketch, ...]) -> GradientSketch:
    """The concatenated sketches of all folds."""
    return GradientSketch(
        np.concatenate([part.score for part in parts]), np.concatenate([part.length for part in parts])
    )


def prefer(options: list[Option], size: int) -> tuple[Option, list[Option]]:
    """Return the preferred option, and the one that the other folds prefer, for each fold.

    Preferred is the option with the most directions among those with at least 98% of the best expected AUC above 0.5.
    More directions show redundancy between parties, which one number per party cannot. A score, which has no direction,
    is preferred only if no option with directions reaches 98%. The preference of the other folds avoids selection bias.
    """
    chosen = _preferred_option(options, [option.auc for option in options], size)
    folds = len(chosen.folds)
    comparable = [option for option in options if (len(option.folds), option.places) == (folds, chosen.places)]
    if folds < 2:
        return chosen, [chosen] * folds
    other_folds = []
    for fold in range(folds):
        other_aucs = [(sum(option.folds) - option.folds[fold]) / (folds - 1) for option in comparable]
        other_folds.append(_preferred_option(comparable, other_aucs, size))
    return chosen, other_folds


def is_past_best(projection: Projection | None, options: list[Option]) -> bool:
    """Return whether the AUC already fell with longer public training; longer training is then skipped.

    From some length on, longer training overfits the public rows.
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
    """Return whether an option with this upper bound could be preferred to the options, on all folds or all but one."""
    if not options:
        return True
    best = max(options, key=lambda option: option.auc)
    count = len(best.folds)
    views = [best.auc, *((sum(best.folds) - fold_auc) / max(count - 1, 1) for fold_auc in best.folds if count > 1)]
    return any(bound - 0.5 >= _AS_GOOD * (view - 0.5) for view in views)


def _preferred_option(options: list[Option], aucs: list[float], size: int) -> Option:
    best = max(aucs)
    pairs = [(option, auc) for option, auc in zip(options, aucs, strict=True) if auc - 0.5 >= _AS_GOOD * (best - 0.5)]
    if best <= 0.5:
        pairs = list(zip(options, aucs, strict=True))
    return max(pairs, key=lambda pair: (_directions(pair[0].projection, size), pair[1]))[0]


def _directions(projection: Projection | None, size: int) -> int:
    if projection is None:
        return size
    return 0 if projection.is_score else projection.m
