"""`dpvalue job`, `job show` and `job verify`: what a coordinator asks of parties, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpvalue.cli.common import METRICS, app, argument, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.protocol.job import Job

Text = str | None
job_app = typer.Typer(
    help="Make a job for parties to answer at home; show or verify one.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
app.add_typer(job_app, name="job")


@job_app.callback()
def job(
    context: typer.Context,
    test: Annotated[Text, option("The public file: trusted rows that judge.")] = None,
    target: Annotated[Text, option("The column of labels.")] = None,
    epsilon: Annotated[float, option("What a party spends; 1.")] = 1.0,
    out_: Annotated[Path, option("The file to write; study.job.", "--out")] = Path("study.job"),
    sizes: Annotated[Text, option("Parties' numbers of records (persons), as 303,294.")] = None,
    parties: Annotated[int | None, option("How many, if sizes are not known.")] = None,
    unit: Annotated[str, option("Protect each record (default), person or party.")] = "record",
    parties_per_person: Annotated[int, option("The most parties that hold a person; 1.")] = 1,
    delta: Annotated[float, option("Of Gaussian noise; 5e-5.")] = 5e-5,
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    semivalue: Annotated[list[str] | None, option("shapley (default), banzhaf, beta(4,1), loo.")] = None,
    task: Annotated[str, option("classification or regression; else inferred.")] = "auto",
    model: Annotated[str, option("logistic or linear; else by the task.")] = "auto",
    metric: Annotated[str, option(f"{METRICS}.")] = "loss",
    preprocess: Annotated[str, option("columns (default), or numbers as they are.")] = "columns",
    classes: Annotated[Text, option("All classes, as a,b,c, if the public file lacks some.")] = None,
    drop: Annotated[list[str] | None, option("Columns to leave out.")] = None,
    seed: Annotated[int, option("Seed of public randomness.")] = 0,
    key: Annotated[Path | None, option("Sign the job with this key (dpvalue key new).")] = None,
) -> None:
    """Make a job: what each party is to send, with how much noise. It holds no rows, of nobody.

    Each party answers with dpvalue party answer; dpvalue value makes values of the answers.

    Example: dpvalue job --test public.csv --target label --epsilon 1 --sizes 303,294,123,200 --out study.job
    """
    if context.invoked_subcommand is not None:
        return
    with failing_clearly():
        from dpvalue.coordinator.study import make_study
        from dpvalue.protocol.archive import Key
        from dpvalue.runs.config import make_config
        from dpvalue.storage import alone

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
            out.print(f"assumed: {parties} parties with {given['sizes'][0]} {unit}s each, as many as the public file")
        out.print(f"\n{study.plan}\n", markup=False)
        with alone(out_):
            _require_new(out_)  # a job may be there by now
            study.job.save(out_, signing)
        _show(study.job, None if signing is None else signing.public)
    out.print(f"written to {out_}: send it to every party, who answers with")
    out.print(f"  dpvalue party answer {out_.name} THEIR.csv --name THEIR-NAME --ledger THEIR.ledger", markup=False)


def _require_new(path: Path) -> None:
    from dpvalue.errors import DpvalueError

    if not path.parent.is_dir():
        raise DpvalueError(f"there is no folder {path.parent}")
    if path.exists():
        raise DpvalueError(f"there is a file already at {path}: a job that was sent must not change")


def _sizes(sizes: Text, parties: int | None, test: Text) -> list[int]:
    """The sizes that a job is planned for; without them, those of the public file."""
    from dpvalue.data.files import read_public
    from dpvalue.errors import DpvalueError

    if (sizes is None) == (parties is None):
        raise DpvalueError("give sizes, as --sizes 303,294,123,200, or else the number of --parties")
    if sizes is None:
        assert parties is not None
        if test is None:
            raise DpvalueError("test must be given: --test, the public file")
        return [len(read_public(Path(test)))] * parties
    parts = [part.strip() for part in sizes.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise DpvalueError(f"sizes must be whole numbers with commas between them, got {sizes!r}")
    return [int(part) for part in parts]


@job_app.command("show")
def job_show(path: Annotated[Path, argument()]) -> None:
    """Say what a job asks, what it spends and what is sent back.

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
    """Make a job again from its public file, and compare: it asks what it says, and nothing else.

    Example: dpvalue job verify study.job --test public.csv
    """
    with failing_clearly():
        from dpvalue.coordinator.study import options_of, verify_job
        from dpvalue.protocol.job import Job

        found = Job.load(path)
        exactly = verify_job(found, test or path.parent / options_of(found).test)
    out.print("the job is what its recipe makes of the public file" + (", to the bit" if exactly else ""))


def _show(job: Job, signed: str | None) -> None:
    """Print what a person asks of a job."""
    from dpvalue.display import one_line
    from dpvalue.party.party import required_columns
    from dpvalue.privacy.guarantees import guarantee

    mechanism = job.mechanism
    spent = guarantee(
        job.privacy, mechanism.noise_multiplier, job.rounds, mechanism.clip, job.simulation is not None, mechanism.law
    )
    columns, asked = required_columns(job), job.statistic.words
    lines = {
        "job": job.digest,
        "signed by": signed or "nobody",
        "public set": job.about.utility,
        "asks for": f"{asked}: {job.size} numbers a party, means over its {_counted(job)}, clipped, with noise",
        "reads": f"{len(columns)} columns: {', '.join(one_line(name) for name in columns)}",
        "model": f"{job.model.kind if isinstance(job.model.kind, str) else 'custom'}, {job.encoding.task}",
        "spends": str(spent),
        "sends back": f"{job.rounds} file(s) of about {_bytes(job):,} bytes, and the number of {_counted(job)}",
    }
    for name, text in lines.items():
        out.print(f"{name}: {text}", markup=False)


def _counted(job: Job) -> str:
    return "persons" if job.privacy.unit == "person" else "records"


def _bytes(job: Job) -> int:
    """How long a release is."""
    import torch

    from dpvalue.protocol.messages import Release

    blank = torch.zeros(job.size, dtype=getattr(torch, job.dtype))
    return len(Release(job.digest, job.digest, 0, "name", 0, blank).to_bytes())
