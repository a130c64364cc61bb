"""A study: make its job from a public file and the parties' sizes, conduct its rounds, and value its releases.

Over a network, each round sends requests to the connected nodes, waits until a deadline, and stores valid releases.
Nodes have numbers and parties have names; the first reply of a party maps one to the other, and the state stores it.
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
from dpvalue.runs.execute import FinishedRun, finish, make_values, record_of_release, value_table
from dpvalue.runs.folder import keep_table
from dpvalue.runs.plan import plan_sizes
from dpvalue.runs.plan_page import Plan
from dpvalue.runs.rounds import public_digest
from dpvalue.runs.sources import PublicSide, open_public
from dpvalue.storage import LOCK, file_lock, write_whole
from dpvalue.stored import parse_json, read_text
from dpvalue.values.table import Table

_CLOSE = 1e-4


@dataclass(frozen=True, eq=False)
class Study:
    """A job, with the public side and the plan that it was made from."""

    public: PublicSide
    plan: Plan
    job: Job


def make_study(config: RunConfig) -> Study:
    """Return the study of a configuration: its plan and its job.

    Formal guarantee: reads only the public file and the sizes in the options.
    """
    if config.schedule is not None and config.schedule != "replay":
        raise DpvalueError(f"schedule must be 'replay': a study is valued from its table, got {config.schedule!r}")
    public = open_public(config)
    plan = plan_sizes(public.utility, public.settings, _stand_ins(config).counts(config.privacy), timed=True)
    assert plan.prepared is not None
    recipe = replace(config, test=Path(config.test).name).to_toml()
    return Study(public, plan, plan.prepared.job(target=config.target, recipe=recipe))


def _stand_ins(config: RunConfig) -> Parties:
    """Parties of these sizes, with rows of zeros; one row per person for unit "person"."""
    names = np.repeat(np.arange(len(config.sizes)), config.sizes).astype(str)
    persons = np.arange(len(names)).astype(str) if config.unit == "person" else None
    return Parties(np.zeros((len(names), 1)), np.zeros(len(names)), names, persons)


def options_of(job: Job) -> RunConfig:
    """Return the options in a job's recipe."""
    if not job.about.recipe:
        raise DpvalueError("the job names no public file: it was made in Python, not by `dpvalue job`")
    return make_config(parse_options(job.about.recipe, "the job's recipe"))


def public_name(job: Job) -> str:
    """Return the name of the public file in a job's recipe; empty if it names none."""
    path = parse_options(job.about.recipe, "the job's recipe").get("test", "")
    return Path(path).name if isinstance(path, str) else ""


def read_utility(job: Job, test: Path, metric: str | None = None) -> Utility:
    """Return the public rows of a job, with its metric or `metric`; raise if their digest differs from the job's."""
    options = options_of(job)
    public = open_public(replace(options, test=str(test)))
    engine = engine_of(job)
    encoded = public.utility.encode(job.encoding, engine.torch_dtype, engine.torch_device)
    if public_digest(encoded) != job.about.utility:
        raise DpvalueError(f"{test} is not the public file of the job: its digest differs")
    utility = replace(public.utility, metric=metric or options.metric)
    utility.encode(job.encoding, engine.torch_dtype, engine.torch_device)  # raises if the metric does not fit
    return utility


def verify_job(job: Job, test: Path) -> bool:
    """Rebuild a job from its recipe and the public file; return whether it is equal bit for bit.

    Processors differ in rounding, so small differences of numbers are accepted. All other differences raise: other
    directions, more points, less noise.
    """
    read_utility(job, test)
    rebuilt = make_study(replace(options_of(job), test=str(test))).job
    if rebuilt.digest == job.digest:
        return True
    (header, tensors), (rebuilt_header, rebuilt_tensors) = job.parts(), rebuilt.parts()
    _require_close("", header, rebuilt_header)
    _require_close_tensors(tensors, rebuilt_tensors)
    return False


