"""The privacy guarantee of a run, as an immutable value that can be quoted, saved and composed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpvalue.display import counted
from dpvalue.errors import DpvalueError, require_choice
from dpvalue.privacy import laws
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.privacy.laws import LAWS, find_law
from dpvalue.stored import COUNT, FLAG, NUMBER, POSITIVE, TEXT, choice_of, fields, is_number, must_be, optional


def check_guarantee(name: str, stored: Any) -> None:
    """Raise unless stored values describe a guarantee."""
    if stored != asdict(Guarantee()):  # the guarantee of a run without privacy
        _GUARANTEE(name, stored)


_GUARANTEE = fields(
    unit=choice_of(UNITS),
    neighbours=choice_of(NEIGHBOURS),
    epsilon=POSITIVE,
    delta=must_be("at least 0 and below 1", lambda stored: is_number(stored) and 0 <= stored < 1),
    mu=optional(POSITIVE),
    claimed_epsilon=optional(POSITIVE),
    advantage=NUMBER,
    mechanism=lambda name, value: choice_of(map(str.capitalize, LAWS))(
        name, value
    ),  # evaluated late, for laws that are registered later
    releases=COUNT,
    parties_per_person=COUNT,
    noise=fields(multiplier=POSITIVE, clip=POSITIVE, simulation=FLAG),
    charged=fields(ledger=optional(TEXT), returned=optional(TEXT), parties=optional(TEXT), person=optional(TEXT)),
)


@dataclass(frozen=True)
class Noise:
    """The noise: its multiplier (scale / sensitivity), the clipping norm, and whether it is seeded (`simulation`)."""

    multiplier: float | None = None
    clip: float | None = None
    simulation: bool = False


@dataclass(frozen=True)
class Account:
    """The ledger, and the identity of the units, that a run was charged to.

    Attributes:
        ledger: the budget of the ledger in words; None without a ledger.
        returned: the day of the original charge, if the ledger returned an earlier release.
        parties: "rows" or "named parties".
        person: the column of ids. Guarantees can be added up only if `parties` and `person` are equal.
    """

    ledger: str | None = None
    returned: str | None = None
    parties: str | None = None
    person: str | None = None


@dataclass(frozen=True)
class Guarantee:
    """The privacy guarantee of a run; `str()` of it is one paragraph to quote.

    Attributes:
        unit: the protected unit: "party", "record" or "person".
        neighbours: the neighbouring relation, as in `Privacy`.
        epsilon: epsilon by composition.
        delta: delta.
        mu: mu of Gaussian differential privacy; None for a pure law.
        claimed_epsilon: epsilon by the paper's accounting, if the run used it.
        advantage: the total variation between neighbours, from 0 to 1.
        mechanism: the law of the noise.
        releases: the number of releases of each party.
        parties_per_person: the largest number of parties that hold records of one person.
        noise: multiplier, clipping norm, and whether the noise is seeded.
        charged: the ledger and the identity of the units.

    `epsilon` holds against an observer who sees every release and its party. `claimed_epsilon` is set only if the run
    used the paper's accounting. For a pure law, such as Laplace, `mu` is None and `delta` is 0. `advantage` bounds
    how much better than chance an attacker who sees every release distinguishes neighbours. Without differential
    privacy, numbers are None.

    Example:
        >>> guarantee = dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee
        >>> guarantee.mechanism, guarantee.epsilon, round(guarantee.advantage, 2)
        ('Laplace', 1.0, 0.39)
    """

    unit: str | None = None
    neighbours: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    claimed_epsilon: float | None = None
    advantage: float | None = None
    mechanism: str | None = None
    releases: int | None = None
    parties_per_person: int = 1
    noise: Noise = Noise()
    charged: Account = Account()

    @property
    def private(self) -> bool:
        """Whether the run had differential privacy."""
        return self.epsilon is not None

    @property
    def noise_multiplier(self) -> float | None:
        """Noise scale / sensitivity of each release."""
        return self.noise.multiplier

    @property
    def simulation(self) -> bool:
        """Whether the noise is seeded, so that it can be removed with the seed."""
        return self.noise.simulation

    @property
    def law(self) -> str:
        """The law of the noise."""
        return "gaussian" if self.mechanism is None else self.mechanism.lower()

    def epsilon_under(self, neighbours: str) -> float:
        """Return the epsilon of the same releases under another neighbouring relation.

        A contribution has norm at most C. Replacing it by zero moves a release by C, replacing it by another one by 2C.
        So mu (for Laplace noise epsilon) doubles from "zero_out" to "replace", and halves in the other direction.

        Args:
            neighbours: "zero_out" or "replace".

        Returns:
            epsilon, at the same delta.

        Raises:
            DpvalueError: an unknown relation, or a run without differential privacy.

        Example:
            >>> dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee.epsilon_under("replace")
            2.0
        """
        require_choice("neighbours", neighbours, NEIGHBOURS)
        if self.delta is None or self.epsilon is None:
            raise DpvalueError("a run without differential privacy has no epsilon")
        if neighbours == self.neighbours:
            return self.epsilon
        return find_law(self.law).epsilon(self._loss(neighbours), self.delta)

    def advantage_under(self, neighbours: str) -> float:
        """Return an attacker's advantage under another neighbouring relation; 1 without differential privacy.

        Args:
            neighbours: "zero_out" or "replace".

        Returns:
            the advantage, between 0 and 1.

        Raises:
            DpvalueError: an unknown relation.

        Example:
            >>> round(dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee.advantage_under("replace"), 2)
            0.63
        """
        require_choice("neighbours", neighbours, NEIGHBOURS)
        if self.epsilon is None or self.releases is None:
            return 1.0
        return find_law(self.law).advantage(self._loss(neighbours), self.releases * self.parties_per_person)

    def _loss(self, neighbours: str) -> float:
        """Mu, or the epsilon of a pure law, scaled to the sensitivity under this relation."""
        factors = {"zero_out": 1.0, "replace": 2.0}
        loss = self.epsilon if self.mu is None else self.mu
        assert loss is not None
        return loss * (factors[neighbours] / factors[str(self.neighbours)])

    @property
    def terms(self) -> str:
        """The budget spent, as short text."""
        if self.epsilon is None:
            return "no differential privacy"
        seeded = ", simulation" if self.simulation else ""
        return f"epsilon = {self.epsilon:.4g}, delta = {self.delta:.4g} per {self.unit}{seeded}"

    def __repr__(self) -> str:
        if not self.private:
            return f"Guarantee({self.terms})"
        return f"Guarantee({self.terms}, {self.neighbours}, {self.mechanism}, {counted(self.releases, 'release')})"

    def __str__(self) -> str:
        if self.epsilon is None:
            return "No differential privacy: the values, the table and the saved file expose the parties' data."
        protected = {
            "party": "All data of each party is",
            "record": "Each record of each party is",
            "person": f"All records of each person, in at most {self.parties_per_person} parties, are",
        }[str(self.unit)]
        change = {"zero_out": "its contribution is replaced by zero", "replace": "it is replaced by any other"}
        amount = f"epsilon = {self.epsilon:.4g}, delta = {self.delta:.4g}"
        kind = "pure" if self.mu is None else f"mu = {self.mu:.4g}"
        exactly = "" if self.simulation else "discrete "  # secure noise is drawn on a grid
        others = "The guarantee is for this run only: other runs on the same data add to it."
        ledger, returned = self.charged.ledger, self.charged.returned
        if ledger is not None:
            others = f"The run is charged to a ledger, which keeps all runs charged to it within {ledger}."
        if returned is not None:
            how = "released" if ledger is None else "charged"
            others += (
                f" Its releases were first {how} on {returned} and are returned again: other rows of the same size "
                "would get the same releases."
            )
        text = (
            f"{protected} protected by ({amount})-differential privacy ({kind}) against an observer of every release. "
            f"Neighbours: {self.neighbours} ({change[str(self.neighbours)]}). Mechanism: {exactly}{self.mechanism}, "
            f"{counted(self.releases, 'release')} per party, clipping norm {self.noise.clip:.4g}, noise multiplier "
            f"{self.noise_multiplier:.4g}. An attacker's advantage is at most {self.advantage:.2g}. {others}"
        )
        if self.claimed_epsilon is not None:
            text = (
                f"The paper's accounting (poisson) claims epsilon = {self.claimed_epsilon:.4g}. The claim does not "
                f"hold for releases that carry names. The following guarantee holds. {text}"
            )
        if self.simulation:
            text += " Simulation: anyone who knows the seed can remove the noise."
        return text


def guarantee(
    privacy: Privacy | None,
    multiplier: float,
    releases: int,
    clip: float | None,
    fast: bool,
    law: str = "gaussian",
    ledger: str | None = None,
) -> Guarantee:
    """Return the guarantee of `releases` releases per party with this law and noise multiplier."""
    if privacy is None:
        return Guarantee()
    noise, observed = find_law(law), releases * privacy.parties_per_person
    by_paper = privacy.accounting == "poisson"
    loss = privacy.epsilon if noise.pure else noise.loss(multiplier, observed)
    return Guarantee(
        unit=privacy.unit,
        neighbours=privacy.neighbours,
        epsilon=noise.epsilon(loss, privacy.delta) if by_paper else privacy.epsilon,
        delta=0.0 if noise.pure else privacy.delta,
        mu=None if noise.pure else loss,
        claimed_epsilon=privacy.epsilon if by_paper else None,
        advantage=noise.advantage(loss, observed),
        mechanism=law.capitalize(),
        releases=releases,
        parties_per_person=privacy.parties_per_person,
        noise=Noise(multiplier, clip, fast),
        charged=Account(ledger),
    )


def total_epsilon(guarantees: Sequence[Guarantee], delta: float) -> float:
    """Return the epsilon that several runs on the same data spend together at this delta.

    Formal guarantee: all releases of these runs together are (epsilon, delta)-DP for the unit and the neighbouring
    relation that they share, if the noise levels were fixed in advance. Runs may use different laws. The caller must
    know that named parties are the same in all runs. Simulations raise, because they have no guarantee.

    Args:
        guarantees: the guarantee of each run.
        delta: the delta of the total.

    Returns:
        epsilon of all runs together.

    Raises:
        DpvalueError: guarantees without privacy, of simulations, or for different units, relations or parties.

    Example:
        >>> guarantee = dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee
        >>> round(total_epsilon([guarantee, guarantee], delta=0.0), 6)
        2.0
    """
    for run in guarantees:
        if run.simulation:
            raise DpvalueError(
                "guarantees must be of runs with secure noise: a simulation (noise='fast') gives no protection from "
                "anyone who knows the seed"
            )
        if not run.private:
            raise DpvalueError("guarantees must all be of private runs: a run without privacy has no epsilon")
    if len({(run.unit, run.neighbours, run.parties_per_person) for run in guarantees}) > 1:
        raise DpvalueError("guarantees must share their unit, neighbours and parties_per_person to be added up")
    if (
        guarantees
        and guarantees[0].unit != "record"
        and len({(run.charged.parties, run.charged.person) for run in guarantees}) > 1
    ):
        raise DpvalueError(
            "guarantees must have the same parties (rows or names) and person column to be added up: the rows of a "
            "party that release separately spend far more together than one of them"
        )
    releases = [
        (run.law, float(run.noise_multiplier or 0.0), int(run.releases or 0) * run.parties_per_person)
        for run in guarantees
    ]
    return laws.total_epsilon(releases, delta)


def warn_of_large_delta(guarantee: Guarantee, units: int) -> None:
    """Warn if units * delta > 0.1: such a delta allows a mechanism that publishes the data of one unit."""
    delta = guarantee.delta or 0.0
    if units * delta > 0.1:
        warnings.warn(
            f"delta = {delta:g} is large for {units} protected units: units * delta = {units * delta:.3g} exceeds 0.1; "
            f"choose a delta of at most {0.1 / units:.1g}",
            UserWarning,
            stacklevel=3,
        )
