"""What the page shows: charts as SVG and bars as HTML, in light and dark, and the table of parties with its tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.display import safe
from dpvalue.names import escaped
from dpvalue.report.glossary import tooltip

if TYPE_CHECKING:
    import pandas

_WIDTH, _HEIGHT = 460, 270

_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 12, 12, 44

LARGEST = 1e150  # what is beyond it, or not finite, has no place on an axis


@dataclass(frozen=True, eq=False)
class Line:
    """A line of a chart; `style` is a class of the page's style. Bands are (class, lower, upper)."""

    label: str
    style: str
    x: Floats
    y: Floats
    bands: Sequence[tuple[str, Floats, Floats]] = field(default_factory=tuple)


def line_chart(name: str, title: str, lines: Sequence[Line], x_label: str, y_label: str) -> str:
    """Return a chart of lines with their bands; `name` is the id of its element, `title` is read aloud."""
    xs = np.concatenate([line.x for line in lines])
    edges = [line.y for line in lines] + [edge for line in lines for _, *band in line.bands for edge in band]
    frame = _Frame.around(xs, np.concatenate(edges))
    parts = [frame.axes(x_label, y_label)]
    for line in lines:
        for style, lower, upper in line.bands:
            there = list(zip(line.x, upper, strict=True))
            back = list(zip(line.x, lower, strict=True))[::-1]
            parts.append(f'<path class="band {safe(style)}" d="{frame.path(there + back)}Z"/>')
        parts.append(
            f'<path class="line {safe(line.style)}" d="{frame.path(list(zip(line.x, line.y, strict=True)))}"/>'
        )
        if len(line.x) <= 40:
            parts += [
                f'<circle class="dot {safe(line.style)}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="3"/>'
                for x, y in zip(line.x, line.y, strict=True)
            ]
    return _svg(name, title, parts)


def histogram(name: str, title: str, values: Floats, x_label: str) -> str:
    """Return a histogram of values over parties."""
    values = values[np.abs(values) < LARGEST]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    room = max(abs(low), abs(high), 1e-290) * 1e-9  # values that differ in their last bits alone leave no room for bars
    span = (low - room, high + room) if high - low < room else None
    counts, edges = np.histogram(values, bins=min(40, max(5, round(np.sqrt(len(values)) * 1.5))), range=span)
    frame = _Frame.around(edges, np.array([0.0, float(counts.max())]))
    parts = [frame.axes(x_label, "parties")]
    for count, left, right in zip(counts, edges[:-1], edges[1:], strict=True):
        if count:
            x, width = frame.x(left), max(1.0, frame.x(right) - frame.x(left) - 1)
            top, bottom = frame.y(float(count)), frame.y(0.0)
            parts.append(
                f'<rect class="bar" x="{x:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}">'
                f"<title>{count} parties from {left:.3g} to {right:.3g}</title></rect>"
            )
    return _svg(name, title, parts)


def _svg(name: str, title: str, parts: list[str]) -> str:
    inside = "".join(parts)
    return (
        f'<svg id="{name}" class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-labelledby="{name}-title">'
        f'<title id="{name}-title">{safe(title)}</title>{inside}</svg>'
    )


