"""`dpvalue reproduce` and `bench`: the paper's tables and figures, and how fast the library is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpvalue.cli.common import app, argument, failing_clearly, option, out
from dpvalue.errors import require_choice, require_count


@app.command()
def reproduce(
    names: Annotated[list[str] | None, argument()] = None,
    list_: Annotated[bool, option("Show all tables and figures, and how long they take.", "--list")] = False,
    full: Annotated[bool, option("The paper's sizes, or small ones (default).", "--full/--quick")] = False,
    data_dir: Annotated[str | None, option("Where data sets are; or set DPVALUE_DATA.")] = None,
    out_: Annotated[Path, option("The folder to write; results.", "--out")] = Path("results"),
    workers: Annotated[int, option("Trials at once; 1.")] = 1,
    device: Annotated[str, option("cpu (default) or cuda.")] = "cpu",
) -> None:
    """Make the paper's tables and figures again; stop and continue anywhere.

    NAMES are those that --list shows. Of all, what needs data that is not there is left out.

    Example: dpvalue reproduce uncertainty mia --full
    """
    with failing_clearly():
        from dpvalue.experiments.paper import EXPERIMENTS, GROUPS
        from dpvalue.experiments.paper.datasets import is_embedded
        from dpvalue.experiments.paper.trials import Scale, make_page, stored_trials

        if list_ or not names:
            width = max(map(len, EXPERIMENTS))
            for experiment in EXPERIMENTS.values():
                data = [name for name in experiment.data if not is_embedded(name)]
                needs = ", ".join([*data, *experiment.weights]) or "nothing"
                took = f"{experiment.minutes:>9} min"
                out.print(f"{experiment.name:<{width}}{took}  needs {needs:<18} {experiment.title}")
            for group, members in GROUPS.items():
                out.print(f"{group}: {'everything' if group == 'all' else ', '.join(members)}")
            return
        for name in names:
            require_choice("name", name, [*EXPERIMENTS, *GROUPS])
        require_count("workers", workers)
        chosen = [member for name in names for member in GROUPS.get(name, (name,))]
        wanted = [EXPERIMENTS[name] for name in dict.fromkeys(chosen)]
        scale = Scale(quick=not full, data=data_dir, device=device)
        for experiment in wanted:
            if "all" in names and not experiment.has_data(data_dir):
                lacking = ", ".join((*experiment.data, *experiment.weights))
                out.print(f"{experiment.name}: left out, as its data is not here ({lacking})\n")
                continue
            try:
                page, table = make_page(experiment, scale, out_, workers)
            except KeyboardInterrupt:
                out.print("stopped; finished trials are kept, and the same command goes on")
                raise typer.Exit(130) from None
            out.print(f"{experiment.title}\n\n{table}\nwritten to {page}\n")
            experiment.check(stored_trials(experiment, scale, out_), scale.quick)


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
