"""`dpvalue job`, `job show` and `job verify`: the file that a coordinator sends to the parties."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpvalue.cli.common import METRICS, app, argument, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.protocol.job import Job

Text = str | None
job_app = typer.Typer(
    help="Create a job for parties to answer on their own machines; show or verify a job.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(job_app, name="job")


@job_app.callback()
def job(
    context: typer.Context,
    test: Annotated[Text, option("Public file, to evaluate models on.")] = None,
    target: Annotated[Text, option("Label column.")] = None,
    epsilon: Annotated[float, option("Privacy budget; 1.")] = 1.0,
    out_: Annotated[Path, option("Output file; study.job.", "--out")] = Path("study.job"),
    sizes: Annotated[Text, option("Records (or persons) of each party, as 303,294.")] = None,
    parties: Annotated[int | None, option("Number of parties, if sizes are unknown.")] = None,
    unit: Annotated[str, option("Protect each record (default), person or party.")] = "record",
    parties_per_person: Annotated[int, option("Maximum number of parties per person; 1.")] = 1,
    delta: Annotated[float, option("delta of Gaussian noise; 5e-5.")] = 5e-5,
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    semivalue: Annotated[list[str] | None, option("shapley (default), banzhaf, beta(4,1), loo.")] = None,
    task: Annotated[str, option("auto (default), classification or regression.")] = "auto",
    model: Annotated[str, option("auto (default), logistic, linear or trees.")] = "auto",
    metric: Annotated[str, option(f"{METRICS}.")] = "loss",
    preprocess: Annotated[str, option("columns (default) or numbers (no scaling).")] = "columns",
    classes: Annotated[Text, option("All classes, as a,b,c, if the public file lacks some.")] = None,
    drop: Annotated[list[str] | None, option("Column to drop; repeatable.")] = None,
    seed: Annotated[int, option("Seed for public randomness; 0.")] = 0,
    key: Annotated[Path | None, option("Sign the job with this key (dpvalue key new).")] = None,
) -> None:
    """Create a job: it specifies what each party releases and with how much noise. It contains no rows.

    Each party answers with dpvalue party answer. dpvalue value computes values from the releases.

    Example: dpvalue job --test public.csv --target label --epsilon 1 --sizes 303,294,123,200 --out study.job
    """
    if context.invoked_subcommand is not None:
        return
    with failing_clearly():
        from dpvalue.coordinator.study import make_study
        from dpvalue.protocol.archive import Key
        from dpvalue.runs.config import make_config
        from dpvalue.storage import file_lock

        given: dict[str, Any] = {
            "test": test, "target": target, "epsilon": epsilon, "unit": unit, "delta": delta, "seed": seed,
            "neighbours": neighbours, "parties_per_person": parties_per_person, "semivalue": semivalue or ["shapley"],
            "task": task, "model": model, "metric": metric, "preprocess": preprocess,
            "classes": [] if classes is None else classes.split(","), "drop": drop or [],
            "sizes": _sizes(sizes, parties, test),
        }  # fmt: skip
        _require_new(out_)
        signing = None if key is None else Key.read(key)
        study = make_study(make_config({name: option for name, option in given.items() if option is not None}))
        if parties is not None:
            out.print(
                f"assumed sizes: {parties} parties with {given['sizes'][0]} {unit}s each (the size of the public file)"
            )
        out.print(f"\n{study.plan}\n", markup=False)
        with file_lock(out_):
            _require_new(out_)  # a job may be there by now
            study.job.save(out_, signing)
        _show(study.job, None if signing is None else signing.public)
    out.print(f"written to {out_}. Send it to every party. A party answers with")
    out.print(f"  dpvalue party answer {out_.name} THEIR.csv --name THEIR-NAME --ledger THEIR.ledger", markup=False)


def _require_new(path: Path) -> None:
    from dpvalue.errors import DpvalueError

    if not path.parent.is_dir():
        raise DpvalueError(f"folder {path.parent} does not exist")
    if os.path.lexists(path):
        raise DpvalueError(f"{path} already exists: a job must not change after it was sent")


def _sizes(sizes: Text, parties: int | None, test: Text) -> list[int]:
    """Return the sizes that a job is planned for; by default the size of the public file."""
    from dpvalue.data.files import read_public
    from dpvalue.errors import DpvalueError

    if (sizes is None) == (parties is None):
        raise DpvalueError("give either --sizes (as 303,294,123,200) or --parties")
    if sizes is None:
        assert parties is not None
        if test is None:
            raise DpvalueError("--test must be given: the public file")
        return [len(read_public(Path(test)))] * parties
    parts = [part.strip() for part in sizes.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise DpvalueError(f"sizes must be whole numbers separated by commas, got {sizes!r}")
    return [int(part) for part in parts]


@job_app.command("show")
def job_show(path: Annotated[Path, argument()]) -> None:
    """Show what a job asks for, what it spends and what a party sends back.

    Example: dpvalue job show study.job
    """
    with failing_clearly():
        from dpvalue.protocol.archive import read_bytes
        from dpvalue.protocol.job import Job

        found, seal = Job.open_sealed(read_bytes(path, "a job"), str(path))
        _show(found, None if seal is None else seal.by)


@job_app.command("verify")
def job_verify(
    path: Annotated[Path, argument()],
    test: Annotated[Path | None, option("The public file.")] = None,
) -> None:
    """Rebuild a job from its public file and compare the two.

    Example: dpvalue job verify study.job --test public.csv
    """
    with failing_clearly():
        from dpvalue.coordinator.study import options_of, verify_job
        from dpvalue.protocol.job import Job

        found = Job.load(path)
        exactly = verify_job(found, test or path.parent / options_of(found).test)
    out.print("the job matches the one rebuilt from the public file" + (", bit for bit" if exactly else ""))


def _show(job: Job, signed: str | None) -> None:
    """Print a summary of a job."""
    from dpvalue.display import counted, one_line
    from dpvalue.party.party import required_columns
    from dpvalue.privacy.guarantees import guarantee

    mechanism = job.mechanism
    spent = guarantee(
        job.privacy, mechanism.noise_multiplier, job.rounds, mechanism.clip, job.simulation is not None, mechanism.law
    )
    columns, asked = required_columns(job), job.statistic.words
    lines = {
        "job": job.digest,
        "signed by": signed or "no one",
        "public set": job.about.utility,
        "asks for": f"{counted(job.size, 'number')} per party, a noisy mean over clipped {_counted(job)}: {asked}",
        "reads": f"{counted(len(columns), 'column')}: {', '.join(one_line(name) for name in columns)}",
        "model": f"{job.model.kind if isinstance(job.model.kind, str) else 'custom'}, {job.encoding.task}",
        "spends": str(spent),
        "sends back": f"{counted(job.rounds, 'file')} of about {_bytes(job):,} bytes and the number of {_counted(job)}",
    }
    for name, text in lines.items():
        out.print(f"{name}: {text}", markup=False)


def _counted(job: Job) -> str:
    return "persons" if job.privacy.unit == "person" else "records"


def _bytes(job: Job) -> int:
    """Return the length of a release in bytes."""
    import torch

    from dpvalue.protocol.messages import Release

    blank = torch.zeros(job.size, dtype=getattr(torch, job.dtype))
    return len(Release(job.digest, job.digest, 0, "name", 0, blank).to_bytes())
