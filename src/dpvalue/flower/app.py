"""The ServerApp of a study: installed code, which calls a function of the coordinator's with the study's `Nodes`.

The run's config names it: `coordinator = "package.module:function"`, called as `function(nodes, config)`, where config
is all of the run's config. What it raises makes the run fail, with its text in the coordinator's own log.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from dpvalue.errors import DpvalueError
from dpvalue.flower.coordinate import GridNodes
from dpvalue.flower.pipe import FAILED, Answered, Nodes, Respond, answer
from dpvalue.flower.records import KIND, asked_of, record_of

Coordinator = Callable[[Nodes, Mapping[str, Any]], None]

_ACTION = KIND.partition(".")[2]

app = ServerApp()
refusing = ClientApp()
"""What a party runs that starts Flower's own `flwr-clientapp`, which it should not: it refuses everything."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the coordinator's function."""
    coordinator(str(context.run_config.get("coordinator", "")))(GridNodes(grid), dict(context.run_config))


@refusing.query(_ACTION)
def refuse(message: Message, context: Context) -> Message:
    """Refuse a request."""
    return Message(record_of(Answered(b"", FAILED)), reply_to=message)


def simulated(parties: Sequence[Respond]) -> ClientApp:
    """Return parties for Flower's own simulation engine, on Ray: its n-th node answers as the n-th party.

    Never for parties at home, where it would be the coordinator's code that calls them. `together.Together` simulates
    the same without Ray, much faster. What Ray cannot send to another process cannot be part of a party.

        server = ServerApp()
        server.main()(lambda grid, context: function(GridNodes(grid), config))
        run_simulation(server, simulated(parties), len(parties))
    """
    client = ClientApp()

    @client.query(_ACTION)
    def respond(message: Message, context: Context) -> Message:
        party = parties[int(context.node_config["partition-id"])]
        return Message(record_of(answer(party, asked_of(message))), reply_to=message)

    return client


def coordinator(name: str) -> Coordinator:
    """Return the function of a name like "package.module:function"."""
    module, _, function = name.partition(":")
    if not module or not function:
        raise DpvalueError(f"coordinator must be package.module:function, got {name!r}")
    found: Coordinator = getattr(importlib.import_module(module), function)
    return found
