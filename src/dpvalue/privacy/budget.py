"""What is promised (`Privacy`, before a run) and what was spent (`Guarantee`, after it), as immutable values."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import sqrt
from numbers import Real

from dpvalue.errors import DpvalueError, require_choice, require_number, require_positive
from dpvalue.privacy import accounting

UNITS = ("party", "record")
NEIGHBOURS = ("zero_out", "replace")
ACCOUNTINGS = ("composition", "poisson")


@dataclass(frozen=True)
class Privacy:
    """A privacy budget for one run.

    Formal guarantee: with accounting "composition", everything an observer of all releases sees is
    (epsilon, delta)-differentially private for one `unit` under the relation `neighbours`, and so is every value made
    from it. The observer knows which party made which release.

    Args:
        epsilon: how much the presence of one unit may change what is seen; positive.
        delta: the probability with which that may fail; between 0 and 1.
        unit: what is protected: "party" (all of a party's data) or "record" (one row of it).
        neighbours: "zero_out" (the unit's contribution replaced by zero) or "replace" (by any other contribution).
        accounting: "composition" counts every release of a party. "poisson" is the paper's accounting; it claims
            amplification by a secret sampling that does not happen, so a result made with it states the epsilon
            really spent beside the claim.
    """

    epsilon: float = 1.0
    delta: float = 5e-5
    unit: str = "party"
    neighbours: str = "zero_out"
    accounting: str = "composition"

    def __post_init__(self) -> None:
        require_positive("epsilon", self.epsilon)
        number = isinstance(self.delta, Real)
        require_number("delta", self.delta, "between 0 and 1, ends excluded", number and 0 < self.delta < 1)
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)
        require_choice("accounting", self.accounting, ACCOUNTINGS)
        if self.accounting == "poisson" and (self.unit, self.neighbours) != ("party", "zero_out"):
            raise DpvalueError(
                "accounting='poisson' exists to compare with the paper, which has unit='party' and "
                f"neighbours='zero_out'; got unit={self.unit!r}, neighbours={self.neighbours!r}"
            )

    def noise_multiplier(self, releases: int, parties: int) -> float:
        """Return noise std / sensitivity of each of a party's `releases`."""
        if self.accounting == "poisson":
            return accounting.poisson_noise_multiplier(self.epsilon, self.delta, releases, parties)
        return accounting.noise_multiplier(self.epsilon, self.delta, releases)


@dataclass(frozen=True)
class Guarantee:
    """What a run spent, in numbers; `str()` of it is one paragraph to quote.

    `epsilon` is always the honest one, for an observer of every release by name; `claimed_epsilon` is set only when
    the run used the paper's accounting. `private` is False for a run without differential privacy; the numbers are
    then None.
    """

    private: bool
    unit: str | None = None
    neighbours: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    mechanism: str | None = None
    accounting: str | None = None
    claimed_epsilon: float | None = None
    noise_multiplier: float | None = None
    releases: int | None = None
    clip: float | None = None
    simulation: bool = False

    def under(self, neighbours: str) -> float:
        """Return the epsilon of the same releases under another neighbouring relation.

        A contribution is at most C long, so replacing it by zero moves a release by C and by another one by 2C: mu
        doubles from "zero_out" to "replace", and halves the other way.
        """
        require_choice("neighbours", neighbours, NEIGHBOURS)
        if self.mu is None or self.delta is None or self.epsilon is None:
            raise DpvalueError("a run without differential privacy has no epsilon under any neighbouring relation")
        if neighbours == self.neighbours:
            return self.epsilon
        return accounting.epsilon_of_mu(self.mu * (2.0 if neighbours == "replace" else 0.5), self.delta)

    def __str__(self) -> str:
        if not self.private:
            return "No differential privacy: the values, the table and the saved file expose the parties' data."
        assert self.epsilon is not None
        protected = {"party": "All data of each party", "record": "Each record of each party"}[str(self.unit)]
        change = {"zero_out": "its contribution replaced by zero", "replace": "it replaced by any other"}
        spent = f"epsilon = {self.epsilon:.4g}, delta = {self.delta:.4g}"
        sentence = (
            f"{protected} is protected by ({spent})-differential privacy (mu = {self.mu:.4g}; neighbours "
            f"{self.neighbours}: {change[str(self.neighbours)]}) against an observer of every release: {self.releases} "
            f"release(s) per party by the {self.mechanism} mechanism, clipped to {self.clip:.4g}, noise "
            f"{self.noise_multiplier:.4g} times the sensitivity. This run only: other runs on the same data add to it."
        )
        if self.claimed_epsilon is not None:
            sentence = (
                f"The paper's accounting (poisson) claims epsilon = {self.claimed_epsilon:.4g}; it does not hold for "
                f"releases that carry names. What holds is this. {sentence}"
            )
        if self.simulation:
            sentence += " Simulation: whoever knows the seed can remove the noise."
        return sentence


def guarantee(privacy: Privacy | None, multiplier: float, releases: int, clip: float | None, fast: bool) -> Guarantee:
    """Return what `releases` Gaussian releases per party with this noise multiplier spent."""
    if privacy is None:
        return Guarantee(private=False)
    mu = sqrt(releases) / multiplier
    by_paper = privacy.accounting == "poisson"
    return Guarantee(
        private=True,
        unit=privacy.unit,
        neighbours=privacy.neighbours,
        epsilon=accounting.epsilon_of_mu(mu, privacy.delta) if by_paper else privacy.epsilon,
        delta=privacy.delta,
        mu=mu,
        mechanism="Gaussian",
        accounting=privacy.accounting,
        claimed_epsilon=privacy.epsilon if by_paper else None,
        noise_multiplier=multiplier,
        releases=releases,
        clip=clip,
        simulation=fast,
    )


def warn_if_delta_is_large(privacy: Privacy, units: int) -> None:
    """Warn when units * delta > 0.1: such a delta lets a mechanism publish somebody's data outright."""
    if units * privacy.delta > 0.1:
        warnings.warn(
            f"delta = {privacy.delta:g} for {units} protected units: units * delta = {units * privacy.delta:.3g} "
            f"exceeds 0.1; a delta of {0.1 / units:.1g} or less is safer",
            UserWarning,
            stacklevel=3,
        )
