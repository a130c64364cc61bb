"""Valuing a fixed table: a true coalition game, v(S) = V(theta_0 - alpha * sum of the rows of S).

Leave-one-out is exact with n + 1 evaluations; a game of few parties is enumerated when that is no dearer than the
permutations allowed; everything else walks permutations until the standard errors are small enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.engine.evaluator import Evaluator
from dpvalue.engine.walks import Walker
from dpvalue.progress import Progress
from dpvalue.streams import Purpose, permutations
from dpvalue.valuation.estimates import Estimate, Estimator, exact_estimate
from dpvalue.valuation.games import MOST_PLAYERS_ENUMERATED, enumerate_values
from dpvalue.valuation.semivalues import Semivalue

LEAST_WALKS = 20


@dataclass(frozen=True)
class Replay:
    """The estimates of a replay, how many permutations it walked (0: exact), and whether it met the tolerance."""

    estimates: dict[str, Estimate]
    walks: int
    converged: bool


def replay(
    walker: Walker,
    evaluate: Evaluator,
    table: Tensor,
    semivalues: tuple[Semivalue, ...],
    most: int,
    tolerance: float,
    seed: int,
    progress: Progress,
) -> Replay:
    """Return the semivalues of the table's game, from at most `most` permutations.

    Formal guarantee: reads the table and public things only; what it returns is post-processing.
    """
    n = len(table)
    if n <= MOST_PLAYERS_ENUMERATED and 2**n <= most * n:
        return Replay(_enumerated(walker, evaluate, table, semivalues), 0, True)
    leave_one_out = [one for one in semivalues if not one.position_weights(n)[:-1].any()]
    estimates = {one.name: _leave_one_out(walker, evaluate, table) for one in leave_one_out}
    sampled = [one for one in semivalues if one not in leave_one_out]
    estimators = {one.name: Estimator(one, n) for one in sampled}
    walks, converged = 0, not sampled
    while walks < most and not converged:
        orders = permutations(seed, Purpose.REPLAY, walks, min(LEAST_WALKS, most - walks), n)
        marginals = walker.marginals(evaluate, table, orders)
        for estimator in estimators.values():
            estimator.add(orders, marginals)
        walks += len(orders)
        estimates |= {name: estimator.estimate for name, estimator in estimators.items()}
        converged = all(_is_tight(estimates[name], tolerance) for name in estimators)
        progress("walking", walks, walks if converged else most)
        progress("accuracy", min(_accuracy(estimates[name], tolerance) for name in estimators), 100)
    return Replay({one.name: estimates[one.name] for one in semivalues}, walks, converged)


def _accuracy(estimate: Estimate, tolerance: float) -> int:
    """How near the largest standard error is to what is wanted, in percent."""
    error = float(np.max(estimate.std_errors))
    wanted = tolerance * float(np.std(estimate.values))
    return 100 if error <= wanted else int(100 * wanted / error) if np.isfinite(error) else 0


def _is_tight(estimate: Estimate, tolerance: float) -> bool:
    """Whether the largest standard error is at most `tolerance` standard deviations of the values."""
    return bool(np.max(estimate.std_errors) <= tolerance * np.std(estimate.values))


def _leave_one_out(walker: Walker, evaluate: Evaluator, table: Tensor) -> Estimate:
    everyone = walker.initial - walker.learning_rate * table.sum(0)
    whole = evaluate(everyone[None])
    # Without party j the model is one row less far along: rows are added back batch by batch, never all n at once.
    batch = walker.engine.piece(4 * len(everyone), least=2048)
    without = [evaluate(everyone + walker.learning_rate * rows) for rows in table.split(batch)]
    return exact_estimate((whole - torch.cat(without)).cpu().numpy(), evaluations=1)


def _enumerated(
    walker: Walker, evaluate: Evaluator, table: Tensor, semivalues: tuple[Semivalue, ...]
) -> dict[str, Estimate]:
    n = len(table)
    bits = torch.arange(2**n)[:, None] >> torch.arange(n)[None, :] & 1
    worth = walker.coalition_utilities(evaluate, table, bits.to(table.device))
    return {one.name: exact_estimate(enumerate_values(worth, n, one), 2 ** (n - 1)) for one in semivalues}
