"""Text in a page: whatever a file says, it is shown and never obeyed."""

from __future__ import annotations

from html import escape

from dpvalue.printable import visible


def safe(text: object) -> str:
    """Return a text, or anything as text, that can stand in an element or in an attribute in quotes."""
    return escape(visible(str(text)))
