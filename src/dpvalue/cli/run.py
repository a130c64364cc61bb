"""`dpvalue run`, `revalue` and `report`: from files to values and a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpvalue.cli.common import CHECK_ADVICE, METRICS, app, argument, failing_clearly, option, out, show_done
from dpvalue.errors import DpvalueError

if TYPE_CHECKING:
    from dpvalue.runs.config import RunConfig
    from dpvalue.runs.execute import FinishedRun
    from dpvalue.runs.plan_page import Plan
    from dpvalue.runs.sources import FileRun

Text = str | None


@app.command()
def run(
    train: Annotated[list[str] | None, argument()] = None,
    test: Annotated[Text, option("Public file, to evaluate models on.")] = None,
    target: Annotated[Text, option("Label column.")] = None,
    epsilon: Annotated[float | None, option("Privacy budget; 1.")] = None,
    out_: Annotated[Path, option("Output folder; results.", "--out")] = Path("results"),
    group: Annotated[Text, option("Party column; else each row is a party.")] = None,
    unit: Annotated[Text, option("Protect each party (default), record or person.")] = None,
    person: Annotated[Text, option("Person id column, for unit person.")] = None,
    parties_per_person: Annotated[int | None, option("Maximum number of parties per person; 1.")] = None,
    semivalue: Annotated[list[str] | None, option("shapley (default), banzhaf, beta(4,1), loo.")] = None,
    game: Annotated[Text, option("auto (default), refit or steps.")] = None,
    schedule: Annotated[Text, option("replay (default), lagged, or one of the paper.")] = None,
    permutations: Annotated[int | None, option("Maximum number of permutations; 1000.")] = None,
    delta: Annotated[float | None, option("delta of Gaussian noise; 5e-5.")] = None,
    neighbours: Annotated[Text, option("zero_out (default) or replace.")] = None,
    mechanism: Annotated[Text, option("auto (default), gaussian or laplace.")] = None,
    task: Annotated[Text, option("auto (default), classification or regression.")] = None,
    model: Annotated[Text, option("auto (default), logistic, linear or trees.")] = None,
    metric: Annotated[Text, option(f"{METRICS}.")] = None,
    preprocess: Annotated[Text, option("columns (default) or numbers (no scaling).")] = None,
    classes: Annotated[Text, option("All classes, as a,b,c.")] = None,
    drop: Annotated[list[str] | None, option("Column to drop; repeatable.")] = None,
    truth: Annotated[Text, option("0/1 column that marks bad rows, for evaluation.")] = None,
    no_privacy: Annotated[bool, option("Add no noise. Exposes the data.", "--no-privacy")] = False,
    ledger: Annotated[Text, option("Charge releases to this ledger.")] = None,
    head: Annotated[Text, option("File that stores the ledger's latest hash.")] = None,
    purpose: Annotated[Text, option("Name of this question in the ledger.")] = None,
    seed: Annotated[int | None, option("Seed for public randomness; 0.")] = None,
    pay: Annotated[float | None, option("Amount to share in proportion to values.")] = None,
    config: Annotated[Path | None, option("TOML file with any of these options.")] = None,
    overwrite: Annotated[bool, option("Overwrite results in the output folder.", "--overwrite")] = False,
    yes: Annotated[bool, option("Spend the budget without asking.", "--yes")] = False,
    force: Annotated[bool, option("Spend it even if the plan says it cannot work.", "--force")] = False,
) -> None:
    """Compute data values from a private file, and write values and a report.

    TRAIN is CSV (any separator; gzip, zstd), Parquet or NPZ. With several files, each file is one party.

    Example: dpvalue run train.csv --test test.csv --target label --epsilon 3 --out results
    """
    given: dict[str, Any] = {
        "train": train, "test": test, "target": target, "epsilon": epsilon, "group": group, "unit": unit,
        "person": person, "parties_per_person": parties_per_person, "semivalue": semivalue, "game": game,
        "schedule": schedule, "permutations": permutations, "delta": delta, "neighbours": neighbours,
        "mechanism": mechanism, "task": task, "model": model, "metric": metric, "preprocess": preprocess,
        "classes": None if classes is None else classes.split(","), "drop": drop, "truth": truth,
        "private": False if no_privacy else None, "ledger": ledger, "head": head, "purpose": purpose, "seed": seed,
        "pay": pay,
    }  # fmt: skip
    with failing_clearly():
        from dpvalue.runs.config import make_config, read_config
        from dpvalue.storage import folder_lock

        stored = {} if config is None else read_config(config)
        options = make_config(
            {**stored, **{name: option for name, option in given.items() if option not in (None, [])}}
        )
        with folder_lock(out_):
            show_done(_run(options, out_, overwrite, yes, force))


def _run(options: RunConfig, folder: Path, overwrite: bool, yes: bool, force: bool) -> FinishedRun:
    """Plan a run, ask for confirmation, and do it in a locked folder."""
    from dpvalue.runs.folder import require_free, require_room
    from dpvalue.runs.sources import open_run

    goes_on = require_free(folder, overwrite, options)
    options.open_ledger()  # raises if it is unusable
    job = open_run(options)
    plan = job.plan() if options.privacy is not None else None
    require_room(folder, 2 if plan is None else plan.sizes.parties)
    _show(job, plan)
    if goes_on:
        out.print(
            f"{folder} holds the releases of an unfinished run with these options: they are reused.", markup=False
        )
    _confirm(plan, yes, force)
    return run_job(job, plan, folder, goes_on)


def run_job(job: FileRun, plan: Plan | None, folder: Path, goes_on: bool = False) -> FinishedRun:
    """Run a job with a progress bar; after Ctrl-C, print which releases are kept."""
    from dpvalue.progress import reporting
    from dpvalue.runs.execute import RunInterrupted, execute

    try:
        with reporting(progress=True) as tell:
            return execute(job, plan, folder, tell, goes_on)
    except RunInterrupted as stopped:
        out.print(str(stopped), markup=False)
        raise typer.Exit(130) from None


def _show(job: FileRun, plan: Plan | None) -> None:
    from dpvalue.display import counted

    config = job.config
    parts = f"{len(config.train)} files, one party each" if len(config.train) > 1 else "1 file"
    if config.group is not None:
        parts += f", parties from column {config.group!r}"
    read = ["header", "number of rows"]
    if config.unit == "person" and config.private:  # how many rows a person has is private
        out.print(
            f"private: {parts}, persons from column {config.person!r} (read so far: {_listed(config, ['header'])})"
        )
    else:
        rows = sum(file.rows for file in job.peeks)
        out.print(f"private: {counted(rows, 'row')} in {parts} (read so far: {_listed(config, read)})")
    out.print(CHECK_ADVICE)
    if job.party_can_change and config.unit != "person":
        out.print(
            f"Make {config.group!r} the first or the last column of a text file. In another position, a stray quote or "
            "separator may move a row to another party."
        )
    inferred = "" if config.fixed_task is not None else " (inferred)"
    out.print(
        f"public: {len(job.utility.y)} rows, {job.schema}; {job.task}{inferred}, {job.model} model, metric "
        f"{config.metric}",
        markup=False,
    )
    if plan is None:
        out.print("no differential privacy: values, table and report expose the private rows")
    else:
        out.print(f"\n{plan}\n", markup=False)


def _listed(config: RunConfig, read: list[str]) -> str:
    read += [f"column {name!r}" for name in (config.group, config.person) if name is not None]
    return " and ".join([", ".join(read[:-1]), read[-1]] if len(read) > 1 else read)


def _confirm(plan: Plan | None, yes: bool, force: bool) -> None:
    """Ask before spending. --yes answers, unless the plan says the budget cannot work; --force always does."""
    if force or (yes and not (plan is not None and plan.cannot_work)):
        return
    if yes:
        raise DpvalueError("the plan says that this budget cannot work: give --force to spend it anyway")
    if not sys.stdin.isatty():
        raise DpvalueError("confirmation needs a terminal: give --yes to run without it")
    typer.confirm("Spend this budget?" if plan is not None else "Run without privacy?", abort=True)


@app.command()
def revalue(
    folder: Annotated[Path, argument()],
    semivalue: Annotated[list[str] | None, option("shapley (default), banzhaf, beta(4,1), loo.")] = None,
    test: Annotated[Path | None, option("Another public file.")] = None,
    metric: Annotated[Text, option("Another metric, as in dpvalue run.")] = None,
    pay: Annotated[float | None, option("Amount to share in proportion to values.")] = None,
    out_: Annotated[Path | None, option("Output folder; by default inside FOLDER.", "--out")] = None,
    overwrite: Annotated[bool, option("Overwrite results in that folder.", "--overwrite")] = False,
) -> None:
    """Compute other values from the private table of a run. Spends no budget and reads no private file.

    FOLDER is the output folder of a run.

    Example: dpvalue revalue results --metric auc --test other.csv --pay 100000
    """
    with failing_clearly():
        from dpvalue.progress import reporting
        from dpvalue.runs.execute import revalue as value_again
        from dpvalue.runs.execute import revalue_folder
        from dpvalue.runs.folder import open_folder, require_free
        from dpvalue.storage import folder_lock

        kinds = tuple(semivalue or ())
        place = out_ or revalue_folder(open_folder(folder), kinds, test, metric)
        with folder_lock(place), reporting(progress=True) as tell:
            if out_ is not None:
                require_free(out_, overwrite)
            show_done(value_again(open_folder(folder), place, kinds, test, tell, pay, metric))


@app.command()
def report(folder: Annotated[Path, argument()]) -> None:
    """Write report.html again from values.csv and run.json.

    FOLDER is the output folder of a run.

    Example: dpvalue report results
    """
    with failing_clearly():
        from dpvalue.runs.folder import open_folder, write_page
        from dpvalue.storage import folder_lock

        open_folder(folder)  # raises before anything is written if the folder is not a run's
        with folder_lock(folder):
            opened = open_folder(folder)
            page = write_page(folder, opened.record, opened.values())
    out.print(f"report: {page}", markup=False)
