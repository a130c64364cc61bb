"""A confused holder hands a command the wrong file, in any place: nothing is lost, nothing is spent, one clear line."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.protocol.archive import Key
from tests.privacy.test_holders import commands, frame

RUN = ("--test", "public.csv", "--target", "label", "--epsilon", "2", "--force")
HOME = ("--name", "cedar", "--ledger", "cedar.ledger", "--policy", "cedar.toml", "--head", "cedar.head")

TYPED: dict[str, tuple[str, ...]] = {
    "run": ("cedar.csv", "birch.csv", *RUN, "--ledger", "run.ledger", "--head", "run.head", "--out", "new"),
    "run by config": ("cedar.csv", "--config", "run.toml", "--out", "new"),
    "revalue": ("results", "--test", "public.csv", "--out", "new"),
    "report": ("results",),
    "check": ("cedar.csv", "--test", "public.csv", "--target", "label"),
    "value": ("study.job", "cedar.release", "birch.release", "--test", "public.csv", "--roster", "roster.toml",
              "--out", "new"),
    "verify": ("study", "--test", "public.csv", "--roster", "roster.toml"),
    "job": ("--test", "public.csv", "--target", "label", "--epsilon", "2", "--sizes", "40,40", "--key", "office.key",
            "--out", "new.job"),
    "job show": ("study.job",),
    "job verify": ("study.job", "--test", "public.csv"),
    "party check": ("second.job", "cedar.csv", *HOME),
    "party answer": ("second.job", "cedar.csv", *HOME, "--key", "cedar.key", "--out", "new.release"),
    "ledger new": ("new.ledger", "--name", "x", "--epsilon", "1", "--party", "x", "--head", "new.head"),
    "ledger add": ("run.ledger", "--party", "oak", "--head", "run.head"),
    "ledger show": ("run.ledger",),
    "ledger verify": ("cedar.ledger", "--head", "cedar.head"),
    "key new": ("new.key",),
    "key show": ("cedar.key",),
    "flower node": ("new.node",),
}  # fmt: skip
ELSEWHERE = {"plan", "demo", "audit", "reproduce", "bench", "party serve", "flower new", "flower link",
             "flower register", "flower run"}  # fmt: skip
"""Commands that take no file, or reach for a network: `tests/flower/test_deployed.py`."""

WRONG = (
    "birch.csv", "cedar.parquet", "public.csv", "study.job", "birch.ledger", "birch.head", "birch.key", "birch.toml",
    "birch.release", "roster.toml", "study", "results", "empty", "noise.bin", "dir", "link.csv", "loop", "missing/x",
    "cedar.csv/x", "cedar.csv", "cedar.ledger",
)  # fmt: skip
ALLOWED = {"cedar.ledger", "cedar.head", "run.ledger", "run.head"}
"""What a command that ended well may have changed: the ledger that is charged, and its head."""


def typed(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def done(*arguments: object) -> None:
    found = typed(*arguments)
    assert found.exit_code == 0, (arguments, found.output, found.exception)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of each kind that a holder or a coordinator has."""
    folder = tmp_path_factory.mktemp("holder")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        frame(60, 1).to_csv("public.csv", index=False)
        job = ("job", *RUN[:-1], "--sizes", "40,40", "--unit", "record")
        for epsilon, name in ((2, "study.job"), (1, "second.job")):
            done(*job, "--epsilon", epsilon, "--out", name)
        done("key", "new", "office.key")
        for number, name in enumerate(("cedar", "birch")):
            frame(40, 2 + number).to_csv(f"{name}.csv", index=False)
            done("key", "new", f"{name}.key")
            done("ledger", "new", f"{name}.ledger", "--name", name, "--unit", "record", "--epsilon", 9,
                 "--head", f"{name}.head")  # fmt: skip
            Path(f"{name}.toml").write_text('unsigned = true\n[protection]\nunit = "record"\nepsilon = 5.0\n')
            done("party", "answer", "study.job", f"{name}.csv", "--name", name, "--ledger", f"{name}.ledger",
                 "--key", f"{name}.key", "--head", f"{name}.head")  # fmt: skip
        keys = [(name, Key.read(Path(f"{name}.key")).public) for name in ("cedar", "birch")]
        Path("roster.toml").write_text("".join(f'[[party]]\nname = "{name}"\nkey = "{key}"\n' for name, key in keys))
        done("value", "study.job", "cedar.release", "birch.release", "--test", "public.csv", "--out", "study")
        done("run", "cedar.csv", "birch.csv", *RUN, "--out", "results")
        shutil.copy("results/run.toml", "run.toml")
        done("ledger", "new", "run.ledger", "--name", "both", "--party", "cedar", "--party", "birch", "--epsilon", 9,
             "--head", "run.head")  # fmt: skip
        pd.read_csv("cedar.csv").to_parquet("cedar.parquet")
        Path("noise.bin").write_bytes(np.random.default_rng(5).bytes(3000))
        Path("empty").touch()
        Path("dir").mkdir()
        Path("link.csv").symlink_to("cedar.csv")
        Path("loop").symlink_to("loop")
    return folder


