"""What a page may load and run: its own style and script."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy: a page's own style and script, by their digests, and nothing from elsewhere."""
    style, script = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
