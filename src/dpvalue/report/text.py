"""Text in a page: whatever a file says, it is shown and never obeyed."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from html import escape

from dpvalue.printable import visible


def safe(text: object) -> str:
    """Return a text, or anything as text, that can stand in an element or in an attribute in quotes."""
    return escape(visible(str(text)))


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy: a page's own style and script, by their digests, and nothing from elsewhere."""
    style, script = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
