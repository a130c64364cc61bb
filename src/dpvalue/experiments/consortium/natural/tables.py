"""Tables of the natural benchmark, as Markdown, for one set of cells.

Spearman correlations with retraining, Shapley / leave-one-out, means over seeds with standard errors of the former in
brackets. Means over cells have the standard error over cells: what another choice of cells would change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.experiments.consortium.harness import MethodScores, score, spearman
from dpvalue.experiments.consortium.natural.cells import NaturalCell
from dpvalue.experiments.consortium.natural.methods import BUDGETS, METHODS, Budget
from dpvalue.experiments.consortium.natural.problems import OWNER, WRONG
from dpvalue.experiments.consortium.natural.stored import NaturalTruths, Said, true_values
from dpvalue.experiments.consortium.natural.truth import BOOSTED, LINEAR
from dpvalue.experiments.consortium.truth import Values

Way = tuple[str, Budget]
"""A method and a budget."""
ERRORS = 2.0
GROUPS: dict[str, Callable[[NaturalCell], bool]] = {
    "two classes": lambda cell: cell.two_class and cell.kind != "sites",
    "many classes": lambda cell: not cell.two_class and not cell.regression,
    "numbers": lambda cell: cell.regression,
}
"""Of which there are means; parties of like records with wrong labels have a table of their own."""
TABLED: dict[str, Callable[[NaturalCell], bool]] = {**GROUPS, "sites": lambda cell: cell.kind == "sites"}


@dataclass(frozen=True, eq=False)
class TruthComparison:
    """What one method said of one problem, beside one truth."""

    cell: NaturalCell
    seed: int
    way: Way
    model: str
    said: Values
    truth: Values
    marks: tuple[str, ...]
    scores: MethodScores


def tables(cells: Sequence[NaturalCell], said: Iterable[Said], truths: NaturalTruths) -> str:
    """Return all tables of some cells."""
    found = compared(cells, said, truths)
    parts = ["## Means over cells\n", means_table(found, truths)]
    parts += ["## How the two truths agree\n", truth_table(cells, truths)]
    if any(OWNER in one.marks for one in found):
        parts += ["## Only owners of a region or class\n", owner_table(found)]
    if any(WRONG in one.marks for one in found):
        parts += ["## Parties with wrong labels among like ones: AUC\n", wrong_table(found)]
    for model in (BOOSTED, LINEAR):
        for group, belongs in TABLED.items():
            some = [one for one in found if one.model == model and belongs(one.cell)]
            if some:
                parts += [f"## Beside {model} models: {group}\n", cell_table(some, truths)]
    return "\n".join(parts)


def compared(cells: Sequence[NaturalCell], said: Iterable[Said], truths: NaturalTruths) -> list[TruthComparison]:
    """Return what methods said of some cells, beside each truth that there is."""
    known, found = {cell.name: cell for cell in cells}, []
    for one in said:
        if one.cell not in known:
            continue
        for model in (BOOSTED, LINEAR):
            truth = true_values(one, truths, model)
            if truth is not None:
                way = one.method, Budget(one.epsilon, one.divisor)
                marks = tuple(truths[one.cell, one.seed, model].marks)
                scores = score(one.values.shapley, one.values.loo, truth)
                found.append(TruthComparison(known[one.cell], one.seed, way, model, one.values, truth, marks, scores))
    return found


def means_table(found: list[TruthComparison], truths: NaturalTruths) -> str:
    """Return means over cells by method and budget, and in how many cells sizes alone are better by two errors."""
    groups = [(model, group) for model in (BOOSTED, LINEAR) for group in GROUPS]
    groups = [key for key in groups if any(_in(one, key) for one in found)]
    rows = [["ceiling", "", *(mean_ceiling([one for one in found if _in(one, key)], truths) for key in groups), ""]]
    for way in _ways(found):
        row = [way[0], way[1].name]
        for key in groups:
            row.append(mean_of_cells([one for one in found if one.way == way and _in(one, key)]))
        rows.append([*row, sizes_better(found, way)])
    heads = [f"{model}, {group}" for model, group in groups]
    return markdown(["method", "noise", *heads, "cells where sizes alone are better"], rows)


def truth_table(cells: Sequence[NaturalCell], truths: NaturalTruths) -> str:
    """Return, for each family of cells, how retraining by one kind of model agrees with the other, and the ceilings."""
    rows = []
    for family in dict.fromkeys(cell.family for cell in cells):
        names = {cell.name for cell in cells if cell.family == family}
        both = [
            (truths[name, seed, LINEAR], truths[name, seed, BOOSTED])
            for name, seed, model in truths
            if model == BOOSTED and name in names and (name, seed, LINEAR) in truths
        ]
        if both:
            shapley, loo = (
                [spearman(getattr(a, what), getattr(b, what)) for a, b in both] for what in ("shapley", "loo")
            )
            ceilings = [
                f"{np.mean([pair[place].ceiling for pair in both]):.2f} / "
                f"{np.mean([pair[place].ceiling_loo for pair in both]):.2f}"
                for place in (0, 1)
            ]
            rows.append([family, str(len(both)), f"{_with_error(shapley)} / {np.mean(loo):.2f}", *ceilings])
    return markdown(["family", "problems", "linear with boosted", "ceiling, linear", "ceiling, boosted"], rows)


def owner_table(found: list[TruthComparison]) -> str:
    """Return how only owners rank where retraining has them first or second, and which part of the payout is wrong."""
    rows = []
    for model in (BOOSTED, LINEAR):
        owned = [one for one in found if one.model == model and OWNER in one.marks]
        for way in _ways(owned):
            rows.append([model, way[0], way[1].name, *owner_summary([one for one in owned if one.way == way])])
    heads = ["truth", "method", "noise", "first or second where retraining says so", "payout wrong"]
    return markdown(heads, rows)


def owner_summary(found: list[TruthComparison]) -> tuple[str, str]:
    """Return how often only owners are first or second where retraining says so, and which part of payouts is wrong."""
    owned = [one for one in found if OWNER in one.marks]
    top = [_owner_rank(one, one.said) <= 2 for one in owned if _owner_rank(one, one.truth) <= 2]
    return f"{sum(top)} of {len(top)}", _with_error([one.scores.payout_error for one in owned])


def wrong_table(found: list[TruthComparison]) -> str:
    """Return how well values tell parties with wrong labels from others."""
    cells = {one.cell.name: one.cell for one in found if WRONG in one.marks}
    rows = []
    rows += [[way[0], way[1].name, *wrong_aucs([one for one in found if one.way == way])] for way in _ways(found)]
    for model in (BOOSTED, LINEAR):
        row = [f"retraining, {model}", ""]
        for name in cells:
            some = [one for one in found if one.cell.name == name and one.model == model]
            row.append(_with_error(list({one.seed: _auc(one.truth.shapley, one.marks) for one in some}.values())))
        rows.append(row)
    return markdown(["method", "noise", *cells], rows)


def wrong_aucs(found: list[TruthComparison]) -> list[str]:
    """Return the AUC of wrong labels of one method at one budget, in each cell that has such parties."""
    aucs: dict[str, dict[int, float]] = {}
    for one in found:
        if WRONG in one.marks:
            aucs.setdefault(one.cell.name, {})[one.seed] = _auc(one.said.shapley, one.marks)
    return [_with_error(list(by_seed.values())) for by_seed in aucs.values()]


def cell_table(found: list[TruthComparison], truths: NaturalTruths) -> str:
    """Return a line for each cell, a column for each method and budget, and the ceiling of the truth."""
    ways = _ways(found)
    rows = []
    for name in dict.fromkeys(one.cell.name for one in found):
        some = [one for one in found if one.cell.name == name]
        known = [truths[name, seed, some[0].model] for seed in sorted({one.seed for one in some})]
        ceiling = f"{np.mean([one.ceiling for one in known]):.2f} / {np.mean([one.ceiling_loo for one in known]):.2f}"
        rows.append([name, ceiling, *(_of_seeds([one.scores for one in some if one.way == way]) for way in ways)])
    return markdown(["cell", "ceiling", *(f"{method}, {budget.name}" for method, budget in ways)], rows)


def _in(one: TruthComparison, key: tuple[str, str]) -> bool:
    return one.model == key[0] and GROUPS[key[1]](one.cell)


def _ways(found: list[TruthComparison]) -> list[Way]:
    """Methods in their order; of each no noise first, then little noise before much."""
    ways = list(dict.fromkeys(one.way for one in found))
    methods = list(METHODS)
    return sorted(ways, key=lambda way: (methods.index(way[0]), BUDGETS.index(way[1])))


def mean_of_cells(some: list[TruthComparison]) -> str:
    """Return the means over cells, with the error of Shapley's."""
    if not some:
        return ""
    cells = dict.fromkeys(one.cell for one in some)
    shapley = [float(np.mean([one.scores.spearman for one in some if one.cell == cell])) for cell in cells]
    loo = np.mean([np.mean([one.scores.loo_spearman for one in some if one.cell == cell]) for cell in cells])
    return f"{_with_error(shapley)} / {loo:.2f}"


