"""What a budget can buy, before anything is spent: noise, the ceilings on detection, messages, memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from statistics import NormalDist

import numpy as np

from dpvalue.errors import DpvalueError, require_count
from dpvalue.privacy import accounting
from dpvalue.privacy.budget import Privacy
from dpvalue.schedule import Schedule, as_schedule


@dataclass(frozen=True)
class Plan:
    """What a run would spend and could reach; str() of it is a page to read.

    Attributes:
        privacy: the budget.
        parties: their number.
        releases: noisy messages per party.
        noise_multiplier: noise std / sensitivity of each.
        table_noise: noise std / sensitivity of a party's final row.
        mu: of Gaussian DP.
        epsilon: what is really spent; differs from privacy.epsilon only for accounting "poisson".
        ceiling: no method at all finds corrupted units with a larger expected AUC at this epsilon.
        gaussian_ceiling: the same for Gaussian releases of this mu.
        table_bytes: size of the table in float32, if the number of parameters was given.
    """

    privacy: Privacy
    parties: int
    schedule: Schedule
    releases: int
    noise_multiplier: float
    table_noise: float
    mu: float
    epsilon: float
    ceiling: float
    gaussian_ceiling: float
    table_bytes: int | None

    def __str__(self) -> str:
        lines = [
            f"{self.parties} parties, schedule {self.schedule}: {self.releases} release(s) per party",
            f"epsilon = {self.epsilon:.4g}, delta = {self.privacy.delta:.4g} per {self.privacy.unit}, neighbours "
            f"{self.privacy.neighbours}, mu = {self.mu:.4g}",
            f"noise / sensitivity: {self.noise_multiplier:.4g} per release, {self.table_noise:.4g} in the final table",
            f"finding corrupted {self.privacy.unit}s one by one: AUC at most {self.ceiling:.3f} by any method, "
            f"{self.gaussian_ceiling:.3f} from Gaussian releases",
        ]
        if self.privacy.accounting == "poisson":
            lines.insert(1, f"claimed epsilon = {self.privacy.epsilon:.4g} (poisson); what is really spent:")
        if self.table_bytes is not None:
            lines.append(f"table: {self.table_bytes / 1e6:.1f} MB")
        return "\n".join(lines)


def plan(
    parties: int,
    *,
    privacy: Privacy = Privacy(),  # noqa: B008  (immutable)
    schedule: str | Schedule | None = None,
    permutations: int = 1000,
    parameters: int | None = None,
) -> Plan:
    """Return what a run would spend and could reach. Reads no data at all.

    The ceilings are e^(2 eps) / (1 + e^(2 eps)) under zero_out and e^eps / (1 + e^eps) under replace for any method
    that is eps-DP, and Phi(sqrt(2) mu), Phi(mu / sqrt(2)) for Gaussian releases. They assume that which units are
    corrupted is exchangeable given what is public, bound the mean over runs, and leave out delta.

    Args:
        parties: their number.
        privacy: the budget.
        schedule: as in `dpvalue.value`.
        permutations: as in `dpvalue.value`.
        parameters: the number of parameters of the model, for the size of the table.

    >>> round(plan(800, privacy=Privacy(epsilon=2.0)).gaussian_ceiling, 3)
    0.782
    """
    require_count("parties", parties, least=2)
    if not isinstance(privacy, Privacy):
        raise DpvalueError(f"privacy must be a Privacy, got {privacy!r}: without one there is nothing to plan")
    if parameters is not None:
        require_count("parameters", parameters)
    chosen = as_schedule(schedule, private=True)
    releases = chosen.releases(permutations)
    multiplier = privacy.noise_multiplier(releases, parties)
    mu = sqrt(releases) / multiplier
    epsilon = privacy.epsilon
    if privacy.accounting == "poisson":
        epsilon = accounting.epsilon_of_mu(mu, privacy.delta)
    swaps = 1.0 if privacy.neighbours == "replace" else 2.0  # two units trade places: two steps of zero_out
    return Plan(
        privacy=privacy,
        parties=parties,
        schedule=chosen,
        releases=releases,
        noise_multiplier=multiplier,
        table_noise=multiplier * float(np.linalg.norm(chosen.table_weights(permutations))),
        mu=mu,
        epsilon=epsilon,
        ceiling=1 / (1 + exp(-swaps * epsilon)),
        gaussian_ceiling=NormalDist().cdf(mu * (sqrt(2.0) if privacy.neighbours == "zero_out" else sqrt(0.5))),
        table_bytes=None if parameters is None else 4 * parties * parameters,
    )
