"""What all commands share: the application, how they print, and how they fail."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from dpvalue import DpvalueError, __version__
from dpvalue.printable import one_line, visible

app = typer.Typer(
    help="What is each party's data worth to a model? Values under differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # a traceback must not print private rows
    rich_markup_mode=None,
)


class SafeConsole(Console):
    """A console on which text cannot steer the terminal: names of parties and columns come from files."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=False, soft_wrap=True, markup=False, emoji=False)

    def render_str(self, text: str, **how: Any) -> Text:
        """Return a text to print; what is printed, and each cell of a table, comes through here."""
        return super().render_str(visible(text), **how)


out = SafeConsole()

METRICS = "loss (default), accuracy, balanced_accuracy, auc, mse, mae, r2"
"""The names of metrics in help texts, which load no torch."""
CHECK_ADVICE = (
    "A private row that cannot be read counts for nothing, and nobody is told; `dpvalue check` lists such rows for "
    "whoever holds the file."
)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"dpvalue {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """What is each party's data worth to a model? Values under differential privacy."""


def option(text: str, *names: str) -> Any:
    """Return an option whose text says what its default is."""
    return typer.Option(*names, help=text, show_default=False)


def argument() -> Any:
    """Return an argument that the text of its command describes: a list of its own would take half a screen."""
    return typer.Argument(hidden=True)


@contextmanager
def failing_clearly() -> Iterator[None]:
    """Turn what is wrong with the input into one line and exit code 2; a warning is one line as well."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *where: _complain("warning", message)
        try:
            yield
        except DpvalueError as error:
            _complain("error", error)
            raise typer.Exit(2) from None
        except OSError as error:
            if error.filename is None:  # no file of the user's: a fault of ours
                raise
            _complain("error", f"{error.filename}: {error.strerror}")
            raise typer.Exit(2) from None


def _complain(kind: str, what: object) -> None:
    SafeConsole(stderr=True).print(f"{kind}: {one_line(str(what))}")
