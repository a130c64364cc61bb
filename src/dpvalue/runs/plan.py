"""Plan a run: noise, ceilings and expected quality of a budget, before any of it is spent."""

from __future__ import annotations

import time
from dataclasses import replace
from math import sqrt
from numbers import Integral
from typing import Any, Unpack

import numpy as np

from dpvalue.arrays import Ints
from dpvalue.data.parties import public_counts
from dpvalue.data.utility import Utility, as_utility
from dpvalue.detection import ceiling, epsilon_of_ceiling, gaussian_ceiling, laplace_ceiling
from dpvalue.display import counted
from dpvalue.engine.engines import TABLES
from dpvalue.errors import DpvalueError, require_count, require_number
from dpvalue.methods.choosing import choose, method_of, method_of_settings
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import EntryKeywords, Settings, read_keywords, shows_settings
from dpvalue.planning.situation import CAN_WORK as CAN_AGREE
from dpvalue.planning.situation import CANNOT_WORK as CANNOT_AGREE
from dpvalue.planning.situation import Agreement, Situation, expectation_at, scalar_law_error
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import Guarantee, guarantee
from dpvalue.privacy.laws import find_law
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.costs import Costs, byte_costs, measured_costs
from dpvalue.runs.plan_page import CAN_WORK, TOO_VAGUE, Bounds, Plan, Sizes, TargetAUC
from dpvalue.runs.run import PreparedRun, open_setting

_EPSILONS = 0.01, 1000.0


@shows_settings(EntryKeywords)
def plan(
    parties: Any,
    utility: Any = None,
    settings: Settings | None = None,
    *,
    records: int = 1,
    parameters: int | None = None,
    auc: float | None = None,
    **keywords: Unpack[EntryKeywords],
) -> Plan:
    """Return what a run would spend, and how good its values are expected to be.

    Formal guarantee: spends nothing. Reads the number and the sizes of the parties, which are public, and no row.

    The ceilings (`dpvalue.detection`) hold for units that release on their own, without a trusted curator. They assume
    that which units are corrupted is exchangeable given what is public. They bound the mean over runs and ignore
    delta. With a utility, the plan stores its choices: `Plan.release` and `Plan.value` use them. `dpvalue.value`
    makes the same choices with these settings and this seed.

    Args:
        parties: their number, or the parties as in `dpvalue.value`.
        utility: the public set; without it there is no expected AUC.
        settings: as in `dpvalue.value`.
        records: records per party, when `parties` is a number.
        parameters: of the model, for the size of the table, when there is no utility.
        auc: a target AUC; the plan then states the epsilon that it needs.
        **keywords: fields of `Settings`, which change `settings`; target, groups and persons as in `dpvalue.value`.

    Returns:
        the plan; `print` shows it as a page.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.

    Example:
        >>> round(dpv.plan(800, privacy=Privacy(epsilon=2.0)).limits.gaussian_ceiling, 3)
        0.782
    """
    run_settings, labels = read_keywords(settings, keywords)
    privacy = run_settings.privacy
    if privacy is None:
        raise DpvalueError("privacy must be a Privacy, got None: a plan needs a budget")
    if auc is not None:
        require_number("auc", auc, "above 0.5 and below 1", 0.5 < auc < 1)
    if parameters is not None:
        require_count("parameters", parameters)
    public = None if utility is None else as_utility(utility, *labels)
    sizes, units = public_counts(parties, privacy, records, *labels, public)
    if public is None:
        return _without_data(run_settings, privacy, sizes, units, parameters, auc)
    # Who hands over parties has opened their data: from then on nothing is measured.
    return plan_sizes(public, run_settings, (sizes, units), auc=auc, timed=isinstance(parties, Integral))


def plan_sizes(
    utility: Utility, settings: Settings, sizes: tuple[Ints, Ints], *, auc: float | None = None, timed: bool
) -> Plan:
    """Return the plan for parties of these public numbers of rows and of protected units.

    Args:
        utility: the public set.
        settings: how the run is made.
        sizes: the numbers of rows, and of units, of each party.
        auc: a wanted AUC.
        timed: measure how long the run takes, on public rows; only in a process that has opened no private data.
    """
    with settings.engine.threading():
        return _with_data(utility, settings, *sizes, auc, timed)


