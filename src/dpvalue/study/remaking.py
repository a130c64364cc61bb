"""What a job and its releases make, by the functions that `dpvalue value` writes results with; and how files differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpvalue.archive import as_text
from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.jobs.config import RunConfig
from dpvalue.jobs.execute import make_values, value_table
from dpvalue.jobs.folder import record_json
from dpvalue.progress import Progress
from dpvalue.report import report_page
from dpvalue.report.record import Record
from dpvalue.study.comparing import CLOSE, compare_tensors, compare_text, compare_tree, compare_values, largest
from dpvalue.study.coordinator import Coordinator
from dpvalue.study.valuing import study_record
from dpvalue.valuation.payouts import Shares
from dpvalue.valuation.result import Result
from dpvalue.valuation.table import Table
from dpvalue.valuation.verdict import sentence_of_shares

OUTPUTS = ("run.toml", "table.safetensors", "values.csv", "run.json", "report.html")
"""What is made again, beside requests of later rounds."""


@dataclass(frozen=True, eq=False)
class Remade:
    """What the job and the releases make: the result, what values.csv holds, and the record."""

    result: Result
    values: pd.DataFrame
    record: Record


def remake(coordinator: Coordinator, utility: Utility, options: RunConfig, progress: Progress) -> Remade:
    """Return what a job and releases make under the options, as `valuing.value_study` does."""
    table = coordinator.table()
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    record = study_record(coordinator, options, table)
    return Remade(result, *make_values(record, result, None, progress, options.pay))


def as_recorded(made: Remade, stored: dict[str, Any]) -> Remade:
    """What was made, with the day and the versions of Python and torch as run.json says them."""
    versions, day = stored["versions"], str(stored.get("made"))
    texts = {name: versions[name] for name in ("python", "torch") if isinstance(versions.get(name), str)}
    record = replace(made.record, versions=replace(made.record.versions, **texts))
    with suppress(ValueError):  # what is no day differs from today
        record = replace(record, made=date.fromisoformat(day).isoformat())
    return replace(made, record=record)


def compare_outputs(folder: Path, stored: dict[str, Any], text: str, made: Remade) -> list[str]:
    """What differs between the files of a folder and what was made.

    Numbers that are close are taken as they were found; sentences, ranks and the page, which are made of them, must be
    the same to the letter.
    """
    differences, values, record = _compare_table(folder, made), made.values, made.record
    names = tuple(made.result.values)
    with collecting(differences, "values.csv"):
        values, more = compare_values("values.csv", (folder / "values.csv").read_bytes().decode(), values, names)
        differences += more
    record = _with_payouts(record, made, values)
    rooms = {
        f"curves[{number}].{name}": CLOSE * largest(np.array(curve.mean))
        for number, curve in enumerate(record.curves)
        for name in ("mean", "spread")
    }
    tree, more = compare_tree("run.json", stored, json.loads(record_json(record)), rooms)
    record = Record.from_json(tree, "run.json")
    differences += more or compare_text("run.json", text, record_json(record).decode())
    with collecting(differences, "report.html"):
        page = (folder / "report.html").read_bytes().decode()
        differences += compare_text("report.html", page, report_page(values, record))
    return differences


def _compare_table(folder: Path, made: Remade) -> list[str]:
    differences: list[str] = []
    with collecting(differences, "table.safetensors"):
        content = (folder / "table.safetensors").read_bytes()
        (header, tensors), own = Table.archive.unpack(content, "table.safetensors"), made.result.table.parts()
        differences += compare_tree("table.safetensors", header, json.loads(as_text(own[0])), {})[1]
        differences += compare_tensors("table.safetensors", tensors, own[1])
        if not differences and Table.archive.pack(header, tensors) != content:
            differences.append("table.safetensors: it holds more than a table")
    return differences


def _with_payouts(record: Record, made: Remade, values: pd.DataFrame) -> Record:
    """A record whose verdict tells the payouts of these values: rounded to be read, close ones may read otherwise."""
    assert record.values is not None
    pay, verdict = record.values.pay, record.values.verdict
    if pay is None or "payout" not in values:
        return record
    shares = made.result.shares(pay)
    paid, low, high = (values[f"payout{end}"].to_numpy() for end in ("", "_low", "_high"))
    told, again = map(sentence_of_shares, (shares, Shares(shares.names, paid, low, high, pay, shares.level)))
    verdict = tuple(again if sentence == told else sentence for sentence in verdict)
    return replace(record, values=replace(record.values, verdict=verdict))


@contextmanager
def collecting(differences: list[str], what: str) -> Iterator[None]:
    """Take note of what cannot be read."""
    try:
        yield
    except (DpvalueError, OSError, UnicodeDecodeError) as error:
        differences.append(f"{what}: {error.strerror if isinstance(error, OSError) else error}")
