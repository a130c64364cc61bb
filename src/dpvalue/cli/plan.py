"""`dpvalue plan`: noise and AUC ceilings of a budget, for rows, persons and organisations."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated

from dpvalue.cli.common import CHECK_ADVICE, app, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.runs.plan_page import Plan


@app.command()
def plan(
    parties: Annotated[int, option("Number of rows, persons or organisations; 800.")] = 800,
    epsilon: Annotated[float, option("Privacy budget; 1.")] = 1.0,
    delta: Annotated[float, option("delta of Gaussian noise; 5e-5.")] = 5e-5,
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    records: Annotated[int, option("Records per organisation; 100.")] = 100,
    rows_each: Annotated[int, option("Rows per person; 5.")] = 5,
    game: Annotated[str, option("auto (default), refit or steps.")] = "auto",
    auc: Annotated[float | None, option("Target AUC: print the epsilon that it needs.")] = None,
    json: Annotated[bool, option("Print JSON.", "--json")] = False,
) -> None:
    """Show the noise and the AUC ceilings of a budget, and the epsilon that a target AUC needs. Spends nothing.

    Example: dpvalue plan --parties 800 --epsilon 1 --auc 0.8
    """
    with failing_clearly():
        from dpvalue.privacy.budget import Privacy
        from dpvalue.runs.plan import plan as make_plan

        def of(unit: str, size: int) -> Plan:
            privacy = Privacy(epsilon, delta, unit, neighbours)
            return make_plan(parties, privacy=privacy, records=size, auc=auc, game=game)

        plans = {
            "rows": of("party", 1),
            "persons": of("party", rows_each),
            "organisations": of("record", records),
        }
    if json:
        out.print(json_text.dumps({name: _numbers(planned) for name, planned in plans.items()}, indent=1))
        return
    _show(plans, epsilon, neighbours, records, rows_each)


def _numbers(planned: Plan) -> dict[str, float | int | str | None]:
    limits, gaussian, laplace = planned.limits, planned.limits.gaussian, planned.limits.laplace
    return {
        "parties": planned.sizes.parties,
        "protected": planned.privacy.unit,
        "units_per_party": planned.sizes.units,
        "epsilon": planned.epsilon,
        "ceiling": limits.ceiling,
        "gaussian_ceiling": limits.gaussian_ceiling,
        "laplace_ceiling": limits.laplace_ceiling,
        "gaussian_noise_per_row": None if gaussian is None else _noise(planned, gaussian.noise_multiplier),
        "laplace_noise_per_row": None if laplace is None else _noise(planned, laplace.noise_multiplier),
        "gaussian_advantage": None if gaussian is None else gaussian.advantage,
        "laplace_advantage": None if laplace is None else laplace.advantage,
        "epsilon_needed": planned.epsilon_needed,
        "advice": planned.advice,
    }


def _noise(planned: Plan, multiplier: float | None) -> float:
    """Return the noise scale of a release over the clipping norm; it shrinks with the units of a party."""
    moved = 2.0 if planned.privacy.neighbours == "replace" else 1.0
    return (multiplier or 0.0) * moved / planned.sizes.units


def _show(plans: dict[str, Plan], epsilon: float, neighbours: str, records: int, rows_each: int) -> None:
    from rich import box
    from rich.table import Table as Grid

    from dpvalue.display import counted

    columns = {name: _numbers(planned) for name, planned in plans.items()}
    title = f"epsilon = {epsilon:g}, neighbours {neighbours}; noise in clipping norms; G / L: Gaussian / Laplace"
    grid = Grid(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    grid.add_column("")
    for name in columns:
        grid.add_column(name, justify="right")
    lines = {
        "protected": ["each row", f"{counted(rows_each, 'row')} per person", f"each record of {records}"],
        "Gaussian noise": [_cell(column["gaussian_noise_per_row"]) for column in columns.values()],
        "Laplace noise": [_cell(column["laplace_noise_per_row"]) for column in columns.values()],
        "attacker's advantage (G / L)": [
            f"{_cell(column['gaussian_advantage'])} / {_cell(column['laplace_advantage'])}"
            for column in columns.values()
        ],
        "AUC ceiling": [_limit(column["ceiling"]) for column in columns.values()],
        "AUC ceiling (G / L)": [
            f"{_limit(column['gaussian_ceiling'])} / {_limit(column['laplace_ceiling'])}" for column in columns.values()
        ],
    }
    if plans["rows"].target_auc is not None:
        wanted = plans["rows"].target_auc.auc
        lines[f"epsilon needed for AUC {wanted:g}"] = [_cell(column["epsilon_needed"]) for column in columns.values()]
    for name, cells in lines.items():
        grid.add_row(name, *cells)
    out.print(grid)
    for (name, planned), unit in zip(plans.items(), ("row", "person", "record"), strict=True):
        out.print(f"{name}: {planned.advice.replace('per party', f'per {unit}')}", markup=False)
    out.print(CHECK_ADVICE)


def _limit(number: float | int | str | None) -> str:
    from dpvalue.detection import is_useful

    return "none" if number is not None and not is_useful(float(number)) else _cell(number)


def _cell(number: float | int | str | None) -> str:
    return "-" if number is None else f"{float(number):.3g}"