def mean_ceiling(some: list[TruthComparison], truths: NaturalTruths) -> str:
    """Return the mean over cells of the agreement of the truth with itself, judged by two halves of the public rows."""
    if not some:
        return ""
    ceilings: dict[str, list[tuple[float, float]]] = {}
    for name, seed, model in {(one.cell.name, one.seed, one.model) for one in some}:
        found = truths[name, seed, model]
        ceilings.setdefault(name, []).append((found.ceiling, found.ceiling_loo))
    means = np.array([np.mean(of_cell, axis=0) for of_cell in ceilings.values()])
    return f"{_with_error(means[:, 0].tolist())} / {means[:, 1].mean():.2f}"


def _of_seeds(scores: list[MethodScores]) -> str:
    if not scores:
        return ""
    return f"{_with_error([one.spearman for one in scores])} / {np.mean([one.loo_spearman for one in scores]):.2f}"


def sizes_better(found: list[TruthComparison], way: Way) -> str:
    """Return in how many cells, of either truth, sizes alone agree better by more than two errors of the difference."""
    better = total = 0
    for key in dict.fromkeys((one.cell, one.model) for one in found):
        here = [one for one in found if (one.cell, one.model) == key]
        own = {one.seed: one.scores.spearman for one in here if one.way == way}
        sizes = {one.seed: one.scores.spearman for one in here if one.way[0] == "sizes"}
        gaps = [sizes[seed] - own[seed] for seed in own.keys() & sizes.keys()]
        if len(gaps) > 1:
            total += 1
            better += bool(np.mean(gaps) > ERRORS * np.std(gaps, ddof=1) / len(gaps) ** 0.5)
    return f"{better} of {total}" if total and way[0] != "sizes" else ""


def _owner_rank(one: TruthComparison, values: Values) -> int:
    return 1 + int((values.shapley > values.shapley[one.marks.index(OWNER)]).sum())


def _auc(values: Floats, marks: tuple[str, ...]) -> float:
    """How often a party with wrong labels is below one without; a tie is half."""
    wrong = np.array([mark == WRONG for mark in marks])
    gaps = values[~wrong][:, None] - values[wrong]
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def _with_error(numbers: Sequence[float]) -> str:
    if not numbers:
        return ""
    error = np.std(numbers, ddof=1) / len(numbers) ** 0.5 if len(numbers) > 1 else 0.0
    return f"{np.mean(numbers):.2f} ({error:.2f})"


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
