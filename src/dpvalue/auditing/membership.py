"""Membership inference from data values: the attack of the paper's appendix, a likelihood-ratio test on values.

The attacker infers whether a target row is a member, which is a row of the valued data. It takes part with a copy of
every target and sees the values of its copies: the copy of a member adds less. To learn the distribution of values, it
samples shadow sets from its own rows, with and without each target, values them, and fits a normal law to either case.

Members are a random half of the targets. Exchanging a member for another target replaces one party, so no test on
values under differential privacy has a mean AUROC above (1 + advantage)/2, with the advantage (total variation) between
neighbours under "replace".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, Unpack

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.data.checks import require_other_rows
from dpvalue.data.parties import Parties, as_parties
from dpvalue.data.raw import as_numbers, features_and_labels, label_column
from dpvalue.data.utility import as_utility
from dpvalue.detection import auc
from dpvalue.errors import DpvalueError, require_count
from dpvalue.games.semivalues import semivalues
from dpvalue.planning.settings import Settings, SettingsKeywords, settings_of, shows_settings
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.privacy.noise import noise_source
from dpvalue.progress import Progress, reporting, silent
from dpvalue.runs.run import PreparedRun, prepare, value_run
from dpvalue.streams import Purpose, stream

_SHAPLEY = semivalues("shapley")
_LEAST_OF_A_KIND = 3  # shadow values with and without a target that the fits need


@dataclass(frozen=True, eq=False)
class MembershipAttack:
    """The accuracy of a membership attack; `str()` of it is a line.

    Attributes:
        aurocs: the area under the ROC curve of each trial.
        guarantee: the guarantee of one run of a valuation.
        bound: the largest mean AUROC of any attack; 1 without privacy.

    Example:
        >>> attack = MembershipAttack(np.array([0.5, 0.52]), dpv.Guarantee(), bound=1.0)
        >>> print(attack)
        no differential privacy: AUROC 0.510 (0.010) over 2 trials, no bound
    """

    aurocs: Floats
    guarantee: Guarantee
    bound: float

    @property
    def mean(self) -> float:
        """The mean AUROC."""
        return float(self.aurocs.mean())

    @property
    def std_error(self) -> float:
        """The standard error of the mean."""
        return float(self.aurocs.std(ddof=1)) / sqrt(len(self.aurocs))

    @property
    def holds(self) -> bool:
        """Whether the mean is within three standard errors of its bound, or below."""
        return self.mean <= self.bound + 3 * self.std_error

    def __repr__(self) -> str:
        return f"MembershipAttack({self})"

    def __str__(self) -> str:
        spent = self.guarantee
        claim = f"epsilon = {spent.epsilon:.4g}, {spent.mechanism}" if spent.private else "no differential privacy"
        bound = f"at most {self.bound:.3f} by the guarantee" if spent.private else "no bound"
        verdict = "" if self.holds else "; BROKEN: more than the guarantee allows"
        return f"{claim}: AUROC {self.mean:.3f} ({self.std_error:.3f}) over {len(self.aurocs)} trials, {bound}{verdict}"


@shows_settings(SettingsKeywords, permutations=200, noise="fast")
def membership_attack(
    rows: Any,
    utility: Any,
    settings: Settings | None = None,
    *,
    members: int = 25,
    shadow_rows: int = 200,
    shadows: int = 32,
    trials: int = 40,
    progress: bool | Progress = True,
    **fields: Unpack[SettingsKeywords],
) -> MembershipAttack:
    """Return how well an attack on values distinguishes members from other rows, over repeated trials.

    No guarantee: this is an experiment on rows that need no protection. The result depends on them.

    Args:
        rows: (X, y), at least 2 x members + shadow_rows rows; each trial samples its own.
        utility: the public set.
        settings: the settings of each valuation, as in `dpvalue.value`; by default 200 permutations and fast noise.
            Each member is a party of one row.
        members: the number of members; the targets are these and as many other rows.
        shadow_rows: the number of the attacker's rows, from which it samples shadow sets.
        shadows: the number of shadow sets.
        trials: the number of repetitions.
        progress: show a bar on a terminal; or a callable (stage, done, total).
        **fields: fields of `Settings`, which change `settings`; `seed` makes the trials too.

    Returns:
        the AUROC of each trial, and the bound on their mean.

    Raises:
        DpvalueError: fewer rows than the trials need, or a setting that is out of range.

    Example:
        >>> attack = membership_attack(train, test, members=4, shadow_rows=20, shadows=16, trials=2,
        ...                            privacy=None, permutations=5, progress=False)  # data as in `dpvalue.Result`
        >>> attack.aurocs.shape, attack.bound
        ((2,), 1.0)
    """
    run_settings = settings_of(settings, fields, permutations=200, noise="fast")
    run_settings.require_no_keeper("a membership attack")
    X, y = features_and_labels(rows, None, "rows")
    X, y = as_numbers(X, "rows"), np.asarray(label_column(y, "rows").cells)
    for name, count in (("members", members), ("shadow_rows", shadow_rows), ("trials", trials)):
        require_count(name, count, least=2)
    require_count("shadows", shadows, least=8)
    needed = 2 * members + shadow_rows
    if len(X) < needed:
        raise DpvalueError(f"rows must number at least 2 x members + shadow_rows = {needed}, got {len(X)}")
    if shadow_rows < members:
        raise DpvalueError(f"shadow_rows must be at least members = {members}, got {shadow_rows}")
    public = as_utility(utility)
    require_other_rows(as_parties(rows), public)
    ones = np.ones(3 * members, dtype=np.int64)
    with run_settings.engine.threading(), reporting(progress) as tell:
        target = _AttackTarget(prepare(public, run_settings, ones, ones), X, y)
        aurocs = []
        for trial in range(trials):
            aurocs.append(_trial(target, members, shadow_rows, shadows, trial))
            tell("attacking", trial + 1, trials)
    spent = target.prepared.choice.guarantee
    return MembershipAttack(np.array(aurocs), spent, (1 + spent.advantage_under("replace")) / 2)


@dataclass(frozen=True, eq=False, repr=False)
class _AttackTarget:
    """A prepared valuation, and the rows for its runs."""

    prepared: PreparedRun
    X: Any
    y: Any

    def values(self, members: Any, copies: Any, seed: int) -> Floats:
        """Return the values of the attacker's copies beside the members."""
        rows = np.concatenate([members, copies])
        run = self.prepared.run(Parties(self.X[rows], self.y[rows]))
        settings = run.settings
        if settings.privacy is not None and settings.noise == "fast":
            run = replace(run, noise=noise_source("fast", seed, Purpose.ATTACK))
        return value_run(run, self.prepared.utility, _SHAPLEY, silent).values["shapley"][len(members) :]


