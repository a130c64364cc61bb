"""Neighbours, from the bytes of a file to every byte written: one unit's private data changed in any way at all.

A *world* is what parties hold: records of cells, in one file or several. `changed` rewrites everything private of one
unit (a party, a record or a person) and leaves what is public: the number of lines and each line's party (units party
and record), the number of persons of each party (unit person). `observe` runs a world from its files, with the
mechanism's output held fixed, and returns what every unit contributes in whole numbers, and everything that came out:
exit code, terminal, warnings, logs, file names and bytes. `compare` says what one unit moved that it must not.

`python -m tests.neighbours --changes 100000 --json FILE` makes a large run.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import gzip
import hashlib
import io
import json
import logging
import secrets
import shutil
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import torch
from click.testing import CliRunner
from pyarrow import parquet
from torch import Tensor, nn
from typer.main import get_command

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.data.cells import LONGEST_CELL, MOST_MARKS, identity
from dpvalue.methods import refit as refit_module
from dpvalue.methods.choosing import choose
from dpvalue.methods.refitting import Refitting
from dpvalue.models import DescriptionModel, LeafOnes
from dpvalue.party.contributions import Contributions
from dpvalue.runs import plan as plan_module
from dpvalue.runs import run as run_module
from dpvalue.values import noisy as noisy_module
from dpvalue.values.intervals import draw_noise
from tests.held import Keys, emptied

COMMAND = get_command(app)
Record = dict[str, Any]
FEATURES = ("age", "grade", "town", "member", "day")
SITES = ("s1", "s2", "s10")
ODD_SITES = ('the "old" site', "a, b; c", '12"')


@dataclass(frozen=True)
class Scenario:
    """A kind of job: its format, what is protected, and the options that it is run with.

    `types` says of which type of Arrow each column is; a cell that the type cannot hold is missing.
    """

    name: str
    format: str  # csv, csv.gz, parquet, npz, pandas, polars, arrow, arrays
    unit: str = "record"
    columns: tuple[str, ...] = ("site", *FEATURES, "label")
    files: int = 1
    grouped: bool = True
    options: tuple[str, ...] = ()
    separator: str = ","
    spread: int = 1
    regression: bool = False
    sites: tuple[str, ...] = SITES
    types: dict[str, str] = field(default_factory=dict, hash=False)
    settings: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def is_text(self) -> bool:
        return self.format.startswith("csv")


LAPLACE = ("--mechanism", "laplace", "--epsilon", "2")
# In all directions: one number of a unit, clipped, is often the same after a change, and would hide it.
ALL = ("--schedule", "independent", "--permutations", "2")
TREES = ("--model", "trees")
WHOLE: dict[str, Any] = {"projection": None, "clip": 1.0}


def network() -> nn.Module:
    """A network with a head, for the columns of the public set."""
    return nn.Sequential(nn.Linear(14, 4), nn.Tanh(), nn.Linear(4, 2))


TYPES = {
    "age": "decimal", "grade": "binary", "town": "string", "member": "dictionary", "day": "timestamp",
    "label": "dictionary", "site": "large_string", "who": "string",
}  # fmt: skip
OTHERS = {
    "age": "string", "grade": "string_view", "town": "dictionary", "member": "binary", "day": "string",
    "label": "string", "site": "string", "who": "large_string",
}  # fmt: skip
ROWS, BY_FILE, BY_PERSON = (*FEATURES, "label"), (*FEATURES, "who", "label"), (*FEATURES, "label", "who", "site")
SCENARIOS = (
    Scenario("rows of a CSV, one number", "csv", "party", ROWS, grouped=False, options=LAPLACE),
    Scenario("rows of a CSV", "csv", "party", ROWS, grouped=False, options=ALL),
    Scenario("records of a CSV, group first", "csv", options=ALL),
    Scenario("records of a CSV, group last", "csv", columns=(*ROWS, "site"), separator=";", options=ALL),
    Scenario("records of a CSV, odd names first", "csv", sites=ODD_SITES, options=ALL),
    Scenario("parties of a CSV, odd names last", "csv", "party", (*ROWS, "site"), sites=ODD_SITES, separator="\t",
             options=ALL),
    Scenario("parties of a CSV", "csv", "party", options=("--neighbours", "replace", *ALL)),
    Scenario("records of several CSV", "csv", files=3, columns=ROWS),
    Scenario("a gzipped CSV, two rounds", "csv.gz", options=("--schedule", "lagged", "--permutations", "100")),
    Scenario("regression of a CSV", "csv", regression=True, separator="\t", options=ALL),
    Scenario("rows of a regression, one number: a score", "csv", "party", ROWS, grouped=False, regression=True,
             options=LAPLACE),
    Scenario("records of a Parquet", "parquet", options=ALL),
    Scenario("records of several Parquet", "parquet", files=3, columns=ROWS, options=ALL),
    Scenario("records of typed columns", "parquet", options=ALL, types=TYPES),
    Scenario("persons of typed columns", "parquet", "person", BY_PERSON, spread=2, types=OTHERS,
             options=("--person", "who", "--parties-per-person", "2", *ALL)),
    Scenario("persons of a table of Arrow", "arrow", "person", BY_PERSON, types=TYPES,
             settings={"preprocess": "columns", "persons": "who", **WHOLE}),
    Scenario("rows of an NPZ", "npz", "party", ROWS, grouped=False, options=ALL),
    Scenario("records of an NPZ, one number", "npz", options=("--neighbours", "replace", *LAPLACE)),
    Scenario("the paper's correlated noise", "csv", "party", options=("--schedule", "optimal", "--permutations", "4")),
    Scenario("persons of a CSV", "csv", "person", BY_PERSON, spread=2,
             options=("--person", "who", "--parties-per-person", "2", *ALL)),
    Scenario("persons of several CSV", "csv", "person", BY_FILE, files=3, options=("--person", "who", *ALL)),
    Scenario("persons of several Parquet", "parquet", "person", BY_FILE, files=3, spread=3,
             options=("--person", "who", "--parties-per-person", "2", *ALL)),
    Scenario("persons of several CSV, one number", "csv", "person", BY_FILE, files=3, spread=2,
             options=("--person", "who", *LAPLACE)),
    Scenario("records of a pandas frame", "pandas", settings={"preprocess": "columns", **WHOLE}),
    Scenario("persons of a pandas frame", "pandas", "person", BY_PERSON,
             settings={"preprocess": "columns", "persons": "who", **WHOLE}),
    Scenario("persons of a pandas frame, one number: a score", "pandas", "person", BY_PERSON,
             settings={"preprocess": "columns", "persons": "who", "projection": dpv.Projection(1, "loss")}),
    Scenario("records of a polars frame", "polars", settings={"preprocess": "columns", **WHOLE}),
    Scenario("parties of arrays", "arrays", "party", ("site", "age", "member", "label"), settings=WHOLE),
    Scenario("records of a CSV, described", "csv"),
    Scenario("records of a regression, described", "parquet", regression=True, options=("--neighbours", "replace")),
    Scenario("persons of several CSV, described", "csv", "person", BY_FILE, files=3, options=("--person", "who")),
    Scenario("persons of a pandas frame, described", "pandas", "person", BY_PERSON,
             settings={"preprocess": "columns", "persons": "who", "game": "refit"}),
    Scenario("parties of a CSV, described", "csv", "party", (*ROWS, "site")),
    Scenario("parties of arrays, described", "arrays", "party", ("site", "age", "member", "label"),
             settings={"game": "refit"}),
    Scenario("persons of a pandas frame, described, by a network's head", "pandas", "person", BY_PERSON,
             settings={"preprocess": "columns", "persons": "who", "game": "refit", "model": network}),
    Scenario("records of a CSV, counted in trees", "csv", options=TREES),
    Scenario("persons of several CSV, counted in trees", "csv", "person", BY_FILE, files=3, spread=2,
             options=("--person", "who", "--neighbours", "replace", *TREES)),
    Scenario("parties of a Parquet, counted in trees", "parquet", "party", options=TREES),
    Scenario("persons of a pandas frame, counted in trees", "pandas", "person", BY_PERSON,
             settings={"preprocess": "columns", "persons": "who", "model": "trees"}),
)  # fmt: skip


@dataclass(frozen=True)
class World:
    """What the parties hold: per file its records; a record that is bytes is a raw line of a text file."""

    files: tuple[tuple[Record | bytes, ...], ...]


def _person(record: Record | bytes) -> str | None:
    return None if isinstance(record, bytes) else identity(record.get("who"))


def base_world(scenario: Scenario, seed: int) -> World:
    """Return plain records; ids such that persons have several rows, and are in `spread` parties."""
    generator = np.random.default_rng(seed)
    files: list[list[Record | bytes]] = [[] for _ in range(scenario.files)]
    for number in range(18):
        site = scenario.sites[number % 3]
        record = _plain(generator, scenario)
        record["site"] = site
        person = number // 6 * 3 + number % 3 if scenario.spread == 1 else number // 6 * 2 + number % 2
        record["who"] = [f"{person:03d}", person, f"P{person}"][person % 3]
        if scenario.types and number in (7, 11):
            record["who"] = "NA"  # a row of nobody
        files[number % 3 if scenario.files > 1 else 0].append(record)
    return World(tuple(tuple(one) for one in files))


def _plain(generator: np.random.Generator, scenario: Scenario) -> Record:
    age = int(generator.integers(20, 80))
    grade = int(generator.integers(1, 4))
    town = str(generator.choice(["north", "south", "Zürich", 'the "old" town', "a, b"]))
    label: Any = int(age + 10 * (grade == 2) + generator.normal(0, 8) > 50)
    if scenario.regression:
        label = round(float(age / 10 + grade + generator.normal()), 3)
    return {
        "age": age if generator.random() < 0.8 else None, "grade": grade, "town": town,
        "member": bool(generator.random() < 0.5), "day": datetime.date(2024, int(generator.integers(1, 4)), 1),
        "label": label,
    }  # fmt: skip


def public_rows(scenario: Scenario) -> list[Record]:
    """Return the public set: its grades have a letter among them, so that they are categories."""
    generator = np.random.default_rng(99)
    rows = [_plain(generator, scenario) for _ in range(40)]
    for row in rows[::9]:
        row["grade"] = "x"
    for row in rows:
        row["age"] = 50 if row["age"] is None else row["age"]
    return rows


GIANT = "9" * (LONGEST_CELL + 1)
STACK = "a" + "\u0316\u0300" * MOST_MARKS
NASTY: tuple[Any, ...] = (
    "", None, "maybe", "1e400", "-1e999", "inf", "NaN", "NA", "?", 5, 2, 2.0, 2.5, 1e300, -1e-300, -0.0, True, False,
    "TRUE", "true", "2.0", " 2 ", "+2", "007", "0", "1", "9", "x", "new", "s2", "Zu\u0308rich", "Z\u00fcrich", "\u202e",
    "\x1b[31m", "=1+1", "'", '"', '""', '"open', 'close"', "a,b", "a;b", "a\tb", "\r", "\x00", "\ufffd", "x" * 2000,
    10**18, float(2**53), 2**70, "9007199254740993.0", datetime.date(1999, 12, 31), "2024-02-01 00:00:00",
    datetime.datetime(2024, 2, 1, 10, 30), "1_000", "0x1F", "\u0661", "[red]", "<b>", "%s", "\\", "nan,nan", 1e-310,
    b"\xff\xfe", b"Z\xfcrich", b"NA", b"7", GIANT, STACK, "\u0f73" * 99, b"9" * (LONGEST_CELL + 1), -(2**62), 2**45,
)  # fmt: skip


NOBODY = (None, "", 2.0**60, "NA", GIANT, STACK, b"NA")


def changed(world: World, scenario: Scenario, generator: np.random.Generator) -> tuple[World, Any]:
    """Return a neighbour, and the unit that was changed: a party's number, (file, place) of a record, or an id."""
    if scenario.unit == "person":
        return _changed_person(world, scenario, generator)
    file = int(generator.integers(len(world.files)))
    place = int(generator.integers(len(world.files[file])))
    moved = {place}
    unit: Any = (file, place)
    if scenario.unit == "party" and scenario.grouped:
        chosen = world.files[file][place]
        assert not isinstance(chosen, bytes)
        moved = {
            at
            for at, one in enumerate(world.files[file])
            if not isinstance(one, bytes) and one["site"] == chosen["site"]
        }
        unit = chosen["site"]
    records = [
        _changed_record(one, scenario, generator) if at in moved else one for at, one in enumerate(world.files[file])
    ]
    return World((*world.files[:file], tuple(records), *world.files[file + 1 :])), unit


