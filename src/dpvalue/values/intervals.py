"""How sure values are: what they become under fresh noise, and intervals made from that.

The private table is given fresh noise of its own size and replayed, `draws` times; to each value so made, Gaussian
noise of its Monte Carlo error is added. Whatever is computed from values (a value itself, a difference, a rank, a
payout) is computed from each draw as well, and its interval at a level is

    estimate ± (2.2 z sd + |mean over draws - estimate|),        z = Phi^-1((1 + level) / 2) / Phi^-1(0.975),

with sd and mean over the draws: 2.2 standard deviations at 95%. The second term is there because a table that is noisy
already moves further from the truth when noise is added again: by as much, about, as it has moved before. Percentiles
of the draws leave that out and cover too seldom. In it, the estimate is the replay of the table as it is, over the
permutations of the draws.

The refit game reads a release as the average of what a party's data may be. There sd and mean are those of draws of
what parties would have released without noise, given what they have, each valued without noise: where a party is too
small for its budget, the average hardly moves with the noise, and fresh noise alone would call it sure. Where fresh
noise moves values more than these draws do, sd is that of fresh noise, up to twice theirs: they are right for data like
that which the reading expects.

The intervals are about what the same releases would say without noise: the same job, clipping norm and directions.
Neither clipping nor the error of the game itself, its distance from what retraining would say, is in them.
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
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.solving import MOST_PLAYERS_ENUMERATED, ReleaseGame, estimate_values
from dpvalue.privacy.laws import find_law
from dpvalue.progress import Progress
from dpvalue.protocol.schedule import LEAST_WALKS
from dpvalue.streams import Purpose, stream

if TYPE_CHECKING:
    from dpvalue.values.noisy import NoisyValues

WIDTH = 2.2
"""Half of a 95% interval in standard deviations."""

_MOST_NOISE = 2.0  # what fresh noise may count, in what data may be

MOST_NAMED = 30
"""Up to so many parties are looked at one by one."""

Statistic = Callable[[Floats], Floats]
"""Takes values (..., n), and returns what is computed from them (..., m)."""


class NoiseDrawSettings(TypedDict, total=False):
    """How the draws behind intervals are made; the arguments of `Result.renoised`."""

    draws: int | None
    utility: Any
    target: str | None
    progress: bool | Progress


@dataclass(frozen=True, eq=False)
class Intervals:
    """Estimates, and between what they lie at a level; all of one shape."""

    estimate: Floats
    low: Floats
    high: Floats
    level: float


@dataclass(frozen=True, eq=False)
class NoiseDraws:
    """The values of one semivalue, and what they become under fresh noise; made by `Result.renoised`.

    Attributes:
        estimate: the values (n,).
        replayed: the values of the table as it is, by the permutations of the draws (n,).
        draws: the values of the table with fresh noise (draws, n).
        errors: the Monte Carlo errors of the values (n,).
        seed: of the Monte Carlo errors that are added to draws.
        without: the values of what parties may have released without noise (draws, n), of the refit game; None for
            others.
    """

    estimate: Floats
    replayed: Floats
    draws: Floats
    errors: Floats
    seed: int
    without: Floats | None = None

    @property
    def noise_std(self) -> Floats:
        """The standard deviation of each value due to the DP noise alone."""
        with np.errstate(invalid="ignore"):  # an infinite utility shows in the values
            return np.asarray(np.std(self.draws - self.replayed, axis=0, ddof=1))  # exactly 0 where nothing moves

    @cached_property
    def _errors(self) -> Floats:
        """Monte Carlo errors of exactly their size (draws, n)."""
        drawn = stream(self.seed, Purpose.MONTE_CARLO).standard_normal(self.draws.shape)
        return np.asarray(self.errors * ((drawn - drawn.mean(0)) / drawn.std(0, ddof=1)))

    def spread(self, statistic: Statistic) -> tuple[Floats, Floats]:
        """Return of something that is computed from values the standard deviation, and how far draws are off."""
        with np.errstate(invalid="ignore"):
            replayed = statistic(self.replayed)
            moved = statistic(self.draws + self._errors) - replayed
            std = np.asarray(moved.std(0, ddof=1))
            if self.without is None:
                return std, np.asarray(np.abs(moved.mean(0)))
            may_be = statistic(self.without + self._errors) - replayed
            own = np.asarray(may_be.std(0, ddof=1))
            return np.clip(std, own, _MOST_NOISE * own), np.asarray(np.abs(may_be.mean(0)))

    def interval(self, statistic: Statistic, level: float = 0.95) -> Intervals:
        """Return the intervals of something that is computed from values."""
        estimate = statistic(self.estimate)
        std, off = self.spread(statistic)
        half = WIDTH * quantile(level) / quantile(0.95) * std + off
        return Intervals(estimate, estimate - half, estimate + half, level)

    def values(self, level: float = 0.95) -> Intervals:
        """Return the intervals of the values."""
        return self.interval(lambda values: values, level)

    def ranks(self, level: float = 0.95) -> Intervals:
        """Return the intervals of the ranks (1 is the highest value), widened to whole numbers."""
        found = self.interval(ranks, level)
        low, high = np.floor(found.low + 1e-9), np.ceil(found.high - 1e-9)
        return Intervals(found.estimate, np.maximum(low, 1), np.minimum(high, len(self.estimate)), level)


def quantile(level: float) -> float:
    """Return how many standard deviations either way hold a share `level` of a normal distribution."""
    require_number("level", level, "above 0 and below 1", isinstance(level, float) and 0 < level < 1)
    return NormalDist().inv_cdf((1 + level) / 2)


def ranks(values: Floats) -> Floats:
    """Return the ranks of values (..., n): 1 is the highest; of equal ones the first is higher; NaN has none.

    >>> ranks(np.array([0.1, 0.3, float("nan"), 0.2])).tolist()
    [3.0, 1.0, nan, 2.0]
    """
    order = np.argsort(-values, axis=-1, kind="stable")
    return np.where(np.isnan(values), np.nan, np.argsort(order, axis=-1, kind="stable") + 1.0)


def default_draws(parties: int, walks: int) -> int:
    """Return how many draws intervals are made from, where it was not said.

    30 where up to 8 parties were valued exactly (256 coalitions), else 20; of more than 10,000 parties fewer, down
    to 4: they would take minutes.
    """
    return 30 if walks == 0 and parties <= 8 else min(20, max(4, 200_000 // parties))


def renoise(result: NoisyValues, game: ReleaseGame | None, draws: int, progress: Progress) -> dict[str, NoiseDraws]:
    """Return what values become under fresh noise, by semivalue; `game` is that of the table, None without privacy."""
    table, kinds = result.table, result.semivalues
    again, without = [], []
    if game is not None:
        # The same way as the run: all coalitions, or its permutations, as many as give each party 20 marginals.
        walks = min(result.walks, _walks_for(LEAST_WALKS, kinds, table.n)) or 2**MOST_PLAYERS_ENUMERATED
        std = torch.from_numpy(table.noise_std).to(game.rows)[:, None]
        again.append(estimate_values(game, kinds, walks, 1e-12, table.seed).estimates)
        progress("errors", 0, draws)
        for number, drawn in enumerate(_fresh_noise(result, draws), start=1):
            noisy = game.with_rows(game.rows + std * torch.from_numpy(drawn).to(std))
            again.append(estimate_values(noisy, kinds, walks, 1e-12, table.seed).estimates)
            may_be = game.without_noise(stream(table.seed, Purpose.POSSIBLE_VALUES, number))
            if may_be is not None:
                without.append(estimate_values(may_be, kinds, walks, 1e-12, table.seed).estimates)
            progress("errors", number, draws)
    found = {}
    for kind in kinds:
        own = result.estimates[kind.name]
        values = [estimates[kind.name].values for estimates in again] or [own.values] * (draws + 1)
        may_be_values = np.array([estimates[kind.name].values for estimates in without]) if without else None
        found[kind.name] = NoiseDraws(
            own.values, values[0], np.array(values[1:]), own.std_errors, table.seed, may_be_values
        )
    return found


def _walks_for(marginals: int, kinds: tuple[Semivalue, ...], n: int) -> int:
    """How many permutations give each party this many marginals, counted by their weights."""
    weights = [kind.position_weights(n) for kind in kinds]
    # Leave-one-out is not sampled. Of weights p that are 1 on average, the effective share is n / sum p^2.
    shares = [float(np.square(p).mean()) for p in weights if p[:-1].any()]
    return round(marginals * max(shares, default=1.0))


def _fresh_noise(result: NoisyValues, draws: int) -> Iterator[Floats]:
    """Yield noise of variance 1, of the law and shape of the table's."""
    table = result.table
    law, shape = find_law(table.guarantee.law), tuple(table.rows.shape)
    if not law.scalar:
        for draw in range(draws):
            yield law.sampling.numbers(stream(table.seed, Purpose.RENOISE, draw), shape) / law.sampling.std
        return
    # Tails may be heavy: the spread of 20 Laplace draws would be off by a quarter, so it is made exact.
    drawn = law.sampling.numbers(stream(table.seed, Purpose.RENOISE), (draws, *shape))
    yield from (drawn - drawn.mean(0)) / drawn.std(0, ddof=1)
