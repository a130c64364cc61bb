"""Check private files for their holder, and list all faults. It releases nothing, and is no part of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Bools
from dpvalue.data.cells import index_of
from dpvalue.data.columns import Column, Columns
from dpvalue.data.files import Block, is_text, read_private
from dpvalue.data.parties import number_groups, party_person_pairs
from dpvalue.data.schema import Categorical, Numeric
from dpvalue.models import CLASSIFICATION
from dpvalue.runs.config import RunConfig
from dpvalue.runs.sources import FileRun, open_run


@dataclass(frozen=True, order=True)
class FindingKind:
    """A kind of finding: its column ("" for a whole record), the finding in words, and whether the row counts."""

    counts: bool
    column: str
    finding: str


@dataclass(frozen=True)
class FileCheck:
    """The findings in one private file; `places` are lines (of a text file) or rows, from 1, by kind and cell."""

    path: str
    records: int
    unused: int
    place_noun: str
    places: dict[FindingKind, dict[str, list[int]]]


@dataclass(frozen=True)
class Check:
    """The findings in all private files of a job, and their labels compared to those of the public file.

    Attributes:
        files: the findings of each private file.
        labels: for each label (or quantile, for regression) the counts in the public file and in the private files.
        unknown_labels: the labels that the public file lacks.
    """

    files: tuple[FileCheck, ...]
    labels: tuple[tuple[str, str, str], ...]
    unknown_labels: frozenset[str]

    @property
    def unused(self) -> int:
        """The number of records that contribute zero."""
        return sum(file.unused for file in self.files)


@dataclass
class _Notes:
    """Places of findings, while a file is read."""

    first: int
    by_kind: dict[FindingKind, dict[str, list[int]]] = field(default_factory=dict)

    def add(self, kind: FindingKind, column: Column | None, positions: Iterable[int]) -> None:
        for place in positions:
            cell = "" if column is None else _cell_text(column, place)
            self.by_kind.setdefault(kind, {}).setdefault(cell, []).append(self.first + place)


def check(config: RunConfig) -> Check:
    """Read all rows of the private files of a job, and return the findings; nothing is released.

    Rows whose features and label are in the public file too are listed: they are not protected.

    No guarantee: the result is a function of the rows, without noise.
    """
    job = open_run(config)
    groups, persons = job.owners
    is_beyond, public = _beyond_limit(job), _public_rows(job)
    files, labels, start = [], [], 0
    for path, peek in zip(config.train, job.peeks, strict=True):
        place_noun = "line" if is_text(Path(path)) else "row"
        places: dict[FindingKind, dict[str, list[int]]] = {}
        unused = np.zeros(peek.rows, dtype=bool)
        position = 0
        for block in read_private(Path(path), _names(job)):
            rows = slice(start + position, start + position + len(block.columns))
            notes = _Notes(position + (2 if place_noun == "line" else 1), places)
            is_silent = _note_block(job, block, notes)
            is_silent |= _note_owner(block, config.group, None if groups is None else groups[rows], "no party", notes)
            is_silent |= _note_owner(block, config.person, None if persons is None else persons[rows], "no id", notes)
            kind = FindingKind(
                False, str(config.person), f"in more than {config.parties_per_person} parties, counts in the first"
            )
            if is_beyond[rows].any():
                notes.add(kind, block.columns[str(config.person)], np.flatnonzero(is_beyond[rows]))
            is_silent |= is_beyond[rows]
            copies = [place for place, row in enumerate(_rows(job, block.columns)) if row in public]
            notes.add(FindingKind(True, "", f"also in {config.test}, not protected"), None, copies)
            unused[position : position + len(block.columns)] = is_silent
            labels.append(job.labels(block.columns[config.target]))
            position += len(block.columns)
        files.append(FileCheck(path, peek.rows, int(unused.sum()), place_noun, places))
        start += peek.rows
    return Check(tuple(files), *_labels(job, np.concatenate(labels)))


def _public_rows(job: FileRun) -> set[tuple[Any, ...]]:
    """The rows of the public file, as texts of features and target."""
    features = job.utility.X
    return set(zip(*(features[name].texts() for name in job.schema.names), job.utility.y, strict=True))


def _rows(job: FileRun, columns: Columns) -> Iterable[tuple[Any, ...]]:
    """The rows of private records, as texts of features and target."""
    target = job.labels(columns[job.config.target])
    return zip(*(columns[name].texts() for name in job.schema.names), target, strict=True)


def _names(job: FileRun) -> list[str]:
    config = job.config
    own = [name for name in (config.group, config.person) if name is not None]
    return list(dict.fromkeys([*job.schema.names, config.target, *own]))


def _note_block(job: FileRun, block: Block, notes: _Notes) -> Any:
    """Note faults of records, features and labels; return which records contribute zero."""
    is_silent = block.bad
    for place, fault in block.faults.items():
        notes.add(FindingKind(False, "", fault), None, [place])
    for name, unreadable in job.schema.unreadable(block.columns).items():
        notes.add(FindingKind(False, name, "not a finite number"), block.columns[name], np.flatnonzero(unreadable))
        is_silent |= unreadable
    with np.errstate(all="ignore"):
        is_large = ~np.isfinite(job.schema.transform(block.columns).astype(np.float32)).all(axis=1) & ~is_silent
    notes.add(FindingKind(False, "", "numbers too large for single precision"), None, np.flatnonzero(is_large))
    is_silent |= is_large
    target = block.columns[job.config.target]
    missing = target.missing_cells() & ~block.bad
    class_index = index_of(job.classes or ())
    if job.task == CLASSIFICATION:
        is_wrong = ~missing & ~block.bad & np.array([label not in class_index for label in target.texts()], dtype=bool)
        text = f"not a class of {job.config.test} (--classes names all of them)"
    else:
        with np.errstate(all="ignore"):
            is_wrong, text = np.isinf(target.numbers().astype(np.float32)), "not a finite number"
    notes.add(FindingKind(False, job.config.target, "missing, the target"), None, np.flatnonzero(missing))
    notes.add(FindingKind(False, job.config.target, text), target, np.flatnonzero(is_wrong))
    _note_features(job, block, notes)
    return is_silent | missing | is_wrong


def _note_features(job: FileRun, block: Block, notes: _Notes) -> None:
    """Note missing cells and new categories, which count in a default way."""
    for encoder in job.schema.columns_:
        column = block.columns[encoder.name]
        missing = column.missing_cells() & ~block.bad
        if isinstance(encoder, Numeric):
            notes.add(
                FindingKind(True, encoder.name, f"missing, counts as {encoder.missing:g}"),
                None,
                np.flatnonzero(missing),
            )
        elif isinstance(encoder, Categorical):
            category_index = index_of(encoder.categories)
            is_new = (
                ~missing & ~block.bad & np.array([text not in category_index for text in column.texts()], dtype=bool)
            )
            notes.add(FindingKind(True, encoder.name, "missing, counts as no category"), None, np.flatnonzero(missing))
            finding = f"not a category of {job.config.test}, counts as none"
            notes.add(FindingKind(True, encoder.name, finding), column, np.flatnonzero(is_new))


def _note_owner(block: Block, name: str | None, owners: Any, finding: str, notes: _Notes) -> Any:
    """Note the records without a party, or without a person; return which they are."""
    ownerless = np.zeros(len(block.columns), dtype=bool)
    if owners is None or name is None:
        return ownerless
    ownerless = np.array([owner is None for owner in owners], dtype=bool)
    notes.add(FindingKind(False, name, finding), block.columns[name], np.flatnonzero(ownerless & ~block.bad))
    return ownerless


def _beyond_limit(job: FileRun) -> Bools:
    """Which rows contribute zero because their person is in more parties than allowed."""
    groups, persons = job.owners
    rows = sum(peek.rows for peek in job.peeks)
    if persons is None:
        return np.zeros(rows, dtype=bool)
    party = np.arange(rows) if groups is None else number_groups(groups)[1]
    person = number_groups(persons)[1]
    has_owners = (party >= 0) & (person >= 0)
    is_beyond: Bools = has_owners & (party_person_pairs(party, person, job.config.parties_per_person)[1] < 0)
    return is_beyond


def _labels(job: FileRun, private: Any) -> tuple[tuple[tuple[str, str, str], ...], frozenset[str]]:
    """Labels of the public file and of the private files, side by side."""
    public = np.asarray(job.utility.y)
    if job.classes is not None:
        public_counts, private_counts = (
            Counter(public.tolist()),
            Counter(label for label in private if label is not None),
        )
        unknown = frozenset(private_counts.keys() - index_of(job.classes).keys())
        names = [*job.classes, *sorted(private_counts.keys() - set(job.classes))]
        return tuple((name, str(public_counts[name]), str(private_counts[name])) for name in names), unknown
    private = private[np.isfinite(private)]
    rows = [("rows with a label", f"{len(public)}", f"{len(private)}")]
    for name, share in (("smallest", 0.0), ("median", 0.5), ("largest", 1.0)):
        rows.append((name, _quantile(public, share), _quantile(private, share)))
    return tuple(rows), frozenset()


def _quantile(labels: Any, share: float) -> str:
    return f"{np.quantile(labels, share):g}" if len(labels) else "-"


def _cell_text(column: Column, place: int) -> str:
    """A cell, to be shown to its holder."""
    if column.missing is not None and column.missing[place]:
        return "missing"
    cell = str(column.cells[place])
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
