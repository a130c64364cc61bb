"""What a party lets others ask: `policy.toml`, on its own disk, written by nobody else.

Everything that decides what is protected stands here and not in a job: unit, neighbours, delta, laws of noise, the
column of ids, how many parties hold a person, which columns may be read. A job that says otherwise is refused.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from dpvalue.errors import DpvalueError, require_choice, require_positive
from dpvalue.models import TREES
from dpvalue.names import require_names
from dpvalue.privacy.budget import NEIGHBOURS, UNITS, Privacy
from dpvalue.privacy.laws import LAWS
from dpvalue.protocol.archive import require_public
from dpvalue.stored import COUNT, POSITIVE, is_number, must_be, parse, read, read_text

_DELTA = must_be("above 0 and below 1", lambda found: is_number(found) and 0 < found < 1)

_SECONDS = must_be("from 0.001 to 86400 seconds", lambda found: is_number(found) and 1e-3 <= found <= 86_400)


@dataclass(frozen=True)
class Protection:
    """What is protected, and how much one job may spend of it.

    Attributes:
        unit: "record", "person" or "party".
        neighbours: "zero_out" or "replace".
        epsilon: the most that one job may spend.
        delta: the most that a job may have.
        laws: of noise that may be used.
        person: the column of persons' ids, for unit "person".
        parties_per_person: the most parties that hold a person.
    """

    unit: str = "record"
    neighbours: str = "zero_out"
    epsilon: Annotated[float, POSITIVE] = 1.0
    delta: Annotated[float, _DELTA] = 5e-5
    laws: tuple[str, ...] = ("gaussian", "laplace")
    person: str | None = None
    parties_per_person: Annotated[int, COUNT] = 1

    def __post_init__(self) -> None:
        require_choice("unit", self.unit, UNITS)
        require_choice("neighbours", self.neighbours, NEIGHBOURS)
        for law in self.laws:
            require_choice("laws", law, LAWS)
        if (self.unit == "person") != (self.person is not None):
            raise DpvalueError("person needs unit person")


@dataclass(frozen=True)
class Limits:
    """How much one job may ask for.

    Attributes:
        rounds: of releases.
        points: models in one request.
        numbers: in one release.
        units: the least number of its records (or persons) with which the party answers at all.
        tick: seconds, from 0.001 to a day; over a network an answer leaves at a multiple of them.
    """

    rounds: Annotated[int, COUNT] = 10
    points: Annotated[int, COUNT] = 1000
    numbers: Annotated[int, COUNT] = 100_000
    units: Annotated[int, COUNT] = 1
    tick: Annotated[float, _SECONDS] = 5.0


@dataclass(frozen=True)
class KnownCoordinator:
    """Who may ask, by the public line of its key.

    Attributes:
        name: by which the ledger knows it; it must not change.
        key: the line that `dpvalue key show` prints.
        epsilon: the most that all its jobs together may spend; None: what the ledger has.
        public_sets: digests of public sets that it may use; none given: any.
    """

    name: str
    key: str
    epsilon: Annotated[float, POSITIVE] | None = None
    public_sets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_public(self.key)
        if not self.name.isprintable() or not self.name or " " in self.name or self.name == UNSIGNED:
            raise DpvalueError(f"name must be a word other than {UNSIGNED}, got {self.name!r}")


@dataclass(frozen=True)
class AllowedModel:
    """A model that may be asked about.

    Attributes:
        name: as jobs call it.
        digest: of the model; None: any of this name, for models of the library.
        factory: "package.module:function" of what this party has installed, for a model that is not the library's.
    """

    name: str
    digest: str | None = None
    factory: str | None = None

    def __post_init__(self) -> None:
        if self.factory is not None and (self.digest is None or self.factory.count(":") != 1):
            raise DpvalueError("factory must be package.module:function, and needs the digest of its model")


UNSIGNED = "unsigned"
"""What a ledger calls an asker whose job nobody has signed."""

_MODELS = (AllowedModel("logistic"), AllowedModel("linear"), AllowedModel(TREES))


@dataclass(frozen=True)
class Policy:
    """What a party answers.

    Attributes:
        protection: what is protected.
        limits: how much a job may ask for.
        coordinators: who may ask.
        unsigned: whether any job is answered, signed or not, as they come by file. A signature changes nothing
            then, and all jobs are charged to one asker; no coordinators are named beside it.
        models: which may be asked about.
        columns: which columns of the file may be read as features or target; None: all that a job names.
    """

    protection: Protection = Protection()
    limits: Limits = Limits()
    coordinators: tuple[KnownCoordinator, ...] = ()
    unsigned: bool = False
    models: tuple[AllowedModel, ...] = _MODELS
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for what in ("name", "key"):
            values = [getattr(coordinator, what) for coordinator in self.coordinators]
            if len(set(values)) < len(values):
                raise DpvalueError(f"each coordinator must have its own {what}")
        require_names("names of coordinators", [coordinator.name for coordinator in self.coordinators])
        if not self.coordinators and not self.unsigned:
            raise DpvalueError("a policy must name coordinators, or set unsigned = true")
        if self.coordinators and self.unsigned:
            raise DpvalueError(
                "a policy must not name coordinators and set unsigned = true: a refused coordinator would remove its "
                "signature"
            )

    @staticmethod
    def of_ledger(budget: Privacy, person: str | None) -> Policy:
        """Return the policy of a party that answers jobs by file and has written none: what its ledger says."""
        require_positive("epsilon", budget.epsilon)
        protection = Protection(
            budget.unit, budget.neighbours, budget.epsilon, budget.delta, tuple(LAWS), person, budget.parties_per_person
        )
        return Policy(protection, unsigned=True)

    def coordinator(self, key: str | None) -> KnownCoordinator | None:
        """Return who has a key; None where the policy answers anybody. Raises for an asker whom it does not know."""
        if self.unsigned:
            return None
        by_key = {coordinator.key: coordinator for coordinator in self.coordinators}
        if key not in by_key:
            raise DpvalueError(
                "the job is not signed" if key is None else f"{key} is not the key of a coordinator of the policy"
            )
        return by_key[key]


def read_policy(path: Path) -> Policy:
    """Return the policy of a file; a name in it that means nothing is an error, as it may be a limit misspelt."""
    content = parse(tomllib.loads, read_text(path), str(path), "cannot be read as TOML")
    try:
        _require_known(Policy, content, "")
        return read(Policy, content)
    except DpvalueError as error:
        raise DpvalueError(f"{path}: {error}") from None


def _require_known(kind: Any, content: Any, place: str) -> None:
    if not isinstance(content, dict):
        return  # `read` says what it must be
    types = get_type_hints(kind)
    unknown = [name for name in content if name not in types]
    if unknown:
        names = ", ".join(field.name for field in fields(kind))
        raise DpvalueError(f"unknown option {place}{unknown[0]}; the options are {names}")
    for name, value in content.items():
        parts = [part for part in (types[name], *get_args(types[name])) if is_dataclass(part)]
        for member in value if isinstance(value, list) else [value]:
            if parts:
                _require_known(parts[0], member, f"{place}{name}.")
