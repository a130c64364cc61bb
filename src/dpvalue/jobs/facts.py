"""What run.json and values.csv must hold: one description, by which a folder is checked before anything uses it."""

from __future__ import annotations

from typing import Any

import pandas as pd

from dpvalue.errors import DpvalueError
from dpvalue.jobs.config import make_config
from dpvalue.stored import (
    ANY_NUMBER,
    COUNT,
    FLAG,
    NUMBER,
    OBJECT,
    TEXT,
    WHOLE,
    each,
    fields,
    maybe,
    one_of,
)
from dpvalue.valuation.saved import check_guarantee
from dpvalue.valuation.semivalues import semivalues
from dpvalue.valuation.tasks.curves import ORDERS


def check_releases(facts: Any) -> None:
    """Raise unless facts hold all that is known once releases are made: what `revalue` needs."""
    OBJECT("its content", facts)
    _RELEASES("", facts)
    if facts["plan"] is not None and not facts["guarantee"]["private"]:
        raise DpvalueError("plan must be null in a run without privacy")


def check_values(facts: dict[str, Any]) -> None:
    """Raise unless facts hold all that is known once values are made: what a report needs."""
    _VALUES("", facts)


def check_frame(values: pd.DataFrame, names: list[str]) -> None:
    """Raise unless a frame holds the values of parties: what a report shows."""
    for column in ("party", "rank", *(f"{name}{end}" for name in names for end in ("", "_mc_error"))):
        if column not in values:
            raise DpvalueError(f"there is no column {column!r}")
    for column in values.columns.drop("party"):
        if not pd.api.types.is_numeric_dtype(values[column].dtype):
            raise DpvalueError(f"the column {column!r} must hold numbers")
    if not len(values):
        raise DpvalueError("there is no party")


def options(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a run that were given."""
    return {name: given for name, given in stored.items() if given is not None}


def _config(name: str, found: Any) -> None:
    OBJECT(name, found)
    try:
        make_config(options(found))
    except DpvalueError as error:
        raise DpvalueError(f"{name}: {error}") from None


def _semivalues(name: str, found: Any) -> None:
    each(TEXT)(name, found)
    semivalues(found)


def _curve(name: str, found: Any) -> None:
    _CURVE(name, found)
    if not len(found["shares"]) == len(found["mean"]) == len(found["spread"]):
        raise DpvalueError(f"{name} must have as many shares as means and spreads")


_CURVE = fields(
    kind=one_of(("removal", "addition")),
    order=one_of(ORDERS),
    shares=each(NUMBER, least=1),
    mean=each(ANY_NUMBER),  # a utility may overflow
    spread=each(ANY_NUMBER),
    retrained=FLAG,
)
_RELEASES = fields(
    made=TEXT,
    versions=fields(dpvalue=TEXT),
    config=_config,
    toml=TEXT,
    task=TEXT,
    model=TEXT,
    seed=WHOLE,
    guarantee=check_guarantee,
    sentence=TEXT,
    how=TEXT,
    plan=maybe(
        fields(
            ceiling=NUMBER, expected_auc=maybe(NUMBER), efficiency=maybe(NUMBER), records=COUNT, advice=TEXT, text=TEXT
        )
    ),
    ledger=maybe(fields(spent=NUMBER, epsilon=NUMBER, terms=TEXT, head=TEXT)),
)
_VALUES = fields(
    semivalues=_semivalues,
    walks=WHOLE,
    converged=maybe(FLAG),
    public_rows=COUNT,
    curves=each(_curve),
    detection=maybe(
        fields(column=TEXT, auc=NUMBER, k=WHOLE, precision=NUMBER, corrupted=TEXT, chance=NUMBER),
    ),
)
