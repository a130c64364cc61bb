"""A party and a coordinator that know nothing of data values: what the transport's tests send through it.

As a script it is a party's agent: `python flower_toys.py NAME PORT FOLDER [SECRET]`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpvalue.protocol.transport import Nodes, Question, Reply, Respond, wait_for_nodes
from dpvalue.storage import write_whole

ROW = "patient 17 has label 1"
TICK = 0.5


def party(name: str, folder: Path) -> Respond:
    """A party that reverses what it is asked and adds its name; in its folder it counts how often it was asked."""

    def respond(asked: Question) -> Reply:
        with (folder / f"{name}.calls").open("a") as calls:
            calls.write(f"{asked.job!r}\n")
        if asked.job == b"raise":
            raise ValueError(ROW)
        if asked.job == b"exit":
            sys.exit(ROW)
        if asked.job == b"refuse":
            return Reply(b"", "the budget does not allow it")
        while (folder / f"hold {asked.job.decode()}").exists():  # so that something can be killed while a round is open
            time.sleep(0.1)
        return Reply(asked.job[::-1] + asked.request[::-1] + name.encode(), "")

    return respond


def collect(nodes: Nodes, config: Mapping[str, Any]) -> None:
    """A coordinator: asks everybody who has not answered yet, and keeps every answer in a file as it comes."""
    folder, state_file = Path(config["folder"]), Path(config["folder"]) / f"{config['study']}.json"
    state: dict[str, str] = json.loads(state_file.read_text()) if state_file.exists() else {}
    left = [node for node in wait_for_nodes(nodes, config["parties"], config["patience"]) if str(node) not in state]
    (folder / "asked").write_text(json.dumps(left))
    question = Question(config["job"].encode(), bytes(range(256)))
    for node, answered in nodes.exchange(dict.fromkeys(left, question), config["deadline"]):
        if answered is not None:
            state[str(node)] = answered.release.hex() or answered.refused
            write_whole(state_file, json.dumps(state).encode())
    state_file.with_suffix(".over").write_text("")


def ask_nonsense(nodes: Nodes, config: Mapping[str, Any]) -> None:
    """A coordinator that sends what is no question, past the library: every kind of message it can think of."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

    grid = nodes._grid  # type: ignore[attr-defined]
    fields: dict[str, Any] = {"job": b"hello", "request": b""}
    kinds = [
        ("query.release", RecordDict()),
        ("query.release", RecordDict({"dpvalue": ConfigRecord({"job": b"hello"})})),
        ("query.release", RecordDict({"dpvalue": ConfigRecord({**fields, "code": "import os"})})),
        ("query.release", RecordDict({"dpvalue": ConfigRecord({**fields, "job": "text"})})),
        ("query.release", RecordDict({"dpvalue": MetricRecord({"job": 1, "request": 2})})),
        ("query.release", RecordDict({"dpvalue": ArrayRecord({"job": Array(np.zeros(3))})})),
        ("query.release", RecordDict({"dpvalue": ConfigRecord(fields), "more": ConfigRecord(fields)})),
        ("query", RecordDict({"dpvalue": ConfigRecord(fields)})),
        ("train", RecordDict({"dpvalue": ConfigRecord(fields)})),
    ]
    everybody = nodes.nodes()
    messages = [
        Message(content, everybody[number % len(everybody)], kind, ttl=60)
        for number, (kind, content) in enumerate(kinds)
    ]
    waiting = {name for message in messages for name in grid.push_messages([message])}
    said: list[str] = []
    end = time.monotonic() + config["deadline"]
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            said.append(
                repr(reply.error) if reply.has_error() else repr({k: dict(v) for k, v in reply.content.items()})
            )
        time.sleep(0.2)
    found = json.dumps({"asked": len(messages), "said": said})
    write_whole(Path(config["folder"]) / "nonsense.json", found.encode())


if __name__ == "__main__":
    from dpvalue.flower.runtime import Node
    from dpvalue.flower.serve import serve

    name, port, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    secret = Path(sys.argv[4]).read_bytes() if len(sys.argv) > 4 else None
    node = Node(f"127.0.0.1:{port}", secret=secret, memory=folder / "task")
    serve(party(name, folder), node, tick=TICK, stop=lambda: False)
