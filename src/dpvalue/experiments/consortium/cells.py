"""Which problems the benchmark is made of: data set, number of parties, their sizes, their defects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from dpvalue.errors import DpvalueError, require_choice, require_count

PROBLEMS = ("covtype-2", "covtype-7", "breast-cancer", "digits", "wine", "heart")
SIZES = ("range", "equal", "skewed", "own")
DEFECT_SETS: dict[str, tuple[str, ...]] = {
    "none": (),
    "planted": ("wrong-labels", "near-duplicates", "shuffled-features"),
    "other": ("relabelled-class", "coarse-features", "shifted-region", "delayed-labels"),
    "blanks": ("blank-rows", "unknown-labels", "wrong-labels", "near-duplicates"),
    "free-rider": ("free-rider", "wrong-labels", "near-duplicates"),
}
"""Each defect is that of one party. "other" shares none with "planted", nor with what directions are made from."""


class Named(Protocol):
    """A problem up to its seed, of this benchmark or of the natural one."""

    @property
    def name(self) -> str:
        """The cell as text."""
        ...


@dataclass(frozen=True)
class Cell:
    """A problem up to its seed.

    Attributes:
        problem: one of `PROBLEMS`.
        n: the number of parties.
        sizes: "range" (between the least and the most of the data set, evenly in the logarithm), "equal", "skewed"
            (a ladder from 1 to 30), both with as many records in all as "range" has on average; "own" for hospitals.
        defects: one of `DEFECT_SETS`; at most half of the parties have one, the first of the set.
    """

    problem: str
    n: int = 8
    sizes: str = "range"
    defects: str = "planted"

    def __post_init__(self) -> None:
        require_choice("problem", self.problem, PROBLEMS)
        require_count("n", self.n)
        require_choice("sizes", self.sizes, SIZES)
        require_choice("defects", self.defects, tuple(DEFECT_SETS))
        natural = (self.n, self.sizes, self.defects) == (4, "own", "none")
        if (self.problem == "heart" or self.sizes == "own") and (self.problem, natural) != ("heart", True):
            raise DpvalueError(f"the hospitals are the cell heart/4/own/none and no other, got {self.name}")

    @property
    def name(self) -> str:
        """The cell as text.

        >>> Cell("digits").name
        'digits/8/range/planted'
        """
        return f"{self.problem}/{self.n}/{self.sizes}/{self.defects}"

    @property
    def planted(self) -> tuple[str, ...]:
        """The defects that are planted, each in one party.

        >>> Cell("digits", n=4).planted
        ('wrong-labels', 'near-duplicates')
        """
        return DEFECT_SETS[self.defects][: self.n // 2]


def _grid() -> tuple[Cell, ...]:
    shapes = [(8, "range"), (4, "range"), (12, "range"), (8, "equal"), (8, "skewed")]
    cells = []
    for problem in PROBLEMS[:-1]:
        cells += [Cell(problem, n, sizes, defects) for defects in ("planted", "other") for n, sizes in shapes]
        cells += [Cell(problem, defects=defects) for defects in ("blanks", "free-rider")]
    return (*cells, Cell("heart", 4, "own", "none"))


CELLS = _grid()


def chosen_cells(patterns: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells of the benchmark whose names match one of the patterns, in the benchmark's order.

    >>> [cell.name for cell in chosen_cells(["*/12/range/other"])][:2]
    ['covtype-2/12/range/other', 'covtype-7/12/range/other']
    """
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in CELLS):
            raise DpvalueError(f"no cell matches {pattern!r}: they are named like {CELLS[0].name} and {CELLS[-1].name}")
    return tuple(cell for cell in CELLS if any(fnmatchcase(cell.name, pattern) for pattern in patterns))