def _changed_record(record: Record | bytes, scenario: Scenario, generator: np.random.Generator) -> Record | bytes:
    """A record with everything but its party rewritten; in a text file it may be no record at all."""
    assert not isinstance(record, bytes)
    private = [name for name in scenario.columns if name not in ("site", "who")]
    found = dict(record)
    for name in private:
        how = generator.random()
        if how < 0.35:
            found[name] = NASTY[int(generator.integers(len(NASTY)))]
        elif how < 0.6:
            found[name] = _plain(generator, scenario)[name]
    if scenario.is_text and generator.random() < 0.3:
        return _malformed(found, scenario, generator)
    return found


def _malformed(record: Record, scenario: Scenario, generator: np.random.Generator) -> bytes:
    """A line that is no record, in which the party still stands first or last."""
    own = _line({"site": record["site"]}, replace(scenario, columns=("site",)))
    private = replace(scenario, columns=tuple(name for name in scenario.columns if name != "site"))
    mark = scenario.separator.encode()
    cells = _line(record, private).decode("utf-8", errors="replace").encode().split(mark)
    if scenario.columns[0] == "site":
        cells = [own, *cells]
    elif scenario.columns[-1] == "site":
        cells = [*cells, own]
    first = 1 if scenario.columns[0] == "site" else 0
    last = len(cells) - 1 if scenario.columns[-1] == "site" else len(cells)
    at = int(generator.integers(first, max(first + 1, last)))
    how = int(generator.integers(7))
    if how == 0:
        cells[at : at + 1] = [b'"' + cells[at]]
    elif how == 1:
        cells[at : at + 1] = [cells[at]] + [b"s2", b""] * int(generator.integers(1, 4))
    elif how == 2:
        del cells[at : min(last, at + 2)]
    elif how == 3:
        cells[at] = b"\xff\xfe" + cells[at]
    elif how == 4:
        cells[at] = cells[at] + b"\0"
    elif how == 5:
        cells[at] = b'"a"b' + cells[at]
    else:
        cells[at] = b"9" * (2**20 + 5)
    line = mark.join(cells)
    return b"" if not scenario.grouped and scenario.files == 1 and generator.random() < 0.2 else line


