"""The public entry: release once (`release`), or release and value in one call (`value`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpvalue.data.columns import is_frame
from dpvalue.data.parties import Parties, as_parties
from dpvalue.data.utility import Utility, as_utility
from dpvalue.engine.base import Engine
from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError
from dpvalue.models import ModelFactory
from dpvalue.planning.projection import Projection
from dpvalue.planning.settings import Settings
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.ledger import Ledger
from dpvalue.progress import Progress, reporting
from dpvalue.releasing.checkpoint import Checkpoint
from dpvalue.releasing.schedule import Schedule, as_schedule
from dpvalue.valuation.estimates import warn_if_not_finite
from dpvalue.valuation.result import Result
from dpvalue.valuation.run import Run, prepare
from dpvalue.valuation.semivalues import Semivalue, semivalues
from dpvalue.valuation.table import Table


def value(
    parties: Any,
    utility: Any,
    *,
    model: str | ModelFactory = "logistic",
    semivalues: str | Semivalue | tuple[str | Semivalue, ...] = ("shapley",),
    privacy: Privacy | None = Privacy(),  # noqa: B008  (immutable)
    schedule: str | Schedule | None = None,
    permutations: int = 1000,
    projection: Projection | str | None = "auto",
    clip: float | str = "auto",
    clip_rule: str = "auto",
    learning_rate: float | str = "auto",
    noise: str = "secure",
    preprocess: Any = None,
    classes: Sequence[Any] | None = None,
    target: str | None = None,
    groups: Any = None,
    persons: Any = None,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    engine: Engine = Local(),  # noqa: B008  (immutable)
    seed: int = 0,
    progress: bool | Progress = True,
) -> Result:
    """Return what each party's data is worth to the model, private by default.

    Formal guarantee: with `privacy`, everything returned is a function of public things and of the parties' releases,
    which are (epsilon, delta)-DP as `Privacy` says; without it (None) nothing is protected, and the result says so.
    Protected are the parties' rows. Public are the utility's rows, all settings, the parties' names and their sizes.

    Args:
        parties: `Parties`, (X, y), a DataFrame with `target`, or a torch Dataset; private.
        utility: `Utility`, (X_test, y_test), a DataFrame with `target`, or a torch Dataset; public.
        model: "logistic", "linear", "cnn", or a callable that returns an `nn.Module`.
        semivalues: "shapley", "banzhaf", "beta(a,b)", "loo" or `Semivalue`s; one walk serves all.
        privacy: the budget; None for no differential privacy.
        schedule: a name or a `Schedule`; None is "replay" with privacy, own gradients ("independent") without.
        permutations: k of the paper's schedules; the most that a replay walks.
        projection: which public directions a release is made in: a `Projection`, None for all, or "auto": for "replay"
            with privacy what is expected to find most at the budget, by rehearsal on the public set; else all.
        clip: the clipping norm C, of what is released; "auto" takes it from the public set (none without privacy).
        clip_rule: "flat" scales down what is longer than C, "normalise" scales everything to C; or "auto".
        learning_rate: alpha; "auto" tunes it on the public set.
        noise: "secure" (from the operating system) or "fast" (seeded: a simulation).
        preprocess: a scikit-learn transformer that works row by row; a clone is fitted to the public features and
            applied to all rows. "columns" does what numeric and text columns of a frame call for.
        classes: all classes, where the public set does not show every one; rows with other labels count for nothing.
        target: the label column of DataFrames.
        groups: a label per row (or a column of the DataFrame): rows with the same label are one party.
        persons: an id per row (or a column of the DataFrame): whose it is, for unit "person".
        ledger: where releases are charged and kept: a `Ledger`. The same call again gets the same releases back.
        checkpoint: a folder that keeps releases as they are made, where there is no ledger: the same call goes on from
            there if a run died. It is for one run: it could not tell other private rows.
        engine: where to compute.
        seed: of the public randomness: permutations, initial model, and noise="fast".
        progress: show a bar on a terminal; or a callable (stage, done, total).
    """
    kinds = _semivalues(semivalues)
    settings = Settings(
        model=model,
        privacy=privacy,
        schedule=as_schedule(schedule, private=privacy is not None),
        permutations=permutations,
        projection=projection,
        clip=clip,
        clip_rule=clip_rule,
        learning_rate=learning_rate,
        noise=noise,
        preprocess=preprocess,
        classes=None if classes is None else tuple(classes),
        engine=engine,
        seed=seed,
        ledger=ledger,
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint),
    )
    private, public = _data(parties, utility, target, groups, persons)
    with engine.threading(), reporting(progress) as tell:
        return value_run(prepare(private, public, settings), public, kinds, tell)


def value_run(run: Run, utility: Utility, kinds: tuple[Semivalue, ...], progress: Progress) -> Result:
    """Make the releases of a run and value them, as its schedule does: along the way, or after."""
    schedule, permutations, engine = run.choice.schedule, run.settings.permutations, run.settings.engine
    if schedule.kind == "replay":
        table, _ = run.release(progress)
        return table.value(
            utility,
            semivalues=kinds,
            permutations=permutations,
            tolerance=schedule.tolerance,
            engine=engine,
            progress=progress,
        )
    table, estimates = run.release(progress, kinds)
    warn_if_not_finite(estimates)
    valued = permutations - schedule.first_valued(permutations)
    return Result(table, kinds, estimates, valued, None, utility, engine)


def release(
    parties: Any,
    utility: Any,
    *,
    model: str | ModelFactory = "logistic",
    privacy: Privacy | None = Privacy(),  # noqa: B008  (immutable)
    schedule: str | Schedule | None = None,
    permutations: int = 1000,
    projection: Projection | str | None = "auto",
    clip: float | str = "auto",
    clip_rule: str = "auto",
    learning_rate: float | str = "auto",
    noise: str = "secure",
    preprocess: Any = None,
    classes: Sequence[Any] | None = None,
    target: str | None = None,
    groups: Any = None,
    persons: Any = None,
    ledger: Ledger | None = None,
    checkpoint: str | Path | None = None,
    engine: Engine = Local(),  # noqa: B008  (immutable)
    seed: int = 0,
    progress: bool | Progress = True,
) -> Table:
    """Return the private table of the parties' releases: spend the budget once, then ask `Table.value` any time.

    Formal guarantee and arguments as in `value`; `utility` serves only as the public set from which classes,
    preprocessing, directions, clipping norm and learning rate are taken.
    """
    settings = Settings(
        model=model,
        privacy=privacy,
        schedule=as_schedule(schedule, private=privacy is not None),
        permutations=permutations,
        projection=projection,
        clip=clip,
        clip_rule=clip_rule,
        learning_rate=learning_rate,
        noise=noise,
        preprocess=preprocess,
        classes=None if classes is None else tuple(classes),
        engine=engine,
        seed=seed,
        ledger=ledger,
        checkpoint=None if checkpoint is None else Checkpoint(checkpoint),
    )
    private, public = _data(parties, utility, target, groups, persons)
    with engine.threading(), reporting(progress) as tell:
        return prepare(private, public, settings).release(tell)[0]


def _data(parties: Any, utility: Any, target: str | None, groups: Any, persons: Any) -> tuple[Parties, Utility]:
    if target is not None and not any(is_frame(data) for data in (parties, utility)):
        raise DpvalueError(f"target={target!r} names a column, but neither parties nor utility is a DataFrame")
    return as_parties(parties, target, groups, persons), as_utility(utility, target, groups, persons)


_semivalues = semivalues  # the argument of value shadows the function
