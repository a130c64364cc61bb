"""The coordinator's side: asks nodes and waits for what they answer, until a deadline of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from dpvalue.flower.pipe import Answered, Asked
from dpvalue.flower.records import KIND, answered_of, record_of

_POLL = 0.5  # seconds


class GridNodes:
    """The SuperNodes of a run, through the grid of its ServerApp."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now, in order."""
        return sorted(self._grid.get_node_ids())

    def exchange(self, asked: Mapping[int, Asked], deadline: float) -> Iterator[tuple[int, Answered | None]]:
        """Ask nodes, and yield what each answers; see `Nodes`."""
        end = time.monotonic() + deadline
        # One at a time: together they may be too large for a call. Who comes late finds the message gone.
        waiting = {
            name: node
            for node, question in asked.items()
            for name in self._grid.push_messages([Message(record_of(question), node, KIND, ttl=deadline)])
            if name
        }
        for node in sorted(set(asked) - set(waiting.values())):
            yield node, None
        while waiting and time.monotonic() < end:
            for reply in self._grid.pull_messages(list(waiting)):
                # An error comes from the SuperLink, not from the node: only this tells whose it is.
                node_of_reply = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node_of_reply is not None:
                    yield node_of_reply, answered_of(reply)
            if waiting:
                time.sleep(min(_POLL, max(0.0, end - time.monotonic())))
        for node in sorted(waiting.values()):
            yield node, None
