"""A result as a table of a row a party: values, how sure they are, per record, ranks and payouts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.errors import require_positive
from dpvalue.values.intervals import Renoised
from dpvalue.values.payouts import require_payable, share_out, split

if TYPE_CHECKING:
    import pandas

    from dpvalue.values.result import Result


def result_frame(
    result: Result, renoised: dict[str, Renoised] | None, level: float, pay: float | None
) -> pandas.DataFrame:
    """Return a result as a DataFrame; without `renoised` there is nothing in it of noise and intervals."""
    import pandas as pd

    table = result.table
    columns: dict[str, Any] = {"party": list(table.names), "size": table.sizes}
    for name, estimate in result.estimates.items():
        columns[name] = estimate.values
        columns[f"{name}_mc_error"] = estimate.std_errors
        if renoised is not None:
            found = renoised[name].values(level)
            columns[f"{name}_noise"] = renoised[name].noise_std
            columns |= {f"{name}_low": found.low, f"{name}_high": found.high}
        if (table.sizes > 1).any():
            columns[f"{name}_per_{table.counted}"] = per_size(result, name)
    frame = pd.DataFrame(columns)
    first = result.semivalues[0].name
    frame["rank"] = ranks(frame[first])
    if renoised is not None:
        found = renoised[first].ranks(level)
        for end, edge in (("low", found.low), ("high", found.high)):
            frame[f"rank_{end}"] = pd.Series(edge).astype("Int64")
    if pay is not None:
        if renoised is None:
            require_positive("pay", pay)
            require_payable(result.values[first])
            frame["payout"] = split(result.values[first], pay)
        else:
            paid = share_out(table.names, renoised[first], pay, level).frame()
            frame = frame.assign(**{name: paid[name] for name in ("payout", "payout_low", "payout_high")})
    return frame


def ranks(values: pandas.Series) -> pandas.Series:
    """Return the rank of each value, from 1 for the highest; of equal ones the first is better."""
    return values.rank(ascending=False, method="first").astype("Int64")


def per_size(result: Result, name: str) -> Floats:
    """Return the value of each party over its number of records (or persons); NaN for a party without any."""
    sizes = result.table.sizes.astype(np.float64)
    return np.asarray(np.divide(result.values[name], sizes, out=np.full(len(sizes), np.nan), where=sizes > 0))
