"""Outputs recomputed from job and releases, and compared: text exactly, numbers up to rounding.

Each comparison returns what differs, a line each, and what was found where that is as good as what was made. From the
latter, what is made of numbers (a page, a sentence, a rank) is made again and compared to the letter.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from reprlib import Repr
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from dpvalue.arrays import Floats
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import study_record
from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.progress import Progress
from dpvalue.protocol.archive import Tensors, as_text
from dpvalue.report import report_page
from dpvalue.report.record import Record
from dpvalue.runs.config import RunConfig
from dpvalue.runs.execute import make_values, value_table
from dpvalue.runs.folder import record_json, values_csv
from dpvalue.values.payouts import Shares
from dpvalue.values.result import Result, ranks
from dpvalue.values.table import Table
from dpvalue.values.verdict import sentence_of_shares

if TYPE_CHECKING:
    import pandas

CLOSE = 1e-5
"""How far numbers may be apart, as a share of the largest of their kind: other processors round otherwise."""

_BEFORE, _SHOWN = 20, 60

_SHORT = Repr()

_SHORT.maxstring = _SHORT.maxother = 2 * _SHOWN


def differs(file: str, place: str, found: object, made: object) -> str:
    """Return the line that says what differs, where."""
    return f"{file}, {place}: {_SHORT.repr(found)}; recomputed: {_SHORT.repr(made)}"


def compare_text(file: str, found: str, made: str) -> list[str]:
    """Return what differs between two texts, line by line; only the first, where lines are missing or too many."""
    if found == made:
        return []
    lines, ours = found.split("\n"), made.split("\n")
    differences = [
        differs(file, f"line {number}", *_around(line, own))
        for number, (line, own) in enumerate(zip(lines, ours, strict=False), start=1)
        if line != own
    ]
    if len(lines) == len(ours):
        return differences
    return [*differences[:1], differs(file, "its end", f"{len(lines)} lines", f"{len(ours)} lines")]


def _around(line: str, own: str) -> tuple[str, str]:
    """The parts of two lines around the first letter that differs."""
    first = next((at for at, (a, b) in enumerate(zip(line, own, strict=False)) if a != b), min(len(line), len(own)))
    start = max(0, first - _BEFORE)
    return line[start : start + _SHOWN], own[start : start + _SHOWN]


def compare_tree(
    file: str, found: Any, made: Any, rooms: Mapping[str, float], place: str = "", room: float = 0.0
) -> tuple[Any, list[str]]:
    """Compare what two JSON texts hold, leaf by leaf; `rooms` says where floats may be how far apart.

    Returns what was found, with what was made in place of all that differs; and the differences.
    """
    room, name = rooms.get(place, room), place or "its content"
    if isinstance(found, dict) and isinstance(made, dict):
        more = [key for key in found if key not in made]
        differences = [differs(file, f"{place}.{key}".strip("."), found[key], "nothing") for key in more]
        merged = dict(made)
        for key, own in made.items():
            inside = f"{place}.{key}".strip(".")
            if key not in found:
                differences.append(differs(file, inside, "nothing", own))
                continue
            merged[key], more = compare_tree(file, found[key], own, rooms, inside, room)
            differences += more
        return merged, differences
    if isinstance(found, list) and isinstance(made, list) and len(found) == len(made):
        pairs = [
            compare_tree(file, one, own, rooms, f"{place}[{number}]", room)
            for number, (one, own) in enumerate(zip(found, made, strict=True))
        ]
        return [pair[0] for pair in pairs], [line for pair in pairs for line in pair[1]]
    if type(found) is type(made) and (found == made or (found != found and made != made)):  # NaN is NaN
        return made, []
    if type(found) is type(made) is float and abs(found - made) <= room:
        return found, []
    if isinstance(found, str) and isinstance(made, str):
        return made, [differs(file, name, *_around(found, made))]
    return made, [differs(file, name, found, made)]


def compare_tensors(file: str, found: Tensors, made: Tensors) -> list[str]:
    """Return what differs between tensors: their names, shapes, types and numbers."""
    differences = []
    for name in sorted(found.keys() | made.keys()):
        one, own = found.get(name), made.get(name)
        if one is None or own is None or one.shape != own.shape or one.dtype != own.dtype:
            kinds = ("nothing" if it is None else f"{it.dtype} of {tuple(it.shape)}" for it in (one, own))
            differences.append(differs(file, name, *kinds))
            continue
        room = CLOSE * largest(own.to(torch.float64).numpy()) if own.is_floating_point() else 0.0
        far = ~((one == own) | ((one - own).abs().to(torch.float64) <= room))  # NaN is far
        if bool(far.any()):
            place = tuple(int(number) for number in far.nonzero()[0])
            differences.append(differs(file, f"{name}{list(place)}", one[place].item(), own[place].item()))
    return differences


def compare_values(
    file: str, text: str, made: pandas.DataFrame, names: tuple[str, ...]
) -> tuple[pandas.DataFrame, list[str]]:
    """Compare values.csv with the values of these semivalues, cell by cell.

    Returns the values as they were found, with what was made in place of all that differs; and the differences.
    """
    try:
        found = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        return made, [f"{file} cannot be read as CSV: {error}"]
    cells = _cells(made)
    if not found or found[0] != cells[0]:
        return made, compare_text(file, ",".join(found[0] if found else ()), ",".join(cells[0]))
    if [len(line) for line in found] != [len(line) for line in cells]:
        return made, compare_text(file, text, _text(made)) or [f"{file}: its lines cannot be compared"]
    merged, differences = _with_numbers(found, cells, made, names), []
    for number, (line, own) in enumerate(zip(found, _cells(merged), strict=True), start=1):
        differences += [
            differs(file, f"line {number}, {column}", cell, ours)
            for column, cell, ours in zip(cells[0], line, own, strict=True)
            if cell != ours
        ]
    return merged, differences or compare_text(file, text, _text(merged))


def _with_numbers(
    found: list[list[str]], cells: list[list[str]], made: pandas.DataFrame, names: tuple[str, ...]
) -> pandas.DataFrame:
    """The values that were made, with the numbers that were found where they are close, and ranks of those."""
    merged = made.copy()
    for place, column in enumerate(made.columns):
        if made[column].dtype != np.float64:
            continue
        room = CLOSE * _largest(made, column, names)
        numbers = made[column].to_numpy().copy()
        for number, (line, own) in enumerate(zip(found[1:], cells[1:], strict=True)):
            if line[place] != own[place] and _is_close(line[place], numbers[number], room):
                numbers[number] = float(line[place])
        merged[column] = numbers
    merged["rank"] = ranks(merged[names[0]])
    return merged


def _is_close(cell: str, number: float, room: float) -> bool:
    try:
        found = float(cell)
    except ValueError:
        return False
    return abs(found - number) <= room


def _largest(made: pandas.DataFrame, column: str, names: tuple[str, ...]) -> float:
    """The largest number of a column's kind: errors and edges of a value are as large as the value."""
    kinds = (name for name in (*names, "payout") if column.startswith(f"{name}_") and "_per_" not in column)
    return largest(made[[column, next(kinds, column)]].to_numpy(dtype=np.float64))