def _changed_person(world: World, scenario: Scenario, generator: np.random.Generator) -> tuple[World, str]:
    """Another number of rows, other cells, another id; the numbers of persons of the parties stay."""
    everyone = sorted({one for file in world.files for record in file if (one := _person(record)) is not None})
    person = everyone[int(generator.integers(len(everyone)))]
    new = next(record for file in world.files for record in file if _person(record) == person)
    assert not isinstance(new, bytes)
    name = new["who"]
    if generator.random() >= 0.5:
        ids: list[Any] = ["0099", "zz", "P 1", "12345678901234567890"]
        ids += [b"P\xff", b"zz"] if scenario.types else []
        name = ids[int(generator.integers(len(ids)))]
    files = []
    for file in world.files:
        homes = sorted({r["site"] for r in file if not isinstance(r, bytes) and _person(r) == person})
        others: list[Record | bytes] = [record for record in file if _person(record) != person]
        for home in homes:
            for number in range(int(generator.integers(1, 5))):
                record = _changed_record({**new, "site": home, "who": name}, replace(scenario, format="x"), generator)
                assert not isinstance(record, bytes)
                if not number and scenario.is_text:  # one row keeps its id, so that the number of persons stays
                    record = {name: "" if cell == "\x00" else cell for name, cell in record.items()}
                elif number:
                    how = generator.random()
                    if how < 0.2:
                        record["who"] = NOBODY[int(generator.integers(len(NOBODY)))]
                    elif how < 0.4 and scenario.is_text:
                        spoilt = _malformed(record, scenario, generator)
                        others.insert(int(generator.integers(len(others) + 1)), spoilt)
                        continue
                others.insert(int(generator.integers(len(others) + 1)), record)
        files.append(tuple(others))
    return World(tuple(files)), person


