"""Choose the method of a run, and all other settings that are open."""

from __future__ import annotations

from dataclasses import replace

from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method, method_named
from dpvalue.methods.refit import Refit
from dpvalue.methods.steps import Steps
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.situation import Situation

_UNNAMED = ("auto", Steps.name)


def choose(situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
    """Return all choices that the settings leave open.

    Formal guarantee: reads the public set, the settings and the parties' public sizes only.
    """
    method = method_of(situation)
    choice = method.choose(situation, rehearsal)
    if method is Steps and situation.settings.may_refit and situation.has_sets:
        return replace(choice, no_refit_reason=Refit.unmet_requirement(situation))
    return choice


def method_of(situation: Situation) -> type[Method]:
    """Return the method that the settings name; raise if the situation does not meet its requirement.

    "auto" means retraining for data sets as parties, if no setting of the release excludes it; otherwise steps.
    """
    game = situation.settings.game
    if game in _UNNAMED:
        retrains = situation.settings.may_refit and situation.has_sets and not Refit.unmet_requirement(situation)
        return Refit if retrains else Steps
    method = method_named(game)
    reason = method.unmet_requirement(situation)
    if reason:
        raise DpvalueError(f"game={game!r} {reason}")
    return method
