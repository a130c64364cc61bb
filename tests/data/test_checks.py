"""What is public is not private: the same file, object or memory is refused; equal content is the holder's to know."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pytest
import torch
from click.testing import Result
from torch.utils.data import Subset, TensorDataset
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.data.checks import require_other_rows
from dpvalue.data.parties import as_parties
from dpvalue.data.utility import as_utility
from tests.federation import write_files

X = np.random.default_rng(0).normal(size=(24, 3))
Y = (X[:, 0] > 0).astype(int)
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y)
WORDS = pd.DataFrame({"a": ["u", "v"] * 12, "y": ["no", "yes"] * 12})
TENSORS = torch.from_numpy(X), torch.from_numpy(Y)
DATASET = TensorDataset(*TENSORS)
POLARS = polars.DataFrame({"a": X[:, 0], "y": Y})
LISTS = X.tolist(), Y.tolist()
ROWS = list(X.copy())
HALF = TENSORS[0].to(torch.bfloat16)

SAME: dict[str, tuple[Any, Any]] = {
    "one tuple": ((X, Y), (X, Y)),
    "features alone": ((X, Y), (X, Y.copy())),
    "labels alone": ((X, Y), (X.copy(), Y)),
    "a view": ((X, Y), (X[:], Y.copy())),
    "some rows": ((X[:10], Y[:10]), (X[9:], Y[9:].copy())),
    "every second row": ((X[::2], Y[::2].copy()), (X[::4], Y[::4].copy())),
    "turned": ((X, Y), (X[::-1], Y[::-1].copy())),
    "one column": ((X, Y), (X[:, :1], Y.copy())),
    "a tensor of an array": ((X, Y), (torch.from_numpy(X), Y.copy())),
    "a frame of an array": ((X, Y), (pd.DataFrame(X, copy=False), Y.copy())),
    "tensors": (TENSORS, TENSORS),
    "a view of a tensor": ((TENSORS[0][:9], Y[:9]), (TENSORS[0][8:], Y[8:].copy())),
    "tensors that NumPy lacks": ((HALF, Y.copy()), (HALF[3:], Y[3:].copy())),
    "lists": (LISTS, (LISTS[0], Y.copy())),
    "rows of a list": ((LISTS[0][:10], Y[:10].copy()), (LISTS[0][9:], Y[9:].copy())),
    "arrays in a list": ((ROWS[:10], Y[:10].copy()), (ROWS[9:], Y[9:].copy())),
    "a frame": (FRAME, FRAME),
    "columns of a frame": (FRAME, FRAME[["a", "b", "y"]]),
    "a frame of texts": (WORDS, WORDS),
    "a frame of polars": (POLARS, POLARS),
    "rows of a frame of polars": (POLARS, POLARS[5:]),
    "a series of polars": ((X, POLARS["y"]), (X.copy(), POLARS["y"])),
    "some of a series": ((X, POLARS["y"]), (X[4:].copy(), POLARS["y"][4:])),
    "a dataset": (DATASET, DATASET),
    "tensors of a dataset": (DATASET, TENSORS),
    "another dataset of the same tensors": (DATASET, TensorDataset(*TENSORS)),
    "a part of a dataset": (DATASET, Subset(DATASET, [1, 2, 3])),
    "parts of a dataset": (Subset(DATASET, range(0, 12)), Subset(Subset(DATASET, range(6, 24)), [0, 5])),
    "a Utility": (dpv.Parties(X, Y), dpv.Utility(X, Y)),
}  # fmt: skip
APART: dict[str, tuple[Any, Any]] = {
    "a copy": ((X, Y), (X.copy(), Y.copy())),
    "rows after rows": ((X[:10], Y[:10]), (X[10:], Y[10:])),
    "every second row": ((X[::2], Y[::2]), (X[1::2], Y[1::2])),
    "other rows of a list": ((LISTS[0][:10], Y[:10].tolist()), (LISTS[0][10:], Y[10:].tolist())),
    "rows of a frame": (FRAME.iloc[:10], FRAME.iloc[10:]),
    "a copy of a frame": (FRAME, FRAME.copy()),
    "a deep copy of texts": (WORDS, copy.deepcopy(WORDS)),
    "rows of tensors": ((TENSORS[0][:9], Y[:9]), (TENSORS[0][9:], Y[9:])),
    "rows of tensors that NumPy lacks": ((HALF[:9], Y[:9]), (HALF[9:], Y[9:])),
    "rows of polars": (POLARS[:5], POLARS[5:]),
    "parts of a dataset": (Subset(DATASET, range(0, 12)), Subset(DATASET, range(12, 24))),
}


def made(pair: tuple[Any, Any]) -> tuple[dpv.Parties, dpv.Utility]:
    target = "y" if hasattr(pair[0], "columns") else None
    return as_parties(pair[0], target), as_utility(pair[1], target)


@pytest.mark.parametrize("name", SAME)
def test_the_same_rows_are_refused_as_public(name: str) -> None:
    with pytest.raises(dpv.DpvalueError, match="the public rows must differ from the private rows"):
        require_other_rows(*made(SAME[name]))


@pytest.mark.parametrize("name", APART)
def test_other_rows_are_not(name: str) -> None:
    require_other_rows(*made(APART[name]))


def test_every_function_that_takes_both_refuses_them() -> None:
    quiet: dict[str, Any] = {"progress": False}
    pair = (X, Y), (X, Y)
    fixed: dict[str, Any] = {"projection": None, "clip": 1.0, "learning_rate": 0.1, "privacy": dpv.Privacy(1.0)}
    planned = dpv.plan(24, (X, Y), **fixed)
    worded = dpv.plan(24, WORDS, target="y", preprocess="columns", **fixed)
    others = X + 1.0
    result = dpv.value((others, Y.copy()), (X, Y), privacy=None, **quiet)
    doors: dict[str, Callable[[], Any]] = {
        "value": lambda: dpv.value(*pair, **quiet),
        "value without privacy": lambda: dpv.value(*pair, privacy=None, **quiet),
        "release": lambda: dpv.release(*pair, **quiet),
        "plan": lambda: dpv.plan(*pair),
        "a plan's release": lambda: planned.release((X, Y), **quiet),
        "a plan's value": lambda: planned.value((X, Y), **quiet),
        "a plan of texts": lambda: worded.value(WORDS, target="y", **quiet),
        "federated": lambda: dpv.federated(*pair, rounds=2, **quiet),
        "a baseline": lambda: dpv.baselines.public_loss(*pair),
        "an audit": lambda: dpv.audit(*pair, **quiet),
        "an attack": lambda: dpv.membership_attack((X, Y), (X, Y), members=2, shadow_rows=8, shadows=8, **quiet),
        "retraining": lambda: dpv.tasks.retraining_curve(result, (X, Y), (X, Y)),
    }
    for door in doors.values():
        with pytest.raises(dpv.DpvalueError, match="the public rows must differ"):
            door()


def test_equal_content_changes_nothing_in_python() -> None:
    """Who asks whether a row is public learns of a private row."""
    settings: dict[str, Any] = {"noise": "fast", "projection": dpv.Projection(1, steps=8), "progress": False}
    assert np.isfinite(dpv.value((X, Y), (X.copy(), Y.copy()), **settings).values["shapley"]).all()


def here(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"north": 40, "south": 30})
    (tmp_path / "inside").mkdir()
    return tmp_path


def links(folder: Path, name: str) -> list[str]:
    """Ways to name one file."""
    (folder / "soft.csv").symlink_to(folder / f"{name}.csv")
    os.link(folder / f"{name}.csv", folder / "hard.csv")
    (folder / "way").symlink_to(folder)
    return [
        f"{name}.csv",
        str(folder / f"{name}.csv"),
        f"inside/../{name}.csv",
        "soft.csv",
        "hard.csv",
        f"way/{name}.csv",
    ]


def test_a_private_file_is_not_taken_as_the_public_one(folder: Path) -> None:
    for public in links(folder, "north"):
        for command in (("run", "--yes", "--out", "out"), ("check",)):
            done = here(command[0], "south.csv", "north.csv", "--test", public, "--target", "label", *command[1:])
            assert done.exit_code == 2, (public, done.output)
            assert done.stderr == (
                "error: the public file must differ from the private file north.csv: public rows are not protected\n"
            )
    assert not (folder / "out").exists()


def test_a_table_is_not_valued_by_a_private_file(folder: Path) -> None:
    made = here(
        "run", "south.csv", "north.csv", "--test", "public.csv", "--target", "label", "--unit", "record", "--yes",
        "--force", "--permutations", 20,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    for public in links(folder, "north"):
        done = here("revalue", "results", "--test", public)
        assert done.exit_code == 2, public
        assert "the public file must differ from the private file north.csv" in done.stderr
    shutil.copy("public.csv", "other.csv")
    assert here("revalue", "results", "--test", "other.csv").exit_code == 0


def test_a_party_does_not_answer_with_the_public_file_of_the_job(folder: Path) -> None:
    assert here("job", "--test", "public.csv", "--target", "label", "--sizes", "40,30").exit_code == 0
    here("ledger", "new", "own.ledger", "--unit", "record", "--name", "public")
    for file in links(folder, "public"):
        for command in (("check",), ("answer", "--name", "public")):
            done = here("party", command[0], "study.job", file, "--ledger", "own.ledger", *command[1:])
            assert done.exit_code == 2, (file, done.output)
            assert "the public file must differ" in done.stderr
    assert dpv.Ledger(folder / "own.ledger").entries() == []


def test_which_rows_are_also_public_is_told_by_check_alone(folder: Path) -> None:
    """By line number; its exit code, and whatever a run prints, writes and returns, stay as they are."""
    rows = [line.split(",") for line in Path("north.csv").read_text().splitlines()]
    rows[3], rows[7] = (line.split(",") for line in Path("public.csv").read_text().splitlines()[1:3])
    rows[7][0] = f" {rows[7][0]} "  # the same number, written in another way
    rows[9] = ["", "x", "1", "u", "no"]  # unreadable: of no place in the public file
    Path("both.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    told = here("check", "both.csv", "south.csv", "--test", "public.csv", "--target", "label")
    assert "note: also in public.csv, not protected: lines 4, 8" in told.output
    assert here("check", "north.csv", "--test", "public.csv", "--target", "label").exit_code == 0
    del rows[9]
    Path("both.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    assert here("check", "both.csv", "--test", "public.csv", "--target", "label").exit_code == 0
    runs = [
        here("run", name, "south.csv", "--test", "public.csv", "--target", "label", "--unit", "record", "--yes",
             "--force", "--permutations", 20, "--out", f"out-{name}")
        for name in ("both.csv", "north.csv")
    ]  # fmt: skip
    assert [done.exit_code for done in runs] == [0, 0]
    assert not any("also in" in done.output for done in runs)
    assert "also in" not in "".join(
        path.read_text()
        for path in Path("out-both.csv").iterdir()
        if path.suffix in (".json", ".html", ".csv", ".toml")
    )
    whole = Path("public.csv").read_text()
    Path("copy.csv").write_text(whole)
    assert "lines 2-121" in here("check", "copy.csv", "--test", "public.csv", "--target", "label").output
