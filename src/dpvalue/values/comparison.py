"""Which parties can be told apart: the difference of two values beside its noise, and groups of those that cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from statistics import NormalDist

import numpy as np

from dpvalue.arrays import Bools, Ints
from dpvalue.display import html_lines, one_line
from dpvalue.errors import DpvalueError, UnknownPartyError
from dpvalue.values.intervals import WIDTH, NoiseDraws, quantile

Name = str | int


@dataclass(frozen=True)
class Comparison:
    """The value of one party beside another's; made by `Result.compare`. str() of it says who is worth more, if either.

    Attributes:
        first: a party.
        second: another.
        difference: the first's value less the second's.
        low: from where the difference lies at the level.
        high: up to where.
        confidence: the highest level at which the interval of the difference leaves out 0; 0 if there is none. It is
            about the noise, as the intervals are, and no probability that the first's data is better.
        level: of the interval.

    Example:
        >>> comparison = result.compare("east", "west")  # `result` as in the example of `dpvalue.Result`
        >>> comparison.difference > 0, comparison.told_apart
        (True, True)
    """

    first: Name
    second: Name
    difference: float
    low: float
    high: float
    confidence: float
    level: float

    @property
    def told_apart(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        first, second = one_line(str(self.first)), one_line(str(self.second))
        between = f"({self.level:.0%} interval {self.low:.3g} to {self.high:.3g})"
        if not self.told_apart:
            return (
                f"{first} and {second} cannot be distinguished: their values differ by {self.difference:.3g} {between}."
            )
        more, less = (first, second) if self.difference > 0 else (second, first)
        sure = "more than 99.9%" if self.confidence > 0.999 else f"{100 * self.confidence:.3g}%"
        return (
            f"{more} is worth more than {less} with a confidence of {sure}: {first} minus {second} is "
            f"{self.difference:.3g} {between}."
        )

    def __repr__(self) -> str:
        return f"Comparison({self})"

    def _repr_html_(self) -> str:
        return html_lines("Comparison", str(self))


def compare(names: tuple[Name, ...], renoised: NoiseDraws, first: Name, second: Name, level: float) -> Comparison:
    """Return the difference of two parties' values, with its interval."""
    one, other = place(names, first), place(names, second)
    first, second = names[one], names[other]
    if one == other:
        raise DpvalueError(f"two different parties must be named, got {first!r} twice")
    std, off = renoised.spread(lambda values: values[..., [one]] - values[..., [other]])
    found = renoised.interval(lambda values: values[..., [one]] - values[..., [other]], level)
    # The level at which the rule's half width is the difference itself.
    beyond = float(abs(found.estimate[0]) - off[0]) / WIDTH * quantile(0.95)
    sure = 0.0
    if beyond > 0:
        sure = 2 * NormalDist().cdf(beyond / std[0]) - 1 if std[0] > 0 else 1.0
    difference, low, high = (float(edge[0]) for edge in (found.estimate, found.low, found.high))
    return Comparison(first, second, difference, low, high, sure, level)


def find(names: tuple[Name, ...], name: object) -> int | None:
    """Return the place of a party, None if there is none; a whole number may be given as text."""
    if isinstance(name, bool):
        return None  # True == 1, but it is no name
    if name in names:
        return names.index(name)
    return next((at for at, own in enumerate(names) if str(own) == name), None)


def place(names: tuple[Name, ...], name: Name) -> int:
    """Return the place of a party; raise for one that there is not, and name those that are like it."""
    at = find(names, name)
    if at is None:
        texts = {str(own): own for own in names}
        near = [texts[text] for text in get_close_matches(str(name), texts, n=3)] or list(names[:5])
        others = ", ..." if len(near) < len(names) else ""
        raise UnknownPartyError(f"party must be one of {', '.join(map(repr, near))}{others}; got {name!r}")
    return at


def groups(names: tuple[Name, ...], renoised: NoiseDraws, level: float) -> tuple[tuple[Name, ...], ...]:
    """Return the parties in groups, no two members of which can be told apart.

    Parties are taken from the highest value down; one joins the group of the one before it unless the interval of its
    difference from any member leaves out 0, and then begins the next. So any two of a group cannot be told apart, and
    the first of a group can be told from some member of the group before it, though maybe not from all.
    A party without a value is a group of its own.
    """
    order = np.argsort(-renoised.estimate, kind="stable")
    found: list[list[int]] = []
    for party in order:
        if found and not _differs(renoised, party, np.array(found[-1]), level).any():
            found[-1].append(party)
        else:
            found.append([party])
    return tuple(tuple(names[party] for party in group) for group in found)


def _differs(renoised: NoiseDraws, party: int, others: Ints, level: float) -> Bools:
    """Which of some parties a party can be told from; NaN can be told from everything."""
    gap = renoised.interval(lambda values: values[..., [party]] - values[..., others], level)
    return ~((gap.low <= 0) & (gap.high >= 0))


def listed(names: Iterable[Name]) -> str:
    """Return names as they stand in a sentence.

    >>> listed(["A", "B", "C"])
    'A, B and C'
    """
    texts = [one_line(str(name)) for name in names]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
