"""Releases that a stranger made to break a coordinator: by file, in `conduct` and over Flower, each is a refusal."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
import torch
from click.testing import Result
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.coordinator import releases
from dpvalue.coordinator.roster import Member, Roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import Waits, conduct
from dpvalue.flower.records import KIND, record_of, reply_of
from dpvalue.protocol.archive import Key, digest
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release
from dpvalue.protocol.transport import MALFORMED, Question, Reply, Respond
from tests.federation import Files, LocalNodes, write_files

ABSURD: tuple[Any, ...] = (
    10**30, -(10**30), 2**63, 2**63 - 1, 10**12 + 1, -1, 0.5, 1e308, 1e400, float("nan"), True, None, "", "x" * 10**4,
    "\u202e", "\ud800", "a\x00b", [], {}, [[[]]], {"units": {}},
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    [10**30],
    [2**63],
    [2**62, 2],
    [0, 10**18],
    [0],
    [-1],
    [1] * 100,
    [],
    5,
    None,
    [1.5],
    ["1"],
    [True],
)
TYPES = ("F16", "BF16", "I64", "U64", "F8_E4M3", "F4", "BOOL", "C64", "X", 5, None)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("study"), {"east": 40, "west": 25})


@pytest.fixture(scope="module")
def job(files: Files) -> Job:
    return files.job()


@pytest.fixture(scope="module")
def good(files: Files, job: Job) -> dict[str, bytes]:
    return {name: files.agent(name).answer(job.to_bytes()) for name in files.sizes}


def packed(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """The bytes of a safetensors file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return pack("<Q", len(text) if length is None else length) + text + data


def release_like(content: bytes, claims: dict[str, Any]) -> bytes:
    """A release with other claims (`KeyError`: without one), under a digest that is right for them."""
    header, tensors = Release.from_bytes(content).parts()
    changed = {name: claim for name, claim in (header | claims).items() if claim is not KeyError}
    whole = {"format": 1, "kind": "release", "digest": digest(changed, tensors), "header": changed}
    return with_metadata(content, json.dumps(whole))


def with_metadata(content: bytes, dpvalue: Any) -> bytes:
    size = int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8 : 8 + size])
    tensors["__metadata__"] = {"dpvalue": dpvalue}
    return packed(tensors, content[8 + size :])


def hostile(good: bytes, seed: int = 0) -> Iterator[bytes]:
    """Several hundred releases, none of which is one."""
    size = int.from_bytes(good[:8], "little")
    tensors, data = json.loads(good[8 : 8 + size]), good[8 + size :]
    for name in ("job", "request", "round", "party", "units"):
        for value in ABSURD:
            if name != "party" or not (isinstance(value, str) and value.isalnum()):
                yield release_like(good, {name: value})
        yield release_like(good, {name: KeyError})
        yield release_like(good, {f"{name}s": 1})
    for claim in ("null", "[]", "{", "1" * 5000, "[" * 50_000, '{"a":' * 50 + "1" + "}" * 50, '"\\ud800"', "NaN", ""):
        yield with_metadata(good, claim)
    for whole in ({"format": True}, {"format": 1, "kind": []}, {"format": 1, "kind": "release", "header": 5}):
        yield with_metadata(good, json.dumps(whole))
    for length in (0, 1, 2**31, 2**62, 2**63, 2**64 - 1, size + 1, size - 1, len(good)):
        yield packed(good[8 : 8 + size], data, length)
    for shape in SHAPES:
        yield packed({**tensors, "numbers": {**tensors["numbers"], "shape": shape}}, data)
    for kind in TYPES:
        yield packed({**tensors, "numbers": {**tensors["numbers"], "dtype": kind}}, data)
    for offsets in ([0, 10**30], [2**63, 2**63], [-1, 4], [4, 0], [0], "x", [0, len(data) + 8]):
        yield packed({**tensors, "numbers": {**tensors["numbers"], "data_offsets": offsets}}, data)
    release = Release.from_bytes(good)
    for fill in (float("nan"), float("inf"), -float("inf"), 3e38):
        yield replace(release, numbers=torch.full_like(release.numbers, fill)).to_bytes()
    yield replace(release, numbers=release.numbers.to(torch.float64)).to_bytes()
    yield b""
    yield bytes(10**6)
    yield b"\xff" * 10**6
    rng = random.Random(seed)
    for _ in range(300):  # bytes changed, cut and put in; a digest and the header's syntax fail first
        broken = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            place = rng.randrange(len(broken))
            way = rng.randrange(3)
            if way == 0:
                broken[place] = rng.randrange(256)
            elif way == 1:
                del broken[place : place + rng.randrange(1, 40)]
            else:
                broken[place:place] = rng.randbytes(rng.randrange(1, 40))
        if bytes(broken) != good:
            yield bytes(broken)


