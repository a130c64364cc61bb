"""One local run: all choices from public inputs, then the releases, and the values made along the way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.checks import require_other_rows
from dpvalue.data.encoding import Encoding
from dpvalue.data.parties import Parties
from dpvalue.data.utility import PublicSet, Utility
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.errors import DpvalueError
from dpvalue.games.estimates import Estimate, Estimator, warn_if_not_finite
from dpvalue.games.semivalues import Semivalue
from dpvalue.methods.base import Choice
from dpvalue.methods.choosing import choose
from dpvalue.methods.sums import TableGame
from dpvalue.models import build_model
from dpvalue.party.contributions import Contributions, Responder, Witness, no_witness
from dpvalue.party.interleaved import InterleavedReleases, runs_compiled
from dpvalue.party.party import PrivacyBoundary
from dpvalue.planning.settings import Settings
from dpvalue.planning.situation import Situation
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.privacy.guarantees import Guarantee, warn_of_large_delta
from dpvalue.privacy.holders import ROWS, Holding
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.noise import NoiseSource, noise_source
from dpvalue.progress import Progress
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import AtPoints, Query
from dpvalue.protocol.projection import Projection
from dpvalue.runs.charging import Charging, make_charging
from dpvalue.runs.rounds import Rounds, make_job, make_table
from dpvalue.values.result import Result
from dpvalue.values.table import Table

logger = logging.getLogger("dpvalue")


class CombinedReleases(NamedTuple):
    """What all parties released, combined per party (n, size); and values that were made while they did, by name."""

    rows: Tensor
    estimates: dict[str, Estimate]


@dataclass(frozen=True)
class Run:
    """A run with its parties, before any release; made by `PreparedRun.run`.

    `sizes` are the parties' public numbers of records, or of persons for unit "person". `witness` receives every
    release, as an observer of all messages does.
    """

    settings: Settings
    choice: Choice
    encoding: Encoding
    walker: Walker
    contributions: Contributions
    public: PublicSet
    names: tuple[str | int, ...]
    sizes: Ints
    holding: Holding
    noise: NoiseSource
    charging: Charging | None = None
    witness: Witness = no_witness

    def release(self, progress: Progress, kinds: tuple[Semivalue, ...] = ()) -> tuple[Table, dict[str, Estimate]]:
        """Make the releases and their table; value `kinds` along the way, for the paper's schedules and `lagged`."""
        answers = self.answer(progress, kinds)
        return self.combine(answers), answers.estimates

    def answer(self, progress: Progress, kinds: tuple[Semivalue, ...] = ()) -> CombinedReleases:
        """Return what all parties answer to all questions, combined as it comes; and `kinds`, valued along the way.

        Formal guarantee: reads the parties' data only through `InterleavedReleases` or `Answering.answer`.
        """
        settings, schedule = self.settings, self.choice.schedule
        valued = settings.permutations - schedule.first_valued(settings.permutations)
        shared = valued if schedule.correlated else None
        estimators = {kind.name: Estimator(kind, self.contributions.n, shared) for kind in kinds}

        def add(orders: Ints, marginals: Floats) -> None:
            for estimator in estimators.values():
                estimator.add(orders, marginals)

        if schedule.in_rounds:
            rounds, probes = schedule.shape(settings.permutations)
            for count in {1, probes if rounds > 1 else 1}:
                self.contributions.grid(count)  # raises for sums that would not be exact, before anything is charged
            if self.charging is not None:
                self.charging.keeper.require_room(rounds, self.charging.charge)
            asking = Rounds(
                walker=self.walker,
                parties=self.contributions.n,
                seed=settings.seed,
                rounds=rounds,
                probes=probes,
                start=AtPoints(self.choice.points, self.choice.shares),
                ask=self.ask,
            )
            rows = asking.run(progress, partial(self._value_round, add, probes) if kinds else None)
            return CombinedReleases(rows, {name: estimator.estimate for name, estimator in estimators.items()})

        def walk() -> tuple[Tensor, dict[str, Estimate]]:
            rows = self.walks().run(progress, self.evaluate, add) if kinds else self.walks().run(progress)
            return rows, {name: estimator.estimate for name, estimator in estimators.items()}

        if self.charging is None:
            return CombinedReleases(*walk())
        weights = {name: estimator.weights for name, estimator in estimators.items()}
        return CombinedReleases(*self.charging.walks(self.choice.releases, self.public, walk, weights))

    @cached_property
    def evaluate(self) -> Evaluator:
        """The utility of models, for methods that walk."""
        return Evaluator(self.public, self.choice.walk_model, self.settings.engine)

    @property
    def answering(self) -> Responder:
        """The mechanism of all parties in this process, which answers queries together."""
        return Responder(self.contributions, self.noise, np.arange(self.contributions.n), self.walker.initial)

    def ask(self, number: int, state: Tensor, query: Query) -> Tensor:
        """Return the releases of a round (n, size): new ones, or those that a keeper stores (`rounds.Ask`)."""
        make = partial(self.answering.answer, number, query)
        release = make() if self.charging is None else self.charging.round(number, state, make)
        self.witness(torch.arange(len(release), device=release.device), release)
        return release

    def walks(self) -> InterleavedReleases:
        """Return the walks of a schedule of the paper, which release while they walk."""
        schedule, permutations = self.choice.schedule, self.settings.permutations
        initial, n = self.walker.initial, self.contributions.n
        return InterleavedReleases(
            walker=self.walker,
            contributions=self.contributions,
            noise=self.noise,
            seed=self.settings.seed,
            schedule=schedule,
            permutations=permutations,
            witness=self.witness,
            compiled=runs_compiled(self.contributions, schedule, permutations, n, initial),
        )

    def with_keeper(self, keeper: Ledger | Checkpoint) -> Run:
        """Return the run with releases stored by a keeper; raise if a ledger protects other units."""
        privacy = self.settings.privacy
        assert privacy is not None
        if isinstance(keeper, Ledger):
            keeper.require_holding(self.holding, privacy)
        facts = {"names": self.names, "permutations": self.settings.permutations, "seed": self.settings.seed}
        charging = make_charging(keeper, self.choice, privacy, self.contributions, self.encoding, self.public, facts)
        return replace(self, charging=charging)

    def _value_round(
        self, add: Callable[[Ints, Floats], None], probes: int, number: int, table: Tensor, orders: Ints
    ) -> None:
        """Value the permutations of a `lagged` round after the burn-in, with the table of the round."""
        first = self.choice.schedule.first_valued(self.settings.permutations)
        valued = orders[max(first - number * probes, 0) :]
        if len(valued):
            add(valued, TableGame(self.walker, self.evaluate, table).walk(valued))

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee, with the day of a stored release that was returned again."""
        returned = {} if self.charging is None else self.charging.keeper.repeat_dates
        guarantee, day = self.choice.guarantee, min(returned.values(), default="")[:10]
        return replace(guarantee, charged=replace(guarantee.charged, returned=day)) if day else guarantee

    def combine(self, answers: CombinedReleases) -> Table:
        """Return the table of the combined releases, with all that reading it needs."""
        weights = self.choice.schedule.table_weights(self.settings.permutations)
        noise = self.contributions.read_std.numpy() * np.linalg.norm(weights)
        choice = replace(self.choice, guarantee=self.guarantee)
        return make_table(self.settings, choice, self.encoding, answers.rows.cpu(), self.names, noise, self.sizes)


@dataclass(frozen=True)
class PreparedRun:
    """The choices of a run from public inputs, before a private row is read; made by `prepare`."""

    situation: Situation
    encoding: Encoding
    choice: Choice
    utility: Utility

    @property
    def sizes(self) -> tuple[Ints, Ints]:
        """The public numbers of rows and of protected units of each party."""
        return self.situation.sizes, self.situation.units

    def job(self, names: Sequence[str | int] = (), target: str | None = None, recipe: str = "") -> Job:
        """Return the job of the run; arguments as in `make_job`."""
        return make_job(self.situation, self.encoding, self.choice, names, target, recipe)

    def with_checkpoint(self, checkpoint: Path) -> PreparedRun:
        """Return the run with a checkpoint folder that stores releases."""
        return replace(
            self, situation=replace(self.situation, settings=replace(self.situation.settings, checkpoint=checkpoint))
        )

    def run(self, parties: Parties) -> Run:
        """Return the run for these parties; their rows go to the party's side only."""
        require_other_rows(parties, self.utility)
        settings, public = self.situation.settings, self.situation.public
        if any(not np.array_equal(*pair) for pair in zip(parties.counts(settings.privacy), self.sizes, strict=True)):
            raise DpvalueError("parties must have the sizes that the run was planned for")
        protected = "rows" if parties.holding.parties == ROWS else "named parties"
        guarantee = self.choice.guarantee
        charged = replace(guarantee.charged, parties=protected, person=parties.person_column)
        choice = replace(self.choice, guarantee=replace(guarantee, charged=charged) if guarantee.private else guarantee)
        privacy, engine = settings.privacy, settings.engine
        is_secure = privacy is not None and settings.noise == "secure"
        boundary = PrivacyBoundary(
            choice.unit_numbers, choice.mechanism, self.encoding, privacy, engine.torch_dtype, is_secure
        )
        contributions = boundary.enclose(parties, engine)
        run = Run(
            settings=settings,
            choice=choice,
            encoding=self.encoding,
            walker=Walker(choice.walk_model, choice.initial, choice.learning_rate, engine),
            contributions=contributions,
            public=public,
            names=parties.names,
            sizes=self.situation.sizes,
            holding=parties.holding,
            # A run without privacy draws no noise, and does not need the package behind "secure".
            noise=noise_source(settings.noise if privacy else "fast", settings.seed),
        )
        keeper = settings.keeper
        return run if keeper is None else run.with_keeper(keeper)


