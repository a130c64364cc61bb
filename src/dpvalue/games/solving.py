"""Games and their semivalues: exact where that is cheap, otherwise by walking permutations.

A game returns the worths of many coalitions at once. Leave-one-out is exact with n + 1 coalitions. A game of few
players is enumerated if that costs no more than the permutations. A game may override the computation of its values.
All other values come from permutations, until the standard errors are small enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import comb, inf

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.errors import DpvalueError, require_count
from dpvalue.games.estimates import Estimate, Estimator, exact_estimate
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.semivalues import semivalue as semivalue_of
from dpvalue.progress import Progress, silent
from dpvalue.protocol.schedule import LEAST_WALKS
from dpvalue.streams import Purpose, require_seed
from dpvalue.streams import permutations as sample_permutations

MOST_PLAYERS_ENUMERATED = 16

_MOST_CELLS = 2**24  # coalitions x players per call of a game, a byte each


class Game(ABC):
    """A coalition game: players 0, ..., n - 1, and the worth of any coalition.

    A subclass sets `n` and defines `worth`; it overrides the other methods where a faster computation exists.

    Example:
        >>> class Quota(Game):
        ...     n, votes = 3, np.array([2, 1, 1])
        ...     def worth(self, coalitions):
        ...         return (coalitions @ self.votes >= 3).astype(float)
        >>> value_game(Quota()).values.round(3).tolist()
        [0.667, 0.167, 0.167]
    """

    n: int

    @abstractmethod
    def worth(self, coalitions: Bools) -> Floats:
        """Return the worth (c,) of each coalition: a row that is true for its members (c, n).

        Args:
            coalitions: one row for each coalition, true for its members (c, n).

        Returns:
            one number for each row.

        Example:
            >>> ListedGame([0, 2, 3, 10]).worth(np.array([[True, False], [True, True]])).tolist()
            [2.0, 10.0]
        """

    def walk(self, orders: Ints) -> Floats:
        """Return the marginal of each player to its predecessors: marginals[t, r] of player orders[t, r], both (k, n).

        Args:
            orders: permutations of the players, one a row (k, n).

        Returns:
            the marginals (k, n).

        Example:
            >>> ListedGame([0, 2, 3, 10]).walk(np.array([[0, 1], [1, 0]])).tolist()
            [[2.0, 8.0], [3.0, 7.0]]
        """
        places, steps = np.argsort(orders, axis=1), self.n + 1
        worths = worths_of(self, len(orders) * steps, lambda index: places[index // steps] < (index % steps)[:, None])
        return np.diff(worths.reshape(-1, steps), axis=1)

    def leave_one_out(self) -> Floats:
        """Return the marginal of each player to all others, from n + 1 coalitions.

        Returns:
            one number for each player.

        Example:
            >>> ListedGame([0, 2, 3, 10]).leave_one_out().tolist()
            [7.0, 8.0]
        """
        worths = worths_of(self, self.n + 1, lambda players: players[:, None] != np.arange(self.n))
        return np.asarray(worths[-1] - worths[:-1])  # the last coalition is everyone

    def exact(self, semivalue: Semivalue) -> Floats | None:
        """Return the exact values (n,) if no walk is needed, otherwise None; by default for leave-one-out only.

        Args:
            semivalue: the semivalue.

        Returns:
            the values, or None.

        Example:
            >>> ListedGame([0, 2, 3, 10]).exact(semivalue_of("loo")).tolist()
            [7.0, 8.0]
        """
        return None if semivalue.position_weights(self.n)[:-1].any() else self.leave_one_out()

    def direct_estimate(self, semivalue: Semivalue) -> Estimate | None:
        """Return the values if no walk is needed, exact or with a stated error; otherwise None."""
        values = self.exact(semivalue)
        return None if values is None else exact_estimate(values, evaluations=1)


class ReleaseGame(Game):
    """A game of the parties' releases, which can be evaluated again with other rows of the same parties.

    Attributes:
        rows: the releases (n, m).
    """

    rows: Tensor

    @abstractmethod
    def with_rows(self, rows: Tensor) -> ReleaseGame:
        """Return the game with other rows of the same parties (n, m)."""

    def without_noise(self, generator: np.random.Generator) -> ReleaseGame | None:
        """Return the game of a posterior draw of the releases without noise; None if the game has no posterior."""
        return None


class FunctionGame(Game):
    """A game given as a function of players; it is called once per distinct coalition of a batch.

    Args:
        v: takes a tuple of players in increasing order, () included; returns its worth.
        n: the number of players.

    Example:
        >>> FunctionGame(lambda players: len(players) ** 2, 3).leave_one_out().tolist()
        [5.0, 5.0, 5.0]
    """

    def __init__(self, v: Callable[[tuple[int, ...]], float], n: int) -> None:
        require_count("n", n)
        self.v, self.n = v, n

    def worth(self, coalitions: Bools) -> Floats:
        """Return v of each coalition."""
        keys = [coalition.tobytes() for coalition in coalitions]
        distinct = dict(zip(keys, coalitions, strict=True))
        worths = {key: float(self.v(tuple(np.flatnonzero(members).tolist()))) for key, members in distinct.items()}
        return np.array([worths[key] for key in keys])


class ListedGame(Game):
    """A game given as the worths of all 2^n coalitions: worths[mask], with bit j of the mask set for member j.

    Args:
        worths: 2^n numbers.

    Example:
        >>> ListedGame([0, 2, 3, 10]).leave_one_out().tolist()
        [7.0, 8.0]
    """

    def __init__(self, worths: ArrayLike) -> None:
        self.worths = np.asarray(worths, dtype=np.float64)
        self.n = self.worths.size.bit_length() - 1
        if self.n < 1 or self.worths.shape != (2**self.n,):
            raise DpvalueError(f"worths must be 2^n numbers for n of at least 1, got the shape {self.worths.shape}")

    def worth(self, coalitions: Bools) -> Floats:
        """Look each coalition up."""
        return self.worths[coalitions @ (1 << np.arange(self.n))]


@dataclass(frozen=True)
class Solution:
    """The estimates of a game, the number of permutations (0: exact), and whether the tolerance was met."""

    estimates: dict[str, Estimate]
    walks: int
    converged: bool


def estimate_values(
    game: Game, kinds: tuple[Semivalue, ...], most: int, tolerance: float, seed: int, progress: Progress = silent
) -> Solution:
    """Return semivalues of a game: exact where that is cheap, otherwise from at most `most` permutations.

    Args:
        game: the game.
        kinds: the semivalues; all share one walk.
        most: largest number of permutations. A game of few players is enumerated if it has no more coalitions than
            these permutations evaluate.
        tolerance: stop once the largest standard error is at most tolerance * standard deviation of the values.
        seed: seed of the permutations.
        progress: reports the progress of the walks.
    """
    if game.n <= MOST_PLAYERS_ENUMERATED and 2**game.n <= most * game.n:
        return Solution(_enumerate(game, kinds), 0, True)
    direct = {kind.name: game.direct_estimate(kind) for kind in kinds}
    exact = {name: estimate for name, estimate in direct.items() if estimate is not None}
    sampled = tuple(kind for kind in kinds if kind.name not in exact)
    solution = _walk(game, sampled, most, tolerance, seed, Purpose.REPLAY, progress)
    estimates = exact | solution.estimates
    return Solution({kind.name: estimates[kind.name] for kind in kinds}, solution.walks, solution.converged)


def value_game(
    v: Game | Callable[[tuple[int, ...]], float],
    n: int | None = None,
    semivalue: str | Semivalue = "shapley",
    permutations: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Return the semivalue of each of the players 0..n-1 of the game v.

    Args:
        v: a `Game`, or a function from a tuple of players in increasing order, () included, to a worth.
        n: number of players; needed for a function.
        semivalue: a name ("shapley", "banzhaf", "beta(a,b)", "loo") or a `Semivalue`.
        permutations: number of sampled permutations. None: exact values, from all 2^n coalitions for n <= 16, above
            that only where `Game.exact` returns them, as for leave-one-out.
        seed: seed of the permutations.

    Returns:
        the values with their Monte Carlo errors.

    Raises:
        DpvalueError: a number of players or permutations that is missing or too large, or an unknown semivalue.

    Example:
        >>> gloves = lambda players: min(len(players) - (2 in players), 2 in players)
        >>> value_game(gloves, 3).values.round(4).tolist()
        [0.1667, 0.1667, 0.6667]
    """
    game, kind = _as_game(v, n), semivalue_of(semivalue)
    require_seed(seed)
    if permutations is not None:
        require_count("permutations", permutations)
        return _walk(game, (kind,), permutations, None, seed, Purpose.PERMUTATION, silent).estimates[kind.name]
    if game.n <= MOST_PLAYERS_ENUMERATED:
        return _enumerate(game, (kind,))[kind.name]
    values = game.exact(kind)
    if values is None:
        raise DpvalueError(
            f"permutations must be given for n > {MOST_PLAYERS_ENUMERATED} players (2^n coalitions), got n = {game.n}"
        )
    return exact_estimate(values, evaluations=1)


