"""The output folder of a run: values.csv, run.toml, run.json, table.safetensors and report.html.

All content is a function of the private table and of public inputs (and, with `truth`, of a ground truth that the user
gives). Each file is complete or absent. Files are written in this order: `releases/` during the releases; the table
and run.json, from which `dpvalue revalue` recomputes all else; values.csv; the report.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dpvalue.data.schema import Schema
from dpvalue.errors import DpvalueError
from dpvalue.names import cell_of, name_of
from dpvalue.progress import Progress
from dpvalue.report import report_page
from dpvalue.report.record import Record
from dpvalue.runs.config import RunConfig, make_config, parse_options
from dpvalue.runs.loading import load
from dpvalue.storage import LOCK, leftover_files, write_whole
from dpvalue.stored import parse_json, read_text
from dpvalue.values.curves import ORDERS, Curve, addition_curve, removal_curve
from dpvalue.values.payouts import is_payable
from dpvalue.values.result import Result
from dpvalue.values.table import Table

_BEFORE_RECORD = {"releases", "run.toml", "table.safetensors"}  # what a run that died may have written before run.json

_CSV_ROWS = 2**16

_ROOM, _ROOM_PER_PARTY = 2**24, 2**12  # bytes


def require_free(folder: Path, overwrite: bool, config: RunConfig | None = None) -> bool:
    """Raise if files would be lost without `overwrite`; return whether an unfinished run of `config` resumes there.

    An interrupted run resumes if it is repeated with the same options: stored releases are reused.
    """
    if folder.exists() and not folder.is_dir():
        raise DpvalueError(f"{folder} must be a folder, but is a file")
    if not folder.is_dir():
        return False
    names = {file.name for file in folder.iterdir()} - {file.name for file in leftover_files(folder)} - {LOCK}
    has_values, paid = "values.csv" in names, has_releases(folder)
    goes_on = config is not None and paid and read_text(_unfinished(folder)) == config.to_toml()
    if paid and not goes_on:
        content = "the releases of an unfinished run with other options"
    elif names <= _BEFORE_RECORD or (goes_on and not has_values):
        return goes_on  # nothing, or nothing but what this run has written
    elif "run.toml" not in names or "run.json" not in names:
        raise DpvalueError(f"{folder} holds other files: name a new folder with --out")
    elif has_values:
        content = "other results"
    else:
        content = f"releases without values (run dpvalue revalue {folder}, which spends nothing)"
    if not overwrite:
        raise DpvalueError(f"{folder} holds {content}: name another folder, or give --overwrite")
    return goes_on


def require_room(folder: Path, parties: int) -> None:
    """Raise unless the disk of a folder has room for the results of `parties` parties."""
    free, required = shutil.disk_usage(folder).free, _ROOM + parties * _ROOM_PER_PARTY
    if free < required:
        raise DpvalueError(f"the disk of {folder} needs {required / 1e6:.3g} MB of free space for the results")


def table_curves(result: Result, progress: Progress) -> list[Curve]:
    """Return the curves of the report, from the private table."""
    curves: list[Curve] = []
    progress("curves", 0, 2 * len(ORDERS))
    for make in (removal_curve, addition_curve):
        for order in ORDERS:
            curves.append(make(result, order))
            progress("curves", len(curves), 2 * len(ORDERS))
    return curves


def values_frame(result: Result, progress: Progress, pay: float | None = None) -> pd.DataFrame:
    """Return the content of values.csv: parties, sizes, values, errors, intervals, ranks, and payouts of `pay`.

    There are no payouts if no value is positive.
    """
    shared = pay if is_payable(result.values[result.semivalues[0].name]) else None
    frame = result.frame(noise=True, pay=shared, progress=progress)
    return frame if result.guarantee.private else frame.drop(columns=[f"{name}_noise" for name in result.values])


def start_releases(folder: Path, config: RunConfig, goes_on: bool) -> Path:
    """Return the folder of the releases of a run until its table is written; other files stay."""
    if not goes_on:
        remove_releases(folder)
    run_toml = _unfinished(folder)
    run_toml.parent.mkdir(parents=True, exist_ok=True)
    write_whole(run_toml, config.to_toml().encode())
    return run_toml.parent


def abandon(folder: Path) -> None:
    """Remove the files of a run without releases."""
    if not has_releases(folder):
        remove_releases(folder)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def keep_table(folder: Path, record: Record, table: Table) -> None:
    """Write the table and the record, from which values can be computed; older values are removed first."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (folder / "values.csv", folder / "report.html", *leftover_files(folder)):
        stale.unlink(missing_ok=True)
    table.save(folder / "table.safetensors")
    write_whole(folder / "run.toml", record.toml.encode())
    _write_record(folder, record)


def _unfinished(folder: Path) -> Path:
    return folder / "releases" / "run.toml"


