"""A study: its job is made from a public file and the parties' sizes, it is conducted, and its folder becomes results.

Over a network it goes round by round: ask whoever is there, wait until a deadline, keep what counts, go on. Nodes have
numbers, parties have names: which is which is known from a party's first answer, and kept with the state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpvalue.coordinator.releases import engine_of
from dpvalue.coordinator.roster import read_roster
from dpvalue.coordinator.state import NODES, OVER, Coordinator
from dpvalue.data.parties import Parties
from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.progress import Progress
from dpvalue.protocol.archive import Key, Tensors, as_text, read_bytes
from dpvalue.protocol.job import Job
from dpvalue.protocol.transport import Nodes, Question, Reply, wait_for_nodes
from dpvalue.report.record import AnsweringParty, Record, RejectionRecord, StudyRecord
from dpvalue.runs.config import RunConfig, make_config, parse_options
from dpvalue.runs.execute import FinishedRun, finish, make_values, released_record, value_table
from dpvalue.runs.folder import keep_table
from dpvalue.runs.plan import plan_sizes
from dpvalue.runs.plan_page import Plan
from dpvalue.runs.rounds import public_digest
from dpvalue.runs.sources import PublicSide, open_public
from dpvalue.storage import LOCK, alone, write_whole
from dpvalue.stored import parse_json, read_text
from dpvalue.values.table import Table

_CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class Study:
    """A job, and what it was made of."""

    public: PublicSide
    plan: Plan
    job: Job


def make_study(config: RunConfig) -> Study:
    """Choose how parties are asked, and make the job.

    Formal guarantee: reads the public file and the sizes in the options, and nothing else.
    """
    if config.schedule is not None and config.schedule != "replay":
        raise DpvalueError(f"schedule must be 'replay': a study is valued from its table, got {config.schedule!r}")
    public = open_public(config)
    planned = plan_sizes(public.utility, public.settings, _stand_ins(config).counts(config.privacy), timed=True)
    assert planned.prepared is not None
    recipe = replace(config, test=Path(config.test).name).to_toml()
    return Study(public, planned, planned.prepared.job(target=config.target, recipe=recipe))


def _stand_ins(config: RunConfig) -> Parties:
    """Parties of these sizes without rows; of persons, one row each."""
    names = np.repeat(np.arange(len(config.sizes)), config.sizes).astype(str)
    persons = np.arange(len(names)).astype(str) if config.unit == "person" else None
    return Parties(np.zeros((len(names), 1)), np.zeros(len(names)), names, persons)


def options_of(job: Job) -> RunConfig:
    """Return the options that a job was made by, as it says."""
    if not job.about.recipe:
        raise DpvalueError("the job names no public file: it was made in Python, not by `dpvalue job`")
    return make_config(parse_options(job.about.recipe, "the job's recipe"))


def public_name(job: Job) -> str:
    """Return the name of the public file that a job says it was made with; empty where it names none."""
    named = parse_options(job.about.recipe, "the job's recipe").get("test", "")
    return Path(named).name if isinstance(named, str) else ""


def read_utility(job: Job, test: Path, metric: str | None = None) -> Utility:
    """Return the public rows of a job, with its metric or another; raises unless they are those it was made with."""
    options = options_of(job)
    public = open_public(replace(options, test=str(test)))
    engine = engine_of(job)
    encoded = public.utility.encode(job.encoding, engine.torch_dtype, engine.torch_device)
    if public_digest(encoded) != job.about.utility:
        raise DpvalueError(f"{test} is not the public file of the job: its digest differs")
    utility = replace(public.utility, metric=metric or options.metric)
    utility.encode(job.encoding, engine.torch_dtype, engine.torch_device)  # raises for a metric that does not fit
    return utility


def verify_job(job: Job, test: Path) -> bool:
    """Make a job again from the public file; return whether it is the same to the bit.

    On another processor sums come out a little different: what differs by less than that passes, too. Raises for
    anything else that is not as the recipe says: other directions, more points, less noise.
    """
    read_utility(job, test)
    again = make_study(replace(options_of(job), test=str(test))).job
    if again.digest == job.digest:
        return True
    (header, tensors), (ours, own) = job.parts(), again.parts()
    _require_close("", header, ours)
    _require_close_tensors(tensors, own)
    return False


def _require_close(name: str, found: object, wanted: object) -> None:
    if isinstance(found, dict) and isinstance(wanted, dict) and found.keys() == wanted.keys():
        for key in found:
            _require_close(f"{name}.{key}".strip("."), found[key], wanted[key])
    elif isinstance(found, float) and isinstance(wanted, float):
        if abs(found - wanted) > _CLOSE * abs(wanted):
            raise DpvalueError(f"the job does not match its public file: {name} is {found!r}, expected {wanted!r}")
    elif as_text(found) != as_text(wanted):
        raise DpvalueError(f"the job does not match its public file: {name} differs")


def _require_close_tensors(found: Tensors, wanted: Tensors) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found or name not in wanted or found[name].shape != wanted[name].shape:
            raise DpvalueError(f"the job does not match its public file: {name} differs")
        one, other = found[name].to(torch.float64), wanted[name].to(torch.float64)
        if float((one - other).abs().max()) > _CLOSE * max(float(other.abs().max()), 1e-12):
            raise DpvalueError(f"the job does not match its public file: {name} differs")


STATE = "study"
"""Where a folder of results keeps the job and all releases."""


def require_place(out: Path, job: Job) -> None:
    """Raise unless a folder is new, or holds results of the same study, to which late answers are added."""
    if not out.exists() or (out.is_dir() and all(file.name == LOCK for file in out.iterdir())):
        return
    kept = out / STATE / "study.job"
    if not kept.is_file():
        raise DpvalueError(f"{out} holds other files: name a new folder with --out")
    if Job.load(kept).digest != job.digest:
        raise DpvalueError(f"{out} holds the results of another job: name another folder with --out")


def value_study(
    coordinator: Coordinator, utility: Utility, options: RunConfig, out: Path, progress: Progress
) -> FinishedRun:
    """Value what was released, and write the folder of results, as a local run does."""
    table = coordinator.table()
    record = study_record(coordinator, options, table)
    keep_table(out, record, table)
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    return finish(out, result, *make_values(record, result, None, progress, options.pay))


def study_record(coordinator: Coordinator, options: RunConfig, table: Table) -> Record:
    """Return what is known of a study once its releases are there."""
    return replace(released_record(options, table, None), federated=federated(coordinator))


def federated(coordinator: Coordinator) -> StudyRecord:
    """Return who answered, and what does not count."""
    seals = coordinator.seals()
    answered = []
    for name, answers in coordinator.answers().items():
        seal = seals[name]
        answered.append(AnsweringParty(name, answers.units, len(answers.releases), "" if seal is None else seal.by))
    rejected = (RejectionRecord(receipt.party, receipt.round, receipt.why) for receipt in coordinator.rejections.all())
    return StudyRecord(coordinator.job.digest, coordinator.job.rounds, tuple(answered), tuple(rejected))


def options_for(job: Job, test: Path, **changes: object) -> RunConfig:
    """Return the options of a study's results: the job's, with the public file as it was found here."""
    given = {name: change for name, change in changes.items() if change}
    return replace(options_of(job), test=str(test), **given)  # type: ignore[arg-type]


ENTRY = "dpvalue.coordinator.study:over_flower"
"""What the ServerApp of a study calls."""

ABSENT = "it did not answer in time"

_log = logging.getLogger("dpvalue")


@dataclass(frozen=True)
class Waits:
    """How long a coordinator waits.

    Attributes:
        parties: how many are expected.
        gather: seconds to wait for so many to be there.
        deadline: seconds to wait for the answers of a round.
    """

    parties: int
    gather: float = 120.0
    deadline: float = 300.0


def conduct(coordinator: Coordinator, nodes: Nodes, patience: Waits) -> int:
    """Ask all rounds that have not been asked, and return how many messages were sent.

    Killed anywhere, it is called again: what was answered is not asked again, and nobody is asked for a round
    differently. Who does not answer in time is absent from the round.
    """
    sent = 0
    there = wait_for_nodes(nodes, patience.parties, patience.gather)
    while True:
        number = coordinator.round
        asked = _first(coordinator, there) if number == 0 else _later(coordinator, there)
        for node, answered in nodes.exchange({node: asked[node] for node in sorted(asked)}, patience.deadline):
            _take(coordinator, node, answered)
        sent += len(asked)
        _log.info("round %d: messages: %d, parties: %d", number, len(asked), len(coordinator.taking_part))
        if not coordinator.close(number):
            return sent
        there = nodes.nodes()


def over_flower(nodes: Nodes, config: Mapping[str, Any]) -> None:
    """Conduct a study as the ServerApp's configuration says; `dpvalue flower run` writes it."""
    roster, key = str(config.get("roster", "")), str(config.get("key", ""))
    coordinator = Coordinator(
        Path(str(config["folder"])),
        read_bytes(Path(str(config["job"])), "a job"),
        read_roster(Path(roster)) if roster else None,
        Key.read(key) if key else None,
    )
    patience = Waits(int(config["parties"]), float(config["gather"]), float(config["deadline"]))
    sent = conduct(coordinator, nodes, patience)
    write_whole(coordinator.folder / OVER, json.dumps({"messages": sent}).encode())


