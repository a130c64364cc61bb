"""`dpvalue key new` and `show`: keys that sign jobs and releases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpvalue.cli.common import app, argument, failing_clearly, out

key_app = typer.Typer(
    help="Create and show keys that sign jobs and releases.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(key_app, name="key")


@key_app.command("new")
def key_new(path: Annotated[Path, argument()]) -> None:
    """Create a key and print its public part. Keep the file secret.

    Example: dpvalue key new site-a.key
    """
    with failing_clearly():
        from dpvalue.protocol.archive import Key

        key = Key.new()
        key.save(path)
    out.print(key.public)


@key_app.command("show")
def key_show(path: Annotated[Path, argument()]) -> None:
    """Print the public part of a key, for a policy or a roster.

    Example: dpvalue key show site-a.key
    """
    with failing_clearly():
        from dpvalue.protocol.archive import Key

        key = Key.read(path)
    out.print(key.public)
