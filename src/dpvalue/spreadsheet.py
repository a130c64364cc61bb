r"""Names of parties as cells of a CSV file: no spreadsheet takes them for a formula, and they read back as they were.

Whoever writes a party's name chooses it. A spreadsheet calculates a cell that begins with `=`, `+`, `-` or `@`, also
after spaces, and some obey control characters. So, in this order,

1. what would steer a terminal or a page (`dpvalue.printable`), a tab or a line break is written `\xNN` or `\uNNNN`; a
   backslash that would read as the beginning of such a number is written `\x5c`;
2. a text that would be a formula, with or without apostrophes before it, gets one more apostrophe in front.

`name_of` undoes both. A whole number is a number, also below zero: it stays as it is.
"""

from __future__ import annotations

import re

from dpvalue.names import party_label
from dpvalue.printable import one_line

_NUMBER = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4}))")
_AMBIGUOUS = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})")
_FORMULA = re.compile(
    "'*[\\s\ufeff\u200b\u2060]*[=+\\-@\uff1d\uff0b\uff0d\uff20]"
)  # the wide ones are formulas to some, too


def escaped(name: str) -> str:
    r"""Return a name on one line, with nothing in it that steers; other names give other texts.

    >>> print(escaped("a\x1b[31mb"), escaped("a\\x1bb"))
    a\x1b[31mb a\x5cx1bb
    """
    return one_line(_AMBIGUOUS.sub(r"\\x5c", name))


def cell_of(name: str | int) -> str | int:
    r"""Return the name of a party as a cell.

    >>> cell_of('=HYPERLINK("http://x")'), cell_of("north"), cell_of(-7)
    ('\'=HYPERLINK("http://x")', 'north', -7)
    """
    if not isinstance(name, str):
        return name
    text = escaped(name)
    return f"'{text}" if _FORMULA.match(text) else text


def name_of(cell: str) -> str | int:
    """Return the name of a party from its cell: a whole number where the cell is one.

    >>> name_of("'=1+1"), name_of("north"), name_of("-7")
    ('=1+1', 'north', -7)
    """
    label = party_label(cell)
    if isinstance(label, int):
        return label
    text = cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
    return _NUMBER.sub(lambda found: chr(int(found[1] or found[2], 16)), text)
