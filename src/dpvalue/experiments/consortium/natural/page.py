"""The page of the natural benchmark: what was aimed at and what was found, and all tables of both halves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dpvalue.experiments.consortium.natural.cells import DEVELOPMENT, JUDGING, chosen_natural
from dpvalue.experiments.consortium.natural.methods import EXACT, Budget
from dpvalue.experiments.consortium.natural.stored import NaturalTruths, Said
from dpvalue.experiments.consortium.natural.tables import (
    GROUPS,
    TruthComparison,
    compared,
    markdown,
    mean_of_cells,
    owner_summary,
    sizes_better,
    tables,
    wrong_aucs,
)
from dpvalue.experiments.consortium.natural.truth import BOOSTED
from dpvalue.models import TREES

TARGETS = (
    (EXACT, "0.90 / 0.40"),
    (Budget(1, 10), "0.85"),
    (Budget(4), "0.78"),
    (Budget(1), "0.60"),
)
"""Of counts in trees beside boosted trees, two classes: Spearman of Shapley values / of leave-one-out."""


def write_natural_page(said: Iterable[Said], truths: NaturalTruths, folder: Path) -> None:
    """Write natural.md into a folder."""
    known = list(said)
    halves = {half: chosen_natural(half=half) for half in (JUDGING, DEVELOPMENT)}
    parts = [_INTRODUCTION, "## What was aimed at, and what was found\n"]
    parts.append(targets_table({half: compared(cells, known, truths) for half, cells in halves.items()}))
    parts.append(_TRIED)
    for half, cells in halves.items():
        parts += [f"# The {half} half\n", tables(cells, known, truths)]
    (folder / "natural.md").write_text("\n".join(parts))


def targets_table(found: dict[str, list[TruthComparison]]) -> str:
    """Return the targets beside what each half has."""
    rows = []
    for budget, target in TARGETS:
        rows.append([f"two classes, {budget.name}", target, *(_agreement(half, budget) for half in found.values())])
    for budget in (EXACT, Budget(4)):
        summaries = [owner_summary(_trees(half, budget)) for half in found.values()]
        what = f"only owner, {budget.name}"
        rows.append([f"{what}: first or second where retraining says so", "all", *(one[0] for one in summaries)])
        rows.append([f"{what}: part of the money to the wrong parties", "0.15", *(one[1] for one in summaries)])
    aucs = (wrong_aucs([one for one in half if one.way == (TREES, Budget(1))]) for half in found.values())
    rows.append(["three of ten sites with wrong labels, epsilon 1: AUC", "0.95", *(", ".join(one) for one in aucs)])
    large = ([one for one in half if one.cell.large] for half in found.values())
    better = [[sizes_better(half, (TREES, budget)) for budget in (Budget(4), Budget(1))] for half in large]
    rows.append(
        [
            "1,000 to 4,000 records: cells where sizes alone are better by two errors, epsilon 4 and 1", "none",
            *(" and ".join(one) for one in better),
        ]
    )  # fmt: skip
    return markdown(["counts in public trees", "target", *found], rows)


def _agreement(half: list[TruthComparison], budget: Budget) -> str:
    return mean_of_cells([one for one in _trees(half, budget) if GROUPS["two classes"](one.cell)])


def _trees(half: list[TruthComparison], budget: Budget) -> list[TruthComparison]:
    return [one for one in half if one.model == BOOSTED and one.way == (TREES, budget)]


_TRIED = ""
_INTRODUCTION = ""
