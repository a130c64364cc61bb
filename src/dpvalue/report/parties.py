"""The table of parties on the page: its columns, its rows as the page's script reads them, and its tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.names import escaped
from dpvalue.printable import safe

if TYPE_CHECKING:
    import pandas

_MOST_ROWS = 5000
_ENDS = {"": "", "_low": "from", "_high": "to", "_per_record": "per record", "_per_person": "per person"}
_ERRORS = {"_mc_error": "MC error", "_noise": "DP noise"}


@dataclass(frozen=True)
class Shown:
    """A column that is shown: its name in values.csv, its heading, and its decimals (None: as many as it takes)."""

    name: str
    head: str
    decimals: int | None = None


def shown_columns(values: pandas.DataFrame, names: tuple[str, ...], counted: str, pay: float | None) -> list[Shown]:
    """Return the columns to show of those that there are: what most people ask for first, errors last."""
    first, *others = names
    wanted = [Shown("party", "party"), Shown("rank", "rank")]
    if "size" in values and (values["size"] > 1).any():
        wanted.append(Shown("size", f"{counted}s"))
    wanted += [Shown(f"{first}{end}", head or first) for end, head in _ENDS.items()]
    if pay is not None:
        decimals = 0 if pay >= 10_000 else 2
        wanted += [Shown(f"payout{end}", _ENDS[end] or "payout", decimals) for end in ("", "_low", "_high")]
    wanted += [Shown(f"rank_{end}", f"rank {_ENDS[f'_{end}']}") for end in ("low", "high")]
    wanted += [Shown(f"{first}{end}", head) for end, head in _ERRORS.items()]
    for name in others:
        wanted += [Shown(f"{name}{end}", head or name) for end, head in (_ENDS | _ERRORS).items()]
    return [column for column in wanted if column.name in values]


def table_section(values: pandas.DataFrame, columns: list[Shown]) -> str:
    """Return the section of the page that holds the table."""
    heads = "".join(f'<th scope="col"><button type="button">{safe(column.head)}</button></th>' for column in columns)
    note = ""
    if len(values) > _MOST_ROWS:
        note = f'<p class="soft">The {_MOST_ROWS // 2} highest and lowest of {len(values)}; all are in values.csv.</p>'
    return (
        '<section><h2>Parties</h2><div class="tools"><label for="search">Find a party</label>'
        '<input id="search" type="search" autocomplete="off"><span id="shown" class="soft" role="status"></span>'
        '<button id="save" type="button">Save this table</button></div>'
        f'{note}<div class="scroll" tabindex="0" role="region" aria-label="Values of the parties"><table id="parties">'
        f"<thead><tr>{heads}</tr></thead><tbody></tbody></table></div>"
        '<p><button id="more" type="button" hidden>Show more</button></p></section>'
    )


def table_data(values: pandas.DataFrame, columns: list[Shown]) -> str:
    """Return the columns and rows as JSON that can stand in a script element: nothing in it ends the element."""
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
