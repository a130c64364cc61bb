"""Rebuild the outputs of a study from job and releases, and compare them: texts exactly, numbers up to rounding.

A comparison returns one line per difference. Stored numbers within the tolerance replace the rebuilt ones; texts made
of numbers (report, sentences, ranks) are then rebuilt from them and compared exactly.
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
"""The tolerance, relative to the largest number of a kind: processors differ in rounding."""

_BEFORE, _SHOWN = 20, 60

_SHORT = Repr()

_SHORT.maxstring = _SHORT.maxother = 2 * _SHOWN


def difference(file: str, place: str, stored: object, rebuilt: object) -> str:
    """Return the line that states a difference and its place."""
    return f"{file}, {place}: {_SHORT.repr(stored)}; recomputed: {_SHORT.repr(rebuilt)}"


def compare_text(file: str, stored: str, rebuilt: str) -> list[str]:
    """Return the differences between two texts, line by line; only the first if the numbers of lines differ."""
    if stored == rebuilt:
        return []
    lines, rebuilt_lines = stored.split("\n"), rebuilt.split("\n")
    differences = [
        difference(file, f"line {number}", *_around(line, rebuilt_line))
        for number, (line, rebuilt_line) in enumerate(zip(lines, rebuilt_lines, strict=False), start=1)
        if line != rebuilt_line
    ]
    if len(lines) == len(rebuilt_lines):
        return differences
    return [*differences[:1], difference(file, "its end", f"{len(lines)} lines", f"{len(rebuilt_lines)} lines")]


def _around(line: str, rebuilt_line: str) -> tuple[str, str]:
    """The excerpts of two lines around the first difference."""
    first = next(
        (at for at, (a, b) in enumerate(zip(line, rebuilt_line, strict=False)) if a != b),
        min(len(line), len(rebuilt_line)),
    )
    start = max(0, first - _BEFORE)
    return line[start : start + _SHOWN], rebuilt_line[start : start + _SHOWN]


def compare_tree(
    file: str, stored: Any, rebuilt: Any, tolerances: Mapping[str, float], place: str = "", tolerance: float = 0.0
) -> tuple[Any, list[str]]:
    """Compare two JSON values, leaf by leaf; `tolerances` maps places to absolute tolerances of floats.

    Returns the stored value with rebuilt leaves in place of all that differ, and the differences.
    """
    tolerance, name = tolerances.get(place, tolerance), place or "its content"
    if isinstance(stored, dict) and isinstance(rebuilt, dict):
        extra = [key for key in stored if key not in rebuilt]
        differences = [difference(file, f"{place}.{key}".strip("."), stored[key], "nothing") for key in extra]
        merged = dict(rebuilt)
        for key, leaf in rebuilt.items():
            inside = f"{place}.{key}".strip(".")
            if key not in stored:
                differences.append(difference(file, inside, "nothing", leaf))
                continue
            merged[key], lines = compare_tree(file, stored[key], leaf, tolerances, inside, tolerance)
            differences += lines
        return merged, differences
    if isinstance(stored, list) and isinstance(rebuilt, list) and len(stored) == len(rebuilt):
        pairs = [
            compare_tree(file, item, leaf, tolerances, f"{place}[{number}]", tolerance)
            for number, (item, leaf) in enumerate(zip(stored, rebuilt, strict=True))
        ]
        return [pair[0] for pair in pairs], [line for pair in pairs for line in pair[1]]
    if type(stored) is type(rebuilt) and (stored == rebuilt or (stored != stored and rebuilt != rebuilt)):  # NaN is NaN
        return rebuilt, []
    if type(stored) is type(rebuilt) is float and abs(stored - rebuilt) <= tolerance:
        return stored, []
    if isinstance(stored, str) and isinstance(rebuilt, str):
        return rebuilt, [difference(file, name, *_around(stored, rebuilt))]
    return rebuilt, [difference(file, name, stored, rebuilt)]


def compare_tensors(file: str, stored: Tensors, rebuilt: Tensors) -> list[str]:
    """Return the differences between tensors: names, shapes, types and numbers."""
    differences = []
    for name in sorted(stored.keys() | rebuilt.keys()):
        first, second = stored.get(name), rebuilt.get(name)
        if first is None or second is None or first.shape != second.shape or first.dtype != second.dtype:
            kinds = (
                "nothing" if tensor is None else f"{tensor.dtype} of {tuple(tensor.shape)}"
                for tensor in (first, second)
            )
            differences.append(difference(file, name, *kinds))
            continue
        tolerance = CLOSE * largest(second.to(torch.float64).numpy()) if second.is_floating_point() else 0.0
        is_far = ~((first == second) | ((first - second).abs().to(torch.float64) <= tolerance))  # NaN is far
        if bool(is_far.any()):
            place = tuple(int(number) for number in is_far.nonzero()[0])
            differences.append(difference(file, f"{name}{list(place)}", first[place].item(), second[place].item()))
    return differences


def compare_values(
    file: str, text: str, rebuilt: pandas.DataFrame, names: tuple[str, ...]
) -> tuple[pandas.DataFrame, list[str]]:
    """Compare values.csv with the rebuilt values of these semivalues, cell by cell.

    Returns the stored values with rebuilt cells in place of all that differ, and the differences.
    """
    try:
        stored = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        return rebuilt, [f"{file} cannot be read as CSV: {error}"]
    cells = _cells(rebuilt)
    if not stored or stored[0] != cells[0]:
        return rebuilt, compare_text(file, ",".join(stored[0] if stored else ()), ",".join(cells[0]))
    if [len(line) for line in stored] != [len(line) for line in cells]:
        return rebuilt, compare_text(file, text, _text(rebuilt)) or [f"{file}: its lines cannot be compared"]
    merged, differences = _with_numbers(stored, cells, rebuilt, names), []
    for number, (line, cells_of_line) in enumerate(zip(stored, _cells(merged), strict=True), start=1):
        differences += [
            difference(file, f"line {number}, {column}", cell, rebuilt_cell)
            for column, cell, rebuilt_cell in zip(cells[0], line, cells_of_line, strict=True)
            if cell != rebuilt_cell
        ]
    return merged, differences or compare_text(file, text, _text(merged))


def _with_numbers(
    stored: list[list[str]], cells: list[list[str]], rebuilt: pandas.DataFrame, names: tuple[str, ...]
) -> pandas.DataFrame:
    """The rebuilt values, with stored numbers where they are within the tolerance, and the ranks of these."""
    merged = rebuilt.copy()
    for place, column in enumerate(rebuilt.columns):
        if rebuilt[column].dtype != np.float64:
            continue
        tolerance = CLOSE * _largest(rebuilt, column, names)
        numbers = rebuilt[column].to_numpy().copy()
        for number, (line, rebuilt_line) in enumerate(zip(stored[1:], cells[1:], strict=True)):
            if line[place] != rebuilt_line[place] and _is_close(line[place], numbers[number], tolerance):
                numbers[number] = float(line[place])
        merged[column] = numbers
    merged["rank"] = ranks(merged[names[0]])
    return merged


def _is_close(cell: str, number: float, tolerance: float) -> bool:
    try:
        stored = float(cell)
    except ValueError:
        return False
    return abs(stored - number) <= tolerance


def _largest(rebuilt: pandas.DataFrame, column: str, names: tuple[str, ...]) -> float:
    """The largest number of a column's kind: errors and interval ends are of the kind of their value."""
    kinds = (name for name in (*names, "payout") if column.startswith(f"{name}_") and "_per_" not in column)
    return largest(rebuilt[[column, next(kinds, column)]].to_numpy(dtype=np.float64))


