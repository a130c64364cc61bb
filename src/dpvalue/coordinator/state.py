"""The state of a coordinator in a folder: requests, releases and rejections. It resumes after a crash at any point.

    study.job                the job
    round-0/NAME.release     releases; the first valid one of each party counts
    round-1/parties.json     the participants: the parties that answered round 0. Writing it closes round 0
    round-1/NAME.request     the requests; on disk before one is sent
    roster.json              the roster, from the first command that gives one
    rejected.jsonl           rejected releases, with the reason (`Rejections`)

All input is untrusted: a release is checked before it is stored, and again when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import quote, unquote

from dpvalue.coordinator.releases import (
    Answers,
    Receipt,
    Rejections,
    combine_answers,
    next_requests,
    require_own,
    require_release,
    require_units,
    sorted_names,
)
from dpvalue.coordinator.roster import ROSTER, Roster, store_roster, stored_roster
from dpvalue.errors import DpvalueError
from dpvalue.names import look_of, names_agree_error, require_names, require_sendable
from dpvalue.protocol.archive import Key, Seal, read_bytes
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.storage import file_lock, write_whole
from dpvalue.stored import TEXT, list_of, parse_json, read_text, refuse_unreadable
from dpvalue.values.table import Table

NODES, OVER = "nodes.json", "over.json"
"""Files of a study over a network: the party of each node, and the mark of its end."""

_ROOM_BESIDE = 2**16  # bytes of a release beside its numbers


@dataclass(frozen=True)
class Coordinator:
    """The coordinator of one study.

    Args:
        folder: folder of the state; created if missing.
        content: the bytes of the job.
        roster: the parties and their keys. None: the roster of an earlier command; without one, the first release of
            each name counts, signed or not.
        key: key that signs requests; it must be the key of the job. None: requests are unsigned.
    """

    folder: Path
    content: bytes = field(repr=False)
    roster: Roster | None = None
    key: Key | None = None

    def __post_init__(self) -> None:
        _, seal = Job.open_sealed(self.content)
        if self.key is not None and (seal is None or seal.by != self.key.public):
            raise DpvalueError("the key must be the one that signed the job")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "study.job"
        if not path.is_file():
            with self._lock():
                if not path.is_file():
                    write_whole(path, self.content)
        if Job.from_bytes(path.read_bytes(), str(path)).digest != self.job.digest:
            raise DpvalueError(f"{self.folder} holds the state of another job: name another folder")
        self._read_roster()

    def _read_roster(self) -> None:
        """Read or store the roster; raise if it differs from the stored one, or lacks a party that has answered."""
        roster = stored_roster(self.folder, self.roster)
        object.__setattr__(self, "roster", roster)
        if roster is None:
            return
        for number in range(self.job.rounds):
            for name in self._respondents(number):
                path = self._path(number, name, "release")
                try:
                    self._require_known(name, Release.open_sealed(path.read_bytes(), str(path))[1])
                except DpvalueError as error:
                    raise DpvalueError(f"{path} was accepted before the roster was given: {error}") from None
        store_roster(self.folder, roster)

    @cached_property
    def job(self) -> Job:
        """The job."""
        return Job.from_bytes(self.content)

    @property
    def round(self) -> int:
        """The current round."""
        return max(
            number for number in range(self.job.rounds) if not number or self._participants_file(number).is_file()
        )

    def receive(self, content: bytes) -> Receipt:
        """Store a release if it is valid; return the outcome. The same bytes again have the same outcome.

        An error while reading or checking the bytes becomes the reason of a rejection: no input ends a study.
        """
        with self._lock():
            return self._receive(content)

    def _receive(self, content: bytes) -> Receipt:
        party, number = "?", 0
        try:
            with refuse_unreadable("the release"):
                if len(content) > self.most_bytes:
                    raise DpvalueError(f"the release must have at most {self.most_bytes:,} bytes")
                release, seal = Release.open_sealed(content)
                party, number = release.party, release.round
                self._require_known(party, seal)
                self._require_valid(release)
                path = self._path(number, party, "release")
                exists = path.is_file()
                if exists and Release.from_bytes(path.read_bytes()).digest != release.digest:
                    raise DpvalueError("it already sent another release for this round")
        except DpvalueError as error:
            return self.rejections.add(Receipt(party, number, str(error)))
        if not exists:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, content)
        return Receipt(party, number)

    def _lock(self) -> AbstractContextManager[None]:
        """A lock of the state: one process and thread at a time reads and then writes it."""
        return file_lock(self.folder / "study.job")

    @property
    def most_bytes(self) -> int:
        """The largest number of bytes of a release for the job."""
        return _ROOM_BESIDE + 8 * self.job.size

    @property
    def rejections(self) -> Rejections:
        """The rejected releases."""
        return Rejections(self.folder / "rejected.jsonl")

    def refuse(self, party: str, reason: str) -> Receipt:
        """Record that a party refused to answer, or did not answer in time."""
        with self._lock():
            return self.rejections.add(Receipt(party, self.round, reason))

    def pending_requests(self) -> dict[str, bytes]:
        """Return the requests of the current round, by party, for parties without a release; empty in round 0."""
        number = self.round
        if number == 0:
            return {}
        with self._lock():
            self._write_requests(number)
        waiting = [name for name in self.participants if not self._path(number, name, "release").is_file()]
        return {name: self._path(number, name, "request").read_bytes() for name in waiting}

    def close(self, ended: int | None = None) -> bool:
        """End the current round and begin the next; return whether there is one.

        A party that has not answered round 0 is excluded. A party that misses a later round has fewer releases, and
        spends less. If several processes end the same round, given as `ended`, only one of them does.
        """
        with self._lock():
            return self.round > ended if ended is not None and ended != self.round else self._close(self.round + 1)

    def _close(self, number: int) -> bool:
        if number == 1 and len(self._respondents(0)) < 2:
            raise DpvalueError(f"at least two parties must answer, got {len(self._respondents(0))}")
        if number >= self.job.rounds:
            return False
        self._participants_file(number).parent.mkdir(exist_ok=True)
        write_whole(self._participants_file(number), json.dumps(self.participants).encode())
        self._write_requests(number)
        return True

    @property
    def participants(self) -> list[str]:
        """The valued parties, which answered round 0, in the order of results."""
        closed = self._participants_file(1)
        if closed.is_file():
            names = parse_json(read_text(closed), str(closed))
            list_of(TEXT, least=2)(str(closed), names)
            return sorted_names(names)
        return sorted_names(self._respondents(0))

    def stored_releases(self) -> Iterator[tuple[Path, Release, Seal | None]]:
        """Yield the file, release and seal of each accepted release, by party and round."""
        for name in self.participants:
            for number in range(self.job.rounds):
                path = self._path(number, name, "release")
                if path.is_file():
                    release, seal = Release.open_sealed(path.read_bytes(), str(path))
                    if release.party != name or release.round != number:
                        raise DpvalueError(f"{path} does not hold the release that its name says")
                    yield path, release, seal

    def answers(self) -> dict[str, Answers]:
        """Return the releases of each party, checked again: others may have written to the folder."""
        releases: dict[str, list[Release]] = {name: [] for name in self.participants}
        require_names("names of parties", list(releases))
        owners: dict[tuple[int, bytes], str] = {}
        for path, release, seal in self.stored_releases():
            name, party_releases = release.party, releases[release.party]
            numbers = (release.numbers + 0.0).numpy().tobytes()  # 0.0 and -0.0 are one number
            try:
                self._require_known(name, seal)
                require_release(release, self.job, self._request_of(release))
                require_units(release, party_releases[0] if party_releases else release)
                require_own(name, owners.setdefault((release.round, numbers), name))
            except DpvalueError as error:
                raise DpvalueError(f"{path}: {error}") from None
            party_releases.append(release)
        for name, party_releases in releases.items():
            if not party_releases:
                raise DpvalueError(f"{self.folder} holds no release of the participant {name!r}")
        return {name: Answers(tuple(party_releases)) for name, party_releases in releases.items()}

    def seals(self) -> dict[str, Seal | None]:
        """Return the seal of the last release of each party."""
        return {release.party: seal for _, release, seal in self.stored_releases()}

    def requests(self, number: int) -> dict[str, Request]:
        """Return the requests of a round after the first, by party: a function of the job and of earlier rounds."""
        before = {}
        for name, answer in self.answers().items():
            before[name] = Answers(tuple(release for release in answer.releases if release.round < number))
        seals = {release.party: seal for _, release, seal in self.stored_releases() if release.round < number}
        heads = {name: seal.head for name, seal in seals.items() if seal is not None}
        return next_requests(self.job, number, before, heads)

    def request_file(self, number: int, party: str) -> Path:
        """Return the file of a party's request in a round."""
        return self._path(number, party, "request")

    def files(self) -> set[Path]:
        """Return all files that belong to the state; other files in its folder do not."""
        files = {self.folder / name for name in ("study.job", ROSTER, "rejected.jsonl")}
        for number in range(self.job.rounds):
            files |= {self._path(number, name, "release") for name in self.participants}
            if number:
                files |= {self._path(number, name, "request") for name in self.participants} | {
                    self._participants_file(number)
                }
        return files

    def table(self) -> Table:
        """Return the table of all releases."""
        return combine_answers(self.job, self.answers())

    def _require_known(self, party: str, seal: Seal | None) -> None:
        require_sendable(party)
        if self.roster is not None:
            self.roster.require_signed(party, seal)

    def _require_valid(self, release: Release) -> None:
        """Raise unless a release answers the party's request, and is no copy of another release."""
        number, party = release.round, release.party
        if number >= self.job.rounds or number > self.round:
            raise DpvalueError(f"round {number} was not requested")
        if number == 0 and self._participants_file(1).is_file() and party not in self.participants:
            raise DpvalueError("the first round is closed")
        if number and party not in self.participants:
            raise DpvalueError("it has not answered the first round")
        for name in self._respondents(0):
            if name != party and look_of(name) == look_of(party):
                raise names_agree_error("names of parties", name, party)
        first = self._path(0, party, "release")
        if number:
            require_units(release, Release.from_bytes(first.read_bytes()))
        require_release(release, self.job, self._request_of(release))
        for name, earlier in self._releases(number):
            if bool((earlier.numbers == release.numbers).all()):
                require_own(party, name)

    def _request_of(self, release: Release) -> Request:
        """The request that a release must answer."""
        if release.round == 0:
            return self.job.first_request(release.units)
        path = self.request_file(release.round, release.party)
        return Request.from_bytes(read_bytes(path, "a request"), str(path))

    def _write_requests(self, number: int) -> None:
        """Write the requests of a round, unless they exist."""
        names = self.participants
        if all(self._path(number, name, "request").is_file() for name in names):
            return
        for name, request in self.requests(number).items():
            path = self._path(number, name, "request")
            if not path.is_file():
                write_whole(path, request.to_bytes(self.key))

    def _releases(self, number: int) -> Iterator[tuple[str, Release]]:
        for name in self._respondents(number):
            path = self._path(number, name, "release")
            yield name, Release.from_bytes(path.read_bytes(), str(path))

    def _respondents(self, number: int) -> list[str]:
        folder = self.folder / f"round-{number}"
        return sorted(unquote(path.stem) for path in folder.glob("*.release") if not path.name.startswith("."))

    def _participants_file(self, number: int) -> Path:
        return self.folder / f"round-{number}" / "parties.json"

    def _path(self, number: int, party: str, kind: str) -> Path:
        return self.folder / f"round-{number}" / f"{quote(party, safe=' ').replace('.', '%2E')}.{kind}"
