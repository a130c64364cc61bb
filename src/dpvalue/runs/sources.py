"""The files of a run: read the public file, and the public properties of the private files, for a plan.

Private files are opened twice. `open_run` reads their column names and numbers of lines; with `group` (or `person`)
also that column, for the party of each line (the number of persons of each party). These are public. Nothing else is
read before the user agrees. `FileRun.read` reads the rows.
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
from dpvalue.models import CLASSIFICATION, COLUMN_MODELS, TASK_OF
from dpvalue.names import require_names
from dpvalue.planning.settings import Settings
from dpvalue.progress import Progress, silent
from dpvalue.runs.config import RunConfig
from dpvalue.runs.plan import plan_sizes
from dpvalue.runs.plan_page import Plan
from dpvalue.runs.run import PreparedRun, prepare

Owners = tuple[Array | None, Array | None]
"""The party and the person of each line; None without such a column, and for one file."""


def peek_files(config: RunConfig, required: list[str]) -> tuple[tuple[Peek, ...], Owners]:
    """Return what is public of the private files, and whose their lines are; None stands in a line of nobody.

    Of cells, those of the columns `group` and `person` are read alone. A line that is no record of the table still has
    a party, which stands where its column is: the party of each line is public, and what else is in the line must not
    move it (`Layout.guesses`).

    Args:
        config: the options, which name the files.
        required: the columns that each file must have.
    """
    owner_columns = [name for name in (config.group, config.person) if name is not None]
    peeks: list[Peek] = []
    groups: list[Any] = []
    persons: list[str | None] = []
    guesses: dict[int, tuple[str, ...]] = {}
    for path in config.train:
        with open_private(Path(path)) as file:
            for name in required:
                if name not in file.columns:
                    raise DpvalueError(f"{path} has no column {name!r}")
            rows = 0 if owner_columns else file.count()
            for block in file.read(owner_columns, config.group) if owner_columns else ():
                guesses |= {rows + place: cells for place, cells in block.guesses.items()}  # a group is of one file
                rows += len(block.columns)
                if config.group is not None:
                    groups += block.columns[config.group].party_names().tolist()
                if config.person is not None:
                    persons += block.columns[config.person].identities().tolist()
        peeks.append(require_records(Path(path), Peek(file.columns, rows)))
    group_names, can_change = set(groups) - {None}, party_can_change(config, peeks[0].columns)
    for place, cells in guesses.items():
        names = [name for name in map(party_name, cells) if name and (name in group_names or not can_change)]
        groups[place] = names[0] if names else None
    require_names("names of parties", sorted(set(groups) - {None}))
    if len(config.train) > 1:
        file_names = party_names(config.train)
        groups = [home for home, peek in zip(file_names, peeks, strict=True) for _ in range(peek.rows)]
    return tuple(peeks), (_objects(groups) if groups else None, _objects(persons) if persons else None)


def party_can_change(config: RunConfig, columns: tuple[str, ...]) -> bool:
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
    """The ground truth: the name of its column, and which parties it marks (n,)."""

    column: str
    marked: Bools


@dataclass(frozen=True, eq=False)
class PublicSide:
    """The public side of a run from files; made by `open_public`.

    Attributes:
        config: the options.
        task: "classification" or "regression", from the options or the public file.
        classes: all classes, from the options or the public file; None for regression.
        utility: the public rows.
        schema: the encoding of columns.
    """

    config: RunConfig
    task: str
    classes: tuple[str, ...] | None
    utility: Utility
    schema: Schema

    @property
    def model(self) -> str:
        """The model that was named, or else that of the task."""
        if self.config.model != "auto":
            return self.config.model
        return next(name for name in COLUMN_MODELS if TASK_OF[name] == self.task)

    @cached_property
    def settings(self) -> Settings:
        """The settings of the run."""
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
    """A run from files, before private rows are read; made by `open_run`.

    Attributes:
        peeks: the public properties of the private files.
        owners: the party and the person of each line.
    """

    peeks: tuple[Peek, ...]
    owners: Owners = field(repr=False)

    def plan(self) -> Plan:
        """Return the plan of the run, which stores its choices."""
        if self.config.privacy is None:
            raise DpvalueError("a run without privacy spends nothing: there is nothing to plan")
        counts = self._sizes().counts(self.config.privacy)
        return plan_sizes(self.utility, self.settings, counts, timed=False)  # private files have been opened

    def prepare(self) -> PreparedRun:
        """Return the choices of the run, without a plan."""
        return prepare(self.utility, self.settings, *self._sizes().counts(self.config.privacy))

    def _sizes(self) -> Parties:
        """The parties with rows of zeros, for their numbers of rows and units."""
        rows = sum(peek.rows for peek in self.peeks)
        return self._parties(np.zeros((rows, 1)), np.zeros(rows))

    def _parties(self, features: Any, labels: Array) -> Parties:
        """The parties with these rows, in the order of the files."""
        return Parties(features, labels, *self.owners, self.config.person, self.config.group)

    def require_ledger(self) -> None:
        """Raise if the ledger of the run protects other units; before planning and reading."""
        ledger, privacy = self.settings.ledger, self.config.privacy
        if ledger is not None and privacy is not None:
            ledger.require_holding(self._sizes().holding, privacy)

    @property
    def party_can_change(self) -> bool:
        """Whether cells of a line could move it to another party."""
        return party_can_change(self.config, self.peeks[0].columns)

    def read(self, progress: Progress = silent) -> tuple[Parties, GroundTruth | None]:
        """Return the private rows, encoded block by block with the public schema, and the ground truth.

        Memory holds the numbers, in the precision of the run, and one block of cells.
        """
        truth, extra_columns = self.config.truth, [] if self.config.truth is None else [self.config.truth]
        rows = sum(peek.rows for peek in self.peeks)
        dtype = floats_of(self.settings.engine.torch_dtype)
        features = np.empty((0, 0), dtype=dtype)
        labels: list[Array] = []
        marks: list[Array] = []
        position = 0
        # How many rows persons have is private: then the bar counts files.
        shows_rows = not (self.config.private and self.config.unit == "person")
        progress("reading", 0, rows if shows_rows else len(self.peeks))
        for number, (path, peek) in enumerate(zip(self.config.train, self.peeks, strict=True), start=1):
            end = position + peek.rows
            for piece in read_encoded(Path(path), self.schema, self.config.target, self.task, extra_columns, dtype):
                if not position:
                    features = np.empty((rows, piece.features.shape[1]), dtype=dtype)
                if position + len(piece.labels) <= end:
                    features[position : position + len(piece.labels)] = piece.features
                labels.append(piece.labels)
                if truth is not None:
                    marks.append(_marks(truth, piece.columns[truth]))
                position += len(piece.labels)
                if shows_rows:
                    progress("reading", min(position, rows), rows)
            if not shows_rows:
                progress("reading", number, len(self.peeks))
            if position != end:
                raise DpvalueError(f"{path} changed during the run: its number of rows differs")
        parties = self._parties(EncodedRows(features, self.schema), np.concatenate(labels))
        return parties, None if truth is None else _ground_truth(truth, np.concatenate(marks), parties)

    def labels(self, column: Column) -> Array:
        """Return labels as canonical texts, or as numbers for regression."""
        return read_labels(column, self.task)


def open_run(config: RunConfig) -> FileRun:
    """Read the public file and the public properties of the private files, and check that they fit."""
    if not config.train:
        raise DpvalueError("train must name at least one file: these are the options of a study (dpvalue job)")
    require_other_file(config.train, config.test)
    public = open_public(config)
    parts = {field.name: getattr(public, field.name) for field in fields(public)}
    peeks, owners = peek_files(config, [*public.schema.names, *sorted(_other_columns(config))])
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
    features = public.without(*_other_columns(config), *config.drop)
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


def _other_columns(config: RunConfig) -> set[str]:
    """The columns of the options that are no features."""
    return {name for name in (config.target, config.group, config.person, config.truth) if name is not None}


def _classes(config: RunConfig, target: Column) -> tuple[str, ...]:
    public_classes = classes_of(target)
    classes = classes_of(Column(list(config.classes))) or public_classes
    unknown = [name for name in public_classes if name not in index_of(classes)]
    if unknown:
        raise DpvalueError(f"classes must hold all labels of {config.test}; {unknown[0]!r} is missing")
    if len(classes) < 2:
        raise DpvalueError(f"the target {config.target!r} of {config.test} must have at least two classes, got one")
    return classes


def _marks(column: str, cells: Column) -> Bools:
    """Which rows a column of 0 and 1 marks; a line that is no record marks nobody."""
    texts = [(word or "0").lower() for word in cells.texts()]
    is_marked: Bools = np.isin(texts, ["1", "true", "yes", "y"])
    if not (is_marked | np.isin(texts, ["0", "false", "no", "n"])).all():
        raise DpvalueError(f"the column {column!r} must hold 0 and 1 (or no and yes, or false and true)")
    return is_marked


def _ground_truth(column: str, is_marked: Bools, parties: Parties) -> GroundTruth:
    """Which parties a column marks: those with any marked row."""
    has_party = parties.party_of_row >= 0
    counts = np.bincount(parties.party_of_row[has_party], weights=is_marked[has_party], minlength=len(parties.names))
    truth = GroundTruth(column, counts > 0)
    if truth.marked.all() or not truth.marked.any():
        raise DpvalueError(
            f"the column {column!r} must mark some parties and leave others: it marks {truth.marked.sum()}"
        )
    return truth
