"""A study from end to end: jobs, parties at home, and a coordinator that trusts nobody and can be killed anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dpvalue as dpv
from dpvalue.coordinator import state as module
from dpvalue.coordinator.releases import longest_release
from dpvalue.coordinator.roster import Member, Roster, read_roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import options_for, options_of, read_utility, value_study, verify_job
from dpvalue.party.agent import Agent
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import Policy, Protection
from dpvalue.progress import silent
from dpvalue.protocol.archive import Key
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.storage import write_whole
from tests.federation import Files, local_parties, simulated, write_files

TWO_ROUNDS = {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}
AT_HOME = """
import sys
from pathlib import Path
import dpvalue as dpv
from dpvalue.party.agent import Agent
from dpvalue.party.policy import Policy, Protection
from dpvalue.party.party import PartyFile
name, job, own, request, out = sys.argv[1:]
policy = Policy(Protection(epsilon=100.0), unsigned=True)
engine = dpv.Local(device="cpu", dtype="float64")
agent = Agent(name, PartyFile(Path(own)), None, policy, simulation=True, engine=engine)
Path(out).write_bytes(agent.answer(Path(job).read_bytes(), Path(request).read_bytes() if request else b""))
"""


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path)


def simulating(files: Files, name: str) -> Agent:
    engine = dpv.Local(device="cpu", dtype="float64")
    policy = Policy(Protection(epsilon=100.0), unsigned=True)
    return Agent(name, PartyFile(files.own(name)), None, policy, simulation=True, engine=engine)


def answered(files: Files, job: Job, folder: Path, **given: Any) -> Coordinator:
    """A coordinator that everybody has answered, by secure noise, in all rounds."""
    content = job.to_bytes(given.get("key"))
    coordinator = Coordinator(folder, content, **given)
    while True:
        asked = coordinator.pending_requests() or dict.fromkeys(files.sizes, b"")
        for name, request in asked.items():
            assert not coordinator.receive(files.agent(name).answer(content, request)).why
        if not coordinator.close():
            return coordinator


@pytest.mark.slow
@pytest.mark.parametrize("given", [{}, TWO_ROUNDS], ids=["refit", "two rounds of steps"])
def test_separate_processes_give_the_values_of_the_local_run(files: Files, tmp_path: Path, given: Any) -> None:
    """They share no file but the job, requests and releases: each has a folder of its own with its own rows."""
    prepared, job = simulated(files, **given)
    local = prepared.run(local_parties(files)).release(silent)[0]
    homes = {}
    for name in files.sizes:
        homes[name] = tmp_path / f"home-{name}"
        homes[name].mkdir()
        files.own(name).rename(homes[name] / "my.csv")
        job.save(homes[name] / "study.job")
    coordinator = Coordinator(tmp_path / "state", job.to_bytes())
    for number in range(job.rounds):
        asked, running = coordinator.pending_requests(), []
        for name, home in homes.items():
            request = "" if number == 0 else "my.request"
            if request:
                (home / request).write_bytes(asked[name])
            command = [sys.executable, "-c", AT_HOME, name, "study.job", "my.csv", request, "my.release"]
            running.append(subprocess.Popen(command, cwd=home))
        assert [process.wait() for process in running] == [0] * 4
        for home in homes.values():
            assert not coordinator.receive((home / "my.release").read_bytes()).why
        coordinator.close()
    table = coordinator.table()
    assert table.names == local.names
    assert float((table.rows - local.rows).abs().max()) < 1e-12
    assert np.allclose(table.noise_std, local.noise_std, rtol=1e-12)
    utility = read_utility(job, files.public)
    engine = dpv.Local(device="cpu", dtype="float64")
    ours, theirs = (made.value(utility, progress=False, engine=engine).values["shapley"] for made in (table, local))
    assert float(np.abs(ours - theirs).max()) < 1e-12


@pytest.mark.slow
def test_the_noise_of_agents_has_the_law_of_the_mechanism(files: Files, tmp_path: Path) -> None:
    job = files.job()
    content, name = job.to_bytes(), "west"
    drawn = []
    for number in range(120):
        ledger = dpv.Ledger.create(tmp_path / f"{number}.ledger", dpv.Privacy(1.0, unit="record"), name)
        agent = Agent(name, PartyFile(files.own(name)), ledger, Policy.of_ledger(ledger.budget, None))
        drawn.append(Release.from_bytes(agent.answer(content)).numbers)
    spread = torch.stack(drawn).std(0)
    expected = float(job.mechanism.noise_std(torch.tensor([files.sizes[name]]))[0])
    assert float(spread.square().mean().sqrt()) == pytest.approx(expected, rel=0.1)
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 120


def test_results_by_file_are_a_folder_like_any_other(files: Files, tmp_path: Path) -> None:
    job = files.job()
    coordinator = answered(files, job, tmp_path / "results" / "study")
    utility, options = read_utility(job, files.public), options_for(job, files.public, pay=100.0)
    done = value_study(coordinator, utility, options, tmp_path / "results", silent)
    assert {"values.csv", "run.toml", "run.json", "table.safetensors", "report.html"} <= {
        path.name for path in (tmp_path / "results").iterdir()
    }
    page = (tmp_path / "results" / "report.html").read_text()
    assert "Participants" in page
    assert all(name in page for name in files.sizes)
    assert done.values["party"].tolist() == sorted(files.sizes)


def _new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_late_party_is_added_and_nobody_is_asked_again(files: Files, tmp_path: Path) -> None:
    job = files.job()
    content = job.to_bytes()
    coordinator = Coordinator(tmp_path / "study", content)
    for name in ("east", "north", "south"):
        coordinator.receive(files.agent(name).answer(content))
    early = coordinator.table()
    later = Coordinator(tmp_path / "study", content)
    assert not later.receive(files.agent("west").answer(content)).why
    table = later.table()
    assert table.names == ("east", "north", "south", "west")
    assert bool((table.rows[:3] == early.rows).all())
    assert all(len(files.ledger(name).entries()) == 1 for name in files.sizes)
    outsider = write_files(_new(tmp_path / "new"), {"far": 33, "noise": 5})
    assert not later.receive(outsider.agent("far").answer(content)).why  # of a size that nobody planned for
    assert later.table().n == 5


@pytest.mark.slow
def test_a_job_can_be_made_again_and_one_that_lies_cannot(files: Files) -> None:
    job = files.job()
    assert verify_job(job, files.public)
    assert options_of(job).sizes == tuple(files.sizes.values())
    basis = job.basis
    assert basis is not None
    rounded = replace(job, basis=basis * (1 + 1e-6))
    assert not verify_job(Job.from_bytes(rounded.to_bytes()), files.public)
    for lie in (
        replace(job, basis=basis.flip(0)),
        replace(job, origin=job.origin + 0.1),
        replace(job, mechanism=replace(job.mechanism, noise_multiplier=job.mechanism.noise_multiplier * 1.01)),
        replace(job, course=replace(job.course, points=job.course.points * 2)),
    ):
        with pytest.raises(dpv.DpvalueError, match="the job does not match its public file"):
            verify_job(Job.from_bytes(lie.to_bytes()), files.public)
    frame = pd.read_csv(files.public)
    frame["a"] = frame["a"] + np.eye(len(frame))[0]
    frame.to_csv(files.public, index=False)
    with pytest.raises(dpv.DpvalueError, match="is not the public file of the job"):
        verify_job(job, files.public)


def test_only_answers_count(files: Files, tmp_path: Path) -> None:
    """What does not count is named, changes nothing, and is not asked about twice."""
    job, other = files.job(), files.job(seed=1)
    content = job.to_bytes()
    coordinator = Coordinator(tmp_path / "study", content)
    good = Release.from_bytes(files.agent("east").answer(content))
    foreign = Release.from_bytes(files.agent("north").answer(other.to_bytes()))
    far = longest_release(job, good.units) * 1.01
    size = job.size
    bad = {
        "not a dpvalue file": b"garbage",
        "of a release, got": content,
        "does not answer": foreign.to_bytes(),
        "round 1 was not requested": replace(good, round=1).to_bytes(),
        "29 finite": replace(good, numbers=torch.full((size,), float("nan"))).to_bytes(),
        "numbers in 1": replace(good, numbers=torch.zeros(2, size)).to_bytes(),
        "finite numbers": replace(good, numbers=torch.zeros(size + 1)).to_bytes(),
        "plain letters": replace(good, party="x" * 500).to_bytes(),
        "that can be printed": replace(good, party="a\nb").to_bytes(),
        "units must be": replace(good, units=10**13).to_bytes(),
        "the norm of the release must be at most": replace(
            good, numbers=torch.full((size,), far / size**0.5)
        ).to_bytes(),
    }
    for why, sent in bad.items():
        receipt = coordinator.receive(sent)
        assert receipt.why.find(why.replace("29", str(size))) >= 0, (why, receipt)
    assert coordinator.participants == []
    assert not coordinator.receive(good.to_bytes()).why
    assert not coordinator.receive(good.to_bytes()).why  # the same again
    moved = replace(good, numbers=good.numbers * 0.9)
    assert "already sent another release" in coordinator.receive(moved.to_bytes()).why
    assert "a copy of the release of 'east'" in coordinator.receive(replace(good, party="copycat").to_bytes()).why
    assert not coordinator.receive(replace(moved, party="../../evil.release").to_bytes()).why  # a name like any other
    assert sorted(path.name for path in (tmp_path / "study").rglob("*.release")) == [
        "%2E%2E%2F%2E%2E%2Fevil%2Erelease.release", "east.release",
    ]  # fmt: skip
    assert coordinator.participants == ["../../evil.release", "east"]
    assert len(coordinator.rejections.all()) == len(bad) + 1  # each once: two of them for the same reason


def test_honest_releases_are_not_taken_for_garbage(files: Files) -> None:
    """The length of the noise alone reaches the bound once in a million; 1,000 parties with data as long as may be."""
    job = files.job()
    generator = torch.Generator().manual_seed(0)
    for units in (1, 40, 5000):
        scale = float(job.mechanism.noise_scale(torch.tensor([units]))[0])
        noise = scale * torch.randn(1000, job.size, generator=generator, dtype=torch.float64)
        assert float(noise.norm(dim=1).max()) + 1.0 < longest_release(job, units)
        assert longest_release(job, units) < 1.01 * (1 + scale * (job.size**0.5 + 5.5))


def test_with_a_roster_only_its_keys_count(files: Files, tmp_path: Path) -> None:
    ours, north, stranger = Key.new(), Key.new(), Key.new()
    roster = Roster((Member("east", stranger.public), Member("north", north.public)))
    job = files.job()
    content = job.to_bytes(ours)
    coordinator = Coordinator(tmp_path / "study", content, roster, ours)
    answer = files.agent("north", key=north)
    policy = Policy(Protection(epsilon=10.0), unsigned=False, coordinators=(_asker(ours),))
    signed = replace(answer, policy=policy).answer(content)
    assert "not signed by the party's key" in coordinator.receive(Release.from_bytes(signed).to_bytes()).why
    assert "not in the roster" in coordinator.receive(_renamed(signed, "west", north)).why
    assert "not signed by the party's key" in coordinator.receive(_renamed(signed, "east", north)).why
    flipped = bytearray(signed)
    place = signed.index(b"signature") + 20
    flipped[place] = ord("0") if flipped[place] != ord("0") else ord("1")
    assert "is invalid" in coordinator.receive(bytes(flipped)).why
    assert not coordinator.receive(signed).why
    assert coordinator.seals()["north"] is not None
    with pytest.raises(dpv.DpvalueError, match="the key must be the one"):
        Coordinator(tmp_path / "study", content, roster, stranger)
    (tmp_path / "roster.toml").write_text(f'[[party]]\nname = "north"\nkey = "{north.public}"\n')
    assert read_roster(tmp_path / "roster.toml").keys == {"north": north.public}
    (tmp_path / "roster.toml").write_text('[[party]]\nname = "north"\nkey = "none"\n')
    with pytest.raises(dpv.DpvalueError, match=r"roster.toml: party\[0\]: a public key must be"):
        read_roster(tmp_path / "roster.toml")


def _asker(key: Key) -> Any:
    from dpvalue.party.policy import KnownCoordinator

    return KnownCoordinator("office", key.public)


def _renamed(content: bytes, party: str, key: Key) -> bytes:
    return replace(Release.from_bytes(content), party=party).to_bytes(key)


def test_later_rounds_ask_those_of_the_first_and_count_absences(files: Files, tmp_path: Path) -> None:
    _, job = simulated(files, **TWO_ROUNDS)
    content = job.to_bytes()
    coordinator = Coordinator(tmp_path / "study", content)
    with pytest.raises(dpv.DpvalueError, match="at least two parties must answer, got 0"):
        coordinator.close()
    for name in ("east", "north", "south"):
        coordinator.receive(simulating(files, name).answer(content))
    assert coordinator.close()
    asked = coordinator.pending_requests()
    assert sorted(asked) == ["east", "north", "south"]
    assert "first round is closed" in coordinator.receive(simulating(files, "west").answer(content)).why
    request = Request.from_bytes(asked["east"])
    assert request.round == 1
    wrong = Release(job.digest, "another", 1, "east", files.sizes["east"], torch.zeros(job.size))
    assert "does not answer" in coordinator.receive(wrong.to_bytes()).why
    lying = replace(Release.from_bytes(simulating(files, "east").answer(content, asked["east"])), units=41)
    assert "differs from its first release" in coordinator.receive(lying.to_bytes()).why
    for name in ("east", "north"):
        assert not coordinator.receive(simulating(files, name).answer(content, asked[name])).why
    assert sorted(coordinator.pending_requests()) == ["south"]
    assert not coordinator.close()
    table = coordinator.table()
    assert [len(answers.releases) for answers in coordinator.answers().values()] == [2, 2, 1]
    alone = float(job.mechanism.noise_std(torch.tensor([files.sizes["south"]]))[0])
    assert table.noise_std[2] == pytest.approx(alone)
    assert table.noise_std[0] == pytest.approx(
        float(job.mechanism.noise_std(torch.tensor([files.sizes["east"]]))[0]) / 2**0.5
    )


class _Killed(BaseException):
    """A process that is no more."""


def test_killed_at_any_write_a_coordinator_goes_on(files: Files, tmp_path: Path, monkeypatch: Any) -> None:
    """What was sent is on disk before; nobody is asked for a round differently, and the table is the same."""
    _, job = simulated(files, **TWO_ROUNDS)
    content, real = job.to_bytes(), write_whole
    sent: dict[tuple[int, str], bytes] = {}

    def study(folder: Path) -> torch.Tensor:
        while True:
            coordinator = Coordinator(folder, content)
            number = coordinator.round
            asked = coordinator.pending_requests() if number else dict.fromkeys(files.sizes, b"")
            for name, request in asked.items():
                assert sent.setdefault((number, name), request) == request
                assert not coordinator.receive(answers[number, name]).why
            if not coordinator.close():
                return coordinator.table().rows

    answers: dict[tuple[int, str], bytes] = {}
    coordinator = Coordinator(tmp_path / "first", content)
    for number in range(2):
        for name, request in (coordinator.pending_requests() or dict.fromkeys(files.sizes, b"")).items():
            answers[number, name] = simulating(files, name).answer(content, request)
            assert not coordinator.receive(answers[number, name]).why
        coordinator.close()
    expected = coordinator.table().rows
    writes = 0
    for stop in range(40):
        folder, left, finished = tmp_path / f"{stop}", stop, False

        def dying(path: Path, made: bytes, after: bool = bool(stop % 2)) -> None:
            nonlocal left
            if left == 0:
                left = -1
                if after:
                    real(path, made)  # killed after the write, or before it
                raise _Killed
            left -= 1
            real(path, made)

        sent.clear()
        monkeypatch.setattr(module, "write_whole", dying)
        try:
            study(folder)
            finished = True
        except _Killed:
            writes += 1
        monkeypatch.setattr(module, "write_whole", real)
        assert float((study(folder) - expected).abs().max()) == 0.0
        if finished:
            break
    assert writes == 1 + 4 + 1 + 4 + 4  # the job, answers, who takes part, requests, answers


def test_a_folder_that_others_wrote_is_checked(files: Files, tmp_path: Path) -> None:
    job = files.job()
    coordinator = answered(files, job, tmp_path / "study")
    path = tmp_path / "study" / "round-0" / "east.release"
    good = path.read_bytes()
    path.write_bytes((tmp_path / "study" / "round-0" / "west.release").read_bytes())
    with pytest.raises(dpv.DpvalueError, match="does not hold the release that its name says"):
        coordinator.table()
    far = torch.full((job.size,), longest_release(job, 40))
    path.write_bytes(replace(Release.from_bytes(good), numbers=far).to_bytes())
    with pytest.raises(dpv.DpvalueError, match="norm of the release"):
        coordinator.table()
    path.write_bytes(good)
    (tmp_path / "study" / "rejected.jsonl").write_text(json.dumps({"party": 1}) + "\n")
    with pytest.raises(dpv.DpvalueError, match="must be a text"):
        coordinator.rejections.all()
    with pytest.raises(dpv.DpvalueError, match="the state of another job"):
        Coordinator(tmp_path / "study", files.job(seed=5).to_bytes())


def test_the_same_three_steps_in_python(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = (x[:, 0] - x[:, 1] + rng.normal(size=400) > 0).astype(int)
    public, names = (x[:100], y[:100]), ("a", "b", "c")
    plan = dpv.plan(3, public, records=100, privacy=dpv.Privacy(4.0, unit="record"), game="refit")
    plan.job().save(tmp_path / "study.job")
    for number, name in enumerate(names, start=1):
        own = slice(100 * number, 100 * number + 100)
        ledger = dpv.Ledger.create(tmp_path / name, dpv.Privacy(4.0, unit="record"), name)
        job = dpv.Job.load(tmp_path / "study.job")
        dpv.Party(name, x[own], y[own], ledger=ledger).answer(job).save(tmp_path / f"{name}.release")
    job = dpv.Job.load(tmp_path / "study.job")
    releases = [dpv.Release.load(tmp_path / f"{name}.release") for name in names]
    table = dpv.combine(job, releases)
    assert table.names == names
    assert table.sizes.tolist() == [100, 100, 100]
    values = table.value(public, progress=False).values["shapley"]
    assert values.sum() == pytest.approx(0.2, abs=0.2)
    with pytest.raises(dpv.DpvalueError, match="'a' has two"):
        dpv.combine(job, [releases[0], *releases])
    with pytest.raises(dpv.DpvalueError, match="norm of the release"):
        dpv.combine(job, [releases[0], replace(releases[1], numbers=releases[1].numbers + 100)])
