"""What a budget can buy, before anything is spent: noise, ceilings, expected quality, memory, time, and advice."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dpvalue.choice import Choice, Setting, best_option, choose
from dpvalue.detection import ceiling, efficiency, epsilon_of_ceiling, gaussian_ceiling, laplace_ceiling
from dpvalue.engine.evaluator import Evaluator
from dpvalue.engine.local import TABLES, Local
from dpvalue.errors import DpvalueError, require_count, require_number
from dpvalue.models import ModelFactory
from dpvalue.parties import as_parties
from dpvalue.privacy.budget import Guarantee, Privacy, guarantee
from dpvalue.projection import Projection
from dpvalue.rehearsal import Rehearsal
from dpvalue.replay import LEAST_WALKS
from dpvalue.run import open_setting
from dpvalue.schedule import Schedule, as_schedule
from dpvalue.settings import Settings
from dpvalue.utility import as_utility

CANNOT_WORK, CAN_WORK = 0.6, 0.7
_EPSILONS = 0.01, 1000.0
_TIMED = 64


@dataclass(frozen=True)
class Plan:
    """What a run would spend and could reach; str() of it is a page to read.

    Attributes:
        privacy: the budget.
        parties: their number.
        units: protected units in a party, typically: 1, its records or its persons.
        schedule: when parties release.
        releases: noisy messages per party.
        spent: the guarantee of the run; `gaussian` and `laplace` are those of either mechanism at this budget, None
            where the budget or the schedule rules it out.
        table_noise: noise scale / sensitivity of a party's final row.
        ceiling: no method at all finds corrupted units with a larger expected AUC at this epsilon.
        gaussian_ceiling: the same for Gaussian releases.
        laplace_ceiling: the same for one Laplace release of one number per unit.
        projection: the directions of the releases; None: all, or not yet chosen, as that takes a utility.
        expected_auc: how well corrupted parties are expected to be found, by rehearsal on the utility's rows.
        wanted_auc: what was asked for.
        epsilon_needed: the epsilon at which it is expected; without a utility, below which no method has it. Infinite
            if it is out of reach at any epsilon.
        table_bytes: size of the table, if the number of parameters or a utility was given.
        memory_bytes: the table and the sums it is made from.
        seconds: from the least permutations to all of them, measured on the utility's rows.
        advice: whether the budget can work, and what would.
    """

    privacy: Privacy
    parties: int
    units: int
    schedule: Schedule
    releases: int
    spent: Guarantee
    gaussian: Guarantee | None
    laplace: Guarantee | None
    table_noise: float
    ceiling: float
    gaussian_ceiling: float | None
    laplace_ceiling: float | None
    projection: Projection | None
    expected_auc: float | None
    wanted_auc: float | None
    epsilon_needed: float | None
    table_bytes: int | None
    memory_bytes: int | None
    seconds: tuple[float, float] | None
    advice: str

    @property
    def epsilon(self) -> float:
        """What is really spent; differs from privacy.epsilon only for accounting "poisson"."""
        assert self.spent.epsilon is not None
        return self.spent.epsilon

    @property
    def efficiency(self) -> float | None:
        """(expected AUC - 0.5) / (ceiling - 0.5), for parties protected as a whole."""
        if self.expected_auc is None or self.privacy.unit != "party":
            return None
        return efficiency(self.expected_auc, self.epsilon, self.privacy.neighbours)

    def __str__(self) -> str:
        unit = self.privacy.unit
        inside = "" if unit == "party" else f" of {self.units} {unit}s each"
        lines = [
            f"{self.parties} parties{inside}; {self.schedule}: {self.releases} release(s) each",
            f"budget: epsilon = {self.epsilon:.4g} per {unit}, neighbours {self.privacy.neighbours}; either mechanism, "
            "and the advantage it gives an attacker:",
        ]
        if self.privacy.accounting == "poisson":
            lines.insert(1, f"claimed epsilon = {self.privacy.epsilon:.4g} (poisson); what is really spent:")
        for one, most in ((self.laplace, self.laplace_ceiling), (self.gaussian, self.gaussian_ceiling)):
            if one is not None:
                chosen = " (chosen)" if self.expected_auc is not None and one.mechanism == self.spent.mechanism else ""
                kind = "pure" if one.mu is None else f"mu = {one.mu:.3g}"
                lines.append(
                    f"  {one.mechanism}{chosen}: delta {one.delta:.3g}, {kind}, noise {one.noise_multiplier:.4g} x "
                    f"sensitivity, advantage {one.advantage:.2g}, AUC <= {most:.3f}"
                )
        many = "parties" if unit == "party" else f"{unit}s"
        lines.append(f"finding corrupted {many} one by one: AUC at most {self.ceiling:.3f} by any method")
        if self.expected_auc is not None:
            share = "" if self.efficiency is None else f", efficiency {self.efficiency:.2f}"
            where = "all directions" if self.projection is None else str(self.projection)
            lines.append(f"finding corrupted parties: expected AUC {self.expected_auc:.3f}{share}; released: {where}")
        if self.wanted_auc is not None:
            lines.append(self._needed())
        if self.table_bytes is not None and self.memory_bytes is not None:
            lines.append(f"table {_size(self.table_bytes)}, about {_size(self.memory_bytes)} of memory")
        if self.seconds is not None:
            lines.append(f"time: about {self.seconds[0]:.2g} s, at most {self.seconds[1]:.2g} s")
        return "\n".join([*lines, self.advice])

    def _needed(self) -> str:
        assert self.epsilon_needed is not None
        wanted = f"AUC {self.wanted_auc:g}"
        if self.epsilon_needed == float("inf"):
            return f"{wanted} is out of reach at any epsilon with this utility and model"
        if self.expected_auc is None:
            return f"{wanted} needs epsilon = {self.epsilon_needed:.3g} or more, whatever the method"
        return f"{wanted} is expected at epsilon = {self.epsilon_needed:.3g}"


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

    The ceilings (`dpvalue.detection`) assume that which units are corrupted is exchangeable given what is public, bound
    the mean over runs, and leave out delta. With a utility, the same choice is made as `dpvalue.value` would make with
    these settings and this seed.

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
    sizes, units = _sizes(parties, privacy, records, target, groups, persons)
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
        engine=engine,
        seed=seed,
    )
    if utility is None:
        return _without_data(settings, privacy, units, parameters, auc)
    with engine.threading():
        at, _ = open_setting(as_utility(utility, target, groups, persons), settings, sizes, units)
        return _with_data(at, privacy, auc)


def _sizes(
    parties: Any, privacy: Privacy, records: int, target: str | None, groups: Any, persons: Any
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The public numbers of records and of protected units of each party."""
    if isinstance(parties, int):
        require_count("parties", parties, least=2)
        require_count("records", records)
        sizes = np.full(parties, records)
        return sizes, np.ones_like(sizes) if privacy.unit == "party" else sizes
    found = as_parties(parties, target, groups, persons)
    return found.sizes, found.units(privacy.unit)


