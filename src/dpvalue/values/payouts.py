"""Sharing a total by values: who would be paid how much, and how sure that is."""

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
    """A total, shared in proportion to values; made by `Result.shares`. str() of it is a line a party.

    Attributes:
        names: the parties.
        payouts: what each is paid; they sum to the total.
        low: from where each payout lies at the level, never below 0.
        high: up to where, never above the total.
        total: what is shared.
        level: of the intervals, which hold what privacy noise and the sampling of permutations do to payouts.

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
        """Return the payout of the party at a place, with its interval."""
        paid, low, high = (amount(edge[place], self.total) for edge in (self.payouts, self.low, self.high))
        return f"{paid} ({low} to {high})"

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


def share_out(names: tuple[str | int, ...], renoised: NoiseDraws, total: float, level: float = 0.95) -> Shares:
    """Return a total shared by values, with intervals.

    Intervals are made before what is below zero counts as zero: else one who is near to being paid would seem sure of
    getting nothing.
    """
    require_positive("total", total)
    require_payable(renoised.estimate)
    found = renoised.interval(lambda values: _owed(values, total), level)
    paid, low, high = (np.clip(edge, 0.0, total) for edge in (found.estimate, found.low, found.high))
    return Shares(names, paid, low, high, float(total), level)


def split(values: Floats, total: float) -> Floats:
    """Return payouts in proportion to values (..., n); a value below zero counts as zero.

    Where no value is above zero they say nothing of who has earned the total, and all are paid alike.

    >>> split(np.array([3.0, -2.0, 1.0]), 100).tolist()
    [75.0, 0.0, 25.0]
    """
    return np.maximum(_owed(values, total), 0.0)


def _owed(values: Floats, total: float) -> Floats:
    """Values in proportion to all that are above zero; those below it stay there, down to minus the total."""
    everything = np.maximum(values, 0.0).sum(-1, keepdims=True)
    alike = np.full_like(values, 1 / values.shape[-1])
    # NaN is not above zero either, and stays.
    owed = np.divide(values, everything, out=alike, where=~(everything <= 0))
    return np.asarray(total * np.maximum(owed, -1.0))


def is_payable(values: Floats) -> bool:
    """Return whether a total can be shared by values: all are finite, and one is above zero."""
    return bool(np.isfinite(values).all() and (values > 0).any())


def require_payable(values: Floats) -> None:
    """Raise unless a total can be shared by values."""
    if not np.isfinite(values).all():
        raise DpvalueError("values must be finite to share a total, got NaN or infinity")
    if not is_payable(values):
        raise DpvalueError("at least one value must be above zero to share a total")


def amount(number: float, total: float) -> str:
    """Return a part of a total as text: thousands apart, and as many decimals as the total calls for.

    >>> amount(41250.4, 100_000), amount(12.5, 100), amount(0.03125, 1)
    ('41,250', '12.50', '0.0312')
    """
    decimals = 0 if total >= 10_000 else 2 if total >= 10 else 4
    return f"{number:,.{decimals}f}"
