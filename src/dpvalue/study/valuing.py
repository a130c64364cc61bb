"""From a coordinator's folder to a folder of results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.jobs.config import RunConfig
from dpvalue.jobs.execute import Done, finish, make_values, value_table
from dpvalue.jobs.folder import keep_table
from dpvalue.jobs.recording import released_record
from dpvalue.locks import LOCK
from dpvalue.progress import Progress
from dpvalue.releasing.job import Job
from dpvalue.report.record import Answered, Federated, Record, Rejected
from dpvalue.study.coordinator import Coordinator
from dpvalue.study.making import options_of
from dpvalue.valuation.table import Table

STATE = "study"
"""Where a folder of results keeps the job and all releases."""


def require_place(out: Path, job: Job) -> None:
    """Raise unless a folder is new, or holds results of the same study, to which late answers are added."""
    if not out.exists() or (out.is_dir() and all(file.name == LOCK for file in out.iterdir())):
        return
    kept = out / STATE / "study.job"
    if not kept.is_file():
        raise DpvalueError(f"{out} holds other files: name a new folder with --out")
    if Job.load(kept).digest != job.digest:
        raise DpvalueError(f"{out} holds the results of another job: name another folder with --out")


def value_study(coordinator: Coordinator, utility: Utility, options: RunConfig, out: Path, progress: Progress) -> Done:
    """Value what was released, and write the folder of results, as a local run does."""
    table = coordinator.table()
    record = study_record(coordinator, options, table)
    keep_table(out, record, table)
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    return finish(out, result, *make_values(record, result, None, progress, options.pay))


def study_record(coordinator: Coordinator, options: RunConfig, table: Table) -> Record:
    """Return what is known of a study once its releases are there."""
    return replace(released_record(options, table, None), federated=federated(coordinator))


def federated(coordinator: Coordinator) -> Federated:
    """Return who answered, and what does not count."""
    seals = coordinator.seals()
    answered = []
    for name, answers in coordinator.answers().items():
        seal = seals[name]
        answered.append(Answered(name, answers.units, len(answers.releases), "" if seal is None else seal.by))
    rejected = (Rejected(receipt.party, receipt.round, receipt.why) for receipt in coordinator.rejections.all())
    return Federated(coordinator.job.digest, coordinator.job.rounds, tuple(answered), tuple(rejected))


def options_for(job: Job, test: Path, **changes: object) -> RunConfig:
    """Return the options of a study's results: the job's, with the public file as it was found here."""
    given = {name: change for name, change in changes.items() if change}
    return replace(options_of(job), test=str(test), **given)  # type: ignore[arg-type]