def prepare(utility: Utility, settings: Settings, sizes: Ints, units: Ints) -> PreparedRun:
    """Return the choices of a run from public inputs: the utility, and the parties' numbers of rows and units."""
    situation, encoding = open_setting(utility, settings, sizes, units)
    return PreparedRun(situation, encoding, choose(situation), utility)


def run_for(parties: Parties, utility: Utility, settings: Settings) -> Run:
    """Return the run for parties; its choices use only their names and sizes."""
    prepared = prepare(utility, settings, *parties.counts(settings.privacy))
    announce(prepared)
    return prepared.run(parties)


def announce(prepared: PreparedRun) -> None:
    """Log the choices of a run before its releases; warn of a large delta, and raise if the run cannot work."""
    choice, situation = prepared.choice, prepared.situation
    warn_of_large_delta(choice.guarantee, int(situation.units.sum()))
    situation.settings.engine.require_room(situation.n, choice.model.size)
    if not situation.public.metric.by_name:
        Evaluator(situation.public, situation.model, situation.settings.engine)(
            situation.initial[None]
        )  # a callable that fails spends nothing here
    logger.info(
        "schedule %s, projection %s, clip %s, learning rate %.4g. %s",
        choice.schedule, choice.projection, choice.mechanism.clip, choice.learning_rate, choice.guarantee,
    )  # fmt: skip


