"""What a prepared run hands out: a job for parties to answer, and a table for what they release."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.encoding import Encoding
from dpvalue.data.utility import PublicSet
from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice
from dpvalue.planning.settings import Settings
from dpvalue.planning.situation import Situation
from dpvalue.protocol.archive import Parts, digest
from dpvalue.protocol.job import About, Course, Job, PublicModel, Simulation
from dpvalue.runs.table import METHOD, Origin, Table
from dpvalue.streams import replay_seed, replay_seed_of_rows

_DENORMAL = 1e-30


def make_table(
    settings: Settings,
    choice: Choice,
    encoding: Encoding,
    rows: Tensor,
    names: tuple[str | int, ...],
    noise_std: Floats,
    sizes: Ints,
) -> Table:
    """Return the table of combined releases (n, size), whose noise has these standard deviations (n,)."""
    return Table(
        rows=rows,
        names=names,
        noise_std=noise_std,
        guarantee=choice.spent,
        initial=(choice.initial if choice.basis is None else choice.basis.origin).cpu(),
        basis=None if choice.basis is None else choice.basis.vectors.cpu(),
        learning_rate=choice.learning_rate,
        model=settings.model,
        digest=choice.model.digest(),
        encoding=encoding,
        origin=Origin(choice.schedule, settings.permutations, choice.expected_auc, sizes),
        method=choice.method,
        seed=replay_seed_of_rows(rows.numpy()) if choice.spent.simulation else replay_seed(settings.seed),
    )


def make_job(
    at: Situation,
    encoding: Encoding,
    choice: Choice,
    names: Sequence[str | int] = (),
    target: str | None = None,
    recipe: str = "",
) -> Job:
    """Return what parties are asked, for schedules of rounds, or federated learning, under differential privacy.

    Formal guarantee: a function of the public set, the settings and the parties' public sizes.

    Args:
        at: what choices were made from.
        encoding: how rows become numbers.
        choice: what was chosen.
        names: the parties of a simulation, in the order of the table; nobody else's are part of a job.
        target: the column of labels in parties' files.
        recipe: the options that the job was made by.
    """
    settings, public = at.settings, at.public
    if settings.privacy is None or not (choice.schedule.in_rounds or choice.schedule.learns):
        raise DpvalueError("a job needs privacy and either federated learning or the schedule 'replay' or 'lagged'")
    wide, least = choice.method.by_size(at, choice)
    points = wide.points[:, None] if wide.points.dim() == 2 else wide.points
    return Job(
        encoding=encoding,
        model=PublicModel(settings.model, at.model.digest(), wide.method.tensors().get("trunk")),
        origin=_flushed(choice.initial if choice.basis is None else choice.basis.origin),
        basis=None if choice.basis is None else _flushed(choice.basis.vectors),
        mechanism=choice.mechanism,
        course=Course(choice.releases, _flushed(points.transpose(0, 1)), choice.shares.cpu(), torch.from_numpy(least)),
        privacy=settings.privacy,
        simulation=None if settings.noise == "secure" else Simulation(settings.seed, tuple(map(str, names))),
        about=About(public_digest(public), target, recipe, settings.seed, _blank(settings, wide, encoding, least)),
        dtype=str(settings.engine.torch_dtype).removeprefix("torch."),
        statistic=choice.method.statistic,
    )


def public_digest(public: PublicSet) -> str:
    """Return what a job knows its public set by."""
    return digest({"metric": public.metric.name, "l2": public.l2}, {"x": public.x, "y": public.y})


def _blank(settings: Settings, wide: Choice, encoding: Encoding, least: Ints) -> Parts:
    """A table of stand-ins, one for each range of sizes, without what the job holds itself."""
    points = wide.points
    rows = torch.zeros(len(least), points.shape[-1], dtype=points.dtype)
    header, tensors = make_table(
        settings, wide, encoding, rows, tuple(least.tolist()), np.zeros(len(least)), least
    ).parts()
    return (
        {name: part for name, part in header.items() if name != "encoding"},
        {name: part for name, part in tensors.items() if name not in ("initial", "basis", f"{METHOD}trunk")},
    )


def _flushed(numbers: Tensor) -> Tensor:
    """Numbers without those so small that a processor may be slow with them, or take them for zero."""
    return torch.where(numbers.abs() < _DENORMAL, 0.0, numbers).cpu().contiguous()
