"""A transport from outside: bytes in a folder that coordinator and parties share. No file of the package knows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dpvalue as dpv
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import Waits, conduct
from dpvalue.party.agent import Agent, Refusal
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import Policy, Protection
from dpvalue.protocol.transport import Nodes, Question, Reply, Respond, answer
from dpvalue.storage import write_whole
from tests.federation import Files, local_parties, simulated, write_files

NOW = 0.005  # seconds between two looks into a folder


@dataclass(frozen=True)
class Mailboxes:
    """The coordinator's side: a folder for each node, in which questions and replies lie."""

    folder: Path

    def nodes(self) -> list[int]:
        return sorted(int(box.name) for box in self.folder.iterdir())

    def exchange(self, questions: Mapping[int, Question], deadline: float) -> Iterator[tuple[int, Reply | None]]:
        for node, question in questions.items():
            write_whole(self.folder / str(node) / "request", question.request)
            write_whole(self.folder / str(node) / "job", question.job)
        end, waiting = time.monotonic() + deadline, set(questions)
        while waiting and time.monotonic() < end:
            for node in sorted(waiting):
                for kind in ("release", "refused"):
                    path = self.folder / str(node) / kind
                    if path.is_file():
                        content = path.read_bytes()
                        path.unlink()
                        waiting.remove(node)
                        yield node, Reply(content, "") if kind == "release" else Reply(b"", content.decode())
            time.sleep(NOW)
        yield from ((node, None) for node in sorted(waiting))


def serve(box: Path, respond: Respond, over: threading.Event) -> None:
    """The party's side: answer what lies in its box, until it is over."""
    box.mkdir(parents=True)
    while not over.is_set():
        if (box / "job").is_file():
            question = Question((box / "job").read_bytes(), (box / "request").read_bytes())
            (box / "job").unlink()
            reply = answer(respond, question)
            write_whole(box / ("release" if reply.release else "refused"), reply.release or reply.refused.encode())
        over.wait(NOW)


def responding(files: Files, name: str) -> Respond:
    engine = dpv.Local(device="cpu", dtype="float64")
    policy = Policy(Protection(epsilon=100.0 if name != "west" else 0.01), unsigned=True)
    agent = Agent(name, PartyFile(files.own(name)), None, policy, simulation=True, engine=engine)

    def respond(question: Question) -> Reply:
        try:
            return Reply(agent.answer(question.job, question.request), "")
        except Refusal as refused:
            return Reply(b"", refused.public)

    return respond


@contextmanager
def parties(files: Files, folder: Path) -> Iterator[Nodes]:
    over = threading.Event()
    threads = [
        threading.Thread(target=serve, args=(folder / str(number), responding(files, name), over))
        for number, name in enumerate(files.sizes)
    ]
    for thread in threads:
        thread.start()
    try:
        while not folder.is_dir() or len(list(folder.iterdir())) < len(threads):
            time.sleep(NOW)
        yield Mailboxes(folder)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    "given",
    [{}, {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}],
    ids=["one round", "two rounds"],
)
def test_a_study_by_mailboxes_is_the_local_run(given: dict[str, Any], tmp_path: Path) -> None:
    files = write_files(tmp_path, {"east": 40, "north": 90, "south": 60})
    prepared, job = simulated(files, **given)
    coordinator = Coordinator(tmp_path / "study", job.to_bytes())
    with parties(files, tmp_path / "boxes") as nodes:
        assert conduct(coordinator, nodes, Waits(parties=3, gather=60.0, deadline=60.0)) == 3 * job.rounds
    local = prepared.run(local_parties(files)).release(lambda *progress: None)[0]
    assert float((coordinator.table().rows - local.rows).abs().max()) < 1e-12


def test_a_party_that_refuses_is_listed(tmp_path: Path) -> None:
    files = write_files(tmp_path)  # the policy of west allows next to nothing
    _, job = simulated(files)
    coordinator = Coordinator(tmp_path / "study", job.to_bytes())
    with parties(files, tmp_path / "boxes") as nodes:
        conduct(coordinator, nodes, Waits(parties=4, gather=60.0, deadline=60.0))
    assert coordinator.table().names == ("east", "north", "south")
    assert len(coordinator.rejections.all()) == 1
