"""Two processes for every writer: neither corrupts, nothing is lost, and the one that must wait or go is told so."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.cli.party import own_secret
from dpvalue.coordinator import study as study_module
from dpvalue.coordinator.roster import Member, Roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import Waits, conduct
from dpvalue.flower.deploy import write_node_key
from dpvalue.flower.records import Memory, StoredTask
from dpvalue.party.agent import Agent
from dpvalue.party.contributions import Contributions
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import Policy, Protection
from dpvalue.protocol.archive import Key, read_bytes
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release
from dpvalue.protocol.transport import Question, Reply
from dpvalue.runs import execute
from dpvalue.storage import LOCK, folder_lock
from tests.federation import Files, LocalNodes, simulated, write_files
from tests.processes import at_once, begun, killed

TWO_ROUNDS = {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}
REFUSED = "is being written by another process"


def typed(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    return done.exit_code, done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(40, 2)), columns=["a", "b"])
    frame["label"] = (frame["a"] > 0).astype(int)
    frame.insert(0, "site", [f"site {row % 4}" for row in range(40)])
    frame[:16].to_csv(tmp_path / "train.csv", index=False)
    frame[16:].to_csv(tmp_path / "test.csv", index=False)
    return tmp_path


def command(data: Path, *more: str) -> tuple[str, ...]:
    given = (
        "--test",
        str(data / "test.csv"),
        "--target",
        "label",
        "--group",
        "site",
        "--unit",
        "record",
        "--game",
        "steps",
    )
    return (
        "run",
        str(data / "train.csv"),
        *given,
        "--permutations",
        "50",
        "--out",
        str(data / "out"),
        "--force",
        *more,
    )


def until(sign: Path, go: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a release wait, once noise is drawn for it, until a file is there."""
    release = Contributions.release

    def waiting(self: Contributions, *given: Any) -> Any:
        sign.touch()
        while not go.exists():
            time.sleep(0.005)
        return release(self, *given)

    monkeypatch.setattr(Contributions, "release", waiting)


