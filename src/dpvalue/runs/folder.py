"""The output folder of a run: values.csv, run.toml, run.json, table.safetensors and report.html.

Everything in it is a function of the private table and of public things (and, with `truth`, of a known answer that the
user chose to compare with). Each file is whole or not there, and what was paid for is there first: while a run goes on,
`releases/` keeps what parties have released; then come the table and run.json, from which `dpvalue revalue` makes the
rest for nothing; values.csv, once all of it is known; and the page.
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
    """Raise if results, or anything else, would be lost without leave; return whether a run of `config` goes on there.

    A run that died goes on if it is made again with the same options: nothing that was released is drawn again.
    """
    if folder.exists() and not folder.is_dir():
        raise DpvalueError(f"{folder} must be a folder, but is a file")
    if not folder.is_dir():
        return False
    names = {file.name for file in folder.iterdir()} - {file.name for file in leftover_files(folder)} - {LOCK}
    has_values, paid = "values.csv" in names, has_releases(folder)
    goes_on = config is not None and paid and read_text(_unfinished(folder)) == config.to_toml()
    if paid and not goes_on:
        what = "the releases of an unfinished run with other options"
    elif names <= _BEFORE_RECORD or (goes_on and not has_values):
        return goes_on  # nothing, or nothing but what this run has written
    elif "run.toml" not in names or "run.json" not in names:
        raise DpvalueError(f"{folder} holds other files: name a new folder with --out")
    elif has_values:
        what = "other results"
    else:
        what = f"releases without values (run dpvalue revalue {folder}, which spends nothing)"
    if not overwrite:
        raise DpvalueError(f"{folder} holds {what}: name another folder, or give --overwrite")
    return goes_on


def require_room(folder: Path, parties: int) -> None:
    """Raise unless a folder's disk has room for results of so many parties."""
    free, needed = shutil.disk_usage(folder).free, _ROOM + parties * _ROOM_PER_PARTY
    if free < needed:
        raise DpvalueError(f"the disk of {folder} needs {needed / 1e6:.3g} MB of free space for the results")


def table_curves(result: Result, progress: Progress) -> list[Curve]:
    """Return the curves that a page shows, made from the private table."""
    curves: list[Curve] = []
    progress("curves", 0, 2 * len(ORDERS))
    for make in (removal_curve, addition_curve):
        for order in ORDERS:
            curves.append(make(result, order))
            progress("curves", len(curves), 2 * len(ORDERS))
    return curves


def values_frame(result: Result, progress: Progress, pay: float | None = None) -> pd.DataFrame:
    """Return what values.csv holds: parties and their sizes, values, errors, intervals, ranks; payouts of `pay`.

    By values of which none is above zero nothing can be shared: there are no payouts then.
    """
    shared = pay if is_payable(result.values[result.semivalues[0].name]) else None
    frame = result.frame(noise=True, pay=shared, progress=progress)
    return frame if result.guarantee.private else frame.drop(columns=[f"{name}_noise" for name in result.values])


def start_releases(folder: Path, config: RunConfig, goes_on: bool) -> Path:
    """Return where the releases of a run are kept until its table is there; whatever else is in the folder stays."""
    if not goes_on:
        forget_releases(folder)
    described = _unfinished(folder)
    described.parent.mkdir(parents=True, exist_ok=True)
    write_whole(described, config.to_toml().encode())
    return described.parent


def abandon(folder: Path) -> None:
    """Leave no trace of a run that has released nothing."""
    if not has_releases(folder):
        forget_releases(folder)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def keep_table(folder: Path, record: Record, table: Table) -> None:
    """Write all that values can be made from, at any time and for nothing; what older values said is removed first."""
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (folder / "values.csv", folder / "report.html", *leftover_files(folder)):
        stale.unlink(missing_ok=True)
    table.save(folder / "table.safetensors")
    write_whole(folder / "run.toml", record.toml.encode())
    _write_record(folder, record)


def _unfinished(folder: Path) -> Path:
    return folder / "releases" / "run.toml"


def has_releases(folder: Path) -> bool:
    """Return whether releases of an unfinished run are kept in a folder."""
    return any(_unfinished(folder).parent.glob("release-*"))


def forget_releases(folder: Path) -> None:
    """Remove what `releases/` keeps, once the table or the values that were made of it are there."""
    shutil.rmtree(_unfinished(folder).parent, ignore_errors=True)


