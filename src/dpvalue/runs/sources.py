"""A run from files: the public file is read, the private ones are peeked at, and a plan is made.

Private files are opened twice. `open_run` reads the names of their columns and their numbers of lines; with `group` (or
`person`), that column too, which tells the party of each line (the number of persons of each party): what is public of
them, and until the user has agreed nothing else is read. `FileRun.read` reads the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Array, Bools
from dpvalue.data.cells import index_of, party_name
from dpvalue.data.checks import require_other_file
from dpvalue.data.columns import Column, Columns
from dpvalue.data.encoding import EncodedRows
from dpvalue.data.files import Peek, is_text, open_private, read_encoded, read_labels, read_public, require_records
from dpvalue.data.parties import Parties
from dpvalue.data.rows import floats_of
from dpvalue.data.schema import Schema, classes_of, infer_task, make_schema
from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.models import CLASSIFICATION, TASK_OF
from dpvalue.names import require_names
from dpvalue.planning.settings import Settings
from dpvalue.progress import Progress, silent
from dpvalue.runs.config import MODELS, RunConfig
from dpvalue.runs.plan import plan_sizes
from dpvalue.runs.plan_page import Plan
from dpvalue.runs.run import PreparedRun, prepare

Owners = tuple[Array | None, Array | None]
"""The party and the person of each line; None where neither columns nor several files tell them."""


def look(config: RunConfig, needed: list[str]) -> tuple[tuple[Peek, ...], Owners]:
    """Return what is public of the private files, and whose their lines are; None stands in a line of nobody.

    Of cells, those of the columns `group` and `person` are read alone. A line that is no record of the table still has
    a party, which stands where its column is: the party of each line is public, and what else is in the line must not
    move it (`Layout.guesses`).

    Args:
        config: the options, which name the files.
        needed: the columns that each file must have.
    """
    wanted = [name for name in (config.group, config.person) if name is not None]
    peeks: list[Peek] = []
    groups: list[Any] = []
    persons: list[str | None] = []
    guesses: dict[int, tuple[str, ...]] = {}
    for path in config.train:
        with open_private(Path(path)) as file:
            for name in needed:
                if name not in file.columns:
                    raise DpvalueError(f"{path} has no column {name!r}")
            rows = 0 if wanted else file.count()
            for block in file.read(wanted, config.group) if wanted else ():
                guesses |= {rows + place: cells for place, cells in block.guesses.items()}  # a group is of one file
                rows += len(block.columns)
                if config.group is not None:
                    groups += block.columns[config.group].party_names().tolist()
                if config.person is not None:
                    persons += block.columns[config.person].identities().tolist()
        peeks.append(require_records(Path(path), Peek(file.columns, rows)))
    known, may_move = set(groups) - {None}, can_be_moved(config, peeks[0].columns)
    for place, cells in guesses.items():
        names = [name for name in map(party_name, cells) if name and (name in known or not may_move)]
        groups[place] = names[0] if names else None
    require_names("names of parties", sorted(set(groups) - {None}))
    if len(config.train) > 1:
        homes = party_names(config.train)
        groups = [home for home, peek in zip(homes, peeks, strict=True) for _ in range(peek.rows)]
    return tuple(peeks), (_objects(groups) if groups else None, _objects(persons) if persons else None)


def can_be_moved(config: RunConfig, columns: tuple[str, ...]) -> bool:
    """Whether cells of a line could move it to another party: in a text file where that is not first or last."""
    return config.group is not None and is_text(Path(config.train[0])) and config.group not in (columns[0], columns[-1])


def party_names(paths: tuple[str, ...]) -> list[str]:
    """Return the parties' names: of the files, without folder and ending where that tells them apart."""
    short = [Path(path).name.split(".")[0] for path in paths]
    names = short if len(set(short)) == len(short) else list(paths)
    require_names("file names (the names of the parties)", names)
    return names


def _objects(cells: list[str | None]) -> Array:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


@dataclass(frozen=True, eq=False)
class GroundTruth:
    """A known answer to compare with: the name of its column, and which parties it marks."""

    column: str
    marked: Bools


