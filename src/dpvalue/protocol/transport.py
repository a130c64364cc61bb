"""The transport between a coordinator and party agents: opaque byte strings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

_log = logging.getLogger("dpvalue")

FAILED = "the party could not answer"
"""The fixed refusal for every error at a party."""

MALFORMED = "the party's answer has a wrong shape"
"""The refusal that the coordinator's side substitutes for a malformed reply."""

LONGEST_REFUSAL = 500


@dataclass(frozen=True)
class Question:
    """A message of a coordinator.

    Attributes:
        job: the job's bytes.
        request: the request's bytes; empty in the first round, whose request follows from the job.
    """

    job: bytes
    request: bytes


@dataclass(frozen=True)
class Reply:
    """A reply of a party: either a release or a refusal.

    Attributes:
        release: the release's bytes; empty for a refusal.
        refused: the reason of a refusal, one of a fixed list of texts; empty for a release.
    """

    release: bytes
    refused: str

    def __post_init__(self) -> None:
        if type(self.release) is not bytes or type(self.refused) is not str:
            raise TypeError("release must be bytes and refused a string")
        if bool(self.release) == bool(self.refused):
            raise ValueError("exactly one of release and refused must be given")
        if len(self.refused) > LONGEST_REFUSAL or not self.refused.isprintable():
            raise ValueError(f"refused must be at most {LONGEST_REFUSAL} printable characters")


Respond = Callable[[Question], Reply]
"""The party's side: a function from questions to replies."""


class Nodes(Protocol):
    """The nodes of parties, by number. Over Flower: `dpvalue.flower.app.GridNodes`."""

    def nodes(self) -> list[int]:
        """Return the connected nodes, in order."""
        ...

    def exchange(self, questions: Mapping[int, Question], deadline: float) -> Iterator[tuple[int, Reply | None]]:
        """Send questions to nodes and yield each node's reply as it arrives, once per node.

        Args:
            questions: the question to each node.
            deadline: seconds from now; the reply of a node without an answer by then, or with an error of Flower's, is
                None.
        """
        ...


def wait_for_nodes(nodes: Nodes, count: int, patience: float) -> list[int]:
    """Wait until `count` nodes are connected, at most `patience` seconds; return the connected nodes.

    A SuperNode that was killed needs a minute to reconnect.
    """
    end = time.monotonic() + patience
    while len(connected := nodes.nodes()) < count and time.monotonic() < end:
        time.sleep(0.5)
    return connected


def answer(respond: Respond, question: Question | None) -> Reply:
    """Return the party's reply; the fixed refusal `FAILED` for an exception or a malformed question.

    Formal guarantee: no part of an exception leaves. Its text, which may quote a row, goes to the party's own log at
    level debug.
    """
    if question is not None:
        try:
            reply = respond(question)
            if type(reply) is Reply:
                return reply
            _log.error("the party's answer is not an Answered")
        except (Exception, SystemExit) as error:
            _log.error("the party could not answer: %s", type(error).__name__)
            _log.debug("why the party could not answer", exc_info=error)
    return Reply(b"", FAILED)
