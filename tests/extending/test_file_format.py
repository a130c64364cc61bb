"""A format of files from outside: a JSON list a line. Runs, parties at home and `dpvalue check` read it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.data.columns import Column, Columns
from dpvalue.data.files import FORMATS, Block, FileFormat, PrivateFile, read_encoded, register_format
from dpvalue.party.party import PartyFile
from dpvalue.runs.config import make_config
from dpvalue.runs.sources import FileRun, open_run
from tests.federation import write_files

ENDING = ".rows"


def cells_of(line: str, width: int) -> list[Any] | None:
    """The cells of a line, alone; None for one that is no record."""
    try:
        cells = json.loads(line)
    except ValueError:
        return None
    return cells if isinstance(cells, list) and len(cells) == width else None


def blocks(file: IO[str], header: list[str], names: Sequence[str], group: str | None) -> Iterator[Block]:
    while lines := list(islice(file, 50)):
        records = [cells_of(line, len(header)) for line in lines]
        whole = [[None] * len(header) if record is None else record for record in records]
        columns = {name: Column([record[header.index(name)] for record in whole]) for name in names}
        faults = {place: "no list of as many cells" for place, record in enumerate(records) if record is None}
        yield Block(Columns(columns), faults, dict.fromkeys(faults, ()))


@contextmanager
def open_rows(path: Path) -> Iterator[PrivateFile]:
    with path.open() as file:
        header = json.loads(file.readline())
        yield PrivateFile(
            tuple(header), lambda: sum(1 for _ in file), lambda names, group: blocks(file, header, names, group)
        )


def whole_rows(path: Path) -> Columns:
    header, *records = map(json.loads, path.read_text().splitlines())
    return Columns({name: Column([record[place] for record in records]) for place, name in enumerate(header)})


@pytest.fixture(autouse=True)
def _added() -> Iterator[None]:
    register_format(ENDING, FileFormat(open_rows, whole_rows))
    yield
    del FORMATS[ENDING]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same rows in both formats; one line of a party is no record."""
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"north": 60, "south": 70})
    for file in tmp_path.glob("*.csv"):
        frame = pd.read_csv(file)
        lines = [list(frame.columns), *frame.to_numpy().tolist()]
        Path(f"{file.stem}{ENDING}").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, bad in ((f"north{ENDING}", "[1, 2"), ("north.csv", "1,2")):
        written = Path(name).read_text().splitlines()
        Path(name).write_text("\n".join([*written[:5], bad, *written[6:]]) + "\n")
    return tmp_path


def opened(ending: str) -> FileRun:
    files = (f"north{ending}", f"south{ending}")
    return open_run(make_config({"train": files, "test": f"public{ending}", "target": "label", "unit": "record"}))


@pytest.mark.usefixtures("folder")
def test_rows_are_those_of_a_csv_file() -> None:
    ours, theirs = opened(ENDING), opened(".csv")
    assert [peek.rows for peek in ours.peeks] == [peek.rows for peek in theirs.peeks] == [60, 70]
    assert str(ours.schema) == str(theirs.schema)
    for name in ("north", "south"):
        pieces = [list(read_encoded(Path(f"{name}{job}"), ours.schema, "label", ours.task)) for job in (ENDING, ".csv")]
        features, wanted = (np.concatenate([piece.features for piece in found]) for found in pieces)
        assert np.array_equal(features, wanted, equal_nan=True)
        assert np.flatnonzero(np.isnan(features).all(1)).tolist() == ([4] if name == "north" else [])
        labels, expected = ([*found[0].labels, *found[-1].labels] for found in pieces)
        assert labels[:50] == expected[:50]
    assert ours.read()[0].names == theirs.read()[0].names == ("north", "south")


@pytest.mark.usefixtures("folder")
def test_a_run_a_party_at_home_and_check_read_it() -> None:
    given = [f"north{ENDING}", f"south{ENDING}", "--test", f"public{ENDING}", "--target", "label", "--unit", "record"]
    done = CliRunner().invoke(app, ["run", *given, "--epsilon", "4", "--yes"])
    assert done.exit_code == 0, done.output
    assert sorted(pd.read_csv("results/values.csv")["party"]) == ["north", "south"]
    assert PartyFile(Path(f"north{ENDING}")).units() == 60
    told = CliRunner().invoke(app, ["check", *given[:-2]])
    assert "no list of as many cells" in told.output


@pytest.mark.parametrize("ending", [".csv", ".gz", ".npz", ENDING, "rows", "."])
def test_an_ending_is_a_new_one(ending: str) -> None:
    with pytest.raises(dpv.DpvalueError, match="the ending of a format must be a new one"):
        register_format(ending, FileFormat(open_rows, whole_rows))
