"""Telling how far a run is: a bar on a terminal, a callable of the caller's, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Takes the stage, how much of it is done, and how much there is at most. Tells nothing of private data."""


def silent(stage: str, done: int, total: int) -> None:
    """Report nothing."""


@contextmanager
def reporting(progress: bool | Progress) -> Iterator[Progress]:
    """Yield a function to report with: `progress` itself, a bar on a terminal for True, silence for False."""
    if callable(progress):
        yield progress
    elif progress and sys.stderr.isatty():
        with _bars() as tell:
            yield tell
    else:
        yield silent


@contextmanager
def _bars() -> Iterator[Progress]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
    except ModuleNotFoundError:  # rich is not part of the core
        yield silent
        return
    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield tell
