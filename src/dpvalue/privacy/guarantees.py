"""What was spent (`Guarantee`), as an immutable value that can be quoted, saved and added up."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dpvalue.display import counted
from dpvalue.errors import DpvalueError, require_choice
from dpvalue.privacy import laws
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.privacy.laws import LAWS, law_named
from dpvalue.stored import COUNT, FLAG, NUMBER, POSITIVE, TEXT, fields, is_number, maybe, must_be, one_of


def check_guarantee(name: str, stored: Any) -> None:
    """Raise unless something stored describes a guarantee."""
    if stored != asdict(Guarantee()):  # as it is without privacy
        _SPENT(name, stored)


_SPENT = fields(
    unit=one_of(UNITS),
    neighbours=one_of(NEIGHBOURS),
    epsilon=POSITIVE,
    delta=must_be("at least 0 and below 1", lambda stored: is_number(stored) and 0 <= stored < 1),
    mu=maybe(POSITIVE),
    claimed_epsilon=maybe(POSITIVE),
    advantage=NUMBER,
    mechanism=lambda name, found: one_of(map(str.capitalize, LAWS))(name, found),  # of those registered by now
    releases=COUNT,
    parties_per_person=COUNT,
    noise=fields(multiplier=POSITIVE, clip=POSITIVE, simulation=FLAG),
    charged=fields(ledger=maybe(TEXT), returned=maybe(TEXT), parties=maybe(TEXT), person=maybe(TEXT)),
)


@dataclass(frozen=True)
class Noise:
    """What noise was added: in sensitivities, to what was clipped to this norm; in a `simulation` a seed repeats it."""

    multiplier: float | None = None
    clip: float | None = None
    simulation: bool = False


@dataclass(frozen=True)
class Account:
    """Whose budget a run was charged to.

    Attributes:
        ledger: the budget, in words, of the ledger, if any.
        returned: the day on which an answer was charged that the ledger gave again.
        parties: "rows" or "named parties".
        person: the column of ids. What else was released of the same people can be added up only if both are the same.
    """

    ledger: str | None = None
    returned: str | None = None
    parties: str | None = None
    person: str | None = None


@dataclass(frozen=True)
class Guarantee:
    """What a run spent, in numbers; `str()` of it is one paragraph to quote.

    Attributes:
        unit: what is protected: "party", "record" or "person".
        neighbours: the relation, as in `Privacy`.
        epsilon: what was really spent.
        delta: the probability with which that may fail.
        mu: of Gaussian noise, the same in Gaussian differential privacy.
        claimed_epsilon: what the paper's accounting claims, where it was used.
        advantage: of an attacker, between 0 and 1.
        mechanism: the law of the noise.
        releases: how many each party made.
        parties_per_person: the most parties that one person's records were in.
        noise: multiplier, clipping norm, and whether a seed repeats it.
        charged: whose budget it was charged to.

    `epsilon` is always the honest one, for an observer of every release by name; `claimed_epsilon` is set only when
    the run used the paper's accounting. `mu` is None for a pure law, as Laplace noise: delta is 0. `advantage` is the
    total variation between neighbours: how much better than a coin an attacker who sees every release tells them
    apart. Without differential privacy, the numbers are None.

    Example:
        >>> guarantee = dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee
        >>> spent.mechanism, spent.epsilon, round(spent.advantage, 2)
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
        """Whether whoever knows the seed can remove the noise."""
        return self.noise.simulation

    @property
    def law(self) -> str:
        """The law of the noise."""
        return "gaussian" if self.mechanism is None else self.mechanism.lower()

    def under(self, neighbours: str) -> float:
        """Return the epsilon of the same releases under another neighbouring relation.

        A contribution is at most C long, so replacing it by zero moves a release by C and by another one by 2C: mu (for
        Laplace noise epsilon) doubles from "zero_out" to "replace", and halves the other way.

        Args:
            neighbours: "zero_out" or "replace".

        Returns:
            epsilon, at the same delta.

        Raises:
            DpvalueError: an unknown relation, or a run without differential privacy.

        Example:
            >>> dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee.under("replace")
            2.0
        """
        require_choice("neighbours", neighbours, NEIGHBOURS)
        if self.delta is None or self.epsilon is None:
            raise DpvalueError("a run without differential privacy has no epsilon under any neighbouring relation")
        if neighbours == self.neighbours:
            return self.epsilon
        return law_named(self.law).epsilon(self._loss(neighbours), self.delta)

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
        return law_named(self.law).advantage(self._loss(neighbours), self.releases * self.parties_per_person)

    def _loss(self, neighbours: str) -> float:
        """Mu, or the epsilon of a pure law, times how much farther a unit moves a release under this relation."""
        moved = {"zero_out": 1.0, "replace": 2.0}
        loss = self.epsilon if self.mu is None else self.mu
        assert loss is not None
        return loss * (moved[neighbours] / moved[str(self.neighbours)])

    @property
    def terms(self) -> str:
        """What was spent, in a few words."""
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
        change = {"zero_out": "its contribution replaced by zero", "replace": "it replaced by any other"}
        spent = f"epsilon = {self.epsilon:.4g}, delta = {self.delta:.4g}"
        kind = "pure" if self.mu is None else f"mu = {self.mu:.4g}"
        exactly = "" if self.simulation else "discrete "  # secure noise is drawn on a grid
        others = "This run only: other runs on the same data add to it."
        ledger, returned = self.charged.ledger, self.charged.returned
        if ledger is not None:
            others = f"Charged to a ledger, which holds all runs on the data charged to it within {ledger}."
        if returned is not None:
            how = "Released" if ledger is None else "Charged"
            others += f" {how} on {returned}, returned again: other rows of the same size would get the same."
        sentence = (
            f"{protected} protected by ({spent})-differential privacy ({kind}; neighbours "
            f"{self.neighbours}: {change[str(self.neighbours)]}) against an observer of every release: {self.releases} "
            f"release(s) per party by the {exactly}{self.mechanism} mechanism, clipped to {self.noise.clip:.4g}, noise "
            f"{self.noise_multiplier:.4g} times the sensitivity; an attacker's advantage is at most "
            f"{self.advantage:.2g}. {others}"
        )
        if self.claimed_epsilon is not None:
            sentence = (
                f"The paper's accounting (poisson) claims epsilon = {self.claimed_epsilon:.4g}; it does not hold for "
                f"releases that carry names. What holds is this. {sentence}"
            )
        if self.simulation:
            sentence += " Simulation: whoever knows the seed can remove the noise."
        return sentence


