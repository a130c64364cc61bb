"""Text that came from a file, made safe to show: characters that would steer a terminal or a page become visible.

Names of parties and columns are whatever somebody typed. Control characters (an escape sequence can rewrite a screen),
marks that turn the direction of writing (the text would read as another), line separators and halves of surrogate pairs
(which cannot be printed at all) are written as Python writes them: a backslash and their number.
"""

from __future__ import annotations

import re
from html import escape

_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BREAKS = re.compile("[\t\n]")


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


def _number(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
