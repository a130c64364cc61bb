"""What run.json holds: all that a page says of a run, beside the values themselves.

The types of the fields are the one description of the file: what is read back is checked by them (`stored.read`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from reprlib import repr as short
from typing import Annotated, Any

from dpvalue.data.utility import LOSS
from dpvalue.errors import DpvalueError
from dpvalue.games.semivalues import semivalues
from dpvalue.methods.scores import Scores
from dpvalue.privacy.guarantees import Guarantee, check_guarantee
from dpvalue.stored import ANY_NUMBER, COUNT, POSITIVE, one_of, read
from dpvalue.tasks import ORDERS

FORMAT_VERSION = 2
Count = Annotated[int, COUNT]
Utility = Annotated[float, ANY_NUMBER]  # it may overflow


@dataclass(frozen=True)
class Versions:
    """What made the run."""

    dpvalue: str
    python: str
    torch: str


@dataclass(frozen=True)
class ModelRecord:
    """What was trained: for which task, which model, how in words, and the seed of public randomness."""

    task: str
    model: str
    how: str
    seed: int


@dataclass(frozen=True)
class PlanRecord:
    """What was planned: fields of `Plan`, and the page to read as text."""

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
    """Where a ledger stood after the run: spent so far, of how much, on which terms, and its head to keep."""

    spent: float
    epsilon: float
    terms: str
    head: str


@dataclass(frozen=True)
class Valuation:
    """How values were made, and what they say.

    Attributes:
        semivalues: which.
        walks: from how many permutations; 0 means exactly.
        converged: whether a replay met its tolerance.
        public_rows: how many judged.
        verdict: what the first semivalue says, in sentences.
        pay: a total to share by it; None for none.
        game: what was valued where that is no utility of a model: released scores.
        metric: what models are worth, in words.
    """

    semivalues: tuple[str, ...]
    walks: int
    converged: bool | None
    public_rows: Count
    verdict: tuple[str, ...]
    pay: Annotated[float, POSITIVE] | None
    game: str
    metric: str = LOSS.title

    @property
    def utility(self) -> str:
        """What judged, in words."""
        if self.game == Scores.summary:
            return "none, as scores are valued by their sum, whatever the metric"
        return f"{self.metric}, on {self.public_rows} public rows"

    def __post_init__(self) -> None:
        semivalues(self.semivalues)  # raises for none, and for a name that there is not


@dataclass(frozen=True)
class CurveRecord:
    """The points of a `Curve`."""

    kind: Annotated[str, one_of(("removal", "addition"))]
    order: Annotated[str, one_of(ORDERS)]
    shares: tuple[float, ...]
    mean: tuple[Utility, ...]
    spread: tuple[Utility, ...]
    retrained: bool

    def __post_init__(self) -> None:
        if not 0 < len(self.shares) == len(self.mean) == len(self.spread):
            raise DpvalueError("there must be as many shares as means and spreads, and at least one")


@dataclass(frozen=True)
class Detection:
    """How well values find what a column marks: the share of it among the k lowest, beside that in all."""

    column: str
    auc: float
    k: int
    precision: float
    corrupted: str
    chance: float


@dataclass(frozen=True)
class AnsweringParty:
    """A party that answered from home: its number of units, how often it released, and its key if it signed."""

    party: str
    units: int
    rounds: Count
    key: str


@dataclass(frozen=True)
class RejectionRecord:
    """What a party sent, or did not send, that does not count, and why."""

    party: str
    round: int
    why: str


@dataclass(frozen=True)
class StudyRecord:
    """A study whose parties answered from home.

    Attributes:
        job: the digest of the job.
        rounds: how many releases each was asked for.
        answered: who did.
        rejected: what does not count.
    """

    job: str
    rounds: Count
    answered: tuple[AnsweringParty, ...]
    rejected: tuple[RejectionRecord, ...]


@dataclass(frozen=True)
class Record:
    """A run, as its folder keeps it.

    Attributes:
        made: the day.
        versions: what made it.
        toml: its options, as run.toml holds them.
        trained: what was trained.
        guarantee: what was spent.
        plan: what was expected before; None without privacy.
        ledger: where the ledger stands; None without one.
        values: how values were made; None while there are none.
        curves: of utility; none while there are no values.
        detection: how well a known answer was found; None without one.
        federated: who answered from home; None for a run in one process.
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
        """Return what run.json holds."""
        return {"format": FORMAT_VERSION, **asdict(self)}

    @staticmethod
    def from_json(stored: Any, what: str) -> Record:
        """Return the record of what a file holds, whoever wrote it; `what` names it in errors."""
        if isinstance(stored, dict) and stored.get("format") != FORMAT_VERSION:
            raise DpvalueError(f"{what} must have dpvalue format {FORMAT_VERSION}, got {short(stored.get('format'))}")
        try:
            return read(Record, stored)
        except DpvalueError as error:
            raise DpvalueError(f"{what} has been damaged: {error}") from None
