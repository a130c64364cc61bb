"""A run from files: the public file is read, the private ones are peeked at, a plan is made; then values are.

Until `Job.parties` is called, of private files nothing is read but the names of their columns and their numbers of
lines; with `group` (or `person`), that column too, which tells the party of each line (the number of persons of each
party): what is public of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Array, Floats
from dpvalue.data.cells import index_of, party_name
from dpvalue.data.columns import Column, Columns
from dpvalue.data.encoding import EncodedRows
from dpvalue.data.files import Peek, is_text, peek, read_private, read_public
from dpvalue.data.parties import Parties
from dpvalue.data.schema import Schema, classes_of, infer_task
from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.jobs.config import RunConfig
from dpvalue.models import CLASSIFICATION
from dpvalue.planning.settings import Settings
from dpvalue.server.plan import plan
from dpvalue.server.plan_page import Plan
from dpvalue.server.run import Prepared, prepare


@dataclass(frozen=True, eq=False)
class Job:
    """A run whose public side is ready; made by `open_job`.

    Attributes:
        config: the options.
        task: "classification" or "regression", as given or as the public file shows.
        classes: all classes, as given or as the public file shows; None for regression.
        utility: the public rows.
        schema: how columns become numbers.
        peeks: what is public of the private files.
    """

    config: RunConfig
    task: str
    classes: tuple[str, ...] | None
    utility: Utility
    schema: Schema
    peeks: tuple[Peek, ...]

    @property
    def model(self) -> str:
        """The model of the task."""
        return "logistic" if self.task == CLASSIFICATION else "linear"

    @cached_property
    def settings(self) -> Settings:
        """How the run is made."""
        config = self.config
        return Settings(
            model=self.model,
            privacy=config.privacy,
            schedule=config.schedule,
            permutations=config.permutations,
            preprocess=self.schema,
            classes=self.classes,
            ledger=config.open_ledger(),
            seed=config.seed,
        )

    def plan(self) -> Plan:
        """Return what the run would spend and could reach; it keeps what was chosen."""
        if self.config.privacy is None:
            raise DpvalueError("a run without privacy spends nothing, so there is nothing to plan")
        return plan(self._sizes(), self.utility, self.settings)

    def prepare(self) -> Prepared:
        """Return the run with every setting chosen, where there was no plan."""
        return prepare(self.utility, self.settings, *self._sizes().counts(self.config.privacy))

    def _sizes(self) -> Parties:
        """The parties without their rows: the number of lines, and whose they are."""
        rows = sum(one.rows for one in self.peeks)
        return Parties(np.zeros((rows, 1)), np.zeros(rows), *self.owners)

    @cached_property
    def owners(self) -> tuple[Array | None, Array | None]:
        """The party and the person of each line, where columns (or several files) tell them; None in a line of nobody.

        A line that is no record of the table still has a party, which stands where its column is: the party of each
        line is public, and what else is in the line must not move it (`Layout.guesses`).
        """
        config = self.config
        wanted = [name for name in (config.group, config.person) if name is not None]
        groups: list[Any] = []
        persons: list[str | None] = []
        guesses: dict[int, tuple[str, ...]] = {}
        for path in config.train if wanted else ():
            for block in read_private(Path(path), wanted, config.group):
                guesses |= {len(groups) + place: found for place, found in block.guesses.items()}
                if config.group is not None:
                    groups += block.columns[config.group].party_names().tolist()
                if config.person is not None:
                    persons += block.columns[config.person].identities().tolist()
        known = set(groups) - {None}
        for place, found in guesses.items():
            names = [name for name in map(party_name, found) if name and (name in known or not self.can_be_moved)]
            groups[place] = names[0] if names else None
        if len(config.train) > 1:
            homes = party_names(config.train)
            groups = [home for home, one in zip(homes, self.peeks, strict=True) for _ in range(one.rows)]
        return _objects(groups) if groups else None, _objects(persons) if persons else None

    @property
    def can_be_moved(self) -> bool:
        """Whether cells of a line could move it to another party: in a text file where that is not first or last."""
        group, only = self.config.group, self.peeks[0].columns
        return group is not None and is_text(Path(self.config.train[0])) and group not in (only[0], only[-1])

    def parties(self) -> Parties:
        """Return the private rows, encoded by the public file's schema block by block as they are read."""
        target = self.config.target
        names = list(dict.fromkeys([*self.schema.names, target]))
        features: list[Floats] = []
        labels: list[Array] = []
        for path in self.config.train:
            for block in read_private(Path(path), names):
                features.append(self.schema.transform(block.columns))
                features[-1][block.bad] = np.nan
                labels.append(self.labels(block.columns[target]))
        rows = EncodedRows(np.concatenate(features), self.schema)
        return Parties(rows, np.concatenate(labels), *self.owners, self.config.person)

    def labels(self, column: Column) -> Array:
        """Return labels as canonical texts, or as numbers for regression."""
        return read_labels(column, self.task)


def open_job(config: RunConfig) -> Job:
    """Read the public file, peek at the private ones, and check that they fit."""
    public = read_public(Path(config.test))
    if config.target not in public.columns:
        raise DpvalueError(f"{config.test} has no column {config.target!r} for the target")
    own = {name for name in (config.target, config.group, config.person, config.truth) if name is not None}
    unknown = [name for name in config.drop if name not in public.columns]
    if unknown:
        raise DpvalueError(f"{config.test} has no column {unknown[0]!r} to drop")
    features = public.without(*own, *config.drop)
    target = public[config.target]
    if target.lacking().any():
        raise DpvalueError(f"the target {config.target!r} of {config.test} must not be missing in any row")
    task = infer_task(target) if config.task == "auto" else config.task
    if task == "classification":
        classes = _classes(config, target)
    elif config.classes:
        raise DpvalueError("classes must not be given for regression: its labels are numbers")
    elif not Columns({"": target}).is_numeric()[""]:
        raise DpvalueError(f"the target {config.target!r} of {config.test} must be numbers for regression")
    else:
        classes = None
    peeks = []
    for path in config.train:
        found = peek(Path(path))
        for name in [*features.columns, *sorted(own)]:
            if name not in found.columns:
                raise DpvalueError(f"{path} has no column {name!r}")
        peeks.append(found)
    utility = Utility(features, read_labels(target, task))
    return Job(config, task, classes, utility, Schema().fit(features), tuple(peeks))


def _classes(config: RunConfig, target: Column) -> tuple[str, ...]:
    shown = classes_of(target)
    classes = classes_of(Column(list(config.classes))) or shown
    unknown = [name for name in shown if name not in index_of(classes)]
    if unknown:
        raise DpvalueError(f"classes must hold all labels of {config.test}; {unknown[0]!r} is missing")
    if len(classes) < 2:
        raise DpvalueError(f"the target {config.target!r} of {config.test} has one class only: it takes at least two")
    return classes


def read_labels(column: Column, task: str) -> Array:
    """Return labels as canonical texts, or as numbers for regression; NaN (None) for what is none."""
    if task == CLASSIFICATION:
        return column.texts()
    numbers = column.numbers()
    numbers[np.isinf(numbers)] = np.nan
    return numbers


def party_names(paths: tuple[str, ...]) -> list[str]:
    """Return the parties' names: of the files, without folder and ending where that tells them apart."""
    short = [Path(path).name.split(".")[0] for path in paths]
    return short if len(set(short)) == len(short) else list(paths)


def _objects(cells: list[str | None]) -> Array:
    found = np.empty(len(cells), dtype=object)
    found[:] = cells
    return found
