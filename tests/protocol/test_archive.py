"""Bytes of every kind of file, cut, flipped, replaced and repeated: one clear line, never a traceback or a hang."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.cli.flower import _link
from dpvalue.coordinator.roster import read_roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.flower.records import Memory, StoredTask
from dpvalue.party.agent import Refusal
from dpvalue.party.policy import read_policy
from dpvalue.privacy.charges import Charge
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.protocol.archive import Archive, Key, open_seal
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.protocol.transport import Question
from tests.federation import REFUSALS, Files, write_files
from tests.journeys.test_damage import paths, put
from tests.mutations import damaged

COUNT = 150
POLICY = """\
columns = ["a"]
[protection]
unit = "record"
epsilon = 2.0
delta = 1e-5
laws = ["gaussian"]
[limits]
rounds = 3
tick = 2.0
[[coordinators]]
name = "office"
key = "{key}"
epsilon = 1.0
[[models]]
name = "logistic"
"""


def refusals(copies: Iterator[bytes], read: Callable[[bytes], object]) -> int:
    """How many damaged copies are refused, each in one line; whatever else is raised fails the test."""
    refused = 0
    for content in copies:
        said = ""
        try:
            read(content)
        except dpv.DpvalueError as error:
            said = str(error)
            refused += 1
        assert "\n" not in said, content
    return refused


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a study, with a job, answers and results."""
    files = write_files(tmp_path_factory.mktemp("study"), {"north": 90, "south": 60})
    job, out = files.job(), files.folder / "out"
    job.save(files.folder / "study.job")
    for name in files.sizes:
        (files.folder / f"{name}.release").write_bytes(files.agent(name).answer(job.to_bytes()))
    releases = [str(files.folder / f"{name}.release") for name in files.sizes]
    done = CliRunner().invoke(app, ["value", str(files.folder / "study.job"), *releases, "--out", str(out)])
    assert done.exit_code == 0, done.output
    return files


@pytest.fixture(scope="module")
def crossing(files: Files) -> dict[str, tuple[bytes, Archive, Callable[[bytes], object]]]:
    """A signed file of each kind that crosses, how it is made, and what its receiver does with it."""
    key, job = Key.new(), Job.load(files.folder / "study.job")
    release = (files.folder / "north.release").read_bytes()
    agent = files.agent("south")

    def receive(content: bytes) -> None:
        Release.open_sealed(content)
        Coordinator(files.folder / "state", job.to_bytes()).receive(content)

    def weigh(content: bytes) -> None:
        asked, _ = Job.open_sealed(content)
        asked.first_request(60)
        asked.build(torch.device("cpu"))
        assert asked.parts()
        agent.assess(content)

    def look(content: bytes) -> None:
        Request.open_sealed(content)
        agent.answer(job.to_bytes(), content)

    return {
        "job": (job.to_bytes(key), Job.archive, weigh),
        "request": (job.first_request(60).to_bytes(key), Request.archive, look),
        "release": (release, Release.archive, receive),
    }


@pytest.mark.parametrize("kind", ["job", "request", "release"])
def test_what_crosses_with_damaged_bytes(kind: str, crossing: Any) -> None:
    content, _, read = crossing[kind]
    assert refusals(damaged(content, COUNT, 1), lambda made: read(made)) > 0.9 * COUNT
    assert refusals(damaged(content, COUNT, 2), lambda made: open_seal(made, "it")) > 0.5 * COUNT


@pytest.mark.parametrize("kind", ["job", "request", "release"])
def test_what_crosses_with_a_damaged_header(kind: str, crossing: Any) -> None:
    """With lengths that are right, so that what is inside is read."""
    content, _, read = crossing[kind]
    size = int.from_bytes(content[:8], "little")
    said, rest = content[8 : 8 + size], content[8 + size :]
    inside, tensors = json.loads(said)["__metadata__"]["dpvalue"], safetensors.torch.load(content)

    def copies() -> Iterator[bytes]:
        for made in damaged(said, COUNT, 3):
            yield len(made).to_bytes(8, "little") + made + rest
        for made in damaged(inside.encode(), COUNT, 4):
            yield safetensors.torch.save(tensors, {"dpvalue": made.decode("utf-8", "replace")})

    assert refusals(copies(), read) > 1.8 * COUNT


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["job", "request", "release"])
def test_what_crosses_with_any_field_or_tensor_wrong_under_a_right_digest(kind: str, crossing: Any) -> None:
    content, archive, read = crossing[kind]
    header, tensors = archive.unpack(content, "it")
    tried = 0
    wrongs: tuple[Any, ...] = (KeyError, "text", 10**400, {})

    def copies() -> Iterator[bytes]:
        nonlocal tried
        for path in paths(header):
            for new in wrongs:
                tried += 1
                yield archive.pack(put(header, path, new), tensors)
        for name, tensor in tensors.items():
            rest = {other: kept for other, kept in tensors.items() if other != name}
            yield archive.pack(header, rest)
            for wrong in (tensor[:0], tensor[None], tensor.flatten()[:1], -tensor - 1, torch.full_like(tensor, 2**62)):
                yield archive.pack(header, {**rest, name: wrong.clone()})

    assert refusals(copies(), read) > 0.3 * tried