def has_releases(folder: Path) -> bool:
    """Return whether a folder holds releases of an unfinished run."""
    return any(_unfinished(folder).parent.glob("release-*"))


def remove_releases(folder: Path) -> None:
    """Remove `releases/`, once the table or the values are written."""
    shutil.rmtree(_unfinished(folder).parent, ignore_errors=True)


def keep_values(folder: Path, record: Record, values: pd.DataFrame) -> None:
    """Write the record, then values.csv, whose presence marks a complete run, then the report."""
    _write_record(folder, record)
    write_whole(folder / "values.csv", values_csv(values))
    write_page(folder, record, values)


def values_csv(values: pd.DataFrame) -> Iterator[bytes]:
    """Return the content of values.csv, in pieces; names are escaped so that none is a formula in a spreadsheet."""
    integer_columns = [name for name in values if str(values[name].dtype) == "Int64" and not values[name].hasnans]
    parties = values["party"]
    cells = parties if pd.api.types.is_numeric_dtype(parties.dtype) else [cell_of(party) for party in parties]
    values = values.astype(dict.fromkeys(integer_columns, np.int64)).assign(party=cells)
    yield values[:0].to_csv(index=False).encode()
    for first in range(0, len(values), _CSV_ROWS):
        yield values[first : first + _CSV_ROWS].to_csv(index=False, header=False).encode()


def read_values(file: Path) -> pd.DataFrame:
    """Return the content of a values.csv, with the original names of parties."""
    gaps = {name: [""] for name in pd.read_csv(file, nrows=0).columns if name != "party"}  # a party may be called NA
    frame = pd.read_csv(file, low_memory=False, dtype={"party": str}, keep_default_na=False, na_values=gaps)
    return frame.assign(party=[name_of(cell) for cell in frame["party"]]) if "party" in frame else frame


def write_page(folder: Path, record: Record, values: pd.DataFrame) -> Path:
    """Write report.html, and return its path; remains of interrupted writers are removed."""
    for part in leftover_files(folder):
        part.unlink(missing_ok=True)
    page = folder / "report.html"
    write_whole(page, report_page(values, record).encode())
    return page


def record_json(record: Record) -> bytes:
    """Return the content of run.json."""
    return (json.dumps(record.to_json(), indent=1) + "\n").encode()


def _write_record(folder: Path, record: Record) -> None:
    write_whole(folder / "run.json", record_json(record))


@dataclass(frozen=True, eq=False)
class Folder:
    """An output folder: its path, the record in run.json, and the options of the run."""

    path: Path
    record: Record
    config: RunConfig

    def table(self) -> tuple[Table, Schema]:
        """Return the private table, and the schema of its columns."""
        path = self.path / "table.safetensors"
        saved = load(path)
        table = saved.table if isinstance(saved, Result) else saved
        if not isinstance(table.encoding.preprocess, Schema):
            raise DpvalueError(f"{path} is not the table of a run from files: it does not say how columns are encoded")
        return table, table.encoding.preprocess

    def values(self) -> pd.DataFrame:
        """Return values.csv, checked against run.json."""
        file = self.path / "values.csv"
        if not file.is_file():
            raise DpvalueError(f"{self.path} has no values yet: run dpvalue revalue {self.path}, which spends nothing")
        with _report_damage(self.path / "run.json"):
            if self.record.values is None:
                raise DpvalueError("values must be there where values.csv is, got null")
        with _report_damage(file):
            frame = read_values(file)
            _check_frame(frame, self.record.values.semivalues)
        return frame


def _check_frame(values: pd.DataFrame, names: tuple[str, ...]) -> None:
    """Raise unless a frame holds the columns of a report."""
    for column in ("party", "rank", *(f"{name}{end}" for name in names for end in ("", "_mc_error"))):
        if column not in values:
            raise DpvalueError(f"there is no column {column!r}")
    for column in values.columns.drop("party"):
        if not pd.api.types.is_numeric_dtype(values[column].dtype):
            raise DpvalueError(f"the column {column!r} must hold numbers")
    if not len(values):
        raise DpvalueError("there is no party")


def open_folder(path: Path) -> Folder:
    """Return the output folder of a run; its run.json is untrusted and checked field by field."""
    file = path / "run.json"
    if not file.is_file():
        if has_releases(path):
            raise DpvalueError(
                f"{path} holds an unfinished run: repeat the dpvalue run command to resume it; nothing is spent twice"
            )
        raise DpvalueError(f"{path} is not an output folder of dpvalue run")
    record = Record.from_json(parse_json(read_text(file), str(file)), str(file))
    with _report_damage(file):
        return Folder(path, record, make_config(parse_options(record.toml, "toml")))


@contextmanager
def _report_damage(file: Path) -> Iterator[None]:
    """Raise errors with the name of the damaged file."""
    try:
        yield
    except ValueError as error:  # from our own check or from pandas: not text, or not a table
        raise DpvalueError(f"{file} has been damaged: {str(error).strip()}") from None