def _text(cell: Any) -> str:
    if isinstance(cell, bytes):
        return cell.decode("utf-8", errors="replace")
    return "" if cell is None else str(cell)


def _line(record: Record | bytes, scenario: Scenario) -> bytes:
    if isinstance(record, bytes):
        return record
    out = io.StringIO()
    cells = [_text(record[name]).replace("\n", " ").replace("\r", " ") for name in scenario.columns]
    csv.writer(out, delimiter=scenario.separator, lineterminator="").writerow(cells)
    return out.getvalue().encode("utf-8", errors="surrogatepass")


def _typed(cells: list[Any]) -> pa.Array:
    """A column as a writer of typed files makes it: of whole numbers, numbers, booleans, dates, or else texts."""
    kinds = {type(cell) for cell in cells if cell is not None}
    whole = all(abs(cell) < 2**63 for cell in cells if type(cell) is int)
    if kinds <= {bool} or (kinds <= {int} and whole) or kinds <= {datetime.date}:
        return pa.array(cells)
    if kinds <= {int, float, bool}:
        return pa.array([None if cell is None else float(cell) for cell in cells])
    return _strings(cells, "string")


def _strings(cells: list[Any], kind: str) -> pa.Array:
    """Texts, or bytes, as they are: nothing checks that they are UTF-8."""
    raw = [_raw(cell) for cell in cells]
    if kind == "dictionary":
        known = list(dict.fromkeys(cell for cell in raw if cell is not None))
        places = pa.array([None if cell is None else known.index(cell) for cell in raw], type=pa.int32())
        return pa.DictionaryArray.from_arrays(places, _strings(known, "string"))
    large = kind == "large_string"
    stored = pa.array(raw, type=pa.large_binary() if large else pa.binary())
    if kind == "binary":
        return stored
    holds, offsets, letters = stored.buffers()
    made = (pa.LargeStringArray if large else pa.StringArray).from_buffers(len(raw), offsets, letters, holds)
    return made.cast("string_view") if kind == "string_view" else made