def release_prepared(prepared: PreparedRun, parties: Parties, progress: Progress) -> Table:
    """Make the releases of a prepared run."""
    announce(prepared)
    with prepared.situation.settings.engine.threading():
        return prepared.run(parties).release(progress)[0]


def value_prepared(prepared: PreparedRun, parties: Parties, kinds: tuple[Semivalue, ...], progress: Progress) -> Result:
    """Make the releases of a prepared run, and value them."""
    announce(prepared)
    with prepared.situation.settings.engine.threading():
        return value_run(prepared.run(parties), prepared.utility, kinds, progress)


def value_run(run: Run, utility: Utility, kinds: tuple[Semivalue, ...], progress: Progress) -> Result:
    """Make the releases of a run and value them: along the way or afterwards, by its schedule."""
    answers = run.answer(progress, () if run.choice.schedule.kind == "replay" else kinds)
    return value_answers(run.combine(answers), answers.estimates, run.settings, utility, kinds, progress)


def value_answers(
    table: Table,
    estimates: dict[str, Estimate],
    settings: Settings,
    utility: Utility,
    kinds: tuple[Semivalue, ...],
    progress: Progress,
) -> Result:
    """Return the values of a run's table: from the table, or those made along the way, as its schedule says."""
    schedule, permutations, engine = table.schedule, settings.permutations, settings.engine
    if schedule.kind == "replay":
        return table.value(
            utility,
            semivalues=kinds,
            permutations=permutations,
            tolerance=schedule.tolerance,
            engine=engine,
            progress=progress,
        )
    warn_if_not_finite(estimates)
    valued = permutations - schedule.first_valued(permutations)
    return Result(table, kinds, estimates, valued, None, utility, engine)


def open_setting(utility: Utility, settings: Settings, sizes: Ints, units: Ints) -> tuple[Situation, Encoding]:
    """Return the public inputs of all choices, and the encoding of the public set."""
    dtype, device = settings.engine.torch_dtype, settings.engine.torch_device
    encoding = utility.encoding(settings.model, settings.preprocess, settings.classes)
    public = utility.encode(encoding, dtype, device)
    model = build_model(settings.model, encoding.task, public.x[0], encoding.outputs, dtype, device)
    if settings.resolved_schedule.fresh_start:
        if model.zero_start:
            raise DpvalueError(f"fresh_start needs a model that starts at random; {model.kind!r} starts at zero")
        if isinstance(settings.projection, Projection):
            raise DpvalueError("fresh_start needs projection=None: a basis belongs to one initial model")
    return Situation(model, model.initial(settings.seed), public, sizes, units, settings), encoding
