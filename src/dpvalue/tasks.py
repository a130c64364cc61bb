"""What values are used for: curves of removing and adding parties, and how stable a ranking is.

From a private table alone: the model of a set of parties is theta_0 - alpha * (sum of their rows), so a curve is
post-processing and free. Retraining on raw rows says more, and exposes them: only for runs without privacy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike

from dpvalue.arrays import Floats, Ints
from dpvalue.data.checks import require_other_rows
from dpvalue.data.parties import as_parties
from dpvalue.data.rows import PrivateRows
from dpvalue.data.utility import as_utility
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError, require_choice, require_count, require_number
from dpvalue.games.solving import FunctionGame, Game, worths_of
from dpvalue.models import TREES, build_model
from dpvalue.models.build import train
from dpvalue.streams import Purpose, require_seed, stream

if TYPE_CHECKING:
    from dpvalue.values.result import Result

__all__ = ["Curve", "Stability", "addition_curve", "rank_stability", "removal_curve", "retraining_curve"]

ORDERS = ("high", "low", "random")

_RETRAINING_STEPS = 256


class Drawing(TypedDict, total=False):
    """How a curve is drawn: for which semivalue (the first), at how many points, in how many random orders."""

    semivalue: str | None
    points: int
    trials: int
    seed: int


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

    Example:
        >>> curve = removal_curve(result)  # `result` as in the example of `dpvalue.Result`
        >>> curve.shares.tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """

    kind: str
    order: str
    shares: Floats
    mean: Floats
    spread: Floats
    retrained: bool = False

    def __repr__(self) -> str:
        order = "in random orders" if self.order == "random" else f"{self.order} values first"
        utility = f"utility {self.mean[0]:.3g} to {self.mean[-1]:.3g}"
        return f"Curve({self.kind}, {order}, {utility} in {len(self.mean)} points)"


def removal_curve(result: Result, order: str = "high", **settings: Any) -> Curve:
    """Return the utility as parties are taken away, those with the highest (lowest) values first, or at random.

    Formal guarantee: post-processing of the private table; spends nothing.

    Args:
        result: the values; the utility is that of the run unless `utility` is given.
        order: "high", "low" or "random".
        **settings: semivalue (default: the first), points, trials (of random orders), utility, target, seed.

    Returns:
        the utility at each share of parties removed.

    Raises:
        DpvalueError: an unknown order or semivalue, or no utility after loading.

    Example:
        >>> low, high = removal_curve(result, "low"), removal_curve(result, "high")  # names as in `dpvalue.Result`
        >>> bool(low.mean[1] > high.mean[1])
        True
    """
    return _from_table(result, "removal", order, **settings)


def addition_curve(result: Result, order: str = "high", **settings: Any) -> Curve:
    """Return the utility as parties are added to none.

    Formal guarantee: post-processing of the private table; spends nothing.

    Args:
        result: the values; the utility is that of the run unless `utility` is given.
        order: "high", "low" or "random".
        **settings: as in `removal_curve`.

    Returns:
        the utility at each share of parties added.

    Raises:
        DpvalueError: as `removal_curve`.

    Example:
        >>> added, removed = addition_curve(result), removal_curve(result)  # `result` as in `dpvalue.Result`
        >>> round(float(added.mean[-1] - removed.mean[0]), 3) + 0.0
        0.0
    """
    return _from_table(result, "addition", order, **settings)


def _from_table(
    result: Result, kind: str, order: str, utility: Any = None, target: str | None = None, **drawing: Unpack[Drawing]
) -> Curve:
    orders, counts = _orders(result, order, **drawing)
    with result.engine.threading():
        return _curve(result.game(utility, target), kind, order, orders, counts)


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
    """Return the same with a model trained on the raw rows that are left: what a user without privacy would do.

    No guarantee: it reads the parties' rows. Refused for a result that was made under differential privacy.

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
    orders, counts = _orders(result, order, **drawing)
    table, engine = result.table, result.engine
    if table.model is None:
        raise DpvalueError("the result was made with a custom model: pass it again with load(path, model=...)")
    device, dtype = engine.torch_device, engine.torch_dtype
    with engine.threading():
        if table.model == TREES:  # filled with raw rows, which is what the table of such a result holds
            return replace(_curve(table.game(public, engine), kind, order, orders, counts), retrained=True)
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

        curve = _curve(FunctionGame(retrained, private.n), kind, order, orders, counts)
    return replace(curve, retrained=True)


def _orders(
    result: Result, order: str, semivalue: str | None = None, points: int = 21, trials: int = 10, seed: int = 0
) -> tuple[Iterator[Ints], Ints]:
    """In which orders parties go, one at a time, and after how many of them the utility is taken."""
    require_choice("order", order, ORDERS)
    require_count("points", points, least=2)
    require_count("trials", trials)
    require_seed(seed)
    n, values = result.table.n, np.nan_to_num(result.values[result.name_of(semivalue)], nan=0.0)
    if order == "random":
        orders: Iterator[Ints] = (stream(seed, Purpose.CURVES, trial).permutation(n) for trial in range(trials))
    else:
        orders = iter([np.argsort(-values if order == "high" else values, kind="stable")])
    return orders, np.unique(np.rint(np.linspace(0, n, min(points, n + 1))).astype(np.int64))


def _curve(game: Game, kind: str, order: str, orders: Iterator[Ints], counts: Ints) -> Curve:
    """What is left (or added) is worth after each number of parties went, along each of the orders."""
    worths = np.stack([_along(game, kind, own, counts) for own in orders])
    spread = worths.std(0, ddof=1) if len(worths) > 1 else np.zeros(len(counts))
    return Curve(kind, order, counts / game.n, worths.mean(0), spread)


def _along(game: Game, kind: str, order: Ints, counts: Ints) -> Floats:
    place = np.empty(game.n, dtype=np.int32)
    place[order] = np.arange(game.n, dtype=np.int32)
    return worths_of(game, len(counts), lambda numbers: (place < counts[numbers, None]) == (kind == "addition"))


@dataclass(frozen=True, eq=False)
class Stability:
    """How well runs agree, over all pairs of them.

    Attributes:
        spearman: the rank correlation of each pair.
        overlap: the share of the top k of one run that is in the top k of the other.
        k: how many are called top.

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
    """Return how well the values of several runs agree on ranks and on who is among the highest k.

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
