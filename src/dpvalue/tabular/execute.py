"""Doing a job: release, value, write the folder; and valuing a folder's table once more."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpvalue.errors import DpvalueError
from dpvalue.parties import Parties
from dpvalue.plan_page import Plan
from dpvalue.progress import Report
from dpvalue.result import Result
from dpvalue.table import Table
from dpvalue.tabular.files import read_private, read_public
from dpvalue.tabular.folder import Folder, Known, first_facts, value_facts, values_frame, write_folder
from dpvalue.tabular.job import Job, read_labels
from dpvalue.tasks import Curve, retraining_curve
from dpvalue.tasks.curves import ORDERS
from dpvalue.utility import Utility


class Interrupted(Exception):  # noqa: N818
    """A run that was stopped by the user; the message says what was kept and how to go on."""


@dataclass(frozen=True, eq=False)
class Done:
    """A finished run."""

    folder: Path
    result: Result
    values: pd.DataFrame
    facts: dict[str, Any]


def execute(job: Job, plan: Plan | None, folder: Path, report: Report) -> Done:
    """Make the releases and the values, and write the folder.

    Interrupted once the releases are made, it keeps them, and `dpvalue revalue` goes on from there for nothing.
    No time is kept: how long private rows take may depend on them.
    """
    parties = job.parties()
    known = _known(job, parties.names, parties.party_of_row)
    if job.config.privacy is None or (job.config.schedule or "replay") != "replay":
        result = _value_at_once(job, parties, report)
    else:
        table = job.release(parties, report)
        facts = first_facts(job.config, table, plan, job.schema)
        try:
            result = value_table(table, job.utility, job.config.semivalue, job.config.permutations, report)
        except KeyboardInterrupt:
            write_folder(folder, facts, table)
            how = f"`dpvalue revalue {folder}` goes on, and spends nothing more"
            raise Interrupted(f"stopped; the releases are kept in {folder}: {how}") from None
    facts = first_facts(job.config, result.table, plan, job.schema)
    return finish(folder, facts, result, known, _retrained(job, parties, result))


def _value_at_once(job: Job, parties: Parties, report: Report) -> Result:
    try:
        return job.value(parties, report)
    except KeyboardInterrupt:
        kept = "; the ledger has kept what was charged" if job.config.ledger else "; nothing was released or written"
        raise Interrupted(f"stopped{kept}: the same command starts again") from None


def value_table(
    table: Table, utility: Utility, semivalues: tuple[str, ...], permutations: int, report: Report
) -> Result:
    """Return values from a table alone."""
    return table.value(
        utility,
        semivalues=semivalues,
        permutations=permutations,
        tolerance=table.schedule.tolerance,
        progress=report,
    )


def finish(
    folder: Path,
    facts: dict[str, Any],
    result: Result,
    known: Known | None,
    retrained: list[Curve] | None = None,
) -> Done:
    """Make errors, curves and the report, and write the folder."""
    values = values_frame(result)
    facts = {**facts, **value_facts(result, known, retrained)}
    write_folder(folder, facts, result.table, values)
    return Done(folder, result, values, facts)


def revalue(folder: Folder, out: Path | None, semivalues: tuple[str, ...], test: Path | None, report: Report) -> Done:
    """Value the table of a folder again, with other semivalues or another public file; spends nothing."""
    config = folder.config
    table, schema = folder.table()
    test = test or Path(config.test)
    public = read_public(test)
    for name in [config.target, *schema.names]:
        if name not in public.columns:
            raise DpvalueError(f"{test} has no column {name!r}")
    utility = Utility(public.only(schema.names), read_labels(public[config.target], table.encoding.task))
    semivalues = semivalues or config.semivalue
    result = value_table(table, utility, semivalues, config.permutations, report)
    again = replace(config, semivalue=semivalues, test=str(test))
    facts = {**folder.facts, "toml": again.to_toml(), "config": folder.facts["config"]}
    facts["config"] = {**facts["config"], "semivalue": list(semivalues), "test": str(test)}
    facts["detection"] = None
    if out is None:
        fresh = not (folder.path / "values.csv").is_file()
        name = "-".join(one.replace("(", "").replace(")", "").replace(",", "-") for one in semivalues)
        out = folder.path if fresh else folder.path / f"revalue-{name}-{test.name.split('.')[0]}"
    return finish(out, facts, result, None)


def _known(job: Job, names: tuple[str | int, ...], party: Any) -> Known | None:
    """Which parties the column `truth` marks: those with any marked row."""
    column = job.config.truth
    if column is None:
        return None
    cells = [
        (cell or "0").lower()  # a line that is no record marks nobody
        for path in job.config.train
        for block in read_private(Path(path), [column])
        for cell in block.columns[column].texts()
    ]
    marked = np.isin(cells, ["1", "true", "yes", "y"])
    if not (marked | np.isin(cells, ["0", "false", "no", "n"])).all():
        raise DpvalueError(f"the column {column!r} must hold 0 and 1 (or no and yes, or false and true)")
    found = np.bincount(party[party >= 0], weights=marked[party >= 0], minlength=len(names)) > 0
    if found.all() or not found.any():
        raise DpvalueError(f"the column {column!r} must mark some parties and leave others: it marks {found.sum()}")
    return Known(column, found)


def _retrained(job: Job, parties: Parties, result: Result) -> list[Curve] | None:
    """Curves of models trained on raw rows, which only a run without privacy may show."""
    if result.guarantee.private:
        return None
    return [
        retraining_curve(result, parties, job.utility, kind, order, trials=3)
        for kind in ("removal", "addition")
        for order in ORDERS
    ]
