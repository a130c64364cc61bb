"""Worlds for audits, which differ in protected units: canaries, which move releases far, or their neighbours.

All other rows come from the public set. Of the caller's parties only their public sizes are used, and no private row is
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dpvalue.arrays import Array, Bools, Ints
from dpvalue.data.columns import Column, Columns, is_frame
from dpvalue.data.conversions import as_columns
from dpvalue.data.encoding import Encoding
from dpvalue.data.parties import Parties
from dpvalue.data.raw import as_numbers, join_rows, label_column, take_rows
from dpvalue.data.rows import PrivateRows
from dpvalue.data.utility import Utility
from dpvalue.errors import DpvalueError
from dpvalue.methods.choosing import choose
from dpvalue.models import CLASSIFICATION
from dpvalue.party.contributions import Contributions
from dpvalue.planning.settings import Settings
from dpvalue.privacy.budget import Privacy
from dpvalue.runs.run import PreparedRun, Run, open_setting, run_for

_PUBLIC_ROWS = 6
_FACTORS = (1.0, 8.0, 64.0, 512.0)
_MOST_LABELS = 4


@dataclass(frozen=True, eq=False, repr=False)
class World(Parties):
    """Parties of which some rows may be silent: they contribute zero, like unusable rows."""

    silent: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def _encode_usable(
        self, encoding: Encoding, dtype: torch.dtype, positions_public: bool
    ) -> tuple[Array, Array, Bools]:
        x, y, usable = super()._encode_usable(encoding, dtype, positions_public)
        usable[self.silent] = False
        return x, y, usable


@dataclass(frozen=True)
class Worlds:
    """Prepared runs of the worlds, and the canary of each party (-1 for none).

    `present` has all canaries and `absent` has none; each canary is a trial of its own, since parties release
    independently. `one_canary` and `no_canary` differ only in the first canary.
    """

    present: Run
    absent: Run
    one_canary: Run
    no_canary: Run
    canary_of: Ints


def make_worlds(utility: Utility, settings: Settings, sizes: Ints, units: Ints) -> Worlds:
    """Return the worlds of a configuration. `present` and `absent` are prepared separately, as two users' runs.

    A canary is a unit of a party: all of its rows, one record, or all rows of a person in the largest allowed number of
    parties. It is the stretched public row with the largest initial contribution. Its neighbour is silent ("zero_out")
    or the row with the most distant contribution ("replace").

    Formal guarantee: reads public values only.
    """
    privacy = settings.privacy
    if privacy is None:
        raise DpvalueError("privacy must be given: an audit needs a claim")
    at, encoding = open_setting(utility, settings, sizes, units)
    layout = _Layout.of(sizes, units, privacy)
    pool = _Pool.of(utility, encoding)
    plain = np.arange(len(layout.party)) % pool.public
    prepared = PreparedRun(at, encoding, choose(at), utility)
    here, there = _farthest(prepared, pool, privacy.neighbours)

    def world(canaries: Ints, row: int | None) -> World:
        rows = plain.copy()
        if row is not None:
            rows[canaries] = row
        quiet = canaries if row is None else canaries[:0]
        return World(take_rows(pool.X, rows), pool.y[rows], layout.party, layout.person, silent=quiet)

    every, first = np.flatnonzero(layout.canary >= 0), np.flatnonzero(layout.canary == 0)
    return Worlds(
        present=run_for(world(every, here), utility, settings),
        absent=run_for(world(every, there), utility, settings),
        one_canary=prepared.run(world(first, here)),
        no_canary=prepared.run(world(first, there)),
        canary_of=layout.canary_of,
    )


@dataclass(frozen=True)
class _Layout:
    """The party, person and canary of each row, sorted by party, and the canary of each party; -1 for none."""

    party: Ints
    person: Ints | None
    canary: Ints
    canary_of: Ints

    @classmethod
    def of(cls, sizes: Ints, units: Ints, privacy: Privacy) -> _Layout:
        party = np.repeat(np.arange(len(sizes)), sizes)
        position = np.concatenate([np.arange(size) for size in sizes])
        unit = position % units[party]
        spread = min(privacy.parties_per_person, len(sizes))
        canary_of = np.arange(len(sizes)) // spread
        canary_of[canary_of >= len(sizes) // spread] = -1  # too few parties are left for another person
        canary = np.where(unit == 0, canary_of[party], -1)
        person = None
        if privacy.unit == "person":
            stranger = len(sizes) + np.concatenate([[0], np.cumsum(units)[:-1]])[party] + unit
            person = np.where(canary >= 0, canary, stranger)
        return cls(party, person, canary, canary_of)


@dataclass(frozen=True, eq=False)
class _Pool:
    """The public rows, followed by candidates for the canary: stretched public rows with several labels."""

    X: Any
    y: Array
    public: int

    @classmethod
    def of(cls, utility: Utility, encoding: Encoding) -> _Pool:
        labels = _label_array(utility.y)
        sampled = np.unique(np.linspace(0, len(labels) - 1, _PUBLIC_ROWS).astype(int))
        blocks, targets = [utility.X], [labels]
        for factor in _FACTORS:
            stretched = _stretch(utility.X, sampled, factor)
            if not np.isfinite(encoding.features(stretched, "canaries")).all():
                continue  # the transformer rejects the row, so it is no possible canary
            if encoding.task == CLASSIFICATION:
                labels_to_try = list(encoding.classes[:_MOST_LABELS])
            else:
                spread = factor * (float(np.std(labels)) or 1.0)
                labels_to_try = [float(np.mean(labels)) - spread, float(np.mean(labels)) + spread]
            for label in labels_to_try:
                blocks.append(stretched)
                targets.append(np.full(len(sampled), label, dtype=labels.dtype))
        return cls(join_rows(blocks), np.concatenate(targets), len(labels))


def _stretch(raw: Any, rows: Ints, factor: float) -> Any:
    """Rows moved away from the mean of the set by a factor, in their numeric columns."""
    if is_frame(raw):
        table = as_columns(raw)
        return Columns({name: _stretch_column(table[name], rows, factor) for name in table.columns})
    numbers = as_numbers(raw, "utility features")
    centre = numbers.mean(0, keepdims=True)
    return centre + factor * (numbers[rows] - centre)


def _stretch_column(column: Column, rows: Ints, factor: float) -> Column:
    if not Columns({"": column}).is_numeric()[""]:
        return column.take(rows)
    numbers = column.numbers()
    centre = float(np.nanmean(numbers)) if not np.isnan(numbers).all() else 0.0
    return Column(centre + factor * (numbers[rows] - centre))


def _label_array(labels: Any) -> Array:
    """Public labels as one array."""
    cells = label_column(labels, "utility labels").cells
    return cells if isinstance(cells, np.ndarray) else np.array(cells)


def _farthest(prepared: PreparedRun, pool: _Pool, neighbours: str) -> tuple[int, int | None]:
    """The candidate and its neighbour (None: silent) with the most distant first releases before noise."""
    choice, engine = prepared.choice, prepared.situation.settings.engine
    candidates = np.arange(pool.public, len(pool.y))
    each = np.arange(len(candidates))
    parties = Parties(take_rows(pool.X, candidates), pool.y[candidates], persons=each)
    device, privacy = engine.torch_device, prepared.situation.settings.privacy
    rows: PrivateRows = parties.encode(prepared.encoding, engine.torch_dtype, device, privacy)
    contributions = Contributions(choice.unit_numbers, rows, choice.mechanism, engine)
    everyone = torch.from_numpy(each).to(device)
    gradients = contributions.mean_gradients(choice.points_for(len(each)), choice.shares, everyone).to(torch.float64)
    lengths = gradients.square().sum(-1)
    if neighbours == "zero_out":
        return int(candidates[int(lengths.argmax())]), None
    distances = lengths[:, None] + lengths[None, :] - 2 * gradients @ gradients.T
    here, there = divmod(int(distances.argmax()), len(each))
    return int(candidates[here]), int(candidates[there])
