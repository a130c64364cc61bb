"""Tasks for values: curves of removing and adding parties, and the stability of rankings.

Curves from a private table are post-processing and cost no budget: the model of a set of parties is
theta_0 - alpha * (sum of their rows). Retraining on raw rows is more accurate and exposes them, so it is only for runs
without privacy.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike

from dpvalue.arrays import Floats
from dpvalue.data.checks import require_other_rows
from dpvalue.data.parties import as_parties
from dpvalue.data.rows import PrivateRows
from dpvalue.data.utility import as_utility
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError, require_choice, require_number
from dpvalue.games.solving import FunctionGame
from dpvalue.models import TREES, build_model
from dpvalue.models.build import train
from dpvalue.values.curves import Curve, Drawing, addition_curve, curve_of, orders_of, removal_curve
from dpvalue.values.result import Result

__all__ = ["Curve", "Stability", "addition_curve", "rank_stability", "removal_curve", "retraining_curve"]

_RETRAINING_STEPS = 256


def retraining_curve(
    result: Result,
    parties: Any,
    utility: Any,
    kind: str = "removal",
    order: str = "high",
    *,
    target: str | None = None,
    groups: Any = None,
    **drawing: Unpack[Drawing],
) -> Curve:
    """Return a curve with models retrained on the raw rows of the remaining parties.

    No guarantee: it reads the parties' rows. It raises for a result under differential privacy.

    Args:
        result: the values, of a run without privacy.
        parties: the parties of the result, with their rows.
        utility: the public set.
        kind: "removal" or "addition".
        order: "high", "low" or "random".
        target: the label column of DataFrames.
        groups: a label per row, as in `dpvalue.value`.
        **drawing: semivalue, points (11), trials (5), seed (0), as in `removal_curve`.

    Returns:
        the utility of retrained models.

    Raises:
        DpvalueError: a result that was made under differential privacy, or other parties than its own.

    Example:
        >>> open_result = dpv.value(train, test, groups=sites, privacy=None, progress=False)  # as in `dpvalue.Result`
        >>> curve = retraining_curve(open_result, train, test, order="low", groups=sites, points=3)
        >>> bool(curve.mean[1] > curve.mean[0])
        True
    """
    if result.guarantee.private:
        raise DpvalueError(
            "retraining on raw rows would undo the privacy of this result: removal_curve and addition_curve use the "
            "private table"
        )
    require_choice("kind", kind, ("removal", "addition"))
    private, public = as_parties(parties, target, groups), as_utility(utility, target, groups)
    require_other_rows(private, public)
    if private.names != result.table.names:
        raise DpvalueError("parties must be those of the result, in the same order")
    drawing = {"points": 11, "trials": 5, "seed": 0, **drawing}
    orders, counts = orders_of(result, order, **drawing)
    table, engine = result.table, result.engine
    if table.model is None:
        raise DpvalueError("the result was made with a custom model: pass it again with load(path, model=...)")
    device, dtype = engine.torch_device, engine.torch_dtype
    with engine.threading():
        if table.model == TREES:  # filled with raw rows, which is what the table of such a result holds
            return replace(curve_of(table.game(public, engine), kind, order, orders, counts), retrained=True)
        encoded = public.encode(table.encoding, dtype, device)
        model = build_model(table.model, table.encoding.task, encoded.x[0], table.encoding.outputs, dtype, device)
        evaluate = Evaluator(encoded, model, engine)
        rows: PrivateRows = private.encode(table.encoding, dtype, device)
        x, y = model.inputs(rows.x[:-1]), model.targets(rows.y[:-1])
        party = torch.repeat_interleave(torch.arange(private.n), rows.sizes.cpu())
        counts_for = rows.weights[:-1].cpu() > 0
        start = model.initial(drawing["seed"])

        def retrained(remaining: tuple[int, ...]) -> float:
            left = (torch.isin(party, torch.tensor(remaining, dtype=party.dtype)) & counts_for).to(device)
            model_of_set = (
                train(model, start, x[left], y[left], [_RETRAINING_STEPS], drawing["seed"])[0] if left.any() else start
            )
            return float(evaluate(model_of_set[None]))

        curve = curve_of(FunctionGame(retrained, private.n), kind, order, orders, counts)
    return replace(curve, retrained=True)


@dataclass(frozen=True, eq=False)
class Stability:
    """The agreement of runs, over all pairs.

    Attributes:
        spearman: the rank correlation of each pair.
        overlap: the share of the top k of one run that is in the top k of the other.
        k: the size of the top.

    Example:
        >>> rank_stability([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]], k=1).overlap.tolist()
        [1.0]
    """

    spearman: Floats
    overlap: Floats
    k: int

    def __repr__(self) -> str:
        return f"Stability({self})"

    def __str__(self) -> str:
        return (
            f"Spearman {self.spearman.mean():.3f} (lowest {self.spearman.min():.3f}), "
            f"top {self.k} shared {self.overlap.mean():.0%} (lowest {self.overlap.min():.0%}), "
            f"over {len(self.spearman)} pairs of runs"
        )


def rank_stability(runs: Sequence[ArrayLike], k: int = 10) -> Stability:
    """Return how well the values of several runs agree on ranks and on the top k parties.

    Args:
        runs: the values of each run, of the same parties in the same order.
        k: how many of the highest are compared.

    Returns:
        the agreement of all pairs of runs.

    Raises:
        DpvalueError: fewer than two runs, values that are not finite, or k above the number of parties.

    Example:
        >>> print(rank_stability([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0]], k=1))
        Spearman 0.500 (lowest 0.500), top 1 shared 100% (lowest 100%), over 1 pairs of runs
    """
    values = [np.asarray(run, dtype=float) for run in runs]
    if len(values) < 2 or len({vector.shape for vector in values}) != 1 or values[0].ndim != 1:
        raise DpvalueError("runs must be at least two, with the values of the same parties each")
    if not all(np.isfinite(vector).all() for vector in values):
        raise DpvalueError("runs must hold finite values, got NaN or infinity")
    require_number("k", k, f"between 1 and {len(values[0])}", 1 <= k <= len(values[0]))
    from scipy.stats import spearmanr

    tops = [set(np.argsort(-vector, kind="stable")[:k].tolist()) for vector in values]
    pairs = list(itertools.combinations(range(len(values)), 2))
    return Stability(
        np.array([float(spearmanr(values[i], values[j]).statistic) for i, j in pairs]),
        np.array([len(tops[i] & tops[j]) / k for i, j in pairs]),
        k,
    )
