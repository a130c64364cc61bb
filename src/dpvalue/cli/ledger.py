"""`dpvalue ledger new`, `add`, `show` and `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table as Grid

from dpvalue.cli.common import app, argument, failing_clearly, option, out
from dpvalue.display import one_line

if TYPE_CHECKING:
    from dpvalue.privacy.holders import Terms

ledger_app = typer.Typer(
    help="Record what was released from one holder's data, and keep it within a budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command("new")
def ledger_new(
    path: Annotated[Path, argument()],
    epsilon: Annotated[float, option("Total privacy budget of all runs; 1.")] = 1.0,
    name: Annotated[str, option("Name of the holder.")] = "",
    delta: Annotated[float, option("delta of Gaussian noise; 5e-5.")] = 5e-5,
    unit: Annotated[str, option("Protect each party (default), record or person.")] = "party",
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    party: Annotated[list[str] | None, option("Party name, for unit party; rows by default.")] = None,
    party_column: Annotated[str | None, option("Party column, for unit party.")] = None,
    person: Annotated[str | None, option("Person id column, for unit person.")] = None,
    parties_per_person: Annotated[int, option("Maximum number of parties per person; 1.")] = 1,
    head: Annotated[Path | None, option("File for the ledger's latest hash, on another disk.")] = None,
) -> None:
    """Create the ledger of one holder. Only this command starts a budget.

    Example: dpvalue ledger new my.ledger --epsilon 5 --unit record --name site-a
    """
    from dpvalue.privacy.budget import Privacy
    from dpvalue.privacy.ledger import Ledger

    with failing_clearly():
        budget = Privacy(epsilon, delta, unit, neighbours, parties_per_person=parties_per_person)
        made = Ledger.create(path, budget, name, parties=party, party_column=party_column, person=person, head=head)
        out.print(f"{path}: the ledger of {made.terms.name!r}, {budget.terms}{_whom(made.parties, made.terms)}")
        if head is None:
            out.print(
                "Store the ledger's latest hash elsewhere with --head FILE. Without it, a rollback to an older copy is "
                "not detected."
            )


@ledger_app.command("add")
def ledger_add(
    path: Annotated[Path, argument()],
    party: Annotated[list[str] | None, option("Name of a new party whose data no listed party holds.")] = None,
    head: Annotated[Path | None, option("File that stores the ledger's latest hash.")] = None,
) -> None:
    """Add parties to a ledger of named parties.

    Example: dpvalue ledger add my.ledger --party site-b
    """
    from dpvalue.privacy.ledger import Ledger

    with failing_clearly():
        ledger = Ledger(path, head=head)
        ledger.add_parties(party or [])
        out.print(f"parties: {', '.join(ledger.parties or ())}")


@ledger_app.command("show")
def ledger_show(path: Annotated[Path, argument()]) -> None:
    """List all entries, the total spent, and the latest hash of the ledger (its head).

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
            cells: tuple[object, ...]
            if charge is None:
                cells = (entry.number, f"added: {', '.join(entry.names)}", "", "", "", "")
            else:
                noise = f"{charge.law} {charge.noise_scale:.3g}"
                cells = (entry.number, entry.purpose, entry.round, charge.releases, noise, charge.unit)
            grid.add_row(*(one_line(str(cell)) for cell in cells), one_line(entry.time[:10]))
        out.print(grid)
        out.print(f"ledger of {ledger.terms.name!r}" + _whom(ledger.parties, ledger.terms))
        out.print(f"budget: {ledger.budget.terms}")
        out.print(f"spent: epsilon = {ledger.spent_epsilon:.4g}")
        out.print(f"head: {ledger.head()}")


def _whom(parties: tuple[str, ...] | str | None, terms: Terms) -> str:
    """Return whom a ledger protects, as text."""
    named = f", for the parties {', '.join(parties)}" if isinstance(parties, tuple) else ""
    if terms.party_column is not None:
        return f"{named or ', for parties'} of the column {terms.party_column!r}"
    if named:
        return f"{named}; the holder promises that a name stands for the same rows in all runs"
    if parties is not None:
        return ", for rows as parties"
    return "" if terms.person is None else f", for persons of the column {terms.person!r}"


@ledger_app.command("verify")
def ledger_verify(
    path: Annotated[Path, argument()],
    head: Annotated[str | None, option("A stored hash, or the file that stores it.")] = None,
) -> None:
    """Verify the hash chain of a ledger, and that it contains a stored head.

    Example: dpvalue ledger verify hospital.ledger --head 3:0f3a...
    """
    from dpvalue.display import counted
    from dpvalue.privacy.ledger import Ledger
    from dpvalue.privacy.ledger_file import is_head
    from dpvalue.stored import read_text

    with failing_clearly():
        kept = head if head is None or is_head(head) else read_text(Path(head)).strip()
        count = Ledger(path).verify(kept)
    out.print(
        f"{counted(count, 'entry', 'entries')}, all digests valid"
        + (", and the stored head is among them" if head else "")
    )