def _first(coordinator: Coordinator, there: list[int]) -> dict[int, Question]:
    """The first round: the job alone, to every node that has not answered it."""
    known = _known(coordinator)
    answered = set(coordinator.taking_part)
    return {node: Question(coordinator.content, b"") for node in there if known.get(node) not in answered}


def _later(coordinator: Coordinator, there: list[int]) -> dict[int, Question]:
    """A later round: to each party's node what it is asked."""
    known, asked = _known(coordinator), coordinator.asked()
    found = {node: asked[known[node]] for node in there if known.get(node) in asked}
    for name in sorted(set(asked) - {known[node] for node in found}):
        coordinator.refuse(name, ABSENT)
    return {node: Question(coordinator.content, request) for node, request in found.items()}


def _take(coordinator: Coordinator, node: int, answered: Reply | None) -> None:
    """Keep what a node answered, or that it did not."""
    if answered is None or not answered.release:
        why = ABSENT if answered is None else answered.refused
        coordinator.refuse(_known(coordinator).get(node, f"node {node}"), why)
        return
    receipt = coordinator.receive(answered.release)
    if receipt.why:
        return
    with alone(coordinator.folder / NODES):
        known = _known(coordinator)
        if receipt.party not in known.values():
            kept = {str(other): name for other, name in known.items()} | {str(node): receipt.party}
            write_whole(coordinator.folder / NODES, json.dumps(kept).encode())


def _known(coordinator: Coordinator) -> dict[int, str]:
    """The party of each node that has answered."""
    path = coordinator.folder / NODES
    if not path.is_file():
        return {}
    found = parse_json(read_text(path), str(path))
    if not isinstance(found, dict) or not all(_is_node(node) and isinstance(found[node], str) for node in found):
        raise DpvalueError(f"{path} has been damaged: it must name the party of each node")
    return {int(node): name for node, name in found.items()}


def _is_node(text: str) -> bool:
    """Whether a text is the number of a node, of which Flower's have 64 bits without a sign."""
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64
