"""What a finished run prints: its values, what they say, the guarantee, and where the files are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table as Grid

from dpvalue.cli.common import out
from dpvalue.printable import one_line

if TYPE_CHECKING:
    from dpvalue.jobs.execute import Done


def show_done(done: Done, finding: str = "") -> None:
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


def _grid(done: Done, name: str) -> Grid:
    """The values of a semivalue with their intervals; of many parties the extremes."""
    from dpvalue.valuation.payouts import amount

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
