"""How the utility changes as parties are removed or added in the order of their values.

From a private table alone: the model of a set of parties is theta_0 - alpha * (sum of their rows), so a curve is
post-processing and free. Retraining on raw rows says more, and exposes them: only for runs without privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from dpvalue.arrays import Floats
from dpvalue.data.parties import as_parties
from dpvalue.data.rows import PrivateRows
from dpvalue.data.utility import as_utility
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError, require_choice, require_count
from dpvalue.models import build_model
from dpvalue.models.training import train
from dpvalue.streams import Purpose, require_seed, stream
from dpvalue.valuation.result import Result

ORDERS = ("high", "low", "random")
_POINTS = 21
_RETRAINING_STEPS = 256


@dataclass(frozen=True, eq=False)
class Curve:
    """A utility against the share of parties that were removed or added.

    Attributes:
        kind: "removal" or "addition".
        order: "high" (highest values first), "low" or "random".
        shares: of the parties (points,).
        mean: the utility, over trials (points,).
        spread: its standard deviation over trials; zeros for one trial.
        retrained: whether models were trained on raw rows instead of taken from the private table.
    """

    kind: str
    order: str
    shares: Floats
    mean: Floats
    spread: Floats
    retrained: bool = False


def removal_curve(result: Result, order: str = "high", **settings: Any) -> Curve:
    """Return the utility as parties are taken away, those with the highest (lowest) values first, or at random.

    Formal guarantee: post-processing of the private table; spends nothing.

    Args:
        result: the values; the utility is that of the run unless `utility` is given.
        order: "high", "low" or "random".
        **settings: semivalue (default: the first), points, trials (of random orders), utility, target, seed.
    """
    return _from_table(result, "removal", order, **settings)


def addition_curve(result: Result, order: str = "high", **settings: Any) -> Curve:
    """Return the utility as parties are added to none; guarantee and arguments as in `removal_curve`."""
    return _from_table(result, "addition", order, **settings)


def _from_table(
    result: Result,
    kind: str,
    order: str,
    semivalue: str | None = None,
    points: int = _POINTS,
    trials: int = 10,
    utility: Any = None,
    target: str | None = None,
    seed: int = 0,
) -> Curve:
    used = result.utility if utility is None else as_utility(utility, target)
    if used is None:
        raise DpvalueError("utility must be given: files hold no rows, so a loaded result does not have it")
    orders, counts = _orders(result, order, semivalue, points, trials, seed)
    engine = result.engine
    with engine.threading():
        walker = result.table.walker(engine)
        public = used.encode(result.table.encoding, engine.torch_dtype, engine.torch_device)
        evaluate = Evaluator(public, walker.model, engine)
        rows = result.table.rows.to(engine.torch_device, engine.torch_dtype)
        masks = torch.from_numpy(np.concatenate([_kept(one, counts, kind) for one in orders])).to(rows.device)
        worth = walker.coalition_utilities(evaluate, rows, masks).reshape(len(orders), len(counts))
    return _curve(kind, order, counts / result.table.n, worth)


def retraining_curve(
    result: Result,
    parties: Any,
    utility: Any,
    kind: str = "removal",
    order: str = "high",
    *,
    semivalue: str | None = None,
    points: int = 11,
    trials: int = 5,
    target: str | None = None,
    groups: Any = None,
    seed: int = 0,
) -> Curve:
    """Return the same with a model trained on the raw rows that are left: what a user without privacy would do.

    No guarantee: it reads the parties' rows. Refused for a result that was made under differential privacy.
    """
    if result.guarantee.private:
        raise DpvalueError(
            "retraining on raw rows would undo the privacy of this result: removal_curve and addition_curve use the "
            "private table"
        )
    require_choice("kind", kind, ("removal", "addition"))
    private, public = as_parties(parties, target, groups), as_utility(utility, target, groups)
    if private.names != result.table.names:
        raise DpvalueError("parties must be those of the result, in the same order")
    orders, counts = _orders(result, order, semivalue, points, trials, seed)
    table, engine = result.table, result.engine
    if table.model is None:
        raise DpvalueError("the result was made with a custom model: pass it again with load(path, model=...)")
    device, dtype = engine.torch_device, engine.torch_dtype
    with engine.threading():
        encoded = public.encode(table.encoding, dtype, device)
        model = build_model(table.model, table.encoding.task, encoded.x[0], table.encoding.outputs, dtype, device)
        evaluate = Evaluator(encoded, model, engine)
        rows: PrivateRows = private.encode(table.encoding, dtype, device)
        x, y = model.inputs(rows.x[:-1]), model.targets(rows.y[:-1])
        party = torch.repeat_interleave(torch.arange(private.n), rows.sizes.cpu())
        counts_for = rows.weights[:-1].cpu() > 0
        start = model.initial(seed)
        worth = np.empty((len(orders), len(counts)))
        for trial, one in enumerate(orders):
            for point, kept in enumerate(_kept(one, counts, kind)):
                left = (torch.from_numpy(kept).bool()[party] & counts_for).to(device)
                fitted = train(model, start, x[left], y[left], [_RETRAINING_STEPS], seed)[0] if left.any() else start
                worth[trial, point] = float(evaluate(fitted[None]))
    return _curve(kind, order, counts / private.n, worth, retrained=True)


def _orders(
    result: Result, order: str, semivalue: str | None, points: int, trials: int, seed: int
) -> tuple[list[Any], Any]:
    """In which orders parties go, and after how many of them the utility is taken."""
    require_choice("order", order, ORDERS)
    require_count("points", points, least=2)
    require_count("trials", trials)
    require_seed(seed)
    name = semivalue or result.semivalues[0].name
    require_choice("semivalue", name, result.estimates)
    n = result.table.n
    values = np.nan_to_num(result.values[name], nan=0.0)
    if order == "random":
        orders = [stream(seed, Purpose.CURVES, trial).permutation(n) for trial in range(trials)]
    else:
        orders = [np.argsort(-values if order == "high" else values, kind="stable")]
    return orders, np.unique(np.rint(np.linspace(0, n, min(points, n + 1))).astype(np.int64))


def _kept(order: Any, counts: Any, kind: str) -> Any:
    """Who is left (points, n), as 0 and 1, after each number of parties went."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    gone = place[None, :] < counts[:, None]
    return (~gone if kind == "removal" else gone).astype(np.int64)


def _curve(kind: str, order: str, shares: Any, worth: Floats, retrained: bool = False) -> Curve:
    spread = worth.std(0, ddof=1) if len(worth) > 1 else np.zeros(worth.shape[1])
    return Curve(kind, order, shares, worth.mean(0), spread, retrained)
