"""The party's own process: takes tasks from the party's SuperNode and answers them with installed code only.

Start the SuperNode with `--isolation process`, so that it waits for somebody to take its tasks, and do not start
`flower-superexec` or `flwr-clientapp` beside it: those run what the coordinator sends.

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
from dpvalue.flower.runtime import Node, Runtime, Task, Unreachable
from dpvalue.protocol.transport import Respond, answer

_log = logging.getLogger("dpvalue")

Result = TypeVar("Result")

_POLL = 0.25  # seconds between questions for a task
_LONGEST = 20.0  # seconds between tries to reach the SuperNode


def serve(respond: Respond, node: Node, *, tick: float, stop: Callable[[], bool]) -> None:
    """Answer what the SuperNode hands out, until told to stop.

    Formal guarantee: what leaves is what `respond` returns, or one fixed text. It leaves a whole number of ticks after
    the task was taken, so that its time says of the party's rows at most how many ticks were needed: choose a tick that
    is longer than an answer takes. No code of the coordinator's is installed, unpacked or imported.

    A SuperNode that is not there is tried again and again. One that has been restarted, and no longer knows the task,
    ends nothing: the answer is dropped, and the next task waited for. `respond` must give the same bytes to the same
    question, as it may be asked again.

    Args:
        respond: the party's side.
        node: the party's own SuperNode.
        tick: seconds.
        stop: asked between tasks, several times a second; a task that was taken is finished first.
    """
    if not (math.isfinite(tick) and tick > 0):
        raise DpvalueError(f"tick must be a positive number of seconds, got {tick}")
    failures = 0
    with Runtime(node) as runtime:
        while not stop():
            try:
                task = runtime.take()
            except Exception as error:  # whatever a SuperNode does must not end the agent
                _log.warning("no SuperNode at %s (%s); trying again", node.address, type(error).__name__)
                _pause(min(0.5 * 2**failures, _LONGEST), stop)
                failures = min(failures + 1, 10)
                continue
            failures = 0
            if task is None:
                _pause(_POLL, stop)
            else:
                _answer(task, respond, tick, stop)


def _answer(task: Task, respond: Respond, tick: float, stop: Callable[[], bool]) -> None:
    """Answer one task at a tick; a SuperNode that no longer knows it loses the answer, not the agent."""
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
    """What a call gives, once the SuperNode can be reached; raises what that says against it."""
    for pause in chain((0.5, 1.0, 2.0, 5.0, 10.0), repeat(_LONGEST)):
        try:
            return call()
        except Unreachable:
            if stop():
                raise
            _pause(pause, stop)
    raise AssertionError  # there is no last pause


def until_tick(elapsed: float, tick: float) -> float:
    """Return the seconds from now to the next tick, where `passed` seconds have passed since the first; never 0.

    Examples:
        >>> until_tick(0.25, 1.0), until_tick(1.0, 1.0), until_tick(2.5, 1.0)
        (0.75, 1.0, 0.5)
    """
    return (math.floor(elapsed / tick) + 1) * tick - elapsed


def _pause(seconds: float, stop: Callable[[], bool]) -> None:
    """Wait, but not once told to stop."""
    end = time.monotonic() + seconds
    while not stop() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.25))