def _require_close(name: str, stored: object, rebuilt: object) -> None:
    if isinstance(stored, dict) and isinstance(rebuilt, dict) and stored.keys() == rebuilt.keys():
        for key in stored:
            _require_close(f"{name}.{key}".strip("."), stored[key], rebuilt[key])
    elif isinstance(stored, float) and isinstance(rebuilt, float):
        if abs(stored - rebuilt) > _CLOSE * abs(rebuilt):
            raise DpvalueError(f"the job does not match its public file: {name} is {stored!r}, expected {rebuilt!r}")
    elif as_text(stored) != as_text(rebuilt):
        raise DpvalueError(f"the job does not match its public file: {name} differs")


def _require_close_tensors(stored: Tensors, rebuilt: Tensors) -> None:
    for name in sorted(stored.keys() | rebuilt.keys()):
        if name not in stored or name not in rebuilt or stored[name].shape != rebuilt[name].shape:
            raise DpvalueError(f"the job does not match its public file: {name} differs")
        first, second = stored[name].to(torch.float64), rebuilt[name].to(torch.float64)
        if float((first - second).abs().max()) > _CLOSE * max(float(second.abs().max()), 1e-12):
            raise DpvalueError(f"the job does not match its public file: {name} differs")


STATE = "study"
"""The folder of the job and all releases in a folder of results."""


def require_place(out: Path, job: Job) -> None:
    """Raise unless a folder is new, or holds results of the same job, which late releases may update."""
    if not out.exists() or (out.is_dir() and all(file.name == LOCK for file in out.iterdir())):
        return
    job_file = out / STATE / "study.job"
    if not job_file.is_file():
        raise DpvalueError(f"{out} holds other files: name a new folder with --out")
    if Job.load(job_file).digest != job.digest:
        raise DpvalueError(f"{out} holds the results of another job: name another folder with --out")


def value_study(
    coordinator: Coordinator, utility: Utility, options: RunConfig, out: Path, progress: Progress
) -> FinishedRun:
    """Value the releases, and write the folder of results, as a local run does."""
    table = coordinator.table()
    record = study_record(coordinator, options, table)
    keep_table(out, record, table)
    result = value_table(table, utility, options.semivalue, options.permutations, progress)
    return finish(out, result, *make_values(record, result, None, progress, options.pay))


def study_record(coordinator: Coordinator, options: RunConfig, table: Table) -> Record:
    """Return the record of a study before valuation."""
    return replace(record_of_release(options, table, None), federated=federated(coordinator))


def federated(coordinator: Coordinator) -> StudyRecord:
    """Return the parties that answered, and the rejections."""
    seals = coordinator.seals()
    parties = []
    for name, answers in coordinator.answers().items():
        seal = seals[name]
        parties.append(AnsweringParty(name, answers.units, len(answers.releases), "" if seal is None else seal.by))
    rejected = (RejectionRecord(receipt.party, receipt.round, receipt.why) for receipt in coordinator.rejections.all())
    return StudyRecord(coordinator.job.digest, coordinator.job.rounds, tuple(parties), tuple(rejected))


def options_for(job: Job, test: Path, **changes: object) -> RunConfig:
    """Return the options of a study's results: those of the job, with the local public file and `changes`."""
    given_changes = {name: change for name, change in changes.items() if change}
    return replace(options_of(job), test=str(test), **given_changes)  # type: ignore[arg-type]


ENTRY = "dpvalue.coordinator.study:over_flower"
"""The function that the ServerApp of a study calls."""

ABSENT = "it did not answer in time"

_log = logging.getLogger("dpvalue")


@dataclass(frozen=True)
class Waits:
    """The waiting times of a coordinator.

    Attributes:
        parties: expected number of parties.
        gather: seconds to wait until as many nodes are connected.
        deadline: seconds to wait for the replies of a round.
    """

    parties: int
    gather: float = 120.0
    deadline: float = 300.0