def test_a_job_whose_table_is_an_empty_object(files: Files) -> None:
    """It must be the header of a table, or null; nothing that reads the job may fall over it."""
    header, tensors = Job.load(files.folder / "study.job").parts()
    header["about"]["table"] = {}
    job = Job.from_bytes(Job.archive.pack(header, tensors))
    assert job.parts()[0]["about"]["table"] == {}
    assert job.first_request(60).round == 0


def reading(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Read damaged bytes from a file that its owner alone can read."""

    def at(content: bytes) -> object:
        path.touch(0o600)
        path.write_bytes(content)
        return read(path)

    return at


@pytest.mark.slow
def test_keys_policies_rosters_checkpoints_and_links(tmp_path: Path) -> None:
    key = Key.new()
    key.save(tmp_path / "key")
    charge = Charge("laplace", 1.0, 1, 1.0, "party", "zero_out")
    Checkpoint(tmp_path).release(0, "question", charge, lambda: b"noisy bytes")

    def again(path: Path) -> None:
        assert Checkpoint(path.parent).release(0, "question", charge, lambda: pytest.fail("drawn")) == b"noisy bytes"

    kinds: dict[str, tuple[bytes, Callable[[Path], object]]] = {
        "key": ((tmp_path / "key").read_bytes(), Key.read),
        "policy.toml": (POLICY.format(key=key.public).encode(), read_policy),
        "roster.toml": (f'[[party]]\nname = "north"\nkey = "{key.public}"\n'.encode(), read_roster),
        "release-0": ((tmp_path / "release-0").read_bytes(), again),
        "link.json": (b'{"address": "study.example.org:9092"}\n', lambda path: _link(path.parent)),
    }
    for name, (content, read) in kinds.items():
        reading(tmp_path / name, read)(content)
        assert refusals(damaged(content, COUNT, 5), reading(tmp_path / name, read)) > 0.5 * COUNT, name


def test_a_task_that_cannot_be_read_is_forgotten(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "task.json")
    memory.keep(StoredTask("token", b"message", Question(b"job", b"request")))
    content = (tmp_path / "task.json").read_bytes()
    for made in (*damaged(content, COUNT, 6), b"[" * 100_000, content.replace(b'"tries": 1', b'"tries": Infinity')):
        (tmp_path / "task.json").write_bytes(made)
        assert memory.recall() is None or (tmp_path / "task.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("file", "command"), [
    ("run.json", "report {0}"), ("values.csv", "report {0}"), ("table.safetensors", "revalue {0} --out {0}-again"),
    ("study/study.job", "verify {0}"), ("study/round-0/north.release", "verify {0}"),
    ("study/study.job", "value {1}/study.job --out {0}"),
    ("study/round-0/north.release", "value {1}/study.job --out {0}"),
])  # fmt: skip
def test_a_damaged_folder_at_the_command_line(file: str, command: str, files: Files) -> None:
    out = files.folder / "out"
    content = (out / file).read_bytes()
    typed = command.format(out, files.folder).split()
    try:
        for made in damaged(content, 14, 7):
            (out / file).write_bytes(made)
            done = CliRunner().invoke(app, typed)
            assert done.exception is None or isinstance(done.exception, SystemExit), (made, repr(done.exception))
            assert done.exit_code == 0 or done.stderr.count("\n") == 1 or "differ" in done.output, (made, done.output)
    finally:
        (out / file).write_bytes(content)


def test_the_refusal_of_an_agent_is_one_of_its_fixed_texts(crossing: Any, files: Files) -> None:
    content, _, _ = crossing["job"]
    said = set()
    for made in damaged(content, COUNT, 8):
        try:
            files.agent("south").assess(made)
        except Refusal as refused:
            said.add(refused.public)
    assert said
    assert said <= set(REFUSALS)