def _raw(cell: Any) -> bytes | None:
    if cell is None or isinstance(cell, bytes):
        return cell
    return str(cell).encode("utf-8", errors="surrogatepass")


def _as_type(cells: list[Any], kind: str) -> pa.Array:
    """A column of a type of Arrow, whatever the cells are; one that it cannot hold is missing."""
    if kind == "timestamp":  # in seconds: most whole numbers are years that Python has no dates for
        return pa.array([_seconds(cell) for cell in cells], type=pa.int64()).cast(pa.timestamp("s"))
    if kind == "decimal":
        return pa.array([_decimal(cell) for cell in cells], type=pa.decimal256(76, 6))
    return _strings(cells, kind)


def _seconds(cell: Any) -> int | None:
    if type(cell) is int:
        return cell if abs(cell) < 2**52 else None  # more, and its writer would stop
    if not isinstance(cell, datetime.date):
        return None
    moment = cell if isinstance(cell, datetime.datetime) else datetime.datetime(cell.year, cell.month, cell.day)
    return int(moment.replace(tzinfo=datetime.UTC).timestamp())


def _decimal(cell: Any) -> Decimal | None:
    if not isinstance(cell, int | float) or not abs(cell) < 1e60:
        return None
    with localcontext(prec=76):
        return Decimal(cell).quantize(Decimal("1e-6"))


def _table(columns: dict[str, list[Any]], scenario: Scenario) -> pa.Table:
    types = scenario.types
    made = {name: _as_type(cells, types[name]) if types else _typed(cells) for name, cells in columns.items()}
    return pa.table(made)


def write(records: tuple[Record | bytes, ...], path: Path, scenario: Scenario) -> None:
    """Write the records of one file."""
    if scenario.is_text:
        lines = [scenario.separator.join(scenario.columns).encode(), *(_line(record, scenario) for record in records)]
        content = b"\n".join(lines) + b"\n"
        path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
        return
    columns = {name: [record[name] for record in records if not isinstance(record, bytes)] for name in scenario.columns}
    if scenario.format == "parquet":
        parquet.write_table(_table(columns, scenario), path)
    else:
        np.savez(path, **{name: _array(cells) for name, cells in columns.items()})


def _array(cells: list[Any]) -> Any:
    kinds = {type(cell) for cell in cells}
    if kinds <= {bool} or (kinds <= {int} and all(abs(cell) < 2**63 for cell in cells)):
        return np.array(cells)
    if kinds <= {int, float, bool, type(None)}:
        return np.array([np.nan if cell is None else float(cell) for cell in cells])
    # NumPy drops NULs at the end of a text; nothing of ours would see them.
    return np.array([_text(cell) for cell in cells])


@dataclass(frozen=True)
class Seen:
    """What one world shows: to the mechanism (whole numbers of every unit), and to everybody else."""

    contributions: list[Noted]
    outside: dict[str, Any]


Memo = dict[Any, Any]
Noted = tuple[Tensor, Tensor]
"""Parties (b,), and the whole numbers that they, or their records or persons, contribute: (b, d) or (b, units, d)."""


