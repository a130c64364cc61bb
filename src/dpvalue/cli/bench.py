"""`dpvalue bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dpvalue.cli.common import app, argument, failing_clearly, option, out


@app.command()
def bench(
    cases: Annotated[list[str] | None, argument()] = None,
    json: Annotated[Path | None, option("Write the timings and a description of the machine to this file.")] = None,
) -> None:
    """Time the engine and the literal Algorithm 1 on synthetic data, in one process.

    CASES are cpu (default), gpu, or the names of cases.

    Example: dpvalue bench covertype --json covertype.json
    """
    from dpvalue.experiments.bench import run_cases

    with failing_clearly():
        run_cases(cases or ["cpu"], json)
    if json is not None:
        out.print(f"written to {json}")
