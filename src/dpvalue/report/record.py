"""The content of run.json: all facts of a run that the report shows, except the values.

The types of the fields define the format: `stored.read` checks a file against them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from reprlib import repr as short
from typing import Annotated, Any

from dpvalue.errors import DpvalueError
from dpvalue.games.semivalues import semivalues
from dpvalue.methods.leaf_coverage import CellHolding
from dpvalue.methods.scores import Scores
from dpvalue.privacy.guarantees import Guarantee, check_guarantee
from dpvalue.stored import ANY_NUMBER, COUNT, POSITIVE, choice_of, read
from dpvalue.values.curves import ORDERS

FORMAT_VERSION = 2
Count = Annotated[int, COUNT]
Utility = Annotated[float, ANY_NUMBER]  # it may overflow


@dataclass(frozen=True)
class Versions:
    """The versions of the software that made the run."""

    dpvalue: str
    python: str
    torch: str


@dataclass(frozen=True)
class ModelRecord:
    """The training: task, model, settings as text, and the seed of public randomness."""

    task: str
    model: str
    how: str
    seed: int


@dataclass(frozen=True)
class PlanRecord:
    """The plan: fields of `Plan`, and its text."""

    ceiling: float
    gaussian_ceiling: float | None
    laplace_ceiling: float | None
    expected_auc: float | None
    efficiency: float | None
    records: Count
    advice: str
    text: str


@dataclass(frozen=True)
class LedgerState:
    """The state of a ledger after the run: epsilon spent, its budget, its terms, and its head."""

    spent: float
    epsilon: float
    terms: str
    head: str


@dataclass(frozen=True)
class Valuation:
    """How values were computed, and the verdict.

    Attributes:
        semivalues: their names.
        walks: the number of permutations; 0 for exact values.
        converged: whether a replay met its tolerance.
        public_rows: the number of public rows.
        verdict: the sentences of the verdict on the first semivalue.
        pay: a total to share; None for none.
        game: a text on the game, if it is not the utility of models but the sum of scores; else empty.
        metric: the metric, as text.
        coverage: which records parties mostly hold themselves; empty where releases do not tell.
    """

    semivalues: tuple[str, ...]
    walks: int
    converged: bool | None
    public_rows: Count
    verdict: tuple[str, ...]
    pay: Annotated[float, POSITIVE] | None
    game: str
    metric: str
    coverage: tuple[CellHolding, ...]

    @property
    def utility(self) -> str:
        """The metric and the public rows, as text."""
        if self.game == Scores.summary:
            return "none (scores are valued by their sum, whatever the metric)"
        return f"{self.metric}, on {self.public_rows} public rows"

    def __post_init__(self) -> None:
        semivalues(self.semivalues)  # raises for none, and for a name that there is not


@dataclass(frozen=True)
class CurveRecord:
    """The points of a `Curve`."""

    kind: Annotated[str, choice_of(("removal", "addition"))]
    order: Annotated[str, choice_of(ORDERS)]
    shares: tuple[float, ...]
    mean: tuple[Utility, ...]
    spread: tuple[Utility, ...]
    retrained: bool

    def __post_init__(self) -> None:
        if not 0 < len(self.shares) == len(self.mean) == len(self.spread):
            raise DpvalueError("shares, mean and spread must have the same length of at least 1")


@dataclass(frozen=True)
class Detection:
    """How well values detect the parties that a column marks: AUC, and precision in the k lowest beside chance."""

    column: str
    auc: float
    k: int
    precision: float
    corrupted: str
    chance: float


@dataclass(frozen=True)
class AnsweringParty:
    """A participant of a study: its number of units, of releases, and its key if it signed."""

    party: str
    units: int
    rounds: Count
    key: str


@dataclass(frozen=True)
class RejectionRecord:
    """A missing or rejected release of a party, and the reason."""

    party: str
    round: int
    why: str


@dataclass(frozen=True)
class StudyRecord:
    """A study whose parties released on their own machines.

    Attributes:
        job: the digest of the job.
        rounds: the number of releases per party.
        answered: the participants.
        rejected: the rejected releases.
    """

    job: str
    rounds: Count
    answered: tuple[AnsweringParty, ...]
    rejected: tuple[RejectionRecord, ...]


@dataclass(frozen=True)
class Record:
    """A run, as its folder stores it.

    Attributes:
        made: the day of the run.
        versions: the versions of the software.
        toml: the options, as in run.toml.
        trained: the training.
        guarantee: the privacy guarantee.
        plan: the plan; None without privacy.
        ledger: the state of the ledger; None without one.
        values: how values were computed; None before that.
        curves: removal and addition curves; empty before values are computed.
        detection: the detection of marked parties; None without a column that marks them.
        federated: the study; None for a run in one process.
    """

    made: str
    versions: Versions
    toml: str
    trained: ModelRecord
    guarantee: Annotated[Guarantee, check_guarantee]
    plan: PlanRecord | None
    ledger: LedgerState | None
    values: Valuation | None
    curves: tuple[CurveRecord, ...]
    detection: Detection | None
    federated: StudyRecord | None = None

    def __post_init__(self) -> None:
        if self.plan is not None and not self.guarantee.private:
            raise DpvalueError("plan must be null in a run without privacy")

    def to_json(self) -> dict[str, Any]:
        """Return the content of run.json."""
        return {"format": FORMAT_VERSION, **asdict(self)}

    @staticmethod
    def from_json(stored: Any, what: str) -> Record:
        """Return the record in a file, after checking it; `what` names the file in errors."""
        if isinstance(stored, dict) and stored.get("format") != FORMAT_VERSION:
            raise DpvalueError(f"{what} must have dpvalue format {FORMAT_VERSION}, got {short(stored.get('format'))}")
        try:
            return read(Record, stored)
        except DpvalueError as error:
            raise DpvalueError(f"{what} has been damaged: {error}") from None
