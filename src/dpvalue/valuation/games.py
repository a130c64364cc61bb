"""Semivalues of any coalition game: exactly by enumeration, or by sampling permutations."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError, require_count
from dpvalue.streams import Purpose, permutations, require_seed
from dpvalue.valuation.estimates import Estimate, Estimator, exact_estimate
from dpvalue.valuation.semivalues import Semivalue, semivalue

MOST_PLAYERS_ENUMERATED = 16


def value_game(
    v: Callable[[tuple[int, ...]], float],
    n: int,
    semivalue: str | Semivalue = "shapley",
    permutations: int | None = None,
    seed: int = 0,
) -> Estimate:
    """Return the semivalue of each of the players 0..n-1 of the game v.

    Args:
        v: the worth of a coalition, given as a tuple of players in increasing order; v(()) is asked for too.
        n: number of players.
        semivalue: a name ("shapley", "banzhaf", "beta(a,b)", "loo") or a `Semivalue`.
        permutations: how many to sample; None enumerates all 2^n coalitions, for n <= 16.
        seed: of the sampled permutations.

    >>> gloves = lambda players: min(len(players) - (2 in players), 2 in players)
    >>> value_game(gloves, 3).values.round(4).tolist()
    [0.1667, 0.1667, 0.6667]
    """
    require_count("n", n)
    require_seed(seed)
    kind = _semivalue(semivalue)
    if permutations is None:
        if n > MOST_PLAYERS_ENUMERATED:
            raise DpvalueError(
                f"permutations must be given for n > {MOST_PLAYERS_ENUMERATED} players (2^n coalitions), got n = {n}"
            )
        worth = np.array([float(v(members(mask, n))) for mask in range(2**n)])
        return exact_estimate(enumerate_values(worth, n, kind), evaluations=2 ** (n - 1))
    require_count("permutations", permutations)
    return _sampled(v, n, kind, permutations, seed)


def members(mask: int, n: int) -> tuple[int, ...]:
    """Return the players of the coalition whose bits are set in `mask`."""
    return tuple(player for player in range(n) if mask >> player & 1)


def enumerate_values(worth: Floats, n: int, kind: Semivalue) -> Floats:
    """Return the exact values of a game given as worth[mask] for all 2^n coalitions (bit j set: player j is in)."""
    p = kind.position_weights(n)
    per_coalition = np.array([p[size] / (n * comb(n - 1, size)) for size in range(n)])
    masks = np.arange(2**n)
    sizes = np.bitwise_count(masks)
    values = np.empty(n)
    for player in range(n):
        without = masks[(masks >> player & 1) == 0]
        values[player] = per_coalition[sizes[without]] @ (worth[without | 1 << player] - worth[without])
    return values


def _sampled(v: Callable[[tuple[int, ...]], float], n: int, kind: Semivalue, count: int, seed: int) -> Estimate:
    estimator = Estimator(kind, n)
    empty = float(v(()))
    for index in range(count):
        order = permutations(seed, Purpose.PERMUTATION, index, 1, n)
        walk = [empty, *(float(v(tuple(sorted(order[0, : r + 1].tolist())))) for r in range(n))]
        estimator.add(order, np.diff(walk)[None])
    return estimator.estimate


_semivalue = semivalue  # the argument of value_game shadows the function