def guarantee(
    privacy: Privacy | None,
    multiplier: float,
    releases: int,
    clip: float | None,
    fast: bool,
    law: str = "gaussian",
    ledger: str | None = None,
) -> Guarantee:
    """Return what `releases` releases per party with this law of noise and noise multiplier spent."""
    if privacy is None:
        return Guarantee()
    noise, seen = law_named(law), releases * privacy.parties_per_person
    by_paper = privacy.accounting == "poisson"
    loss = privacy.epsilon if noise.pure else noise.loss(multiplier, seen)
    return Guarantee(
        unit=privacy.unit,
        neighbours=privacy.neighbours,
        epsilon=noise.epsilon(loss, privacy.delta) if by_paper else privacy.epsilon,
        delta=0.0 if noise.pure else privacy.delta,
        mu=None if noise.pure else loss,
        claimed_epsilon=privacy.epsilon if by_paper else None,
        advantage=noise.advantage(loss, seen),
        mechanism=law.capitalize(),
        releases=releases,
        parties_per_person=privacy.parties_per_person,
        noise=Noise(multiplier, clip, fast),
        charged=Account(ledger),
    )


def total_epsilon(guarantees: Sequence[Guarantee], delta: float) -> float:
    """Return the epsilon that several runs on the same data spend together at this delta.

    Formal guarantee: all releases of these runs together are (epsilon, delta)-DP for the unit and the neighbouring
    relation that they share, for noise levels that were fixed in advance; runs of different laws may mix. That named
    parties are the same in all of them is the caller's to know. Simulations are refused: they have no guarantee.

    Args:
        guarantees: what each run spent.
        delta: at which epsilon is stated.

    Returns:
        epsilon of all runs together.

    Raises:
        DpvalueError: guarantees without privacy, of simulations, or for different units, relations or parties.

    Example:
        >>> guarantee = dpv.plan(20, privacy=Privacy(epsilon=1.0, delta=0)).guarantee
        >>> round(total_epsilon([spent, spent], delta=0.0), 6)
        2.0
    """
    for run in guarantees:
        if run.simulation:
            raise DpvalueError(
                "guarantees must be of runs with secure noise: a simulation (noise='fast') protects nothing from "
                "whoever knows the seed"
            )
        if not run.private:
            raise DpvalueError("guarantees must all be of private runs: one without privacy has no epsilon")
    if len({(run.unit, run.neighbours, run.parties_per_person) for run in guarantees}) > 1:
        raise DpvalueError("guarantees must share their unit, neighbours and parties_per_person to be added up")
    if (
        guarantees
        and guarantees[0].unit != "record"
        and len({(run.charged.parties, run.charged.person) for run in guarantees}) > 1
    ):
        raise DpvalueError(
            "guarantees must be for the same parties (rows, or named ones) and ids to be added up: the rows of a party "
            "that each released on their own spend together far more than one of them"
        )
    spent = [
        (run.law, float(run.noise_multiplier or 0.0), int(run.releases or 0) * run.parties_per_person)
        for run in guarantees
    ]
    return laws.total_epsilon(spent, delta)


def warn_if_delta_is_large(spent: Guarantee, units: int) -> None:
    """Warn when units * delta > 0.1: such a delta lets a mechanism publish somebody's data outright."""
    delta = spent.delta or 0.0
    if units * delta > 0.1:
        warnings.warn(
            f"delta = {delta:g} for {units} protected units: units * delta = {units * delta:.3g} "
            f"exceeds 0.1; a delta of {0.1 / units:.1g} or less is safer",
            UserWarning,
            stacklevel=3,
        )
