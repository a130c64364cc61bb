"""Execute a run from files: release, value and write the folder; or value the table of a folder again."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch

from dpvalue.data.checks import require_other_file
from dpvalue.data.files import read_labels, read_public
from dpvalue.data.parties import Parties
from dpvalue.data.utility import Utility, as_metric
from dpvalue.detection import auc, precision_at
from dpvalue.errors import DpvalueError
from dpvalue.games.semivalues import semivalues as kinds_of
from dpvalue.privacy.ledger import Ledger
from dpvalue.progress import Progress
from dpvalue.report.record import (
    CurveRecord,
    Detection,
    LedgerState,
    ModelRecord,
    PlanRecord,
    Record,
    Valuation,
    Versions,
)
from dpvalue.runs.config import RunConfig
from dpvalue.runs.folder import (
    Folder,
    abandon,
    has_releases,
    keep_table,
    keep_values,
    remove_releases,
    start_releases,
    table_curves,
    values_frame,
)
from dpvalue.runs.plan_page import Plan
from dpvalue.runs.run import PreparedRun, Run, announce, value_answers
from dpvalue.runs.sources import FileRun, GroundTruth
from dpvalue.tasks import retraining_curve
from dpvalue.values.curves import ORDERS, Curve
from dpvalue.values.result import Result
from dpvalue.values.table import Table


def record_of_release(config: RunConfig, table: Table, plan: Plan | None) -> Record:
    """Return the record of a run after its releases and before its values."""
    from dpvalue import __version__

    how = f"{table.schedule}, {table.method.released}, learning rate {table.learning_rate:.3g}"
    return Record(
        made=datetime.now(UTC).date().isoformat(),  # the hour would tell how long the private steps took
        versions=Versions(__version__, platform.python_version(), torch.__version__),
        toml=config.to_toml(),
        trained=ModelRecord(table.encoding.task, str(table.model), how, config.seed),
        guarantee=table.guarantee,
        plan=None if plan is None else _planned(plan),
        ledger=None if config.ledger is None else _charged(config.ledger),
        values=None,
        curves=(),
        detection=None,
    )


def record_of_values(
    record: Record, result: Result, truth: GroundTruth | None, curves: list[Curve], pay: float | None = None
) -> Record:
    """Return what is known once values are made; `pay` is a total to share by them."""
    assert result.utility is not None
    names = tuple(semivalue.name for semivalue in result.semivalues)
    verdict, game = result.verdict(pay).sentences, result.table.method.summary
    metric = as_metric(result.utility.metric).title
    return replace(
        record,
        values=Valuation(
            names, result.walks, result.converged, len(result.utility.y), verdict, pay, game, metric, result.coverage()
        ),
        curves=tuple(_points(curve) for curve in curves),
        detection=None if truth is None else _detection(result, truth),
    )


def _planned(plan: Plan) -> PlanRecord:
    limits = plan.limits
    ceilings = limits.ceiling, limits.gaussian_ceiling, limits.laplace_ceiling
    return PlanRecord(*ceilings, plan.expected_auc, plan.efficiency, plan.sizes.records, plan.advice, str(plan))


def _charged(path: str) -> LedgerState:
    ledger = Ledger(path)
    return LedgerState(ledger.spent_epsilon, ledger.budget.epsilon, ledger.budget.terms, ledger.head())


def _points(curve: Curve) -> CurveRecord:
    shares, mean, spread = (tuple(numbers.tolist()) for numbers in (curve.shares, curve.mean, curve.spread))
    return CurveRecord(curve.kind, curve.order, shares, mean, spread, curve.retrained)


def _detection(result: Result, truth: GroundTruth) -> Detection:
    values, marked = result.values[result.semivalues[0].name], truth.marked
    k = int(marked.sum())
    return Detection(
        column=truth.column,
        auc=auc(values, marked),
        k=k,
        precision=precision_at(values, marked, k),
        corrupted=f"{k} of {len(marked)}",
        chance=k / len(marked),
    )


_NOTHING = "nothing was written"


class RunInterrupted(Exception):  # noqa: N818
    """A run that was stopped by the user; the message says what was kept and how to go on."""


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A finished run."""

    folder: Path
    result: Result
    values: pd.DataFrame
    record: Record


def execute(job: FileRun, plan: Plan | None, folder: Path, progress: Progress, goes_on: bool = False) -> FinishedRun:
    """Do a run in six steps: choose, ask, answer, combine, value, write.

    From the first release on, what was paid for is in the folder (or the ledger): stopped in any way, the run goes on
    from there for nothing, by `dpvalue revalue` once the table is there, else by the same command.
    `goes_on` says that the folder holds releases of this very run, as `require_free` told.
    No time is kept: how long private rows take may depend on them.
    """
    config = job.config
    with _saying(lambda: _released(folder, config)):
        prepared = choose(job, plan)
        along = prepared.choice.schedule.kind != "replay"  # values are made while parties answer
        settings, kinds = prepared.situation.settings, kinds_of(config.semivalue)
        with settings.engine.threading():
            run, parties, known = ask(job, prepared, folder, progress, goes_on)
            answers = run.answer(progress, kinds if along else ())
            table = run.combine(answers)
            del run  # and the encoded rows with it
        record = record_of_release(config, table, plan)
        keep_table(folder, record, table)
    with _saying(lambda: _valued(folder, along and config.private)):
        if not along:
            remove_releases(folder)
        result = value_answers(table, answers.estimates, settings, job.utility, kinds, progress)
        retrained = _retrained(job, parties, result, progress)
        done = finish(folder, result, *make_values(record, result, known, progress, config.pay, retrained))
    remove_releases(folder)
    return done