def keep_values(folder: Path, record: Record, values: pd.DataFrame) -> None:
    """Write values and the page: values last of what a page is made from, as they say that all of it is there."""
    _write_record(folder, record)
    write_whole(folder / "values.csv", values_csv(values))
    write_page(folder, record, values)


def values_csv(values: pd.DataFrame) -> Iterator[bytes]:
    """Return what values.csv holds, in pieces: no name is a formula. Whole numbers without gaps stay such: faster."""
    whole = [name for name in values if str(values[name].dtype) == "Int64" and not values[name].hasnans]
    parties = values["party"]
    cells = parties if pd.api.types.is_numeric_dtype(parties.dtype) else [cell_of(party) for party in parties]
    values = values.astype(dict.fromkeys(whole, np.int64)).assign(party=cells)
    yield values[:0].to_csv(index=False).encode()
    for first in range(0, len(values), _CSV_ROWS):
        yield values[first : first + _CSV_ROWS].to_csv(index=False, header=False).encode()


def read_values(file: Path) -> pd.DataFrame:
    """Return what a values.csv holds, with the names of parties as they were."""
    gaps = {name: [""] for name in pd.read_csv(file, nrows=0).columns if name != "party"}  # a party may be called NA
    frame = pd.read_csv(file, low_memory=False, dtype={"party": str}, keep_default_na=False, na_values=gaps)
    return frame.assign(party=[name_of(cell) for cell in frame["party"]]) if "party" in frame else frame


def write_page(folder: Path, record: Record, values: pd.DataFrame) -> Path:
    """Write report.html, and return where it is; what writers that were killed have left goes."""
    for part in leftover_files(folder):
        part.unlink(missing_ok=True)
    page = folder / "report.html"
    write_whole(page, report_page(values, record).encode())
    return page


def record_json(record: Record) -> bytes:
    """Return what run.json holds."""
    return (json.dumps(record.to_json(), indent=1) + "\n").encode()


def _write_record(folder: Path, record: Record) -> None:
    write_whole(folder / "run.json", record_json(record))


@dataclass(frozen=True, eq=False)
class Folder:
    """An output folder, read back: where it is, what run.json holds, and the options of the run."""

    path: Path
    record: Record
    config: RunConfig

    def table(self) -> tuple[Table, Schema]:
        """Return the private table, and how columns become numbers."""
        path = self.path / "table.safetensors"
        saved = load(path)
        table = saved.table if isinstance(saved, Result) else saved
        if not isinstance(table.encoding.preprocess, Schema):
            raise DpvalueError(f"{path} is not the table of a run from files: it does not say how columns are encoded")
        return table, table.encoding.preprocess

    def values(self) -> pd.DataFrame:
        """Return values.csv, checked to be what run.json says."""
        file = self.path / "values.csv"
        if not file.is_file():
            raise DpvalueError(f"{self.path} has no values yet: run dpvalue revalue {self.path}, which spends nothing")
        with _damage(self.path / "run.json"):
            if self.record.values is None:
                raise DpvalueError("values must be there where values.csv is, got null")
        with _damage(file):
            frame = read_values(file)
            _check_frame(frame, self.record.values.semivalues)
        return frame


def _check_frame(values: pd.DataFrame, names: tuple[str, ...]) -> None:
    """Raise unless a frame holds the values of parties: what a report shows."""
    for column in ("party", "rank", *(f"{name}{end}" for name in names for end in ("", "_mc_error"))):
        if column not in values:
            raise DpvalueError(f"there is no column {column!r}")
    for column in values.columns.drop("party"):
        if not pd.api.types.is_numeric_dtype(values[column].dtype):
            raise DpvalueError(f"the column {column!r} must hold numbers")
    if not len(values):
        raise DpvalueError("there is no party")


def open_folder(path: Path) -> Folder:
    """Return the output folder of a run, whoever wrote it: its run.json is checked field by field."""
    file = path / "run.json"
    if not file.is_file():
        if has_releases(path):
            raise DpvalueError(
                f"{path} holds an unfinished run: repeat the dpvalue run command to resume it; nothing is spent twice"
            )
        raise DpvalueError(f"{path} is not an output folder of dpvalue run")
    record = Record.from_json(parse_json(read_text(file), str(file)), str(file))
    with _damage(file):
        return Folder(path, record, make_config(parse_options(record.toml, "toml")))


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    """Say in which file something is not as it must be."""
    try:
        yield
    except ValueError as error:  # from our own check or from pandas: not text, or not a table
        raise DpvalueError(f"{file} has been damaged: {str(error).strip()}") from None
