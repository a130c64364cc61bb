"""Every command that reads private files, in one folder, and everything that comes out of it.

`observed` writes the private files of a world, types the commands of `steps` and returns what they print and write. A
world is plain (`seed=None`), or its private content is random: bytes that are no record, types that do not fit, numbers
of any bits. What is public of it stays: lines, parties, for unit "person" the number of persons, and names of columns.
"""

from __future__ import annotations

import logging
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
from click.testing import CliRunner
from pyarrow import parquet
from typer.main import get_command

from dpvalue import progress as progress_module
from dpvalue.cli import app
from dpvalue.cli.party import make_agent
from dpvalue.coordinator.roster import read_roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import options_of, over_flower, read_utility, value_study
from dpvalue.party.agent import Refusal
from dpvalue.progress import silent
from dpvalue.protocol.archive import Key
from dpvalue.protocol.transport import Question, Reply
from tests.federation import LocalNodes

COMMAND = get_command(app)
SITES = {"east": 24, "north": 40, "south": 30}
COLUMNS = ("who", "a", "b", "kind", "label")
STUDY = ("--test", "public.csv", "--target", "label")


@dataclass(frozen=True)
class Case:
    """A format of private files, and what is protected."""

    format: str
    unit: str
    model: str = "auto"

    @property
    def protects(self) -> list[str]:
        """The options that say so."""
        return ["--unit", self.unit, *(["--person", "who"] if self.unit == "person" else [])]

    @property
    def files(self) -> list[str]:
        """The private files, one a party."""
        return [f"{site}.{self.format}" for site in SITES]


def _plain(rows: int, generator: np.random.Generator) -> pd.DataFrame:
    a, b = generator.normal(size=(2, rows))
    kinds, people = generator.choice(["u", "v"], rows), np.arange(rows) // 2
    frame = pd.DataFrame({"who": [f"p{person:03d}" for person in people], "a": a, "b": b, "kind": kinds})
    return frame.assign(label=np.where(a + 0.5 * b + 0.3 * generator.normal(size=rows) > 0, "yes", "no"))