@dataclass(frozen=True, eq=False)
class PublicSide:
    """What a public file and options say of a run; made by `open_public`.

    Attributes:
        config: the options.
        task: "classification" or "regression", as given or as the public file shows.
        classes: all classes, as given or as the public file shows; None for regression.
        utility: the public rows.
        schema: how columns become numbers.
    """

    config: RunConfig
    task: str
    classes: tuple[str, ...] | None
    utility: Utility
    schema: Schema

    @property
    def model(self) -> str:
        """The model that was named, or that of the task."""
        if self.config.model != "auto":
            return self.config.model
        return next(name for name in MODELS if TASK_OF.get(name) == self.task)

    @cached_property
    def settings(self) -> Settings:
        """How the run is made."""
        config = self.config
        return Settings(
            model=self.model,
            privacy=config.privacy,
            game=config.game,
            schedule=config.schedule,
            permutations=config.permutations,
            preprocess=self.schema,
            classes=self.classes,
            ledger=config.open_ledger(),
            seed=config.seed,
        )


@dataclass(frozen=True, eq=False)
class FileRun(PublicSide):
    """A run whose public side is ready; made by `open_run`.

    Attributes:
        peeks: what is public of the private files.
        owners: the party and the person of each line, where columns (or several files) tell them.
    """

    peeks: tuple[Peek, ...]
    owners: Owners = field(repr=False)

    def plan(self) -> Plan:
        """Return what the run would spend and could reach; it keeps what was chosen."""
        if self.config.privacy is None:
            raise DpvalueError("a run without privacy spends nothing: there is nothing to plan")
        counts = self._sizes().counts(self.config.privacy)
        return plan_sizes(self.utility, self.settings, counts, timed=False)  # private files have been opened

    def prepare(self) -> PreparedRun:
        """Return the run with every setting chosen, where there was no plan."""
        return prepare(self.utility, self.settings, *self._sizes().counts(self.config.privacy))

    def _sizes(self) -> Parties:
        """The parties without their rows: the number of lines, and whose they are."""
        rows = sum(peek.rows for peek in self.peeks)
        return self._parties(np.zeros((rows, 1)), np.zeros(rows))

    def _parties(self, features: Any, labels: Array) -> Parties:
        """Parties of these rows, which stand as in the files."""
        return Parties(features, labels, *self.owners, self.config.person, self.config.group)

    def require_ledger(self) -> None:
        """Raise if the run is to be charged to a ledger that protects others; before anything is planned or read."""
        ledger, privacy = self.settings.ledger, self.config.privacy
        if ledger is not None and privacy is not None:
            ledger.require_holding(self._sizes().holding, privacy)

    @property
    def can_be_moved(self) -> bool:
        """Whether cells of a line could move it to another party."""
        return can_be_moved(self.config, self.peeks[0].columns)

    def read(self, progress: Progress = silent) -> tuple[Parties, GroundTruth | None]:
        """Return the private rows, encoded by the public file's schema block by block, and what `truth` marks.

        Beside the numbers, in the precision that the run computes in, no more than a block of cells is in memory.
        """
        truth, others = self.config.truth, [] if self.config.truth is None else [self.config.truth]
        rows = sum(peek.rows for peek in self.peeks)
        kept = floats_of(self.settings.engine.torch_dtype)
        features = np.empty((0, 0), dtype=kept)
        labels: list[Array] = []
        marks: list[Array] = []
        done = 0
        # How many rows persons have is private: then the bar counts files.
        tells_rows = not (self.config.private and self.config.unit == "person")
        progress("reading", 0, rows if tells_rows else len(self.peeks))
        for number, (path, peek) in enumerate(zip(self.config.train, self.peeks, strict=True), start=1):
            end = done + peek.rows
            for piece in read_encoded(Path(path), self.schema, self.config.target, self.task, others, kept):
                if not done:
                    features = np.empty((rows, piece.features.shape[1]), dtype=kept)
                if done + len(piece.labels) <= end:
                    features[done : done + len(piece.labels)] = piece.features
                labels.append(piece.labels)
                if truth is not None:
                    marks.append(_marks(truth, piece.columns[truth]))
                done += len(piece.labels)
                if tells_rows:
                    progress("reading", min(done, rows), rows)
            if not tells_rows:
                progress("reading", number, len(self.peeks))
            if done != end:
                raise DpvalueError(f"{path} changed during the run: its number of rows differs")
        parties = self._parties(EncodedRows(features, self.schema), np.concatenate(labels))
        return parties, None if truth is None else _known(truth, np.concatenate(marks), parties)

    def labels(self, column: Column) -> Array:
        """Return labels as canonical texts, or as numbers for regression."""
        return read_labels(column, self.task)


