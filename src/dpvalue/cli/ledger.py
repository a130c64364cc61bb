"""`dpvalue ledger show` and `dpvalue ledger verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table as Grid

from dpvalue.cli.app import app, argument, failing_clearly, option, out
from dpvalue.printable import one_line

ledger_app = typer.Typer(
    help="What was released of one owner's data, and what is left of its budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command("show")
def ledger_show(path: Annotated[Path, argument()]) -> None:
    """List all entries, what they spent together, and the head of the chain to keep elsewhere.

    Example: dpvalue ledger show hospital.ledger
    """
    from dpvalue.privacy.ledger import Ledger

    with failing_clearly():
        ledger = Ledger(path)
        grid = Grid(box=box.SIMPLE_HEAD)
        for name in ("entry", "purpose", "round", "releases", "noise", "unit", "day"):
            grid.add_column(name)
        for entry in ledger.entries():
            charge = entry.charge
            noise = f"{charge.law} {charge.noise_scale:.3g}"
            cells = (entry.number, entry.purpose, entry.round, charge.releases, noise, charge.unit)
            grid.add_row(*(one_line(str(cell)) for cell in cells), one_line(entry.time[:10]))
        out.print(grid)
        out.print(f"budget: {ledger.budget.terms}")
        out.print(f"spent: epsilon = {ledger.spent:.4g}")
        out.print(f"head: {ledger.head()}")


@ledger_app.command("verify")
def ledger_verify(
    path: Annotated[Path, argument()],
    head: Annotated[str | None, option("A head that was kept elsewhere.")] = None,
) -> None:
    """Check the chain of digests, and that it continues a head that was kept elsewhere.

    Example: dpvalue ledger verify hospital.ledger --head 3:0f3a...
    """
    from dpvalue.privacy.ledger import Ledger

    with failing_clearly():
        count = Ledger(path).verify(head)
    out.print(f"{count} entries, all digests right" + (", and the kept head is among them" if head else ""))
