"""Sums of steps, the paper's way: each party adds a step to a model; a coalition is worth the model that it reaches.

Directions, noise, clipping and the learning rate are chosen by rehearsal on public rows. Where the best way to release
one number is no direction but a loss, what is chosen is a score (`methods.scores`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from torch import Tensor

from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method, expected_auc, projection_header, projection_of, require_no_tensors
from dpvalue.methods.few import FewGame, LineGame
from dpvalue.methods.scores import Scores, zero_of_scores
from dpvalue.methods.sums import TableGame
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

if TYPE_CHECKING:
    from dpvalue.runs.table import Table


@dataclass(frozen=True, eq=False)
class Steps(Method):
    """Gradients are released; v(S) is the utility of the model that the rows of S lead to.

    Args:
        along: what the basis was made by; None for all directions.
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
    def choose(cls, at: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Decide everything that the settings leave open.

        Formal guarantee: reads the public set, the settings and the parties' public sizes only.
        """
        settings = at.settings
        way = _best_way(at, rehearsal)
        model, initial, basis, projection = at.model, at.initial, None, way.projection
        if projection is not None:
            rows = model.inputs(at.public.x), model.targets(at.public.y)
            basis = make_basis(projection, model, initial, *rows, settings.seed)
            model = project_model(model, basis.origin, basis.vectors)
            initial = model.initial(settings.seed)
        is_score = projection is not None and projection.is_score
        asked = settings.resolved_schedule
        if settings.schedule is None and is_score:
            asked = Schedule("replay")  # also without privacy
        schedule = _schedule(asked, projection, 1 if basis is None else len(basis.points))
        releases, privacy = schedule.releases(settings.permutations), settings.privacy
        multiplier = 0.0 if privacy is None else privacy.noise_multiplier(releases, at.n, way.law)
        mechanism = make_mechanism(privacy, way.clip, multiplier, law=way.law, rule=way.rule or "flat", scale=way.scale)
        chosen = Choice(
            method=Scores(projection) if projection is not None and is_score else Steps(projection),
            model=model,
            initial=initial,
            basis=basis,
            schedule=schedule,
            releases=releases,
            mechanism=mechanism,
            learning_rate=1.0,  # scores are added up, and move no model
            spent=guarantee(
                privacy, multiplier, releases, way.clip, settings.noise == "fast", way.law, settings.ledger_terms
            ),
            expected=way.expected,
        )
        return chosen if is_score else replace(chosen, learning_rate=_rate(at, chosen))

    def expected(self, at: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Expectation | None:
        """Return how well corrupted parties are expected to be found."""
        return expected_auc(at, choice, rehearsal)

    def game(self, table: Table, public: PublicSet, engine: Engine) -> TableGame:
        """Return the game of the table's rows as steps of a model."""
        walker = table.walker(engine)
        rows = table.rows.to(engine.torch_device, engine.torch_dtype)
        return sum_game(walker, Evaluator(public, walker.model, engine), rows)

    def stand_ins(self, at: Situation, choice: Choice, rows: Tensor) -> TableGame:
        """Return the game of stand-ins: fewer parties walk as far with larger steps."""
        engine = at.settings.engine
        rate = choice.learning_rate * at.n / len(rows)
        return sum_game(
            Walker(choice.walked, choice.initial, rate, engine), Evaluator(at.public, choice.walked, engine), rows
        )

    def header(self) -> dict[str, Any]:
        """Return the projection for a file."""
        return projection_header(self.along)

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return what a file describes."""
        require_no_tensors(cls.name, tensors)
        return cls(projection_of(header, basis))


def sum_game(walker: Walker, evaluate: Evaluator, rows: Tensor) -> TableGame:
    """Return the game of rows as steps: of few numbers a party, one that knows its values sooner."""
    if LineGame.suits(walker, evaluate):
        return LineGame(walker, evaluate, rows)
    return FewGame(walker, evaluate, rows) if FewGame.suits(walker, evaluate) else TableGame(walker, evaluate, rows)


@dataclass(frozen=True)
class _ReleaseOption:
    """How releases are made: directions, law of noise and clipping, and what is expected of it where it was tried."""

    projection: Projection | None
    law: str
    scale: Scale
    clip: float | None
    rule: str | None
    expected: Expectation | None = None


def _best_way(at: Situation, rehearsal: Rehearsal | None) -> _ReleaseOption:
    """The way to release that settings ask for; what they leave open is chosen by rehearsal on public rows."""
    settings, privacy = at.settings, at.settings.privacy
    clip = None if isinstance(settings.clip, str) else float(settings.clip)
    rule = None if settings.clip_rule == "auto" else settings.clip_rule
    if privacy is None:
        projection = _longest(settings.fixed_projection, at.model)
        return _ReleaseOption(projection, "gaussian", zero_of_scores(projection, at), clip, rule)
    if settings.is_fixed and privacy.vector_law is not None:
        return _ReleaseOption(None, privacy.vector_law, Scale(), clip, rule)
    rehearsal = rehearsal or at.rehearsal()
    best, elsewhere = prefer(options(at, privacy, rehearsal), at.model.size)
    return _ReleaseOption(best.projection, best.law, best.scale, best.clip, best.rule, expect(rehearsal, elsewhere))


def _rate(at: Situation, chosen: Choice) -> float:
    """The learning rate: as given, or from public rows."""
    settings, own = at.settings, chosen.schedule.kind == "independent"
    if not isinstance(settings.learning_rate, str):
        return float(settings.learning_rate)
    model, initial, basis, mechanism = chosen.walked, chosen.initial, chosen.basis, chosen.mechanism
    if basis is not None and len(initial) == 1:
        mixed = 1.0 if own else float(np.linalg.norm(chosen.schedule.table_weights(settings.permutations)))
        return rate_on_line(at, model, initial, basis, mechanism, mixed)
    tuner = PublicTuner(model, initial, at.public, at.sizes, at.units, settings.engine, settings.seed)
    return tuner.learning_rate(mechanism, own, chosen.releases)


def _longest(projection: Projection | None, model: Model) -> Projection | None:
    """Without privacy there is no budget to choose for: a path goes to its end."""
    if projection is not None and projection.leaves_open(model):
        return replace(projection, steps=STEPS[-1])
    return projection


def _schedule(schedule: Schedule, projection: Projection | None, points: int) -> Schedule:
    """One round for few directions, where a second would cost more than it shows, unless rounds were asked for."""
    one_release = schedule.kind == "replay" and schedule.rounds in (None, 1)
    if projection is not None and projection.is_score and not one_release:
        raise DpvalueError(
            f"projection with source 'loss' is a score of one release: it needs schedule 'replay' with rounds = 1, got "
            f"{str(schedule)!r}"
        )
    if schedule.kind != "replay" or schedule.rounds is not None or projection is None:
        return schedule
    return replace(schedule, rounds=1, probes=schedule.probes or points)
