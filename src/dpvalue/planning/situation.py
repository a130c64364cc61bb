"""What choices are made from, the ways to release that are open, and what is expected of values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import PublicSet
from dpvalue.errors import DpvalueError
from dpvalue.models import Model
from dpvalue.planning.folds import Fold
from dpvalue.planning.rehearsal import Option, Rehearsal, prefer
from dpvalue.planning.settings import Settings
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.mechanism import Mechanism, make_mechanism

CAN_WORK, CANNOT_WORK = 0.5, 0.3

_SIZES_SUFFICE, _ADDS_NOTHING = 0.9, 0.05


@dataclass(frozen=True)
class RehearsedMean:
    """A mean over rehearsals and its standard error; what is said of it holds for two of them."""

    mean: float
    error: float

    @classmethod
    def of(cls, numbers: Floats) -> RehearsedMean:
        """Return the mean of numbers (splits, deals), with the error among all or among splits, if that is larger."""
        errors = (float(np.std(some, ddof=1) / some.size**0.5) for some in (numbers, numbers.mean(1)))
        return cls(float(numbers.mean()), max(errors))

    @property
    def low(self) -> float:
        """Two standard errors below."""
        return self.mean - 2 * self.error

    @property
    def high(self) -> float:
        """Two standard errors above."""
        return self.mean + 2 * self.error


@dataclass(frozen=True)
class Agreement:
    """What values are expected to have in common with retraining.

    Attributes:
        spearman: the rank correlation of Shapley values, the mean over rehearsals.
        error: its standard error.
        sizes: the rank correlation that the parties' sizes alone would have, the mean over the same rehearsals.
        beyond: by how much values do better than sizes, rehearsal by rehearsal.
        scaled: how many records made-up parties had for each of a real one: below 1 where public rows are too few.
        too_small: the numbers of units of the parties that are too small for the budget.
    """

    spearman: float
    error: float
    sizes: float
    beyond: RehearsedMean
    scaled: float
    too_small: tuple[int, ...]

    @property
    def can_work(self) -> bool:
        """Whether values are expected to agree with retraining, for sure: 0.5 even two standard errors below."""
        return RehearsedMean(self.spearman, self.error).low >= CAN_WORK and not self.cannot_work

    @property
    def cannot_work(self) -> bool:
        """Whether values are not expected to say anything, for sure.

        That is a rank correlation below 0.3 even two standard errors above, or one that is less than 0.05 above that of
        sizes, where sizes leave something to say: theirs is below 0.9.
        """
        return RehearsedMean(self.spearman, self.error).high < CANNOT_WORK or self.is_no_more_than_sizes

    @property
    def is_no_more_than_sizes(self) -> bool:
        """Whether values are expected to say nothing that sizes do not, for sure."""
        return self.sizes < _SIZES_SUFFICE and self.beyond.high < _ADDS_NOTHING

    @property
    def is_more_than_sizes(self) -> bool:
        """Whether values are expected to say more than sizes do, for sure."""
        return self.beyond.low > 0


@dataclass(frozen=True)
class Expectation:
    """An expected AUC and its standard error, over the public rows that might have been drawn.

    `far_off` is the AUC that is expected for labels that are three standard deviations off, beside `auc` for those of
    another row; None where that was not tried, as it is for rows that a regression values.
    """

    auc: float
    error: float
    far_off: float | None = None

    @property
    def best(self) -> float:
        """The larger of the two."""
        return self.auc if self.far_off is None else max(self.auc, self.far_off)


def expect(rehearsal: Rehearsal, elsewhere: list[Option]) -> Expectation:
    """Return the AUC to expect, from what would have been chosen on the other folds of each fold.

    Formal guarantee: reads public rows and the parties' public sizes only.
    """
    folds: list[float] = []
    variances: list[float] = []
    for place, option in enumerate(elsewhere):
        auc, variance = _fold(rehearsal, option, place)
        folds.append(auc)
        variances.append(variance)
    expected = combined(folds, variances, sum(fold.distinct for fold in rehearsal.folds))
    return replace(expected, far_off=_far_off(rehearsal, elsewhere))


def combined(folds: list[float], variances: list[float], distinct: int) -> Expectation:
    """Return the mean over folds with its error.

    The error is the larger of two estimates, from the rows of each fold and from how much folds differ. To it is added
    what one more row could change, at which the choice would do no better than chance, or would not fail: few rows that
    all agree prove little.
    """
    count = len(folds)
    auc = float(np.mean(folds))
    within = float(np.sum(variances)) / count**2
    between = float(np.var(folds, ddof=1)) / count if count > 1 else 0.25
    unseen = max(auc - 0.5, 1 - auc) / max(distinct, 1)
    return Expectation(auc, sqrt(max(within, between) + unseen**2))


def _fold(rehearsal: Rehearsal, option: Option, place: int) -> tuple[float, float]:
    """The AUC on one fold, and its variance over the fold's rows."""
    number, way = option.places[place], option.ways[place]
    clean, planted, *_ = rehearsal.sketches(option.projection)[number]
    pair = clean, planted
    crowd, fold = rehearsal.crowd, rehearsal.folds[number]
    if crowd.units.max() > 1:
        return crowd.auc(pair, way, option.mechanism, fine=True), 0.0
    return over_pairs(crowd.matrix(pair, way, option.mechanism), fold)


