"""Engines: where computations run, and in which pieces. `Local` uses one machine's threads, memory and GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from dpvalue.display import changed_fields
from dpvalue.engine.tasks import checked, inside_task, run_task, run_tasks
from dpvalue.errors import DpvalueError, require_choice, require_count

Item = TypeVar("Item")
Output = TypeVar("Output")


@runtime_checkable
class Engine(Protocol):
    """The interface of an engine, which runs computations. `dpvalue.Local` implements it.

    The sizes of pieces fix the order of sums, and so the last bits of results. Engines with the same `piece`, on
    machines with the same kernels, give the same bits, in whatever order they process pieces.

    Example:
        >>> import dpvalue as dpv
        >>> isinstance(dpv.Local(), Engine)
        True
    """

    @property
    def torch_device(self) -> torch.device:
        """The device to compute on."""
        ...

    @property
    def torch_dtype(self) -> torch.dtype:
        """The floating-point type to compute in."""
        ...

    def piece(self, numbers: int, least: int = 1) -> int:
        """Return the number of items per piece, at least 1, for items of this many numbers each.

        `least` items are enough for speed: a piece has more only if they fit a cache, fewer only if memory requires it.
        """
        ...

    def map(self, work: Callable[[Item], Output], items: Iterable[Item], share: bool = True) -> list[Output]:
        """Return work(item) of each item, in order; with `share`, threads of this process may run it."""
        ...

    def ahead(self, work: Callable[[Item], Output], items: Iterable[Item]) -> Iterator[Output]:
        """Yield work(item) of each item, in order; one call at a time, possibly ahead of the consumer."""
        ...

    def tasks(self, function: Callable[[Item], Output], payloads: Iterable[Item]) -> Iterator[Output]:
        """Yield function(payload) of each payload, in order; several at once, on any core or machine.

        For coarse work: a draw, a rehearsal, the values of a problem.

        Args:
            function: a pure function: its result depends on the payload alone, so that all engines give the same.
            payloads: releases and public things only (`engine.tasks`).

        Returns:
            an iterator over the results.

        Raises:
            DpvalueError: a payload that holds private rows, a party or a source of noise.

        Example:
            >>> list(dpv.Local(threads=2).tasks(abs, [-1, 2, -3]))
            [1, 2, 3]
        """
        ...

    def threading(self) -> AbstractContextManager[None]:
        """Return the context of all work, in which an engine sets up and restores its threads."""
        ...

    def require_room(self, parties: int, size: int) -> None:
        """Raise `DpvalueError` if a table of this number of parties and parameters does not fit in memory."""
        ...


class Graph:  # pragma: no cover (tests/engine/test_gpu.py, where there is a GPU)
    """A function of tensors of fixed shapes, recorded as a CUDA graph. The next call overwrites the returned tensors.

    Other tensors that `work` uses are read in each call from the memory that they had at recording.
    """

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], *like: Tensor) -> None:
        self._inputs = [tensor.clone() for tensor in like]
        with torch.cuda.device(like[0].device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # the first calls initialise libraries, which a graph must not record
                    work(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = work(*self._inputs)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return work(*tensors)."""
        for static, tensor in zip(self._inputs, tensors, strict=True):
            static.copy_(tensor)
        self._graph.replay()
        return self._output


DTYPES = {"float32": torch.float32, "float64": torch.float64}
_CACHED_NUMBERS = 2**19
_PIECE_BYTES = 2**26
_MOST_NUMBERS = 2**30  # a tensor of 2^31 numbers or more is beyond the indices of many kernels
_MOST_THREADS = 8
_CALLERS = RLock()
TABLES = 5  # tables of n x d numbers in memory: sums of releases (float64), their mean, noise, and scratch


