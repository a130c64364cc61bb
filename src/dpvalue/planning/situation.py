"""The public inputs of all choices, the open options of a release, and the expected quality of values."""

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
    """A mean over rehearsals with its standard error; conclusions need two standard errors."""

    mean: float
    error: float

    @classmethod
    def of(cls, numbers: Floats) -> RehearsedMean:
        """Return the mean of numbers (splits, deals), with the error among all or among splits, if that is larger."""
        errors = (float(np.std(sample, ddof=1) / sample.size**0.5) for sample in (numbers, numbers.mean(1)))
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
    """The expected agreement of values with retraining.

    Attributes:
        spearman: rank correlation of the Shapley values with retraining, the mean over rehearsals.
        error: its standard error.
        sizes: rank correlation of the parties' sizes with retraining, the mean over the same rehearsals.
        gain_over_sizes: difference of the two, rehearsal by rehearsal.
        size_ratio: records of a pseudo-party per record of a real party; below 1 if public rows are too few.
        too_small: the numbers of units of the parties that are too small for the budget.
    """

    spearman: float
    error: float
    sizes: float
    gain_over_sizes: RehearsedMean
    size_ratio: float
    too_small: tuple[int, ...]

    @property
    def can_work(self) -> bool:
        """Whether the rank correlation is at least 0.5, even two standard errors below."""
        return RehearsedMean(self.spearman, self.error).low >= CAN_WORK and not self.cannot_work

    @property
    def cannot_work(self) -> bool:
        """Whether the values are not expected to be informative.

        The rank correlation is below 0.3 even two standard errors above, or the values add nothing to sizes
        (`is_no_more_than_sizes`).
        """
        return RehearsedMean(self.spearman, self.error).high < CANNOT_WORK or self.is_no_more_than_sizes

    @property
    def is_no_more_than_sizes(self) -> bool:
        """Whether the gain over sizes is below 0.05 even two standard errors above, and that of sizes below 0.9."""
        return self.sizes < _SIZES_SUFFICE and self.gain_over_sizes.high < _ADDS_NOTHING

    @property
    def is_more_than_sizes(self) -> bool:
        """Whether the gain over sizes is positive even two standard errors below."""
        return self.gain_over_sizes.low > 0


@dataclass(frozen=True)
class Expectation:
    """An expected AUC and its standard error over public sets of the same size.

    `auc` is for wrong labels, `far_off` for labels that are three standard deviations off; None unless a regression
    values rows.
    """

    auc: float
    error: float
    far_off: float | None = None

    @property
    def best(self) -> float:
        """The larger of the two."""
        return self.auc if self.far_off is None else max(self.auc, self.far_off)


def expect(rehearsal: Rehearsal, other_folds: list[Option]) -> Expectation:
    """Return the expected AUC: on each fold, that of the choice of the other folds.

    Formal guarantee: reads public rows and the parties' public sizes only.
    """
    folds: list[float] = []
    variances: list[float] = []
    for place, option in enumerate(other_folds):
        auc, variance = _fold_auc(rehearsal, option, place)
        folds.append(auc)
        variances.append(variance)
    expected = combine_folds(folds, variances, sum(fold.distinct_rows for fold in rehearsal.folds))
    return replace(expected, far_off=_outlier_auc(rehearsal, other_folds))


def combine_folds(folds: list[float], variances: list[float], distinct: int) -> Expectation:
    """Return the mean over folds with its standard error.

    The error is the larger of two estimates, from the rows of each fold and from the differences between folds. One
    more row that contradicts the estimate is added to it: a few rows that agree prove little.
    """
    count = len(folds)
    auc = float(np.mean(folds))
    within = float(np.sum(variances)) / count**2
    between = float(np.var(folds, ddof=1)) / count if count > 1 else 0.25
    unseen = max(auc - 0.5, 1 - auc) / max(distinct, 1)
    return Expectation(auc, sqrt(max(within, between) + unseen**2))


