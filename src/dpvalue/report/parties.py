"""The table of parties on the page: columns, rows as JSON for the page's script, and buttons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.names import escaped
from dpvalue.printable import safe
from dpvalue.report.glossary import tooltip

if TYPE_CHECKING:
    import pandas

_MOST_ROWS = 5000
_ENDS = {
    "": ("", "value"),
    "_low": ("low", "interval"),
    "_high": ("high", "interval"),
    "_per_record": ("per record", "value"),
    "_per_person": ("per person", "value"),
}
_ERRORS = {"_mc_error": ("MC error", "MC error"), "_noise": ("DP noise", "DP noise")}
"""Ends of the names of columns, with their headings and terms."""


@dataclass(frozen=True)
class Shown:
    """A column of the table: its name in values.csv, heading, term of the glossary, and decimals (None: as needed)."""

    name: str
    head: str
    term: str
    decimals: int | None = None


def shown_columns(values: pandas.DataFrame, names: tuple[str, ...], counted: str, pay: float | None) -> list[Shown]:
    """Return the columns to show of those in `values`: the most requested first, errors last."""
    first, *others = names
    wanted = [Shown("party", "party", "party"), Shown("rank", "rank", "rank")]
    if "size" in values and (values["size"] > 1).any():
        wanted.append(Shown("size", f"{counted}s", "unit" if counted == "person" else "record"))
    wanted += [Shown(f"{first}{end}", head or first, term) for end, (head, term) in _ENDS.items()]
    if pay is not None:
        decimals = 0 if pay >= 10_000 else 2
        heads = {"": "payout", "_low": "low", "_high": "high"}
        wanted += [Shown(f"payout{end}", head, "payout", decimals) for end, head in heads.items()]
    wanted += [Shown(f"rank_{end}", f"rank {end}", "rank") for end in ("low", "high")]
    wanted += [Shown(f"{first}{end}", *shown) for end, shown in _ERRORS.items()]
    for name in others:
        wanted += [Shown(f"{name}{end}", head or name, term) for end, (head, term) in (_ENDS | _ERRORS).items()]
    return [column for column in wanted if column.name in values]


def table_section(values: pandas.DataFrame, columns: list[Shown]) -> str:
    """Return the section of the page that holds the table."""
    heads = "".join(
        f'<th scope="col"><button type="button"{tooltip(column.term)}>{safe(column.head)}</button></th>'
        for column in columns
    )
    note = ""
    if len(values) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        note = f'<p class="soft">The {half} highest and {half} lowest of {len(values)}; values.csv holds all.</p>'
    return (
        '<section><h2>Parties</h2><div class="tools"><label for="search">Find a party</label>'
        '<input id="search" type="search" autocomplete="off"><span id="shown" class="soft" role="status"></span>'
        '<button id="save" type="button">Save this table</button></div>'
        f'{note}<div class="scroll" tabindex="0" role="region" aria-label="Values of the parties"><table id="parties">'
        f"<thead><tr>{heads}</tr></thead><tbody></tbody></table></div>"
        '<p><button id="more" type="button" hidden>Show more</button></p></section>'
    )


def table_data(values: pandas.DataFrame, columns: list[Shown]) -> str:
    """Return the columns and rows as JSON for a script element; no text in it can end the element."""
    frame = values.sort_values("rank")[[column.name for column in columns]]
    if len(frame) > _MOST_ROWS:
        half = _MOST_ROWS // 2
        frame = frame.iloc[[*range(half), *range(len(frame) - half, len(frame))]]
    content = {
        "columns": [column.name for column in columns],
        "decimals": [column.decimals for column in columns],
        "rows": [[_plain(cell) for cell in row] for row in frame.itertuples(index=False)],
    }
    return json.dumps(content, allow_nan=False).replace("<", "\\u003c")


def _plain(cell: Any) -> Any:
    if isinstance(cell, str):
        return escaped(cell)
    if isinstance(cell, bool):
        return cell
    number = float(cell)
    if not np.isfinite(number):
        return None
    return int(number) if number == int(number) and abs(number) < 2**53 else float(f"{number:.9g}")
