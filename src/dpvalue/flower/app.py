"""The ServerApp of a study, which calls the coordinator's function.

The run's config names the function: `coordinator = "package.module:function"`. It is called as `function(nodes,
config)` with the whole config of the run. An exception makes the run fail; its text is in the coordinator's own log.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dpvalue.errors import DpvalueError
from dpvalue.flower.records import KIND, question_of, record_of, reply_of
from dpvalue.protocol.transport import FAILED, Nodes, Question, Reply, Respond, answer

_POLL = 0.5  # seconds


class GridNodes:
    """The SuperNodes of a run, through the grid of its ServerApp."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now, in order."""
        return sorted(self._grid.get_node_ids())

    def exchange(self, questions: Mapping[int, Question], deadline: float) -> Iterator[tuple[int, Reply | None]]:
        """Send questions to nodes and yield their replies; see `Nodes`."""
        end = time.monotonic() + deadline
        # One message per call, because all together may be too large. A message expires at the deadline.
        waiting = {
            name: node
            for node, question in questions.items()
            for name in self._grid.push_messages([Message(record_of(question), node, KIND, ttl=deadline)])
            if name
        }
        for node in sorted(set(questions) - set(waiting.values())):
            yield node, None
        while waiting and time.monotonic() < end:
            for reply in self._grid.pull_messages(list(waiting)):
                # An error comes from the SuperLink; only the message's id identifies the node.
                node_of_reply = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node_of_reply is not None:
                    yield node_of_reply, reply_of(reply)
            if waiting:
                time.sleep(min(_POLL, max(0.0, end - time.monotonic())))
        for node in sorted(waiting.values()):
            yield node, None


Coordinator = Callable[[Nodes, Mapping[str, Any]], None]

_ACTION = KIND.partition(".")[2]

app = ServerApp()

refusing = ClientApp()
"""The ClientApp for Flower's own `flwr-clientapp`, which parties should not start; it refuses every request."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the coordinator's function."""
    coordinator(str(context.run_config.get("coordinator", "")))(GridNodes(grid), dict(context.run_config))


@refusing.query(_ACTION)
def refuse(message: Message, context: Context) -> Message:
    """Refuse a request."""
    return Message(record_of(Reply(b"", FAILED)), reply_to=message)


def simulation_app(parties: Sequence[Respond]) -> ClientApp:
    """Return a ClientApp for Flower's simulation engine on Ray, whose n-th node answers as the n-th party.

    It is not for remote parties, which the coordinator's code would then call. Parties must be picklable for Ray.

        server = ServerApp()
        server.main()(lambda grid, context: function(GridNodes(grid), config))
        run_simulation(server, simulation_app(parties), len(parties))
    """
    client = ClientApp()

    @client.query(_ACTION)
    def respond(message: Message, context: Context) -> Message:
        party = parties[int(context.node_config["partition-id"])]
        return Message(record_of(answer(party, question_of(message))), reply_to=message)

    return client


def coordinator(name: str) -> Coordinator:
    """Return the function with a name like "package.module:function"."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise DpvalueError(f"coordinator must be package.module:function, got {name!r}")
    function_found: Coordinator = getattr(importlib.import_module(module), function)
    return function_found
