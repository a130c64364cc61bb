"""Compare the values of parties: the difference of two values with its interval, and groups of similar parties."""

from __future__ import annotations

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
    """The difference of two parties' values; made by `Result.compare`. str() returns it as a sentence.

    Attributes:
        first: the first party.
        second: the second party.
        difference: the value of the first party less that of the second.
        low: lower end of the interval of the difference.
        high: upper end.
        confidence: the highest level at which the interval excludes 0; 0 if there is none. It describes the noise only,
            and is no probability that the data of the first party is better.
        level: level of the interval.

    Example:
        >>> comparison = result.compare("east", "west")  # `result` as in the example of `dpvalue.Result`
        >>> comparison.difference > 0, comparison.distinguishable
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
    def distinguishable(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        first, second = one_line(str(self.first)), one_line(str(self.second))
        interval = f"({self.level:.0%} interval {self.low:.3g} to {self.high:.3g})"
        if not self.distinguishable:
            differ = f"their values differ by {self.difference:.3g} {interval}"
            return f"{first} and {second} cannot be distinguished: {differ}."
        higher, lower = (first, second) if self.difference > 0 else (second, first)
        confidence = "more than 99.9%" if self.confidence > 0.999 else f"{100 * self.confidence:.3g}%"
        return (
            f"{higher} is worth more than {lower} with a confidence of {confidence}: {first} minus {second} is "
            f"{self.difference:.3g} {interval}."
        )

    def __repr__(self) -> str:
        return f"Comparison({self})"

    def _repr_html_(self) -> str:
        return html_lines("Comparison", str(self))


def compare(names: tuple[Name, ...], draws: NoiseDraws, first: Name, second: Name, level: float) -> Comparison:
    """Return the difference of two parties' values, with its interval."""
    first_place, second_place = place(names, first), place(names, second)
    first, second = names[first_place], names[second_place]
    if first_place == second_place:
        raise DpvalueError(f"two different parties must be named, got {first!r} twice")
    std, offset = draws.spread(lambda values: values[..., [first_place]] - values[..., [second_place]])
    interval = draws.interval(lambda values: values[..., [first_place]] - values[..., [second_place]], level)
    # The level at which the rule's half width is the difference itself.
    distance = float(abs(interval.estimate[0]) - offset[0]) / WIDTH * quantile(0.95)
    confidence = 0.0
    if distance > 0:
        confidence = 2 * NormalDist().cdf(distance / std[0]) - 1 if std[0] > 0 else 1.0
    difference, low, high = (float(edge[0]) for edge in (interval.estimate, interval.low, interval.high))
    return Comparison(first, second, difference, low, high, confidence, level)


def find(names: tuple[Name, ...], name: object) -> int | None:
    """Return the index of a party, or None; a whole number may be given as text."""
    if isinstance(name, bool):
        return None  # True == 1, but True is no name
    if name in names:
        return names.index(name)
    return next((index for index, party in enumerate(names) if str(party) == name), None)


def place(names: tuple[Name, ...], name: Name) -> int:
    """Return the index of a party; raise for an unknown one, and name similar parties."""
    index = find(names, name)
    if index is None:
        texts = {str(party): party for party in names}
        similar = [texts[text] for text in get_close_matches(str(name), texts, n=3)] or list(names[:5])
        ellipsis = ", ..." if len(similar) < len(names) else ""
        raise UnknownPartyError(f"party must be one of {', '.join(map(repr, similar))}{ellipsis}; got {name!r}")
    return index


def groups(names: tuple[Name, ...], draws: NoiseDraws, level: float) -> tuple[tuple[Name, ...], ...]:
    """Return the parties in groups whose members cannot be told apart.

    Parties are sorted by value, descending. A party joins the current group unless the interval of its difference from
    a member excludes 0; then it begins the next group. So no two members of a group can be told apart. The first party
    of a group differs from some member of the group before, but maybe not from all.
    A party without a value forms its own group.
    """
    order = np.argsort(-draws.estimate, kind="stable")
    ordered_groups: list[list[int]] = []
    for party in order:
        if ordered_groups and not _differs(draws, party, np.array(ordered_groups[-1]), level).any():
            ordered_groups[-1].append(party)
        else:
            ordered_groups.append([party])
    return tuple(tuple(names[party] for party in group) for group in ordered_groups)


def _differs(draws: NoiseDraws, party: int, others: Ints, level: float) -> Bools:
    """Which of `others` differ from a party at the level; NaN differs from every value."""
    gap = draws.interval(lambda values: values[..., [party]] - values[..., others], level)
    return ~((gap.low <= 0) & (gap.high >= 0))
