"""`dpvalue bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dpvalue.cli.common import app, argument, failing_clearly, option, out


@app.command()
def bench(
    cases: Annotated[list[str] | None, argument()] = None,
    json: Annotated[Path | None, option("Also write the numbers and the machine's facts here.")] = None,
) -> None:
    """Time the engine beside the literal Algorithm 1, in one run on made data.

    CASES are cpu (default), gpu, or names of single cases.

    Example: dpvalue bench covertype --json covertype.json
    """
    from dpvalue.experiments.bench import run_cases

    with failing_clearly():
        run_cases(cases or ["cpu"], json)
    if json is not None:
        out.print(f"written to {json}")
