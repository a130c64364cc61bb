"""Which method of valuing a run uses, and every other setting that was left open."""

from __future__ import annotations

from dataclasses import replace

from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method, method_named
from dpvalue.methods.refit import Refit
from dpvalue.methods.steps import Steps
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.situation import Situation

_UNNAMED = ("auto", Steps.name)


def choose(at: Situation, rehearsal: Rehearsal | None = None) -> Choice:
    """Decide everything that the settings leave open.

    Formal guarantee: reads the public set, the settings and the parties' public sizes only.
    """
    method = method_of(at)
    choice = method.choose(at, rehearsal)
    if method is Steps and at.settings.may_refit and at.has_sets:
        return replace(choice, lacking=Refit.lacking(at))
    return choice


def method_of(at: Situation) -> type[Method]:
    """Return the method that settings ask for; raises where it cannot be used here.

    "auto" is retraining for data sets as parties, where nothing of a release was settled otherwise; else steps.
    """
    named = at.settings.game
    if named in _UNNAMED:
        retrains = at.settings.may_refit and at.has_sets and not Refit.lacking(at)
        return Refit if retrains else Steps
    method = method_named(named)
    missing = method.lacking(at)
    if missing:
        raise DpvalueError(f"game={named!r} {missing}")
    return method
