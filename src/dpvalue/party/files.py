"""A party's file, read for a job: what is public of it first, its rows only once the job was let in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Array
from dpvalue.data.encoding import EncodedRows
from dpvalue.data.files import open_private, read_encoded
from dpvalue.data.parties import numbered_persons, person_counts
from dpvalue.errors import DpvalueError
from dpvalue.protocol.job import Job


@dataclass(frozen=True)
class OwnFile:
    """The file of a party, and its column of persons' ids, if it has one."""

    path: Path
    person: str | None = None

    def columns(self) -> tuple[str, ...]:
        """The names of its columns; nothing else is read."""
        with open_private(self.path) as file:
            return file.columns

    def units(self) -> int:
        """The public number of records; with ids, of persons."""
        with open_private(self.path) as file:
            if self.person is None:
                return file.count()
            ids = [block.columns[self.person].identities() for block in file.read([self.person], None)]
        person = numbered_persons(_joined(ids, np.empty(0, dtype=object)))
        return int(person_counts(np.zeros(len(person), dtype=np.int64), person, 1)[0])

    def read(self, job: Job) -> dict[str, Any]:
        """Return the rows, as `dpvalue.Party` takes them."""
        schema, target = job.encoding.preprocess, required_columns(job)[-1]
        features, labels, persons = [], [], []
        others = [] if self.person is None else [self.person]
        kept = np.dtype(job.dtype)
        for piece in read_encoded(self.path, schema, target, job.encoding.task, others, kept):
            features.append(piece.features)
            labels.append(piece.labels)
            if self.person is not None:
                persons.append(piece.columns[self.person].identities())
        rows: dict[str, Any] = {
            "X": EncodedRows(_joined(features, np.empty((0, *job.encoding.shape), kept)), schema),
            "y": _joined(labels, np.empty(0, dtype=object)),
        }
        if self.person is not None:
            rows |= {"persons": _joined(persons, np.empty(0, dtype=object)), "person_column": self.person}
        return rows


def required_columns(job: Job) -> tuple[str, ...]:
    """Return the columns that a job reads of a file, the target last."""
    if not job.encoding.by_columns or job.about.target is None:
        raise DpvalueError("the job must be answered in Python (dpvalue.Party): it does not describe files")
    return (*job.encoding.preprocess.names, job.about.target)


def _joined(parts: list[Array], nothing: Array) -> Array:
    return np.concatenate(parts) if parts else nothing
