"""An engine whose tasks run in processes of one thread each, for work that holds Python's lock."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from dpvalue.engine.engines import Local
from dpvalue.engine.tasks import checked, inside_task, run_task

Payload = TypeVar("Payload")
Output = TypeVar("Output")


@dataclass(frozen=True)
class Processes(Local):
    """A `Local` engine with processes for tasks.

    Args:
        processes: how many.
        tasks_per_process: after so many a process is replaced, which bounds its memory.
    """

    processes: int = 2
    tasks_per_process: int = 100

    def tasks(self, function: Callable[[Payload], Output], payloads: Iterable[Payload]) -> Iterator[Output]:
        """Yield function(payload) of each payload, in order; function and payloads are pickled."""
        waiting = list(checked(payloads))
        if len(waiting) < 2 or inside_task():
            yield from (run_task(function, payload) for payload in waiting)
            return
        os.environ["OMP_NUM_THREADS"] = "1"  # of libraries that a process imports
        with multiprocessing.get_context("spawn").Pool(self.processes, maxtasksperchild=self.tasks_per_process) as pool:
            yield from pool.imap(partial(_in_one_thread, function), waiting)
            pool.close()
            pool.join()


def _in_one_thread(function: Callable[[Payload], Output], payload: Payload) -> Output:
    torch.set_num_threads(1)
    return run_task(function, payload)
