"""The commands of a study as people type them, and the example's pages line by line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.cli.party import free_port
from dpvalue.protocol.archive import Key
from tests.federation import Files, simulated, write_files

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"


def here(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: Any) -> Files:
    monkeypatch.chdir(tmp_path)
    return write_files(tmp_path, {"north": 90, "south": 60})


def typed(page: Path) -> str:
    """All that a page tells to type."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL))


def followed(page: str, folder: Path) -> str:
    """What is printed where a page is typed line by line."""
    shutil.copy(EXAMPLE / "prepare.py", folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = f"set -eu\n{typed(EXAMPLE / page).replace('19092', str(free_port()))}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        timeout=550, check=False,
    )  # fmt: skip
    logs = "\n".join(f"== {log}\n{log.read_text()[-1500:]}" for log in sorted(folder.rglob("*.log")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    assert "results matches its job and the releases of 4 parties" in done.stdout
    assert (folder / "hospitals" / "results" / "report.html").is_file()
    return done.stdout


@pytest.mark.slow
def test_the_example_by_file_works_as_it_is_written(tmp_path: Path) -> None:
    printed = followed("README.md", tmp_path)
    assert "releases: 3 parties, 0 signed" in printed
    assert "releases: 4 parties, 0 signed" in printed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Flower's programs are tied to their parents on Linux alone")
def test_the_example_over_flower_works_as_it_is_written(tmp_path: Path) -> None:
    printed = followed("flower.md", tmp_path)
    assert "messages sent: 4, one per party and round" in printed
    assert "releases: 4 parties, 4 signed; 0 rejected" in printed
    for site in ("site-a", "site-b", "site-c", "site-d"):
        ledger = dpv.Ledger(tmp_path / "hospitals" / f"{site}.ledger")
        assert [entry.purpose.split()[0] for entry in ledger.entries()] == ["office"]


def test_a_study_is_made_shown_answered_and_valued(files: Files) -> None:
    made = here("job", "--test", "public.csv", "--target", "label", "--sizes", "90,60")
    assert made.exit_code == 0, made.output
    assert "the job" not in here("job", "show", "study.job").stderr
    shown = here("job", "show", "study.job").output
    for words in (
        "signed by: no one",
        "asks for: 13 numbers per party",
        "reads: 5 columns: a, b, c, kind, label",
        "spends: Each record",
    ):
        assert words in shown
    assert "bit for bit" in here("job", "verify", "study.job").output
    for name in files.sizes:
        started = here("ledger", "new", f"{name}.ledger", "--epsilon", "2", "--unit", "record", "--name", name)
        assert started.exit_code == 0
    weighed = here("party", "check", "study.job", "north.csv", "--ledger", "north.ledger")
    assert weighed.exit_code == 0, weighed.output
    assert "and your number of records (90)" in weighed.output
    assert "Nothing was released." in weighed.output
    for name in files.sizes:
        answer = here("party", "answer", "study.job", f"{name}.csv", "--name", name, "--ledger", f"{name}.ledger")
        assert answer.exit_code == 0, answer.output
        assert "spent so far: epsilon = 1 of 2" in answer.output
    valued = here("value", "study.job", "north.release", "south.release")
    assert valued.exit_code == 0, valued.output
    assert "releases: 2 parties, 0 signed; 0 rejected" in valued.output
    assert here("revalue", "results", "--semivalue", "banzhaf").exit_code == 0
    alike = here("verify", "results")
    assert alike.exit_code == 0, alike.output
    assert "not compared: revalue-banzhaf-public" in alike.output
    again = here("run", "--config", "results/run.toml", "--out", "more")
    assert "these are the options of a study" in again.stderr


@pytest.mark.slow
def test_the_metric_of_a_study_is_that_of_its_recipe_or_another(files: Files) -> None:
    made = here("job", "--test", "public.csv", "--target", "label", "--parties", "4", "--metric", "auc")
    assert made.exit_code == 0, made.output
    assert "with the loss as metric" in made.output  # what the plan has rehearsed
    assert "bit for bit" in here("job", "verify", "study.job").output
    for name in files.sizes:
        here("ledger", "new", f"{name}.ledger", "--epsilon", "2", "--unit", "record", "--name", name)
        here("party", "answer", "study.job", f"{name}.csv", "--name", name, "--ledger", f"{name}.ledger")
    releases = [f"{name}.release" for name in files.sizes]
    for given, judged in (((), "AUC"), (("--metric", "accuracy"), "accuracy")):
        folder = Path(f"by-{judged}")
        valued = here("value", "study.job", *releases, *given, "--out", folder)
        assert valued.exit_code == 0, valued.output
        assert f"utility: {judged}, on 120 public rows" in valued.output
        assert tomllib.loads((folder / "run.toml").read_text())["metric"] == judged.lower()
        verified = here("verify", folder, "--test", "public.csv")
        assert (verified.exit_code, f"metric {judged.lower()}" in verified.output) == (0, True), verified.output
    for other, message in (("auc", "run.json, values.metric: "), ("r2", "does not fit a classification model")):
        shutil.copytree("by-accuracy", other)
        for path in (Path(other) / "run.json", Path(other) / "run.toml"):
            path.write_text(re.sub(r'(metric = \\?")accuracy', rf"\g<1>{other}", path.read_text()))
        verified = here("verify", other, "--test", "public.csv")
        assert verified.exit_code == 1, verified.output
        assert message in verified.output
    refused = here("value", "study.job", *releases, "--metric", "r2", "--out", "none")
    assert (
        refused.stderr == "error: metric 'r2' does not fit a classification model; use one of loss, accuracy, "
        "balanced_accuracy, auc\n"
    )
    assert not Path("none/values.csv").exists()


def test_with_keys_and_a_roster(files: Files) -> None:
    lines = {name: here("key", "new", f"{name}.key").output.strip() for name in ("office", "north", "south")}
    assert here("key", "show", "north.key").output.strip() == lines["north"] == Key.read("north.key").public
    here("job", "--test", "public.csv", "--target", "label", "--parties", 2, "--key", "office.key")
    assert f"signed by: {lines['office']}" in here("job", "show", "study.job").output
    Path("policy.toml").write_text(f'[[coordinators]]\nname = "office"\nkey = "{lines["office"]}"\n')
    for name in files.sizes:
        here("ledger", "new", f"{name}.ledger", "--unit", "record", "--name", name)
        keyed = ("--key", f"{name}.key", "--policy", "policy.toml", "--ledger", f"{name}.ledger")
        answer = here("party", "answer", "study.job", f"{name}.csv", "--name", name, *keyed)
        assert answer.exit_code == 0, answer.output
    roster = "".join(f'[[party]]\nname = "{name}"\nkey = "{lines[name]}"\n' for name in files.sizes)
    Path("roster.toml").write_text(roster)
    valued = here("value", "study.job", "north.release", "south.release", "--roster", "roster.toml")
    assert "releases: 2 parties, 2 signed" in valued.output, valued.output
    Path("roster.toml").write_text(roster.replace("north", "north-west"))
    other = here("value", "study.job", "north.release", "--roster", "roster.toml", "--out", "other")
    assert "rejected: it is not in the roster" in other.output


def test_what_is_wrong_is_said_in_one_line(files: Files) -> None:
    made = ("job", "--test", "public.csv", "--target", "label")
    here(*made, "--sizes", "90,60")
    here("ledger", "new", "north.ledger", "--unit", "record", "--name", "north")
    here("ledger", "new", "party.ledger", "--unit", "party", "--name", "north", "--party", "north")
    Path("bad.toml").write_text("unsigned = 1")
    answer = ("party", "answer", "study.job", "north.csv", "--name", "north")
    wrong: dict[tuple[object, ...], str] = {
        made: "give either --sizes",
        (*made, "--sizes", "90,many", "--out", "x"): "sizes must be whole numbers",
        (*made, "--sizes", "90", "--out", "x"): "at least two parties",
        (*made, "--sizes", "90,60"): "a job must not change after it was sent",
        (*made, "--sizes", "9,6", "--out", "x", "--key", "north.csv"): "is not a key",
        ("job", "show", "north.csv"): "not a dpvalue file",
        ("job", "verify", "study.job", "--test", "north.csv"): "is not the public file",
        answer: "ledger must be given",
        ("party", "answer", "study.job", "north.csv", "--ledger", "north.ledger"): "name must be given",
        (*answer, "--ledger", "party.ledger"): "unit must be 'party', the job has 'record'",
        (*answer, "--ledger", "north.ledger", "--policy", "bad.toml"): "bad.toml: unsigned must be true or false",
        (*answer, "--ledger", "north.ledger", "--out", "nowhere/x"): "folder nowhere does not exist",
        (*answer, "--ledger", "north.ledger", "--request", "study.job"): "must have dpvalue format 2 of a request",
        ("value", "study.job", "nothing.release"): "must be a file with a release",
        ("value", "north.csv"): "not a dpvalue file",
        ("value", "study.job", "--out", "."): "holds other files",
        ("value", "study.job", "--out", "new"): "at least two parties must answer, got 0",
        ("verify", "."): "is not an output folder of dpvalue run",
    }  # fmt: skip
    for arguments, why in wrong.items():
        done = here(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert why in done.stderr, (arguments, done.stderr)
        assert done.stderr.count("\n") == 1


def test_later_rounds_by_file(files: Files) -> None:
    rounds = {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}
    replace(simulated(files, **rounds)[1], simulation=None).save("study.job")

    def answers(*more: str) -> list[str]:
        for name in files.sizes:
            given = [argument.format(name=name) for argument in more]
            done = here(
                "party", "answer", "study.job", f"{name}.csv", "--name", name, "--ledger", f"{name}.ledger", *given
            )
            assert done.exit_code == 0, done.output
        return [f"{name}.release" for name in files.sizes]

    for name in files.sizes:
        here("ledger", "new", f"{name}.ledger", "--unit", "record", "--name", name)
    first = here("value", "study.job", *answers())
    assert first.exit_code == 0, first.output
    assert "round 1 of 2: send each party its request in results/study/round-1" in first.output
    waiting = here("value", "study.job")
    assert "round 1: waiting for north, south" in waiting.output
    assert not Path("results/values.csv").exists()
    done = here("value", "study.job", *answers("--request", "results/study/round-1/{name}.request"))
    assert "releases: 2 parties" in done.output, done.output
    assert Path("results/values.csv").is_file()
