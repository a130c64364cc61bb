"""The verdict: what values say, in short sentences.

For up to 30 parties the verdict names who helps, who harms and who cannot be distinguished. With more parties, mostly
rows, a single value means little under privacy: the verdict names the parties to check first, and how many of them are
expected to be wrong, according to a rehearsal on public rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpvalue.arrays import Bools
from dpvalue.display import MOST_NAMED, html_lines, join_names, some
from dpvalue.privacy.laws import Law, find_law
from dpvalue.values.comparison import Name, groups
from dpvalue.values.intervals import NoiseDraws
from dpvalue.values.payouts import Shares, amount, is_payable, share_out

if TYPE_CHECKING:
    from dpvalue.values.table import Table

_MOST_TOLD = 4

SUPPOSED = 0.05, 0.2
"""The assumed shares of wrong parties, for which the verdict states how many are expected among the first."""


@dataclass(frozen=True)
class Verdict:
    """What values say about parties; returned by `Result.verdict`. str() of it joins the sentences.

    Attributes:
        sentences: the verdict as text.
        helps: the parties whose interval lies above zero, best first.
        harms: the parties whose interval lies below zero, worst first.
        unclear: the parties whose interval contains zero, or that have no value, best first.
        alike: for up to 30 parties, groups of at least two that cannot be distinguished (`Result.groups`).
        first: for more than 30 parties, the lowest values, lowest first: the parties to check first.

    Example:
        >>> verdict = result.verdict()  # `result` as in the example of `dpvalue.Result`
        >>> verdict.harms
        ('west',)
    """

    sentences: tuple[str, ...]
    helps: tuple[Name, ...]
    harms: tuple[Name, ...]
    unclear: tuple[Name, ...]
    alike: tuple[tuple[Name, ...], ...]
    first: tuple[Name, ...]

    def __repr__(self) -> str:
        parts = {"helps": self.helps, "harms": self.harms, "unclear": self.unclear}
        texts = [f"{name}: {some(who) or 'none'}" for name, who in parts.items()]
        return f"Verdict({'; '.join(texts)})"

    def _repr_html_(self) -> str:
        return html_lines("Verdict", str(self))

    def __str__(self) -> str:
        return "\n".join(self.sentences)


def judge(table: Table, draws: NoiseDraws, level: float = 0.95, pay: float | None = None) -> Verdict:
    """Return the verdict on the values of one semivalue; with `pay`, also how that total is shared."""
    intervals, error = draws.values(level), _error(draws)
    order = np.argsort(-intervals.estimate, kind="stable")
    helps, harms = intervals.low > 0, intervals.high < 0

    def of(chosen: Bools) -> tuple[Name, ...]:
        return tuple(table.names[party] for party in order if chosen[party])

    better, worse, unclear = of(helps), of(harms)[::-1], of(~helps & ~harms)
    alike: tuple[tuple[Name, ...], ...] = ()
    first: tuple[Name, ...] = ()
    if table.n <= MOST_NAMED:
        found_groups = groups(table.names, draws, level)
        alike = tuple(group for group in found_groups if len(group) > 1)
        said = [*_each(better, worse, unclear, _beyond(error)), _alike(table.n, alike)]
        if pay is not None:
            said.append(_paid(table.names, draws, pay, level))
    else:
        valued = of(np.isfinite(intervals.estimate))[::-1]
        first = valued[: 20 if table.n >= 100 else 10]
        said = [_counted(table, len(better), len(worse), _beyond(error)), *_first(table, first)]
    said.append(_what_it_is_about(error, level))
    return Verdict(tuple(said), better, worse, unclear, alike, first)


def _each(better: tuple[Name, ...], worse: tuple[Name, ...], unclear: tuple[Name, ...], beyond: str) -> list[str]:
    said = []
    if better:
        improve, their = ("improves", "its value is") if len(better) == 1 else ("improve", "their values are")
        said.append(f"{join_names(better)} {improve} the model: {their} above zero{beyond}.")
    if worse:
        harm, their = ("harms", "its value is") if len(worse) == 1 else ("harm", "their values are")
        said.append(f"{join_names(worse)} {harm} the model: {their} below zero{beyond}.")
    if unclear:
        contain = "its interval contains" if len(unclear) == 1 else "their intervals contain"
        said.append(f"Inconclusive for {join_names(unclear)}: {contain} zero.")
    return said


def _beyond(error: str) -> str:
    return f" by more than the {error}" if error else ""


def _error(draws: NoiseDraws) -> str:
    """Return the kind of error that the intervals cover; empty where values are exact."""
    return "noise" if draws.noise_std.any() else "sampling error" if draws.errors.any() else ""


def _alike(n: int, alike: tuple[tuple[Name, ...], ...]) -> str:
    if not alike:
        return "Every party can be distinguished from the next in the ranking."
    if len(alike[0]) == n:
        return "No two parties can be distinguished."
    return f"Cannot be distinguished from each other: {'; '.join(join_names(group) for group in alike)}."


def _paid(names: tuple[Name, ...], draws: NoiseDraws, pay: float, level: float) -> str:
    if not is_payable(draws.estimate):
        total = amount(pay, pay)
        return f"{total} cannot be shared in proportion to these values: none is above zero, or some are missing."
    return sentence_of_shares(share_out(names, draws, pay, level))


def sentence_of_shares(shares: Shares) -> str:
    """Return the sentence of a verdict on a total that can be shared."""
    names, pay = shares.names, shares.total
    order = np.argsort(-shares.payouts, kind="stable")
    paid = [int(party) for party in order if shares.payouts[party] > 0]
    told = [f"{join_names([names[party]])} {shares.words(party)}" for party in paid]
    rest = "" if len(paid) == len(names) else " The others get nothing."
    if len(paid) <= _MOST_TOLD:
        return f"Shares of {amount(pay, pay)} in proportion to values: {'; '.join(told)}.{rest}"
    half = amount(float(np.median((shares.high - shares.low)[paid])) / 2, pay)
    return (
        f"Shares of {amount(pay, pay)} in proportion to values: from {told[0]} down to {told[-1]}.{rest} The median "
        f"interval is ±{half}."
    )


def _counted(table: Table, better: int, worse: int, beyond: str) -> str:
    return (
        f"Of {table.n} {_noun(table)}, {better} improve the model and {worse} harm it{beyond}; "
        f"{table.n - better - worse} are inconclusive."
    )


def _noun(table: Table) -> str:
    return "rows" if table.names == tuple(range(table.n)) and (table.sizes <= 1).all() else "parties"


def _first(table: Table, first: tuple[Name, ...]) -> list[str]:
    """Return the parties to check first, and how many of them are expected to be wrong."""
    noun, count = _noun(table), len(first)
    numbered = "; row numbers start at 0" if noun == "rows" else ""
    said = [f"Check first the {count} {noun} with the lowest values (lowest first{numbered}): {join_names(first)}."]
    auc = table.expected_auc
    if auc is None:
        return [
            *said,
            f"No rehearsal on public rows was made, so the number of wrong ones among these {count} is unknown.",
        ]
    wrong = "a wrong label" if (table.sizes <= 1).all() else "half of their labels wrong"
    if auc <= 0.52:
        return [*said, f"In the rehearsal on public rows, {noun} with {wrong} were found no better than by chance."]
    likely = [
        f"about {expected_wrong(table.n, count, share, auc, find_law(table.guarantee.law)):.0f} if {share:.0%} of all "
        f"{noun} are wrong ({share * count:.0f} by chance)"
        for share in SUPPOSED
    ]
    return [
        *said,
        f"Expected number of these {count} with {wrong}: {', '.join(likely)}. This follows from the rehearsal on "
        f"public rows, with AUC {auc:.2f}.",
    ]


def _what_it_is_about(error: str, level: float) -> str:
    about = (
        f"Each statement has a confidence of {level:.0%}, given the {error}."
        if error
        else "These values have no noise."
    )
    return f"{about} The error of the game itself is not included: its distance from retraining on the parties' data."


def expected_wrong(n: int, first: int, share: float, auc: float, law: Law) -> float:
    """Return how many of the `first` lowest of n parties are expected to be wrong, if a share of all are.

    Wrong and right parties are taken to differ by one number, under noise of the law, that makes the AUC what it is.
    Rows of breast cancer and digits with 5% and 20% of labels wrong had, at epsilon 1 to 8, within 15% of that among
    the lowest 20 with Laplace noise; with Gaussian noise at epsilon 8, where little of the AUC is due to noise, up to
    a third fewer.

    >>> expected_wrong(100, 20, 0.1, 0.5, find_law("gaussian"))
    2.0
    """
    unit_scale, no_scale = np.ones(()), np.full((), 1e-9)

    def below(threshold: float) -> float:
        """The share of parties without a shift that lie below."""
        return float(law.wins(np.array(threshold), unit_scale, no_scale))

    apart = _solve(lambda shift: float(law.wins(np.array(shift), unit_scale, unit_scale)), auc)
    edge = _solve(lambda point: share * below(point) + (1 - share) * below(point - apart), first / n)
    return round(n * share * below(edge), 6)


def _solve(function: Callable[[float], float], target: float) -> float:
    """Where a rising function has a value."""
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return (low + high) / 2
