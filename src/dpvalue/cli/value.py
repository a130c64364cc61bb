"""`dpvalue value` and `verify`: from parties' answers to values, and all results made again by anyone."""

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
    "whether parties released honestly: rows, noise and numbers of records are theirs to say",
    "whether a release that is not signed came from the party it names, and whether any was left out",
    "why something does not count: rejected.jsonl is the coordinator's own note",
    "whether the job is what its recipe makes of the public file: dpvalue job verify compares that",
)


@app.command()
def value(
    job: Annotated[Path, argument()],
    releases: Annotated[list[Path] | None, argument()] = None,
    out_: Annotated[Path, option("The folder to write; results.", "--out")] = Path("results"),
    test: Annotated[Path | None, option("The public file; else as the job names it.")] = None,
    roster: Annotated[Path | None, option("roster.toml: names and keys of the parties.")] = None,
    key: Annotated[Path | None, option("The key that the job was signed with.")] = None,
    semivalue: Annotated[list[str] | None, option("Others than the job's.")] = None,
    metric: Annotated[str | None, option("Another than the job's, as in dpvalue job.")] = None,
    pay: Annotated[float | None, option("An amount to share by value.")] = None,
) -> None:
    """Value what parties have released for a job. Late answers are added to what is there, and all is valued again.

    With more rounds than one, it writes what each party is asked next.

    Example: dpvalue value study.job releases/*.release --out results
    """
    with failing_clearly():
        from dpvalue.storage import held

        with held(out_):
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
    """Add releases to a study, and value it, in a folder that no other process writes meanwhile.

    `changes` are options of values that differ from the job's; None and () do not.
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
            out.print(f"{path} does not count: {receipt.why}", markup=False)
    if asked.rounds > 1 and not _last_round(coordinator):
        return
    with reporting(progress=True) as tell:
        done = value_study(coordinator, utility, options, place, tell)
    _who(done.record.federated)
    show_done(done)


def _last_round(coordinator: object) -> bool:
    """Go on to the next round, if there is one, and say where its requests are."""
    from dpvalue.coordinator.state import Coordinator

    assert isinstance(coordinator, Coordinator)
    number, waiting = coordinator.round, coordinator.pending_requests()
    if number and waiting:
        out.print(f"waiting for round {number} of: {', '.join(waiting)}", markup=False)
    if number + 1 < coordinator.job.rounds and not waiting:
        coordinator.close(number)
        number = coordinator.round
        folder = coordinator.folder / f"round-{number}"
        out.print(f"round {number} of {coordinator.job.rounds}: send each party its request in {folder}", markup=False)
        out.print("  dpvalue party answer JOB THEIR.csv --request THEIR.request ...")
        return False
    return not waiting


def _who(study: object) -> None:
    from dpvalue.report.record import StudyRecord

    assert isinstance(study, StudyRecord)
    signed = sum(bool(party.key) for party in study.answered)
    out.print(f"{len(study.answered)} parties answered, {signed} of them signed; {len(study.rejected)} do not count")


@app.command()
def verify(
    folder: Annotated[Path, argument()],
    test: Annotated[Path | None, option("The public file; else beside the folder, as the job names it.")] = None,
    roster: Annotated[Path | None, option("roster.toml: releases must be signed by the keys in it.")] = None,
) -> None:
    """Make all results of a study again from its job and releases, and compare: every file, line and field.

    Exit codes: 0 everything is as it is made again, 1 something differs, 2 it cannot be compared.

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
    """What is said of results that are not what their job and releases make."""
    many = len(found.differences)
    more = [f"... and {many - _MOST_LINES} more"] if many > _MOST_LINES else []
    return [
        *found.differences[:_MOST_LINES],
        *more,
        f"{folder} is not what its job and releases make: {many} difference(s)",
    ]


def _alike(found: Verification, folder: Path, roster: Path | None) -> list[str]:
    """What was compared, what was believed and what nobody can check."""
    whose = (
        "whose keys these are was not checked: that takes --roster" if roster is None else f"by the keys in {roster}"
    )
    return [
        f"{folder} is what its job and the releases of {len(found.parties)} parties make",
        f"compared: {', '.join(found.compared_outputs)}; texts to the letter, numbers within {found.close:g} "
        "of the largest of their kind",
        f"job: {found.job}",
        f"signed: {found.signatures} of {found.releases} releases, {whose}",
        f"as run.json says: {'; '.join(found.unverified_choices)}",
        *(f"not compared: {file}" for file in found.unchecked_files),
        *(f"cannot be seen here: {what}" for what in _UNSEEN),
    ]
