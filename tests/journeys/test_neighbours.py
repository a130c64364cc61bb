"""One unit changes everything private about itself, in files and frames: nothing else moves. See `tests.neighbours`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.data import cells, conversions, files, lines
from dpvalue.data.columns import Column
from dpvalue.data.encoding import Encoding
from dpvalue.data.rows import _Rows
from dpvalue.models import DescriptionModel, Forest
from dpvalue.party import people
from tests import neighbours
from tests.neighbours import SCENARIOS, run_changes

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize("name", BY_NAME)
def test_a_few_changes_move_nothing_else(name: str) -> None:
    assert run_changes(BY_NAME[name], 3, seed=5)["faults"] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_hundred_changes_move_nothing_else(name: str) -> None:
    """More than 2,000 over all scenarios; of the refit game, whose values take longer, 40, and of trees 20."""
    changes = 40 if "described" in name else 20 if "trees" in name else 100
    spared = 0.4 if "trees" in name else 0.2  # changed, and in the same leaf of every tree
    found = run_changes(BY_NAME[name], changes, seed=0)
    assert found["faults"] == []
    assert "one number" in name or name == "records of several CSV" or found["without effect"] <= changes * spared


def inferring(monkeypatch: pytest.MonkeyPatch) -> None:
    """What pandas does: one missing cell makes floats of all whole numbers of its column."""
    texts = Column.texts

    def planted(self: Column) -> Any:
        found = texts(self)
        if any(cell is None for cell in found):
            found[:] = [cell + ".0" if cell is not None and cell.isdigit() else cell for cell in found]
        return found

    monkeypatch.setattr(Column, "texts", planted)


def raising(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that the public set lacks stops the run."""
    labels = Encoding.labels

    def planted(self: Encoding, raw: Any, argument: str) -> Any:
        found = labels(self, raw, argument)
        if found.dtype.kind == "i" and (found < 0).any():
            raise dpv.DpvalueError(f"{argument} must be among the classes")
        return found

    monkeypatch.setattr(Encoding, "labels", planted)


def reading_quotes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quote that does not close takes the next line with it."""
    blocks = lines.blocks

    def planted(file: Any) -> Iterator[list[bytes]]:
        for some in blocks(file):
            joined: list[bytes] = []
            for line in some:
                if joined and joined[-1].count(b'"') % 2:
                    joined[-1] += b"\n" + line
                else:
                    joined.append(line)
            yield joined

    monkeypatch.setattr(files, "blocks", planted)


def counting_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many rows persons have enters a scale."""
    units = dpv.Parties.units
    monkeypatch.setattr(dpv.Parties, "units", lambda self, unit: units(self, "record" if unit == "person" else unit))


def adding_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs whose last bits depend on how many rows there are, as those of a matrix product do."""
    dot = people._dot

    def planted(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found = dot(one, other)
        return found + 2.0**-20 * len(one) * torch.arange(found.shape[-1])

    monkeypatch.setattr(people, "_dot", planted)


def comparing_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """How far off a row is, by the mean of all rows."""
    described = DescriptionModel.describe

    def planted(self: DescriptionModel, along: torch.Tensor, squared: torch.Tensor) -> torch.Tensor:
        return described(self, along, squared / (1e-3 + squared.mean()))

    monkeypatch.setattr(DescriptionModel, "describe", planted)


def comparing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which leaf a row is in, by the mean of all rows."""
    leaf_of = Forest.leaf_of
    monkeypatch.setattr(Forest, "leaf_of", lambda self, x: leaf_of(self, x - 4 * x.mean(0)))


def counting_valid_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' weight grows where a row is blank."""
    by_party = _Rows.by_party.__func__  # type: ignore[attr-defined]

    def planted(cls: Any, *given: Any) -> Any:
        rows = by_party(cls, *given)
        object.__setattr__(rows, "x", rows.x * (1 + (rows.weights == 0).double().mean()).to(rows.x))
        return rows

    monkeypatch.setattr(_Rows, "by_party", classmethod(planted))


def dropping_lines_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that is no record leaves its party, whose public size changes."""
    monkeypatch.setattr("dpvalue.data.lines.Layout.guesses", lambda *given: ())


def telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log line that counts the rows that cannot be read."""
    encoded = dpv.Parties._encode_usable

    def planted(self: dpv.Parties, *given: Any, **more: Any) -> Any:
        found = encoded(self, *given, **more)
        logging.getLogger("dpvalue").info("%d rows are used", int(np.sum(found[2])))
        return found

    monkeypatch.setattr(dpv.Parties, "_encode_usable", planted)


def decoding_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text that is not UTF-8, and all of its block are read in another way, as Arrow itself would have it."""

    def planted(cells: list[bytes | None]) -> list[str | None]:
        try:
            return [None if cell is None else cell.decode() for cell in cells]
        except UnicodeDecodeError:
            return [None if cell is None else str(cell) for cell in cells]

    monkeypatch.setattr(conversions, "_decode_cells", planted)


def refusing_giants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell that is too long stops the run."""

    def planted(cell: str) -> bool:
        if len(cell) > cells.LONGEST_CELL:
            raise dpv.DpvalueError("a cell is too long")
        return True

    monkeypatch.setattr(cells, "is_readable", planted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "name"),
    [
        (inferring, "records of a CSV, group first"),
        (inferring, "records of several Parquet"),
        (inferring, "records of a pandas frame"),
        (raising, "rows of a CSV"),
        (raising, "records of a polars frame"),
        (reading_quotes_first, "records of a CSV, group last"),
        (dropping_lines_without_a_group, "parties of a CSV"),
        (counting_rows, "persons of a CSV"),
        (adding_in_any_order, "persons of several CSV"),
        (adding_in_any_order, "persons of a pandas frame, one number: a score"),
        (comparing_rows, "records of a CSV, described"),
        (comparing_rows, "persons of a pandas frame, described"),
        (counting_valid_rows, "records of a regression, described"),
        (comparing_leaves, "persons of a pandas frame, counted in trees"),
        (adding_in_any_order, "persons of several CSV, described"),
        (decoding_together, "records of typed columns"),
        (decoding_together, "persons of typed columns"),
        (decoding_together, "persons of a table of Arrow"),
        (refusing_giants, "persons of a CSV"),
        (refusing_giants, "persons of typed columns"),
        (telling, "parties of arrays, described"),
        (telling, "rows of an NPZ"),
        (telling, "parties of arrays"),
    ],
)
def test_planted_faults_are_found(fault: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    assert run_changes(BY_NAME[name], 60, seed=0)["faults"] != []


def test_a_large_run_that_was_stopped_goes_on_at_the_same_commit(tmp_path: Path) -> None:
    task, notes = (SCENARIOS[0], 3, 5), tmp_path / "part"
    done = {"scenario": SCENARIOS[0].name, "changes": 3, "seed": 5, "faults": ["one"]}
    notes.write_text(json.dumps({"commit": neighbours._commit(), **done}) + '\n{"commit": "cut o')
    assert neighbours.run_all([task], 1, notes) == [done]
    assert notes.read_text().endswith("}\n")  # what was cut off is gone
    notes.write_text(json.dumps({"commit": "another", **done}) + "\n")
    assert neighbours._noted(notes) == {}


def test_the_large_run_found_nothing() -> None:
    """`python -m tests.neighbours --changes 100000 --worlds 8 --json benchmarks/results/neighbours.json`."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "neighbours.json"
    found = json.loads(path.read_text())
    assert found["changes"] >= 100_000
    assert found["faults"] == 0
    assert {one["scenario"] for one in found["scenarios"]} == set(BY_NAME)
