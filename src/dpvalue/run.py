"""One run: every setting decided from public things, then the releases, and the values made along the way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from dpvalue.encoding import Encoding, fit_encoding
from dpvalue.engine.contributions import Contributions
from dpvalue.engine.evaluator import Evaluator
from dpvalue.engine.interleaved import InterleavedReleases
from dpvalue.engine.rounds import RoundReleases
from dpvalue.engine.walks import Walker
from dpvalue.errors import DpvalueError
from dpvalue.estimates import Estimate, Estimator, Ints
from dpvalue.models import build_model, task_of
from dpvalue.parties import Parties
from dpvalue.privacy.budget import Guarantee, guarantee, warn_if_delta_is_large
from dpvalue.privacy.mechanism import mechanism
from dpvalue.privacy.noise import noise_source
from dpvalue.progress import Report
from dpvalue.semivalues import Floats, Semivalue
from dpvalue.settings import Settings
from dpvalue.streams import replay_seed
from dpvalue.table import Table
from dpvalue.tuning import PublicTuner
from dpvalue.utility import Utility

logger = logging.getLogger("dpvalue")


@dataclass(frozen=True)
class Run:
    """A run with every setting decided, before anything is released; made by `prepare`."""

    settings: Settings
    encoding: Encoding
    walker: Walker
    contributions: Contributions
    evaluate: Evaluator
    names: tuple[str | int, ...]
    guarantee: Guarantee

    def release(self, report: Report, kinds: tuple[Semivalue, ...] = ()) -> tuple[Table, dict[str, Estimate]]:
        """Make the releases; value `kinds` along the way, as the paper's schedules and `lagged` do.

        Formal guarantee: reads the parties' data only through `InterleavedReleases` or `RoundReleases`.
        """
        settings, schedule = self.settings, self.settings.schedule
        valued = settings.permutations - schedule.first_valued(settings.permutations)
        shared = valued if schedule.correlated else None
        estimators = {kind.name: Estimator(kind, self.contributions.n, shared) for kind in kinds}

        def add(orders: Ints, marginals: Floats) -> None:
            for estimator in estimators.values():
                estimator.add(orders, marginals)

        # Without privacy nothing is drawn: such a run does not need the package behind "secure".
        noise = noise_source(settings.noise if settings.privacy else "fast", settings.seed)
        if schedule.in_rounds:
            rounds, probes = schedule.shape(settings.permutations)
            releases = RoundReleases(self.walker, self.contributions, noise, settings.seed, rounds, probes)
            rows = releases.run(report, partial(self._value_round, add, probes) if kinds else None)
        else:
            walks = InterleavedReleases(
                self.walker, self.contributions, noise, settings.seed, schedule, settings.permutations
            )
            rows = walks.run(report, self.evaluate, add) if kinds else walks.run(report)
        return self._table(rows), {name: one.estimate for name, one in estimators.items()}

    def _value_round(
        self, add: Callable[[Ints, Floats], None], probes: int, number: int, table: Tensor, orders: Ints
    ) -> None:
        """Value the permutations of a round of `lagged` that lie after the burn-in, with the table it walks with."""
        first = self.settings.schedule.first_valued(self.settings.permutations)
        some = orders[max(first - number * probes, 0) :]
        if len(some):
            add(some, self.walker.marginals(self.evaluate, table, some))

    def _table(self, rows: Tensor) -> Table:
        weights = self.settings.schedule.table_weights(self.settings.permutations)
        return Table(
            rows=rows.cpu(),
            names=self.names,
            noise_std=self.contributions.release_std.numpy() * np.linalg.norm(weights),
            guarantee=self.guarantee,
            initial=self.walker.initial.cpu(),
            learning_rate=self.walker.learning_rate,
            model=self.settings.model,
            digest=self.walker.model.digest(),
            encoding=self.encoding,
            schedule=self.settings.schedule,
            permutations=self.settings.permutations,
            seed=replay_seed(self.settings.seed),
        )


def prepare(parties: Parties, utility: Utility, settings: Settings) -> Run:
    """Decide every setting from public things; of the parties only their number, names and sizes are used.

    The parties' rows are encoded last, and handed to nothing but `Contributions`.
    """
    privacy, schedule, engine = settings.privacy, settings.schedule, settings.engine
    dtype, device = engine.torch_dtype, engine.torch_device
    task = task_of(settings.model, utility.metric, float_labels=np.asarray(utility.y).dtype.kind == "f")
    encoding = fit_encoding(utility.X, utility.y, task, settings.preprocess, images=settings.model == "cnn")
    public = utility.encode(encoding, dtype, device)
    model = build_model(settings.model, task, public.x[0], encoding.outputs, dtype, device)
    if schedule.fresh_start and model.zero_start:
        raise DpvalueError(f"fresh_start needs a model that starts at random; {model.kind!r} starts at zero")
    engine.require_room(parties.n, model.size)
    initial = model.initial(settings.seed)

    tuner = PublicTuner(model, initial, public, parties.sizes, engine, settings.seed)
    clip = None if isinstance(settings.clip, str) else float(settings.clip)
    multiplier = 0.0
    if privacy is not None:
        warn_if_delta_is_large(privacy, parties.n if privacy.unit == "party" else int(parties.sizes.sum()))
        clip = tuner.clip(privacy.unit) if clip is None else clip
        multiplier = privacy.noise_multiplier(settings.releases, parties.n)
    door = mechanism(privacy, clip, multiplier)
    if isinstance(settings.learning_rate, str):
        rate = tuner.learning_rate(door, schedule.kind == "independent", settings.releases)
    else:
        rate = float(settings.learning_rate)
    spent = guarantee(privacy, multiplier, settings.releases, clip, fast=settings.noise == "fast")
    logger.info("schedule %s, clip %s, learning rate %.4g. %s", schedule, clip, rate, spent)

    rows = parties.encode(encoding, dtype, device)
    contributions = Contributions(model, rows, door, engine)
    walker, evaluate = Walker(model, initial, rate, engine), Evaluator(public, model, engine)
    return Run(settings, encoding, walker, contributions, evaluate, parties.names, spent)
