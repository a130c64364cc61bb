"""`dpvalue run` and its kin, called as a user types them."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app, common
from dpvalue.data.utility import METRICS

COMMAND = str(Path(sys.executable).with_name("dpvalue"))
FILES = ["report.html", "run.json", "run.toml", "table.safetensors", "values.csv"]


def dpvalue(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def here(*arguments: str) -> Result:
    """The same in this process, in its folder."""
    return CliRunner().invoke(app, list(arguments))


def made(rows: int, seed: int, flip: float = 0.0) -> pd.DataFrame:
    """People with an age, a town and an income, some of it missing; a label that age and town decide."""
    generator = np.random.default_rng(seed)
    age, town = generator.normal(50, 12, rows).round(), generator.choice(["north", "south", "east"], rows)
    income = generator.lognormal(10, 0.5, rows).round(2)
    label = (age - 50) / 12 + 1.2 * (town == "south") + generator.normal(0, 0.4, rows) > 0.4
    wrong = generator.random(rows) < flip
    frame = pd.DataFrame({"age": age, "town": town, "income": income, "label": np.where(label ^ wrong, "yes", "no")})
    frame.loc[generator.random(rows) < 0.05, "age"] = np.nan
    frame.loc[generator.random(rows) < 0.05, "town"] = None
    frame["wrong"] = wrong.astype(int)
    return frame


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(120, 1, flip=0.3).to_csv(tmp_path / "train.csv", index=False)
    made(150, 2).drop(columns="wrong").to_csv(tmp_path / "test.csv", index=False, sep=";")
    return tmp_path


BASIC = ("run", "train.csv", "--test", "test.csv", "--target", "label")


def test_a_csv_gets_values_a_report_and_everything_to_repeat_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = dpvalue(*BASIC, "--epsilon", "4", "--truth", "wrong", "--out", "results", "--yes", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "120 rows in 1 file (read so far: header and number of rows)" in done.stdout
    assert "classification (inferred), logistic model" in done.stdout
    assert "expected AUC" in done.stdout
    assert "detection of 'wrong': AUC 0." in done.stdout
    assert done.stdout.splitlines()[-1] == "report: results/report.html"
    assert sorted(file.name for file in (folder / "results").iterdir()) == FILES
    values = pd.read_csv(folder / "results" / "values.csv")
    errors = [f"shapley_{end}" for end in ("mc_error", "noise", "low", "high")]
    assert list(values.columns) == ["party", "size", "shapley", *errors, "rank", "rank_low", "rank_high"]
    assert "Check first the 20 rows with the lowest values" in done.stdout
    assert sorted(values["rank"]) == list(range(1, 121))
    facts = json.loads((folder / "results" / "run.json").read_text())
    assert facts["guarantee"]["epsilon"] == 4.0
    assert facts["detection"]["auc"] > 0.6
    assert set(facts["versions"]) == {"dpvalue", "python", "torch"}
    assert "seconds" not in facts  # how long private rows took is a side channel
    assert len(facts["made"]) == len("2026-01-01")
    options = tomllib.loads((folder / "results" / "run.toml").read_text())
    assert options["epsilon"] == 4.0
    assert options["truth"] == "wrong"
    table = dpv.load(folder / "results" / "table.safetensors")
    assert table.guarantee.epsilon == 4.0

    monkeypatch.chdir(folder)  # what follows need not start anew, which takes longest
    again = here("run", "--config", "results/run.toml", "--out", "results", "--yes")
    assert again.exit_code == 2
    assert again.stderr == "error: results holds other results: name another folder, or give --overwrite\n"
    again = here("run", "--config", "results/run.toml", "--out", "results", "--yes", "--overwrite")
    assert again.exit_code == 0, again.stderr
    assert (folder / "results" / "run.toml").read_text().count("epsilon = 4.0") == 1
    assert pd.read_csv(folder / "results" / "values.csv")["shapley"].tolist() != values["shapley"].tolist()

    (folder / "train.csv").unlink()  # from here on the private file is not needed
    other = here("revalue", "results", "--semivalue", "banzhaf", "--test", "test.csv")
    assert other.exit_code == 0, other.stderr
    inside = folder / "results" / "revalue-banzhaf-test"
    assert sorted(file.name for file in inside.iterdir()) == FILES
    assert "banzhaf" in pd.read_csv(inside / "values.csv").columns
    assert json.loads((inside / "run.json").read_text())["guarantee"] == facts["guarantee"]
    page = folder / "results" / "report.html"
    before = page.read_text()
    page.unlink()
    assert here("report", "results").stdout == "report: results/report.html\n"
    assert page.read_text() == before


@pytest.mark.slow
def test_data_sets_by_group_and_by_file(folder: Path) -> None:
    frame = made(120, 3)
    frame["site"] = [f"site {row % 4}" for row in range(120)]
    frame.to_csv(folder / "sites.csv.gz", index=False)
    privacy = ("--unit", "record", "--epsilon", "2", "--semivalue", "shapley", "--semivalue", "loo")
    grouped = dpvalue(
        "run", "sites.csv.gz", "--test", "test.csv", "--target", "label", "--group", "site", *privacy, "--out", "a",
        "--yes", cwd=folder,
    )  # fmt: skip
    assert grouped.returncode == 0, grouped.stderr
    values = pd.read_csv(folder / "a" / "values.csv")
    assert values["party"].tolist() == [f"site {i}" for i in range(4)]
    assert values["size"].tolist() == [30] * 4
    assert "payout" not in values
    paid = dpvalue("revalue", "a", "--pay", "100000", "--out", "paid", cwd=folder)  # free
    assert paid.returncode == 0, paid.stderr
    values = pd.read_csv(folder / "paid" / "values.csv")
    assert values["payout"].sum() == pytest.approx(100_000)
    assert (values["payout_low"] < values["payout_high"]).any()
    assert "Shares of 100,000 in proportion to values: site" in " ".join(paid.stdout.split())
    assert "payouts-chart" in (folder / "paid" / "report.html").read_text()
    assert "pay = 100000.0" in (folder / "paid" / "run.toml").read_text()
    assert "Each record of each party is protected" in grouped.stdout
    for number in range(3):
        made(40, 10 + number).to_parquet(folder / f"seller{number}.parquet")
    sellers = dpvalue(
        "run", *(f"seller{i}.parquet" for i in range(3)), "--test", "test.csv", "--target", "label", *privacy,
        "--out", "b", "--yes", cwd=folder,
    )  # fmt: skip
    assert sellers.returncode == 0, sellers.stderr
    assert pd.read_csv(folder / "b" / "values.csv")["party"].tolist() == [f"seller{i}" for i in range(3)]
    assert "120 rows in 3 files, one party each" in sellers.stdout


@pytest.mark.slow
def test_regression_persons_and_no_privacy(folder: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(0, 1, (90, 2))
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "price": X @ [1.0, 2.0] + generator.normal(0, 0.1, 90)})
    frame["who"] = [f"p{row // 2}" for row in range(90)]
    frame["shop"] = [f"s{row // 12}" for row in range(90)]
    np.savez(folder / "public.npz", a=frame["a"][60:], b=frame["b"][60:], price=frame["price"][60:])
    frame[:60].to_csv(folder / "shops.csv", index=False)
    base = ("run", "shops.csv", "--test", "public.npz", "--target", "price", "--group", "shop", "--yes")
    persons = dpvalue(*base, "--unit", "person", "--person", "who", "--out", "p", cwd=folder)
    assert persons.returncode == 0, persons.stderr
    assert "regression (inferred), linear model" in persons.stdout
    assert "All records of each person" in persons.stdout
    exposed = dpvalue(*base, "--no-privacy", "--permutations", "40", "--out", "n", cwd=folder)
    assert exposed.returncode == 0, exposed.stderr
    assert "No differential privacy" in exposed.stdout
    facts = json.loads((folder / "n" / "run.json").read_text())
    assert all(curve["retrained"] for curve in facts["curves"])
    assert "retrained on raw rows, without privacy" in (folder / "n" / "report.html").read_text()


@pytest.mark.slow
def test_a_ledger_is_charged_and_shown(folder: Path) -> None:
    charged = (*BASIC, "--epsilon", "1", "--ledger", "my.ledger", "--head", "kept", "--yes")
    none = dpvalue(*charged, "--out", "a", cwd=folder)
    assert none.returncode == 2
    assert none.stderr.startswith("error: there is no ledger at 'my.ledger': create one with dpvalue ledger new")
    new = dpvalue("ledger", "new", "my.ledger", "--epsilon", "1.5", "--name", "site-a", "--head", "kept", cwd=folder)
    assert new.returncode == 0, new.stderr
    assert new.stdout.startswith("my.ledger: the ledger of 'site-a', epsilon = 1.5, delta = 5e-05 per party")
    first = dpvalue(*charged, "--out", "a", cwd=folder)
    assert first.returncode == 0, first.stderr
    assert "The run is charged to a ledger, which keeps all runs" in first.stdout
    assert json.loads((folder / "a" / "run.json").read_text())["ledger"]["spent"] == pytest.approx(1.0, abs=1e-3)
    again = dpvalue(*charged, "--out", "b", cwd=folder)  # the same question: the same answer, for nothing
    assert again.returncode == 0, again.stderr
    assert "are returned again: other rows of the same size would get the same" in again.stdout
    one, two = (pd.read_csv(folder / name / "values.csv")["shapley"] for name in "ab")
    assert one.tolist() == two.tolist()
    over = dpvalue(*charged, "--purpose", "second", "--out", "c", cwd=folder)
    assert over.returncode == 2
    assert over.stderr.startswith("error: the budget does not allow this release: epsilon = 1 is spent")
    assert not (folder / "c").exists()
    grouped = dpvalue(*charged, "--purpose", "third", "--group", "town", "--out", "d", cwd=folder)
    assert grouped.returncode == 2
    assert "is for rows, and this run is on named parties" in grouped.stderr


@pytest.mark.slow
def test_a_budget_that_cannot_work_is_spent_by_force_alone(folder: Path) -> None:
    dpvalue("ledger", "new", "my.ledger", "--epsilon", "1", "--name", "me", cwd=folder)
    hopeless = (*BASIC, "--epsilon", "0.01", "--ledger", "my.ledger", "--out", "none")
    refused = dpvalue(*hopeless, "--yes", cwd=folder)
    assert refused.returncode == 2
    assert "cannot work" in refused.stdout
    assert refused.stderr.startswith("error: the plan says that this budget cannot work")
    assert not (folder / "none").exists()
    assert dpv.Ledger(folder / "my.ledger").entries() == []
    forced = dpvalue(*hopeless, "--force", cwd=folder)
    assert forced.returncode == 0, forced.stderr
    assert dpv.Ledger(folder / "my.ledger").spent_epsilon == pytest.approx(0.01, abs=1e-4)


def bad_files(folder: Path) -> dict[str, tuple[list[str], str]]:
    """Arguments that are wrong, and the line that says so."""
    frame = made(30, 5)
    frame.drop(columns="label").to_csv(folder / "no-target.csv", index=False)
    (folder / "empty.csv").write_text("")
    made(40, 6).assign(label="yes").drop(columns="wrong").to_csv(folder / "one-class.csv", index=False)
    (folder / "latin.csv").write_bytes("age;town;größe;label\n1;north;2;no\n2;north;2;no\n".encode("latin-1"))
    (folder / "twice.csv").write_text("age,age,town,income,label\n1,2,north,3,no\n")
    made(40, 7).drop(columns=["income", "wrong"]).to_csv(folder / "fewer.csv", index=False)
    frame.rename(columns={"town": "city"}).to_csv(folder / "other.csv", index=False)
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("keep")
    (folder / "bad.toml").write_text("epsilon = [")
    test = ["--test", "test.csv", "--target", "label"]
    return {
        "missing file": (["none.csv", *test], "there is no file none.csv"),
        "missing target": (["no-target.csv", *test], "no-target.csv has no column 'label'"),
        "no such target": (
            ["train.csv", "--test", "test.csv", "--target", "y"], "test.csv has no column 'y' for the target",
        ),
        "empty": (["empty.csv", *test], "empty.csv is empty"),
        "one class": (
            ["train.csv", "--test", "one-class.csv", "--target", "label"],
            "the target 'label' of one-class.csv must have at least two classes, got one",
        ),
        "non-UTF-8": (["latin.csv", *test], "latin.csv is not a text file in UTF-8"),
        "duplicate columns": (["twice.csv", *test], "twice.csv has several columns of the same name: columns 1 and 2"),
        "test file with other columns": (
            ["fewer.csv", *test], "fewer.csv has no column 'income'",
        ),
        "private file with other columns": (["other.csv", *test], "other.csv has no column 'town'"),
        "no test": (["train.csv", "--target", "label"], "test must be given: --test, the public file"),
        "bad epsilon": (["train.csv", *test, "--epsilon", "-1"], "epsilon must be positive, got -1.0"),
        "bad semivalue": (["train.csv", *test, "--semivalue", "core"], "semivalue must be"),
        "bad total": (["train.csv", *test, "--pay", "-5"], "pay must be positive, got -5.0"),
        "a folder in a file": (
            ["train.csv", *test, "--epsilon", "4", "--out", "bad.toml/results"], "bad.toml/results cannot be written",
        ),
        "foreign folder": (
            ["train.csv", *test, "--out", "notes"], "notes holds other files: name a new folder with --out",
        ),
        "bad config": (["--config", "bad.toml"], "bad.toml cannot be read as TOML"),
        "not confirmed": (
            ["train.csv", *test, "--out", "unasked"], "confirmation needs a terminal: give --yes to run without it",
        ),
    }  # fmt: skip


@pytest.mark.slow
def test_bad_input_is_one_line_exit_code_2_and_nothing_half_written(folder: Path) -> None:
    cases = bad_files(folder)
    before = sorted(str(path) for path in folder.rglob("*"))
    for name, (arguments, message) in cases.items():
        answer = () if name == "not confirmed" else ("--yes",)
        done = dpvalue("run", *arguments, *answer, cwd=folder)
        assert done.returncode == 2, (name, done)
        assert done.stderr.startswith(f"error: {message}"), (name, done.stderr)
        assert done.stderr.count("\n") == 1, name
        assert sorted(str(path) for path in folder.rglob("*")) == before, name


@pytest.mark.slow
def test_bad_rows_stop_no_run_and_are_told_to_their_holder_alone(folder: Path) -> None:
    """Whatever one row holds: the same exit code, the same words, and one party the less that says anything."""
    rows = (folder / "train.csv").read_bytes().splitlines()
    bad = {
        b"50,north,inf,yes,0": "column 'income', not a finite number: 'inf' line 4",
        b"maybe,north,1,yes,0": "column 'age', not a finite number: 'maybe' line 4",
        b"50,north,1e400,yes,0": "column 'income', not a finite number: '1e400' line 4",
        b"50,north,1,perhaps,0": "not a class of test.csv (--classes names all of them): 'perhaps' line 4",
        b"50,north,1,,0": "column 'label', missing, the target: line 4",
        b'50,"north,1,yes,0': "text beside them (private files are read line by line): line 4",
        b"50,north,1,yes,0,1": "6 cells, not 5 as in the header: line 4",
        b"50,Z\xfcrich,1,yes,0": "not UTF-8: line 4",
        b"50,north\0,1,yes,0": "holds a NUL byte: line 4",
        b"": "a blank line: line 4",
    }
    seen = set()
    for number, (row, words) in enumerate(bad.items()):
        (folder / "train.csv").write_bytes(b"\n".join([*rows[:3], row, *rows[4:]]) + b"\n")
        told = dpvalue("check", "train.csv", "--test", "test.csv", "--target", "label", cwd=folder)
        assert told.returncode == 1, told
        assert "train.csv: 120 records, 1 contribute zero" in told.stdout
        assert words in told.stdout
        if number < 4:
            done = dpvalue(*BASIC, "--epsilon", "4", "--out", f"r{number}", "--yes", cwd=folder)
            assert done.returncode == 0, done.stderr
            assert "The holder of the file can list them with `dpvalue check`" in done.stdout
            shown = done.stdout[: done.stdout.index("shapley values")]
            seen.add((re.sub("time: .*", "", shown), done.stderr))
    assert len(seen) == 1


@pytest.mark.slow
def test_any_split_of_graded_wines_works_without_a_flag(tmp_path: Path) -> None:
    """Grades 3 to 8, the outer ones rare: most public sets lack some. No run stops, and no words change for it."""
    generator = np.random.default_rng(0)
    grades = np.array([3] * 3 + [4] * 8 + [5] * 60 + [6] * 60 + [7] * 20 + [8] * 4)
    wines = pd.DataFrame({"fixed acidity": generator.normal(grades, 2).round(1), "pH": generator.normal(3, 0.2, 155)})
    wines["quality"] = grades
    for public in (8, 20, 60):
        order = generator.permutation(155)
        rows = wines.iloc[order[:public]], wines.iloc[order[public:]]
        for name, some in zip(("public.csv", "private.csv"), rows, strict=True):
            some.to_csv(tmp_path / name, sep=";", index=False, quoting=csv.QUOTE_NONNUMERIC)
        done = dpvalue(
            "run", "private.csv", "--test", "public.csv", "--target", "quality", "--yes", "--overwrite", cwd=tmp_path
        )
        assert (done.returncode, done.stderr) == (0, ""), public
        assert len(pd.read_csv(tmp_path / "results" / "values.csv")) == 155 - public


@pytest.mark.slow
def test_check_shows_labels_side_by_side_and_says_when_nothing_is_wrong(folder: Path) -> None:
    arguments = ("check", "train.csv", "--test", "test.csv", "--target", "label")
    found = dpvalue(*arguments, cwd=folder)
    assert (found.returncode, found.stderr) == (0, "")
    assert "train.csv: 120 records, all contribute" in found.stdout
    counts = pd.read_csv(folder / "train.csv")["label"].value_counts()
    public = pd.read_csv(folder / "test.csv", sep=";")["label"].value_counts()
    for label in ("yes", "no"):
        assert re.search(rf"{label} +{public[label]} +{counts[label]}\b", found.stdout)
    assert "note: column 'age', missing, counts as" in found.stdout
    made(40, 9).assign(label="other", who="7").to_parquet(folder / "odd.parquet")
    odd = dpvalue("check", "odd.parquet", *arguments[2:], "--person", "who", cwd=folder)
    assert odd.returncode == 1
    assert "not a class of test.csv (--classes names all of them): 'other' rows 1-40" in odd.stdout
    assert "column 'who', in more than 1 parties, counts in the first: '7' rows 2-40" in odd.stdout
    assert re.search(r"other +0 +40 +contributes zero", odd.stdout)
    allowed = dpvalue("check", "odd.parquet", *arguments[2:], "--classes", "yes,no,other", cwd=folder)
    assert allowed.returncode == 0, allowed.stdout


@pytest.mark.slow
def test_bad_input_of_the_other_commands(folder: Path) -> None:
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    for arguments, message in (
        (("revalue", "nowhere"), "nowhere is not an output folder of dpvalue run"),
        (
            ("report", "broken"),
            "broken/run.json has been damaged: Expecting property name enclosed in double quotes: line 1 column 2 "
            "(char 1)",
        ),
        (("plan", "--auc", "2"), "auc must be above 0.5 and below 1, got 2.0"),
    ):
        done = dpvalue(*arguments, cwd=folder)
        assert (done.returncode, done.stderr) == (2, f"error: {message}\n")


@pytest.mark.slow
def test_a_hundred_thousand_rows(folder: Path) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(0, 1, (100_000, 3)).round(3)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(label=(X[:, 0] > 0).astype(int))
    frame.to_csv(folder / "big.csv", index=False)
    frame[:200].to_csv(folder / "judge.csv", index=False)
    done = dpvalue(
        "run", "big.csv", "--test", "judge.csv", "--target", "label", "--permutations", "20", "--delta", "1e-7",
        "--yes", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(pd.read_csv(folder / "results" / "values.csv")) == 100_000
    assert (folder / "results" / "report.html").stat().st_size < 2_000_000


def typed(arguments: list[str], cwd: Path, answer: bytes, until: bytes) -> tuple[int, str]:
    """Run a command on a terminal; when `until` is shown, type the answer (or send Ctrl-C)."""
    child, screen = pty.fork()
    if child == 0:
        os.chdir(cwd)
        os.execv(COMMAND, [COMMAND, *arguments])
    shown, answered, end = b"", False, time.monotonic() + 200
    while time.monotonic() < end:
        if select.select([screen], [], [], 1.0)[0]:
            try:
                shown += os.read(screen, 65536)
            except OSError:  # the other side is closed
                break
        if until in shown and not answered:
            answered = True
            if answer == b"\x03":
                os.kill(child, signal.SIGINT)
            else:
                os.write(screen, answer)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown.decode(errors="replace")


@pytest.mark.slow
def test_on_a_terminal_it_asks(folder: Path) -> None:
    arguments = [*BASIC, "--epsilon", "2"]
    code, shown = typed(arguments, folder, b"n\n", b"Spend this budget?")
    assert code == 1
    assert "Abort" in shown
    assert not (folder / "results").exists()
    code, shown = typed(arguments, folder, b"y\n", b"Spend this budget?")
    assert code == 0, shown
    assert "walking" in shown  # a bar
    assert "reading" in shown
    assert (folder / "results" / "values.csv").is_file()


@pytest.mark.slow
def test_ctrl_c_keeps_the_releases_and_says_how_to_go_on(folder: Path) -> None:
    made(900, 1).to_csv(folder / "train.csv", index=False)
    # Values that few positions have a share in, of 900 rows, take far longer than it takes to type.
    slow = [*BASIC, "--epsilon", "2", "--semivalue", "beta(1,400)", "--permutations", "1000000", "--yes"]
    code, shown = typed(slow, folder, b"\x03", b"walking")
    assert code == 130, shown
    assert "stopped; releases are kept in results: run `dpvalue revalue results` to resume" in re.sub(
        r"\s+", " ", shown
    )
    assert sorted(file.name for file in (folder / "results").iterdir()) == ["run.json", "run.toml", "table.safetensors"]
    none_yet = dpvalue("report", "results", cwd=folder)
    assert none_yet.stderr.startswith("error: results has no values yet: run dpvalue revalue results")
    table = (folder / "results" / "table.safetensors").read_bytes()
    done = dpvalue("revalue", "results", "--semivalue", "shapley", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in (folder / "results").iterdir()) == FILES
    assert (folder / "results" / "table.safetensors").read_bytes() == table


@pytest.mark.slow
def test_plan_side_by_side(tmp_path: Path) -> None:
    done = dpvalue("plan", "--parties", "800", "--epsilon", "1", "--auc", "0.8", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "rows persons organisations" in text
    assert "0.881" in text
    assert "per person" in text
    numbers: dict[str, Any] = json.loads(here("plan", "--json").stdout)
    assert numbers["rows"]["gaussian_ceiling"] == pytest.approx(0.663, abs=5e-4)
    assert numbers["organisations"]["laplace_noise_per_row"] == pytest.approx(0.01)
    refit: dict[str, Any] = json.loads(dpvalue("plan", "--json", "--game", "refit", cwd=tmp_path).stdout)
    assert refit["organisations"]["laplace_noise_per_row"] is None  # one Gaussian release
    gaussian = numbers["organisations"]["gaussian_noise_per_row"]
    assert 0 < refit["organisations"]["gaussian_noise_per_row"] < gaussian
    steps: dict[str, Any] = json.loads(dpvalue("plan", "--json", "--game", "steps", cwd=tmp_path).stdout)
    assert steps == numbers
    for arguments, message in (
        (("--game", "paper"), "game must be one of auto, refit, steps; got 'paper'"),
        (("--game", "refit", "--auc", "0.8"), "auc needs game='steps'"),
        (("--game", "refit", "--delta", "0"), "game='refit' needs Gaussian noise (delta above 0)"),
    ):
        refused = dpvalue("plan", *arguments, cwd=tmp_path)
        assert refused.returncode == 2
        assert refused.stderr.startswith(f"error: {message}")
        assert len(refused.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_metric_is_an_option(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run, of what is kept of it, and of other values: on the terminal, in files and on the page."""
    monkeypatch.chdir(folder)
    basic = ("run", "train.csv", "--test", "test.csv", "--target", "label", "--permutations", "50")
    done = here(*basic, "--metric", "auc", "--model", "logistic", "--epsilon", "8", "--out", "by-auc", "--force")
    assert done.exit_code == 0, done.output
    assert "classification, logistic model, metric auc" in done.output
    assert "utility: AUC, on 150 public rows" in done.output
    options = tomllib.loads((folder / "by-auc" / "run.toml").read_text())
    assert (options["metric"], options["model"], options["preprocess"]) == ("auc", "logistic", "columns")
    assert "Utility: AUC, on 150 public rows. Semivalues: shapley;" in (folder / "by-auc" / "report.html").read_text()
    values = pd.read_csv("by-auc/values.csv")["shapley"]
    table, (X, y) = dpv.load("by-auc/table.safetensors"), public_of(folder)
    assert isinstance(table, dpv.Table)
    expected = table.value(dpv.Utility(X, y, metric="auc"), permutations=50, progress=False)
    np.testing.assert_allclose(values, expected.values["shapley"], rtol=1e-6)

    again = here("revalue", "by-auc", "--metric", "balanced_accuracy")
    assert again.exit_code == 0, again.output
    other = folder / "by-auc" / "revalue-shapley-test-balanced_accuracy"
    assert tomllib.loads((other / "run.toml").read_text())["metric"] == "balanced_accuracy"
    assert "utility: balanced accuracy, on 150 public rows" in again.output
    same = here("revalue", "by-auc", "--out", "same")  # without a metric it is that of the run
    assert same.exit_code == 0, same.output
    np.testing.assert_allclose(pd.read_csv("same/values.csv")["shapley"], values, rtol=1e-6)
    refused = here("revalue", "by-auc", "--metric", "mae", "--out", "none")
    assert "model logistic is for classification, metric mae is for regression" in refused.stderr
    for arguments, message in (
        (("--metric", "f1"), "metric must be one of loss, accuracy, balanced_accuracy, auc, mse, mae, r2; got 'f1'"),
        (("--metric", "r2"), "the target 'label' of test.csv must be numbers for regression"),
        (("--preprocess", "numbers"), "the column 'town' of the public file does not hold numbers: preprocess "
         "'numbers' needs them, preprocess 'columns' encodes text"),
    ):  # fmt: skip
        done = here(*basic, *arguments, "--out", "none", "--force")
        assert (done.exit_code, done.stderr) == (2, f"error: {message}\n")
    assert not (folder / "none").exists()