@pytest.mark.slow
def test_of_two_runs_into_one_folder_the_second_is_refused_and_the_first_is_untouched(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, sign = data / "go", data / "sign"

    def first() -> None:
        until(sign, go, monkeypatch)
        (data / "code").write_text(str(typed(*command(data))))

    child = begun(first, sign)
    before = contents(data / "out")
    for more in ((), ("--overwrite",), ("--epsilon", "2")):
        code, said = typed(*command(data, *more))
        assert code == 2
        assert said.startswith(f"error: {data / 'out'} {REFUSED}")
        assert said.count("\n") == 1
    assert contents(data / "out") == before
    go.touch()
    while not (data / "code").is_file() or not (data / "code").read_text():
        time.sleep(0.01)
    killed(child)
    assert (data / "code").read_text() == "(0, '')"
    assert typed("report", data / "out") == (0, "")
    assert not (data / "out" / LOCK).exists()
    assert typed(*command(data))[1].startswith(f"error: {data / 'out'} holds other results")


@pytest.mark.slow
def test_a_run_that_is_killed_lets_the_next_one_in_and_its_releases_stay(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first release on disk and the table."""
    sign = data / "sign"

    def dies() -> None:
        def stay(*given: object) -> None:
            sign.touch()
            time.sleep(600)

        monkeypatch.setattr(execute, "keep_table", stay)
        typed(*command(data))

    killed(begun(dies, sign))
    kept = (data / "out" / "releases" / "release-0").read_bytes()
    monkeypatch.setattr(Contributions, "release", lambda *given: pytest.fail("drawn again"))
    assert (data / "out" / LOCK).is_file()  # the lock of the dead
    code, said = typed(*command(data))
    assert (code, said) == (0, "")
    table = dpv.Table.archive.read(data / "out" / "table.safetensors")[1]
    assert table["rows"].numpy().tobytes() in kept


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of a study, a job, an answer of each party, and results."""
    folder = tmp_path_factory.mktemp("study")
    files = write_files(folder, {"north": 90, "south": 60})
    job = files.job()
    job.save(folder / "study.job")
    for name in files.sizes:
        (folder / f"{name}.release").write_bytes(files.agent(name).answer(job.to_bytes()))
    releases = [folder / f"{name}.release" for name in files.sizes]
    code, said = typed("value", folder / "study.job", *releases, "--out", folder / "results")
    assert (code, said) == (0, "")
    return folder


WRITERS = {
    "run": (
        "run {0}/north.csv {0}/south.csv --test {0}/public.csv --target label --out {1} --overwrite --yes",
        "results",
    ),
    "value": ("value {0}/study.job {0}/north.release --out {1}", "results"),
    "revalue": ("revalue {1} --out {1} --overwrite", "results"),
    "revalue inside": ("revalue {0}/results --semivalue loo", "results/revalue-loo-public"),
    "report": ("report {1}", "results"),
    "demo": ("demo --out {1}", "results"),
    "demo inside": ("demo --out {0}/demo", "demo/results"),
    "reproduce": ("reproduce uncertainty --out {0}/paper", "paper/uncertainty/quick"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_folder_that_is_being_written_is_refused_by_every_command_that_writes(writer: str, study: Path) -> None:
    line, name = WRITERS[writer]
    place = study / name
    with folder_lock(place):
        before = contents(study)
        code, said = typed(*line.format(study, place).split())
        assert code == 2, said
        assert said == f"error: {place} {REFUSED}: wait until it ends, or name another folder\n"
        assert contents(study) == before


def test_flower_run_is_refused_as_well(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (study / "link").mkdir()
    (study / "link" / "link.json").write_text('{"address": "127.0.0.1:1"}')
    monkeypatch.setattr("dpvalue.cli.flower._wait_for", lambda address: None)
    with folder_lock(study / "results"):
        code, said = typed("flower", "run", study / "study.job", "--link", study / "link", "--out", study / "results")
    assert (code, said.count("\n")) == (2, 1)
    assert REFUSED in said


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path)


def answers(files: Files, job: Job, name: str, count: int) -> list[bytes]:
    """Answers that differ, as of a party that cheats, or has lost its ledger."""
    made = Release.from_bytes(_simulating(files, name).answer(job.to_bytes()))
    return [replace(made, numbers=made.numbers * (1 + number * 1e-6)).to_bytes() for number in range(count)]


def _simulating(files: Files, name: str) -> Agent:
    policy = Policy(Protection(epsilon=100.0), unsigned=True)
    engine = dpv.Local(device="cpu", dtype="float64")
    return Agent(name, PartyFile(files.own(name)), None, policy, simulation=True, engine=engine)


def test_a_coordinator_keeps_one_answer_of_a_party_and_notes_all_others(files: Files, tmp_path: Path) -> None:
    """Four processes hand in answers of the same parties that differ: the first counts, and stays."""
    _, job = simulated(files)
    given = {name: answers(files, job, name, 4) for name in ("east", "north")}

    def hand_in(number: int) -> list[str]:
        coordinator = Coordinator(tmp_path / "state", job.to_bytes())
        return [coordinator.receive(given[name][number]).why for name in given]

    said = at_once(4, hand_in)
    for place, name in enumerate(given):
        counted = [number for number in range(4) if not said[number][place]]
        assert len(counted) == 1
        kept = (tmp_path / "state" / "round-0" / f"{name}.release").read_bytes()
        assert kept == given[name][counted[0]]
    listed = [json.loads(line) for line in (tmp_path / "state" / "rejected.jsonl").read_text().splitlines()]
    assert sorted(line["party"] for line in listed) == ["east", "north"]  # the same reason once
    notes = at_once(4, lambda number: Coordinator(tmp_path / "state", job.to_bytes()).refuse(f"p{number}", "no").why)
    assert notes == ["no"] * 4
    listed = [json.loads(line) for line in (tmp_path / "state" / "rejected.jsonl").read_text().splitlines()]
    assert sorted(line["party"] for line in listed) == ["east", "north", "p0", "p1", "p2", "p3"]
    assert not list((tmp_path / "state").rglob(".*"))


def test_two_coordinators_of_one_study_end_a_round_once_and_ask_the_same(files: Files, tmp_path: Path) -> None:
    _, job = simulated(files, **TWO_ROUNDS)
    state = tmp_path / "state"
    for name in files.sizes:
        assert not Coordinator(state, job.to_bytes()).receive(_simulating(files, name).answer(job.to_bytes())).why

    def end(_: int) -> list[object]:
        coordinator = Coordinator(state, job.to_bytes())
        return [coordinator.close(0), coordinator.round, sorted(coordinator.pending_requests())]

    assert at_once(4, end) == [[True, 1, sorted(files.sizes)]] * 4  # nobody ended round 1, which nobody has answered


def test_two_that_conduct_one_study_lose_no_answer_and_no_node(files: Files, tmp_path: Path) -> None:
    _, job = simulated(files, **TWO_ROUNDS)

    def responding(name: str) -> Callable[[Question], Reply]:
        agent = _simulating(files, name)
        return lambda asked: Reply(agent.answer(asked.job, asked.request), "")

    def lead(_: int) -> int:
        nodes = LocalNodes({number: responding(name) for number, name in enumerate(files.sizes)})
        coordinator = Coordinator(tmp_path / "state", job.to_bytes())
        conduct(coordinator, nodes, Waits(parties=4, gather=0.0, deadline=60.0))
        return len(coordinator.rejections.all())

    assert at_once(2, lead) == [0, 0]
    known = json.loads((tmp_path / "state" / "nodes.json").read_text())
    assert known == {str(number): name for number, name in enumerate(files.sizes)}
    given = Coordinator(tmp_path / "state", job.to_bytes()).answers()
    assert {name: len(found.releases) for name, found in given.items()} == dict.fromkeys(files.sizes, 2)


def test_a_study_has_one_job_and_one_roster_whoever_comes_first(files: Files, tmp_path: Path) -> None:
    jobs = [simulated(files, seed=seed)[1].to_bytes() for seed in range(2)]
    keys = [Key.new().public for _ in range(4)]

    def begin(number: int) -> str:
        Coordinator(tmp_path / "jobs", jobs[number % 2])
        return "begun"

    assert Counter(said[:13] for said in at_once(4, begin)) == {"begun": 2, "DpvalueError:": 2}

    def enrol(number: int) -> str:
        Coordinator(tmp_path / "rosters", jobs[0], Roster((Member("east", keys[number]),)))
        return keys[number]

    said = at_once(4, enrol)
    (winner,) = [line for line in said if line in keys]
    assert winner in (tmp_path / "rosters" / "roster.json").read_text()


@pytest.mark.slow
def test_files_that_are_made_once_are_made_by_one(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys, jobs and ledgers: of four processes one makes the file, and the others are told."""
    study = study_module.make_study(files.config())
    monkeypatch.setattr(study_module, "make_study", lambda config: study)

    def make_job(number: int) -> object:
        test = ("--test", files.public, "--target", "label", "--sizes", "90,60", "--seed", number)
        return typed("job", *test, "--out", tmp_path / "made.job")

    makers: dict[str, Callable[[int], object]] = {
        "made.key": lambda number: typed("key", "new", tmp_path / "made.key"),
        "made.node": lambda number: typed("flower", "node", tmp_path / "made.node"),
        "made.ledger": lambda number: typed("ledger", "new", tmp_path / "made.ledger", "--name", "me"),
        "made.job": make_job,
        "made.link": lambda number: typed("flower", "new", tmp_path / "made.link"),
    }
    for name, make in makers.items():
        said = at_once(4, make)
        refused = [line for code, line in said if code == 2]
        assert [code for code, _ in said].count(0) == 1, said
        assert len(refused) == 3
        for line in refused:
            assert "already" in line or "File exists" in line or "is not a ledger" in line, line
            assert line.count("\n") == 1
        assert (tmp_path / name).exists()
    Key.read(tmp_path / "made.key")
    Job.load(tmp_path / "made.job")
    assert dpv.Ledger(tmp_path / "made.ledger").entries() == []
    with pytest.raises(dpv.DpvalueError, match="never overwritten"):
        write_node_key(tmp_path / "made.node")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_what_each_process_may_write_is_whole_and_the_same_for_all(files: Files, tmp_path: Path) -> None:
    """A party's answer, its node's secret, and the task that its agent has taken."""
    job = files.job()
    job.save(tmp_path / "study.job")
    files.ledger("north")

    def answer(_: int) -> object:
        return typed(
            "party", "answer", tmp_path / "study.job", files.own("north"), "--name", "north",
            "--ledger", tmp_path / "north.ledger", "--out", tmp_path / "north.release",
        )  # fmt: skip

    assert at_once(4, answer) == [[0, ""]] * 4
    release = Release.from_bytes(read_bytes(tmp_path / "north.release", "a release"))
    assert release.party == "north"
    assert len(files.ledger("north").entries()) == 1
    assert len(set(at_once(4, lambda _: own_secret(tmp_path / "secret").hex()))) == 1
    taken = [StoredTask(f"token {number}", bytes([number]) * 50_000) for number in range(4)]

    def remember(number: int) -> None:
        for _ in range(10):
            Memory(tmp_path / "task.json").keep(taken[number])

    assert at_once(4, remember) == [None] * 4
    found = Memory(tmp_path / "task.json").recall()
    assert found is not None
    assert replace(found, tries=1) in taken
    assert not list(tmp_path.glob(".*"))
