"""How well values are expected to agree with retraining on every coalition, and what that says of a budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpvalue.arrays import Floats

CAN_WORK, CANNOT_WORK = 0.5, 0.3
_SIZES_SUFFICE, _ADDS_NOTHING = 0.9, 0.05


@dataclass(frozen=True)
class Gauge:
    """A mean over rehearsals and its standard error; what is said of it holds for two of them."""

    mean: float
    error: float

    @classmethod
    def of(cls, numbers: Floats) -> Gauge:
        """Return the mean of numbers (splits, deals), with the error among all or among splits, if that is larger."""
        errors = (float(np.std(some, ddof=1) / some.size**0.5) for some in (numbers, numbers.mean(1)))
        return cls(float(numbers.mean()), max(errors))

    @property
    def low(self) -> float:
        """Two standard errors below."""
        return self.mean - 2 * self.error

    @property
    def high(self) -> float:
        """Two standard errors above."""
        return self.mean + 2 * self.error


@dataclass(frozen=True)
class Agreement:
    """What values are expected to have in common with retraining.

    Attributes:
        spearman: the rank correlation of Shapley values, the mean over rehearsals.
        error: its standard error.
        sizes: the rank correlation that the parties' sizes alone would have, the mean over the same rehearsals.
        beyond: by how much values do better than sizes, rehearsal by rehearsal.
        scaled: how many records made-up parties had for each of a real one: below 1 where public rows are too few.
        too_small: the numbers of units of the parties that are too small for the budget.
    """

    spearman: float
    error: float
    sizes: float
    beyond: Gauge
    scaled: float
    too_small: tuple[int, ...]

    @property
    def can_work(self) -> bool:
        """Whether values are expected to agree with retraining, for sure: 0.5 even two standard errors below."""
        return Gauge(self.spearman, self.error).low >= CAN_WORK and not self.cannot_work

    @property
    def cannot_work(self) -> bool:
        """Whether values are not expected to say anything, for sure.

        That is a rank correlation below 0.3 even two standard errors above, or one that is less than 0.05 above that of
        sizes, where sizes leave something to say: theirs is below 0.9.
        """
        return Gauge(self.spearman, self.error).high < CANNOT_WORK or self.is_no_more_than_sizes

    @property
    def is_no_more_than_sizes(self) -> bool:
        """Whether values are expected to say nothing that sizes do not, for sure."""
        return self.sizes < _SIZES_SUFFICE and self.beyond.high < _ADDS_NOTHING

    @property
    def is_more_than_sizes(self) -> bool:
        """Whether values are expected to say more than sizes do, for sure."""
        return self.beyond.low > 0
