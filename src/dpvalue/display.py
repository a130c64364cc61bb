"""How text and values are shown: text from files made safe, short texts at a prompt, small tables in a notebook.

Names of parties and columns are whatever somebody typed. Control characters (an escape sequence can rewrite a screen),
marks that turn the direction of writing (the text would read as another), line separators and halves of surrogate pairs
(which cannot be printed at all) are written as Python writes them: a backslash and their number. Names stand on one
line in texts, and are escaped in tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from dpvalue.arrays import Floats

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\t\n]")


MOST_NAMED = 30
"""The largest number of parties that texts name one by one."""


def visible(text: str) -> str:
    r"""Return a text with nothing in it that steers; tabs and line breaks stay.

    >>> print(visible("a\x1b[31mb"))
    a\x1b[31mb
    """
    return _STEERING.sub(_number, text)


def one_line(text: str) -> str:
    r"""Return a text on one line, with nothing in it that steers: for names, and for errors that quote them.

    >>> print(one_line("a\nb"))
    a\x0ab
    """
    return _BREAKS.sub(_number, visible(text))


def safe(text: object) -> str:
    """Return a text, or anything as text, that can stand in an HTML element or in an attribute in quotes.

    >>> print(safe("<b>A & B</b>"))
    &lt;b&gt;A &amp; B&lt;/b&gt;
    """
    return escape(visible(str(text)))


def _number(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_MOST_ROWS = 20  # of a table


def changed_fields(value: DataclassInstance, *always: str) -> str:
    """Return a dataclass as the call that makes it, with the fields that differ from their defaults, and those named.

    A field that the constructor does not take, or that `repr` leaves out, is left out.
    """
    shown = []
    for field in fields(value):
        content: Any = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        is_default = content is None if default is None else default is not MISSING and bool(content == default)
        if field.init and field.repr and (field.name in always or not is_default):
            shown.append(f"{field.name}={content!r}")
    return f"{type(value).__name__}({', '.join(shown)})"


def some(texts: Iterable[object], most: int = 4) -> str:
    """Return texts on one line, at most so many of them.

    >>> some(["a", "b", "c", "d", "e"])
    'a, b, c, d, ...'
    """
    lines = [one_line(str(text)) for text in texts]
    return ", ".join(lines[:most] + ["..."] * (len(lines) > most))


def counted(number: int | None, noun: str, plural: str = "") -> str:
    """Return a number with its noun; the plural takes an s unless it is given.

    >>> counted(1, "release"), counted(2, "release"), counted(2, "party", "parties")
    ('1 release', '2 releases', '2 parties')
    """
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def byte_size(number: int) -> str:
    """Return a number of bytes in kB or MB.

    >>> byte_size(2_048), byte_size(400_000_000)
    ('2.05 kB', '400 MB')
    """
    return f"{number / 1e6:.3g} MB" if number >= 1e5 else f"{number / 1e3:.3g} kB"


def by_value(values: Floats) -> list[int]:
    """Return the places of values, the highest first; those that are not numbers come last."""
    return [int(place) for place in (-values).argsort(kind="stable")]


def extremes(names: Sequence[object], values: Floats) -> str:
    """Return the highest values and the lowest, each with its name; of up to four parties all.

    >>> extremes(["A", "B", "C", "D", "E"], np.array([0.1, 0.25, -0.3, 0.2, 0.0]))
    'B = 0.25, D = 0.2, ..., C = -0.3'
    """
    texts = [f"{one_line(str(names[place]))} = {values[place]:.3g}" for place in by_value(values)]
    return ", ".join(texts if len(texts) <= 4 else [*texts[:2], "...", texts[-1]])


def html_table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table for a notebook, everything in it escaped; of many rows the first and the last.

    >>> html_table("<b>", ["party"], [["<script>"]])
    '<table><caption>&lt;b&gt;</caption><thead><tr><th>party</th></tr></thead><tbody><tr><td>&lt;script&gt;</td></tr></tbody></table>'
    """
    half = _MOST_ROWS // 2
    shown = list(rows) if len(rows) <= _MOST_ROWS else [*rows[:half], ["..."] * len(heads), *rows[-half:]]
    head = "".join(f"<th>{_cell(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(text)}</td>' for text in row)}</tr>" for row in shown)
    return f"<table><caption>{safe(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_lines(title: str, text: str) -> str:
    """Return the lines of a text as a table of one column."""
    return html_table(title, [""], [[line.strip()] for line in text.splitlines()])


def _cell(content: object) -> str:
    return safe(f"{content:.3g}" if isinstance(content, float) else content)


def join_names(names: Iterable[object]) -> str:
    """Return names joined for a sentence.

    >>> join_names(["A", "B", "C"])
    'A, B and C'
    """
    texts = [one_line(str(name)) for name in names]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