def _far_off(rehearsal: Rehearsal, elsewhere: list[Option]) -> float | None:
    """The AUC for labels that are far off; None if they were not tried."""
    found = []
    for place, option in enumerate(elsewhere):
        clean, _, *others = rehearsal.sketches(option.projection)[option.places[place]]
        found += [rehearsal.crowd.auc((clean, bad), option.ways[place], option.mechanism, fine=True) for bad in others]
    return float(np.mean(found)) if found else None


def over_pairs(chances: Floats, fold: Fold) -> tuple[float, float]:
    """Return the mean over pairs of different units, and its variance.

    A row beside itself with another label is no pair that is met: of few rows, such pairs would be many. The variance
    is that of the mean over rows, each of which is in pairs as a clean and as a corrupted one.
    """
    differ = fold.alike[:, None] != fold.alike[None, :]
    if not differ.any():
        return float(chances.mean()), 0.25
    auc = float(chances[differ].mean())
    off = np.where(differ, chances - auc, 0.0)
    rows = off.sum(1) / np.maximum(differ.sum(1), 1) + off.sum(0) / np.maximum(differ.sum(0), 1)
    groups = np.bincount(np.unique(fold.alike, return_inverse=True)[1], weights=rows)
    return auc, float(np.square(groups).sum() / max(len(rows), 1) ** 2)


@dataclass(frozen=True)
class Situation:
    """What a choice may depend on, all of it public; `sizes` and `units` are the parties' rows and protected units."""

    model: Model
    initial: Tensor
    public: PublicSet
    sizes: Ints
    units: Ints
    settings: Settings

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.sizes)

    @property
    def has_sets(self) -> bool:
        """Whether some party is a data set of several rows."""
        return int(self.sizes.max(initial=0)) > 1

    def averaged_units(self, unit: str) -> Ints:
        """Return the number of units of each party whose statistics are averaged; a whole party is its records."""
        return self.sizes if unit == "party" else self.units

    def rehearsal(self) -> Rehearsal:
        """Return the public set, ready to try ways to release on."""
        engine, seed = self.settings.engine, self.settings.seed
        return Rehearsal(self.model, self.initial, self.public, self.sizes, self.units, engine, seed)


def expected_at(situation: Situation, privacy: Privacy, rehearsal: Rehearsal) -> Expectation:
    """Return what is expected of the best way to release at a budget."""
    return expect(rehearsal, prefer(options(situation, privacy, rehearsal), situation.model.size)[1])


def options(situation: Situation, privacy: Privacy, rehearsal: Rehearsal) -> list[Option]:
    """Return the ways to release at a budget that the settings leave open."""
    settings = situation.settings
    clip = None if isinstance(settings.clip, str) else float(settings.clip)
    rule = None if settings.clip_rule == "auto" else settings.clip_rule
    fixed = settings.fixed_projection
    given = not settings.free_projection
    if not given:
        candidates = rehearsal.candidates()
    elif fixed is None:
        # Of all directions only what is too long is scaled: the engine walks that far faster.
        candidates, rule = [None], rule or "flat"
    else:
        candidates = [*rehearsal.lengths(fixed)]
    possible = rehearsal.options(candidates, possible_mechanisms(settings, privacy, situation.n), clip, rule, given)
    if not possible:
        raise no_laplace(settings, privacy)
    return possible


def no_laplace(settings: Settings, privacy: Privacy) -> DpvalueError:
    """Return the error for a budget that only scalar laws (Laplace) could keep, where they cannot be used."""
    asked = "delta = 0" if privacy.delta == 0 else f"mechanism={privacy.mechanism!r}"
    return DpvalueError(
        f"{asked} needs one release of one number: projection with m = 1 and schedule 'replay' with rounds = 1; "
        f"got projection {settings.projection!r} and schedule {str(settings.resolved_schedule)!r}"
    )


def possible_mechanisms(settings: Settings, privacy: Privacy, n: int) -> list[Mechanism]:
    """Return the mechanisms that budget and schedule allow, with a norm of 1 and the noise of a final row."""
    schedule, permutations = settings.resolved_schedule, settings.permutations
    possible = []
    for law in privacy.laws:
        if not find_law(law).scalar:
            noise = privacy.noise_multiplier(schedule.releases(permutations), n, law)
            noise *= float(np.linalg.norm(schedule.table_weights(permutations)))
            possible.append(make_mechanism(privacy, 1.0, noise, law=law))
        elif schedule.kind == "replay" and schedule.rounds in (None, 1):  # one release
            possible.append(make_mechanism(privacy, 1.0, privacy.noise_multiplier(1, n, law), law=law))
    return possible
