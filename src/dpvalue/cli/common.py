"""Parts shared by all commands: the application, printing, errors, and the output of a finished run."""

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
    help="Estimate the value of each party's data to a model, under differential privacy.",
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
    "Unreadable private rows contribute zero and are not reported. The holder of the file can list them with "
    "`dpvalue check`."
)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"dpvalue {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Estimate the value of each party's data to a model, under differential privacy."""


def option(text: str, *names: str) -> Any:
    """Return an option; its help text states the default."""
    return typer.Option(*names, help=text, show_default=False)


def argument() -> Any:
    """Return an argument without a help entry of its own; the command's docstring describes it."""
    return typer.Argument(hidden=True)


@contextmanager
def failing_clearly() -> Iterator[None]:
    """Print an input error as one line and exit with code 2; print a warning as one line."""
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
    """Print the highest and lowest values, the verdict, the guarantee, and the paths of the files written."""
    name = done.result.semivalues[0].name
    out.print(_grid(done, name))
    if done.record.values is not None:
        out.print("\n".join(done.record.values.verdict), markup=False)
        out.print(f"utility: {done.record.values.utility}", markup=False)
        out.print()
    known = done.record.detection
    if known is not None:
        out.print(
            f"detection of {known.column!r}: AUC {known.auc:.3f}, precision {known.precision:.0%} at {known.k}",
            markup=False,
        )
    if finding:
        out.print(finding, markup=False)
    out.print(str(done.record.guarantee), markup=False)
    out.print(f"written to {done.folder}: values.csv, run.toml, run.json, table.safetensors", markup=False)
    out.print(f"report: {done.folder / 'report.html'}", markup=False)


def _grid(done: FinishedRun, name: str) -> Grid:
    """Return the values of a semivalue with intervals; for more than 12 parties, the highest and the lowest."""
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
