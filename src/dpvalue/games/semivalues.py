"""Semivalues as weights of positions in a uniformly random permutation.

A semivalue (paper, equ:semi-value) weights a party's marginal to a coalition of size r - 1 by w(r), with
sum_r C(n-1, r-1) w(r) = n. In a uniform permutation the predecessors of a party at position r (1-based) are a uniform
coalition of size r - 1, so the unbiased weight of its marginal is

    p(r) = C(n-1, r-1) w(r),        and mean_r p(r) = 1.

    Shapley        p(r) = 1
    Banzhaf        p(r) = n C(n-1, r-1) / 2^(n-1)
    Beta(a, b)     p(r) = n C(n-1, r-1) B(r+b-1, n-r+a) / B(a, b);  Beta(1, 1) is Shapley, a > b favours small sets
    leave-one-out  p(n) = n, else 0

Weights are computed in log space: the binomials overflow from n = 1030 on.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import lgamma, log
from typing import Any

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError, require_count

Joining = Callable[[int], tuple[Floats, Floats]]
"""Takes a number of points; returns probabilities t and their weights, which sum to 1."""


@dataclass(frozen=True)
class Semivalue:
    """A semivalue: its name, and a function from n to the position weights p(1..n).

    Args:
        name: the name in frames and files.
        weights: takes n, returns p(1), ..., p(n).
        joining: takes a number of points, returns a quadrature of the law below; None if the law is unknown.

    The weights must be finite, not negative, and sum to n; `position_weights` checks that each time.

    Equivalently, each other party joins the coalition with probability t. The law of t does not depend on n: uniform
    for Shapley, 1/2 for Banzhaf, Beta(b, a) for Beta(a, b). `joining` returns a quadrature of that law with about the
    given number of points.

    Example:
        >>> last = Semivalue("last", lambda n: np.eye(n)[-1] * n)  # that of leave-one-out, by another name
        >>> last.position_weights(3).tolist()
        [0.0, 0.0, 3.0]
    """

    name: str
    weights: Callable[[int], Floats]
    joining: Joining | None = None

    def __repr__(self) -> str:
        return f"Semivalue({self.name!r})"

    def __copy__(self) -> Semivalue:
        return self  # immutable

    def __deepcopy__(self, memo: dict[int, Any]) -> Semivalue:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self == _by_name(self.name):
            return semivalue, (self.name,)
        state = self.name, self.weights, self.joining
        try:
            pickle.dumps(state)
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise DpvalueError(
                f"the semivalue {self.name!r} cannot be pickled: its functions must be defined at the top of a module, "
                f"not as a lambda or inside a function ({error})"
            ) from None
        return Semivalue, state

    def position_weights(self, n: int) -> Floats:
        """Return p(1), ..., p(n), which sum to n.

        Args:
            n: the number of parties.

        Returns:
            the weights (n,).

        Raises:
            DpvalueError: weights of another shape, negative, not finite, or with another sum.

        Example:
            >>> semivalue("loo").position_weights(3)
            array([0., 0., 3.])
        """
        require_count("n", n)
        p = np.asarray(self.weights(n), dtype=np.float64)
        if p.shape != (n,):
            raise DpvalueError(f"the weights of semivalue {self.name!r} must have shape ({n},), got {p.shape}")
        if not np.isfinite(p).all() or (p < 0).any():
            raise DpvalueError(f"the weights of semivalue {self.name!r} must be finite and not negative")
        if abs(p.sum() - n) > 1e-6 * n:
            raise DpvalueError(f"the weights of semivalue {self.name!r} must sum to n = {n}, got {p.sum():.6g}")
        return p


def semivalue(name: str | Semivalue) -> Semivalue:
    """Return the semivalue called `name`: "shapley", "banzhaf", "beta(a,b)" or "loo".

    Args:
        name: the name; a `Semivalue` is returned as it is.

    Returns:
        the semivalue.

    Raises:
        DpvalueError: an unknown name, or a `Semivalue` under a name that means another one.

    Example:
        >>> semivalue("beta(4,1)").name
        'beta(4,1)'
    """
    if isinstance(name, Semivalue):
        _require_free_name(name)
        return name
    standard = _by_name(name) if isinstance(name, str) else None
    if standard is None:
        raise DpvalueError(f"semivalue must be one of shapley, banzhaf, beta(a,b) with a, b > 0, loo; got {name!r}")
    return standard


def _by_name(name: str) -> Semivalue | None:
    """The semivalue of a name; None if there is none. Equal names give equal semivalues."""
    text = name.replace(" ", "").lower()
    if text == "shapley":
        return Semivalue("shapley", np.ones, _legendre_quadrature)
    if text == "banzhaf":
        return Semivalue("banzhaf", _banzhaf, _half_quadrature)
    if text == "loo":
        return Semivalue("loo", _leave_one_out)
    beta = re.fullmatch(r"beta\(([0-9.eE+-]+),([0-9.eE+-]+)\)", text)
    if beta:
        try:
            a, b = float(beta[1]), float(beta[2])
        except ValueError:
            a = b = 0.0
        if 0 < a < float("inf") and 0 < b < float("inf"):
            return Semivalue(f"beta({_number(a)},{_number(b)})", _BetaWeights(a, b), _JacobiQuadrature(a, b))
    return None


def _require_free_name(custom: Semivalue) -> None:
    """Raise if the name of a custom semivalue has another meaning in frames or saved files."""
    standard = _by_name(custom.name)
    if standard is None:
        if custom.name in ("party", "size", "rank", "rank_low", "rank_high", "payout", "payout_low", "payout_high"):
            raise DpvalueError(f"a semivalue must not be called {custom.name!r}, which is a column of frames")
        return
    if not np.allclose(standard.position_weights(7), custom.position_weights(7)):
        raise DpvalueError(f"a custom semivalue must not be called {custom.name!r}, which means other weights")


def _number(x: float) -> str:
    return str(int(x)) if x.is_integer() else repr(x)


def semivalues(names: str | Semivalue | Iterable[str | Semivalue]) -> tuple[Semivalue, ...]:
    """Return the semivalues of `names` (one or several) in order; at least one, no name twice."""
    items = [names] if isinstance(names, str | Semivalue) else list(names)
    kinds = tuple(semivalue(name) for name in items)
    if not kinds:
        raise DpvalueError("semivalues must name at least one semivalue, got none")
    if len({kind.name for kind in kinds}) < len(kinds):
        raise DpvalueError(f"semivalues must not repeat a name, got {[kind.name for kind in kinds]}")
    return kinds


def _log_binomials(n: int) -> Floats:
    """Log C(n-1, r-1) for r = 1..n."""
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n, dtype=np.float64)))])
    return np.asarray(log_factorials[-1] - log_factorials - log_factorials[::-1])


def _normalise(log_weights: Floats) -> Floats:
    """exp(log_weights), scaled to sum to n, which removes rounding errors of the logarithms."""
    p = np.exp(log_weights - log_weights.max())
    return np.asarray(p * (len(p) / p.sum()))


def _banzhaf(n: int) -> Floats:
    return _normalise(_log_binomials(n) + log(n) - (n - 1) * log(2))


def _half_quadrature(points: int) -> tuple[Floats, Floats]:
    """Probability 1/2, for any number of points."""
    return np.array([0.5]), np.ones(1)


@dataclass(frozen=True)
class _BetaWeights:
    """The position weights of Beta(a, b); equal parameters compare equal."""

    a: float
    b: float

    def __call__(self, n: int) -> Floats:
        log_beta = np.array([lgamma(r + self.b - 1) + lgamma(n - r + self.a) for r in range(1, n + 1)])
        return _normalise(_log_binomials(n) + log_beta)


def _legendre_quadrature(points: int) -> tuple[Floats, Floats]:
    """Gauss-Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return (nodes + 1) / 2, weights / 2


@dataclass(frozen=True)
class _JacobiQuadrature:
    """Gauss-Jacobi for t with the law Beta(b, a)."""

    a: float
    b: float

    def __call__(self, points: int) -> tuple[Floats, Floats]:
        from scipy.special import roots_jacobi

        nodes, weights = roots_jacobi(points, self.a - 1, self.b - 1)
        return (nodes + 1) / 2, weights / weights.sum()


def _leave_one_out(n: int) -> Floats:
    p = np.zeros(n)
    p[-1] = n
    return p
