"""Statements on noisy values: intervals, comparisons, groups, payouts and verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

from dpvalue.arrays import Floats
from dpvalue.engine.engines import Engine
from dpvalue.errors import require_count
from dpvalue.games.estimates import Estimate
from dpvalue.games.semivalues import Semivalue
from dpvalue.progress import Progress, reporting
from dpvalue.values.comparison import Comparison, compare, groups
from dpvalue.values.intervals import Intervals, NoiseDraws, NoiseDrawSettings, default_draws, draw_noise
from dpvalue.values.payouts import Shares, share_out
from dpvalue.values.verdict import Verdict, judge

if TYPE_CHECKING:
    from dpvalue.values.table import Table


class NoisyValues(ABC):
    """The values of a private table, with the game that they come from; the base of `Result`.

    Formal guarantee: all methods are post-processing of the releases; no private data is read.
    """

    table: Table
    semivalues: tuple[Semivalue, ...]
    estimates: dict[str, Estimate]
    walks: int
    engine: Engine

    @abstractmethod
    def name_of(self, semivalue: str | None) -> str:
        """Return the name of a semivalue; None stands for the first."""

    @abstractmethod
    def game(self, utility: Any = None, target: str | None = None) -> Any:
        """Return the game of the values."""

    def noise_draws(
        self,
        draws: int | None = None,
        utility: Any = None,
        target: str | None = None,
        progress: bool | Progress = False,
    ) -> dict[str, NoiseDraws]:
        """Return the values with fresh noise, by semivalue; all errors and intervals are made from them.

        Each draw adds fresh noise of the same size to the table and replays it over the same permutations. It spends
        nothing: no private data is read. It is an estimate, as the table is noisy already; for the paper's schedules it
        replays their final table. The draws are computed once and stored.

        Args:
            draws: number of draws; at least 2. None: 30 for up to 8 parties with exact values, otherwise 20; fewer
                above 10,000 parties.
            utility: the utility of the run, needed again only after loading.
            target: the label column when utility is a DataFrame.
            progress: show a bar on a terminal; or a callable (stage, done, total).

        Returns:
            the draws, by the name of the semivalue.

        Raises:
            DpvalueError: fewer than 2 draws, or no utility after loading.

        Example:
            >>> result.noise_draws(draws=4)["shapley"].draws.shape  # `result` as in the example of `dpvalue.Result`
            (4, 4)
        """
        draws = default_draws(self.table.n, self.walks) if draws is None else draws
        require_count("draws", draws, least=2)
        key = draws, id(utility), target
        if key not in self._stored_draws:
            with self.engine.threading(), reporting(progress) as report_progress:
                game = self.game(utility, target) if self.table.guarantee.private else None
                self._stored_draws[key] = utility, draw_noise(self, game, draws, report_progress)
        return self._stored_draws[key][1]

    @cached_property
    def _stored_draws(self) -> dict[tuple[int, int, str | None], tuple[Any, dict[str, NoiseDraws]]]:
        """The draws, with their utility: while it is stored, no other object has its id."""
        return {}

    def noise_std(
        self,
        draws: int | None = None,
        utility: Any = None,
        target: str | None = None,
        progress: bool | Progress = False,
    ) -> dict[str, Floats]:
        """Return the standard deviation of each value due to the DP noise, by semivalue.

        Args:
            draws: number of draws; at least 2.
            utility: the utility of the run, needed again only after loading.
            target: the label column when utility is a DataFrame.
            progress: show a bar on a terminal; or a callable (stage, done, total).

        Returns:
            the standard deviation of each party's value, by the name of the semivalue.

        Raises:
            DpvalueError: as `noise_draws`.

        Example:
            >>> bool((result.noise_std(draws=4)["shapley"] > 0).all())  # `result` as in the example of `dpvalue.Result`
            True
        """
        return {
            name: draws_of_kind.noise_std
            for name, draws_of_kind in self.noise_draws(draws, utility, target, progress).items()
        }

    def intervals(
        self, semivalue: str | None = None, level: float = 0.95, **again: Unpack[NoiseDrawSettings]
    ) -> Intervals:
        """Return the interval of each value: what the same releases would give without noise.

        `dpvalue.values.intervals` states the rule and the errors that it excludes.

        Args:
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `noise_draws`: draws, utility, target, progress.

        Returns:
            the values with the ends of their intervals, in the order of the parties.

        Raises:
            DpvalueError: an unknown semivalue, a level out of range, or no utility after loading.

        Example:
            >>> found = result.intervals()  # `result` as in the example of `dpvalue.Result`
            >>> bool((found.low < found.estimate).all())
            True
        """
        return self._of(semivalue, again).values(level)

    def shares(
        self, total: float, semivalue: str | None = None, level: float = 0.95, **again: Unpack[NoiseDrawSettings]
    ) -> Shares:
        """Return the payout of each party for a total shared in proportion to values, with intervals.

        Payouts sum to the total. A negative value counts as zero: the party gets nothing, and pays nothing.

        Args:
            total: the total; positive.
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `noise_draws`: draws, utility, target, progress.

        Returns:
            the payouts with their intervals.

        Raises:
            DpvalueError: a total that is not positive, or no value above zero.

        Example:
            >>> shares = result.shares(1000)  # `result` as in the example of `dpvalue.Result`
            >>> round(float(shares.payouts.sum())), shares.payouts[3]
            (1000, np.float64(0.0))
        """
        return share_out(self.table.names, self._of(semivalue, again), total, level)

    def compare(
        self,
        first: str | int,
        second: str | int,
        semivalue: str | None = None,
        level: float = 0.95,
        **again: Unpack[NoiseDrawSettings],
    ) -> Comparison:
        """Return the difference of two parties' values, and whether it exceeds the noise; str() gives a sentence.

        Args:
            first: the name of a party.
            second: the name of another party.
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the interval, above 0 and below 1.
            **again: as in `noise_draws`: draws, utility, target, progress.

        Returns:
            the difference with its interval, and the confidence that it is not zero.

        Raises:
            DpvalueError: an unknown party, or the same party twice.

        Example:
            >>> result.compare("east", "west").distinguishable  # `result` as in the example of `dpvalue.Result`
            True
        """
        return compare(self.table.names, self._of(semivalue, again), first, second, level)

    def groups(
        self, semivalue: str | None = None, level: float = 0.95, **again: Unpack[NoiseDrawSettings]
    ) -> tuple[tuple[str | int, ...], ...]:
        """Return the parties from the highest value down, in groups whose members cannot be told apart.

        A party joins the group above it unless the interval of its difference from a member excludes 0; then it begins
        the next group. It differs from that member, but maybe not from all members of the group above.

        Args:
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `noise_draws`: draws, utility, target, progress.

        Returns:
            the names of the parties, group by group.

        Raises:
            DpvalueError: an unknown semivalue, a level out of range, or no utility after loading.

        Example:
            >>> result.groups()[-1]  # `result` as in the example of `dpvalue.Result`
            ('west',)
        """
        return groups(self.table.names, self._of(semivalue, again), level)

    def verdict(
        self,
        pay: float | None = None,
        semivalue: str | None = None,
        level: float = 0.95,
        **again: Unpack[NoiseDrawSettings],
    ) -> Verdict:
        """Return the conclusions from the values, in sentences: which parties help or harm, and which are similar.

        Above 30 parties it names the parties to inspect first, and the expected number of corrupted ones among them.
        With `pay`, it states the payouts of up to 30 parties. It excludes the error of the game itself, which is its
        distance from retraining.

        Args:
            pay: a total; the verdict then states how it would be shared.
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `noise_draws`: draws, utility, target, progress.

        Returns:
            the sentences, and the parties that they are about.

        Raises:
            DpvalueError: an unknown semivalue, a level out of range, or no utility after loading.

        Example:
            >>> print(result.verdict().sentences[1])  # `result` as in the example of `dpvalue.Result`
            west harms the model: its value is below zero by more than the noise.
        """
        return judge(self.table, self._of(semivalue, again), level, pay)

    def _of(self, semivalue: str | None, again: NoiseDrawSettings) -> NoiseDraws:
        return self.noise_draws(**again)[self.name_of(semivalue)]