def choose(job: FileRun, plan: Plan | None) -> PreparedRun:
    """Return the run with every setting chosen from public things: by its plan, where there is one."""
    return job.prepare() if plan is None or plan.prepared is None else plan.prepared


def ask(
    job: FileRun, prepared: PreparedRun, folder: Path, progress: Progress, goes_on: bool
) -> tuple[Run, Parties, GroundTruth | None]:
    """Read the private rows and hand them to the party's side of the run, which answers what was chosen to be asked."""
    parties, known = job.read(progress)
    if job.config.private and job.config.ledger is None:
        prepared = prepared.with_checkpoint(start_releases(folder, job.config, goes_on))
    announce(prepared)
    return prepared.run(parties), parties, known


@contextmanager
def _saying(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Say of whatever stops a run what was kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise RunInterrupted(f"stopped; {how_to_go_on()}") from None
    except OSError as error:
        raise DpvalueError(f"{error.filename}: {error.strerror}; {how_to_go_on()}") from None
    except DpvalueError as error:
        error.args = (f"{error}{_unless_nothing(how_to_go_on())}",)  # errors of some kinds hold more than a text
        raise
    except Exception as error:
        error.add_note(how_to_go_on())
        raise


def _released(folder: Path, config: RunConfig) -> str:
    """What is kept of a run that has no table yet."""
    if has_releases(folder):
        return f"releases are kept in {folder}: repeat the command to resume; nothing is spent twice"
    abandon(folder)
    if config.ledger is not None:
        return f"{_NOTHING}; charges are kept in the ledger: repeat the command to resume"
    return f"{_NOTHING}: repeat the command to start again"


def _unless_nothing(kept: str) -> str:
    """The end of an error message; empty where nothing was kept, as after a wrong option."""
    return "" if kept.startswith(_NOTHING) else f"; {kept}"


def _valued(folder: Path, at_once: bool) -> str:
    """What is kept of a run that has its table."""
    if (folder / "values.csv").is_file():
        return f"the values are in {folder}: `dpvalue report {folder}` writes the report"
    how = "repeat the command" if at_once else f"run `dpvalue revalue {folder}`"
    return f"releases are kept in {folder}: {how} to resume; nothing more is spent"


def value_table(
    table: Table, utility: Utility, semivalues: tuple[str, ...], permutations: int, progress: Progress
) -> Result:
    """Return values from a table alone."""
    return table.value(
        utility,
        semivalues=semivalues,
        permutations=permutations,
        tolerance=table.schedule.tolerance,
        progress=progress,
    )


def make_values(
    record: Record,
    result: Result,
    truth: GroundTruth | None,
    progress: Progress,
    pay: float | None,
    retraining_curves: list[Curve] | None = None,
) -> tuple[pd.DataFrame, Record]:
    """Return the content of values.csv, with errors and intervals, and the record with the values.

    `retraining_curves` replace those of the table.
    """
    values = values_frame(result, progress, pay)
    curves = table_curves(result, progress) if retraining_curves is None else retraining_curves
    return values, record_of_values(record, result, truth, curves, pay)


def finish(folder: Path, result: Result, values: pd.DataFrame, record: Record) -> FinishedRun:
    """Write values and the page into a folder that holds the table."""
    keep_values(folder, record, values)
    return FinishedRun(folder, result, values, record)


def revalue(
    folder: Folder,
    out: Path | None,
    semivalues: tuple[str, ...],
    test: Path | None,
    progress: Progress,
    pay: float | None = None,
    metric: str | None = None,
) -> FinishedRun:
    """Value the table of a folder again, with another public file, metric, semivalues or total; spends nothing."""
    config = replace(folder.config, metric=metric or folder.config.metric)
    table, schema = folder.table()
    test = test or Path(config.test)
    require_other_file(config.train, test)
    public = read_public(test)
    for name in [config.target, *schema.names]:
        if name not in public.columns:
            raise DpvalueError(f"{test} has no column {name!r}")
    labels = read_labels(public[config.target], table.encoding.task)
    utility = Utility(public.only(schema.names), labels, metric=config.metric)
    out = out or revalue_folder(folder, semivalues, test, metric)
    semivalues = semivalues or config.semivalue
    result = value_table(table, utility, semivalues, config.permutations, progress)
    again = replace(config, semivalue=semivalues, test=str(test), pay=config.pay if pay is None else pay)
    record = replace(folder.record, toml=again.to_toml(), values=None, curves=(), detection=None)
    if out != folder.path:
        keep_table(out, record, table)
    return finish(out, result, *make_values(record, result, None, progress, again.pay))


def revalue_folder(folder: Folder, semivalues: tuple[str, ...], test: Path | None, metric: str | None = None) -> Path:
    """Return the folder for new values of a table: its own if that has no values yet, otherwise a folder inside."""
    if not (folder.path / "values.csv").is_file():
        return folder.path
    kinds = semivalues or folder.config.semivalue
    name = "-".join(text.replace("(", "").replace(")", "").replace(",", "-") for text in kinds)
    name += f"-{(test or Path(folder.config.test)).name.split('.')[0]}"
    return folder.path / f"revalue-{name}{'' if metric is None else f'-{metric}'}"


def _retrained(job: FileRun, parties: Parties, result: Result, progress: Progress) -> list[Curve] | None:
    """Curves of models trained on raw rows, for runs without privacy only."""
    if result.guarantee.private:
        return None
    curves: list[Curve] = []
    progress("curves", 0, 2 * len(ORDERS))
    for kind in ("removal", "addition"):
        for order in ORDERS:
            curves.append(retraining_curve(result, parties, job.utility, kind, order, trials=3))
            progress("curves", len(curves), 2 * len(ORDERS))
    return curves
