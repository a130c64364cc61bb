"""Tasks: coarse pieces of pure public work, several at once, with results in the order of their payloads.

A payload is public by construction: it is made of releases and public things. `require_public` looks through it all the
same, and refuses one that holds private rows, a party or a source of noise: types with `stays_in_process`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from dpvalue.errors import DpvalueError

Payload = TypeVar("Payload")
Output = TypeVar("Output")

COARSE_SECONDS = 0.002
"""Where the first task takes less than this, later ones run in the calling thread."""
_AHEAD = 2  # payloads per worker that wait
_ATOMS = (str, bytes, int, float, complex, bool, type(None), np.generic, Tensor, type)
_INSIDE = threading.local()


def inside_task() -> bool:
    """Return whether this thread runs a task: work inside a task is not divided further."""
    return getattr(_INSIDE, "depth", 0) > 0


@contextmanager
def _task() -> Iterator[None]:
    _INSIDE.depth = getattr(_INSIDE, "depth", 0) + 1
    try:
        yield
    finally:
        _INSIDE.depth -= 1


def run_task(function: Callable[[Payload], Output], payload: Payload) -> Output:
    """Return function(payload), run as a task."""
    with _task():
        return function(payload)


def run_tasks(
    executor: Executor, workers: int, function: Callable[[Payload], Output], payloads: Iterable[Payload]
) -> Iterator[Output]:
    """Yield function(payload) of each payload, in order; only a few payloads exist at a time.

    This thread runs the first payload while the executor has the next ones. If it was tiny, this thread runs the rest.
    """
    waiting = checked(payloads)
    first = list(islice(waiting, 1))
    pending = deque(executor.submit(run_task, function, payload) for payload in islice(waiting, _AHEAD * workers))
    try:
        began = time.perf_counter()
        outputs = [run_task(function, payload) for payload in first]
        is_tiny = time.perf_counter() - began < COARSE_SECONDS
        yield from outputs
        for payload in waiting:
            if is_tiny:
                yield from _finished(pending)
                yield run_task(function, payload)
            else:
                pending.append(executor.submit(run_task, function, payload))
                yield pending.popleft().result()
        yield from _finished(pending)
    finally:
        for future in pending:
            future.cancel()


def _finished(pending: deque[Future[Output]]) -> Iterator[Output]:
    while pending:
        yield pending.popleft().result()


def checked(payloads: Iterable[Payload]) -> Iterator[Payload]:
    """Yield the payloads, each once it was found to be public."""
    known: dict[int, Any] = {}
    for payload in payloads:
        require_public(payload, known)
        yield payload


def require_public(payload: Any, known: dict[int, Any] | None = None) -> None:
    """Raise `DpvalueError` if a payload holds private rows, or what no copy may be made of, at any depth.

    Formal guarantee: containers, attributes and functions' enclosed variables are searched. Arrays and tensors are not:
    they have no type that tells whose numbers they are.

    Args:
        payload: what a task is given.
        known: objects that were searched before, by id. What the payload holds is added, but for arrays and tensors:
            what is known stays in memory, so that no id is reused.
    """
    seen = {} if known is None else known
    left = [payload]
    while left:
        one = left.pop()
        if getattr(type(one), "stays_in_process", False):
            raise DpvalueError(f"a task must not be given private data, got {type(one).__name__} in its payload")
        if isinstance(one, _ATOMS) or (isinstance(one, np.ndarray) and one.dtype != object) or id(one) in seen:
            continue
        if one is not payload:
            seen[id(one)] = one
        left += _parts(one)


def _parts(one: Any) -> list[Any]:
    """What an object holds."""
    if isinstance(one, np.ndarray):
        return one.ravel().tolist()
    if isinstance(one, Mapping):
        return [*one.keys(), *one.values()]
    if isinstance(one, (list, tuple, set, frozenset, deque)):
        return list(one)
    parts = list(getattr(one, "__dict__", {}).values())
    parts += [getattr(one, name) for kind in type(one).__mro__ for name in _slots(kind) if hasattr(one, name)]
    parts += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
    parts += [getattr(one, name) for name in ("__self__", "func", "args", "keywords") if hasattr(one, name)]
    return parts


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
