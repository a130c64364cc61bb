"""Errors and checks of arguments: each message names the argument, its value and the allowed values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from reprlib import repr as short

LARGEST_WHOLE = 2**63 - 1
"""The largest count; tensors hold no larger integer."""


class DpvalueError(ValueError):
    """A bad argument or a refused request; the message names the argument, the value and what is allowed.

    Example:
        >>> import dpvalue as dpv
        >>> try:
        ...     dpv.Privacy(epsilon=-1)
        ... except dpv.DpvalueError as error:
        ...     print(error)
        epsilon must be positive, got -1
    """


class UnknownPartyError(DpvalueError, KeyError):
    """The name of a party that there is not; a `KeyError` too, as `result[party]` raises it."""

    __str__ = ValueError.__str__  # that of a KeyError puts the message in quotes


class BudgetExceeded(DpvalueError):  # noqa: N818  (a fixed public name)
    """A release that would pass the budget of a ledger; nothing was released.

    Attributes:
        spent_epsilon: the epsilon spent before.
        requested_epsilon: the epsilon that the release alone would spend.
        remaining_epsilon: the epsilon that the budget still allows.

    Example:
        >>> print(BudgetExceeded(spent_epsilon=1.0, requested_epsilon=0.5, remaining_epsilon=0.25))
        the budget does not allow this release: epsilon = 1 is spent, 0.5 is needed, and 0.25 is left
    """

    def __init__(self, spent_epsilon: float, requested_epsilon: float, remaining_epsilon: float) -> None:
        super().__init__(
            f"the budget does not allow this release: epsilon = {spent_epsilon:.4g} is spent, "
            f"{requested_epsilon:.4g} is needed, and {remaining_epsilon:.4g} is left"
        )
        self.spent_epsilon, self.requested_epsilon, self.remaining_epsilon = (
            spent_epsilon,
            requested_epsilon,
            remaining_epsilon,
        )

    def __reduce__(self) -> tuple[type[BudgetExceeded], tuple[float, float, float]]:
        return BudgetExceeded, (self.spent_epsilon, self.requested_epsilon, self.remaining_epsilon)


def require_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise unless `value` is one of `allowed`."""
    options = list(allowed)
    if value not in options:
        raise DpvalueError(f"{name} must be one of {', '.join(options)}; got {value!r}")


def require_number(name: str, value: float, allowed: str, ok: bool) -> None:
    """Raise unless `value` is a finite number for which `ok` holds; `allowed` completes "must be ..."."""
    if isinstance(value, bool) or not isinstance(value, Real) or not _is_finite(value) or not ok:
        raise DpvalueError(f"{name} must be {allowed}, got {value!r}")


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def require_positive(name: str, value: float) -> None:
    """Raise unless `value` is a positive, finite number."""
    require_number(name, value, "positive", isinstance(value, Real) and value > 0)


def require_count(name: str, value: int, least: int = 1) -> None:
    """Raise unless `value` is a whole number of at least `least` that fits int64."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise DpvalueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if value > LARGEST_WHOLE:
        raise DpvalueError(f"{name} must be a whole number below 2^63, got {short(value)}")
