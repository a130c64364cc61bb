"""What an engine is: where work runs, and in which pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar, runtime_checkable

import torch

Item = TypeVar("Item")
Done = TypeVar("Done")


@runtime_checkable
class Engine(Protocol):
    """Runs the work of the library; `dpvalue.Local` is one, and any object with these members is another.

    Pieces decide in which order numbers are added up, and so the last bits of results. Engines with the same `piece`,
    on machines with the same kernels, give the same bits, however they do the pieces.

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
        """Return how many items of so many numbers go in one piece, at least 1.

        `least` are enough to be fast: more only if they fit a cache, fewer only if those do not fit the memory.
        """
        ...

    def map(self, work: Callable[[Item], Done], items: Iterable[Item], share: bool = True) -> list[Done]:
        """Return work(item) of each item, in order; in any threads of this process if they may `share` the work."""
        ...

    def ahead(self, work: Callable[[Item], Done], items: Iterable[Item]) -> Iterator[Done]:
        """Yield work(item) of each item, in order, each called after the one before it is done; maybe ahead of time."""
        ...

    def threading(self) -> AbstractContextManager[None]:
        """Return a context in which all work is done, for what an engine sets up, and takes back at the end."""
        ...

    def require_room(self, parties: int, size: int) -> None:
        """Raise `DpvalueError` if a table of so many parties and parameters cannot fit."""
        ...