@dataclass(frozen=True)
class Local:
    """The engine of this machine.

    On a CPU, a few threads process pieces of the work, and torch's own threads are off, because they synchronise inside
    every small operation and slow down on a shared machine.

    Args:
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        dtype: "float32" or "float64".
        threads: the number of CPU threads; None: the cores of this process, at most 8.
        memory: bytes for concurrent pieces; None: 1/2 GiB, on a GPU half of the free memory, at most 4 GiB. On a CPU a
            piece takes about 64 MiB, or one party's gradient if that is larger, and `memory` limits the number of
            concurrent pieces, at least 1. Rows, releases and table need further memory.

    On a CPU, releases and values have the same bits for any `threads` and `memory`, because the sizes of pieces depend
    only on numbers of parties, rows and parameters. A callable metric runs with torch's threads and may depend on their
    number. On a GPU `memory` sets the size of pieces and sums have no fixed order, so the last bits may differ.

    Example:
        >>> Local(device="cpu", dtype="float64").torch_dtype
        torch.float64
    """

    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, DTYPES)
        for name in ("threads", "memory"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        try:
            kind = torch.device("cpu" if self.device == "auto" else self.device).type
        except (RuntimeError, TypeError):
            kind = ""
        if kind not in ("cpu", "cuda"):
            raise DpvalueError(f"device must be one of auto, cpu, cuda, cuda:N; got {self.device!r}")
        if kind == "cuda" and not torch.cuda.is_available():
            raise DpvalueError(f"device must be available here, got {self.device!r} without a usable GPU")

    def __repr__(self) -> str:
        return changed_fields(self, "device", "dtype")

    @property
    def torch_device(self) -> torch.device:
        """The device to compute on."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return torch.device(self.device)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The floating-point type to compute in."""
        return DTYPES[self.dtype]

    @property
    def workers(self) -> int:
        """The number of threads for batches; 1 on a GPU."""
        if self.torch_device.type == "cuda":
            return 1
        allowed = (2**29 if self.memory is None else self.memory) // _PIECE_BYTES
        return max(1, min(self.threads or min(usable_cores(), _MOST_THREADS), allowed))

    def piece(self, numbers: int, least: int = 1) -> int:
        """Return the number of items per piece: on a CPU as many as fit the cache, or `least`; on a GPU the memory."""
        if self.torch_device.type == "cuda":
            memory = self.memory or min(2**32, torch.cuda.mem_get_info(self.torch_device)[0] // 2)
            return max(1, min(memory // self.torch_dtype.itemsize, _MOST_NUMBERS) // numbers)
        fits = _PIECE_BYTES // self.torch_dtype.itemsize // numbers
        return max(1, min(fits, max(least, _CACHED_NUMBERS // numbers)))

    def free_bytes(self) -> int | None:
        """Return the free memory of the device in bytes; None if it is unknown."""
        if self.torch_device.type == "cuda":
            return torch.cuda.mem_get_info(self.torch_device)[0]
        try:
            lines = Path("/proc/meminfo").read_text().splitlines()
        except OSError:  # not Linux
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)

    def require_room(self, parties: int, size: int) -> None:
        """Raise if the table and its sums do not fit in memory; only batches adapt to the memory.

        The error does not state the free memory, which depends on private rows in this process.
        """
        needed, free = TABLES * parties * size * self.torch_dtype.itemsize, self.free_bytes()
        if free is not None and needed > free:
            raise DpvalueError(
                f"{parties} parties x {size} parameters in {self.dtype} need about {needed / 1e9:.3g} GB for the table "
                f"and the sums it is made from, more than is free on {self.torch_device}: "
                "use a model with fewer parameters, fewer parties (groups=), or float32"
            )

    def map(self, work: Callable[[Item], Output], items: Iterable[Item], share: bool = True) -> list[Output]:
        """Return work(item) of each item, in order.

        On a CPU with `share`, several threads run it; without, the items run in sequence, each with torch's threads.
        """
        work_items = list(items)
        if inside_task() and not share:
            with _CALLERS:  # a caller's function runs in one thread at a time
                return [work(item) for item in work_items]
        if self.workers == 1 or inside_task() or (share and len(work_items) < 2):
            return [work(item) for item in work_items]
        if share:
            return list(_pool("batches", self.workers, os.getpid()).map(work, work_items))
        with _torch_threads(self.workers):
            return [work(item) for item in work_items]

    def ahead(self, work: Callable[[Item], Output], items: Iterable[Item]) -> Iterator[Output]:
        """Yield work(item) of each item, in order; on a CPU a thread computes the next item in advance."""
        if self.workers == 1 or inside_task():
            yield from map(work, items)
            return
        one_by_one = _pool("ahead", 1, os.getpid())
        pending: Future[Output] | None = None
        for item in items:
            next_result = one_by_one.submit(work, item)
            if pending is not None:
                yield pending.result()
            pending = next_result
        if pending is not None:
            yield pending.result()

    def tasks(self, function: Callable[[Item], Output], payloads: Iterable[Item]) -> Iterator[Output]:
        """Yield function(payload) of each payload, in order; on a CPU several threads run them.

        Many tiny tasks run in the calling thread, and so do all on a GPU and those that a task makes. Torch has one
        thread in each task, so that the bits do not depend on who runs it.

        Args:
            function: a pure function.
            payloads: public things; few exist at a time.

        Returns:
            an iterator over the results.

        Raises:
            DpvalueError: a payload that holds private rows, a party or a source of noise.

        Example:
            >>> list(dpv.Local().tasks(abs, [-1, 2, -3]))
            [1, 2, 3]
        """
        with self.threading():
            if self.workers == 1 or inside_task():
                yield from (run_task(function, payload) for payload in checked(payloads))
            else:
                yield from run_tasks(_pool("tasks", self.workers, os.getpid()), self.workers, function, payloads)

    @contextmanager
    def threading(self) -> Iterator[None]:
        """Set torch to one thread; restore its threads afterwards."""
        with _torch_threads(1):
            yield


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=8)
def _pool(purpose: str, workers: int, process: int) -> ThreadPoolExecutor:
    """Return the cached pool of a purpose; with `process` in the key, a forked child builds its own."""
    return ThreadPoolExecutor(workers, thread_name_prefix=f"dpvalue-{purpose}")