def _fold_auc(rehearsal: Rehearsal, option: Option, place: int) -> tuple[float, float]:
    """The AUC on one fold, and its variance over the fold's rows."""
    number, way = option.places[place], option.ways[place]
    clean, planted, *_ = rehearsal.sketches(option.projection)[number]
    pair = clean, planted
    crowd, fold = rehearsal.crowd, rehearsal.folds[number]
    if crowd.units.max() > 1:
        return crowd.auc(pair, way, option.mechanism, fine=True), 0.0
    return mean_over_pairs(crowd.matrix(pair, way, option.mechanism), fold)


def _outlier_auc(rehearsal: Rehearsal, other_folds: list[Option]) -> float | None:
    """The expected AUC for outliers as labels; None without such units."""
    aucs = []
    for place, option in enumerate(other_folds):
        clean, _, *outliers = rehearsal.sketches(option.projection)[option.places[place]]
        aucs += [rehearsal.crowd.auc((clean, bad), option.ways[place], option.mechanism, fine=True) for bad in outliers]
    return float(np.mean(aucs)) if aucs else None


def mean_over_pairs(chances: Floats, fold: Fold) -> tuple[float, float]:
    """Return the mean over pairs of units with different rows, and its variance.

    A row and its copy with another label form no pair: they never meet in practice, but are frequent among few rows.
    The variance is over rows, each of which is in pairs as a clean and as a corrupted one.
    """
    is_pair = fold.row_labels[:, None] != fold.row_labels[None, :]
    if not is_pair.any():
        return float(chances.mean()), 0.25
    auc = float(chances[is_pair].mean())
    deviations = np.where(is_pair, chances - auc, 0.0)
    rows = deviations.sum(1) / np.maximum(is_pair.sum(1), 1) + deviations.sum(0) / np.maximum(is_pair.sum(0), 1)
    groups = np.bincount(np.unique(fold.row_labels, return_inverse=True)[1], weights=rows)
    return auc, float(np.square(groups).sum() / max(len(rows), 1) ** 2)


@dataclass(frozen=True)
class Situation:
    """The public inputs of a choice; `sizes` and `units` are the parties' numbers of rows and protected units (n,)."""

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
        """Return the number of averaged statistics of each party (n,); for unit "party" that of its records."""
        return self.sizes if unit == "party" else self.units

    def rehearsal(self) -> Rehearsal:
        """Return the rehearsal on the public set."""
        engine, seed = self.settings.engine, self.settings.seed
        return Rehearsal(self.model, self.initial, self.public, self.sizes, self.units, engine, seed)


def expectation_at(situation: Situation, privacy: Privacy, rehearsal: Rehearsal) -> Expectation:
    """Return the expected AUC of the best option at a budget."""
    return expect(rehearsal, prefer(options(situation, privacy, rehearsal), situation.model.size)[1])


def options(situation: Situation, privacy: Privacy, rehearsal: Rehearsal) -> list[Option]:
    """Return the options of a release at a budget that the settings leave open."""
    settings = situation.settings
    clip = None if isinstance(settings.clip, str) else float(settings.clip)
    rule = None if settings.clip_rule == "auto" else settings.clip_rule
    fixed = settings.fixed_projection
    is_requested = not settings.free_projection
    if not is_requested:
        candidates = rehearsal.candidates()
    elif fixed is None:
        # For all directions the rule is "flat": its walks are much faster.
        candidates, rule = [None], rule or "flat"
    else:
        candidates = [*rehearsal.lengths(fixed)]
    possible = rehearsal.options(
        candidates, possible_mechanisms(settings, privacy, situation.n), clip, rule, is_requested
    )
    if not possible:
        raise scalar_law_error(settings, privacy)
    return possible


def scalar_law_error(settings: Settings, privacy: Privacy) -> DpvalueError:
    """Return the error for a budget that needs a scalar law (Laplace), where the settings exclude it."""
    setting = "delta = 0" if privacy.delta == 0 else f"mechanism={privacy.mechanism!r}"
    return DpvalueError(
        f"{setting} needs one release of one number: projection with m = 1 and schedule 'replay' with rounds = 1; "
        f"got projection {settings.projection!r} and schedule {str(settings.resolved_schedule)!r}"
    )


def possible_mechanisms(settings: Settings, privacy: Privacy, n: int) -> list[Mechanism]:
    """Return the mechanisms that budget and schedule allow, with a norm of 1 and the noise of a final table row."""
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
