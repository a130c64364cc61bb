"""A coordinator's state, in a folder: what was asked, what came, what does not count. Killed anywhere, it goes on.

    study.job                the job, as parties have it
    round-0/NAME.release     answers; the first valid one of a party counts
    round-1/parties.json     who is asked in the next round: those who answered the first. Written first, it closes it
    round-1/NAME.request     what each is asked; on disk before anything is sent
    roster.json              the roster, from the first command with one on
    rejected.jsonl           what came and does not count, and why (`Rejections`)

Whatever comes is untrusted: a release is checked before it is kept, and again when it is read.
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
    in_order,
    next_requests,
    require_own,
    require_release,
    require_units,
)
from dpvalue.coordinator.roster import ROSTER, Roster, remember, remembered
from dpvalue.errors import DpvalueError
from dpvalue.names import look_of, names_agree_error, require_names, require_sendable
from dpvalue.protocol.archive import Key, Seal, read_bytes
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.storage import alone, write_whole
from dpvalue.stored import TEXT, list_of, parse_json, read_text, refuse_unreadable
from dpvalue.values.table import Table

NODES, OVER = "nodes.json", "over.json"
"""What conducting a study over a network notes beside it: who is at which node, and that it is over."""

_ROOM_BESIDE = 2**16  # bytes of a release beside its numbers


@dataclass(frozen=True)
class Coordinator:
    """One study.

    Args:
        folder: where its state is kept; made if it is not there.
        content: the bytes of the job.
        roster: the parties and their keys. None: those that the folder keeps from an earlier command; without any,
            anybody, signed or not, the first of a name.
        key: what requests are sealed with; it must be that of the job. None: they are not.
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
        kept = self.folder / "study.job"
        if not kept.is_file():
            with self._alone():
                if not kept.is_file():
                    write_whole(kept, self.content)
        if Job.from_bytes(kept.read_bytes(), str(kept)).digest != self.job.digest:
            raise DpvalueError(f"{self.folder} holds the state of another job: name another folder")
        self._recall_roster()

    def _recall_roster(self) -> None:
        """Keep the roster; raise for one that differs from what is kept, or that lacks who has answered before."""
        roster = remembered(self.folder, self.roster)
        object.__setattr__(self, "roster", roster)
        if roster is None:
            return
        for number in range(self.job.rounds):
            for name in self._answered(number):
                path = self._path(number, name, "release")
                try:
                    self._require_known(name, Release.open_sealed(path.read_bytes(), str(path))[1])
                except DpvalueError as error:
                    raise DpvalueError(f"{path} was accepted before the roster was given: {error}") from None
        remember(self.folder, roster)

    @cached_property
    def job(self) -> Job:
        """The job."""
        return Job.from_bytes(self.content)

    @property
    def round(self) -> int:
        """The round that is being answered."""
        return max(number for number in range(self.job.rounds) if not number or self._closing(number).is_file())

    def receive(self, content: bytes) -> Receipt:
        """Keep a release if it counts; return what became of it. The same bytes again count as before.

        Whatever reading and checking it raises is why it does not count: nothing that a stranger sends ends a study.
        """
        with self._alone():
            return self._receive(content)

    def _receive(self, content: bytes) -> Receipt:
        party, number = "?", 0
        try:
            with refuse_unreadable("the release"):
                if len(content) > self.longest:
                    raise DpvalueError(f"the release must have at most {self.longest:,} bytes")
                release, seal = Release.open_sealed(content)
                party, number = release.party, release.round
                self._require_known(party, seal)
                self._require_valid(release)
                path = self._path(number, party, "release")
                is_there = path.is_file()
                if is_there and Release.from_bytes(path.read_bytes()).digest != release.digest:
                    raise DpvalueError("it already sent another release for this round")
        except DpvalueError as error:
            return self.rejections.add(Receipt(party, number, str(error)))
        if not is_there:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, content)
        return Receipt(party, number)

    def _alone(self) -> AbstractContextManager[None]:
        """What looks at the state and then writes is done by one process and thread at a time."""
        return alone(self.folder / "study.job")

    @property
    def longest(self) -> int:
        """How many bytes a release of the job can have."""
        return _ROOM_BESIDE + 8 * self.job.size

    @property
    def rejections(self) -> Rejections:
        """What came and does not count."""
        return Rejections(self.folder / "rejected.jsonl")

    def refuse(self, party: str, why: str) -> Receipt:
        """Take note of a party that refused to answer, or did not answer in time."""
        with self._alone():
            return self.rejections.add(Receipt(party, self.round, why))

    def asked(self) -> dict[str, bytes]:
        """Return what is to be sent to whom in the round that is being answered, beside the job; empty in the first.

        What a party has answered is not asked again.
        """
        number = self.round
        if number == 0:
            return {}
        with self._alone():
            self._write_requests(number)
        waiting = [name for name in self.taking_part if not self._path(number, name, "release").is_file()]
        return {name: self._path(number, name, "request").read_bytes() for name in waiting}

    def close(self, ended: int | None = None) -> bool:
        """End the round that is being answered, and begin the next; return whether there is one.

        Who has not answered the first round is out; who misses a later one has fewer releases, and spends less. Of
        several processes that end the same round, given as `ended`, one does, and no round is ended unasked.
        """
        with self._alone():
            return self.round > ended if ended is not None and ended != self.round else self._close(self.round + 1)

    def _close(self, number: int) -> bool:
        if number == 1 and len(self._answered(0)) < 2:
            raise DpvalueError(f"at least two parties must answer, got {len(self._answered(0))}")
        if number >= self.job.rounds:
            return False
        self._closing(number).parent.mkdir(exist_ok=True)
        write_whole(self._closing(number), json.dumps(self.taking_part).encode())
        self._write_requests(number)
        return True

    @property
    def taking_part(self) -> list[str]:
        """The parties that are valued: those who have answered the first round, in the order of results."""
        closed = self._closing(1)
        if closed.is_file():
            names = parse_json(read_text(closed), str(closed))
            list_of(TEXT, least=2)(str(closed), names)
            return in_order(names)
        return in_order(self._answered(0))

    def kept(self) -> Iterator[tuple[Path, Release, Seal | None]]:
        """Yield each release that counts, party by party and round by round: its file, what it holds, who signed it."""
        for name in self.taking_part:
            for number in range(self.job.rounds):
                path = self._path(number, name, "release")
                if path.is_file():
                    release, seal = Release.open_sealed(path.read_bytes(), str(path))
                    if release.party != name or release.round != number:
                        raise DpvalueError(f"{path} does not hold the release that its name says")
                    yield path, release, seal

    def answers(self) -> dict[str, Answers]:
        """Return what each party has released, checked once more: the folder may have been written by others."""
        found: dict[str, list[Release]] = {name: [] for name in self.taking_part}
        require_names("names of parties", list(found))
        drawn: dict[tuple[int, bytes], str] = {}
        for path, release, seal in self.kept():
            name, own = release.party, found[release.party]
            numbers = (release.numbers + 0.0).numpy().tobytes()  # 0.0 and -0.0 are one number
            try:
                self._require_known(name, seal)
                require_release(release, self.job, self._request(release))
                require_units(release, own[0] if own else release)
                require_own(name, drawn.setdefault((release.round, numbers), name))
            except DpvalueError as error:
                raise DpvalueError(f"{path}: {error}") from None
            own.append(release)
        for name, own in found.items():
            if not own:
                raise DpvalueError(f"{self.folder} holds no release of the participant {name!r}")
        return {name: Answers(tuple(own)) for name, own in found.items()}

    def seals(self) -> dict[str, Seal | None]:
        """Return who signed the last release of each party."""
        return {release.party: seal for _, release, seal in self.kept()}

    def requests(self, number: int) -> dict[str, Request]:
        """Return what each party is asked in a round after the first: a function of the job and of earlier rounds."""
        before = {}
        for name, given in self.answers().items():
            before[name] = Answers(tuple(release for release in given.releases if release.round < number))
        seals = {release.party: seal for _, release, seal in self.kept() if release.round < number}
        heads = {name: seal.head for name, seal in seals.items() if seal is not None}
        return next_requests(self.job, number, before, heads)

    def request_file(self, number: int, party: str) -> Path:
        """Return where the request to a party in a round is kept."""
        return self._path(number, party, "request")

    def files(self) -> set[Path]:
        """Return all files that the state can consist of; whatever else lies in its folder is no part of it."""
        files = {self.folder / name for name in ("study.job", ROSTER, "rejected.jsonl")}
        for number in range(self.job.rounds):
            files |= {self._path(number, name, "release") for name in self.taking_part}
            if number:
                files |= {self._path(number, name, "request") for name in self.taking_part} | {self._closing(number)}
        return files

    def table(self) -> Table:
        """Return the table of all that was released."""
        return combine_answers(self.job, self.answers())

    def _require_known(self, party: str, seal: Seal | None) -> None:
        require_sendable(party)
        if self.roster is not None:
            self.roster.require_signed(party, seal)

    def _require_valid(self, release: Release) -> None:
        """Raise unless a release answers what the party was asked, and is nobody else's."""
        number, party = release.round, release.party
        if number >= self.job.rounds or number > self.round:
            raise DpvalueError(f"round {number} was not requested")
        if number == 0 and self._closing(1).is_file() and party not in self.taking_part:
            raise DpvalueError("the first round is closed")
        if number and party not in self.taking_part:
            raise DpvalueError("it has not answered the first round")
        for other in self._answered(0):
            if other != party and look_of(other) == look_of(party):
                raise names_agree_error("names of parties", other, party)
        first = self._path(0, party, "release")
        if number:
            require_units(release, Release.from_bytes(first.read_bytes()))
        require_release(release, self.job, self._request(release))
        for other, earlier in self._releases(number):
            if bool((earlier.numbers == release.numbers).all()):
                require_own(party, other)

    def _request(self, release: Release) -> Request:
        """What a release must be an answer to."""
        if release.round == 0:
            return self.job.first_request(release.units)
        path = self.request_file(release.round, release.party)
        return Request.from_bytes(read_bytes(path, "a request"), str(path))

    def _write_requests(self, number: int) -> None:
        """Write the requests of a round, if they are not there: a function of the job and of earlier rounds."""
        names = self.taking_part
        if all(self._path(number, name, "request").is_file() for name in names):
            return
        for name, request in self.requests(number).items():
            path = self._path(number, name, "request")
            if not path.is_file():
                write_whole(path, request.to_bytes(self.key))

    def _releases(self, number: int) -> Iterator[tuple[str, Release]]:
        for name in self._answered(number):
            path = self._path(number, name, "release")
            yield name, Release.from_bytes(path.read_bytes(), str(path))

    def _answered(self, number: int) -> list[str]:
        folder = self.folder / f"round-{number}"
        return sorted(unquote(path.stem) for path in folder.glob("*.release") if not path.name.startswith("."))

    def _closing(self, number: int) -> Path:
        return self.folder / f"round-{number}" / "parties.json"

    def _path(self, number: int, party: str, kind: str) -> Path:
        return self.folder / f"round-{number}" / f"{quote(party, safe=' ').replace('.', '%2E')}.{kind}"
