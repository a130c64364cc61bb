"""Bars with names and intervals, a line of the page each: they wrap and shrink as text does, on a phone too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpvalue.printable import safe
from dpvalue.report.charts import LARGEST

_WIDE = 1000.0


@dataclass(frozen=True)
class Bar:
    """A bar from zero to a value, with its interval and words beside it; `style` is a class of the page's style."""

    name: str
    value: float
    low: float
    high: float
    words: str
    style: str


def bars(name: str, title: str, drawn: Sequence[Bar]) -> str:
    """Return bars as a list; `name` is the id of its element, `title` is read aloud. Zero is at one place in all."""
    ends = np.array([0.0] + [end for bar in drawn for end in (bar.value, bar.low, bar.high)])
    known = ends[np.abs(ends) < LARGEST]
    low, high = float(known.min()), float(known.max())
    scale = _WIDE / ((high - low) or 1.0)
    lines = "".join(f"<li>{_line(bar, low, scale)}</li>" for bar in drawn)
    return f'<ol id="{safe(name)}" class="bars" aria-label="{safe(title)}">{lines}</ol>'


def _line(bar: Bar, low: float, scale: float) -> str:
    def at(number: float) -> float:
        return (number - low) * scale if abs(number) < LARGEST else (0.0 - low) * scale

    start, end = sorted((at(0.0), at(bar.value)))
    left, right = at(bar.low), at(bar.high)
    drawn = (
        f'<rect class="bar {safe(bar.style)}" x="{start:.1f}" y="3" width="{end - start:.1f}" height="12"/>'
        f'<path class="whisker" d="M{left:.1f} 9H{right:.1f}M{left:.1f} 5V13M{right:.1f} 5V13"/>'
        f'<path class="nought" d="M{at(0.0):.1f} 0V18"/>'
    )
    return (
        f'<span class="name" title="{safe(bar.name)}">{safe(bar.name)}</span>'
        f'<svg aria-hidden="true" viewBox="0 0 {_WIDE:.0f} 18" preserveAspectRatio="none">{drawn}</svg>'
        f'<span class="words">{safe(bar.words)}</span>'
    )
