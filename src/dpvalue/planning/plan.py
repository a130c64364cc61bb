"""What a budget can buy, before anything is spent: the numbers of a plan, from the budget alone or with a utility."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
import torch

from dpvalue.arrays import Ints
from dpvalue.data.parties import counts_of
from dpvalue.data.utility import as_utility
from dpvalue.engine.evaluator import Evaluator
from dpvalue.engine.local import TABLES, Local
from dpvalue.errors import DpvalueError, require_count, require_number
from dpvalue.models import ModelFactory
from dpvalue.planning.choice import Choice, Setting, best_option, choose, no_laplace
from dpvalue.planning.detection import ceiling, epsilon_of_ceiling, gaussian_ceiling, laplace_ceiling
from dpvalue.planning.plan_page import Plan
from dpvalue.planning.projection import Projection
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import Settings
from dpvalue.privacy.budget import Guarantee, Privacy, guarantee
from dpvalue.privacy.laws import law_named
from dpvalue.releasing.schedule import Schedule, as_schedule
from dpvalue.valuation.replay import LEAST_WALKS
from dpvalue.valuation.run import open_setting

CANNOT_WORK, CAN_WORK = 0.6, 0.7
_EPSILONS = 0.01, 1000.0
_TIMED = 64


def plan(
    parties: Any,
    utility: Any = None,
    *,
    model: str | ModelFactory = "logistic",
    privacy: Privacy = Privacy(),  # noqa: B008  (immutable)
    schedule: str | Schedule | None = None,
    permutations: int = 1000,
    projection: Projection | str | None = "auto",
    clip: float | str = "auto",
    clip_rule: str = "auto",
    preprocess: Any = None,
    classes: Sequence[Any] | None = None,
    target: str | None = None,
    groups: Any = None,
    persons: Any = None,
    records: int = 1,
    parameters: int | None = None,
    auc: float | None = None,
    engine: Local = Local(),  # noqa: B008  (immutable)
    seed: int = 0,
) -> Plan:
    """Return what a run would spend and could reach.

    Formal guarantee: spends nothing. Of parties it reads their number and sizes, which are public, and no row.

    The ceilings (`dpvalue.detection`) are for units that release on their own, without a trusted curator. They assume
    that which units are corrupted is exchangeable given what is public, bound the mean over runs, and leave out delta.
    With a utility, the same choice is made as `dpvalue.value` would make with these settings and this seed.

    Args:
        parties: their number, or the parties as in `dpvalue.value`.
        utility: the public set; without it there is no expected AUC.
        model: as in `dpvalue.value`, like all settings not described here.
        privacy: the budget.
        schedule: when parties release.
        permutations: the most to walk.
        projection: the directions of the releases.
        clip: the clipping norm.
        clip_rule: how it is applied.
        preprocess: a transformer to fit to the public features.
        classes: all classes, where the public set does not show every one.
        target: the label column of DataFrames.
        groups: a label per row.
        persons: an id per row.
        records: records per party, when `parties` is a number.
        parameters: of the model, for the size of the table, when there is no utility.
        auc: a wanted AUC; the plan then says which epsilon it needs.
        engine: where to compute.
        seed: of the rehearsal.

    >>> round(plan(800, privacy=Privacy(epsilon=2.0)).gaussian_ceiling, 3)
    0.782
    """
    if not isinstance(privacy, Privacy):
        raise DpvalueError(f"privacy must be a Privacy, got {privacy!r}: without one there is nothing to plan")
    if auc is not None:
        require_number("auc", auc, "above 0.5 and below 1", 0.5 < auc < 1)
    if parameters is not None:
        require_count("parameters", parameters)
    sizes, units = counts_of(parties, privacy, records, target, groups, persons)
    settings = Settings(
        model=model,
        privacy=privacy,
        schedule=as_schedule(schedule, private=True),
        permutations=permutations,
        projection=projection,
        clip=clip,
        clip_rule=clip_rule,
        learning_rate="auto",
        noise="secure",
        preprocess=preprocess,
        classes=None if classes is None else tuple(classes),
        engine=engine,
        seed=seed,
    )
    if utility is None:
        return _without_data(settings, privacy, sizes, units, parameters, auc)
    with engine.threading():
        at, _ = open_setting(as_utility(utility, target, groups, persons), settings, sizes, units)
        return _with_data(at, privacy, auc)


def _without_data(
    settings: Settings,
    privacy: Privacy,
    sizes: Ints,
    units: Ints,
    parameters: int | None,
    auc: float | None,
) -> Plan:
    """A plan from the budget alone. Where both mechanisms are possible, which one it will be is open."""
    schedule, n, fixed = settings.schedule, len(units), settings.fixed_projection
    if schedule.kind == "replay" and (fixed is not None or privacy.vector_law is None):
        schedule = replace(schedule, rounds=schedule.rounds or 1)
    releases = schedule.releases(settings.permutations)
    both = _mechanisms(settings, privacy, releases, n)
    possible = [one for one in both.values() if one is not None]
    if not possible:
        raise no_laplace(settings, privacy)
    is_open = len(possible) > 1 or (settings.free_projection and privacy.vector_law is not None)
    spent = None if is_open else possible[0]
    epsilon = privacy.epsilon if spent is None or spent.epsilon is None else spent.epsilon
    ceilings = _ceilings(privacy, epsilon, both)
    noise = None
    if spent is not None and spent.noise_multiplier is not None:
        noise = spent.noise_multiplier * float(np.linalg.norm(schedule.table_weights(settings.permutations)))
    width = None if is_open else parameters
    if fixed is not None:
        width = fixed.m
    elif spent is not None and law_named(spent.law).scalar:
        width = 1
    table = None if width is None else n * width * settings.engine.torch_dtype.itemsize
    works_at = epsilon_of_ceiling(0.75, privacy.neighbours)
    needed = None
    if auc is not None and privacy.unit == "party":
        needed = epsilon_of_ceiling(auc, privacy.neighbours)
    return Plan(
        privacy=privacy,
        parties=n,
        units=int(np.median(units)),
        records=int(np.median(sizes)),
        schedule=schedule,
        spent=spent,
        gaussian=both["gaussian"],
        laplace=both["laplace"],
        table_noise=noise,
        **ceilings,
        projection=fixed,
        expected_auc=None,
        wanted_auc=auc,
        epsilon_needed=needed,
        table_bytes=table,
        memory_bytes=None if table is None else TABLES * table,
        seconds=None,
        advice=_advice(privacy, epsilon, ceilings["ceiling"], None, works_at, None),
    )


def _with_data(at: Setting, privacy: Privacy, auc: float | None) -> Plan:
    began = time.perf_counter()
    rehearsal = at.rehearsal()
    choice = choose(at, rehearsal)
    expected = choice.expected_auc
    if expected is None:  # all directions at a given norm: nothing was chosen, so nothing was rehearsed
        expected = best_option(at, privacy, rehearsal).auc
    chosen_in = time.perf_counter() - began
    spent = choice.spent
    assert spent.epsilon is not None
    assert spent.noise_multiplier is not None
    both = _mechanisms(at.settings, privacy, choice.releases, at.n)
    ceilings = _ceilings(privacy, spent.epsilon, both)
    weights = choice.schedule.table_weights(at.settings.permutations)
    table = at.n * choice.model.size * choice.initial.element_size()
    works_at = other_unit = None
    if expected < CANNOT_WORK:
        works_at = _epsilon_for(at, privacy, rehearsal, 0.75)
        if privacy.unit == "party" and np.median(at.sizes) > 1:
            record = replace(privacy, unit="record")
            inner = replace(at, units=at.sizes, settings=replace(at.settings, privacy=record))
            other_unit = best_option(inner, record, inner.rehearsal()).auc
    return Plan(
        privacy=privacy,
        parties=at.n,
        units=int(np.median(at.units)),
        records=int(np.median(at.sizes)),
        schedule=choice.schedule,
        spent=spent,
        gaussian=both["gaussian"],
        laplace=both["laplace"],
        table_noise=spent.noise_multiplier * float(np.linalg.norm(weights)),
        **ceilings,
        projection=choice.projection,
        expected_auc=expected,
        wanted_auc=auc,
        epsilon_needed=None if auc is None else _epsilon_for(at, privacy, rehearsal, auc),
        table_bytes=table,
        memory_bytes=TABLES * table,
        seconds=_seconds(at, choice, chosen_in),
        advice=_advice(privacy, spent.epsilon, ceilings["ceiling"], expected, works_at, other_unit),
    )


def _mechanisms(settings: Settings, privacy: Privacy, releases: int, n: int) -> dict[str, Guarantee | None]:
    """The guarantee of either mechanism at this budget, where it can be had."""
    found: dict[str, Guarantee | None] = {"gaussian": None, "laplace": None}
    one_release = settings.schedule.kind == "replay" and settings.schedule.rounds in (None, 1)
    many = settings.projection is None or (settings.fixed_projection is not None and settings.fixed_projection.m > 1)
    for law in privacy.laws:
        count = 1 if law_named(law).scalar else releases
        if not law_named(law).scalar or (one_release and not many):
            found[law] = guarantee(privacy, privacy.noise_multiplier(count, n, law), count, None, False, law)
    return found


def _ceilings(privacy: Privacy, epsilon: float, both: dict[str, Guarantee | None]) -> dict[str, Any]:
    gaussian, laplace = both["gaussian"], both["laplace"]
    mu = None if gaussian is None else gaussian.mu
    one_each = laplace is not None and privacy.parties_per_person == 1
    return {
        "ceiling": ceiling(epsilon, privacy.neighbours),
        "gaussian_ceiling": None if mu is None else gaussian_ceiling(mu, privacy.neighbours),
        "laplace_ceiling": laplace_ceiling(epsilon, privacy.neighbours) if one_each else None,
    }


def _epsilon_for(at: Setting, privacy: Privacy, rehearsal: Rehearsal, wanted: float) -> float:
    """The smallest epsilon, to 2%, at which the best way to release is expected to have this AUC."""

    def reaches(epsilon: float) -> bool:
        budget = replace(privacy, epsilon=epsilon, accounting="composition")
        return best_option(at, budget, rehearsal).auc >= wanted

    low, high = _EPSILONS
    if not reaches(high):
        return float("inf")
    while high / low > 1.02:
        middle = sqrt(low * high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def _seconds(at: Setting, choice: Choice, chosen_in: float) -> tuple[float, float]:
    """From the least to the most time: what choosing took, and what evaluations and gradients take on public rows."""
    evaluate = Evaluator(at.public, choice.model, at.settings.engine)
    models = choice.initial.expand(_TIMED, -1) + 0.0
    evaluate(models)
    began = time.perf_counter()
    evaluate(models)
    each = (time.perf_counter() - began) / _TIMED
    x, y = choice.model.inputs(at.public.x[:_TIMED]), choice.model.targets(at.public.y[:_TIMED])
    began = time.perf_counter()
    choice.model.gradients(models[: len(x)], x[:, None], y[:, None], torch.ones(len(x), 1).to(models))
    gradient = (time.perf_counter() - began) / len(x)
    permutations, (rounds, probes) = at.settings.permutations, choice.schedule.shape(at.settings.permutations)
    fixed = chosen_in + at.n * rounds * probes * gradient * max(1.0, float(np.mean(at.sizes)))
    first = choice.schedule.first_valued(permutations)
    least = min(LEAST_WALKS, permutations) if choice.schedule.kind == "replay" else permutations - first
    return fixed + at.n * least * each, fixed + at.n * (permutations - first) * each


def _advice(
    privacy: Privacy,
    epsilon: float,
    limit: float,
    expected: float | None,
    works_at: float | None,
    other_unit: float | None,
) -> str:
    """Whether the budget can work, in a sentence or two."""
    budget = f"epsilon = {epsilon:.4g} per {privacy.unit}"
    reach = limit if expected is None else expected
    if expected is None and privacy.unit != "party":
        return f"{budget} bounds what is learnt of one {privacy.unit}; give a utility to see what it says of parties."
    if reach >= CAN_WORK:
        return (
            f"{budget} can work."
            if expected is not None
            else f"{budget} is not ruled out; give a utility to see what it finds."
        )
    if reach >= CANNOT_WORK:
        return f"{budget} is weak: good for screening many parties, not for judging one."
    text = f"{budget} cannot work: values would be close to random."
    if works_at == float("inf"):
        text += " No epsilon gives AUC 0.75 with this utility and model."
    elif works_at is not None:
        text += f" AUC 0.75 takes epsilon = {works_at:.2g}" + (" or more." if expected is None else ".")
    if other_unit is not None:
        text += f" With unit='record' the same epsilon is expected to give AUC {other_unit:.2f}."
    elif privacy.unit == "party":
        text += (
            " What may work: value data sets (groups=) and protect their records (unit='record'), as noise shrinks "
            "with their size."
        )
    return text
