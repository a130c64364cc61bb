"""One machine: which device and precision to use, how many threads, how much memory a batch may take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from dpvalue.errors import DpvalueError, require_choice, require_count

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Local:
    """Runs on this machine.

    Args:
        device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N".
        dtype: "float32" or "float64".
        threads: CPU threads for tensor operations while a run lasts; tiny operations crawl with several threads on a
            shared machine.
        memory: bytes that one batch of models may take; smaller batches give the same values.

    On a CPU the same settings give the same bits; on a GPU, sums of releases may differ in their last bits.
    """

    device: str = "auto"
    dtype: str = "float32"
    threads: int = 1
    memory: int = 2**29

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, DTYPES)
        require_count("threads", self.threads)
        require_count("memory", self.memory)
        try:
            kind = torch.device("cpu" if self.device == "auto" else self.device).type
        except (RuntimeError, TypeError):
            kind = ""
        if kind not in ("cpu", "cuda"):
            raise DpvalueError(f"device must be one of auto, cpu, cuda, cuda:N; got {self.device!r}")
        if kind == "cuda" and not torch.cuda.is_available():
            raise DpvalueError(f"device must be available here, got {self.device!r} without a usable GPU")

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

    def batch(self, numbers: int) -> int:
        """Return how many models fit a batch when each needs this many numbers."""
        return max(1, self.memory // (numbers * self.torch_dtype.itemsize))

    @contextmanager
    def threading(self) -> Iterator[None]:
        """Set the number of threads, and restore it after."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)
