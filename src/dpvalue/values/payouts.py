"""Share a total in proportion to values, with intervals of the payouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.display import by_value, extremes, html_table, one_line
from dpvalue.errors import DpvalueError, require_positive
from dpvalue.values.intervals import NoiseDraws

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class Shares:
    """A total shared in proportion to values; made by `Result.shares`. str() returns one line per party.

    Attributes:
        names: the parties.
        payouts: the payout of each party (n,); they sum to the total.
        low: lower ends of the intervals (n,), at least 0.
        high: upper ends of the intervals (n,), at most the total.
        total: the shared total.
        level: level of the intervals, which include privacy noise and the sampling of permutations.

    Example:
        >>> shares = result.shares(1000)  # `result` as in the example of `dpvalue.Result`
        >>> shares.names[3], shares.words(3)[:9]
        ('west', '0.00 (0.0')
    """

    names: tuple[str | int, ...]
    payouts: Floats
    low: Floats
    high: Floats
    total: float
    level: float

    def frame(self) -> pandas.DataFrame:
        """Return a DataFrame: party, payout, payout_low, payout_high.

        Returns:
            one row for each party.

        Example:
            >>> list(result.shares(1000).frame().columns)  # `result` as in the example of `dpvalue.Result`
            ['party', 'payout', 'payout_low', 'payout_high']
        """
        import pandas as pd

        columns = {"payout": self.payouts, "payout_low": self.low, "payout_high": self.high}
        return pd.DataFrame({"party": list(self.names), **columns})

    def words(self, place: int) -> str:
        """Return the payout of the party at an index, with its interval, as text."""
        payout, low, high = (amount(edge[place], self.total) for edge in (self.payouts, self.low, self.high))
        return f"{payout} ({low} to {high})"

    def __repr__(self) -> str:
        return f"Shares({amount(self.total, self.total)}: {extremes(self.names, self.payouts)})"

    def _repr_html_(self) -> str:
        edges = self.payouts, self.low, self.high
        order = by_value(self.payouts)
        rows = [[self.names[place], *(amount(edge[place], self.total) for edge in edges)] for place in order]
        title = f"{amount(self.total, self.total)}, shared in proportion to values, with {self.level:.0%} intervals"
        return html_table(title, ["party", "payout", "from", "to"], rows)

    def __str__(self) -> str:
        return "\n".join(f"{one_line(str(name))}: {self.words(place)}" for place, name in enumerate(self.names))


def share_out(names: tuple[str | int, ...], draws: NoiseDraws, total: float, level: float = 0.95) -> Shares:
    """Return a total shared by values, with intervals.

    Intervals are computed before negative values are clipped to zero: otherwise a party just below zero would have
    an interval of length zero.
    """
    require_positive("total", total)
    require_payable(draws.estimate)
    interval = draws.interval(lambda values: _proportional(values, total), level)
    payouts, low, high = (np.clip(edge, 0.0, total) for edge in (interval.estimate, interval.low, interval.high))
    return Shares(names, payouts, low, high, float(total), level)


def split(values: Floats, total: float) -> Floats:
    """Return payouts in proportion to values (..., n); a negative value counts as zero.

    If no value is positive, all parties are paid alike.

    >>> split(np.array([3.0, -2.0, 1.0]), 100).tolist()
    [75.0, 0.0, 25.0]
    """
    return np.maximum(_proportional(values, total), 0.0)


def _proportional(values: Floats, total: float) -> Floats:
    """Values relative to the sum of the positive ones, times the total; not below minus the total."""
    positive_sum = np.maximum(values, 0.0).sum(-1, keepdims=True)
    equal_parts = np.full_like(values, 1 / values.shape[-1])
    # NaN is not positive, and stays NaN.
    parts = np.divide(values, positive_sum, out=equal_parts, where=~(positive_sum <= 0))
    return np.asarray(total * np.maximum(parts, -1.0))


def is_payable(values: Floats) -> bool:
    """Return whether a total can be shared by values: all are finite, and one is positive."""
    return bool(np.isfinite(values).all() and (values > 0).any())


def require_payable(values: Floats) -> None:
    """Raise unless a total can be shared by values."""
    if not np.isfinite(values).all():
        raise DpvalueError("values must be finite to share a total, got NaN or infinity")
    if not is_payable(values):
        raise DpvalueError("at least one value must be above zero to share a total")


def amount(number: float, total: float) -> str:
    """Return a part of a total as text, with thousands separators and decimals that fit the total.

    >>> amount(41250.4, 100_000), amount(12.5, 100), amount(0.03125, 1)
    ('41,250', '12.50', '0.0312')
    """
    decimals = 0 if total >= 10_000 else 2 if total >= 10 else 4
    return f"{number:,.{decimals}f}"
