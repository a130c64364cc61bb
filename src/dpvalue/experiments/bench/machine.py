"""Facts of the machine, its peak memory, its clock, and variables of its environment for a while."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch

from dpvalue.engine.engines import usable_cores

Made = TypeVar("Made")


@dataclass(frozen=True)
class Measured(Generic[Made]):
    """What a piece of work made, how long it took, and by how many bytes it raised the memory in use at its peak.

    `cpu_seconds` are those of all cores together: on a machine that is shared, they say more than the clock.
    """

    made: Made
    seconds: float
    peak_bytes: int
    cpu_seconds: float


def measure(work: Callable[[], Made], gpu: bool) -> Measured[Made]:
    """Run `work` once and measure it."""
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
        before = _resident("VmRSS")
    begin, cores = time.perf_counter(), time.process_time()
    made = work()
    if gpu:
        torch.cuda.synchronize()
    seconds, cores = time.perf_counter() - begin, time.process_time() - cores
    peak = torch.cuda.max_memory_allocated() if gpu else _resident("VmHWM")
    return Measured(made, seconds, max(0, peak - before), cores)


def peak_bytes() -> int:
    """Return the most memory that this process has had so far."""
    return _resident("VmHWM")


def _resident(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def facts() -> dict[str, str | int]:
    """Return what a reader needs to judge the numbers: processor, cores, device, versions."""
    text = Path("/proc/cpuinfo").read_text()
    processor = next(
        (line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")), "unknown"
    )
    found: dict[str, str | int] = {
        "processor": processor,
        "cores": usable_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return found


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables of the environment in a context, and restore them after."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, old in before.items():
            os.environ.pop(name)
            if old is not None:
                os.environ[name] = old