def public_of(folder: Path) -> tuple[pd.DataFrame, pd.Series[str]]:
    frame = pd.read_csv(folder / "test.csv", sep=";")
    return frame.drop(columns="label"), frame["label"]


def test_the_metrics_of_the_help_are_those_that_there_are() -> None:
    assert common.METRICS.replace(" (default)", "").split(", ") == list(METRICS)


@pytest.mark.slow
def test_numbers_as_they_are_and_a_metric_that_says_the_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grades from 0 to 4 would be classes: by a metric of numbers they are numbers."""
    monkeypatch.chdir(folder)
    for name, rows in (("grades", 90), ("public", 120)):
        X = np.random.default_rng(rows).normal(size=(rows, 2))
        grade = np.clip(np.rint(2 + X @ [1.0, -0.5]), 0, 4).astype(int)
        pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "grade": grade}).to_csv(f"{name}.csv", index=False)
    basic = ("run", "grades.csv", "--test", "public.csv", "--target", "grade", "--permutations", "20", "--force")
    done = here(*basic, "--metric", "mae", "--preprocess", "numbers", "--epsilon", "8", "--out", "a")
    assert done.exit_code == 0, done.output
    assert "120 rows, 2 numeric columns as they are; regression, linear model, metric mae" in done.output
    table = dpv.load("a/table.safetensors")
    assert isinstance(table, dpv.Table)
    assert table.encoding.schema == [
        {"name": name, "missing": pytest.approx(pd.read_csv("public.csv")[name].median()), "mean": 0.0, "scale": 1.0}
        for name in ("a", "b")
    ]
    scored = table.method.name == "scores"
    judged = "none (scores are valued by their sum" if scored else "mean absolute error, negated, on 120"
    assert f"utility: {judged}" in done.output
    assert here(*basic, "--epsilon", "8", "--out", "b").output.count("classification (inferred)") == 1


@pytest.mark.slow
def test_the_game_is_an_option(folder: Path) -> None:
    made(120, 1).assign(site=np.repeat(["a", "b", "c"], 40)).to_csv(folder / "sites.csv", index=False)
    basic = ("run", "sites.csv", "--test", "test.csv", "--target", "label", "--group", "site", "--unit", "record")
    played = {}
    for game in ("auto", "refit", "steps"):
        given = () if game == "auto" else ("--game", game)
        done = dpvalue(*basic, *given, "--epsilon", "8", "--out", game, "--force", cwd=folder)
        assert done.returncode == 0, done.stderr
        played[game] = "1 per party (refit game)" in done.stdout
        assert tomllib.loads((folder / game / "run.toml").read_text())["game"] == game
    assert played == {"auto": True, "refit": True, "steps": False}
    for arguments, message in (
        (
            ("--game", "refit", "--schedule", "lagged"),
            "schedule lagged is for game steps: game refit makes one release of its own; give only one of them",
        ),
        (("--game", "paper"), "game must be one of auto, refit, steps; got 'paper'"),
        (("--game", "refit", "--mechanism", "laplace"), "game='refit' needs Gaussian noise (delta above 0)"),
    ):
        refused = dpvalue(*basic, *arguments, "--out", "none", "--yes", cwd=folder)
        assert (refused.returncode, refused.stderr) == (2, f"error: {message}\n")
        assert not (folder / "none").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "",
        "run",
        "check",
        "revalue",
        "report",
        "plan",
        "demo",
        "audit",
        "reproduce",
        "bench",
        "ledger",
        "ledger new",
        "ledger add",
        "ledger show",
        "ledger verify",
    ],
)
def test_help_fits_a_screen_and_has_an_example(command: str, tmp_path: Path) -> None:
    done = dpvalue(*command.split(), "--help", cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert "\\[" not in done.stdout
    if command not in ("", "ledger"):
        assert "Example: dpvalue" in done.stdout


def test_completion_is_there(tmp_path: Path) -> None:
    environment = {**os.environ, "_DPVALUE_COMPLETE": "complete_bash", "COMP_WORDS": "dpvalue re", "COMP_CWORD": "1"}
    done = subprocess.run([COMMAND], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert set(done.stdout.split()) == {"revalue", "report", "reproduce"}