def largest(numbers: Floats) -> float:
    """Return the largest absolute value; 0 if no number is finite."""
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def _text(values: pandas.DataFrame) -> str:
    return b"".join(values_csv(values)).decode()


def _cells(values: pandas.DataFrame) -> list[list[str]]:
    return list(csv.reader(io.StringIO(_text(values), newline="")))


OUTPUTS = ("run.toml", "table.safetensors", "values.csv", "run.json", "report.html")
"""The files that are rebuilt, beside the requests of later rounds."""


@dataclass(frozen=True, eq=False)
class RebuiltOutputs:
    """The outputs of job and releases: the result, the content of values.csv, and the record."""

    result: Result
    values: pd.DataFrame
    record: Record


def rebuild_outputs(
    coordinator: Coordinator, utility: Utility, options: RunConfig, progress: Progress
) -> RebuiltOutputs:
    """Return the outputs of job and releases under the options, as `study.value_study` computes them."""
    table = coordinator.table()
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    record = study_record(coordinator, options, table)
    return RebuiltOutputs(result, *make_values(record, result, None, progress, options.pay))


def with_stored_versions(rebuilt: RebuiltOutputs, stored: dict[str, Any]) -> RebuiltOutputs:
    """The rebuilt outputs with the day and the versions of Python and torch in run.json."""
    versions, day = stored["versions"], str(stored.get("made"))
    texts = {name: versions[name] for name in ("python", "torch") if isinstance(versions.get(name), str)}
    record = replace(rebuilt.record, versions=replace(rebuilt.record.versions, **texts))
    with suppress(ValueError):  # an invalid day differs from today
        record = replace(record, made=date.fromisoformat(day).isoformat())
    return replace(rebuilt, record=record)


