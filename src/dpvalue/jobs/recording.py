"""What becomes known of a run, for run.json: once its releases are made, and once values are."""

from __future__ import annotations

import platform
from dataclasses import replace
from datetime import UTC, datetime

import torch

from dpvalue.data.metrics import as_metric
from dpvalue.jobs.config import RunConfig
from dpvalue.jobs.job import Known
from dpvalue.planning.detection import auc, precision_at
from dpvalue.privacy.ledger import Ledger
from dpvalue.report.record import Charged, CurveRecord, Detection, Planned, Record, Trained, Valued, Versions
from dpvalue.server.plan_page import Plan
from dpvalue.valuation.result import Result
from dpvalue.valuation.table import Table
from dpvalue.valuation.tasks.curves import Curve


def released_record(config: RunConfig, table: Table, plan: Plan | None) -> Record:
    """Return what is known of a run once its releases are made; enough to value them later."""
    from dpvalue import __version__

    directions = "all directions" if table.projection is None else str(table.projection)
    how = f"{table.schedule}, {directions}, learning rate {table.learning_rate:.3g}"
    return Record(
        made=datetime.now(UTC).date().isoformat(),  # the hour would tell how long the private steps took
        versions=Versions(__version__, platform.python_version(), torch.__version__),
        toml=config.to_toml(),
        trained=Trained(table.encoding.task, str(table.model), how, config.seed),
        guarantee=table.guarantee,
        plan=None if plan is None else _planned(plan),
        ledger=None if config.ledger is None else _charged(config.ledger),
        values=None,
        curves=(),
        detection=None,
    )


def valued_record(
    record: Record, result: Result, known: Known | None, curves: list[Curve], pay: float | None = None
) -> Record:
    """Return what is known once values are made; `pay` is a total to share by them."""
    assert result.utility is not None
    names = tuple(semivalue.name for semivalue in result.semivalues)
    verdict, game = result.verdict(pay).sentences, result.table.method.words
    metric = as_metric(result.utility.metric).title
    return replace(
        record,
        values=Valued(names, result.walks, result.converged, len(result.utility.y), verdict, pay, game, metric),
        curves=tuple(_points(curve) for curve in curves),
        detection=None if known is None else _detection(result, known),
    )


def _planned(plan: Plan) -> Planned:
    limits = plan.limits
    ceilings = limits.ceiling, limits.gaussian_ceiling, limits.laplace_ceiling
    return Planned(*ceilings, plan.expected_auc, plan.efficiency, plan.sizes.records, plan.advice, str(plan))


def _charged(path: str) -> Charged:
    ledger = Ledger(path)
    return Charged(ledger.spent, ledger.budget.epsilon, ledger.budget.terms, ledger.head())


def _points(curve: Curve) -> CurveRecord:
    shares, mean, spread = (tuple(numbers.tolist()) for numbers in (curve.shares, curve.mean, curve.spread))
    return CurveRecord(curve.kind, curve.order, shares, mean, spread, curve.retrained)


def _detection(result: Result, known: Known) -> Detection:
    values, marked = result.values[result.semivalues[0].name], known.marked
    k = int(marked.sum())
    return Detection(
        column=known.column,
        auc=auc(values, marked),
        k=k,
        precision=precision_at(values, marked, k),
        corrupted=f"{k} of {len(marked)}",
        chance=k / len(marked),
    )
