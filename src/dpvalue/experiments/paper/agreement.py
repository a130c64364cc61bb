"""How far numbers agree with the paper's: how many cells are near, and whether rows have its order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import hypot

Cells = dict[str, dict[str, str]]
"""The paper's cells: row, column, number with its standard error in parentheses, if it has one."""
NEAR = (0.04, 0.05, 0.08)
COUNTED = (*(f"cells within {room:g}" for room in NEAR), "rows in the paper's order")


@dataclass(frozen=True)
class PaperAgreement:
    """What agrees.

    Attributes:
        within: how many cells are within so much of the paper's.
        cells_in_all: of how many.
        rows_in_order: in how many rows all pairs have the paper's order that differ there by over two standard errors.
        rows_in_all: of how many.
    """

    within: dict[float, int]
    cells_in_all: int
    rows_in_order: int
    rows_in_all: int

    def cells(self) -> list[str]:
        """Return the counts as cells of a table, under `COUNTED`."""
        near = [f"{self.within[room]} of {self.cells_in_all}" for room in NEAR]
        return [*near, f"{self.rows_in_order} of {self.rows_in_all}"]


def cell_number(cell: str) -> tuple[float, float]:
    """Return a cell's number and its standard error, 0 if the paper gives none."""
    value, _, error = cell.partition(" (")
    return float(value), float(error.removesuffix(")") or 0.0)


def each_cell(paper: Cells) -> Iterator[tuple[str, str, str]]:
    """Yield the row, the column and the text of each cell."""
    for row, cells in paper.items():
        for column, cell in cells.items():
            yield row, column, cell


def agreement(paper: Cells, ours: dict[str, dict[str, float]]) -> PaperAgreement:
    """Compare rows of numbers with the paper's."""
    gaps = [abs(ours[row][column] - cell_number(cell)[0]) for row, column, cell in each_cell(paper)]
    # Rounded as tables are: 0.85 is within 0.05 of 0.9.
    within = {room: sum(round(gap, 3) <= room for gap in gaps) for room in NEAR}
    in_order = sum(
        _has_order({name: cell_number(cell) for name, cell in cells.items()}, ours[row]) for row, cells in paper.items()
    )
    return PaperAgreement(within, len(gaps), in_order, len(paper))


def _has_order(paper: dict[str, tuple[float, float]], ours: dict[str, float]) -> bool:
    """Whether all pairs that differ in the paper by more than two standard errors have its order."""
    for one, other in combinations(paper, 2):
        gap = paper[one][0] - paper[other][0]
        if abs(gap) > 2 * hypot(paper[one][1], paper[other][1]) and gap * (ours[one] - ours[other]) <= 0:
            return False
    return True
