"""Choose the method of a run, and all other settings that are open."""

from __future__ import annotations

from dataclasses import replace

from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method, method_named
from dpvalue.methods.refit import Refit
from dpvalue.methods.steps import Steps
from dpvalue.methods.trees import Trees
from dpvalue.models import TREES
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import Settings
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
    settings = situation.settings
    if settings.model != TREES and settings.game in _UNNAMED:
        retrains = settings.may_refit and situation.has_sets and not Refit.unmet_requirement(situation)
        return Refit if retrains else Steps
    method = method_of_settings(settings)
    reason = method.unmet_requirement(situation)
    if reason:
        name = f"model={TREES!r}" if method is Trees else f"game={settings.game!r}"
        raise DpvalueError(f"{name} {reason}")
    return method


def method_of_settings(settings: Settings) -> type[Method]:
    """Return the method that settings name, with nothing known of the data; "auto" is steps."""
    if settings.model == TREES:
        return Trees
    return Steps if settings.game == "auto" else method_named(settings.game)