def open_run(config: RunConfig) -> FileRun:
    """Read the public file, peek at the private ones, and check that they fit."""
    if not config.train:
        raise DpvalueError("train must name at least one file: these are the options of a study (dpvalue job)")
    require_other_file(config.train, config.test)
    public = open_public(config)
    parts = {field.name: getattr(public, field.name) for field in fields(public)}
    peeks, owners = look(config, [*public.schema.names, *sorted(_own(config))])
    job = FileRun(**parts, peeks=peeks, owners=owners)
    job.require_ledger()
    return job


def open_public(config: RunConfig) -> PublicSide:
    """Read the public file."""
    public = read_public(Path(config.test))
    if config.target not in public.columns:
        raise DpvalueError(f"{config.test} has no column {config.target!r} for the target")
    unknown = [name for name in config.drop if name not in public.columns]
    if unknown:
        raise DpvalueError(f"{config.test} has no column {unknown[0]!r} to drop")
    features = public.without(*_own(config), *config.drop)
    target = public[config.target]
    if target.missing_cells().any():
        raise DpvalueError(f"the target {config.target!r} of {config.test} must not be missing in any row")
    task = config.fixed_task or infer_task(target)
    if task == CLASSIFICATION:
        classes = _classes(config, target)
    elif config.classes:
        raise DpvalueError("classes must not be given for regression: its labels are numbers")
    elif not Columns({"": target}).is_numeric()[""]:
        raise DpvalueError(f"the target {config.target!r} of {config.test} must be numbers for regression")
    else:
        classes = None
    utility = Utility(features, read_labels(target, task), metric=config.metric)
    return PublicSide(config, task, classes, utility, make_schema(config.preprocess).fit(features))


def _own(config: RunConfig) -> set[str]:
    """The columns that are no features."""
    return {name for name in (config.target, config.group, config.person, config.truth) if name is not None}


def _classes(config: RunConfig, target: Column) -> tuple[str, ...]:
    shown = classes_of(target)
    classes = classes_of(Column(list(config.classes))) or shown
    unknown = [name for name in shown if name not in index_of(classes)]
    if unknown:
        raise DpvalueError(f"classes must hold all labels of {config.test}; {unknown[0]!r} is missing")
    if len(classes) < 2:
        raise DpvalueError(f"the target {config.target!r} of {config.test} must have at least two classes, got one")
    return classes


def _marks(column: str, cells: Column) -> Bools:
    """Which rows a column of 0 and 1 marks; a line that is no record marks nobody."""
    words = [(word or "0").lower() for word in cells.texts()]
    marked: Bools = np.isin(words, ["1", "true", "yes", "y"])
    if not (marked | np.isin(words, ["0", "false", "no", "n"])).all():
        raise DpvalueError(f"the column {column!r} must hold 0 and 1 (or no and yes, or false and true)")
    return marked


def _known(column: str, marked: Bools, parties: Parties) -> GroundTruth:
    """Which parties a column marks: those with any marked row."""
    there = parties.party_of_row >= 0
    counts = np.bincount(parties.party_of_row[there], weights=marked[there], minlength=len(parties.names))
    known = GroundTruth(column, counts > 0)
    if known.marked.all() or not known.marked.any():
        raise DpvalueError(
            f"the column {column!r} must mark some parties and leave others: it marks {known.marked.sum()}"
        )
    return known
