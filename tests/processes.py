"""Work in several processes at once, for tests: forked, started together, and what each did is told."""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what `work` returned in each of so many processes, all started together; an error is returned as text."""
    start, begin = os.pipe()
    children = []
    for number in range(count):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(begin)
                os.read(start, 1)  # returns when the parent closes its end
                try:
                    said = work(number)
                except Exception as error:
                    said = f"{type(error).__name__}: {error}"
                os.write(writer, json.dumps(said).encode())
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writer)
        children.append((child, reader))
    os.close(start)
    os.close(begin)
    found = []
    for child, reader in children:
        with os.fdopen(reader, "rb") as pipe:
            content = pipe.read()
        os.waitpid(child, 0)
        found.append(json.loads(content))
    return found


def begun(work: Callable[[], object], sign: Path) -> int:
    """Start work in a process of its own; return its number once it has made the file `sign`."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    end = time.monotonic() + 60
    while not sign.exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    return child


def killed(child: int) -> None:
    """Kill a process, as kill -9 does."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