def _without_data(
    settings: Settings, privacy: Privacy, units: NDArray[np.int64], parameters: int | None, auc: float | None
) -> Plan:
    schedule, n = settings.schedule, len(units)
    width = parameters
    if settings.fixed_projection is not None or "gaussian" not in privacy.laws:
        schedule = replace(schedule, rounds=schedule.rounds or 1) if schedule.kind == "replay" else schedule
        width = 1 if settings.fixed_projection is None else settings.fixed_projection.m
    releases = schedule.releases(settings.permutations)
    both = _mechanisms(settings, privacy, releases, n)
    gaussian, laplace = both["gaussian"], both["laplace"]
    spent = gaussian or laplace
    if spent is None or spent.noise_multiplier is None or spent.epsilon is None:
        raise DpvalueError(f"delta = 0 needs one release of one number, got schedule {str(schedule)!r}")
    ceilings = _ceilings(privacy, spent.epsilon, gaussian, laplace)
    works_at = epsilon_of_ceiling(0.75, privacy.neighbours)
    return Plan(
        privacy=privacy,
        parties=n,
        units=int(np.median(units)),
        schedule=schedule,
        releases=releases,
        spent=spent,
        gaussian=gaussian,
        laplace=laplace,
        table_noise=spent.noise_multiplier * float(np.linalg.norm(schedule.table_weights(settings.permutations))),
        **ceilings,
        projection=settings.fixed_projection,
        expected_auc=None,
        wanted_auc=auc,
        epsilon_needed=None if auc is None else epsilon_of_ceiling(auc, privacy.neighbours),
        table_bytes=None if width is None else 4 * n * width,
        memory_bytes=None if width is None else 4 * TABLES * n * width,
        seconds=None,
        advice=_advice(privacy, spent.epsilon, ceilings["ceiling"], None, works_at, None),
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
    ceilings = _ceilings(privacy, spent.epsilon, both["gaussian"], both["laplace"])
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
        schedule=choice.schedule,
        releases=choice.releases,
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
        count = releases if law == "gaussian" else 1
        if law == "gaussian" or (one_release and not many):
            found[law] = guarantee(privacy, privacy.noise_multiplier(count, n, law), count, None, False, law)
    return found


def _ceilings(
    privacy: Privacy, epsilon: float, gaussian: Guarantee | None, laplace: Guarantee | None
) -> dict[str, Any]:
    mu = None if gaussian is None else gaussian.mu
    return {
        "ceiling": ceiling(epsilon, privacy.neighbours),
        "gaussian_ceiling": None if mu is None else gaussian_ceiling(mu, privacy.neighbours),
        "laplace_ceiling": None if laplace is None else laplace_ceiling(epsilon, privacy.neighbours),
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
        return f"{budget} can work." if expected is not None else f"{budget} is not ruled out; give a utility to see."
    if reach >= CANNOT_WORK:
        return f"{budget} is weak: good for screening many parties, not for judging one."
    text = f"{budget} cannot work: values would be close to random."
    if works_at is not None and works_at != float("inf"):
        text += f" AUC 0.75 takes epsilon = {works_at:.2g}" + (" or more." if expected is None else ".")
    if other_unit is not None:
        text += f" With unit='record' the same epsilon is expected to give AUC {other_unit:.2f}."
    elif privacy.unit == "party":
        text += (
            " Or value data sets (groups=) and protect their records (unit='record'), whose noise shrinks with size."
        )
    return text


def _size(number: int) -> str:
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{number / 1e3:.3g} kB"
