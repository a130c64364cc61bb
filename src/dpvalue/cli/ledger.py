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
    help="What was released of one owner's data, and what is left of its budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command("new")
def ledger_new(
    path: Annotated[Path, argument()],
    epsilon: Annotated[float, option("What all runs together may spend; 1.")] = 1.0,
    name: Annotated[str, option("Of the holder.")] = "",
    delta: Annotated[float, option("Of Gaussian noise; 5e-5.")] = 5e-5,
    unit: Annotated[str, option("Protect each party (default), record or person.")] = "party",
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    party: Annotated[list[str] | None, option("A party, for unit party; else rows are.")] = None,
    party_column: Annotated[str | None, option("The column that names the party, for unit party.")] = None,
    person: Annotated[str | None, option("The column of ids, for unit person.")] = None,
    parties_per_person: Annotated[int, option("The most parties a person counts in; 1.")] = 1,
    head: Annotated[Path | None, option("A file for its head; best on another disk.")] = None,
) -> None:
    """Start the ledger of one holder. A budget is started once, and by this command alone.

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
                "An old copy that is put back, or a cut end, is not noticed without its head: --head FILE keeps it "
                "elsewhere."
            )


@ledger_app.command("add")
def ledger_add(
    path: Annotated[Path, argument()],
    party: Annotated[list[str] | None, option("A party that holds data of nobody there.")] = None,
    head: Annotated[Path | None, option("The file that keeps its head.")] = None,
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
    """Whom a ledger protects, and what that rests on."""
    named = f", for the parties {', '.join(parties)}" if isinstance(parties, tuple) else ""
    if terms.party_column is not None:
        return f"{named or ', for parties'} by the column {terms.party_column!r}"
    if named:
        return f"{named}; that a name stands for the same rows in all runs is the holder's promise"
    if parties is not None:
        return ", for rows as parties"
    return "" if terms.person is None else f", for persons by {terms.person!r}"


@ledger_app.command("verify")
def ledger_verify(
    path: Annotated[Path, argument()],
    head: Annotated[str | None, option("A head that was kept elsewhere, or its file.")] = None,
) -> None:
    """Check the chain of digests, and that it continues a head that was kept elsewhere.

    Example: dpvalue ledger verify hospital.ledger --head 3:0f3a...
    """
    from dpvalue.privacy.ledger import Ledger
    from dpvalue.privacy.ledger_file import is_head
    from dpvalue.stored import read_text

    with failing_clearly():
        kept = head if head is None or is_head(head) else read_text(Path(head)).strip()
        count = Ledger(path).verify(kept)
    out.print(f"{count} entries, all digests right" + (", and the kept head is among them" if head else ""))
