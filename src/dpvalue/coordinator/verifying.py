"""Verify a folder of results: rebuild every output from job and releases, and compare.

The writer of a folder controls all of it. So only the job and the releases are trusted, which digests and signatures
tie together. Choices of the valuation are read from the folder, as they decide what is shown and not what is true:
semivalues, metric, total to pay, name of the public file, day, versions of Python and torch.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from reprlib import repr as short
from typing import Any

from dpvalue import __version__
from dpvalue.coordinator.comparing import (
    CLOSE,
    OUTPUTS,
    compare_outputs,
    compare_tensors,
    compare_text,
    compare_tree,
    difference,
    note_errors,
    rebuild_outputs,
    with_stored_versions,
)
from dpvalue.coordinator.roster import ROSTER, Roster
from dpvalue.coordinator.state import NODES, OVER, Coordinator
from dpvalue.coordinator.study import STATE, options_of, read_utility
from dpvalue.errors import DpvalueError
from dpvalue.privacy.guarantees import guarantee
from dpvalue.privacy.laws import find_law
from dpvalue.progress import Progress
from dpvalue.protocol.archive import read_bytes, read_metadata
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Request
from dpvalue.report.record import FORMAT_VERSION, Record
from dpvalue.runs.config import RunConfig, make_config, parse_options
from dpvalue.runs.folder import open_folder
from dpvalue.stored import OBJECT, TEXT, parse_json

_MOST = 1 + 1e-6  # largest ratio of spent to stated epsilon

_TINY, _STATED = 1e-9, "about.table.guarantee"

_NOTES = {NODES, OVER, "rejected.jsonl"}  # files of a coordinator that are no results


@dataclass(frozen=True)
class Verification:
    """The outcome of a verification.

    Attributes:
        differences: one line per difference; empty if every output equals the rebuilt one.
        job: digest of the job.
        compared_outputs: the rebuilt outputs.
        parties: names of the parties.
        releases: number of accepted releases.
        signatures: number of signed releases.
        unverified_choices: choices that were read from the folder.
        unchecked_files: files in the folder that were not compared.
        close: tolerance of numbers, relative to the largest of their kind.
    """

    differences: tuple[str, ...]
    job: str = ""
    compared_outputs: tuple[str, ...] = ()
    parties: tuple[str, ...] = ()
    releases: int = 0
    signatures: int = 0
    unverified_choices: tuple[str, ...] = ()
    unchecked_files: tuple[str, ...] = ()
    close: float = CLOSE


def verify_results(folder: Path, test: Path | None, progress: Progress, roster: Roster | None = None) -> Verification:
    """Rebuild all outputs of a study, and compare them with those in a folder; nothing is written.

    Formal guarantee: without differences, valuing these releases of this job with `unverified_choices` gives these
    outputs, up to the rounding of numbers (`comparing.CLOSE`). The honesty of the releases is not verified.

    Args:
        folder: output folder of `dpvalue value`.
        test: the public file; None: the file that the job names, beside the folder.
        progress: reports the progress.
        roster: the parties and their keys; each release must be signed by its party. None: keys are not checked.

    Raises:
        DpvalueError: a folder that cannot be compared: no results of a study, results of another version of dpvalue,
            or another public file.
    """
    _require_results(folder)
    try:
        text = read_bytes(folder / "run.json", "the record of a run").decode()
        stored = parse_json(text, str(folder / "run.json"))
        OBJECT(str(folder / "run.json"), stored)
    except (DpvalueError, UnicodeDecodeError) as error:
        return _failure(error)
    _require_version(folder, stored)
    try:
        coordinator = _read_releases(folder / STATE, roster)
    except (DpvalueError, OSError) as error:
        return _failure(error)
    options_of_job = options_of(coordinator.job)
    public = test or folder.absolute().parent / Path(options_of_job.test).name
    utility = read_utility(coordinator.job, public)
    differences = [
        *_compare_guarantee(coordinator.job),
        *_compare_requests(coordinator),
        *_unknown_files(folder, coordinator),
    ]
    options = _read_choices(folder, stored, options_of_job, differences)
    with note_errors(differences, "run.json, toml"):
        utility = read_utility(coordinator.job, public, options.metric)
    rebuilt = with_stored_versions(rebuild_outputs(coordinator, utility, options, progress), stored)
    differences += compare_outputs(folder, stored, text, rebuilt)
    seals = [seal for _, _, seal in coordinator.stored_releases()]
    later = () if coordinator.job.rounds == 1 else ("the requests of later rounds",)
    files = (path.relative_to(folder) for path in _files(folder))
    return Verification(
        tuple(differences),
        coordinator.job.digest,
        (*OUTPUTS, *later),
        tuple(coordinator.participants),
        len(seals),
        sum(seal is not None for seal in seals),
        _recorded_choices(rebuilt.record, options),
        tuple(str(path) for path in files if _is_unchecked(path)),
    )


def _failure(error: Exception) -> Verification:
    """The outcome if no output can be rebuilt."""
    return Verification((f"{error}; nothing was recomputed",))


def _require_results(folder: Path) -> None:
    """Raise unless a folder holds results of a study."""
    if not (folder / STATE / "study.job").is_file():
        open_folder(folder)  # raises if it is no folder of results
        raise DpvalueError(
            f"{folder} is of a local run, which stores no releases, so its table cannot be verified; dpvalue revalue "
            f"{folder} --out NEW recomputes values from the table"
        )
    if not any((folder / name).exists() for name in OUTPUTS):
        raise DpvalueError(f"{folder} holds no results yet: run dpvalue value")


def _require_version(folder: Path, stored: dict[str, Any]) -> None:
    """Raise unless this version of dpvalue wrote run.json and the job."""
    versions, job = stored.get("versions"), Job.archive.version
    with suppress(DpvalueError):  # a damaged job differs later
        job = read_metadata((folder / STATE / "study.job").read_bytes(), "the job").get("format", job)
    stored_versions = versions.get("dpvalue") if isinstance(versions, dict) else None, stored.get("format"), job
    own_versions = __version__, FORMAT_VERSION, Job.archive.version
    if stored_versions != own_versions:
        text = "dpvalue {}, run.json of format {} and jobs of format {}"
        stored_text, own_text = text.format(*map(short, stored_versions)), text.format(*own_versions)
        raise DpvalueError(f"{folder} cannot be compared: it has {stored_text}; this is {own_text}")


def _read_releases(state: Path, roster: Roster | None) -> Coordinator:
    """The checked job and releases: each release answers the job, and is signed by a key of the roster."""
    path = state / "study.job"
    content = path.read_bytes()
    Job.open_sealed(content, str(path))  # raises with the name of the file
    coordinator = Coordinator(state, content)
    coordinator.answers()
    if roster is None:
        return coordinator
    if coordinator.roster is not None and coordinator.roster.keys != roster.keys:
        raise DpvalueError(f"{state / ROSTER} is not the roster that was given")
    for release_file, release, seal in coordinator.stored_releases():
        try:
            roster.require_signed(release.party, seal)
        except DpvalueError as error:
            raise DpvalueError(f"{release_file}: {error}") from None
    return coordinator


def _compare_guarantee(job: Job) -> list[str]:
    """The differences between the stated guarantee of a job and that of its noise and rounds."""
    mechanism, privacy, file = job.mechanism, job.privacy, f"{STATE}/study.job"
    expected = guarantee(
        privacy, mechanism.noise_multiplier, job.rounds, mechanism.clip, job.simulation is not None, mechanism.law
    )
    law = find_law(mechanism.law)
    loss = law.loss(mechanism.noise_multiplier, job.rounds * privacy.parties_per_person)
    epsilon = law.epsilon(loss, privacy.delta)
    if epsilon > _MOST * (expected.epsilon or 0.0):
        return [difference(file, "privacy.epsilon", expected.epsilon, epsilon)]
    stored = None if job.about.table is None else job.about.table[0]["guarantee"]
    return compare_tree(file, stored, asdict(expected), {_STATED: _TINY}, _STATED)[1]


def _compare_requests(coordinator: Coordinator) -> list[str]:
    """The differences between the requests of later rounds and those rebuilt from earlier releases."""
    differences: list[str] = []
    for number in range(1, coordinator.round + 1):
        for party, request in coordinator.requests(number).items():
            path = coordinator.request_file(number, party)
            file = str(path.relative_to(coordinator.folder.parent))
            with note_errors(differences, file):
                (header, tensors), rebuilt = (
                    Request.from_bytes(read_bytes(path, "a request"), file).parts(),
                    request.parts(),
                )
                differences += compare_tree(file, header, rebuilt[0], {})[1] + compare_tensors(
                    file, tensors, rebuilt[1]
                )
    return differences


def _files(folder: Path) -> list[Path]:
    """All files in a folder of results; folders inside that other commands write are listed by name."""
    files = []
    for path in sorted(folder.iterdir()):
        files += sorted(inside for inside in path.rglob("*") if not inside.is_dir()) if path.name == STATE else [path]
    return files


def _is_unchecked(path: Path) -> bool:
    """Whether a file is no result: a note of the coordinator, a partial file, or the output of another command."""
    is_note = path.parts[0] == STATE and path.name in _NOTES
    return is_note or path.name.startswith(".") or (len(path.parts) == 1 and path.name.startswith("revalue-"))


def _unknown_files(folder: Path, coordinator: Coordinator) -> list[str]:
    """The files that do not belong to the results."""
    known_files = {folder / name for name in OUTPUTS} | coordinator.files()
    unknown = (path.relative_to(folder) for path in _files(folder) if path not in known_files)
    return [f"{path}: no part of the results" for path in unknown if not _is_unchecked(path)]


def _read_choices(folder: Path, stored: dict[str, Any], options: RunConfig, differences: list[str]) -> RunConfig:
    """The job's options with the choices in run.json; differences of run.toml are added to `differences`."""
    recorded = stored.get("toml")
    with note_errors(differences, "run.json, toml"):
        TEXT("toml", recorded)
        stored_config = make_config(parse_options(str(recorded), "toml"))
        options = replace(
            options,
            test=stored_config.test,
            semivalue=stored_config.semivalue,
            metric=stored_config.metric,
            pay=stored_config.pay,
        )
    with note_errors(differences, "run.toml"):
        text = (folder / "run.toml").read_bytes().decode()
        if recorded != text:
            differences.append("run.json, toml: it differs from run.toml")
        differences += compare_text("run.toml", text, options.to_toml())
    return options


def _recorded_choices(record: Record, options: RunConfig) -> tuple[str, ...]:
    """The choices that were read from the folder, in words."""
    versions = record.versions
    total = () if options.pay is None else (f"a total of {options.pay:,g} to pay",)
    return (
        f"made on {record.made} with Python {versions.python} and torch {versions.torch}",
        f"public file called {options.test}",
        f"semivalues {', '.join(options.semivalue)}",
        f"metric {options.metric}",
        *total,
    )
