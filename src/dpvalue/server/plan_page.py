"""The plan of a run: its numbers, and the page that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpvalue.data.parties import as_parties
from dpvalue.errors import DpvalueError
from dpvalue.planning.detection import efficiency, is_useful
from dpvalue.privacy.budget import Guarantee, Privacy
from dpvalue.progress import Progress, reporting
from dpvalue.releasing.projection import Projection
from dpvalue.releasing.schedule import Schedule
from dpvalue.server.run import Prepared
from dpvalue.server.value import release_prepared, value_prepared
from dpvalue.valuation.result import Result
from dpvalue.valuation.semivalues import Semivalue, semivalues
from dpvalue.valuation.table import Table

CANNOT_WORK, CAN_WORK = 0.6, 0.7
TOO_VAGUE = 0.05  # a standard error of the expected AUC above which public rows are too few to tell


@dataclass(frozen=True)
class Plan:
    """What a run would spend and could reach; str() of it is a page to read.

    Attributes:
        privacy: the budget.
        parties: their number.
        units: protected units in a party, typically: 1, its records or its persons.
        records: records in a party, typically.
        schedule: when parties release.
        spent: the guarantee of the run; None while the mechanism is open, as choosing it takes a utility.
        gaussian: the guarantee of Gaussian noise at this budget; None where budget or schedule rule it out.
        laplace: the same for Laplace noise, of one release of one number.
        table_noise: noise scale / sensitivity of a party's final row; None while the mechanism is open.
        ceiling: the largest expected AUC of finding corrupted units at this epsilon, where each releases on its own; a
            trusted curator who mixes them before the noise could pass it.
        gaussian_ceiling: the same for Gaussian releases.
        laplace_ceiling: the same for one Laplace release of one number per unit; None for persons in several parties.
        projection: the directions of the releases; None: all, or not yet chosen, as that takes a utility.
        expected_auc: how well corrupted parties (a wrong label; of a party of many records, half of its labels) are
            expected to be found, by rehearsal on the utility's rows.
        expected_error: its standard error: what other public rows, as many, might have said.
        wanted_auc: what was asked for.
        epsilon_needed: the epsilon at which it is expected, infinite if out of reach; without a utility, below which
            the ceiling rules it out (None for records and persons, of which many speak for a party).
        table_bytes: size of the table, if the number of parameters or a utility was given.
        memory_bytes: of the whole process of `dpvalue run` at its peak; without a utility, the table and the sums that
            it is made from.
        seconds: of `dpvalue run`, from choosing to the report: as expected, and if all permutations are walked; timed
            on the utility's rows.
        value_seconds: of `dpvalue.value` alone, as expected: without errors due to noise, curves and report.
        advice: whether the budget can work, and what would.
        prepared: what was chosen, with a utility; `release` and `value` go on from it.
    """

    privacy: Privacy
    parties: int
    units: int
    records: int
    schedule: Schedule
    spent: Guarantee | None
    gaussian: Guarantee | None
    laplace: Guarantee | None
    table_noise: float | None
    ceiling: float
    gaussian_ceiling: float | None
    laplace_ceiling: float | None
    projection: Projection | None
    expected_auc: float | None
    expected_error: float | None
    wanted_auc: float | None
    epsilon_needed: float | None
    table_bytes: int | None
    memory_bytes: int | None
    seconds: tuple[float, float] | None
    value_seconds: float | None
    advice: str
    prepared: Prepared | None = field(default=None, repr=False, compare=False)

    def release(self, parties: Any, *, progress: bool | Progress = True, **data: Any) -> Table:
        """Return the private table of these parties' releases, made as planned.

        Formal guarantee: as `dpvalue.release`.

        Args:
            parties: as in `dpvalue.value`; they must have the numbers of rows that were planned for.
            progress: show a bar on a terminal; or a callable (stage, done, total).
            **data: target, groups, persons, as in `dpvalue.value`.
        """
        with reporting(progress) as tell:
            return release_prepared(self._prepared(), as_parties(parties, **data), tell)

    def value(
        self,
        parties: Any,
        *,
        semivalues: str | Semivalue | tuple[str | Semivalue, ...] = ("shapley",),
        progress: bool | Progress = True,
        **data: Any,
    ) -> Result:
        """Return what each party's data is worth, released and valued as planned; as `dpvalue.value` and `release`."""
        with reporting(progress) as tell:
            return value_prepared(self._prepared(), as_parties(parties, **data), _semivalues(semivalues), tell)

    def _prepared(self) -> Prepared:
        if self.prepared is None:
            raise DpvalueError("a plan without a utility has chosen nothing: give plan a utility")
        return self.prepared

    @property
    def epsilon(self) -> float:
        """What is really spent; differs from privacy.epsilon only for accounting "poisson"."""
        return self.privacy.epsilon if self.spent is None or self.spent.epsilon is None else self.spent.epsilon

    @property
    def efficiency(self) -> float | None:
        """(expected AUC - 0.5) / (ceiling - 0.5), for parties protected as a whole."""
        if self.expected_auc is None or self.privacy.unit != "party":
            return None
        return efficiency(self.expected_auc, self.epsilon, self.privacy.neighbours)

    @property
    def too_few(self) -> bool:
        """Whether the public rows are too few to tell what to expect: the standard error is above 0.05."""
        return self.expected_error is not None and self.expected_error > TOO_VAGUE

    @property
    def cannot_work(self) -> bool:
        """Whether the budget cannot work, for sure: even two standard errors above what is expected is below 0.6.

        Of parties protected as a whole the ceiling may rule it out too, with or without a utility. Where the public
        rows are too few to tell, and the ceiling does not, it is False.
        """
        if self.privacy.unit == "party" and self.ceiling < CANNOT_WORK:
            return True
        if self.expected_auc is None or self.expected_error is None or self.too_few:
            return False
        return self.expected_auc + 2 * self.expected_error < CANNOT_WORK

    def __str__(self) -> str:
        unit = self.privacy.unit
        inside = "" if unit == "party" else f" of {self.units} {unit}s each"
        lines = [f"{self.parties} parties{inside}; {self._releases()}"]
        if self.privacy.accounting == "poisson":
            lines.append(f"claimed epsilon = {self.privacy.epsilon:.4g} (poisson); what is really spent:")
        lines.append(
            f"budget: epsilon = {self.epsilon:.4g} per {unit}, neighbours {self.privacy.neighbours}; by mechanism, "
            "with the advantage it gives an attacker:"
        )
        other = None if self.spent is None or self.spent.law in ("laplace", "gaussian") else self.spent
        ceilings = (self.laplace, self.laplace_ceiling), (self.gaussian, self.gaussian_ceiling), (other, None)
        for one, most in ceilings:
            if one is not None:
                chosen = self.expected_auc is not None and self.spent is not None and one.law == self.spent.law
                kind = "pure" if one.mu is None else f"mu = {one.mu:.3g}"
                limit = f", AUC <= {most:.3f}" if most is not None and is_useful(most) else ""
                lines.append(
                    f"  {one.mechanism}{' (chosen)' if chosen else ''}: delta {one.delta:.3g}, {kind}, noise "
                    f"{one.noise_multiplier:.4g} x sensitivity, advantage {one.advantage:.2g}{limit}"
                )
        many = "parties" if unit == "party" else f"{unit}s"
        limit = f"AUC at most {self.ceiling:.3f} where each releases on its own"
        if not is_useful(self.ceiling):
            limit = "the budget sets no useful limit"
        lines.append(f"finding corrupted {many} one by one: {limit}")
        if self.expected_auc is not None:
            share = "" if self.efficiency is None else f", efficiency {self.efficiency:.2f}"
            where = "all directions" if self.projection is None else str(self.projection)
            what = "half of the labels wrong" if self.records > 1 else "the label wrong"
            error = "" if self.expected_error is None else f" ± {self.expected_error:.2g}"
            lines.append(
                f"finding parties with {what}: expected AUC {self.expected_auc:.3f}{error}{share}; released: {where}"
            )
        if self.wanted_auc is not None:
            lines.append(self._needed())
        if self.table_bytes is not None and self.memory_bytes is not None:
            whole = "" if self.expected_auc is None else ", the whole process"
            lines.append(f"table {_size(self.table_bytes)}, about {_size(self.memory_bytes)} of memory{whole}")
        if self.seconds is not None and self.value_seconds is not None:
            lines.append(
                f"time: about {self.seconds[0]:.2g} s, at most {self.seconds[1]:.2g} s, with errors and report; values "
                f"alone about {self.value_seconds:.2g} s"
            )
        return "\n".join([*lines, self.advice])

    def _releases(self) -> str:
        if self.spent is None:
            return f"{self.schedule.kind}; mechanism and directions are chosen with a utility"
        return f"{self.schedule}: {self.spent.releases} release(s) each"

    def _needed(self) -> str:
        wanted = f"AUC {self.wanted_auc:g}"
        if self.epsilon_needed is None:
            return f"{wanted} for parties: give a utility to see which epsilon it needs"
        if self.epsilon_needed == float("inf"):
            return f"{wanted} is out of reach at any epsilon with this utility and model"
        if self.expected_auc is None:
            return f"{wanted} needs epsilon = {self.epsilon_needed:.3g} or more, where each releases on its own"
        return f"{wanted} is expected at epsilon = {self.epsilon_needed:.3g}"


def _size(number: int) -> str:
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{number / 1e3:.3g} kB"


_semivalues = semivalues  # the argument of Plan.value shadows the function
