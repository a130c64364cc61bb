"""Simulation: all parties in this process, asked through the same functions as over Flower, but without it.

Flower's own simulation engine starts a Ray cluster, in which every party is a ClientApp (`app.simulated`). Nothing of
what is simulated here, what is asked and answered, is different there; it takes a minute where this takes none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from dpvalue.protocol.transport import Answered, Asked, Respond, answer


class Together:
    """Parties in this process, one after the other: `Nodes` for a coordinator.

    Args:
        parties: what answers for each node. Whoever raises answers with the fixed text, as over Flower.
    """

    def __init__(self, parties: Mapping[int, Respond]) -> None:
        self._parties = dict(parties)

    def nodes(self) -> list[int]:
        """Return the nodes, in order."""
        return sorted(self._parties)

    def exchange(self, asked: Mapping[int, Asked], deadline: float) -> Iterator[tuple[int, Answered | None]]:
        """Ask nodes, and yield what each answers; who is not there, or is done only after the deadline, is absent."""
        end = time.monotonic() + deadline
        for node in sorted(asked):
            respond = self._parties.get(node)
            if respond is None or time.monotonic() >= end:
                yield node, None
                continue
            answered = answer(respond, asked[node])
            yield node, answered if time.monotonic() < end else None