def enumerate_values(worths: Floats, n: int, kind: Semivalue) -> Floats:
    """Return the exact values (n,) of a game given as worths[mask] of all 2^n coalitions (bit j set for member j)."""
    p = kind.position_weights(n)
    per_coalition = np.array([p[size] / (n * comb(n - 1, size)) for size in range(n)])
    masks = np.arange(2**n)
    sizes = np.bitwise_count(masks)
    values = np.empty(n)
    for player in range(n):
        without = masks[(masks >> player & 1) == 0]
        values[player] = per_coalition[sizes[without]] @ (worths[without | 1 << player] - worths[without])
    return values


def _as_game(v: Game | Callable[[tuple[int, ...]], float], n: int | None) -> Game:
    if isinstance(v, Game):
        require_count("the n of a game", v.n)
        if n not in (None, v.n):
            raise DpvalueError(f"n must be {v.n} for this game, or left out; got {n!r}")
        return v
    if n is None:
        raise DpvalueError("n must be given with a function of players")
    return FunctionGame(v, n)


def worths_of(game: Game, count: int, coalitions: Callable[[Ints], Bools]) -> Floats:
    """Return the worths (count,) of coalitions, which `coalitions` makes from their numbers, in pieces that fit."""
    pieces = np.array_split(np.arange(count), -(-count * game.n // _MOST_CELLS))
    worths = np.concatenate([np.asarray(game.worth(coalitions(numbers)), dtype=np.float64) for numbers in pieces])
    if worths.shape != (count,):
        raise DpvalueError(f"worth must return one number per coalition, got the shape {worths.shape} for {count}")
    return worths


def _enumerate(game: Game, kinds: tuple[Semivalue, ...]) -> dict[str, Estimate]:
    n = game.n
    worths = worths_of(game, 2**n, lambda masks: (masks[:, None] >> np.arange(n) & 1).astype(bool))
    return {kind.name: exact_estimate(enumerate_values(worths, n, kind), 2 ** (n - 1)) for kind in kinds}


def _walk(
    game: Game,
    kinds: tuple[Semivalue, ...],
    most: int,
    tolerance: float | None,
    seed: int,
    purpose: Purpose,
    progress: Progress,
) -> Solution:
    """Walk until the values of all kinds meet the tolerance; without one, walk `most` permutations."""
    estimators = {kind.name: Estimator(kind, game.n) for kind in kinds}
    estimates: dict[str, Estimate] = {}
    walks, converged = 0, not kinds
    if kinds:
        progress("walking", 0, most)
    while walks < most and not converged:
        orders = sample_permutations(seed, purpose, walks, min(LEAST_WALKS, most - walks), game.n)
        marginals = game.walk(orders)
        for estimator in estimators.values():
            estimator.add(orders, marginals)
        walks += len(orders)
        estimates = {name: estimator.estimate for name, estimator in estimators.items()}
        walks_needed = max(_walks_needed(estimate, tolerance, walks) for estimate in estimates.values())
        converged = walks_needed <= walks
        progress("walking", walks, walks if converged else int(min(walks_needed, most)))
    return Solution(estimates, walks, converged)


def _walks_needed(estimate: Estimate, tolerance: float | None, walks: int) -> float:
    """The expected number of walks at which the largest standard error is within `tolerance` * spread of the values.

    At most `walks` if the tolerance is met. Errors, and their part of the spread, shrink with the root of the walks.
    """
    if tolerance is None:
        return inf
    errors, spread = estimate.std_errors, float(np.std(estimate.values))
    error = float(np.max(errors))
    if not np.isfinite(error + spread):
        return inf
    if error <= tolerance * spread:
        return walks
    true_variance = spread**2 - float(np.mean(errors**2))  # of the values without their errors
    if true_variance <= 0:
        return inf
    return walks * max(1 + 1 / walks, (error**2 / tolerance**2 - spread**2 + true_variance) / true_variance)
