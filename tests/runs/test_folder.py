"""Names of parties in values.csv: a spreadsheet calculates none of them, and they read back as they were."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from typer.main import get_command

from dpvalue.cli import app
from dpvalue.names import cell_of, name_of
from dpvalue.runs import folder as module
from dpvalue.runs.folder import open_folder

NAMES = (
    '=HYPERLINK("http://x","click")', "@SUM(A1)", "+1", "-1.5", "-x", "-", " =1+1", "\t=1", "\r@x", "\u3000+x",
    "\uff1d1", "\u200b=1", "'=1", "''  =1", "'x", "'", "\x1b[31mred", "a\nb", "\u202ex", "a\\x1bb", "\\x5c", "\\\x1b",
    "\\", "\\u00", "NA", "nan", "007", "-0", "1.10", "1e5", "1234567890123456", "-1234567890123456", "0", "7", "-7",
    "a,b", 'a "b"', "x ", "|x", "%x",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_formula_and_reads_back(name: str) -> None:
    cell = str(cell_of(name))
    assert cell.strip()[:1] not in set("=+@\uff1d")
    assert not set(cell) & set("\t\r\n\x1b\u202e")
    assert not cell.lstrip("\u200b\ufeff \u3000").startswith("=")
    assert not cell.startswith("-") or name == "-7"  # a number
    assert str(name_of(cell)) == name


def test_random_names_read_back_and_stay_apart() -> None:
    generator = np.random.default_rng(0)
    letters = list("=+-@'\\x1bu0c5 \t\r\n\x1b\u202e7a\u200b")
    names = {"".join(generator.choice(letters, generator.integers(1, 9))) for _ in range(20_000)}
    cells = {str(cell_of(name)): name for name in names}
    assert len(cells) == len(names)
    assert all(str(name_of(cell)) == name for cell, name in cells.items())


def test_whole_numbers_stay_numbers() -> None:
    assert [cell_of(name) for name in (-7, 0, 12)] == [-7, 0, 12]
    assert [name_of(cell) for cell in ("-7", "0", "12", "007", "-0")] == [-7, 0, 12, "007", "-0"]


@pytest.mark.parametrize("names", [("=1+1", "NA", "a\x1bb"), ("007", "1.10", "-0"), (-7, 5, 12)])
def test_the_file_of_values_reads_back(names: tuple[str | int, ...], tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"party": list(names), "rank": pd.array([1, 2, None], dtype="Int64"), "shapley": [0.5, 0.25, np.nan]}
    )
    content = b"".join(module.values_csv(frame))
    (tmp_path / "values.csv").write_bytes(content)
    back = module.read_values(tmp_path / "values.csv")
    assert back["party"].tolist() == list(names)
    assert frame["party"].tolist() == list(names)  # the frame in memory has the names as they are


def test_a_run_names_hostile_parties_in_a_safe_file_that_is_read_back(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(150, 2)), columns=["a", "b"])
    frame["label"] = (frame["a"] > 0).astype(int)
    names = ['=HYPERLINK("http://evil","x")', "@SUM(A1)", "a\x1b[31mb", "NA", "+x"]
    frame[:50].to_csv(tmp_path / "test.csv", index=False)
    frame[50:].assign(site=np.repeat(names, 20)).to_csv(tmp_path / "train.csv", index=False)
    out = tmp_path / "out"
    arguments = [
        str(tmp_path / "train.csv"),
        "--test",
        str(tmp_path / "test.csv"),
        "--target",
        "label",
        "--group",
        "site",
    ]
    done = CliRunner().invoke(get_command(app), ["run", *arguments, "--unit", "record", "--out", str(out), "--force"])
    assert done.exit_code == 0, done.output
    with (out / "values.csv").open(newline="") as file:
        cells = [row["party"] for row in csv.DictReader(file)]
    assert not [cell for cell in cells if cell[0] in "=+-@\t\r" or "\x1b" in cell]
    assert set(open_folder(out).values()["party"]) == set(names)
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    assert CliRunner().invoke(get_command(app), ["report", str(out)]).exit_code == 0
    assert (out / "report.html").read_text() == page
