"""The party's own process: takes tasks from the party's SuperNode and answers them with installed code only.

Start the SuperNode with `--isolation process`, so that it waits for an agent, and do not start `flower-superexec` or
`flwr-clientapp` beside it: those run the coordinator's code.

    flower-supernode --isolation process --host 127.0.0.1 --port 9094 --superlink ... --auth-supernode-private-key ...

    serve(agent.respond, Node("127.0.0.1:9094"), tick=1.0, stop=lambda: False)
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import TypeVar

from dpvalue.errors import DpvalueError
from dpvalue.flower.runtime import Node, NodeTask, Runtime, Unreachable
from dpvalue.protocol.transport import Respond, answer

_log = logging.getLogger("dpvalue")

Result = TypeVar("Result")

_POLL = 0.25  # seconds between questions for a task
_LONGEST = 20.0  # seconds between tries to reach the SuperNode


def serve(respond: Respond, node: Node, *, tick: float, stop: Callable[[], bool]) -> None:
    """Answer the tasks of a SuperNode until `stop` returns True.

    Formal guarantee: only the replies of `respond`, or one fixed text, leave. A reply leaves a whole number of ticks
    after its task was taken, so its time reveals at most how many ticks were needed: choose a tick that is longer than
    an answer takes. No code of the coordinator is installed, unpacked or imported.

    Connections to the SuperNode are retried. If the SuperNode was restarted and has lost the task, the reply is dropped
    and the agent waits for the next task. `respond` must return the same bytes for the same question, which may be
    repeated.

    Args:
        respond: the party's side.
        node: the party's own SuperNode.
        tick: seconds.
        stop: called between tasks, several times a second; a task that has begun is finished first.
    """
    if not (math.isfinite(tick) and tick > 0):
        raise DpvalueError(f"tick must be a positive number of seconds, got {tick}")
    failures = 0
    with Runtime(node) as runtime:
        while not stop():
            try:
                task = runtime.take()
            except Exception as error:  # no error of the SuperNode may end the agent
                _log.warning("no SuperNode at %s (%s); trying again", node.address, type(error).__name__)
                _pause(min(0.5 * 2**failures, _LONGEST), stop)
                failures = min(failures + 1, 10)
                continue
            failures = 0
            if task is None:
                _pause(_POLL, stop)
            else:
                _answer(task, respond, tick, stop)


def _answer(task: NodeTask, respond: Respond, tick: float, stop: Callable[[], bool]) -> None:
    """Answer one task at a tick; if the SuperNode has lost the task, drop the reply."""
    start = time.monotonic()
    with task.heartbeat():
        try:
            reply = answer(respond, _retry(task.question, stop))
            time.sleep(until_tick(time.monotonic() - start, tick))
            _retry(lambda: task.reply(reply), stop)
        except Exception as error:
            _log.warning("a task was lost with its SuperNode or its run (%s)", type(error).__name__)
        task.forget()


def _retry(call: Callable[[], Result], stop: Callable[[], bool]) -> Result:
    """The result of a call, which is retried while the SuperNode is unreachable; other errors raise."""
    for pause in chain((0.5, 1.0, 2.0, 5.0, 10.0), repeat(_LONGEST)):
        try:
            return call()
        except Unreachable:
            if stop():
                raise
            _pause(pause, stop)
    raise AssertionError  # there is no last pause


def until_tick(elapsed: float, tick: float) -> float:
    """Return the seconds from now to the next tick, where `elapsed` seconds have passed since the first; never 0.

    Examples:
        >>> until_tick(0.25, 1.0), until_tick(1.0, 1.0), until_tick(2.5, 1.0)
        (0.75, 1.0, 0.5)
    """
    return (math.floor(elapsed / tick) + 1) * tick - elapsed


def _pause(seconds: float, stop: Callable[[], bool]) -> None:
    """Wait, or return early when `stop` returns True."""
    end = time.monotonic() + seconds
    while not stop() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.25))