@contextmanager
def _held_fixed(memo: Memo) -> Iterator[list[Noted]]:
    """Hold the mechanism's output fixed, and note what goes into it.

    Choices are made once for equal public numbers, values with fresh noise once for tables of the same bytes.
    """
    noted: list[Noted] = []
    release, clip = Contributions.release, Contributions._clip
    with_data = plan_module._with_data

    def planned(utility: Any, settings: dpv.Settings, sizes: Any, units: Any, *more: Any) -> Any:
        key = ("plan", sizes.tobytes(), units.tobytes(), repr(settings.privacy), str(settings.schedule))
        if key not in memo:
            memo[key] = with_data(utility, settings, sizes, units, *more)
        return memo[key]

    def released(self: Contributions, clipped: Tensor, noise: Tensor | None, who: Tensor, grid: Any) -> Tensor:
        release(self, clipped, noise, who, grid)
        fixed: Tensor = release(self, emptied(clipped), noise, who, grid)
        return fixed

    def clipping(self: Contributions, gradients: Tensor, who: Tensor, grid: Any) -> Tensor:
        clipped = clip(self, gradients, who, grid)
        if grid is not None:
            noted.append((who, clipped))
            memo["described"], memo["counted"] = (
                isinstance(self._model, kind) for kind in (DescriptionModel, LeafOnes)
            )
        return clipped

    def in_order(self: dpv.Local, work: Callable[[Any], Any], items: Iterable[Any], share: bool = True) -> list[Any]:
        return [work(item) for item in items]  # so that notes are, too

    def once(make: Callable[..., Any]) -> Callable[..., Any]:
        def remembered(at: Any, *more: Any) -> Any:
            key = (make.__name__, at.sizes.tobytes(), at.units.tobytes(), repr(more), repr(at.settings.privacy))
            if key not in memo:
                memo[key] = make(at, *more)
            return memo[key]

        return remembered

    def refitting(surrogate: Any, *public: Any) -> Any:
        key = ("refitting", id(surrogate))  # choices are made once, so that the same job has the same one
        if key not in memo:
            memo[key] = Refitting(surrogate, *public)
        return memo[key]

    def renoised(result: Any, game: Any, draws: int, *more: Any) -> Any:
        key = ("draws", _table_digest(result.table), repr(result.semivalues), result.walks, draws)
        if key not in memo:
            memo[key] = draw_noise(result, game, draws, *more)
        return memo[key]

    with (
        mock.patch.object(secrets, "randbits", Keys()),
        mock.patch.object(Contributions, "release", released),
        mock.patch.object(Contributions, "_clip", clipping),
        mock.patch.object(dpv.Local, "map", in_order),
        mock.patch.object(run_module, "choose", once(choose)),
        mock.patch.object(plan_module, "_with_data", planned),
        mock.patch.object(refit_module, "Refitting", refitting),
        mock.patch.object(noisy_module, "draw_noise", renoised),
    ):
        yield noted


def _table_digest(table: dpv.Table) -> str:
    """A digest of all that a table's file holds."""
    header, tensors = table.parts()
    content = hashlib.sha256(repr(sorted(header.items())).encode())
    for name in sorted(tensors):
        content.update(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode())
        content.update(tensors[name].contiguous().numpy().tobytes())
    return content.hexdigest()


