"""`dpvalue check`: list the unreadable rows of a private file, for its holder."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpvalue.cli.common import app, argument, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.runs.check import Check, FileCheck

Text = str | None


@app.command()
def check(
    train: Annotated[list[str] | None, argument()] = None,
    test: Annotated[Text, option("Public file.")] = None,
    target: Annotated[Text, option("Label column.")] = None,
    group: Annotated[Text, option("Column with the party of each row.")] = None,
    person: Annotated[Text, option("Column with person ids.")] = None,
    parties_per_person: Annotated[int, option("Maximum number of parties per person; 1.")] = 1,
    classes: Annotated[Text, option("All classes, as a,b,c, if the public file lacks some.")] = None,
    task: Annotated[str, option("auto (default), classification or regression.")] = "auto",
    drop: Annotated[list[str] | None, option("Column to drop; repeatable.")] = None,
) -> None:
    """List the rows of a private file that contribute zero or that are public, for the holder of the file.

    The command releases nothing. Its output is private: do not share it. Exit code 1 if any row contributes zero.

    Example: dpvalue check train.csv --test test.csv --target label
    """
    with failing_clearly():
        from dpvalue.runs.check import check as check_files
        from dpvalue.runs.config import make_config

        given: dict[str, Any] = {
            "train": train, "test": test, "target": target, "group": group, "person": person, "task": task,
            "drop": drop or [], "classes": None if classes is None else classes.split(","),
            "parties_per_person": parties_per_person if person is not None else None,
            "unit": "party" if person is None else "person",
        }  # fmt: skip
        config = make_config({name: option for name, option in given.items() if option is not None})
        checked = check_files(config)
    out.print("This output is private: only the holder of the rows should see it. Nothing was released.\n")
    for file in checked.files:
        _show_file(file)
    _show_labels(checked, config.test)
    raise typer.Exit(1 if checked.unused else 0)


def _show_file(file: FileCheck) -> None:
    verdict = f"{file.unused} contribute zero" if file.unused else "all contribute"
    out.print(f"{file.path}: {file.records} records, {verdict}", style="bold")
    kinds = sorted(file.places, key=lambda kind: (kind.counts, kind.column, kind.finding))
    for kind in kinds:
        cells = file.places[kind]
        where = "; ".join(f"{cell} {_places(file.place_noun, cells[cell])}".strip() for cell in sorted(cells))
        column = f"column {kind.column!r}, " if kind.column else ""
        out.print(f"  {'note: ' if kind.counts else ''}{column}{kind.finding}: {where}")
    out.print("")


def _show_labels(checked: Check, test: str) -> None:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(title="labels", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    grid.add_column("")
    grid.add_column(test, justify="right")
    grid.add_column("private", justify="right")
    grid.add_column("")
    for name, here, there in checked.labels:
        grid.add_row(name, here, there, "contributes zero" if name in checked.unknown_labels else "")
    out.print(grid)


def _places(word: str, places: list[int]) -> str:
    """Return line or row numbers as text; consecutive numbers become a range.

    >>> _places("line", [3]), _places("row", [3, 7, 8, 9])
    ('line 3', 'rows 3, 7-9')
    """
    breaks = [place for place, (before, after) in enumerate(pairwise(places), start=1) if after != before + 1]
    runs = [places[first:last] for first, last in pairwise([0, *breaks, len(places)])]
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{word}{'s' if len(places) > 1 else ''} {shown}"
