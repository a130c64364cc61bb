"""Intervals of values, from replays of the private table with fresh noise.

Fresh noise of the same size is added to the private table, which is then replayed, `draws` times. Each value of a draw
gets Gaussian noise of its Monte Carlo error. A statistic of values (a value, a difference, a rank, a payout) is
computed for each draw. Its interval at a level is

    estimate ± (2.2 z sd + |mean over draws - estimate|),        z = Phi^-1((1 + level) / 2) / Phi^-1(0.975),

with sd and mean over the draws: 2.2 standard deviations at 95%. The second term corrects bias: adding noise to a noisy
table moves it from the truth by about as much as the first noise did. Percentiles of the draws ignore that and cover
too seldom. In this term, the estimate is the replay of the table itself, over the permutations of the draws.

The refit game uses the posterior mean of a party's data. There sd and mean are over posterior draws of the releases
without noise, each valued without noise. A party that is too small for its budget has a posterior mean that hardly
depends on the noise, so fresh noise alone would give an interval that is too short. If fresh noise moves values more
than the posterior draws, sd is that of fresh noise, but at most twice theirs: the posterior assumes typical data.

The intervals describe what the same releases would give without noise: same job, clipping norm and directions. They
exclude the error of clipping and of the game itself, which is its distance from retraining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch

from dpvalue.arrays import Floats
from dpvalue.errors import require_number
from dpvalue.games.estimates import Estimate
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.solving import MOST_PLAYERS_ENUMERATED, ReleaseGame, estimate_values
from dpvalue.privacy.laws import find_law
from dpvalue.progress import Progress
from dpvalue.protocol.schedule import LEAST_WALKS
from dpvalue.streams import Purpose, stream

if TYPE_CHECKING:
    from dpvalue.values.noisy import NoisyValues

WIDTH = 2.2
"""Half the width of a 95% interval, in standard deviations."""

_MOST_NOISE = 2.0  # largest ratio of the sd of fresh noise to the posterior sd


Statistic = Callable[[Floats], Floats]
"""A function from values (..., n) to numbers (..., m)."""


Estimates = dict[str, Estimate]
"""Values by the name of the semivalue."""


class NoiseDrawSettings(TypedDict, total=False):
    """The arguments of `Result.noise_draws`."""

    draws: int | None
    utility: Any
    target: str | None
    progress: bool | Progress


@dataclass(frozen=True, eq=False)
class Intervals:
    """Estimates with the lower and upper ends of their intervals at a level; arrays of one shape."""

    estimate: Floats
    low: Floats
    high: Floats
    level: float


@dataclass(frozen=True, eq=False)
class NoiseDraws:
    """The values of one semivalue, and its values with fresh noise; made by `Result.noise_draws`.

    Attributes:
        estimate: the values (n,).
        replay: the values of the table without fresh noise, over the permutations of the draws (n,).
        draws: the values of the table with fresh noise (draws, n).
        errors: the Monte Carlo errors of the values (n,).
        seed: seed of the Monte Carlo errors that are added to the draws.
        noise_free: for the refit game, the values of posterior draws of the releases without noise (draws, n); None
            for other games.
    """

    estimate: Floats
    replay: Floats
    draws: Floats
    errors: Floats
    seed: int
    noise_free: Floats | None = None

    @property
    def noise_std(self) -> Floats:
        """The standard deviation of each value due to the DP noise alone."""
        with np.errstate(invalid="ignore"):  # an infinite utility shows in the values
            return np.asarray(np.std(self.draws - self.replay, axis=0, ddof=1))  # exactly 0 without noise

    @cached_property
    def _errors(self) -> Floats:
        """Gaussian noise whose standard deviations over the draws equal the Monte Carlo errors (draws, n)."""
        normals = stream(self.seed, Purpose.MONTE_CARLO).standard_normal(self.draws.shape)
        return np.asarray(self.errors * ((normals - normals.mean(0)) / normals.std(0, ddof=1)))

    def spread(self, statistic: Statistic) -> tuple[Floats, Floats]:
        """Return the standard deviation of a statistic over the draws, and the absolute bias of the draws."""
        with np.errstate(invalid="ignore"):
            replay = statistic(self.replay)
            differences = statistic(self.draws + self._errors) - replay
            std = np.asarray(differences.std(0, ddof=1))
            if self.noise_free is None:
                return std, np.asarray(np.abs(differences.mean(0)))
            posterior = statistic(self.noise_free + self._errors) - replay
            posterior_std = np.asarray(posterior.std(0, ddof=1))
            return np.clip(std, posterior_std, _MOST_NOISE * posterior_std), np.asarray(np.abs(posterior.mean(0)))

    def interval(self, statistic: Statistic, level: float = 0.95) -> Intervals:
        """Return the intervals of a statistic."""
        estimate = statistic(self.estimate)
        std, offset = self.spread(statistic)
        half = WIDTH * quantile(level) / quantile(0.95) * std + offset
        return Intervals(estimate, estimate - half, estimate + half, level)

    def values(self, level: float = 0.95) -> Intervals:
        """Return the intervals of the values."""
        return self.interval(lambda values: values, level)

    def ranks(self, level: float = 0.95) -> Intervals:
        """Return the intervals of the ranks (1 for the highest value), rounded outwards to whole numbers."""
        interval = self.interval(ranks, level)
        low, high = np.floor(interval.low + 1e-9), np.ceil(interval.high - 1e-9)
        return Intervals(interval.estimate, np.maximum(low, 1), np.minimum(high, len(self.estimate)), level)


def quantile(level: float) -> float:
    """Return the z with P(|Z| <= z) = level for a standard normal Z."""
    require_number("level", level, "above 0 and below 1", isinstance(level, float) and 0 < level < 1)
    return NormalDist().inv_cdf((1 + level) / 2)


def ranks(values: Floats) -> Floats:
    """Return the ranks of values (..., n): 1 for the highest; ties by position; NaN for NaN.

    >>> ranks(np.array([0.1, 0.3, float("nan"), 0.2])).tolist()
    [3.0, 1.0, nan, 2.0]
    """
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.where(np.isnan(values), np.nan, np.argsort(order, axis=-1, kind="stable") + 1.0)


def default_draws(parties: int, walks: int) -> int:
    """Return the default number of draws.

    30 for up to 8 parties with exact values (256 coalitions), otherwise 20; fewer above 10,000 parties, down to 4, as
    they would take minutes.
    """
    return 30 if walks == 0 and parties <= 8 else min(20, max(4, 200_000 // parties))


def draw_noise(result: NoisyValues, game: ReleaseGame | None, draws: int, progress: Progress) -> dict[str, NoiseDraws]:
    """Return the values with fresh noise, by semivalue; `game` is the game of the table, None without privacy."""
    table, kinds = result.table, result.semivalues
    replays, noise_free = [], []
    if game is not None:
        # As in the run: all coalitions, or its permutations, as many as give each party 20 marginals.
        walks = min(result.walks, _walks_for(LEAST_WALKS, kinds, table.n)) or 2**MOST_PLAYERS_ENUMERATED
        replays.append(estimate_values(game, kinds, walks, 1e-12, table.seed).estimates)
        progress("errors", 0, draws)
        tasks = (
            NoiseTask(game, table.noise_std, noise, kinds, walks, table.seed, number)
            for number, noise in enumerate(_fresh_noise(result, draws), start=1)
        )
        for number, (noisy, possible) in enumerate(result.engine.tasks(draw_values, tasks), start=1):
            replays.append(noisy)
            if possible is not None:
                noise_free.append(possible)
            progress("errors", number, draws)
    draws_of = {}
    for kind in kinds:
        estimate = result.estimates[kind.name]
        values = [estimates[kind.name].values for estimates in replays] or [estimate.values] * (draws + 1)
        noise_free_values = np.array([estimates[kind.name].values for estimates in noise_free]) if noise_free else None
        draws_of[kind.name] = NoiseDraws(
            estimate.values, values[0], np.array(values[1:]), estimate.std_errors, table.seed, noise_free_values
        )
    return draws_of


@dataclass(frozen=True, eq=False)
class NoiseTask:
    """One draw of fresh noise.

    Attributes:
        game: that of the table.
        noise_std: of the table's rows (n,).
        noise: fresh noise of variance 1, in the shape of the rows.
        kinds: the semivalues.
        walks: the largest number of permutations.
        seed: of the permutations and of the posterior draw.
        number: that of the draw, from 1.
    """

    game: ReleaseGame
    noise_std: Floats
    noise: Floats
    kinds: tuple[Semivalue, ...]
    walks: int
    seed: int
    number: int


def draw_values(task: NoiseTask) -> tuple[Estimates, Estimates | None]:
    """Return the values with fresh noise, and those of one posterior draw of the releases without noise."""
    game = task.game
    std = torch.from_numpy(task.noise_std).to(game.rows)[:, None]
    noisy = game.with_rows(game.rows + std * torch.from_numpy(task.noise).to(std))
    replayed = estimate_values(noisy, task.kinds, task.walks, 1e-12, task.seed).estimates
    possible = game.without_noise(stream(task.seed, Purpose.POSSIBLE_VALUES, task.number))
    if possible is None:
        return replayed, None
    return replayed, estimate_values(possible, task.kinds, task.walks, 1e-12, task.seed).estimates


def _walks_for(marginals: int, kinds: tuple[Semivalue, ...], n: int) -> int:
    """The number of permutations that give each party this many effective marginals."""
    weights = [kind.position_weights(n) for kind in kinds]
    # Leave-one-out is not sampled. Of weights p that are 1 on average, the effective share is n / sum p^2.
    shares = [float(np.square(p).mean()) for p in weights if p[:-1].any()]
    return round(marginals * max(shares, default=1.0))


def _fresh_noise(result: NoisyValues, draws: int) -> Iterator[Floats]:
    """Yield noise of variance 1, with the law and shape of the table."""
    table = result.table
    law, shape = find_law(table.guarantee.law), tuple(table.rows.shape)
    if not law.scalar:
        for draw in range(draws):
            yield law.sampling.numbers(stream(table.seed, Purpose.RENOISE, draw), shape) / law.sampling.std
        return
    # Tails may be heavy: the spread of 20 Laplace draws would be off by a quarter, so it is made exact.
    noise = law.sampling.numbers(stream(table.seed, Purpose.RENOISE), (draws, *shape))
    yield from (noise - noise.mean(0)) / noise.std(0, ddof=1)