def conduct(coordinator: Coordinator, nodes: Nodes, waits: Waits) -> int:
    """Conduct all remaining rounds, and return the number of messages sent.

    After a crash, call it again: a stored release is not requested again, and the requests of a round do not change.
    A party that does not answer in time is absent from the round.
    """
    messages = 0
    node_ids = wait_for_nodes(nodes, waits.parties, waits.gather)
    while True:
        number = coordinator.round
        questions = _first_questions(coordinator, node_ids) if number == 0 else _later_questions(coordinator, node_ids)
        for node, reply in nodes.exchange({node: questions[node] for node in sorted(questions)}, waits.deadline):
            _store_reply(coordinator, node, reply)
        messages += len(questions)
        _log.info("round %d: messages: %d, parties: %d", number, len(questions), len(coordinator.participants))
        if not coordinator.close(number):
            return messages
        node_ids = nodes.nodes()


def over_flower(nodes: Nodes, config: Mapping[str, Any]) -> None:
    """Conduct a study by the configuration of the ServerApp, which `dpvalue flower run` writes."""
    roster, key = str(config.get("roster", "")), str(config.get("key", ""))
    coordinator = Coordinator(
        Path(str(config["folder"])),
        read_bytes(Path(str(config["job"])), "a job"),
        read_roster(Path(roster)) if roster else None,
        Key.read(key) if key else None,
    )
    waits = Waits(int(config["parties"]), float(config["gather"]), float(config["deadline"]))
    messages = conduct(coordinator, nodes, waits)
    write_whole(coordinator.folder / OVER, json.dumps({"messages": messages}).encode())


def _first_questions(coordinator: Coordinator, node_ids: list[int]) -> dict[int, Question]:
    """The questions of round 0: the job alone, to every node without a release."""
    party_of_node = _read_nodes(coordinator)
    respondents = set(coordinator.participants)
    return {node: Question(coordinator.content, b"") for node in node_ids if party_of_node.get(node) not in respondents}


def _later_questions(coordinator: Coordinator, node_ids: list[int]) -> dict[int, Question]:
    """The questions of a later round: its request to the node of each party."""
    party_of_node, requests = _read_nodes(coordinator), coordinator.pending_requests()
    reachable = {node: requests[party_of_node[node]] for node in node_ids if party_of_node.get(node) in requests}
    for name in sorted(set(requests) - {party_of_node[node] for node in reachable}):
        coordinator.refuse(name, ABSENT)
    return {node: Question(coordinator.content, request) for node, request in reachable.items()}


def _store_reply(coordinator: Coordinator, node: int, reply: Reply | None) -> None:
    """Store the reply of a node, or record its absence."""
    if reply is None or not reply.release:
        reason = ABSENT if reply is None else reply.refused
        coordinator.refuse(_read_nodes(coordinator).get(node, f"node {node}"), reason)
        return
    receipt = coordinator.receive(reply.release)
    if receipt.why:
        return
    with file_lock(coordinator.folder / NODES):
        party_of_node = _read_nodes(coordinator)
        if receipt.party not in party_of_node.values():
            entries = {str(number): name for number, name in party_of_node.items()} | {str(node): receipt.party}
            write_whole(coordinator.folder / NODES, json.dumps(entries).encode())


def _read_nodes(coordinator: Coordinator) -> dict[int, str]:
    """The party of each node, from the first replies."""
    path = coordinator.folder / NODES
    if not path.is_file():
        return {}
    entries = parse_json(read_text(path), str(path))
    if not isinstance(entries, dict) or not all(_is_node(node) and isinstance(entries[node], str) for node in entries):
        raise DpvalueError(f"{path} has been damaged: it must name the party of each node")
    return {int(node): name for node, name in entries.items()}


def _is_node(text: str) -> bool:
    """Whether a text is the number of a node: in Flower an unsigned 64-bit integer."""
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64
