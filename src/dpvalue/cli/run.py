"""`dpvalue run`, `revalue` and `report`: from files to values and a page to look at."""

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
    test: Annotated[Text, option("The public file: trusted rows that judge.")] = None,
    target: Annotated[Text, option("The column of labels.")] = None,
    epsilon: Annotated[float | None, option("Privacy budget; 1.")] = None,
    out_: Annotated[Path, option("The folder to write; results.", "--out")] = Path("results"),
    group: Annotated[Text, option("Value data sets: the column that names them.")] = None,
    unit: Annotated[Text, option("Protect each party (default), record or person.")] = None,
    person: Annotated[Text, option("The column of persons' ids, for unit person.")] = None,
    parties_per_person: Annotated[int | None, option("The most parties that a person is in; 1.")] = None,
    semivalue: Annotated[list[str] | None, option("shapley (default), banzhaf, beta(4,1), loo.")] = None,
    game: Annotated[Text, option("auto (default), refit or steps.")] = None,
    schedule: Annotated[Text, option("Of steps: replay (default), lagged, the paper's.")] = None,
    permutations: Annotated[int | None, option("The most to walk; 1000.")] = None,
    delta: Annotated[float | None, option("Of Gaussian noise; 5e-5.")] = None,
    neighbours: Annotated[Text, option("zero_out (default) or replace.")] = None,
    mechanism: Annotated[Text, option("auto (default), gaussian or laplace.")] = None,
    task: Annotated[Text, option("classification or regression; else inferred.")] = None,
    model: Annotated[Text, option("logistic or linear; else by the task.")] = None,
    metric: Annotated[Text, option(f"{METRICS}.")] = None,
    preprocess: Annotated[Text, option("columns (default), or numbers as they are.")] = None,
    classes: Annotated[Text, option("All classes, as a,b,c, if the public file lacks some.")] = None,
    drop: Annotated[list[str] | None, option("Columns to leave out.")] = None,
    truth: Annotated[Text, option("Column of 0 and 1: a known answer to compare with.")] = None,
    no_privacy: Annotated[bool, option("Protect nothing; exposes data.", "--no-privacy")] = False,
    ledger: Annotated[Text, option("Charge releases to this ledger.")] = None,
    head: Annotated[Text, option("The file that keeps the ledger's head.")] = None,
    purpose: Annotated[Text, option("Names the ledger's slots for this question.")] = None,
    seed: Annotated[int | None, option("Seed of public randomness.")] = None,
    pay: Annotated[float | None, option("An amount to share by value.")] = None,
    config: Annotated[Path | None, option("A TOML file with any of these options.")] = None,
    overwrite: Annotated[bool, option("Replace results in the folder.", "--overwrite")] = False,
    yes: Annotated[bool, option("Do not ask before spending.", "--yes")] = False,
    force: Annotated[bool, option("Nor if it cannot work.", "--force")] = False,
) -> None:
    """Value the rows of a private file, and write values and a report.

    TRAIN is CSV (any separator; gzip, zstd), Parquet or NPZ. Several files are one party each.

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
        from dpvalue.storage import held

        stored = {} if config is None else read_config(config)
        options = make_config(
            {**stored, **{name: option for name, option in given.items() if option not in (None, [])}}
        )
        with held(out_):
            show_done(_run(options, out_, overwrite, yes, force))


def _run(options: RunConfig, folder: Path, overwrite: bool, yes: bool, force: bool) -> FinishedRun:
    """Plan, ask, and do a run in a folder that no other process writes meanwhile."""
    from dpvalue.runs.folder import require_free, require_room
    from dpvalue.runs.sources import open_run

    goes_on = require_free(folder, overwrite, options)
    options.open_ledger()  # raises if it cannot be used
    job = open_run(options)
    plan = job.plan() if options.privacy is not None else None
    require_room(folder, 2 if plan is None else plan.sizes.parties)
    _show(job, plan)
    if goes_on:
        out.print(
            f"{folder} holds releases of an unfinished run with these options: they are used again.", markup=False
        )
    _confirm(plan, yes, force)
    return run_job(job, plan, folder, goes_on)


def run_job(job: FileRun, plan: Plan | None, folder: Path, goes_on: bool = False) -> FinishedRun:
    """Do a job with a bar on the terminal; a user who stops it is told what was kept."""
    from dpvalue.progress import reporting
    from dpvalue.runs.execute import RunInterrupted, execute

    try:
        with reporting(progress=True) as tell:
            return execute(job, plan, folder, tell, goes_on)
    except RunInterrupted as stopped:
        out.print(str(stopped), markup=False)
        raise typer.Exit(130) from None


def _show(job: FileRun, plan: Plan | None) -> None:
    config = job.config
    parts = f"{len(config.train)} files, one party each" if len(config.train) > 1 else "1 file"
    if config.group is not None:
        parts += f", parties by {config.group!r}"
    read = ["header", "number of rows"]
    if config.unit == "person" and config.private:  # how many rows a person has is private
        out.print(f"private: {parts}, persons by {config.person!r} (so far {_listed(config, ['header'])} were read)")
    else:
        rows = sum(file.rows for file in job.peeks)
        only = "only " if config.group is None and config.person is None else ""
        out.print(f"private: {rows} rows in {parts} (so far {only}{_listed(config, read)} were read)")
    out.print(CHECK_ADVICE)
    if job.party_can_change and config.unit != "person":
        out.print(
            f"Make {config.group!r} the first or the last column of a text file: elsewhere, a quote or a separator too "
            "many in a line may move it to another party."
        )
    inferred = "" if config.fixed_task is not None else ", as its target shows"
    out.print(
        f"public: {len(job.utility.y)} rows, {job.schema}; {job.task}{inferred}, {job.model} model, metric "
        f"{config.metric}",
        markup=False,
    )
    if plan is None:
        out.print("no differential privacy: values, table and report will expose the private rows")
    else:
        out.print(f"\n{plan}\n", markup=False)


def _listed(config: RunConfig, read: list[str]) -> str:
    read += [f"the column {name!r}" for name in (config.group, config.person) if name is not None]
    return " and ".join([", ".join(read[:-1]), read[-1]] if len(read) > 1 else read)


def _confirm(plan: Plan | None, yes: bool, force: bool) -> None:
    """Ask before anything is spent; what the plan says cannot work is not spent unasked, unless it must be."""
    if force or (yes and not (plan is not None and plan.cannot_work)):
        return
    if yes:
        raise DpvalueError("--yes does not spend a budget that cannot work, as the plan says: --force does")
    if not sys.stdin.isatty():
        raise DpvalueError("not on a terminal nobody is asked: give --yes to go on")
    typer.confirm("Spend it?" if plan is not None else "Go on without privacy?", abort=True)


@app.command()
def revalue(
    folder: Annotated[Path, argument()],
    semivalue: Annotated[list[str] | None, option("shapley (default), banzhaf, beta(4,1), loo.")] = None,
    test: Annotated[Path | None, option("Another public file to judge by.")] = None,
    metric: Annotated[Text, option("Another metric, as in dpvalue run.")] = None,
    pay: Annotated[float | None, option("An amount to share by value.")] = None,
    out_: Annotated[Path | None, option("Where to write; a folder inside by default.", "--out")] = None,
    overwrite: Annotated[bool, option("Replace results in that folder.", "--overwrite")] = False,
) -> None:
    """Other values from the private table of a run: free, and without any private file.

    FOLDER is one that dpvalue run has written.

    Example: dpvalue revalue results --metric auc --test other.csv --pay 100000
    """
    with failing_clearly():
        from dpvalue.progress import reporting
        from dpvalue.runs.execute import revalue as value_again
        from dpvalue.runs.execute import revalue_folder
        from dpvalue.runs.folder import open_folder, require_free
        from dpvalue.storage import held

        kinds = tuple(semivalue or ())
        place = out_ or revalue_folder(open_folder(folder), kinds, test, metric)
        with held(place), reporting(progress=True) as tell:
            if out_ is not None:
                require_free(out_, overwrite)
            show_done(value_again(open_folder(folder), place, kinds, test, tell, pay, metric))


@app.command()
def report(folder: Annotated[Path, argument()]) -> None:
    """Make report.html of a folder again, from its values.csv and run.json.

    FOLDER is one that dpvalue run has written.

    Example: dpvalue report results
    """
    with failing_clearly():
        from dpvalue.runs.folder import open_folder, write_page
        from dpvalue.storage import held

        open_folder(folder)  # raises if it is none, before anything is written into it
        with held(folder):
            opened = open_folder(folder)
            page = write_page(folder, opened.record, opened.values())
    out.print(f"report: {page}", markup=False)