def _trial(target: _AttackTarget, members: int, shadow_rows: int, shadows: int, trial: int) -> float:
    """One set of targets, shadow sets and members; the AUROC of the attack."""
    seed = target.prepared.situation.settings.seed
    generator = stream(seed, Purpose.ATTACK, trial)
    order = generator.permutation(len(target.X))
    targets, own = order[: 2 * members], order[2 * members : 2 * members + shadow_rows]

    def observe(among: Any) -> Floats:
        # In a random order, so that exchanging a target does not change the positions of others.
        return target.values(generator.permutation(among), targets, int(generator.integers(2**62)))

    is_member = np.zeros(2 * members, dtype=bool)
    is_member[generator.choice(2 * members, members, replace=False)] = True
    observed = observe(targets[is_member])
    held, shadow_values = [], []
    for number in range(shadows):
        inside = np.zeros(2 * members, dtype=bool)
        # Each target is in and out of enough shadow sets: one after the other in a random order, half a set at once.
        inside[(np.arange(members // 2) + number * (members // 2)) % (2 * members)] = True
        filler = generator.choice(own, members - int(inside.sum()), replace=False)
        held.append(inside)
        shadow_values.append(observe(np.concatenate([targets[inside], filler])))
    return auc(-_likelihood_ratios(observed, np.array(shadow_values), np.array(held)), is_member)


def _likelihood_ratios(observed: Floats, shadow_values: Floats, inside: Any) -> Floats:
    """The log-likelihood ratio of each target's value, with normal laws of one variance fitted to the shadow values."""
    if min(inside.sum(0).min(), (~inside).sum(0).min()) < _LEAST_OF_A_KIND:
        raise DpvalueError(
            f"shadows must be larger: each target must be in at least {_LEAST_OF_A_KIND} shadow sets and out of as many"
        )
    with_ = np.where(inside, shadow_values, 0.0).sum(0) / inside.sum(0)
    without = np.where(inside, 0.0, shadow_values).sum(0) / (~inside).sum(0)
    variance = np.square(shadow_values - np.where(inside, with_, without)).sum(0) / (len(shadow_values) - 2)
    ratios: Floats = (np.square(observed - without) - np.square(observed - with_)) / (2 * variance)
    return ratios
