"""The output folder of a run: values.csv, run.toml, run.json, table.safetensors and report.html.

Everything in it is a function of the private table and of public things (and, with `truth`, of a known answer that the
user chose to compare with). The folder is written beside its place and moved there whole: there is no half of one.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from dpvalue.detection import auc, precision_at
from dpvalue.errors import DpvalueError
from dpvalue.files import load
from dpvalue.plan_page import Plan
from dpvalue.privacy.ledger import Ledger
from dpvalue.report import report_page
from dpvalue.result import Result
from dpvalue.semivalues import Floats
from dpvalue.stored import parse_json, read_text
from dpvalue.table import Table
from dpvalue.tabular.config import RunConfig, make_config
from dpvalue.tabular.facts import check_frame, check_releases, check_values, options
from dpvalue.tabular.schema import Schema
from dpvalue.tasks import Curve, addition_curve, removal_curve
from dpvalue.tasks.curves import ORDERS

_ROOM, _ROOM_PER_PARTY = 2**24, 2**12  # bytes
_FILES = ("values.csv", "run.toml", "run.json", "table.safetensors", "report.html")


@dataclass(frozen=True, eq=False)
class Known:
    """A known answer to compare with: the name of its column, and which parties it marks."""

    column: str
    marked: Any


def require_free(folder: Path, overwrite: bool) -> None:
    """Raise if results, or anything else, would be overwritten without leave."""
    if folder.exists() and not folder.is_dir():
        raise DpvalueError(f"{folder} must be a folder, but is a file")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / "run.toml").is_file():
        raise DpvalueError(f"{folder} holds other files: name a new folder with --out")
    if not overwrite:
        raise DpvalueError(f"{folder} holds results already: name another folder, or give --overwrite")


def require_writable(folder: Path, parties: int) -> None:
    """Raise unless results of so many parties can be written there: tried, before anything is spent."""
    scratch = _scratch(folder)
    try:
        made = [one for one in scratch.parents if not one.exists()]
        scratch.mkdir(parents=True, exist_ok=True)
        (scratch / "probe").write_bytes(b"probe")
        free = shutil.disk_usage(scratch).free
        shutil.rmtree(scratch)
        for one in made:
            one.rmdir()
    except OSError as error:
        raise DpvalueError(f"{folder} cannot be written: {error.strerror}") from None
    needed = _ROOM + parties * _ROOM_PER_PARTY
    if free < needed:
        raise DpvalueError(
            f"{folder} has {free / 1e6:.3g} MB of room left on its disk, and results may need {needed / 1e6:.3g}"
        )


def first_facts(config: RunConfig, table: Table, plan: Plan | None, schema: Schema) -> dict[str, Any]:
    """Return what is known of a run once its releases are made; enough to value them later."""
    from dpvalue import __version__

    return {
        "made": datetime.now(UTC).date().isoformat(),  # the hour would tell how long the private steps took
        "versions": {"dpvalue": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "config": json.loads(json.dumps(asdict(config))),
        "toml": config.to_toml(),
        "task": table.encoding.task,
        "model": table.model,
        "schema": schema.to_json(),
        "seed": config.seed,
        "guarantee": asdict(table.guarantee),
        "sentence": str(table.guarantee),
        "how": _how(table),
        "plan": None if plan is None else _plan_facts(plan),
        "ledger": _ledger_facts(config),
    }


def _how(table: Table) -> str:
    directions = "all directions" if table.projection is None else str(table.projection)
    return f"{table.schedule}, {directions}, learning rate {table.learning_rate:.3g}"


def _plan_facts(plan: Plan) -> dict[str, Any]:
    names = ("ceiling", "gaussian_ceiling", "laplace_ceiling", "expected_auc", "efficiency", "records", "advice")
    return {name: getattr(plan, name) for name in names} | {"text": str(plan)}


def _ledger_facts(config: RunConfig) -> dict[str, Any] | None:
    if config.ledger is None:
        return None
    ledger = Ledger(config.ledger)
    return {
        "spent": ledger.spent,
        "epsilon": ledger.budget.epsilon,
        "terms": ledger.budget.terms,
        "head": ledger.head(),
    }


def value_facts(result: Result, known: Known | None, retrained: list[Curve] | None = None) -> dict[str, Any]:
    """Return what is known once values are made; `retrained` curves take the place of those from the table."""
    curves = retrained
    if curves is None:
        curves = [make(result, order) for make in (removal_curve, addition_curve) for order in ORDERS]
    assert result.utility is not None
    return {
        "semivalues": [one.name for one in result.semivalues],
        "walks": result.walks,
        "converged": result.converged,
        "public_rows": len(result.utility.y),
        "curves": [_plain(curve) for curve in curves],
        "detection": None if known is None else _detection(result, known),
    }


def _plain(curve: Curve) -> dict[str, Any]:
    return {name: part.tolist() if isinstance(part, np.ndarray) else part for name, part in asdict(curve).items()}


def _detection(result: Result, known: Known) -> dict[str, Any]:
    values: Floats = result.values[result.semivalues[0].name]
    marked = np.asarray(known.marked, dtype=bool)
    k = int(marked.sum())
    return {
        "column": known.column,
        "auc": auc(values, marked),
        "k": k,
        "precision": precision_at(values, marked, k),
        "corrupted": f"{k} of {len(marked)}",
        "chance": k / len(marked),
    }


def values_frame(result: Result) -> pd.DataFrame:
    """Return what values.csv holds: party, values, both kinds of error, rank."""
    draws = min(20, max(4, 200_000 // result.table.n))  # of a very large table fewer: they would take minutes
    return result.frame(noise=result.guarantee.private, draws=draws)


def _scratch(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.part")


def write_folder(folder: Path, facts: dict[str, Any], table: Table, values: pd.DataFrame | None = None) -> None:
    """Write all files of a run at once; without values, those from which they can be made later."""
    scratch = _scratch(folder)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        table.save(scratch / "table.safetensors")
        (scratch / "run.toml").write_text(facts["toml"], encoding="utf-8")
        (scratch / "run.json").write_text(json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8")
        if values is not None:
            values.to_csv(scratch / "values.csv", index=False)
            (scratch / "report.html").write_text(report_page(values, facts), encoding="utf-8")
        if folder.is_dir():
            for name in _FILES:  # results that may be overwritten; anything else there stays
                (folder / name).unlink(missing_ok=True)
            for file in scratch.iterdir():
                file.replace(folder / file.name)
        else:
            scratch.replace(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Folder:
    """An output folder, read back."""

    path: Path
    facts: dict[str, Any]

    @property
    def config(self) -> RunConfig:
        """The options of the run."""
        return make_config(options(self.facts["config"]))

    def table(self) -> tuple[Table, Schema]:
        """Return the private table, and how columns become numbers."""
        schema = Schema.from_json(self.facts["schema"])
        found = load(self.path / "table.safetensors", preprocess=schema)
        return (found.table if isinstance(found, Result) else found), schema

    def values(self) -> pd.DataFrame:
        """Return values.csv, checked to be what run.json says."""
        file = self.path / "values.csv"
        if not file.is_file():
            raise DpvalueError(f"{self.path} has no values yet: dpvalue revalue {self.path} makes them, for nothing")
        with _damage(self.path / "run.json"):
            check_values(self.facts)
        with _damage(file):
            found = pd.read_csv(file, low_memory=False)
            check_frame(found, self.facts["semivalues"])
        return found


def open_folder(path: Path) -> Folder:
    """Return the output folder of a run, whoever wrote it: its run.json is checked field by field."""
    file = path / "run.json"
    if not file.is_file():
        raise DpvalueError(f"{path} is not a folder that dpvalue run has written")
    facts = parse_json(read_text(file), str(file))
    with _damage(file):
        check_releases(facts)
    return Folder(path, facts)


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    """Say in which file something is not as it must be."""
    try:
        yield
    except ValueError as error:  # of a check of ours, or of pandas: no text, or no table
        raise DpvalueError(f"{file} has been damaged: {str(error).strip()}") from None
