"""What can be said of values under noise: how sure they are, who can be told apart, and how a total is shared."""

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
from dpvalue.values.intervals import Intervals, NoiseDraws, NoiseDrawSettings, default_draws, renoise
from dpvalue.values.payouts import Shares, share_out
from dpvalue.values.verdict import Verdict, judge

if TYPE_CHECKING:
    from dpvalue.values.table import Table


class NoisyValues(ABC):
    """Values of a private table, and the game that gave them; `Result` is one.

    Formal guarantee: everything here is post-processing of the releases; no private data is read.
    """

    table: Table
    semivalues: tuple[Semivalue, ...]
    estimates: dict[str, Estimate]
    walks: int
    engine: Engine

    @abstractmethod
    def name_of(self, semivalue: str | None) -> str:
        """Return the name of a semivalue; None is the first."""

    @abstractmethod
    def game(self, utility: Any = None, target: str | None = None) -> Any:
        """Return the game that is valued."""

    def renoised(
        self,
        draws: int | None = None,
        utility: Any = None,
        target: str | None = None,
        progress: bool | Progress = False,
    ) -> dict[str, NoiseDraws]:
        """Return what the values become under fresh noise, by semivalue: what all errors and intervals are made from.

        Fresh noise of the table's size is added to the table, which is then replayed over the same permutations, all
        that `draws` times. Free: no private data is read. An estimate, as the table that it perturbs is noisy already;
        for the paper's schedules it is that of a replay of their final table. It is made once and kept.

        Args:
            draws: how many times; at least 2. None: 30 where up to 8 parties were valued exactly, else 20; of more
                than 10,000 parties fewer.
            utility: the utility of the run, needed again only after loading.
            target: the label column when utility is a DataFrame.
            progress: show a bar on a terminal; or a callable (stage, done, total).

        Returns:
            what the values become, by the name of the semivalue.

        Raises:
            DpvalueError: a count of draws below 2, or no utility after loading.

        Example:
            >>> result.renoised(draws=4)["shapley"].draws.shape  # `result` as in the example of `dpvalue.Result`
            (4, 4)
        """
        draws = default_draws(self.table.n, self.walks) if draws is None else draws
        require_count("draws", draws, least=2)
        key = draws, id(utility), target
        if key not in self._renoised:
            with self.engine.threading(), reporting(progress) as tell:
                game = self.game(utility, target) if self.table.guarantee.private else None
                self._renoised[key] = utility, renoise(self, game, draws, tell)
        return self._renoised[key][1]

    @cached_property
    def _renoised(self) -> dict[tuple[int, int, str | None], tuple[Any, dict[str, NoiseDraws]]]:
        """What was drawn, beside the utility: as long as that is kept, no other has its id."""
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
            draws: how many times the table is renoised; at least 2.
            utility: the utility of the run, needed again only after loading.
            target: the label column when utility is a DataFrame.
            progress: show a bar on a terminal; or a callable (stage, done, total).

        Returns:
            the standard deviation of each party's value, by the name of the semivalue.

        Raises:
            DpvalueError: as `renoised`.

        Example:
            >>> bool((result.noise_std(draws=4)["shapley"] > 0).all())  # `result` as in the example of `dpvalue.Result`
            True
        """
        return {name: found.noise_std for name, found in self.renoised(draws, utility, target, progress).items()}

    def intervals(
        self, semivalue: str | None = None, level: float = 0.95, **again: Unpack[NoiseDrawSettings]
    ) -> Intervals:
        """Return the interval of each value: what the same releases would say without noise.

        The rule, and what is not in it, is in `dpvalue.values.intervals`.

        Args:
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `renoised`: draws, utility, target, progress.

        Returns:
            the values with the edges of their intervals, in the order of the parties.

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
        """Return what each party gets of a total that is shared in proportion to values, with intervals.

        Payouts sum to the total. A value below zero counts as zero: whoever harms gets nothing, and pays nothing.

        Args:
            total: what is shared; positive.
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `renoised`: draws, utility, target, progress.

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
        """Return how two parties' values differ, and whether by more than the noise; str() of it is a sentence.

        Args:
            first: the name of a party.
            second: the name of another.
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the interval, above 0 and below 1.
            **again: as in `renoised`: draws, utility, target, progress.

        Returns:
            the difference with its interval, and the confidence that it is not zero.

        Raises:
            DpvalueError: a party that there is not, or the same party twice.

        Example:
            >>> result.compare("east", "west").told_apart  # `result` as in the example of `dpvalue.Result`
            True
        """
        return compare(self.table.names, self._of(semivalue, again), first, second, level)

    def groups(
        self, semivalue: str | None = None, level: float = 0.95, **again: Unpack[NoiseDrawSettings]
    ) -> tuple[tuple[str | int, ...], ...]:
        """Return the parties from the highest value down, in groups no two members of which can be told apart.

        A party joins the group of the one above it unless the interval of its difference from some member leaves out 0;
        then it begins the next. It can be told from that member, but maybe not from all of the group above.

        Args:
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `renoised`: draws, utility, target, progress.

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
        """Return what the values say, in plain sentences: who helps, who harms, who cannot be distinguished.

        Of more than 30 parties it says which to look at first, and how many of those are likely to be wrong. With
        `pay`, up to 30 parties are told what they would get of that total. The error of the game itself, its distance
        from retraining, is not in it.

        Args:
            pay: a total; the verdict then says how it would be shared.
            semivalue: the name of a semivalue of this result; None is its first.
            level: of the intervals, above 0 and below 1.
            **again: as in `renoised`: draws, utility, target, progress.

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
        return self.renoised(**again)[self.name_of(semivalue)]