def test_a_coordinator_refuses_every_hostile_release_and_goes_on(
    files: Files, job: Job, good: dict[str, bytes], tmp_path: Path
) -> None:
    coordinator = Coordinator(tmp_path, job.to_bytes())
    count = 0
    for sent in hostile(good["east"]):
        assert coordinator.receive(sent).why, sent[:200]
        count += 1
    assert count > 450
    assert coordinator.participants == []
    assert not coordinator.receive(good["east"]).why
    again = Coordinator(tmp_path, job.to_bytes())
    assert not again.receive(good["west"]).why
    assert again.table().n == 2
    assert len(again.rejections.all()) > 50
    assert again.rejections.path.stat().st_size <= releases.MOST_BYTES


def test_a_release_is_not_read_where_it_is_longer_than_any(job: Job, good: dict[str, bytes], tmp_path: Path) -> None:
    """White space in its header, which means nothing."""
    coordinator = Coordinator(tmp_path, job.to_bytes())
    size = int.from_bytes(good["east"][:8], "little")
    text, data = good["east"][8 : 8 + size], good["east"][8 + size :]
    long = packed(text + b" " * 8 * (coordinator.most_bytes // 8), data)
    assert Release.from_bytes(long).party == "east"
    assert "bytes" in coordinator.receive(long).why
    assert not coordinator.receive(packed(text + b" " * 800, data)).why


def test_a_signed_hostile_release_is_refused(files: Files, job: Job, good: dict[str, bytes], tmp_path: Path) -> None:
    """The key is right, what it signs is absurd; and seals of any shape."""
    key = Key.new()
    coordinator = Coordinator(tmp_path, job.to_bytes(), Roster((Member("east", key.public),)))
    release = Release.from_bytes(good["east"])
    assert coordinator.receive(replace(release, units=2**63 - 1).to_bytes(key)).why.startswith("units must be at most")
    sealed = release.to_bytes(key)
    size = int.from_bytes(sealed[:8], "little")
    whole = json.loads(json.loads(sealed[8 : 8 + size])["__metadata__"]["dpvalue"])
    for name in ("by", "signature", "head"):
        for value in (*ABSURD, "ff", "zz", "ed25519:" + "f" * 64, "ed25519:" + "\u0663" * 64):
            if value != whole["seal"][name]:
                changed = {**whole, "seal": {**whole["seal"], name: value}}
                assert coordinator.receive(with_metadata(sealed, json.dumps(changed))).why
    for value in (*ABSURD[:-1], {"by": key.public}):
        if value is not None:
            assert coordinator.receive(with_metadata(sealed, json.dumps({**whole, "seal": value}))).why
    assert not coordinator.receive(sealed).why


def test_a_hostile_node_is_listed_and_the_others_are_valued(job: Job, good: dict[str, bytes], tmp_path: Path) -> None:
    def sending(content: bytes) -> Respond:
        def respond(asked: Question) -> Reply:
            return Reply(content, "")

        return respond

    sent = [content for content in hostile(good["east"]) if content][::5]
    nodes = {2**64 - 1 - number: sending(content) for number, content in enumerate((*good.values(), *sent))}
    coordinator = Coordinator(tmp_path, job.to_bytes())
    for _ in range(2):  # and at the next start
        conduct(Coordinator(tmp_path, job.to_bytes()), LocalNodes(nodes), Waits(len(nodes), 0.0, 60.0))
    assert coordinator.participants == ["east", "west"]
    assert len(coordinator.rejections.all()) > 20


def test_what_is_no_answer_over_flower_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Flower itself raises for what a stranger has sent."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 7)

    class Broken:
        def has_error(self) -> bool:
            return False

        def has_content(self) -> bool:
            raise OverflowError

    assert reply_of(Broken()) == Reply(b"", MALFORMED)  # type: ignore[arg-type]
    assert reply_of(Message(RecordDict(), 7, KIND)) == Reply(b"", MALFORMED)
    assert reply_of(Message(record_of(Reply(b"x", "")), 7, KIND)) == Reply(b"x", "")


def here(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_by_file_a_hostile_release_is_one_line_and_the_others_count(
    files: Files, job: Job, good: dict[str, bytes], tmp_path: Path
) -> None:
    job.save(tmp_path / "study.job")
    paths = []
    sent = list(hostile(good["east"], seed=1))
    huge = release_like(good["east"], {"units": 10**30})
    for number, content in enumerate((*good.values(), huge, *sent[::10])):
        paths.append(tmp_path / f"{number}.release")
        paths[-1].write_bytes(content)
    with (tmp_path / "sparse.release").open("wb") as file:
        file.truncate(2**40)  # a terabyte of nothing is not read
    done = here(
        "value", tmp_path / "study.job", *paths, tmp_path / "sparse.release", "--out", tmp_path / "out",
        "--test", files.public,
    )  # fmt: skip
    assert done.exit_code == 0, (done.output, done.exception)
    assert "releases: 2 parties" in done.output
    assert done.output.count(" rejected: ") == len(paths) - 1
    assert "units must be a whole number below 2^63" in done.output


def test_what_is_refused_takes_little_room(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert releases.MOST_BYTES <= 2**20
    monkeypatch.setattr(releases, "MOST_BYTES", 2**15)
    coordinator = Coordinator(tmp_path, job.to_bytes())
    release = Release(job.digest, "x", 0, "", 5, torch.zeros(job.size))
    for number in range(200):
        coordinator.receive(replace(release, party=f"{number}\U0001f600" + "\n" * 3000).to_bytes())
    path = coordinator.rejections.path
    assert releases.MOST_BYTES / 2 < path.stat().st_size <= releases.MOST_BYTES
    *_, last = listed = coordinator.rejections.all()
    assert last.why == "further rejections are not listed"
    assert max(len(receipt.party) for receipt in listed) <= 100
    assert max(len(receipt.why) for receipt in listed) <= 400
    assert coordinator.receive(b"once more").why
    assert len(coordinator.rejections.all()) == len(listed)


def test_a_roster_is_remembered(files: Files, job: Job, good: dict[str, bytes], tmp_path: Path) -> None:
    keys = {name: Key.new() for name in files.sizes}
    roster = Roster(tuple(Member(name, key.public) for name, key in keys.items()))
    signed = {name: Release.from_bytes(good[name]).to_bytes(key) for name, key in keys.items()}
    content = job.to_bytes()
    assert not Coordinator(tmp_path / "a", content, roster).receive(signed["east"]).why
    later = Coordinator(tmp_path / "a", content)
    assert later.roster == roster
    assert later.receive(good["west"]).why == "it is not signed by the party's key"
    outside = replace(Release.from_bytes(good["west"]), party="stranger").to_bytes(keys["west"])
    assert later.receive(outside).why == "it is not in the roster"
    assert not later.receive(signed["west"]).why
    assert Coordinator(tmp_path / "a", content, Roster(roster.party[::-1])).table().n == 2
    other = Roster((*roster.party, Member("north", Key.new().public)))
    with pytest.raises(
        dpv.DpvalueError, match=r"the roster must be the one that this study started with.* remove .*roster.json"
    ):
        Coordinator(tmp_path / "a", content, other)
    (tmp_path / "a" / "roster.json").unlink()
    assert Coordinator(tmp_path / "a", content, other).roster == other == Coordinator(tmp_path / "a", content).roster
    open_to_all = Coordinator(tmp_path / "b", content)
    assert not open_to_all.receive(good["east"]).why
    with pytest.raises(
        dpv.DpvalueError, match=r"east.release was accepted before the roster was given: it is not signed"
    ):
        Coordinator(tmp_path / "b", content, roster)
    assert Coordinator(tmp_path / "b", content).roster is None


def test_a_roster_is_remembered_by_the_command(files: Files, job: Job, good: dict[str, bytes], tmp_path: Path) -> None:
    keys = {name: Key.new() for name in files.sizes}
    job.save(tmp_path / "study.job")
    lines = "".join(f'[[party]]\nname = "{name}"\nkey = "{key.public}"\n' for name, key in keys.items())
    (tmp_path / "roster.toml").write_text(lines)
    for name, key in keys.items():
        (tmp_path / f"{name}.release").write_bytes(Release.from_bytes(good[name]).to_bytes(key))
    stranger = replace(Release.from_bytes(good["east"]), party="stranger")
    (tmp_path / "stranger.release").write_bytes(stranger.to_bytes())
    command = ("value", tmp_path / "study.job", "--out", tmp_path / "out", "--test", files.public)
    first = here(*command, *(tmp_path / f"{name}.release" for name in keys), "--roster", tmp_path / "roster.toml")
    assert first.exit_code == 0, first.output
    again = here(*command, tmp_path / "stranger.release")
    assert "rejected: it is not in the roster" in again.output
    assert "releases: 2 parties, 2 signed; 1 rejected" in again.output
    (tmp_path / "roster.toml").write_text(lines.replace("west", "best"))
    assert here(*command, "--roster", tmp_path / "roster.toml").exit_code == 2
