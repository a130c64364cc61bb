"""What crosses between a coordinator and a party's agent: byte strings, which nothing here looks into."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

_log = logging.getLogger("dpvalue")

FAILED = "the party could not answer"
"""What a coordinator is told whatever went wrong at a party: a text that depends on nothing."""

MALFORMED = "the party's answer has a wrong shape"
"""What stands in place of an answer that is none. The coordinator's side writes it, a party never does."""

LONGEST_REFUSAL = 500


@dataclass(frozen=True)
class Question:
    """What a coordinator sends.

    Attributes:
        job: the job's bytes.
        request: the request's bytes; empty in the first round, where the party makes the request from the job itself.
    """

    job: bytes
    request: bytes


@dataclass(frozen=True)
class Reply:
    """What comes back: a release or a refusal, and never both.

    Attributes:
        release: the release's bytes; empty for a refusal.
        refused: why there is none, one of a fixed list of texts; empty for a release.
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
"""The party's side: what it answers to what is asked."""


class Nodes(Protocol):
    """Whom a coordinator can ask, by number. Over Flower: `dpvalue.flower.app.GridNodes`."""

    def nodes(self) -> list[int]:
        """Return the nodes that are connected now, in order."""
        ...

    def exchange(self, questions: Mapping[int, Question], deadline: float) -> Iterator[tuple[int, Reply | None]]:
        """Ask nodes, and yield what each answers, as answers come; each node that was asked comes once.

        Args:
            questions: the question to each node.
            deadline: seconds from now, after which who has not answered is absent: None. So is a node of whom
                Flower reports an error.
        """
        ...


def wait_for_nodes(nodes: Nodes, count: int, patience: float) -> list[int]:
    """Return the nodes as soon as there are so many, or those that there are after so many seconds.

    A SuperNode that was killed cannot come back before a minute has passed.
    """
    end = time.monotonic() + patience
    while len(connected := nodes.nodes()) < count and time.monotonic() < end:
        time.sleep(0.5)
    return connected


def answer(respond: Respond, question: Question | None) -> Reply:
    """Return what the party answers; `FAILED`, and nothing else, where it raises or where what was asked has no shape.

    Formal guarantee: no part of an exception leaves. Its text, which may hold a row, goes to the party's own log, at
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