@dataclass(frozen=True)
class _Frame:
    """The plotting area: from data to places on the page."""

    low: tuple[float, float]
    high: tuple[float, float]

    @classmethod
    def around(cls, x: Floats, y: Floats) -> _Frame:
        low, high = [], []
        for numbers in (x, y):
            finite = numbers[np.abs(numbers) < LARGEST]
            least, most = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
            room = (most - least) * 0.03 or max(abs(most), 1.0) * 0.1
            low.append(least - room)
            high.append(most + room)
        return cls((low[0], low[1]), (high[0], high[1]))

    def x(self, value: float) -> float:
        """The place of a value from the left."""
        return _LEFT + (value - self.low[0]) / (self.high[0] - self.low[0]) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        """The place of a value from the top."""
        return _HEIGHT - _BOTTOM - (value - self.low[1]) / (self.high[1] - self.low[1]) * (_HEIGHT - _TOP - _BOTTOM)

    def path(self, points: list[tuple[float, float]]) -> str:
        """The commands of a path through points; what is not finite is left out."""
        steps = [f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points if np.isfinite(x) and np.isfinite(y)]
        return "M" + "L".join(steps) if steps else ""

    def axes(self, x_label: str, y_label: str) -> str:
        """Grid lines, ticks and labels."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        parts = []
        for tick in _ticks(self.low[1], self.high[1]):
            place = self.y(tick)
            zero = " zero" if tick == 0 else ""
            parts.append(f'<line class="grid{zero}" x1="{_LEFT}" x2="{right}" y1="{place:.1f}" y2="{place:.1f}"/>')
            parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{place + 4:.1f}" text-anchor="end">{tick:g}</text>')
        for tick in _ticks(self.low[0], self.high[0]):
            place = self.x(tick)
            parts.append(f'<text class="tick" x="{place:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
        middle, centre = (_LEFT + right) / 2, (_TOP + bottom) / 2
        parts.append(f'<text class="label" x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{safe(x_label)}</text>')
        parts.append(
            f'<text class="label" transform="translate(14 {centre}) rotate(-90)" text-anchor="middle">'
            f"{safe(y_label)}</text>"
        )
        return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    """A few round numbers between two."""
    rough = (high - low) / 6
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = np.ceil(low / step)
    return [float(f"{number * step:.10g}") + 0.0 for number in np.arange(first, np.floor(high / step) + 1)]


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


_MOST_ROWS = 5000
_ENDS = {
    "": ("", "value"),
    "_low": ("low", "interval"),
    "_high": ("high", "interval"),
    "_per_record": ("per record", "value"),
    "_per_person": ("per person", "value"),
}
_ERRORS = {"_mc_error": ("MC error", "MC error"), "_noise": ("DP noise", "DP noise")}
"""Ends of the names of columns, with their headings and terms."""


@dataclass(frozen=True)
class ColumnFormat:
    """A column of the table: its name in values.csv, heading, term of the glossary, and decimals (None: as needed)."""

    name: str
    head: str
    term: str
    decimals: int | None = None


def shown_columns(
    values: pandas.DataFrame, names: tuple[str, ...], counted: str, pay: float | None
) -> list[ColumnFormat]:
    """Return the columns to show of those in `values`: the most requested first, errors last."""
    first, *others = names
    wanted = [ColumnFormat("party", "party", "party"), ColumnFormat("rank", "rank", "rank")]
    if "size" in values and (values["size"] > 1).any():
        wanted.append(ColumnFormat("size", f"{counted}s", "unit" if counted == "person" else "record"))
    wanted += [ColumnFormat(f"{first}{end}", head or first, term) for end, (head, term) in _ENDS.items()]
    if pay is not None:
        decimals = 0 if pay >= 10_000 else 2
        heads = {"": "payout", "_low": "low", "_high": "high"}
        wanted += [ColumnFormat(f"payout{end}", head, "payout", decimals) for end, head in heads.items()]
    wanted += [ColumnFormat(f"rank_{end}", f"rank {end}", "rank") for end in ("low", "high")]
    wanted += [ColumnFormat(f"{first}{end}", *shown) for end, shown in _ERRORS.items()]
    for name in others:
        wanted += [ColumnFormat(f"{name}{end}", head or name, term) for end, (head, term) in (_ENDS | _ERRORS).items()]
    return [column for column in wanted if column.name in values]


def table_section(values: pandas.DataFrame, columns: list[ColumnFormat]) -> str:
    """Return the section of the page that holds the table."""
    heads = "".join(
        f'<th scope="col"><button type="button"{tooltip(column.term)}>{safe(column.head)}</button></th>'
        for column in columns
    )
    note = ""
    if len(values) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        note = f'<p class="soft">The {half} highest and {half} lowest of {len(values)}; values.csv holds all.</p>'
    return (
        '<section><h2>Parties</h2><div class="tools"><label for="search">Find a party</label>'
        '<input id="search" type="search" autocomplete="off"><span id="shown" class="soft" role="status"></span>'
        '<button id="save" type="button">Save this table</button></div>'
        f'{note}<div class="scroll" tabindex="0" role="region" aria-label="Values of the parties"><table id="parties">'
        f"<thead><tr>{heads}</tr></thead><tbody></tbody></table></div>"
        '<p><button id="more" type="button" hidden>Show more</button></p></section>'
    )


def table_data(values: pandas.DataFrame, columns: list[ColumnFormat]) -> str:
    """Return the columns and rows as JSON for a script element; no text in it can end the element."""
    frame = values.sort_values("rank")[[column.name for column in columns]]
    if len(frame) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        frame = frame.iloc[[*range(half), *range(len(frame) - half, len(frame))]]
    content = {
        "columns": [column.name for column in columns],
        "decimals": [column.decimals for column in columns],
        "rows": [[_plain(cell) for cell in row] for row in frame.itertuples(index=False)],
    }
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


def _plain(cell: Any) -> Any:
    if isinstance(cell, str):
        return escaped(cell)
    if isinstance(cell, bool):
        return cell
    number = float(cell)
    if not np.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 2**53 else float(f"{number:.9g}")