def write_public(folder: Path, case: Case) -> None:
    """Write the public file, keys, and the job of the study: all that is there before a private file is opened."""
    _plain(90, np.random.default_rng(7)).drop(columns="who").to_csv(folder / "public.csv", index=False)
    for number, name in enumerate(("office", *SITES)):
        Key(bytes([number + 1]) * 32).save(folder / f"{name}.key")
    sizes = ",".join(str(size // 2 if case.unit == "person" else size) for size in SITES.values())
    with chdir(folder):
        made = CliRunner().invoke(
            COMMAND,
            [
                "job",
                *STUDY,
                "--epsilon",
                "2",
                "--sizes",
                sizes,
                "--unit",
                case.unit,
                "--key",
                "office.key",
                "--model",
                case.model,
            ],
        )
    assert made.exit_code == 0, made.output


def write_private(folder: Path, case: Case, seed: int | None) -> None:
    """Write the private files of a world."""
    for number, (site, rows) in enumerate(SITES.items()):
        path = folder / f"{site}.{case.format}"
        if seed is None:
            frame = _plain(rows, np.random.default_rng([number, 1]))
            frame.to_csv(path, index=False) if case.format == "csv" else frame.to_parquet(path)
        else:
            generator = np.random.default_rng([number, seed])
            (_random_lines if case.format == "csv" else _random_columns)(path, case, rows, generator)


def _random_ids(rows: int, generator: np.random.Generator) -> list[str]:
    """As many persons as before, each with one row at least, and any number of rows besides."""
    ids = [generator.bytes(6).hex() + "x" for _ in range(rows // 2)]
    more = generator.choice(ids, generator.integers(1, 2 * rows)).tolist()
    return [str(one) for one in generator.permutation([*ids, *more])]


def _random_lines(path: Path, case: Case, rows: int, generator: np.random.Generator) -> None:
    def cell() -> bytes:
        text = "".join(map(chr, generator.integers(32, 0x2FFF, generator.integers(0, 30)))).replace('"', "'")
        return f'"{text}"'.encode()

    if case.unit == "person":  # of an id nothing may be lost: the number of persons is public
        lines = [b",".join([one.encode(), *(cell() for _ in COLUMNS[1:])]) for one in _random_ids(rows, generator)]
    else:
        lines = [b"\xff" + generator.bytes(int(generator.integers(0, 300))).replace(b"\n", b"") for _ in range(rows)]
        lines[0] = b'9,"' + b"9" * 3_000_000  # far longer than a line may be, and a quote that does not close
    path.write_bytes(b"\n".join([",".join(COLUMNS).encode(), *lines]) + b"\n")


def _random_columns(path: Path, case: Case, rows: int, generator: np.random.Generator) -> None:
    ids = _random_ids(rows, generator) if case.unit == "person" else [generator.bytes(4).hex() for _ in range(rows)]
    rows = len(ids)
    bits = np.frombuffer(generator.bytes(8 * rows))
    raw = [generator.bytes(int(generator.integers(0, 50))) for _ in range(rows)]
    raw[0] = b"9" * 3_000_000
    texts = pa.array([None if number % 5 == 0 else chr(number + 900) for number in range(rows)])
    labels = pa.array(generator.integers(-(2**62), 2**62, rows))
    columns = {"who": pa.array(ids), "a": pa.array(bits), "b": pa.array(raw), "kind": texts, "label": labels}
    parquet.write_table(pa.table(columns), path)


def steps(case: Case) -> dict[str, list[str]]:
    """The commands that read private files, and those that make something of what these released."""
    by_steps = ["run", *case.files, *STUDY, *case.protects, "--epsilon", "2", "--force", "--pay", "100"]
    run = [*by_steps, "--model", case.model]
    steps = ["--schedule", "independent", "--permutations", "2"]
    found = {
        "plan": ["plan", "--json"],
        "run": [*run, "--out", "results"],
        "ledger new": [*_new_ledger("run", case), "--head", "run.head"],
        "run by steps": [*by_steps, *steps, "--ledger", "run.ledger", "--head", "run.head", "--out", "steps"],
        "run again": [*by_steps, *steps, "--ledger", "run.ledger", "--head", "run.head", "--out", "again"],
        "ledger show": ["ledger", "show", "run.ledger"],
        "revalue": ["revalue", "results", "--semivalue", "banzhaf"],
        "report": ["report", "results"],
    }
    for site, file in zip(SITES, case.files, strict=True):
        policy = f'[[coordinators]]\nname = "office"\nkey = "{Key(bytes([1]) * 32).public}"\n'
        policy += f'[protection]\nunit = "{case.unit}"\nepsilon = 2.0\n' + (
            'person = "who"\n' if case.unit == "person" else ""
        )
        Path(f"{site}.toml").write_text(policy)
        own = ["--name", site, "--ledger", f"{site}.ledger", "--policy", f"{site}.toml"]
        found |= {
            f"ledger new {site}": _new_ledger(site, case),
            f"party check {site}": ["party", "check", "study.job", file, *own],
            f"party answer {site}": ["party", "answer", "study.job", file, *own, "--key", f"{site}.key"],
        }
    releases = [f"{site}.release" for site in SITES]
    return found | {
        "value": ["value", "study.job", *releases, "east.key", "--out", "study", "--pay", "100"],
        "verify": ["verify", "study", "--test", "public.csv"],
    }


def _new_ledger(name: str, case: Case, file: str = "") -> list[str]:
    """The command that starts a ledger."""
    return ["ledger", "new", f"{file or name}.ledger", "--name", name, "--epsilon", "9", *case.protects]


@dataclass
class Seen:
    """What came out: of each command its exit code and what it printed, and every file by its place."""

    printed: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Any] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    progress: list[Any] = field(default_factory=list)


def observed(folder: Path, case: Case, seed: int | None) -> Seen:
    """Write a world into a folder that holds what is public, type all commands, and return what came out."""
    seen, there = Seen(), {path.name for path in folder.iterdir()}
    write_private(folder, case, seed)
    with chdir(folder), _listening(seen):
        for name, arguments in steps(case).items():
            done = CliRunner().invoke(COMMAND, arguments)
            seen.printed[name] = done.exit_code, repr(done.exception), done.stdout, done.stderr
        _together(seen, case)
    private = {*case.files, *there, "roster.toml", *(f"{site}.toml" for site in SITES)}
    for path in sorted(folder.rglob("*")):
        place = str(path.relative_to(folder))
        if path.is_file() and place not in private:
            seen.files[place] = _content(path)
    return seen


def _content(path: Path) -> Any:
    content = path.read_bytes()
    if not content.startswith(b"SQLite format 3"):
        return content
    with sqlite3.connect(path) as database:
        return list(database.iterdump())


def _together(seen: Seen, case: Case) -> None:
    """The study over Flower's messages, in this process; each message that crosses is noted."""
    content = Path("study.job").read_bytes()
    parties: dict[int, Any] = {}
    for number, (site, file) in enumerate(zip(SITES, case.files, strict=True)):
        parties[number] = _answering(seen, site, file, case)
    lines = [f'[[party]]\nname = "{site}"\nkey = "{Key.read(f"{site}.key").public}"\n' for site in SITES]
    Path("roster.toml").write_text("".join(lines))
    config = {"folder": "together/study", "job": "study.job", "roster": "roster.toml", "key": "office.key"}
    Path("together").mkdir()
    over_flower(LocalNodes(parties), {**config, "parties": len(parties), "gather": 0.0, "deadline": 1e12})
    coordinator = Coordinator(Path("together/study"), content, read_roster(Path("roster.toml")))
    utility = read_utility(coordinator.job, Path("public.csv"))
    value_study(coordinator, utility, options_of(coordinator.job), Path("together"), silent)


def _answering(seen: Seen, site: str, file: str, case: Case) -> Callable[[Question], Reply]:
    made = CliRunner().invoke(COMMAND, _new_ledger(site, case, f"{site}-2"))
    assert made.exit_code == 0, made.output
    key = Path(f"{site}.key")
    agent = make_agent(site, Path(file), Path(f"{site}-2.ledger"), None, Path(f"{site}.toml"), key)

    def respond(asked: Question) -> Reply:
        try:
            answered = Reply(agent.answer(asked.job, asked.request), "")
        except Refusal as refused:
            answered = Reply(b"", refused.public)
        seen.messages += [asked, answered]
        return answered

    return respond


@contextmanager
def _listening(seen: Seen) -> Iterator[None]:
    """Take note of every log line and warning, and of what a bar on a terminal would show."""

    @contextmanager
    def reporting(progress: Any) -> Iterator[Any]:
        yield lambda *step: seen.progress.append(step)

    handler = logging.Handler()
    handler.emit = lambda record: seen.logs.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dpvalue")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        with (
            warnings.catch_warnings(record=True) as caught,
            mock.patch.object(progress_module, "reporting", reporting),
        ):
            warnings.simplefilter("always")
            yield
        seen.warned += [str(one.message) for one in caught]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
