"""The cells of the natural benchmark, and which half each belongs to.

Two halves, split by data set before anything was tuned: rules are found on development cells and scored once on judging
cells. No data set is in both, so that a rule tuned on the rows of one has never met those of the other. Each half has
parties by region, by label and by feature, only owners, twins, public rows that lack something, public sets of three
sizes, numbers as labels, non-linear data, and one cell of twelve parties:

- development: Covertype (regions, 54 features, up to 4,000 records a party), digits, diabetes, XOR;
- judging: the hospitals, the only parties that are real organisations; MNIST (the data of this half with up to 4,000
  records a party), red wine, breast cancer, circles.

Digits and MNIST are both written digits, of other writers and another resolution; no other data are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dpvalue.errors import DpvalueError, require_choice, require_count

DEVELOPMENT, JUDGING = HALVES = ("development", "judging")
HALF_OF = {
    "covtype-2": DEVELOPMENT,
    "covtype-7": DEVELOPMENT,
    "digits": DEVELOPMENT,
    "diabetes": DEVELOPMENT,
    "diabetes-2": DEVELOPMENT,
    "xor": DEVELOPMENT,
    "heart": JUDGING,
    "mnist": JUDGING,
    "mnist-2": JUDGING,
    "wine": JUDGING,
    "wine-2": JUDGING,
    "breast-cancer": JUDGING,
    "circles": JUDGING,
}
"""The half of each data set. "-2" and "-7" are numbers of classes."""

FAMILIES = {
    "regions": "region",
    "public-one": "region",
    "age": "feature",
    "mass": "feature",
    "alcohol": "feature",
    "radius": "feature",
    "disjoint": "label",
    "dirichlet": "label",
    "label-share": "label",
    "only-region": "only owner",
    "only-class": "only owner",
    "identical": "twins",
    "lacks-region": "public lacks",
    "lacks-class": "public lacks",
    "sites": "sites",
}
"""The family of each way in which parties differ:

regions       each party has the records of one region: a hospital, a range of elevations, digits, a sector
public-one    the same, and all public rows are from one region
age, mass, alcohol, radius  each party has one range of a feature (mass is the body mass index)
disjoint      each class is in one party
dirichlet     shares of classes by Dirichlet(0.3)
label-share   random samples; one party has the shares of the two most frequent classes exchanged, and exaggerated
only-region   random samples of all but one region (of an eighth of all rows or more), which one party has alone
only-class    random samples of all but one class, which one party has: half of its records
identical     regions, but two parties have the same records
lacks-region  regions; no public row is from one of them
lacks-class   dirichlet; no public row is of one class
sites         random samples; three parties have 40% wrong labels
"""


@dataclass(frozen=True)
class NaturalCell:
    """A problem up to its seed.

    Attributes:
        data: one of `HALF_OF`.
        kind: how parties differ, one of `FAMILIES`.
        n: the number of parties.
        large: whether parties have 1,000 to 4,000 records, else what the data set allows up to 1,000.
        public: the number of public rows; 0 for the data set's own.
    """

    data: str
    kind: str
    n: int = 8
    large: bool = False
    public: int = 0

    def __post_init__(self) -> None:
        require_choice("data", self.data, tuple(HALF_OF))
        require_choice("kind", self.kind, tuple(FAMILIES))
        require_count("n", self.n)

    @property
    def name(self) -> str:
        """The cell as text.

        >>> NaturalCell("covtype-2", "regions", public=100).name
        'covtype-2/regions/8/public-100'
        """
        parts = [self.data, self.kind, str(self.n)]
        parts += ["large"] if self.large else []
        return "/".join(parts + ([f"public-{self.public}"] if self.public else []))

    @property
    def half(self) -> str:
        """Which half the cell is in: "development" or "judging"."""
        return HALF_OF[self.data]

    @property
    def family(self) -> str:
        """The family of its kind."""
        return FAMILIES[self.kind]

    @property
    def regression(self) -> bool:
        """Whether labels are numbers."""
        return self.data in ("diabetes", "wine")

    @property
    def two_class(self) -> bool:
        """Whether labels are of two classes."""
        return not self.regression and self.data not in ("covtype-7", "digits", "mnist")

    @property
    def boosted(self) -> bool:
        """Whether boosted trees are a truth too."""
        return self.regression or self.two_class


def _two_class(data: str) -> list[NaturalCell]:
    kinds = ("regions", "only-region", "only-class", "identical", "label-share", "lacks-region")
    cells = [NaturalCell(data, kind) for kind in kinds]
    cells += [NaturalCell(data, "regions", large=True), NaturalCell(data, "only-region", large=True)]
    cells += [NaturalCell(data, "regions", public=public) for public in (100, 500, 2000)]
    return [*cells, NaturalCell(data, "regions", n=12)]


def _written(data: str) -> list[NaturalCell]:
    return [NaturalCell(data, kind) for kind in ("disjoint", "dirichlet", "only-class", "lacks-class")]


NATURAL_CELLS: tuple[NaturalCell, ...] = (
    *_two_class("covtype-2"),
    NaturalCell("covtype-7", "regions"),
    *_written("digits"),
    *(NaturalCell(data, kind) for data in ("diabetes", "diabetes-2") for kind in ("age", "mass")),
    NaturalCell("xor", "regions"),
    NaturalCell("xor", "sites", n=10),
    NaturalCell("heart", "regions", n=4),
    NaturalCell("heart", "regions"),
    NaturalCell("heart", "public-one"),
    *_two_class("mnist-2"),
    *_written("mnist"),
    NaturalCell("mnist", "dirichlet", large=True),
    *(NaturalCell(data, kind) for data in ("wine", "wine-2") for kind in ("alcohol", "only-region")),
    NaturalCell("breast-cancer", "radius"),
    NaturalCell("breast-cancer", "only-class"),
    NaturalCell("breast-cancer", "label-share"),
    NaturalCell("circles", "regions"),
    NaturalCell("circles", "sites", n=10),
)


def chosen_natural(patterns: Sequence[str] = ("*",), half: str | None = None) -> tuple[NaturalCell, ...]:
    """Return the cells whose names match one of the patterns, of one half or both, in the benchmark's order.

    >>> [cell.name for cell in chosen_natural(["*/sites/*"], "development")]
    ['xor/sites/10']
    """
    for pattern in patterns:
        if not any(fnmatchcase(cell.name, pattern) for cell in NATURAL_CELLS):
            raise DpvalueError(f"no cell matches {pattern!r}: they are named like {NATURAL_CELLS[0].name}")
    if half is not None:
        require_choice("half", half, HALVES)
    return tuple(
        cell
        for cell in NATURAL_CELLS
        if half in (None, cell.half) and any(fnmatchcase(cell.name, pattern) for pattern in patterns)
    )
