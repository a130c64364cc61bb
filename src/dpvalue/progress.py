"""Telling how far a run is: a bar for each stage on a terminal, a callable of the caller's, or nothing.

The time that is left of a stage is what it has taken so far, times what is left, divided by what is done. So a stage
says first that nothing is done of it, and counts in steps that take about as long each.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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


@dataclass
class _Stage:
    """How far a stage is: when it began, when it was last heard of, what was done by then, and what there is."""

    began: float
    told_at: float
    first: int
    done: int
    total: int


class TimeLeft:
    """How long each stage still takes, by what it has taken.

    Args:
        clock: tells the time, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stages: dict[str, _Stage] = {}

    def tell(self, stage: str, done: int, total: int) -> None:
        """Take note of how far a stage is; one that begins again is a new one."""
        now = self._clock()
        stage_state = self._stages.get(stage)
        if stage_state is None or done < stage_state.done:
            self._stages[stage] = _Stage(now, now, done, done, total)
        else:
            stage_state.told_at, stage_state.done, stage_state.total = now, done, total

    def left(self, stage: str) -> float | None:
        """Return the seconds that are left of a stage; None while there is nothing to tell it by."""
        stage_state = self._stages.get(stage)
        if stage_state is None or stage_state.done == stage_state.first:
            return 0.0 if stage_state is not None and stage_state.done >= stage_state.total else None
        whole = (
            (stage_state.told_at - stage_state.began)
            * (stage_state.total - stage_state.done)
            / (stage_state.done - stage_state.first)
        )
        return max(0.0, whole - (self._clock() - stage_state.told_at))


def in_words(seconds: float | None) -> str:
    """Return a time as a bar shows it.

    >>> in_words(None), in_words(7.4), in_words(192.0), in_words(7300.0)
    ('', '7 s left', '3 min 12 s left', '2 h 1 min left')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min left"
    return f"{minutes} min {rest} s left" if minutes else f"{rest} s left"


@contextmanager
def _bars() -> Iterator[Progress]:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TaskID, TextColumn
        from rich.progress import Progress as Bars
        from rich.text import Text
    except ModuleNotFoundError:  # rich is not part of the core
        yield silent
        return
    left = TimeLeft()

    class Left(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(in_words(left.left(task.description)))

    columns = (TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), Left())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(stage: str, done: int, total: int) -> None:
            left.tell(stage, done, total)
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield tell
