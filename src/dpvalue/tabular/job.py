"""A run from files: the public file is read, the private ones are peeked at, a plan is made; then values are.

Until `Job.value` is called, of private files nothing is read but the names of their columns and their numbers of rows;
with `group` (or `person`), that column too, whose labels name the parties (count the persons), which is public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpvalue.errors import DpvalueError
from dpvalue.parties import Parties
from dpvalue.plan import plan
from dpvalue.plan_page import Plan
from dpvalue.progress import Report
from dpvalue.result import Result
from dpvalue.table import Table
from dpvalue.tabular.config import RunConfig
from dpvalue.tabular.files import Peek, peek, read
from dpvalue.tabular.schema import Schema, infer_task, label_kind, numbers, texts
from dpvalue.utility import Utility
from dpvalue.valuation import release, value


@dataclass(frozen=True, eq=False)
class Job:
    """A run whose public side is ready; made by `open_job`.

    Attributes:
        config: the options.
        task: "classification" or "regression", as given or as the public file shows.
        utility: the public rows.
        schema: how columns become numbers.
        peeks: what is public of the private files.
        labels: turns a column of labels into numbers or texts, as those of the public file are.
    """

    config: RunConfig
    task: str
    utility: Utility
    schema: Schema
    peeks: tuple[Peek, ...]
    labels: Callable[[Any], Any]

    @property
    def model(self) -> str:
        """The model of the task."""
        return "logistic" if self.task == "classification" else "linear"

    @property
    def settings(self) -> dict[str, Any]:
        """What plan, release and value have in common."""
        config = self.config
        return {
            "model": self.model,
            "schedule": config.schedule,
            "permutations": config.permutations,
            "preprocess": self.schema,
            "seed": config.seed,
        }

    def plan(self) -> Plan:
        """Return what the run would spend and could reach."""
        privacy = self.config.privacy
        if privacy is None:
            raise DpvalueError("a run without privacy spends nothing, so there is nothing to plan")
        groups, persons = self._labels()
        rows = sum(one.rows for one in self.peeks)
        # Only the number of rows and their labels are looked at: a plan reads sizes.
        nothing = np.zeros((rows, 1)), np.zeros(rows)
        return plan(Parties(*nothing, groups, persons), self.utility, privacy=privacy, **self.settings)

    def _labels(self) -> tuple[Any, Any]:
        """The party and the person of each row, where they are labels of the files."""
        config = self.config
        groups: Any = None
        if len(config.train) > 1:
            groups = np.repeat(party_names(config.train), [one.rows for one in self.peeks])
        elif config.group is not None:
            groups = self._column(config.group)
        return groups, None if config.person is None else self._column(config.person)

    def _column(self, name: str) -> Any:
        parts = [read(Path(path), [name])[name] for path in self.config.train]
        return texts(pd.concat(parts, ignore_index=True))

    def parties(self) -> Parties:
        """Return the private rows, in the columns of the public file."""
        frame = pd.concat([read(Path(path)) for path in self.config.train], ignore_index=True)
        features = frame[[column.name for column in self.schema.columns_]]
        return Parties(features, self.labels(frame[self.config.target]), *self._labels())

    @property
    def label_name(self) -> str:
        """What labels are: "numbers" or "texts"."""
        return "numbers" if self.labels is numbers else "texts"

    def release(self, parties: Parties, report: Report) -> Table:
        """Make the releases: the only step that reads private rows, and the only one that costs."""
        config = self.config
        return release(
            parties,
            self.utility,
            privacy=config.privacy,
            ledger=config.open_ledger(),
            progress=report,
            **self.settings,
        )

    def value(self, parties: Parties, report: Report) -> Result:
        """Make the releases and the values along the way, for schedules that do both at once."""
        config = self.config
        return value(
            parties,
            self.utility,
            privacy=config.privacy,
            semivalues=config.semivalue,
            ledger=config.open_ledger(),
            progress=report,
            **self.settings,
        )


def open_job(config: RunConfig) -> Job:
    """Read the public file, peek at the private ones, and check that they fit."""
    public = read(Path(config.test))
    if config.target not in public.columns:
        raise DpvalueError(f"{config.test} has no column {config.target!r} for the target")
    own = {name for name in (config.target, config.group, config.person, config.truth) if name is not None}
    unknown = [name for name in config.drop if name not in public.columns]
    if unknown:
        raise DpvalueError(f"{config.test} has no column {unknown[0]!r} to drop")
    features = public.drop(columns=[name for name in public.columns if name in own or name in config.drop])
    target = public[config.target]
    if target.isna().any():
        raise DpvalueError(f"the target {config.target!r} of {config.test} must not be missing in any row")
    task = infer_task(target) if config.task == "auto" else config.task
    labels = label_kind(target, task)(target)
    if task == "classification" and len(set(labels.tolist())) < 2:
        raise DpvalueError(f"the target {config.target!r} of {config.test} has one class only: it takes at least two")
    utility = Utility(features, labels)
    peeks = []
    for path in config.train:
        found = peek(Path(path))
        for name in [*map(str, features.columns), *sorted(own)]:
            if name not in found.columns:
                raise DpvalueError(f"{path} has no column {name!r}")
        peeks.append(found)
    return Job(config, task, utility, Schema().fit(features), tuple(peeks), label_kind(target, task))


def party_names(paths: tuple[str, ...]) -> list[str]:
    """Return the parties' names: of the files, without folder and ending where that tells them apart."""
    short = [Path(path).name.split(".")[0] for path in paths]
    return short if len(set(short)) == len(short) else list(paths)