def _without_data(
    settings: Settings,
    privacy: Privacy,
    sizes: Ints,
    units: Ints,
    parameters: int | None,
    auc: float | None,
) -> Plan:
    """A plan from the budget alone. Where both mechanisms are possible, which one it will be is open."""
    schedule, n, fixed = settings.resolved_schedule, len(units), settings.fixed_projection
    method = method_of_settings(settings)
    method.require_budget(privacy, auc)
    if method.one_release:
        schedule = Schedule("replay", rounds=1, probes=1)
    elif schedule.kind == "replay" and (fixed is not None or privacy.vector_law is None):
        schedule = replace(schedule, rounds=schedule.rounds or 1)
    releases = schedule.releases(settings.permutations)
    guarantees = _mechanisms(settings, privacy, releases, n)
    possible = [offered for offered in guarantees.values() if offered is not None]
    if not possible:
        raise scalar_law_error(settings, privacy)
    is_open = len(possible) > 1 or (
        settings.free_projection and privacy.vector_law is not None and not method.one_release
    )
    run_guarantee = None if is_open else possible[0]
    epsilon = privacy.epsilon if run_guarantee is None or run_guarantee.epsilon is None else run_guarantee.epsilon
    noise = None
    if run_guarantee is not None and run_guarantee.noise_multiplier is not None:
        noise = run_guarantee.noise_multiplier * float(np.linalg.norm(schedule.table_weights(settings.permutations)))
    width = None if is_open or method.one_release else parameters
    if fixed is not None:
        width = fixed.m
    elif run_guarantee is not None and find_law(run_guarantee.law).scalar:
        width = 1
    table = None if width is None else n * width * settings.engine.torch_dtype.itemsize
    works_at = epsilon_of_ceiling(0.75, privacy.neighbours)
    target = None
    if auc is not None:
        target = TargetAUC(auc, epsilon_of_ceiling(auc, privacy.neighbours) if privacy.unit == "party" else None)
    planned = Plan(
        privacy=privacy,
        sizes=_typical(sizes, units),
        schedule=schedule,
        guarantee=run_guarantee,
        table_noise=noise,
        limits=_limits(privacy, epsilon, guarantees),
        projection=fixed,
        expected=None,
        target_auc=target,
        costs=Costs(table, None if table is None else TABLES * table),
    )
    return replace(planned, advice=advice(planned, works_at, None))


def _with_data(utility: Utility, settings: Settings, sizes: Ints, units: Ints, auc: float | None, timed: bool) -> Plan:
    situation, encoding = open_setting(utility, settings, sizes, units)
    privacy = settings.privacy
    assert privacy is not None
    began = time.perf_counter() if timed else 0.0
    method = method_of(situation)
    method.require_budget(privacy, auc)
    rehearsal = None if method.one_release else situation.rehearsal()
    choice = choose(situation, rehearsal)
    expected = choice.method.expectation(situation, choice, rehearsal)
    costs = measured_costs(situation, choice, time.perf_counter() - began) if timed else byte_costs(situation, choice)
    run_guarantee = choice.guarantee
    assert run_guarantee.epsilon is not None
    assert run_guarantee.noise_multiplier is not None
    guarantees = _mechanisms(situation.settings, privacy, choice.releases, situation.n)
    weights = choice.schedule.table_weights(situation.settings.permutations)
    planned = Plan(
        privacy=privacy,
        sizes=_typical(situation.sizes, situation.units),
        schedule=choice.schedule,
        guarantee=run_guarantee,
        table_noise=run_guarantee.noise_multiplier * float(np.linalg.norm(weights)),
        limits=_limits(privacy, run_guarantee.epsilon, guarantees),
        projection=choice.projection,
        expected=expected,
        target_auc=None
        if auc is None or rehearsal is None
        else TargetAUC(auc, _epsilon_for(situation, privacy, rehearsal, auc)),
        costs=costs,
        prepared=PreparedRun(situation, encoding, choice, utility),
    )
    works_at = other_unit = None
    if planned.cannot_work and rehearsal is not None:
        works_at = _epsilon_for(situation, privacy, rehearsal, 0.75)
        if privacy.unit == "party" and np.median(situation.sizes) > 1:
            record = replace(privacy, unit="record")
            inner = replace(situation, units=situation.sizes, settings=replace(situation.settings, privacy=record))
            other_unit = expectation_at(inner, record, inner.rehearsal()).auc
    return replace(planned, advice=advice(planned, works_at, other_unit))


def _advice_on_agreement(planned: Plan, expected: Agreement) -> str:
    """Return whether the budget can work, beside what sizes alone say, and which parties are too small."""
    budget = f"epsilon = {planned.epsilon:.4g} per {planned.privacy.unit}"
    within = f"expected correlation {expected.spearman:.2f} ± {2 * expected.error:.2f} (two standard errors)"
    sizes = f"{expected.sizes:.2f} for sizes alone"
    if planned.cannot_work and expected.is_no_more_than_sizes:
        said = [f"{budget} cannot work: {within}, {sizes}. Sizes are public, so values would add nothing."]
    elif planned.cannot_work and expected.cannot_work:
        said = [f"{budget} cannot work: {within}, threshold {CANNOT_AGREE}."]
    elif planned.cannot_work:
        said = [f"{budget} cannot work: its AUC ceiling is {planned.limits.ceiling:.2f}."]
    else:
        verdict = f"{budget} can work" if expected.can_work else "Inconclusive"
        said = [f"{verdict}: {within}, threshold {CAN_AGREE}."]
        if not expected.is_more_than_sizes:
            said.append(f"Values may say no more than sizes: {sizes}.")
    if planned.cannot_work and planned.privacy.unit == "party":
        said.append("Alternative: protect records (unit='record'). Noise then shrinks with the size of a party.")
    if expected.too_small:
        said.append(_too_small(planned, expected, budget))
    return " ".join(said)


