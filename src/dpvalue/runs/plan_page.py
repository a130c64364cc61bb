"""The plan of a run: its numbers, and the page that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dpvalue.data.parties import as_parties
from dpvalue.detection import efficiency, is_useful
from dpvalue.display import byte_size, counted, html_lines
from dpvalue.errors import DpvalueError
from dpvalue.games.semivalues import Semivalue, semivalues
from dpvalue.planning.situation import Agreement, Expectation
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.progress import Progress, reporting
from dpvalue.protocol.job import Job
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.costs import Costs
from dpvalue.runs.run import PreparedRun, release_prepared, value_prepared
from dpvalue.values.result import Result
from dpvalue.values.table import Table

CANNOT_WORK, CAN_WORK = 0.6, 0.7

TOO_VAGUE = 0.05  # a standard error of the expected AUC above which public rows are too few to tell


@dataclass(frozen=True)
class Sizes:
    """The number of parties, and the protected units and records of a typical party (medians)."""

    parties: int
    units: int
    records: int


@dataclass(frozen=True)
class Bounds:
    """What the budget allows before any setting is chosen.

    Attributes:
        gaussian: the guarantee of Gaussian noise at this budget; None where budget or schedule rule it out.
        laplace: the same for Laplace noise, of one release of one number.
        ceiling: the largest expected AUC for detecting corrupted units at this epsilon, if each unit releases on its
            own. A trusted curator who mixes units before adding noise could exceed it.
        gaussian_ceiling: the same for Gaussian releases.
        laplace_ceiling: the same for one Laplace release of one number per unit; None for persons in several parties.
    """

    gaussian: Guarantee | None
    laplace: Guarantee | None
    ceiling: float
    gaussian_ceiling: float | None
    laplace_ceiling: float | None


@dataclass(frozen=True)
class TargetAUC:
    """A target AUC, and the epsilon at which it is expected; infinite if out of reach.

    Without a utility, it is the epsilon below which the ceiling rules the AUC out; None for records and persons.
    """

    auc: float
    epsilon: float | None


@dataclass(frozen=True)
class Plan:
    """What a run would spend, and how good its values are expected to be; str() of it is a report.

    Attributes:
        privacy: the budget.
        sizes: how many parties, and how large.
        schedule: when parties release.
        guarantee: the guarantee of the run; None while the mechanism is open, as choosing it takes a utility.
        table_noise: noise scale / sensitivity of a party's final row; None while the mechanism is open.
        limits: what the budget allows, by mechanism.
        projection: the directions of the releases; None: all, or not yet chosen, as that takes a utility.
        expected: how well corrupted parties (a wrong label; of a party of many records, half of its labels) are
            expected to be found, by rehearsal on the utility's rows, with the standard error: what other public rows,
            as many, might have said. Of the refit game: how well its values are expected to agree with retraining.
            None without a utility.
        target_auc: the AUC that was asked for, if any.
        costs: memory, from public sizes; and time, measured on the utility's rows where `parties` was a number.
        advice: whether the budget can work, and what would.
        prepared: what was chosen, with a utility; `release` and `value` go on from it.

    Example:
        >>> parties = dpv.Parties(*train, groups=sites)  # names as in the example of `dpvalue.Result`
        >>> plan = dpv.plan(parties, test, privacy=privacy)
        >>> plan.sizes.parties, plan.guarantee.mechanism, plan.cannot_work
        (4, 'Gaussian', False)
    """

    privacy: Privacy
    sizes: Sizes
    schedule: Schedule
    guarantee: Guarantee | None
    table_noise: float | None
    limits: Bounds
    projection: Projection | None
    expected: Expectation | Agreement | None
    target_auc: TargetAUC | None
    costs: Costs
    advice: str = ""
    prepared: PreparedRun | None = field(default=None, repr=False, compare=False)

    def release(self, parties: Any, *, progress: bool | Progress = True, **data: Any) -> Table:
        """Return the private table of these parties' releases, made as planned.

        Formal guarantee: as `dpvalue.release`.

        Args:
            parties: as in `dpvalue.value`; they must have the numbers of rows that were planned for.
            progress: show a bar on a terminal; or a callable (stage, done, total).
            **data: target, groups, persons, as in `dpvalue.value`.

        Returns:
            the table.

        Raises:
            DpvalueError: parties of other sizes than planned for, or a plan without a utility.

        Example:
            >>> plan.release(parties, progress=False).n  # names as in the example of `dpvalue.Plan`
            4
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
        """Return what each party's data is worth, released and valued as planned; as `dpvalue.value` and `release`.

        Args:
            parties: as in `release`.
            semivalues: as in `dpvalue.value`.
            progress: as in `release`.
            **data: target, groups, persons, as in `dpvalue.value`.

        Returns:
            the values.

        Raises:
            DpvalueError: as `release`.

        Example:
            >>> len(plan.value(parties, progress=False))  # names as in the example of `dpvalue.Plan`
            4
        """
        with reporting(progress) as tell:
            return value_prepared(self._prepared(), as_parties(parties, **data), _semivalues(semivalues), tell)

    def job(self, target: str | None = None) -> Job:
        """Return what this plan asks of parties, to be answered at home; `target` is the label's column in files.

        Formal guarantee: a function of the public set, the settings and the parties' sizes.

        Args:
            target: the name of the label column in the parties' files.

        Returns:
            the job.

        Raises:
            DpvalueError: a plan without a utility.

        Example:
            >>> plan.job().rounds  # `plan` as in the example of `dpvalue.Plan`
            1
        """
        return self._prepared().job(target=target)

    def _prepared(self) -> PreparedRun:
        if self.prepared is None:
            raise DpvalueError("utility must be given to dpvalue.plan: without it the plan has made no choices")
        return self.prepared

    @property
    def epsilon(self) -> float:
        """What is really spent; differs from privacy.epsilon only for accounting "poisson"."""
        return (
            self.privacy.epsilon if self.guarantee is None or self.guarantee.epsilon is None else self.guarantee.epsilon
        )

    @property
    def expected_auc(self) -> float | None:
        """The AUC that is expected; None without a utility, and for the refit game."""
        return self.expected.auc if isinstance(self.expected, Expectation) else None

    @property
    def counted(self) -> str:
        """What a party's numbers count: "record" or "person"."""
        return "person" if self.privacy.unit == "person" else "record"

    @property
    def epsilon_needed(self) -> float | None:
        """The epsilon that the target AUC needs; None without a target, or if it is unknown."""
        return None if self.target_auc is None else self.target_auc.epsilon

    @property
    def efficiency(self) -> float | None:
        """(expected AUC - 0.5) / (ceiling - 0.5), for parties protected as a whole."""
        if self.expected_auc is None or self.privacy.unit != "party":
            return None
        return efficiency(self.expected_auc, self.epsilon, self.privacy.neighbours)

    @property
    def too_few(self) -> bool:
        """Whether the public rows are too few to tell what to expect: the standard error is above 0.05."""
        return isinstance(self.expected, Expectation) and self.expected.error > TOO_VAGUE

    @property
    def cannot_work(self) -> bool:
        """Whether the budget cannot work, for sure: even two standard errors above what is expected is below 0.6.

        Of the refit game it is the rank correlation with retraining that is below 0.3, or no better than that of sizes.

        Of parties protected as a whole the ceiling may rule it out too, with or without a utility. Where the public
        rows are too few to tell, and the ceiling does not, it is False.
        """
        if self.privacy.unit == "party" and self.limits.ceiling < CANNOT_WORK:
            return True
        if isinstance(self.expected, Agreement):
            return self.expected.cannot_work
        if self.expected is None or self.too_few:
            return False
        return self.expected.best + 2 * self.expected.error < CANNOT_WORK

    def __repr__(self) -> str:
        unit, expected = self.privacy.unit, "no utility, so nothing was chosen"
        if isinstance(self.expected, Agreement):
            expected = f"expected rank correlation {self.expected.spearman:.2f} ± {self.expected.error:.2g}"
        elif self.expected is not None:
            expected = f"expected AUC {self.expected.auc:.3f} ± {self.expected.error:.2g}"
        inside = "" if unit == "party" else f" of {counted(self.sizes.units, unit)}"
        how = (
            ""
            if self.guarantee is None
            else f"{self.guarantee.mechanism}, {counted(self.guarantee.releases, 'release')}, "
        )
        warning = ", cannot work" if self.cannot_work else ""
        budget = f"epsilon = {self.epsilon:.4g} per {unit}"
        return f"Plan({self.sizes.parties} parties{inside}, {budget}, {how}{expected}{warning})"

    def _repr_html_(self) -> str:
        return html_lines("Plan", str(self))

    def __str__(self) -> str:
        unit, limits, sizes, costs = self.privacy.unit, self.limits, self.sizes, self.costs
        inside = "" if unit == "party" else f", {counted(sizes.units, unit)} each"
        lines = [f"parties: {sizes.parties}{inside}", f"releases: {self._releases()}"]
        if self.prepared is not None and self.prepared.choice.no_refit_reason:
            lines.append(f"game: steps, because the refit game {self.prepared.choice.no_refit_reason}")
        if self.privacy.accounting == "poisson":
            lines.append(f"claimed: epsilon = {self.privacy.epsilon:.4g} (poisson accounting); really spent:")
        lines.append(f"budget: epsilon = {self.epsilon:.4g} per {unit}, neighbours {self.privacy.neighbours}")
        other = None if self.guarantee is None or self.guarantee.law in ("laplace", "gaussian") else self.guarantee
        ceilings = (limits.laplace, limits.laplace_ceiling), (limits.gaussian, limits.gaussian_ceiling), (other, None)
        for possible, most in ceilings:
            if possible is not None:
                chosen = self.expected is not None and self.guarantee is not None and possible.law == self.guarantee.law
                kind = "pure" if possible.mu is None else f"mu = {possible.mu:.3g}"
                limit = f", AUC at most {most:.3f}" if most is not None and is_useful(most) else ""
                mark = " (chosen)" if chosen else ""
                lines.append(
                    f"  {possible.mechanism}{mark}: delta = {possible.delta:.3g}, {kind}, noise multiplier "
                    f"{possible.noise_multiplier:.4g}, attacker's advantage {possible.advantage:.2g}{limit}"
                )
        many = "parties" if unit == "party" else f"{unit}s"
        limit = f"at most {limits.ceiling:.3f} without a trusted curator"
        if not is_useful(limits.ceiling):
            limit = "no useful limit at this budget"
        lines.append(f"AUC for single corrupted {many}: {limit}")
        if isinstance(self.expected, Agreement):
            lines.append(self._agreement(self.expected))
        elif self.expected is not None:
            share = "" if self.efficiency is None else f", {self.efficiency:.0%} of the way from 0.5 to the ceiling"
            where = "all directions" if self.projection is None else str(self.projection)
            what = "half of their labels wrong" if sizes.records > 1 else "a wrong label"
            lines.append(
                f"expected AUC for parties with {what}: {self.expected.auc:.3f} ± {self.expected.error:.2g}{share}"
                f"; released: {where}"
            )
            if self.expected.far_off is not None:
                lines.append(
                    f"expected AUC for labels that are three standard deviations off: {self.expected.far_off:.3f}"
                )
        if self.target_auc is not None:
            lines.append(self._needed(self.target_auc))
        if costs.table_bytes is not None and costs.memory_bytes is not None:
            whole = "" if self.expected is None else " for the whole process"
            lines.append(f"memory: about {byte_size(costs.memory_bytes)}{whole}, table {byte_size(costs.table_bytes)}")
        if costs.seconds is not None:
            lines.append(
                f"time: about {costs.seconds[0]:.2g} s with errors and report (at most {costs.seconds[1]:.2g} s); "
                f"values alone about {costs.value_seconds:.2g} s"
            )
        return "\n".join([*lines, self.advice])

    def _agreement(self, expected: Agreement) -> str:
        text = (
            f"agreement with retraining: expected rank correlation {expected.spearman:.2f} ± {expected.error:.2g} "
            f"(standard error), {expected.sizes:.2f} for sizes alone; from a rehearsal{self._judged} on public rows; "
            f"released: {self._made_by('released', str(self.projection))}"
        )
        if expected.size_ratio < 0.95:
            text += (
                f"; too few public rows: rehearsal parties had {expected.size_ratio:.0%} of the real {self.counted}s, "
                "with the real noise"
            )
        return text

    @property
    def _judged(self) -> str:
        """The metric of the rehearsal, where values use another one."""
        is_loss = self.prepared is None or self.prepared.situation.public.metric.of_loss is not None
        return "" if is_loss else " with the loss as metric"

    def _releases(self) -> str:
        if self.guarantee is None:
            return f"{self.schedule.kind}; choosing a mechanism and directions needs a utility"
        if isinstance(self.expected, Agreement):
            return f"1 per party ({self._made_by('game_name', 'refit game')})"
        return f"{self.guarantee.releases} per party ({self.schedule})"

    def _made_by(self, attribute: str, default: str) -> str:
        return default if self.prepared is None else str(getattr(self.prepared.choice.method, attribute))

    def _needed(self, target: TargetAUC) -> str:
        auc = f"AUC {target.auc:g}"
        if target.epsilon is None:
            return f"{auc}: give a utility to see which epsilon it needs"
        if target.epsilon == float("inf"):
            return f"{auc} is out of reach at any epsilon with this utility and model"
        if self.expected is None:
            return f"{auc} needs epsilon = {target.epsilon:.3g} or more without a trusted curator"
        return f"{auc} is expected at epsilon = {target.epsilon:.3g}"


_semivalues = semivalues  # the argument of Plan.value shadows the function
