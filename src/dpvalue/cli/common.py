"""What all commands share: the application, how they print and fail, and what a finished run prints."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from dpvalue import DpvalueError, __version__
from dpvalue.display import one_line, visible

if TYPE_CHECKING:
    from dpvalue.runs.execute import FinishedRun

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


def show_done(done: FinishedRun, finding: str = "") -> None:
    """Print the extremes, what they say, a finding if there is one, the guarantee, and where the files are."""
    name = done.result.semivalues[0].name
    out.print(_grid(done, name))
    if done.record.values is not None:
        out.print("\n".join(done.record.values.verdict), markup=False)
        out.print(f"utility: {done.record.values.utility}", markup=False)
        out.print()
    known = done.record.detection
    if known is not None:
        out.print(
            f"finding {known.column!r}: AUC {known.auc:.3f}, {known.precision:.0%} of the {known.k} lowest",
            markup=False,
        )
    if finding:
        out.print(finding, markup=False)
    out.print(str(done.record.guarantee), markup=False)
    out.print(f"written to {done.folder}: values.csv, run.toml, run.json, table.safetensors", markup=False)
    out.print(f"report: {done.folder / 'report.html'}", markup=False)


def _grid(done: FinishedRun, name: str) -> Grid:
    """The values of a semivalue with their intervals; of many parties the extremes."""
    from dpvalue.values.payouts import amount

    grid = Grid(title=f"{name} values", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    frame = done.values.sort_values("rank")
    cut = len(frame) > 12
    sized = bool((frame["size"] > 1).any())
    if cut:
        frame = frame.iloc[[0, 1, 2, *range(-7, 0)]]
    pay = None if done.record.values is None else done.record.values.pay
    cells = {"rank": frame["rank"].astype(str), "party": frame["party"].map(lambda party: one_line(str(party)))}
    if sized:
        cells[f"{done.result.table.counted}s"] = frame["size"].map("{:,}".format)
    cells["value"] = frame[name].map("{:+.4g}".format)
    if pay is not None and "payout" in frame:
        paid, low, high = (frame[f"payout{end}"].map(lambda part: amount(part, pay)) for end in ("", "_low", "_high"))
        cells |= {"payout": paid}
    else:
        low, high = (frame[f"{name}_{end}"].map("{:+.3g}".format) for end in ("low", "high"))
    cells["95% interval"] = low + " to " + high
    for head in cells:
        if head == "party":
            grid.add_column(head, overflow="fold")
        else:
            grid.add_column(head, justify="right", no_wrap=True)
    lines = list(zip(*cells.values(), strict=True))
    if cut:
        lines.insert(3, tuple("..." if head == "rank" else "" for head in cells))
    for line in lines:
        grid.add_row(*line)
    return grid