def observe(world: World, scenario: Scenario, folder: Path, memo: Memo) -> Seen:
    """Run a world from its files (or frames) to the last byte written."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    logs: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logs.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger("dpvalue")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        with _held_fixed(memo) as noted, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            in_memory = scenario.format in ("pandas", "polars", "arrow", "arrays")
            outside = (_in_memory if in_memory else _from_files)(world, scenario, folder)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    outside |= {"logs": logs, "warnings": [str(one.message) for one in caught]}
    return Seen(noted, outside)


def _from_files(world: World, scenario: Scenario, folder: Path) -> dict[str, Any]:
    train = [folder / f"site{number}.{scenario.format}" for number in range(scenario.files)]
    for path, records in zip(train, world.files, strict=True):
        write(records, path, scenario)
    public = [name for name in scenario.columns if name not in ("site", "who")]
    plain = replace(scenario, columns=tuple(public), format="csv", separator=",")
    write(tuple(public_rows(scenario)), folder / "public.csv", plain)
    arguments = ["run", *map(str, train), "--test", str(folder / "public.csv"), "--target", "label", "--force"]
    arguments += ["--out", str(folder / "results"), "--unit", scenario.unit, "--delta", "1e-4", *scenario.options]
    if scenario.grouped and scenario.files == 1:
        arguments += ["--group", "site"]
    if scenario.format != "npz" and "--epsilon" not in scenario.options:
        arguments += ["--epsilon", "2"]
    done = CliRunner().invoke(COMMAND, arguments, catch_exceptions=True)
    written = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    inputs = {path.name for path in train}
    return {
        "exit code": done.exit_code,
        "exception": repr(done.exception),
        "printed": done.output.replace(str(folder), ""),
        "files": {name: _bytes(path, folder) for name, path in written.items() if name not in inputs},
    }


def _bytes(path: Path, folder: Path) -> str:
    return hashlib.sha256(path.read_bytes().replace(str(folder).encode(), b"")).hexdigest()


def _in_memory(world: World, scenario: Scenario, folder: Path) -> dict[str, Any]:
    columns = {
        name: [record[name] for record in world.files[0] if not isinstance(record, bytes)] for name in scenario.columns
    }
    public = {
        name: [row[name] for row in public_rows(scenario)] for name in scenario.columns if name not in ("site", "who")
    }
    spread = 2 if scenario.unit == "person" else 1
    settings: dict[str, Any] = {
        "privacy": dpv.Privacy(2.0, 1e-4, scenario.unit, parties_per_person=spread), "progress": False, "seed": 3,
        **scenario.settings,
    }  # fmt: skip
    if scenario.format == "arrays":
        names = [name for name in public if name != "label"]
        X = [[record[name] for name in names] for record in world.files[0] if not isinstance(record, bytes)]
        X_public = np.array([[float(row[name]) for name in names] for row in public_rows(scenario)])
        given: Any = (X, columns["label"])
        test: Any = (X_public, np.array(public["label"]))
        settings |= {"groups": columns["site"]}
    else:
        make: Any = {"pandas": pd.DataFrame, "polars": _polars, "arrow": partial(_table, scenario=scenario)}
        given, test = make[scenario.format](columns), make[scenario.format](public)
        settings |= {"groups": "site", "target": "label"}
    told: dict[str, Any] = {}
    try:
        result = dpv.value(given, test, **settings)
    except Exception as error:
        return {"exception": repr(error)}
    result.save(folder / "result")
    told["printed"] = repr(result) + str(result.guarantee) + repr(result.table)
    told["values"] = result.frame(noise=True).to_csv()
    told["files"] = _bytes(folder / "result", folder)
    return told


def _polars(columns: dict[str, list[Any]]) -> Any:
    return polars.from_arrow(pa.table({name: _typed(cells) for name, cells in columns.items()}))


def compare(before: Seen, after: Seen, world: World, scenario: Scenario, unit: Any) -> list[str]:
    """Return what one unit moved that it must not: anything outside, and other units' whole numbers."""
    found = [f"outside: {name}" for name, one in before.outside.items() if after.outside.get(name) != one]
    if len(before.contributions) != len(after.contributions):
        return [*found, "another number of contributions"]
    for (who, one), (asked, other) in zip(before.contributions, after.contributions, strict=True):
        if one.shape != other.shape or not torch.equal(who, asked):
            found.append(f"contributions of shape {tuple(other.shape)}, not {tuple(one.shape)}")
        elif not _only_one_moved(who, one, other, world, scenario, unit):
            found.append("the whole numbers of another unit")
    return found


def _only_one_moved(who: Tensor, one: Tensor, other: Tensor, world: World, scenario: Scenario, unit: Any) -> bool:
    if scenario.unit == "person":
        # Where a person stands among others is arbitrary: in each party at most one vector may be another.
        return all(_differ_by_one(a, b) for a, b in zip(one, other, strict=True))
    moved = (one != other).any(-1).nonzero().tolist()
    if scenario.unit == "record":
        return all([int(who[at]), place] == _place(world, scenario, unit) for at, place in moved)
    party = unit[1] if isinstance(unit, tuple) else sorted(scenario.sites).index(unit)
    return all(int(who[at]) == party for (at,) in moved)


def _differ_by_one(one: Tensor, other: Tensor) -> bool:
    before, after = (Counter(tuple(row) for row in rows.tolist()) for rows in (one, other))
    return (before - after).total() <= 1 and (after - before).total() <= 1


def _place(world: World, scenario: Scenario, unit: tuple[int, int]) -> list[int]:
    """The party of a record, and its place there: files in order, or groups by name."""
    file, place = unit
    if scenario.files > 1:
        return [file, place]
    sites = [record["site"] for record in world.files[0] if not isinstance(record, bytes)]
    names = sorted(set(sites))  # as texts: "s10" before "s2"
    return [names.index(sites[place]), sites[:place].count(sites[place])]


