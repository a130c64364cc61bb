"""A study over a network, simulated in one process: who is absent, who refuses, and who is killed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpvalue as dpv
from dpvalue.coordinator import study
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import ABSENT, Waits, conduct
from dpvalue.party.agent import FORBIDDEN, Agent, Refusal
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import Policy, Protection
from dpvalue.protocol.transport import FAILED, Question, Reply
from tests.federation import Files, LocalNodes, local_parties, simulated, write_files

TWO_ROUNDS = {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}
SOON = Waits(parties=4, gather=0.0, deadline=60.0)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path)


def answering(files: Files, name: str, calls: list[tuple[str, bytes]]) -> Callable[[Question], Reply]:
    engine = dpv.Local(device="cpu", dtype="float64")
    policy = Policy(Protection(epsilon=100.0), unsigned=True)
    agent = Agent(name, PartyFile(files.own(name)), None, policy, simulation=True, engine=engine)

    def respond(asked: Question) -> Reply:
        calls.append((name, asked.request))
        try:
            return Reply(agent.answer(asked.job, asked.request), "")
        except Refusal as refused:
            return Reply(b"", refused.public)

    return respond


@pytest.mark.parametrize("given", [{}, TWO_ROUNDS], ids=["one round", "two rounds"])
def test_all_rounds_give_the_table_of_a_local_run(files: Files, tmp_path: Path, given: Any) -> None:
    prepared, job = simulated(files, **given)
    calls: list[tuple[str, bytes]] = []
    nodes = LocalNodes({7 + number: answering(files, name, calls) for number, name in enumerate(files.sizes)})
    coordinator = Coordinator(tmp_path / "study", job.to_bytes())
    assert conduct(coordinator, nodes, SOON) == 4 * job.rounds == len(calls)
    local = prepared.run(local_parties(files)).release(lambda *progress: None)[0]
    assert float((coordinator.table().rows - local.rows).abs().max()) < 1e-12
    assert coordinator.rejections.all() == []
    again = Coordinator(tmp_path / "study", job.to_bytes())
    assert conduct(again, nodes, SOON) == 0  # all is answered


def test_who_is_absent_refuses_or_fails_is_listed_and_the_others_go_on(files: Files, tmp_path: Path) -> None:
    _, job = simulated(files, **TWO_ROUNDS)
    calls: list[tuple[str, bytes]] = []
    parties = {number: answering(files, name, calls) for number, name in enumerate(files.sizes)}
    lost = dict(parties)

    def refusing(asked: Question) -> Reply:
        return Reply(b"", FORBIDDEN)

    def failing(asked: Question) -> Reply:
        raise RuntimeError("row 3 says 42")

    def gone_later(asked: Question) -> Reply:
        if asked.request:
            raise RuntimeError("row 3 says 42")
        return parties[2](asked)

    def garbage(asked: Question) -> Reply:
        return Reply(b"garbage", "")

    lost |= {2: gone_later, 4: refusing, 5: failing, 6: garbage}
    coordinator = Coordinator(tmp_path / "study", job.to_bytes())
    conduct(coordinator, LocalNodes(lost), SOON)
    assert coordinator.participants == ["east", "north", "south", "west"]
    counts = {name: len(answers.releases) for name, answers in coordinator.answers().items()}
    assert counts == {"east": 2, "north": 2, "south": 1, "west": 2}
    said = {(receipt.party, receipt.round): receipt.why for receipt in coordinator.rejections.all()}
    assert said["node 4", 0] == FORBIDDEN
    assert said["node 5", 0] == FAILED
    assert said["south", 1] == FAILED
    assert "not a dpvalue file" in said["?", 0]
    assert not any("42" in why for why in said.values())
    away = Coordinator(tmp_path / "away", job.to_bytes())
    conduct(away, _LeavingAfterOne(parties), SOON)
    assert [receipt.why for receipt in away.rejections.all()] == [ABSENT] * 2
    assert sorted(len(answers.releases) for answers in away.answers().values()) == [1, 1, 2, 2]


class _LeavingAfterOne(LocalNodes):
    """Nodes of which the last two are not there any more after the first round."""

    asked = 0

    def nodes(self) -> list[int]:
        self.asked += 1
        return super().nodes()[: 4 if self.asked == 1 else 2]


class _Killed(BaseException):
    """A process that is no more."""


def test_killed_at_any_write_a_study_goes_on(files: Files, tmp_path: Path, monkeypatch: Any) -> None:
    """Nobody is asked for a round by two different requests, and each party's noise is drawn once a round."""
    _, job = simulated(files, **TWO_ROUNDS)
    real, expected, killed = study.write_whole, None, 0  # type: ignore[attr-defined]
    for stop in range(60):
        calls: list[tuple[str, bytes]] = []
        nodes = LocalNodes({number: answering(files, name, calls) for number, name in enumerate(files.sizes)})
        left, finished = stop, False

        def dying(path: Path, content: bytes) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise _Killed
            real(path, content)

        for place in ("dpvalue.coordinator.study.write_whole", "dpvalue.coordinator.state.write_whole"):
            monkeypatch.setattr(place, dying)
        while not finished:
            try:
                conduct(Coordinator(tmp_path / f"{stop}", job.to_bytes()), nodes, SOON)
                finished = True
            except _Killed:
                killed += 1
        table = Coordinator(tmp_path / f"{stop}", job.to_bytes()).table().rows
        expected = table if expected is None else expected
        assert float((table - expected).abs().max()) == 0.0
        for name in files.sizes:
            assert len({request for party, request in calls if party == name}) == 2  # the first round's, and one more
        if left >= 0:
            break
    assert killed == stop > 15
