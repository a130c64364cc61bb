"""A study over a network, round by round: ask whoever is there, wait until a deadline, keep what counts, go on.

Nodes have numbers, parties have names: which is which is known from a party's first answer, and kept with the state.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvalue.coordinator.roster import read_roster
from dpvalue.coordinator.state import NODES, OVER, Coordinator
from dpvalue.errors import DpvalueError
from dpvalue.protocol.archive import read_bytes
from dpvalue.protocol.sealing import Key
from dpvalue.protocol.transport import Answered, Asked, Nodes, gathered
from dpvalue.storage import alone, write_whole
from dpvalue.stored import parse_json, read_text

ENTRY = "dpvalue.coordinator.conducting:over_flower"
"""What the ServerApp of a study calls."""

ABSENT = "it did not answer in time"

_log = logging.getLogger("dpvalue")


@dataclass(frozen=True)
class Patience:
    """How long a coordinator waits.

    Attributes:
        parties: how many are expected.
        gather: seconds to wait for so many to be there.
        deadline: seconds to wait for the answers of a round.
    """

    parties: int
    gather: float = 120.0
    deadline: float = 300.0


def conduct(coordinator: Coordinator, nodes: Nodes, patience: Patience) -> int:
    """Ask all rounds that have not been asked, and return how many messages were sent.

    Killed anywhere, it is called again: what was answered is not asked again, and nobody is asked for a round
    differently. Who does not answer in time is absent from the round.
    """
    sent = 0
    there = gathered(nodes, patience.parties, patience.gather)
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
    patience = Patience(int(config["parties"]), float(config["gather"]), float(config["deadline"]))
    sent = conduct(coordinator, nodes, patience)
    write_whole(coordinator.folder / OVER, json.dumps({"messages": sent}).encode())


def _first(coordinator: Coordinator, there: list[int]) -> dict[int, Asked]:
    """The first round: the job alone, to every node that has not answered it."""
    known = _known(coordinator)
    answered = set(coordinator.taking_part)
    return {node: Asked(coordinator.content, b"") for node in there if known.get(node) not in answered}


def _later(coordinator: Coordinator, there: list[int]) -> dict[int, Asked]:
    """A later round: to each party's node what it is asked."""
    known, asked = _known(coordinator), coordinator.asked()
    found = {node: asked[known[node]] for node in there if known.get(node) in asked}
    for name in sorted(set(asked) - {known[node] for node in found}):
        coordinator.refuse(name, ABSENT)
    return {node: Asked(coordinator.content, request) for node, request in found.items()}


def _take(coordinator: Coordinator, node: int, answered: Answered | None) -> None:
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
