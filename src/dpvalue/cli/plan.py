"""`dpvalue plan`: what a budget can buy, for rows, persons and organisations side by side."""

from __future__ import annotations

import json as json_text
from typing import TYPE_CHECKING, Annotated

from dpvalue.cli.common import CHECK_ADVICE, app, failing_clearly, option, out
from dpvalue.planning.detection import is_useful

if TYPE_CHECKING:
    from dpvalue.server.plan_page import Plan


@app.command()
def plan(
    parties: Annotated[int, option("How many rows, persons or organisations; 800.")] = 800,
    epsilon: Annotated[float, option("Privacy budget; 1.")] = 1.0,
    delta: Annotated[float, option("Of Gaussian noise; 5e-5.")] = 5e-5,
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    records: Annotated[int, option("Records of each organisation; 100.")] = 100,
    rows_each: Annotated[int, option("Rows of each person; 5.")] = 5,
    auc: Annotated[float | None, option("A wanted AUC: which epsilon does it need?")] = None,
    json: Annotated[bool, option("Print JSON.", "--json")] = False,
) -> None:
    """What a budget can buy before anything is spent: noise, ceilings, and which epsilon an AUC needs.

    Example: dpvalue plan --parties 800 --epsilon 1 --auc 0.8
    """
    with failing_clearly():
        from dpvalue.privacy.budget import Privacy
        from dpvalue.server.plan import plan as make_plan

        def of(unit: str, size: int) -> Plan:
            privacy = Privacy(epsilon, delta, unit, neighbours)
            return make_plan(parties, privacy=privacy, records=size, auc=auc)

        plans = {
            "rows": of("party", 1),
            "persons": of("party", rows_each),
            "organisations": of("record", records),
        }
    if json:
        out.print(json_text.dumps({name: _numbers(one) for name, one in plans.items()}, indent=1))
        return
    _show(plans, epsilon, neighbours, records, rows_each)


def _numbers(one: Plan) -> dict[str, float | int | str | None]:
    gaussian, laplace = one.gaussian, one.laplace
    return {
        "parties": one.parties,
        "protected": one.privacy.unit,
        "units_per_party": one.units,
        "epsilon": one.epsilon,
        "ceiling": one.ceiling,
        "gaussian_ceiling": one.gaussian_ceiling,
        "laplace_ceiling": one.laplace_ceiling,
        "gaussian_noise_per_row": None if gaussian is None else _noise(one, gaussian.noise_multiplier),
        "laplace_noise_per_row": None if laplace is None else _noise(one, laplace.noise_multiplier),
        "gaussian_advantage": None if gaussian is None else gaussian.advantage,
        "laplace_advantage": None if laplace is None else laplace.advantage,
        "epsilon_needed": one.epsilon_needed,
        "advice": one.advice,
    }


def _noise(one: Plan, multiplier: float | None) -> float:
    """Noise of a release over the clipping norm: it shrinks with the units of a party."""
    moved = 2.0 if one.privacy.neighbours == "replace" else 1.0
    return (multiplier or 0.0) * moved / one.units


def _show(plans: dict[str, Plan], epsilon: float, neighbours: str, records: int, rows_each: int) -> None:
    from rich import box
    from rich.table import Table as Grid

    found = {name: _numbers(one) for name, one in plans.items()}
    grid = Grid(box=box.SIMPLE_HEAD, title=f"epsilon = {epsilon:g}, neighbours {neighbours}", title_justify="left")
    grid.add_column("")
    for name in found:
        grid.add_column(name, justify="right")
    lines = {
        "protected": ["each row", f"a person's {rows_each} rows", f"each of {records} records"],
        "Gaussian noise / clipping norm": [_cell(one["gaussian_noise_per_row"]) for one in found.values()],
        "Laplace noise / clipping norm": [_cell(one["laplace_noise_per_row"]) for one in found.values()],
        "attacker's advantage (G / L)": [
            f"{_cell(one['gaussian_advantage'])} / {_cell(one['laplace_advantage'])}" for one in found.values()
        ],
        "AUC ceiling, each on its own": [_limit(one["ceiling"]) for one in found.values()],
        "same, Gaussian / Laplace": [
            f"{_limit(one['gaussian_ceiling'])} / {_limit(one['laplace_ceiling'])}" for one in found.values()
        ],
    }
    if plans["rows"].wanted_auc is not None:
        wanted = plans["rows"].wanted_auc
        lines[f"epsilon for AUC {wanted:g}, at least"] = [_cell(one["epsilon_needed"]) for one in found.values()]
    for name, cells in lines.items():
        grid.add_row(name, *cells)
    out.print(grid)
    for (name, one), unit in zip(plans.items(), ("row", "person", "record"), strict=True):
        out.print(f"{name}: {one.advice.replace('per party', f'per {unit}')}", markup=False)
    out.print(CHECK_ADVICE)


def _limit(number: float | int | str | None) -> str:
    return "none" if number is not None and not is_useful(float(number)) else _cell(number)


def _cell(number: float | int | str | None) -> str:
    return "-" if number is None else f"{float(number):.3g}"
