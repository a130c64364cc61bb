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
    list_: Annotated[bool, option("List all tables and figures with their run times.", "--list")] = False,
    full: Annotated[bool, option("Use the sizes of the paper, or small ones (default).", "--full/--quick")] = False,
    data_dir: Annotated[str | None, option("Folder of the data sets; by default DPVALUE_DATA.")] = None,
    out_: Annotated[Path, option("Output folder; results.", "--out")] = Path("results"),
    workers: Annotated[int, option("Number of parallel trials; 1.")] = 1,
    device: Annotated[str, option("cpu (default) or cuda.")] = "cpu",
) -> None:
    """Reproduce the tables and figures of the paper. An interrupted run resumes.

    NAMES are listed by --list. "all" skips experiments whose data is missing.

    Example: dpvalue reproduce uncertainty mia --full
    """
    with failing_clearly():
        from dpvalue.experiments.paper import EXPERIMENTS, GROUPS
        from dpvalue.experiments.paper.datasets import is_embedded
        from dpvalue.experiments.paper.trials import TrialScale, make_page, stored_trials

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
        scale = TrialScale(quick=not full, data=data_dir, device=device)
        for experiment in wanted:
            if "all" in names and not experiment.has_data(data_dir):
                lacking = ", ".join((*experiment.data, *experiment.weights))
                out.print(f"{experiment.name}: skipped, its data is missing ({lacking})\n")
                continue
            try:
                page, table = make_page(experiment, scale, out_, workers)
            except KeyboardInterrupt:
                out.print("stopped; finished trials are kept. Run the same command again to resume.")
                raise typer.Exit(130) from None
            out.print(f"{experiment.title}\n\n{table}\nwritten to {page}\n")
            experiment.check(stored_trials(experiment, scale, out_), scale.quick)


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
