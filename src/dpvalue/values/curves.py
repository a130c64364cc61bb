"""Curves of removing and adding parties, in the order of their values.

The model of a set of parties is theta_0 - alpha * (sum of their rows in the private table), so a curve is
post-processing and free. `dpvalue.tasks` has what users call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from dpvalue.arrays import Floats, Ints
from dpvalue.errors import require_choice, require_count
from dpvalue.games.solving import Game, worths_of
from dpvalue.streams import Purpose, require_seed, stream

if TYPE_CHECKING:
    from dpvalue.values.result import Result

ORDERS = ("high", "low", "random")


class Drawing(TypedDict, total=False):
    """Options of a curve: the semivalue (default: the first), the number of points, and of random orders (`trials`)."""

    semivalue: str | None
    points: int
    trials: int
    seed: int


@dataclass(frozen=True, eq=False)
class Curve:
    """The utility as a function of the share of parties removed or added.

    Attributes:
        kind: "removal" or "addition".
        order: "high" (highest values first), "low" or "random".
        shares: the share of parties removed or added (points,).
        mean: the mean utility over trials (points,).
        spread: the standard deviation of the utility over trials; zeros for one trial.
        retrained: whether models were trained on raw rows; else they come from the private table.

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
    """Return the utility as parties are removed, those with the highest (lowest) values first, or at random.

    Formal guarantee: post-processing of the private table; costs no budget.

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
    """Return the utility as parties are added to the empty set.

    Formal guarantee: post-processing of the private table; costs no budget.

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
    orders, counts = orders_of(result, order, **drawing)
    with result.engine.threading():
        return curve_of(result.game(utility, target), kind, order, orders, counts)


def orders_of(
    result: Result, order: str, semivalue: str | None = None, points: int = 21, trials: int = 10, seed: int = 0
) -> tuple[Iterator[Ints], Ints]:
    """The orders of parties, and the numbers of parties at which the utility is evaluated."""
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


def curve_of(game: Game, kind: str, order: str, orders: Iterator[Ints], counts: Ints) -> Curve:
    """The curve of the utility over the numbers of parties removed or added, along each order."""
    worths = np.stack([_along(game, kind, own, counts) for own in orders])
    spread = worths.std(0, ddof=1) if len(worths) > 1 else np.zeros(len(counts))
    return Curve(kind, order, counts / game.n, worths.mean(0), spread)


def _along(game: Game, kind: str, order: Ints, counts: Ints) -> Floats:
    place = np.empty(game.n, dtype=np.int32)
    place[order] = np.arange(game.n, dtype=np.int32)
    return worths_of(game, len(counts), lambda numbers: (place < counts[numbers, None]) == (kind == "addition"))
