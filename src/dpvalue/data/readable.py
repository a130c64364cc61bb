"""Which texts are read at all: bounds on a cell, whatever the format of its file.

A text of more than `LONGEST_CELL` characters, or with more than `MOST_MARKS` combining marks in a row, is unreadable.
The rule is public and looks at one cell alone. With it, the work on a cell grows no faster than its length: Unicode's
normal forms take time that grows with the square of a run of marks.
"""

from __future__ import annotations

import unicodedata

LONGEST_CELL = 2**16
"""The characters of the longest text that is read."""
MOST_BYTES = 4 * LONGEST_CELL
"""The most bytes of such a text in UTF-8: a reader may cut a longer one behind one byte more, and it stays too long."""
MOST_MARKS = 30
"""The combining marks in a row that a text may hold, as in Unicode's stream-safe format (UAX 15)."""
_MARKS_WITHOUT_CLASS = "\u0f73\u0f75\u0f81"  # they become two marks each, and have no combining class of their own


def is_readable(cell: str) -> bool:
    r"""Return whether a text is within the bounds.

    >>> [is_readable(cell) for cell in ("north", "x" * 70_000, "a" + "\u0301" * 30, "a" + "\u0301" * 31)]
    [True, False, True, False]
    """
    return len(cell) <= LONGEST_CELL and not _stacks_marks(cell)


def readable(cell: str) -> str | None:
    """Return a text in Unicode's form NFC, without white space around it; None for one that is unreadable.

    Halves of surrogate pairs, which nothing can write, are replaced. What is returned is readable itself: a form may be
    longer than the text, and an id is read again where persons are numbered.
    """
    if not is_readable(cell):
        return None
    cell = cell.strip()
    if cell.isascii():
        return cell
    whole = cell.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    canonical = unicodedata.normalize("NFC", whole)
    return canonical if is_readable(canonical) else None


def decoded(cell: bytes) -> str:
    """Return bytes as a text in UTF-8, U+FFFD for what is not; of a cell that is too long, a text that is too long."""
    return cell[: MOST_BYTES + 1].decode("utf-8", errors="replace")


def _stacks_marks(cell: str) -> bool:
    """Whether more than `MOST_MARKS` combining marks stand in a row."""
    if len(cell) <= MOST_MARKS or cell.isascii():
        return False
    run = 0
    for letter in cell:
        run = run + 1 if unicodedata.combining(letter) or letter in _MARKS_WITHOUT_CLASS else 0
        if run > MOST_MARKS:
            return True
    return False
