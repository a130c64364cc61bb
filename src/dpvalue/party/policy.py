"""The policy of a party: `policy.toml`, which the party writes on its own disk.

The policy, and not a job, decides what is protected: unit, neighbours, delta, laws of noise, the column of ids, the
number of parties per person, and the readable columns. A job that differs is refused.
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
    """What is protected, and how much one job may spend.

    Attributes:
        unit: "record", "person" or "party".
        neighbours: "zero_out" or "replace".
        epsilon: the most that one job may spend.
        delta: the most that a job may have.
        laws: the allowed laws of noise.
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
    """Limits on one job.

    Attributes:
        rounds: the largest number of rounds.
        points: the largest number of models in one request.
        numbers: the largest number of numbers in one release.
        units: the smallest number of records (or persons) with which the party answers.
        tick: seconds, from 0.001 to a day; over a network an answer is sent at a multiple of this time.
    """

    rounds: Annotated[int, COUNT] = 10
    points: Annotated[int, COUNT] = 1000
    numbers: Annotated[int, COUNT] = 100_000
    units: Annotated[int, COUNT] = 1
    tick: Annotated[float, _SECONDS] = 5.0


@dataclass(frozen=True)
class KnownCoordinator:
    """A coordinator whose jobs are answered, identified by its public key.

    Attributes:
        name: its name in the ledger, which must not change.
        key: the line that `dpvalue key show` prints.
        epsilon: the most that all its jobs together may spend; None: the ledger's budget.
        public_sets: digests of the public sets that it may use; empty: any.
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
    """A model that jobs may use.

    Attributes:
        name: its name in jobs.
        digest: the digest of the model; None: any of this name, for models of the library.
        factory: "package.module:function" of an installed factory, for a model that is not the library's.
    """

    name: str
    digest: str | None = None
    factory: str | None = None

    def __post_init__(self) -> None:
        if self.factory is not None and (self.digest is None or self.factory.count(":") != 1):
            raise DpvalueError("factory must be package.module:function, and needs the digest of its model")


UNSIGNED = "unsigned"
"""The name in the ledger for the coordinator of an unsigned job."""

_MODELS = (AllowedModel("logistic"), AllowedModel("linear"), AllowedModel(TREES))


@dataclass(frozen=True)
class Policy:
    """Which jobs a party answers.

    Attributes:
        protection: what is protected.
        limits: limits on one job.
        coordinators: the coordinators whose jobs are answered.
        unsigned: whether any job is answered, signed or not, as for jobs by file. Signatures are then ignored, all jobs
            are charged to one coordinator, and `coordinators` must be empty.
        models: the models that jobs may use.
        columns: the columns of the file that may be read as features or target; None: all that a job names.
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
        """Return the default policy of a party that answers jobs by file: the terms of its ledger."""
        require_positive("epsilon", budget.epsilon)
        protection = Protection(
            budget.unit, budget.neighbours, budget.epsilon, budget.delta, tuple(LAWS), person, budget.parties_per_person
        )
        return Policy(protection, unsigned=True)

    def coordinator(self, key: str | None) -> KnownCoordinator | None:
        """Return the coordinator with a key; None if the policy answers any job. Raise for an unknown key."""
        if self.unsigned:
            return None
        by_key = {coordinator.key: coordinator for coordinator in self.coordinators}
        if key not in by_key:
            raise DpvalueError(
                "the job is not signed" if key is None else f"{key} is not the key of a coordinator of the policy"
            )
        return by_key[key]


def read_policy(path: Path) -> Policy:
    """Return the policy of a file; raise for an unknown field, which may be a misspelt limit."""
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