def largest(numbers: Floats) -> float:
    """Return the largest of some numbers, whatever their sign; 0 where none is finite."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _text(values: pandas.DataFrame) -> str:
    return b"".join(values_csv(values)).decode()


def _cells(values: pandas.DataFrame) -> list[list[str]]:
    return list(csv.reader(io.StringIO(_text(values), newline="")))


OUTPUTS = ("run.toml", "table.safetensors", "values.csv", "run.json", "report.html")
"""What is made again, beside requests of later rounds."""


@dataclass(frozen=True, eq=False)
class RebuiltOutputs:
    """What the job and the releases make: the result, what values.csv holds, and the record."""

    result: Result
    values: pd.DataFrame
    record: Record


def remake(coordinator: Coordinator, utility: Utility, options: RunConfig, progress: Progress) -> RebuiltOutputs:
    """Return what a job and releases make under the options, as `valuing.value_study` does."""
    table = coordinator.table()
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    record = study_record(coordinator, options, table)
    return RebuiltOutputs(result, *make_values(record, result, None, progress, options.pay))


def as_recorded(made: RebuiltOutputs, stored: dict[str, Any]) -> RebuiltOutputs:
    """What was made, with the day and the versions of Python and torch as run.json says them."""
    versions, day = stored["versions"], str(stored.get("made"))
    texts = {name: versions[name] for name in ("python", "torch") if isinstance(versions.get(name), str)}
    record = replace(made.record, versions=replace(made.record.versions, **texts))
    with suppress(ValueError):  # what is no day differs from today
        record = replace(record, made=date.fromisoformat(day).isoformat())
    return replace(made, record=record)


def compare_outputs(folder: Path, stored: dict[str, Any], text: str, made: RebuiltOutputs) -> list[str]:
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


def _compare_table(folder: Path, made: RebuiltOutputs) -> list[str]:
    differences: list[str] = []
    with collecting(differences, "table.safetensors"):
        content = (folder / "table.safetensors").read_bytes()
        (header, tensors), own = Table.archive.unpack(content, "table.safetensors"), made.result.table.parts()
        differences += compare_tree("table.safetensors", header, json.loads(as_text(own[0])), {})[1]
        differences += compare_tensors("table.safetensors", tensors, own[1])
        if not differences and Table.archive.pack(header, tensors) != content:
            differences.append("table.safetensors: it holds more than a table")
    return differences


def _with_payouts(record: Record, made: RebuiltOutputs, values: pd.DataFrame) -> Record:
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
