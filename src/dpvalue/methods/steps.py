"""Sums of steps, as in the paper: each party adds a gradient step; v(S) is the utility of the resulting model.

Directions, noise, clipping and learning rate are chosen by rehearsal on public rows. If releasing a loss has a larger
expected AUC than any direction, `methods.scores` is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from torch import Tensor

from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method, projection_header, projection_of, rehearsed_auc, require_no_tensors
from dpvalue.methods.few import FewGame, LineGame
from dpvalue.methods.scores import Scores, score_scale
from dpvalue.methods.sums import TableGame
from dpvalue.methods.table import ReleaseTable
from dpvalue.models import Model, project_model
from dpvalue.planning.folds import STEPS
from dpvalue.planning.learning_rate import PublicTuner, rate_on_line
from dpvalue.planning.rehearsal import Rehearsal, prefer
from dpvalue.planning.situation import Expectation, Situation, expect, options
from dpvalue.privacy.guarantees import guarantee
from dpvalue.privacy.mechanism import Scale, make_mechanism
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.projection import Projection, make_basis
from dpvalue.protocol.schedule import Schedule
from dpvalue.protocol.statistics import Gradient, Statistic


@dataclass(frozen=True, eq=False)
class Steps(Method):
    """Parties release gradients; v(S) is the utility of the model after the steps of S.

    Args:
        along: the projection that made the basis; None for all directions.
    """

    name: ClassVar[str] = "steps"
    game_name: ClassVar[str] = "steps"

    along: Projection | None

    @property
    def projection(self) -> Projection | None:
        """The directions of the releases."""
        return self.along

    @property
    def statistic(self) -> Statistic:
        """A unit's gradient."""
        return Gradient()

    @classmethod
    def choose(cls, situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Return all choices that the settings leave open.

        Formal guarantee: reads the public set, the settings and the parties' public sizes only.
        """
        settings = situation.settings
        release = _choose_release(situation, rehearsal)
        model, initial, basis, projection = situation.model, situation.initial, None, release.projection
        if projection is not None:
            rows = model.inputs(situation.public.x), model.targets(situation.public.y)
            basis = make_basis(projection, model, initial, *rows, settings.seed)
            model = project_model(model, basis.origin, basis.vectors)
            initial = model.initial(settings.seed)
        is_score = projection is not None and projection.is_score
        schedule_setting = settings.resolved_schedule
        if settings.schedule is None and is_score:
            schedule_setting = Schedule("replay")  # with and without privacy
        schedule = _schedule(schedule_setting, projection, 1 if basis is None else len(basis.points))
        releases, privacy = schedule.releases(settings.permutations), settings.privacy
        multiplier = 0.0 if privacy is None else privacy.noise_multiplier(releases, situation.n, release.law)
        mechanism = make_mechanism(
            privacy, release.clip, multiplier, law=release.law, rule=release.rule or "flat", scale=release.scale
        )
        choice = Choice(
            method=Scores(projection) if projection is not None and is_score else Steps(projection),
            model=model,
            initial=initial,
            basis=basis,
            schedule=schedule,
            releases=releases,
            mechanism=mechanism,
            learning_rate=1.0,  # scores move no model
            guarantee=guarantee(
                privacy,
                multiplier,
                releases,
                release.clip,
                settings.noise == "fast",
                release.law,
                settings.ledger_terms,
            ),
            expectation=release.expectation,
        )
        return choice if is_score else replace(choice, learning_rate=_choose_learning_rate(situation, choice))

    def expectation(self, situation: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
        """Return the expected AUC of detecting corrupted parties."""
        return rehearsed_auc(situation, choice, rehearsal)

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> TableGame:
        """Return the game of the table's rows as steps of a model."""
        walker = table.walker(engine)
        rows = table.rows.to(engine.torch_device, engine.torch_dtype)
        return sum_game(walker, Evaluator(public, walker.model, engine), rows)

    def stand_in_game(self, situation: Situation, choice: Choice, rows: Tensor) -> TableGame:
        """Return the game of stand-ins; the learning rate grows as the number of parties shrinks."""
        engine = situation.settings.engine
        rate = choice.learning_rate * situation.n / len(rows)
        return sum_game(
            Walker(choice.walk_model, choice.initial, rate, engine),
            Evaluator(situation.public, choice.walk_model, engine),
            rows,
        )

    def header(self) -> dict[str, Any]:
        """Return the projection for a file."""
        return projection_header(self.along)

    @classmethod
    def from_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return the method of a file."""
        require_no_tensors(cls.name, tensors)
        return cls(projection_of(header, basis))


def sum_game(walker: Walker, evaluate: Evaluator, rows: Tensor) -> TableGame:
    """Return the game of rows as steps; up to three numbers per party have a faster game."""
    if LineGame.suits(walker, evaluate):
        return LineGame(walker, evaluate, rows)
    return FewGame(walker, evaluate, rows) if FewGame.suits(walker, evaluate) else TableGame(walker, evaluate, rows)


@dataclass(frozen=True)
class _ReleaseOption:
    """Directions, law of noise and clipping of releases, and the expected AUC if rehearsed."""

    projection: Projection | None
    law: str
    scale: Scale
    clip: float | None
    rule: str | None
    expectation: Expectation | None = None


def _choose_release(situation: Situation, rehearsal: Rehearsal | None) -> _ReleaseOption:
    """The release of the settings; what they leave open is chosen by rehearsal on public rows."""
    settings, privacy = situation.settings, situation.settings.privacy
    clip = None if isinstance(settings.clip, str) else float(settings.clip)
    rule = None if settings.clip_rule == "auto" else settings.clip_rule
    if privacy is None:
        projection = _longest(settings.fixed_projection, situation.model)
        return _ReleaseOption(projection, "gaussian", score_scale(projection, situation), clip, rule)
    if settings.is_fixed and privacy.vector_law is not None:
        return _ReleaseOption(None, privacy.vector_law, Scale(), clip, rule)
    rehearsal = rehearsal or situation.rehearsal()
    best, elsewhere = prefer(options(situation, privacy, rehearsal), situation.model.size)
    return _ReleaseOption(best.projection, best.law, best.scale, best.clip, best.rule, expect(rehearsal, elsewhere))


def _choose_learning_rate(situation: Situation, choice: Choice) -> float:
    """The learning rate of the settings, or one chosen on public rows."""
    settings, own_gradients = situation.settings, choice.schedule.kind == "independent"
    if not isinstance(settings.learning_rate, str):
        return float(settings.learning_rate)
    model, initial, basis, mechanism = choice.walk_model, choice.initial, choice.basis, choice.mechanism
    if basis is not None and len(initial) == 1:
        mixed = 1.0 if own_gradients else float(np.linalg.norm(choice.schedule.table_weights(settings.permutations)))
        return rate_on_line(situation, model, initial, basis, mechanism, mixed)
    tuner = PublicTuner(
        model, initial, situation.public, situation.sizes, situation.units, settings.engine, settings.seed
    )
    return tuner.learning_rate(mechanism, own_gradients, choice.releases)


def _longest(projection: Projection | None, model: Model) -> Projection | None:
    """The projection with the longest training, where the length is open: without privacy there is no rehearsal."""
    if projection is not None and projection.leaves_open(model):
        return replace(projection, steps=STEPS[-1])
    return projection


def _schedule(schedule: Schedule, projection: Projection | None, points: int) -> Schedule:
    """The schedule; one round for a projection, unless the settings name rounds: a second costs more than it adds."""
    one_release = schedule.kind == "replay" and schedule.rounds in (None, 1)
    if projection is not None and projection.is_score and not one_release:
        raise DpvalueError(
            f"projection with source 'loss' is a score of one release: it needs schedule 'replay' with rounds = 1, got "
            f"{str(schedule)!r}"
        )
    if schedule.kind != "replay" or schedule.rounds is not None or projection is None:
        return schedule
    return replace(schedule, rounds=1, probes=schedule.probes or points)
