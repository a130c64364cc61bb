"""From a coordinator's folder to a folder of results, and back: anyone can make the values again from the releases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.jobs.config import RunConfig
from dpvalue.jobs.execute import Done, finish, value_table
from dpvalue.jobs.folder import keep_table, open_folder
from dpvalue.jobs.recording import released_record
from dpvalue.locks import LOCK
from dpvalue.progress import Progress
from dpvalue.releasing.job import Job
from dpvalue.report.record import Answered, Federated, Rejected
from dpvalue.study.coordinator import Coordinator
from dpvalue.study.making import options_of, read_utility
from dpvalue.valuation.table import Table

STATE = "study"
"""Where a folder of results keeps the job and all releases."""
_CLOSE = 1e-5


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
    record = replace(released_record(options, table, None), federated=federated(coordinator))
    keep_table(out, record, table)
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    return finish(out, record, result, None, progress, options.pay)


def federated(coordinator: Coordinator) -> Federated:
    """Return who answered, and what does not count."""
    seals = coordinator.seals()
    answered = []
    for name, answers in coordinator.answers().items():
        seal = seals[name]
        answered.append(Answered(name, answers.units, len(answers.releases), "" if seal is None else seal.by))
    rejected = (Rejected(receipt.party, receipt.round, receipt.why) for receipt in coordinator.rejections.all())
    return Federated(coordinator.job.digest, coordinator.job.rounds, tuple(answered), tuple(rejected))


def verify_results(folder: Path, test: Path | None, progress: Progress) -> tuple[Done | None, Table]:
    """Make the table, and with the public file the values, of a study again; raise if the folder says otherwise.

    Returns the table; and the values, where they were made.
    """
    opened = open_folder(folder)
    state = folder / STATE
    if opened.record.federated is None or not (state / "study.job").is_file():
        raise DpvalueError(f"{folder} holds no study whose parties answered from home")
    coordinator = Coordinator(state, (state / "study.job").read_bytes())
    table, (kept, _) = coordinator.table(), opened.table()
    if coordinator.job.digest != opened.record.federated.job or not _same(table, kept):
        raise DpvalueError(f"{folder}: the table is not that of the releases")
    if federated(coordinator).answered != opened.record.federated.answered:
        raise DpvalueError(f"{folder}: run.json does not say who has answered, and by which keys")
    if test is None:
        return None, table
    utility = read_utility(coordinator.job, test)
    result = value_table(table, utility, opened.config.semivalue, opened.config.permutations, progress)
    shown = opened.values().set_index("party")
    for name, values in result.values.items():
        written = shown[name].loc[list(table.names)].to_numpy(dtype=np.float64)
        if not np.allclose(written, values, rtol=0, atol=_CLOSE * max(float(np.abs(values).max()), 1e-12)):
            raise DpvalueError(f"{folder}: the {name} values are not those of the releases")
    return Done(folder, result, opened.values(), opened.record), table


def _same(made: Table, kept: Table) -> bool:
    alike = made.names == kept.names and bool((made.rows == kept.rows).all())
    return alike and bool((made.sizes == kept.sizes).all()) and bool(np.allclose(made.noise_std, kept.noise_std))


def options_for(job: Job, test: Path, **changes: object) -> RunConfig:
    """Return the options of a study's results: the job's, with the public file as it was found here."""
    given = {name: change for name, change in changes.items() if change}
    return replace(options_of(job), test=str(test), **given)  # type: ignore[arg-type]