def compare_outputs(folder: Path, stored: dict[str, Any], text: str, rebuilt: RebuiltOutputs) -> list[str]:
    """Return the differences between the files of a folder and the rebuilt outputs.

    Stored numbers within the tolerance are accepted. Sentences, ranks and the report are rebuilt from them and must be
    equal.
    """
    differences, values, record = _compare_table(folder, rebuilt), rebuilt.values, rebuilt.record
    names = tuple(rebuilt.result.values)
    with note_errors(differences, "values.csv"):
        values, lines = compare_values("values.csv", (folder / "values.csv").read_bytes().decode(), values, names)
        differences += lines
    record = _with_payouts(record, rebuilt, values)
    tolerances = {
        f"curves[{number}].{name}": CLOSE * largest(np.array(curve.mean))
        for number, curve in enumerate(record.curves)
        for name in ("mean", "spread")
    }
    tree, lines = compare_tree("run.json", stored, json.loads(record_json(record)), tolerances)
    record = Record.from_json(tree, "run.json")
    differences += lines or compare_text("run.json", text, record_json(record).decode())
    with note_errors(differences, "report.html"):
        page = (folder / "report.html").read_bytes().decode()
        differences += compare_text("report.html", page, report_page(values, record))
    return differences


def _compare_table(folder: Path, rebuilt: RebuiltOutputs) -> list[str]:
    differences: list[str] = []
    with note_errors(differences, "table.safetensors"):
        content = (folder / "table.safetensors").read_bytes()
        (header, tensors), rebuilt_parts = (
            Table.archive.unpack(content, "table.safetensors"),
            rebuilt.result.table.parts(),
        )
        differences += compare_tree("table.safetensors", header, json.loads(as_text(rebuilt_parts[0])), {})[1]
        differences += compare_tensors("table.safetensors", tensors, rebuilt_parts[1])
        if not differences and Table.archive.pack(header, tensors) != content:
            differences.append("table.safetensors: it holds more than a table")
    return differences


def _with_payouts(record: Record, rebuilt: RebuiltOutputs, values: pd.DataFrame) -> Record:
    """The record with the payouts of these values in its verdict: close numbers may differ after rounding to text."""
    assert record.values is not None
    pay, verdict = record.values.pay, record.values.verdict
    if pay is None or "payout" not in values:
        return record
    shares = rebuilt.result.shares(pay)
    paid, low, high = (values[f"payout{end}"].to_numpy() for end in ("", "_low", "_high"))
    stored_sentence, sentence_of_values = map(
        sentence_of_shares, (shares, Shares(shares.names, paid, low, high, pay, shares.level))
    )
    verdict = tuple(sentence_of_values if line == stored_sentence else line for line in verdict)
    return replace(record, values=replace(record.values, verdict=verdict))


@contextmanager
def note_errors(differences: list[str], what: str) -> Iterator[None]:
    """Add errors of reading a file to the differences."""
    try:
        yield
    except (DpvalueError, OSError, UnicodeDecodeError) as error:
        differences.append(f"{what}: {error.strerror if isinstance(error, OSError) else error}")
