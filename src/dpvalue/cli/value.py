"""`dpvalue value` and `verify`: compute values from releases; recompute and compare results."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpvalue.cli.common import app, argument, failing_clearly, option, out, show_done
from dpvalue.display import one_line

if TYPE_CHECKING:
    from dpvalue.coordinator.verifying import Verification

_MOST_LINES = 50
_UNSEEN = (
    "whether parties released honestly: their rows, noise and numbers of records",
    "whether an unsigned release came from the party it names, and whether a release was left out",
    "why a release was rejected: rejected.jsonl is the coordinator's note",
    "whether the job matches its public file: use dpvalue job verify",
)


@app.command()
def value(
    job: Annotated[Path, argument()],
    releases: Annotated[list[Path] | None, argument()] = None,
    out_: Annotated[Path, option("Output folder; results.", "--out")] = Path("results"),
    test: Annotated[Path | None, option("Public file; by default the one the job names.")] = None,
    roster: Annotated[Path | None, option("roster.toml: names and keys of the parties.")] = None,
    key: Annotated[Path | None, option("Key that signed the job.")] = None,
    semivalue: Annotated[list[str] | None, option("Other semivalues than the job's.")] = None,
    metric: Annotated[str | None, option("Another metric than the job's.")] = None,
    pay: Annotated[float | None, option("Amount to share in proportion to values.")] = None,
) -> None:
    """Compute values from the releases of a job. Run it again to add late releases.

    If the job has several rounds, the command writes the requests of the next round.

    Example: dpvalue value study.job releases/*.release --out results
    """
    with failing_clearly():
        from dpvalue.storage import folder_lock

        with folder_lock(out_):
            changes = {"semivalue": tuple(semivalue or ()), "metric": metric, "pay": pay}
            value_releases(job, releases or [], out_, test, roster, key, **changes)


def value_releases(
    job: Path,
    releases: list[Path],
    place: Path,
    test: Path | None,
    roster: Path | None,
    key: Path | None,
    **changes: object,
) -> None:
    """Add releases to a study and compute values, in a locked folder.

    `changes` are value options that replace the job's; None and () replace nothing.
    """
    from dpvalue.coordinator.roster import read_roster
    from dpvalue.coordinator.state import Coordinator
    from dpvalue.coordinator.study import STATE, options_for, options_of, read_utility, require_place, value_study
    from dpvalue.progress import reporting
    from dpvalue.protocol.archive import Key, read_bytes
    from dpvalue.protocol.job import Job

    content = read_bytes(job, "a job")
    asked = Job.from_bytes(content, str(job))
    require_place(place, asked)
    public = test or job.parent / options_of(asked).test
    options = options_for(asked, public, **changes)
    utility = read_utility(asked, public, options.metric)
    known = None if roster is None else read_roster(roster)
    coordinator = Coordinator(place / STATE, content, known, None if key is None else Key.read(key))
    for path in releases:
        receipt = coordinator.receive(read_bytes(path, "a release", coordinator.most_bytes + 1))
        if receipt.why:
            out.print(f"{path} rejected: {receipt.why}", markup=False)
    if asked.rounds > 1 and not _last_round(coordinator):
        return
    with reporting(progress=True) as tell:
        done = value_study(coordinator, utility, options, place, tell)
    _who(done.record.federated)
    show_done(done)


def _last_round(coordinator: object) -> bool:
    """Open the next round, if there is one, and print where its requests are; return whether all rounds are done."""
    from dpvalue.coordinator.state import Coordinator

    assert isinstance(coordinator, Coordinator)
    number, waiting = coordinator.round, coordinator.pending_requests()
    if number and waiting:
        out.print(f"round {number}: waiting for {', '.join(waiting)}", markup=False)
    if number + 1 < coordinator.job.rounds and not waiting:
        coordinator.close(number)
        number = coordinator.round
        folder = coordinator.folder / f"round-{number}"
        out.print(f"round {number} of {coordinator.job.rounds}: send each party its request in {folder}", markup=False)
        out.print("  dpvalue party answer JOB THEIR.csv --request THEIR.request ...")
        return False
    return not waiting


def _who(study: object) -> None:
    from dpvalue.display import counted
    from dpvalue.report.record import StudyRecord

    assert isinstance(study, StudyRecord)
    signed = sum(bool(party.key) for party in study.answered)
    out.print(
        f"releases: {counted(len(study.answered), 'party', 'parties')}, {signed} signed; {len(study.rejected)} rejected"
    )


@app.command()
def verify(
    folder: Annotated[Path, argument()],
    test: Annotated[Path | None, option("Public file; by default the one the job names.")] = None,
    roster: Annotated[Path | None, option("roster.toml with keys that must have signed the releases.")] = None,
) -> None:
    """Recompute all results of a study from its job and releases, and compare every file, line and field.

    Exit codes: 0 all results match, 1 something differs, 2 the results cannot be compared.

    Example: dpvalue verify results --test public.csv
    """
    with failing_clearly():
        from dpvalue.coordinator.roster import read_roster
        from dpvalue.coordinator.verifying import verify_results
        from dpvalue.progress import reporting

        known = None if roster is None else read_roster(roster)
        with reporting(progress=True) as tell:
            found = verify_results(folder, test, tell, known)
    for line in _differing(found, folder) if found.differences else _alike(found, folder, roster):
        out.print(one_line(line), markup=False)
    raise typer.Exit(1 if found.differences else 0)


def _differing(found: Verification, folder: Path) -> list[str]:
    """Return the lines printed for results that differ."""
    from dpvalue.display import counted

    many = len(found.differences)
    more = [f"... and {many - _MOST_LINES} more"] if many > _MOST_LINES else []
    return [
        *found.differences[:_MOST_LINES],
        *more,
        f"{folder} does not match its job and releases: {counted(many, 'difference')}",
    ]


def _alike(found: Verification, folder: Path, roster: Path | None) -> list[str]:
    """Return the lines printed for results that match: what was compared, and what cannot be checked."""
    from dpvalue.display import counted

    whose = "owners of the keys not checked (give --roster)" if roster is None else f"by the keys in {roster}"
    return [
        f"{folder} matches its job and the releases of {counted(len(found.parties), 'party', 'parties')}",
        f"compared: {', '.join(found.compared_outputs)}; text exactly, numbers within {found.close:g} "
        "of the "
        "largest of their kind",
        f"job: {found.job}",
        f"signed: {found.signatures} of {found.releases} releases, {whose}",
        f"taken from run.json: {'; '.join(found.unverified_choices)}",
        *(f"not compared: {file}" for file in found.unchecked_files),
        *(f"cannot be checked: {what}" for what in _UNSEEN),
    ]
