"""What values say, in a few plain sentences, and no more than they say.

Up to 30 parties are looked at one by one: who helps, who harms, and who cannot be told apart. Of more, mostly rows, a
single value means little under privacy: there the verdict says which to look at first, and how many of those are likely
to be wrong, as far as a rehearsal on public rows can tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpvalue.arrays import Bools
from dpvalue.display import html_lines, some
from dpvalue.privacy.laws import Law, law_named
from dpvalue.values.comparison import Name, groups, join_names
from dpvalue.values.intervals import MOST_NAMED, NoiseDraws
from dpvalue.values.payouts import Shares, amount, is_payable, share_out

if TYPE_CHECKING:
    from dpvalue.runs.table import Table

_MOST_TOLD = 4

SUPPOSED = 0.05, 0.2
"""The shares of wrong parties for which it is said how many of the first are likely to be among them."""


@dataclass(frozen=True)
class Verdict:
    """What values say of parties; made by `Result.verdict`. str() of it is the sentences.

    Attributes:
        sentences: plain words.
        helps: the parties whose interval lies above zero, best first.
        harms: those whose interval lies below zero, worst first.
        unclear: those whose interval holds zero, or who have no value, best first.
        alike: of up to 30 parties, those that cannot be told apart (`Result.groups`), in groups of two and more.
        first: of more than 30 parties, those to look at first: the lowest values, the lowest first.

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
    """Return what the values of one semivalue say; with `pay`, also how that total would be shared."""
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
        make, their = ("makes", "its value is") if len(better) == 1 else ("make", "their values are")
        said.append(f"{join_names(better)} {make} the model better: {their} above zero{beyond}.")
    if worse:
        make, their = ("makes", "its value is") if len(worse) == 1 else ("make", "their values are")
        said.append(f"{join_names(worse)} {make} the model worse: {their} below zero{beyond}.")
    if unclear:
        help_, hold = "help or harm", "their intervals hold"
        if len(unclear) == 1:
            help_, hold = "helps or harms", "its interval holds"
        said.append(f"Whether {join_names(unclear)} {help_} cannot be said: {hold} zero.")
    return said


def _beyond(error: str) -> str:
    return f" by more than the {error}" if error else ""


def _error(draws: NoiseDraws) -> str:
    """What the intervals are about; empty where values are exact."""
    return "noise" if draws.noise_std.any() else "sampling error" if draws.errors.any() else ""


def _alike(n: int, alike: tuple[tuple[Name, ...], ...]) -> str:
    if not alike:
        return "Each party can be told apart from the next in the ranking."
    if len(alike[0]) == n:
        return "No two parties can be told apart."
    return f"Not to be told apart from one another: {'; '.join(join_names(group) for group in alike)}."


def _paid(names: tuple[Name, ...], draws: NoiseDraws, pay: float, level: float) -> str:
    if not is_payable(draws.estimate):
        return f"{amount(pay, pay)} cannot be shared by these values: none is above zero, or some are missing."
    return sentence_of_shares(share_out(names, draws, pay, level))


def sentence_of_shares(shares: Shares) -> str:
    """Return what a verdict says of a total that can be shared."""
    names, pay = shares.names, shares.total
    order = np.argsort(-shares.payouts, kind="stable")
    paid = [int(party) for party in order if shares.payouts[party] > 0]
    told = [f"{join_names([names[party]])} {shares.words(party)}" for party in paid]
    rest = "" if len(paid) == len(names) else ", and the others nothing"
    if len(paid) <= _MOST_TOLD:
        return f"{amount(pay, pay)}, shared by value, gives {'; '.join(told)}{rest}."
    half = amount(float(np.median((shares.high - shares.low)[paid])) / 2, pay)
    return (
        f"{amount(pay, pay)}, shared by value, gives {told[0]}, the most, down to {told[-1]}{rest}; a typical payout "
        f"is sure to ±{half}."
    )


def _counted(table: Table, better: int, worse: int, beyond: str) -> str:
    return (
        f"Of {table.n} {_noun(table)}, {better} make the model better and {worse} worse{beyond}; of the other "
        f"{table.n - better - worse} neither can be said."
    )


def _noun(table: Table) -> str:
    return "rows" if table.names == tuple(range(table.n)) and (table.sizes <= 1).all() else "parties"


def _first(table: Table, first: tuple[Name, ...]) -> list[str]:
    """Which to look at first, and how many of them are likely to be wrong."""
    noun, count = _noun(table), len(first)
    numbered = ", counted from 0" if noun == "rows" else ""
    said = [
        f"Look first at the {count} {noun} with the lowest values (the lowest first{numbered}): {join_names(first)}."
    ]
    auc = table.expected_auc
    if auc is None:
        return [*said, f"How many of these {count} are wrong was not rehearsed on public rows, and cannot be said."]
    wrong = "a wrong label" if (table.sizes <= 1).all() else "half of their labels wrong"
    if auc <= 0.52:
        return [*said, f"In the rehearsal on public rows, {noun} with {wrong} were found no better than by chance."]
    likely = [
        f"about {expected_wrong(table.n, count, share, auc, law_named(table.guarantee.law)):.0f} if {share:.0%} of all "
        f"{noun} have (by chance {share * count:.0f})"
        for share in SUPPOSED
    ]
    return [
        *said,
        f"How many of these {count} have {wrong} depends on how many there are: {', '.join(likely)}. This is from the "
        f"rehearsal on public rows, where one with {wrong} is below one without in {auc:.0%} of pairs.",
    ]


def _what_it_is_about(error: str, level: float) -> str:
    about = "There is no noise in these values."
    if error:
        about = f"Each statement is made at {level:.0%} against the {error}."
    return (
        f"{about} The error of the game itself is not in it: how far values are from what retraining on the parties' "
        "data would say."
    )


def expected_wrong(n: int, first: int, share: float, auc: float, law: Law) -> float:
    """Return how many of the `first` lowest of n parties are expected to be wrong, if a share of all are.

    Wrong and right parties are taken to differ by one number, under noise of the law, that makes the AUC what it is.
    Rows of breast cancer and digits with 5% and 20% of labels wrong had, at epsilon 1 to 8, within 15% of that among
    the lowest 20 with Laplace noise; with Gaussian noise at epsilon 8, where little of the AUC is due to noise, up to
    a third fewer.

    >>> expected_wrong(100, 20, 0.1, 0.5, law_named("gaussian"))
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