def content(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = str(path.readlink())
        elif path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def test_every_command_is_here() -> None:
    names = {name for name, _ in commands(typer.main.get_command(app))}
    assert names - ELSEWHERE == set(TYPED) - {"run by config", "job"}  # a command with commands of its own


def places(arguments: tuple[str, ...]) -> list[int]:
    """Which words of a command name files."""
    folders = ("results", "study", "new")
    return [at for at, word in enumerate(arguments) if "." in word or word in folders]


@pytest.mark.slow
@pytest.mark.parametrize("name", TYPED)
def test_the_wrong_file_in_any_place(name: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(base)
    arguments, command = TYPED[name], name.removesuffix(" by config")
    tries = [(at, wrong) for at in places(arguments) for wrong in WRONG if wrong != arguments[at]]
    sample = np.random.default_rng(len(tries)).permutation(len(tries))[:20]
    folder = tmp_path / "own"
    for at, wrong in (tries[number] for number in sample):
        shutil.copytree(base, folder, symlinks=True)
        monkeypatch.chdir(folder)
        found = typed(*command.split(), *arguments[:at], wrong, *arguments[at + 1 :])
        told = f"{command} {arguments[at - 1] if at else ''} {wrong}: {found.output} {found.exception!r}"
        assert found.exception is None or isinstance(found.exception, SystemExit), told
        assert found.exit_code in (0, 1, 2), told
        after = content(folder)
        changed = {place for place in before if after.get(place) != before[place]}
        if found.exit_code == 2:
            assert found.stderr.startswith("error: "), told
            assert found.stderr.count("\n") == 1, told
            assert not changed, told
        else:
            assert not changed - ALLOWED - {"results/report.html"}, told
        for ledger in ("cedar", "birch", "run"):
            kept = dpv.Ledger(folder / f"{ledger}.ledger")
            assert kept.spent_epsilon <= kept.budget.epsilon
        monkeypatch.chdir(base)
        shutil.rmtree(folder)


@pytest.mark.parametrize("place", ["cedar.csv", "cedar.ledger", "cedar.key", "second.job", "birch.release", "loop"])
def test_an_answer_is_written_over_nothing_but_an_answer_of_the_party(
    place: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--out cedar.ledger` wrote over the ledger that had just been charged."""
    shutil.copytree(base, tmp_path / "own", symlinks=True)
    monkeypatch.chdir(tmp_path / "own")
    before = content(Path())
    refused = typed("party", "answer", "second.job", "cedar.csv", *HOME, "--out", place)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: out must be a new file, or one with a release of 'cedar'")
    assert content(Path()) == before
    assert typed("party", "answer", "second.job", "cedar.csv", *HOME).exit_code == 0
    assert typed("party", "answer", "second.job", "cedar.csv", *HOME).exit_code == 0
