"""The public entry: release once (`release`), or release and value in one call (`value`)."""

from __future__ import annotations

from typing import Any, Unpack

from dpvalue.data.parties import read_data
from dpvalue.games.semivalues import Semivalue, semivalues
from dpvalue.planning.settings import EntryKeywords, Settings, read_keywords, shows_settings
from dpvalue.progress import Progress, reporting
from dpvalue.runs.run import prepare, release_prepared, value_prepared
from dpvalue.values.result import Result
from dpvalue.values.table import Table


@shows_settings(EntryKeywords)
def value(
    parties: Any,
    utility: Any,
    settings: Settings | None = None,
    *,
    semivalues: str | Semivalue | tuple[str | Semivalue, ...] = ("shapley",),
    progress: bool | Progress = True,
    **fields: Unpack[EntryKeywords],
) -> Result:
    """Return what each party's data is worth to the model, private by default.

    Formal guarantee: with `privacy`, the result is a function of public values and of the parties' releases, which are
    (epsilon, delta)-DP as `Privacy` says. Without privacy (None) nothing is protected, and the result says so. The
    parties' rows are protected. The utility's rows, all settings, and the parties' names and sizes are public.

    Args:
        parties: `Parties`, (X, y), a DataFrame with `target`, or a torch Dataset; private.
        utility: `Utility`, (X_test, y_test), a DataFrame with `target`, or a torch Dataset; public.
        settings: the settings of the run; None: the defaults of `Settings`.
        semivalues: "shapley", "banzhaf", "beta(a,b)", "loo" or `Semivalue`s; all share the same walks.
        progress: show a bar on a terminal; or a callable (stage, done, total).
        **fields: fields of `Settings`, which change `settings`; and of data
            target: the label column of DataFrames.
            groups: a label per row (or a column of the DataFrame): rows with the same label are one party.
            persons: an id per row (or a column of the DataFrame): whose it is, for unit "person".

    Returns:
        the values, with errors and guarantee.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.
        BudgetExceeded: a ledger's budget that does not allow the releases.

    Example:
        >>> x = np.linspace(-2, 2, 40)[:, None]
        >>> y = (x[:, 0] > 0).astype(int)
        >>> result = dpv.value((x[::2], y[::2]), (x[1::2], y[1::2]), privacy=None, permutations=50, progress=False)
        >>> len(result), bool(result.values["shapley"].sum() > 0)
        (20, True)
    """
    kinds = _semivalues(semivalues)
    run_settings, labels = read_keywords(settings, fields)
    private, public = read_data(parties, utility, *labels)
    with run_settings.engine.threading(), reporting(progress) as tell:
        return value_prepared(
            prepare(public, run_settings, *private.counts(run_settings.privacy)), private, kinds, tell
        )


@shows_settings(EntryKeywords)
def release(
    parties: Any,
    utility: Any,
    settings: Settings | None = None,
    *,
    progress: bool | Progress = True,
    **fields: Unpack[EntryKeywords],
) -> Table:
    """Release once: return the private table, from which `Table.value` computes values without further cost.

    Formal guarantee: as `value`, for the table and everything computed from it.

    Args:
        parties: as in `value`; private.
        utility: as in `value`; public. It fixes classes, preprocessing, directions, clipping norm and learning rate.
        settings: as in `value`.
        progress: as in `value`.
        **fields: as in `value`.

    Returns:
        the table.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.
        BudgetExceeded: a ledger's budget that does not allow the releases.

    Example:
        >>> table = dpv.release(train, test, groups=sites, privacy=privacy, progress=False)  # as in `dpvalue.Result`
        >>> table.value(test, progress=False).guarantee == table.guarantee
        True
    """
    run_settings, labels = read_keywords(settings, fields)
    private, public = read_data(parties, utility, *labels)
    with run_settings.engine.threading(), reporting(progress) as tell:
        return release_prepared(prepare(public, run_settings, *private.counts(run_settings.privacy)), private, tell)


_semivalues = semivalues  # the argument of value shadows the function