def run_changes(scenario: Scenario, changes: int, seed: int) -> dict[str, Any]:
    """Make so many changes to one world of a scenario; return how many moved anything that they must not, and which."""
    generator = np.random.default_rng([seed, SCENARIOS.index(scenario)])
    world = base_world(scenario, seed)
    memo: Memo = {}
    faults: list[str] = []
    silent = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "job"
        before = observe(world, scenario, folder, memo)
        assert before.outside.get("exit code", 0) == 0, before.outside
        assert before.outside.get("exception", "None") == "None", before.outside
        assert memo["described"] or "described" not in scenario.name, "the refit game was not played"
        assert memo["counted"] == ("trees" in scenario.name), "trees were to be counted in"
        assert sum(int(one.any(-1).sum()) for _, one in before.contributions) > 2, "nothing was contributed"
        assert observe(world, scenario, folder, memo).outside == before.outside, (
            "the same world, and not the same bytes"
        )
        for number in range(changes):
            other, unit = changed(world, scenario, generator)
            after = observe(other, scenario, folder, memo)
            pairs = zip(before.contributions, after.contributions, strict=False)
            silent += all(torch.equal(one, other) for (_, one), (_, other) in pairs)
            faults += [f"change {number}: {fault}" for fault in compare(before, after, world, scenario, unit)]
    return {"scenario": scenario.name, "changes": changes, "seed": seed, "without effect": silent, "faults": faults}


def _commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip()


Task = tuple[Scenario, int, int]


def run_all(tasks: list[Task], workers: int, notes: Path | None) -> list[dict[str, Any]]:
    """Return what each task found. With notes, a line for each that is done: a run that was stopped goes on there."""
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    done = {} if notes is None else _noted(notes)
    left = [task for task in tasks if _key(task) not in done]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        under_way = {pool.submit(run_changes, *task): task for task in left}
        for future in as_completed(under_way):
            task = under_way[future]
            found = done[_key(task)] = future.result()
            print(f"{found['scenario']}, world {found['seed']}: {task[1]} changes, {len(found['faults'])} faults")  # noqa: T201
            for fault in found["faults"][:5]:
                print(f"  {fault}", flush=True)  # noqa: T201
            if notes is not None:
                with notes.open("a") as file:
                    file.write(json.dumps({"commit": _commit(), **found}) + "\n")
    return [done[_key(task)] for task in tasks]


def _key(task: Task) -> tuple[str, int, int]:
    scenario, changes, seed = task
    return scenario.name, changes, seed


def _noted(notes: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """What was done at this commit. A last line that was cut off is dropped, so that others can follow."""
    found = {}
    whole = notes.read_text().split("\n")[:-1] if notes.is_file() else []
    notes.write_text("".join(f"{line}\n" for line in whole))
    for line in whole:
        one = json.loads(line)
        if one.pop("commit") == _commit():
            found[one["scenario"], one["changes"], one["seed"]] = one
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Change one unit, many times over, and see whether anything else moves."
    )
    parser.add_argument("--changes", type=int, default=1000, help="in all, over all scenarios")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worlds", type=int, default=4, help="worlds of each scenario")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, default=None, help="results; a stopped run goes on from FILE.part")
    given = parser.parse_args()
    each = -(-given.changes // (len(SCENARIOS) * given.worlds))
    notes = None if given.json is None else given.json.with_name(f"{given.json.name}.part")
    began, resumed = time.perf_counter(), notes is not None and notes.is_file()
    tasks = [(scenario, each, given.seed + world) for world in range(given.worlds) for scenario in SCENARIOS]
    done = run_all(tasks, given.workers, notes)
    if given.json is not None and notes is not None:
        whole = {
            "by": f"python -m tests.neighbours --changes {given.changes} --worlds {given.worlds} --seed {given.seed}",
            "changes": sum(one["changes"] for one in done),
            "faults": sum(len(one["faults"]) for one in done),
            "seconds": None if resumed else round(time.perf_counter() - began),  # of a whole run alone
            "commit": _commit(),
            "scenarios": done,
        }
        given.json.write_text(json.dumps(whole, indent=1) + "\n")
        notes.unlink()


if __name__ == "__main__":
    main()
