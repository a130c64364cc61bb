"""A small study for tests: a public file and the files of four parties, an agent for each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import dpvalue as dpv
from dpvalue.coordinator.study import _stand_ins, make_study
from dpvalue.party.agent import BEFORE, FORBIDDEN, SPENT, UNABLE, UNKNOWN, UNREADABLE, WRONG, Agent
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import Policy
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Query, Release, Request
from dpvalue.protocol.transport import Question, Reply, Respond, answer
from dpvalue.runs.config import RunConfig
from dpvalue.runs.rounds import Ask, requests, require_answer
from dpvalue.runs.run import PreparedRun, prepare
from dpvalue.runs.sources import open_public

REFUSALS = {UNREADABLE, UNKNOWN, FORBIDDEN, WRONG, BEFORE, SPENT, UNABLE}
"""All that an agent says to a stranger whom it does not answer."""
SIZES = {"east": 40, "north": 90, "south": 60, "west": 25}


@dataclass(frozen=True)
class Files:
    """Where everything is."""

    folder: Path
    sizes: dict[str, int]

    @property
    def public(self) -> Path:
        return self.folder / "public.csv"

    def own(self, name: str) -> Path:
        return self.folder / f"{name}.csv"

    def config(self, **given: Any) -> RunConfig:
        sizes = tuple(self.sizes.values())
        return RunConfig(**{"test": str(self.public), "target": "label", "sizes": sizes, "unit": "record", **given})

    def job(self, **given: Any) -> Job:
        return make_study(self.config(**given)).job

    def ledger(self, name: str, epsilon: float = 10.0, **given: Any) -> dpv.Ledger:
        path = self.folder / f"{name}.ledger"
        if path.is_file():
            return dpv.Ledger(path)
        return dpv.Ledger.create(path, dpv.Privacy(epsilon, **{"unit": "record", **given}), name)

    def agent(self, name: str, policy: Policy | None = None, **given: Any) -> Agent:
        ledger = self.ledger(name)
        rules = policy or Policy.of_ledger(ledger.budget, ledger.terms.person)
        return Agent(name, PartyFile(self.own(name), rules.protection.person), ledger, rules, **given)


def write_files(folder: Path, sizes: dict[str, int] | None = None, seed: int = 0) -> Files:
    """Write public.csv and a file for each party; the labels of the last are noise."""
    sizes = dict(SIZES) if sizes is None else sizes
    rng = np.random.default_rng(seed)
    for name, count in {"public": 120, **sizes}.items():
        x = rng.normal(size=(count, 3))
        label = np.where(x @ [2.0, -1.0, 0.5] + rng.normal(size=count) > 0, "yes", "no")
        if name == list(sizes)[-1]:
            label = rng.choice(["yes", "no"], count)
        frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(kind=rng.choice(["u", "v"], count), label=label)
        frame.to_csv(folder / f"{name}.csv", index=False)
    return Files(folder, sizes)


def simulated(files: Files, **given: Any) -> tuple[PreparedRun, Job]:
    """A job with seeded noise, and the local run that it must agree with."""
    config = files.config()
    public = open_public(config)
    settings = replace(public.settings, noise="fast", engine=dpv.Local(device="cpu", dtype="float64"), **given)
    prepared = prepare(public.utility, settings, *_stand_ins(config).counts(settings.privacy))
    recipe = replace(config, test="public.csv").to_toml()
    return prepared, prepared.job(sorted(files.sizes), "label", recipe)


def local_parties(files: Files) -> dpv.Parties:
    """All parties in one process, as the simulation of a study is compared with."""
    frames = [pd.read_csv(files.own(name)).assign(site=name) for name in files.sizes]
    frame = pd.concat(frames, ignore_index=True)
    return dpv.Parties(frame[["a", "b", "c", "kind"]], frame["label"], frame["site"])


class LocalNodes:
    """Parties in this process, one after the other: `Nodes` for a coordinator, without Flower.

    Args:
        parties: what answers for each node. Whoever raises answers with the fixed text, as over Flower.
    """

    def __init__(self, parties: Mapping[int, Respond]) -> None:
        self._parties = dict(parties)

    def nodes(self) -> list[int]:
        """Return the nodes, in order."""
        return sorted(self._parties)

    def exchange(self, asked: Mapping[int, Question], deadline: float) -> Iterator[tuple[int, Reply | None]]:
        """Ask nodes, and yield what each answers; who is not there, or is done only after the deadline, is absent."""
        end = time.monotonic() + deadline
        for node in sorted(asked):
            respond = self._parties.get(node)
            if respond is None or time.monotonic() >= end:
                yield node, None
                continue
            answered = answer(respond, asked[node])
            yield node, answered if time.monotonic() < end else None


def ask_each(job: Job, names: Sequence[str], answers: Sequence[Callable[[Job, Request], Release]]) -> Ask:
    """Return how parties are asked one by one, each by a message of its own; their answers are checked.

    Args:
        job: the job.
        names: of the parties, in the order of the table.
        answers: `Party.answer` of each, or what carries a message to it and back.
    """

    def ask(number: int, after: Tensor, asked: Query) -> Tensor:
        rows = []
        for name, request, respond in zip(names, requests(asked, job.digest, number, len(names)), answers, strict=True):
            release = respond(job, request)
            require_answer(release, job, request, name)
            rows.append(release.numbers.to(after))
        return torch.stack(rows)

    return ask
