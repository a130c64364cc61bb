r"""A privacy filter: the joint cost of adaptively chosen releases of one owner's data.

The noise of a release may depend on earlier releases. The filter keeps two sums over all charges. With mu the largest
that implies the budget (epsilon, delta), they are

    pure = sum of the pure epsilons, if every charge is pure (Laplace noise); else infinite,
    mu^2 = sum of the mu^2 of Gaussian charges, and of mu(epsilon)^2 for pure ones, mu(e) = -2 Phi^-1(1 / (1 + e^e)).

A release is allowed if, with it, the first stays within the budget's epsilon or the second within the budget's mu^2.
An epsilon-DP release is mu(epsilon)-GDP: its trade-off is two lines that meet at 1/(1 + e^epsilon), and the convex
curve of a Gaussian lies below these chords. That stopping at such sums is sound is shown in docs/privacy-proof.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from torch import Tensor

from dpvalue.errors import BudgetExceeded, DpvalueError, require_choice, require_count, require_positive
from dpvalue.privacy import accounting, laws
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.privacy.mechanism import Mechanism

_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Charge:
    """The cost of one ledger entry.

    Attributes:
        law: the name of the law of noise.
        noise_multiplier: noise scale / sensitivity.
        releases: the number of releases of the entry; for unit "person" rounds times parties per person.
        sensitivity: the l2 sensitivity of a release; the largest over parties.
        unit: the protected unit.
        neighbours: the neighbouring relation.
    """

    law: str
    noise_multiplier: float
    releases: int
    sensitivity: float
    unit: str
    neighbours: str

    def __post_init__(self) -> None:
        require_choice("law", self.law, laws.LAWS)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("releases", self.releases)
        require_positive("sensitivity", self.sensitivity)
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)

    @property
    def noise_scale(self) -> float:
        """The scale of the noise."""
        return self.noise_multiplier * self.sensitivity

    def multiplier_for(self, neighbours: str) -> float:
        """Return the noise multiplier of the same release for the same unit under another relation.

        A contribution is at most C long. Replacing it by another moves a release by up to 2C, by zero up to C.
        """
        factors = {"zero_out": 1.0, "replace": 2.0}
        return self.noise_multiplier * factors[self.neighbours] / factors[neighbours]

    def times(self, count: int) -> Charge:
        """Return the charge of `count` such rounds."""
        return replace(self, releases=count * self.releases)


def charge_of(mechanism: Mechanism, units: Tensor, privacy: Privacy) -> Charge:
    """Return the charge of one round. No other function computes charges.

    For unit "person" a round counts as h = `parties_per_person` releases. In a local run a person is in up to h of the
    releases of a round. A remote party makes one release; the person may be in h - 1 releases of other parties, which
    this ledger does not see. So the ledger counts h releases of its own; see `Ledger` for the guarantee.

    Args:
        mechanism: clipping and noise of a release.
        units: the public numbers of units (n,) of the releasing parties.
        privacy: the budget of the run or job, with h.
    """
    return Charge(
        law=mechanism.law,
        noise_multiplier=mechanism.noise_multiplier,
        releases=privacy.parties_per_person,
        sensitivity=float(mechanism.sensitivity(units.cpu()).max()),
        unit=mechanism.unit,
        neighbours=mechanism.neighbours,
    )


def spent_epsilon(charges: Sequence[Charge], budget: Privacy) -> float:
    """Return the epsilon that charges spend together, at the budget's delta and for the budget's relation."""
    if not charges:
        return 0.0
    by_mu = accounting.epsilon_of_mu(_mu(charges, budget), budget.delta) if budget.delta else inf
    return min(_pure(charges, budget), by_mu)


def require_room(earlier: Sequence[Charge], charge: Charge, budget: Privacy) -> None:
    """Raise unless the budget allows one more charge.

    Formal guarantee: the releases that this function allows in sequence are together (epsilon, delta)-DP as the budget
    says, also if queries and noise levels depend on earlier releases.
    """
    if charge.unit != budget.unit:
        raise DpvalueError(f"the ledger's budget is per {budget.unit}, and this release protects each {charge.unit}")
    if charge.releases % budget.parties_per_person:
        raise DpvalueError(
            f"a charge must count all {budget.parties_per_person} parties of a person, got {charge.releases} releases"
        )
    charges = [*earlier, charge]
    if _pure(charges, budget) <= budget.epsilon * _ROUNDING:
        return
    if budget.delta and _mu(charges, budget) <= accounting.mu_of_budget(budget.epsilon, budget.delta) * _ROUNDING:
        return
    used = spent_epsilon(earlier, budget)
    raise BudgetExceeded(
        spent_epsilon=used,
        requested_epsilon=spent_epsilon([charge], budget),
        remaining_epsilon=max(0.0, budget.epsilon - used),
    )


def _terms(charges: Sequence[Charge], budget: Privacy) -> list[tuple[str, float, int]]:
    """Law, noise multiplier and number of releases of each charge, under the budget's relation."""
    return [(charge.law, charge.multiplier_for(budget.neighbours), charge.releases) for charge in charges]


def _pure(charges: Sequence[Charge], budget: Privacy) -> float:
    return laws.pure_loss(_terms(charges, budget))


def _mu(charges: Sequence[Charge], budget: Privacy) -> float:
    return laws.mu_loss(_terms(charges, budget))
