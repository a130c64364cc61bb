"""The privacy budget of a run, as an immutable value. `dpvalue.privacy.guarantees` has what a run spent."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

from dpvalue.display import changed_fields
from dpvalue.errors import DpvalueError, require_choice, require_count, require_number, require_positive
from dpvalue.privacy import accounting
from dpvalue.privacy.laws import LAWS, find_law

UNITS = ("party", "record", "person")

NEIGHBOURS = ("zero_out", "replace")

ACCOUNTINGS = ("composition", "poisson")


@dataclass(frozen=True)
class Privacy:
    """A privacy budget for one run.

    Formal guarantee: with accounting "composition", all releases together are (epsilon, delta)-differentially private
    for one `unit` under the relation `neighbours`, and so is every value computed from them. The observer sees every
    release and knows which party made it.

    Args:
        epsilon: the privacy parameter epsilon; positive.
        delta: the privacy parameter delta; at least 0 and below 1. 0 requires pure DP, which one Laplace release of one
            number provides.
        unit: what is protected: "party" (all of a party's data), "record" (one row of it) or "person" (all rows of one
            person, identified by the ids in `Parties`).
        neighbours: "zero_out" (the unit's contribution replaced by zero) or "replace" (by any other contribution).
        accounting: "composition" counts every release of a party. "poisson" is the paper's accounting; it claims
            amplification by a secret sampling that does not take place, so a result states the epsilon spent by
            composition beside the claim.
        mechanism: "gaussian", "laplace", "auto" (the one with the higher expected AUC at this budget), or the name of
            another law (`dpvalue.privacy.laws.register_law`).
        parties_per_person: the largest number of parties that hold records of one person (unit "person"); the releases
            of these parties add up.

    Example:
        >>> Privacy(epsilon=2.0, unit="record").terms
        'epsilon = 2, delta = 5e-05 per record, neighbours zero_out'
    """

    epsilon: float = 1.0
    delta: float = 5e-5
    unit: str = "party"
    neighbours: str = "zero_out"
    accounting: str = "composition"
    mechanism: str = "auto"
    parties_per_person: int = 1

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        number = isinstance(self.delta, Real)
        require_number("delta", self.delta, "at least 0 and below 1", number and 0 <= self.delta < 1)
        require_choice("mechanism", self.mechanism, ("auto", *LAWS))
        require_count("parties_per_person", self.parties_per_person)
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)
        require_choice("accounting", self.accounting, ACCOUNTINGS)
        if self.accounting == "poisson" and (self.unit, self.neighbours) != ("party", "zero_out"):
            raise DpvalueError(
                "accounting='poisson' exists to compare with the paper, which has unit='party' and "
                f"neighbours='zero_out'; got unit={self.unit!r}, neighbours={self.neighbours!r}"
            )
        if self.delta == 0 and (self.accounting == "poisson" or not self.laws):
            noise = "Gaussian" if self.accounting == "poisson" else self.mechanism.capitalize()
            raise DpvalueError(f"delta must be positive for {noise} noise, got 0")
        if self.accounting == "poisson" and self.mechanism not in ("auto", "gaussian"):
            raise DpvalueError(f"accounting='poisson' is for Gaussian noise, got mechanism={self.mechanism!r}")
        if self.parties_per_person > 1 and self.unit != "person":
            raise DpvalueError(f"parties_per_person needs unit='person', got unit={self.unit!r}")

    @property
    def terms(self) -> str:
        """The budget in words."""
        parties = f" in at most {self.parties_per_person} parties" if self.unit == "person" else ""
        amount = f"epsilon = {self.epsilon:.4g}, delta = {self.delta:.4g}"
        return f"{amount} per {self.unit}{parties}, neighbours {self.neighbours}"

    def __repr__(self) -> str:
        return changed_fields(self, "epsilon", "delta", "unit")

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws of noise that this budget allows."""
        if self.accounting == "poisson":
            return ("gaussian",)
        candidates = LAWS.values() if self.mechanism == "auto" else [LAWS[self.mechanism]]
        allowed = [law for law in candidates if law.automatic or self.mechanism != "auto"]
        return tuple(law.name for law in allowed if law.pure or self.delta > 0)

    @property
    def vector_law(self) -> str | None:
        """The first allowed law for vectors and for many releases; None if there is none."""
        return next((name for name in self.laws if not LAWS[name].scalar), None)

    def noise_multiplier(self, releases: int, parties: int, law: str = "gaussian") -> float:
        """Return noise scale / sensitivity of each of a party's `releases`; the law defines the scale.

        Args:
            releases: the number of releases of each party.
            parties: the number of parties; only the paper's accounting uses it.
            law: "gaussian", "laplace", or another law's name.

        Returns:
            noise scale / sensitivity.

        Raises:
            DpvalueError: an unknown law.

        Example:
            >>> round(Privacy(epsilon=1.0).noise_multiplier(releases=1000, parties=800), 1)
            106.1
        """
        if self.accounting == "poisson":
            return accounting.poisson_noise_multiplier(self.epsilon, self.delta, releases, parties)
        return find_law(law).noise_multiplier(self.epsilon, self.delta, releases * self.parties_per_person)