def _too_small(planned: Plan, expected: Agreement, budget: str) -> str:
    small, largest = len(expected.too_small), max(expected.too_small)
    everyone = small == planned.sizes.parties
    who = f"All {small}" if everyone else f"{small} of {planned.sizes.parties}"
    return (
        f"{who} parties are too small for {budget} (up to {counted(largest, planned.counted)}). Their values say "
        f"little beyond their size.{'' if everyone else ' The other parties are not affected.'}"
    )


def _typical(sizes: Ints, units: Ints) -> Sizes:
    return Sizes(len(units), int(np.median(units)), int(np.median(sizes)))


def _mechanisms(settings: Settings, privacy: Privacy, releases: int, n: int) -> dict[str, Guarantee | None]:
    """The guarantee of either mechanism at this budget, where it can be had."""
    possible: dict[str, Guarantee | None] = {"gaussian": None, "laplace": None}
    schedule = settings.resolved_schedule
    one_release = schedule.kind == "replay" and schedule.rounds in (None, 1)
    many = settings.projection is None or (settings.fixed_projection is not None and settings.fixed_projection.m > 1)
    for law in privacy.laws:
        count = 1 if find_law(law).scalar else releases
        if not find_law(law).scalar or (one_release and not many and not method_of_settings(settings).one_release):
            possible[law] = guarantee(privacy, privacy.noise_multiplier(count, n, law), count, None, False, law)
    return possible


def _limits(privacy: Privacy, epsilon: float, guarantees: dict[str, Guarantee | None]) -> Bounds:
    gaussian, laplace = guarantees["gaussian"], guarantees["laplace"]
    mu = None if gaussian is None else gaussian.mu
    one_each = laplace is not None and privacy.parties_per_person == 1
    return Bounds(
        gaussian=gaussian,
        laplace=laplace,
        ceiling=ceiling(epsilon, privacy.neighbours),
        gaussian_ceiling=None if mu is None else gaussian_ceiling(mu, privacy.neighbours),
        laplace_ceiling=laplace_ceiling(epsilon, privacy.neighbours) if one_each else None,
    )


def _epsilon_for(situation: Situation, privacy: Privacy, rehearsal: Rehearsal, auc: float) -> float:
    """The smallest epsilon, to 2%, at which the best way to release is expected to have this AUC."""

    def reaches(epsilon: float) -> bool:
        budget = replace(privacy, epsilon=epsilon, accounting="composition")
        return expectation_at(situation, budget, rehearsal).auc >= auc

    low, high = _EPSILONS
    if not reaches(high):
        return float("inf")
    while high / low > 1.02:
        middle = sqrt(low * high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def advice(planned: Plan, works_at: float | None, other_unit: float | None) -> str:
    """Return whether the budget can work, in one or two sentences.

    Args:
        planned: all other numbers of the plan.
        works_at: the epsilon at which AUC 0.75 is expected, infinite if out of reach.
        other_unit: the AUC that is expected if records are protected instead.
    """
    privacy, expected = planned.privacy, planned.expected
    if isinstance(expected, Agreement):
        return _advice_on_agreement(planned, expected)
    budget = f"epsilon = {planned.epsilon:.4g} per {privacy.unit}"
    if not planned.cannot_work:
        if expected is None and privacy.unit != "party":
            return (
                f"{budget} limits what is learned about one {privacy.unit}. Give a utility to see what it implies for "
                "parties."
            )
        if expected is not None and planned.too_few:
            return (
                f"Inconclusive: the expected AUC has a standard error of {expected.error:.2f}, above {TOO_VAGUE}. Give "
                "more public rows."
            )
        reach = planned.limits.ceiling if expected is None else expected.best
        if reach < CAN_WORK:
            return f"{budget} is weak: it suits screening many parties, not judging a single one."
        if expected is None:
            return f"{budget} is not ruled out. Give a utility to see the expected AUC."
        return f"{budget} can work."
    text = f"{budget} cannot work: values would be close to random."
    if works_at == float("inf"):
        text += " No epsilon gives AUC 0.75 with this utility and model."
    elif works_at is not None:
        text += f" AUC 0.75 needs epsilon = {works_at:.2g}" + (" or more." if expected is None else ".")
    if other_unit is not None:
        text += f" With unit='record' and the same epsilon, the expected AUC is {other_unit:.2f}."
    elif privacy.unit == "party":
        text += (
            " Alternative: value data sets (groups=) and protect their records (unit='record'). Noise then shrinks "
            "with the size of a party."
        )
    return text
