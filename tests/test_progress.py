"""How long a stage still takes: by a made clock, within a factor of 2 after the first tenth of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dpvalue import games
from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.games.semivalues import semivalue
from dpvalue.games.solving import estimate_values
from dpvalue.progress import TimeLeft
from dpvalue.streams import Purpose, stream


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def followed(costs: list[float], ends: Callable[[float, float | None], None], before: float = 30.0) -> None:
    """Take so many seconds for each step of a stage, after another one; `ends` gets what is left, and what is said."""
    clock = Clock()
    left = TimeLeft(clock)
    left.tell("before", 0, 1)
    clock.now += before
    left.tell("before", 1, 1)
    clock.now += before  # what nobody tells of
    left.tell("stage", 0, len(costs))
    for done, cost in enumerate(costs, start=1):
        clock.now += cost
        left.tell("stage", done, len(costs))
        ends(sum(costs[done:]), left.left("stage"))


@pytest.mark.parametrize("law", ["alike", "spread", "slower", "slow at first"])
def test_the_estimate_is_within_a_factor_of_two_after_the_first_tenth(law: str) -> None:
    generator = np.random.default_rng(0)
    costs = {
        "alike": np.ones(50), "spread": generator.exponential(size=400), "slower": np.linspace(1, 2, 60),
        "slow at first": np.r_[3.0, np.ones(60)],
    }[law].tolist()  # fmt: skip
    seen = 0

    def within(truth: float, told: float | None) -> None:
        nonlocal seen
        seen += 1
        if seen >= len(costs) / 10 and truth > 0.05 * sum(costs):
            assert told is not None
            assert truth / 2 <= told <= 2 * truth
        if seen == len(costs):
            assert told == 0

    followed(costs, within)
    assert seen == len(costs)


def test_the_estimate_goes_down_between_reports_and_nothing_is_said_before_the_first() -> None:
    clock = Clock()
    left = TimeLeft(clock)
    assert left.left("stage") is None
    left.tell("stage", 0, 10)
    clock.now += 5
    assert left.left("stage") is None
    left.tell("stage", 1, 10)
    assert left.left("stage") == 45
    clock.now += 4
    assert left.left("stage") == 41
    clock.now += 100
    assert left.left("stage") == 0
    left.tell("stage", 0, 10)  # begins again
    assert left.left("stage") is None


class Wandering(games.Game):
    """Parties of different worths, and marginals with noise: how many walks it takes is known in the end alone."""

    def __init__(self, n: int, noise: float) -> None:
        self.n, self.noise, self.walked = n, noise, 0

    def worth(self, coalitions: Bools) -> Floats:
        raise NotImplementedError

    def walk(self, orders: Ints) -> Floats:
        drawn = stream(self.n, Purpose.PERMUTATION, self.walked).normal(0, self.noise, orders.shape)
        self.walked += len(orders)
        return np.asarray(np.linspace(-1, 1, self.n)[orders] + drawn)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_the_walks_that_are_left_are_foreseen(noise: float) -> None:
    """A walk takes a second: what is said after a tenth of the walks is within a factor of 2 of what they took."""
    clock, told = Clock(), []
    left = TimeLeft(clock)

    def progress(stage: str, done: int, total: int) -> None:
        assert stage == "walking"
        clock.now = 1000.0 + done
        left.tell(stage, done, total)
        told.append((done, left.left(stage)))

    valued = estimate_values(Wandering(40, noise), (semivalue("shapley"),), 100_000, 0.1, 0, progress)
    assert valued.converged
    assert valued.walks > 40
    for done, seconds in told:
        if valued.walks / 10 <= done <= 0.8 * valued.walks:
            assert seconds is not None
            assert (valued.walks - done) / 2 <= seconds <= 2 * (valued.walks - done)
    assert told[-1] == (valued.walks, 0)
