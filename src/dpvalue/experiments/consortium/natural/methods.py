"""What is compared with retraining. A method is one entry of `METHODS`: a function of problem, budget and seed.

A budget is epsilon per record (0: no noise, the same estimator on exact statistics) and what noise is divided by. A
divisor of 3 or 10 stands for parties of three to ten times as many records where rows do not suffice: noise as small as
theirs would be, beside the sampling error of the records that there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

from dpvalue.arrays import Floats
from dpvalue.experiments.consortium.averaging import averaged_values
from dpvalue.experiments.consortium.methods import DELTA, run_game
from dpvalue.experiments.consortium.natural.cells import NaturalCell
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import Values
from dpvalue.models import TREES
from dpvalue.privacy.budget import Privacy

FEWER_SEEDS = 4


@dataclass(frozen=True, order=True)
class Budget:
    """How much noise there is.

    Attributes:
        epsilon: per record, at delta = 1e-5; 0 for no noise.
        divisor: what noise is divided by.
    """

    epsilon: float = 0.0
    divisor: float = 1.0

    @property
    def name(self) -> str:
        """The budget in words.

        >>> Budget(4, 10).name
        'epsilon 4, noise / 10'
        """
        if not self.epsilon:
            return "no noise"
        return f"epsilon {self.epsilon:g}" + (f", noise / {self.divisor:g}" if self.divisor != 1 else "")

    @property
    def seeds(self) -> int:
        """On how many seeds the benchmark has it."""
        return 10 if self.divisor == 1 else FEWER_SEEDS


EXACT = Budget()
BUDGETS = (EXACT, *(Budget(epsilon, divisor) for epsilon in (4, 1) for divisor in (10, 3, 1)))


@dataclass(frozen=True)
class NaturalMethod:
    """One way to value parties.

    Attributes:
        value: the values of a problem at a budget, by a seed for noise.
        budgets: those that make a difference.
        applies: to which cells.
    """

    value: Callable[[PartyProblem, Budget, int], Values]
    budgets: tuple[Budget, ...] = BUDGETS
    applies: Callable[[NaturalCell], bool] = lambda cell: True


def by_size(problem: PartyProblem, budget: Budget, seed: int) -> Values:
    """Return values in proportion to numbers of records, which are public."""
    sizes: Floats = problem.sizes / problem.sizes.sum()
    return Values(sizes, sizes)


def by_averaging(problem: PartyProblem, budget: Budget, seed: int) -> Values:
    """Return values of the game in which a coalition has the mean of its members' exact fits, by size."""
    return averaged_values(problem)


def by_game(game: str, problem: PartyProblem, budget: Budget, seed: int) -> Values:
    """Return what a game of the library says today."""
    epsilon = effective_epsilon(budget) if budget.epsilon else None
    return run_game(replace(problem, seed=seed), game, epsilon).values


@lru_cache
def effective_epsilon(budget: Budget) -> float:
    """Return the epsilon whose Gaussian noise is that of the budget, divided.

    >>> effective_epsilon(Budget(1.0)), round(effective_epsilon(Budget(1.0, 10)), 1)
    (1.0, 14.4)
    """
    if budget.divisor == 1:
        return float(budget.epsilon)
    wanted = Privacy(budget.epsilon, DELTA).noise_multiplier(1, 1) / budget.divisor
    low, high = budget.epsilon, budget.epsilon * budget.divisor**2 * 2
    for _ in range(60):
        middle = (low + high) / 2
        if Privacy(middle, DELTA).noise_multiplier(1, 1) > wanted:
            low = middle
        else:
            high = middle
    return high


METHODS: dict[str, NaturalMethod] = {
    "sizes": NaturalMethod(by_size, (EXACT,)),
    "averaging": NaturalMethod(by_averaging, (EXACT,)),
    "refit": NaturalMethod(partial(by_game, "refit")),
    "steps": NaturalMethod(partial(by_game, "steps")),
    TREES: NaturalMethod(partial(by_game, TREES), applies=lambda cell: not cell.regression),
}
