"""What is public of private files, read in one go through each: their columns, their lines, and whose a line is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.arrays import Array
from dpvalue.data.cells import party_name
from dpvalue.data.files import Peek, is_text, open_private, require_records
from dpvalue.errors import DpvalueError
from dpvalue.jobs.config import RunConfig
from dpvalue.names import require_names

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
    require_names("names of files, which are the parties' names,", names)
    return names


def _objects(cells: list[str | None]) -> Array:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array
