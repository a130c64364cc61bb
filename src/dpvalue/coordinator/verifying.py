"""Whether a folder of results matches its job and releases: every output is recomputed and compared.

Whoever can write the folder can write all of it. So nothing in it is believed but the job and the releases, which fit
together by digests and by what parties signed; and, because they decide what is shown and not what is true, the choices
of whoever valued: semivalues, the metric, a total to pay, the name of the public file, the day, the versions of Python
and torch.
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
    as_recorded,
    collecting,
    compare_outputs,
    compare_tensors,
    compare_text,
    compare_tree,
    differs,
    remake,
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

_MOST = 1 + 1e-6  # of the epsilon that is stated, may be spent

_TINY, _STATED = 1e-9, "about.table.guarantee"

_NOTES = {NODES, OVER, "rejected.jsonl"}  # a coordinator's own


@dataclass(frozen=True)
class Verification:
    """What a comparison found.

    Attributes:
        differences: a line for each; none where every output is as it is made again.
        job: the digest of the job.
        compared: what was made again and compared, numbers up to the share `close` of the largest of their kind.
        parties: whose releases count.
        releases: how many those are.
        signed: how many of them are signed.
        recorded: what was taken as the folder says it.
        unchecked: files in the folder that were not compared.
    """

    differences: tuple[str, ...]
    job: str = ""
    compared: tuple[str, ...] = ()
    parties: tuple[str, ...] = ()
    releases: int = 0
    signed: int = 0
    recorded: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    close: float = CLOSE


def verify_results(folder: Path, test: Path | None, progress: Progress, roster: Roster | None = None) -> Verification:
    """Make all outputs of a study again, and compare them with those in a folder; nothing is written.

    Formal guarantee: where there are no differences, whoever values these releases of this job, with the choices in
    `recorded`, gets these outputs, up to the rounding of numbers (`comparing.CLOSE`). Nothing is said of how honest the
    releases are.

    Args:
        folder: what `dpvalue value` has written.
        test: the public file; None: beside the folder, by the name that the job says.
        progress: how far it is.
        roster: the parties and their keys; each release must be signed by its party's. None: keys are not checked.

    Raises:
        DpvalueError: if there is nothing to compare: no results of a study, those of another version of dpvalue, or
            another public file.
    """
    _require_results(folder)
    try:
        text = read_bytes(folder / "run.json", "the record of a run").decode()
        stored = parse_json(text, str(folder / "run.json"))
        OBJECT(str(folder / "run.json"), stored)
    except (DpvalueError, UnicodeDecodeError) as error:
        return _unusable(error)
    _require_version(folder, stored)
    try:
        coordinator = _evidence(folder / STATE, roster)
    except (DpvalueError, OSError) as error:
        return _unusable(error)
    options_of_job = options_of(coordinator.job)
    public = test or folder.absolute().parent / Path(options_of_job.test).name
    utility = read_utility(coordinator.job, public)
    differences = [*_unlike_noise(coordinator.job), *_compare_requests(coordinator), *_strangers(folder, coordinator)]
    options = _choices(folder, stored, options_of_job, differences)
    with collecting(differences, "run.json, toml"):
        utility = read_utility(coordinator.job, public, options.metric)
    made = as_recorded(remake(coordinator, utility, options, progress), stored)
    differences += compare_outputs(folder, stored, text, made)
    seals = [seal for _, _, seal in coordinator.kept()]
    later = () if coordinator.job.rounds == 1 else ("the requests of later rounds",)
    files = (path.relative_to(folder) for path in _files(folder))
    return Verification(
        tuple(differences),
        coordinator.job.digest,
        (*OUTPUTS, *later),
        tuple(coordinator.taking_part),
        len(seals),
        sum(seal is not None for seal in seals),
        _recorded(made.record, options),
        tuple(str(path) for path in files if _is_unchecked(path)),
    )


def _unusable(error: Exception) -> Verification:
    """The outcome where nothing can be recomputed."""
    return Verification((f"{error}; nothing was recomputed",))


def _require_results(folder: Path) -> None:
    """Raise unless a folder holds results of a study."""
    if not (folder / STATE / "study.job").is_file():
        open_folder(folder)  # raises for what is no folder of results
        raise DpvalueError(
            f"{folder} is of a local run, which stores no releases, so its table cannot be verified; dpvalue revalue "
            f"{folder} --out NEW recomputes values from the table"
        )
    if not any((folder / name).exists() for name in OUTPUTS):
        raise DpvalueError(f"{folder} holds no results yet: run dpvalue value")


def _require_version(folder: Path, stored: dict[str, Any]) -> None:
    """Raise unless this version wrote run.json, and reads jobs of this format."""
    versions, job = stored.get("versions"), Job.archive.version
    with suppress(DpvalueError):  # what is damaged differs
        job = read_metadata((folder / STATE / "study.job").read_bytes(), "the job").get("format", job)
    found = versions.get("dpvalue") if isinstance(versions, dict) else None, stored.get("format"), job
    own = __version__, FORMAT_VERSION, Job.archive.version
    if found != own:
        words = "dpvalue {}, run.json of format {} and jobs of format {}"
        raise DpvalueError(
            f"{folder} cannot be compared: it has {words.format(*map(short, found))}; this is {words.format(*own)}"
        )


def _evidence(state: Path, roster: Roster | None) -> Coordinator:
    """The job and the releases, checked: each answers the job, and is signed as the roster says."""
    path = state / "study.job"
    content = path.read_bytes()
    Job.open_sealed(content, str(path))  # names the file in what it raises
    coordinator = Coordinator(state, content)
    coordinator.answers()
    if roster is None:
        return coordinator
    if coordinator.roster is not None and coordinator.roster.keys != roster.keys:
        raise DpvalueError(f"{state / ROSTER} is not the roster that was given")
    for release_file, release, seal in coordinator.kept():
        try:
            roster.require_signed(release.party, seal)
        except DpvalueError as error:
            raise DpvalueError(f"{release_file}: {error}") from None
    return coordinator


def _unlike_noise(job: Job) -> list[str]:
    """What is wrong with the guarantee that a job states: it must be what its noise makes of its rounds."""
    mechanism, privacy, file = job.mechanism, job.privacy, f"{STATE}/study.job"
    spent = guarantee(
        privacy, mechanism.noise_multiplier, job.rounds, mechanism.clip, job.simulation is not None, mechanism.law
    )
    law = find_law(mechanism.law)
    loss = law.loss(mechanism.noise_multiplier, job.rounds * privacy.parties_per_person)
    epsilon = law.epsilon(loss, privacy.delta)
    if epsilon > _MOST * (spent.epsilon or 0.0):
        return [differs(file, "privacy.epsilon", spent.epsilon, epsilon)]
    stated = None if job.about.table is None else job.about.table[0]["guarantee"]
    return compare_tree(file, stated, asdict(spent), {_STATED: _TINY}, _STATED)[1]


def _compare_requests(coordinator: Coordinator) -> list[str]:
    """What differs between the requests of later rounds and what earlier releases make of the job."""
    differences: list[str] = []
    for number in range(1, coordinator.round + 1):
        for party, made in coordinator.requests(number).items():
            path = coordinator.request_file(number, party)
            file = str(path.relative_to(coordinator.folder.parent))
            with collecting(differences, file):
                (header, tensors), own = Request.from_bytes(read_bytes(path, "a request"), file).parts(), made.parts()
                differences += compare_tree(file, header, own[0], {})[1] + compare_tensors(file, tensors, own[1])
    return differences


def _files(folder: Path) -> list[Path]:
    """All files in a folder of results; of a folder inside that other commands write, its name."""
    found = []
    for path in sorted(folder.iterdir()):
        found += sorted(inside for inside in path.rglob("*") if not inside.is_dir()) if path.name == STATE else [path]
    return found


def _is_unchecked(path: Path) -> bool:
    """Whether a file is no result, but what other commands or a writer that was killed leave beside them."""
    own = path.parts[0] == STATE and path.name in _NOTES
    return own or path.name.startswith(".") or (len(path.parts) == 1 and path.name.startswith("revalue-"))


def _strangers(folder: Path, coordinator: Coordinator) -> list[str]:
    """Files that are no part of results."""
    known = {folder / name for name in OUTPUTS} | coordinator.files()
    strange = (path.relative_to(folder) for path in _files(folder) if path not in known)
    return [f"{path}: no part of the results" for path in strange if not _is_unchecked(path)]


def _choices(folder: Path, stored: dict[str, Any], options: RunConfig, differences: list[str]) -> RunConfig:
    """The job's options with what whoever valued has chosen, as run.json says; and how run.toml differs."""
    recorded = stored.get("toml")
    with collecting(differences, "run.json, toml"):
        TEXT("toml", recorded)
        given = make_config(parse_options(str(recorded), "toml"))
        options = replace(options, test=given.test, semivalue=given.semivalue, metric=given.metric, pay=given.pay)
    with collecting(differences, "run.toml"):
        text = (folder / "run.toml").read_bytes().decode()
        if recorded != text:
            differences.append("run.json, toml: it differs from run.toml")
        differences += compare_text("run.toml", text, options.to_toml())
    return options


def _recorded(record: Record, options: RunConfig) -> tuple[str, ...]:
    """What was taken as a folder says it."""
    versions = record.versions
    paid = () if options.pay is None else (f"a total of {options.pay:,g} to pay",)
    return (
        f"made on {record.made} with Python {versions.python} and torch {versions.torch}",
        f"public file called {options.test}",
        f"semivalues {', '.join(options.semivalue)}",
        f"metric {options.metric}",
        *paid,
    )
