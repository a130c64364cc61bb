"""What a valuation found: values per semivalue, their errors, and what was spent to find them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import Utility, as_utility
from dpvalue.display import by_value, counted, extremes, html_table
from dpvalue.engine.base import Engine
from dpvalue.errors import DpvalueError, require_choice, require_count
from dpvalue.privacy.budget import Guarantee
from dpvalue.progress import Progress, reporting
from dpvalue.valuation.additive import AdditiveGame
from dpvalue.valuation.comparison import Comparison, compare, find, groups, place
from dpvalue.valuation.estimates import FIELDS, Estimate
from dpvalue.valuation.frames import result_frame
from dpvalue.valuation.intervals import Intervals, Renoised, Renoising, default_draws, renoise
from dpvalue.valuation.payouts import Shares, share_out
from dpvalue.valuation.plots import ResultPlots
from dpvalue.valuation.refit import RefitGame
from dpvalue.valuation.replay import TableGame
from dpvalue.valuation.saved import FILE
from dpvalue.valuation.semivalues import Semivalue
from dpvalue.valuation.verdict import Verdict, judge

if TYPE_CHECKING:
    import pandas

    from dpvalue.valuation.table import Table


@dataclass(frozen=True, eq=False)
class Result:
    """Data values of the parties; made by `dpvalue.value`, `Table.value` or `revalue`.

    Formal guarantee: everything in it is post-processing of the releases; `guarantee` says what they spent.

    Attributes:
        table: the private table.
        semivalues: which were estimated, in order.
        estimates: per semivalue the values, Monte Carlo errors and counts.
        walks: how many permutations were valued; 0 when no sampling was needed.
        converged: whether a replay met its tolerance; None for the other schedules.
        utility: the public utility of the run; None after loading, as files hold no rows.
        engine: where the run was computed.
        played: the game that was valued, for intervals to play again; None to make it from the table.

    Example:
        >>> x, x_test = np.linspace(-2, 2, 240)[:, None], np.linspace(-2, 2, 50)[:, None]
        >>> sites = np.array(["north", "east", "south", "west"])[np.arange(240) % 4]
        >>> y = (x[:, 0] > 0) != (sites == "west")  # the labels of west are wrong
        >>> train, test = (x, y.astype(int)), (x_test, (x_test[:, 0] > 0).astype(int))
        >>> privacy = dpv.Privacy(8.0, unit="record")
        >>> result = dpv.value(train, test, groups=sites, privacy=privacy, noise="fast", progress=False)
        >>> len(result), list(result), "west" in result
        (4, ['east', 'north', 'south', 'west'], True)
        >>> min(result, key=lambda party: result[party]["shapley"])
        'west'
    """

    table: Table
    semivalues: tuple[Semivalue, ...]
    estimates: dict[str, Estimate]
    walks: int
    converged: bool | None
    utility: Utility | None = field(repr=False)
    engine: Engine = field(repr=False)
    played: TableGame | AdditiveGame | RefitGame | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """The number of parties."""
        return self.table.n

    def __iter__(self) -> Iterator[str | int]:
        """The names of the parties, in the order of the arrays in `values`."""
        return iter(self.table.names)

    def __contains__(self, party: object) -> bool:
        return isinstance(party, str | Integral) and find(self.table.names, party) is not None

    def __getitem__(self, party: str | int) -> dict[str, float]:
        at = place(self.table.names, party)
        return {name: float(values[at]) for name, values in self.values.items()}

    def keys(self) -> tuple[str | int, ...]:
        """Return the names of the parties.

        Returns:
            the names, in the order of the arrays in `values`.

        Example:
            >>> result.keys()  # `result` as in the example of `dpvalue.Result`
            ('east', 'north', 'south', 'west')
        """
        return self.table.names

    def items(self) -> list[tuple[str | int, dict[str, float]]]:
        """Return each party's name and what `result[name]` returns.

        Returns:
            a pair for each party.

        Example:
            >>> [name for name, value in result.items() if value["shapley"] < 0]  # `result` as in `dpvalue.Result`
            ['west']
        """
        return [(name, self[name]) for name in self]

    @property
    def values(self) -> dict[str, Floats]:
        """The values of the parties, by semivalue."""
        return {name: estimate.values for name, estimate in self.estimates.items()}

    @property
    def std_errors(self) -> dict[str, Floats]:
        """The Monte Carlo errors of the permutations alone, by semivalue; the part of the DP noise is `noise_std()`."""
        return {name: estimate.std_errors for name, estimate in self.estimates.items()}

    @property
    def counts(self) -> dict[str, Ints]:
        """How many marginals of non-zero weight each value is made of, by semivalue."""
        return {name: estimate.counts for name, estimate in self.estimates.items()}

    @property
    def sample_variances(self) -> dict[str, Floats]:
        """The paper's s_j^2: the variance of the mean as if marginals were independent, by semivalue."""
        return {name: estimate.sample_variances for name, estimate in self.estimates.items()}

    def name_of(self, semivalue: str | None) -> str:
        """Return the name of a semivalue of this result; None is its first. Raises for one that it does not have."""
        name = semivalue or self.semivalues[0].name
        require_choice("semivalue", name, self.estimates)
        return name

    @property
    def plot(self) -> ResultPlots:
        """Pictures: `plot.values()`, `plot.curve()`, `plot.histogram()`, `plot.convergence()`; each returns Axes."""
        return ResultPlots(self)

    @property
    def guarantee(self) -> Guarantee:
        """What was spent, in numbers; str() of it in words."""
        return self.table.guarantee

    def renoised(
        self,
        draws: int | None = None,
        utility: Any = None,
        target: str | None = None,
        progress: bool | Progress = False,
    ) -> dict[str, Renoised]:
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
                game = self.game(utility, target) if self.guarantee.private else None
                self._renoised[key] = utility, renoise(self, game, draws, tell)
        return self._renoised[key][1]

    @cached_property
    def _renoised(self) -> dict[tuple[int, int, str | None], tuple[Any, dict[str, Renoised]]]:
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

    def intervals(self, semivalue: str | None = None, level: float = 0.95, **again: Unpack[Renoising]) -> Intervals:
        """Return the interval of each value: what the same releases would say without noise.

        The rule, and what is not in it, is in `dpvalue.valuation.intervals`.

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
        self, total: float, semivalue: str | None = None, level: float = 0.95, **again: Unpack[Renoising]
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
        **again: Unpack[Renoising],
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
        self, semivalue: str | None = None, level: float = 0.95, **again: Unpack[Renoising]
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
        self, pay: float | None = None, semivalue: str | None = None, level: float = 0.95, **again: Unpack[Renoising]
    ) -> Verdict:
        """Return what the values say, in plain sentences: who helps, who harms, who cannot be told apart.

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
            west makes the model worse: its value is below zero by more than the noise.
        """
        return judge(self.table, self._of(semivalue, again), level, pay)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made again from the table and the utility: games hold functions that cannot be pickled."""
        return {name: vars(self)[name] for name in self.__dataclass_fields__} | {"played": None}

    def _of(self, semivalue: str | None, again: Renoising) -> Renoised:
        return self.renoised(**again)[self.name_of(semivalue)]

    def game(self, utility: Any = None, target: str | None = None) -> TableGame | AdditiveGame | RefitGame:
        """Return the game that is valued: that of the table, under the utility of the run or another."""
        return self._own_game if utility is None else self.table.game(as_utility(utility, target), self.engine)

    @cached_property
    def _own_game(self) -> TableGame | AdditiveGame | RefitGame:
        if self.played is not None:
            return self.played
        if self.utility is None:
            raise DpvalueError("utility must be given: files hold no rows, so a loaded result does not have it")
        return self.table.game(self.utility, self.engine)

    def frame(
        self, noise: bool = False, pay: float | None = None, level: float = 0.95, **again: Unpack[Renoising]
    ) -> pandas.DataFrame:
        """Return a DataFrame: party, its size, each semivalue with its errors, and the rank by the first (1 is best).

        `size` is the public number of records (of persons, where these are protected), `<semivalue>_per_record` (or
        `_per_person`) the value over it, which is left out where no party has more than one. `<semivalue>_mc_error` is
        the Monte Carlo error of the permutations. With `noise`, `<semivalue>_noise` is the usually far larger standard
        deviation due to the DP noise, `_low` and `_high` are the edges of the interval at `level`, and `rank_low` and
        `rank_high` those of the rank. With `pay`, `payout` is the party's share of that total by the first semivalue,
        with `noise` also `payout_low` and `payout_high`.

        Args:
            noise: add the columns of the DP noise, of intervals and of ranks; this takes a while.
            pay: a total; the frame then says what each party gets of it.
            level: of the intervals, above 0 and below 1.
            **again: as in `renoised`: draws, utility, target, progress.

        Returns:
            one row for each party, in the order of `values`.

        Raises:
            DpvalueError: a total that is not positive, or that no value can share.

        Example:
            >>> list(result.frame().columns)  # `result` as in the example of `dpvalue.Result`
            ['party', 'size', 'shapley', 'shapley_mc_error', 'shapley_per_record', 'rank']
        """
        return result_frame(self, self.renoised(**again) if noise else None, level, pay)

    def top(self, k: int, semivalue: str | None = None, lowest: bool = False) -> pandas.DataFrame:
        """Return the rows of `frame()` of the k parties with the highest (or lowest) values, best (or worst) first.

        Args:
            k: how many parties.
            semivalue: by which semivalue; None is the first.
            lowest: take the lowest values instead of the highest.

        Returns:
            k rows of `frame()`.

        Raises:
            DpvalueError: a count below 1, or an unknown semivalue.

        Example:
            >>> result.top(1, lowest=True)["party"].tolist()  # `result` as in the example of `dpvalue.Result`
            ['west']
        """
        require_count("k", k)
        name = self.name_of(semivalue)
        return self.frame().sort_values(name, ascending=lowest, kind="stable").head(k).reset_index(drop=True)

    def revalue(self, utility: Any, **settings: Any) -> Result:
        """Return other values from the same table, free: no private data is read.

        Args:
            utility: the public set to value by; another than before, if wanted.
            **settings: as in `Table.value`: semivalues, permutations, tolerance, target, engine, seed, progress.

        Returns:
            another result, of the same table.

        Raises:
            DpvalueError: a utility that does not fit the model.

        Example:
            >>> again = result.revalue(test, semivalues="banzhaf", progress=False)  # names as in `dpvalue.Result`
            >>> min(again, key=lambda party: again[party]["banzhaf"])
            'west'
        """
        return self.table.value(utility, **settings)

    def save(self, path: str | Path) -> None:
        """Write the result and its table to a file; `dpvalue.load` reads it back. It holds no rows of any data set.

        Args:
            path: the file; one that is there is replaced.

        Raises:
            DpvalueError: a path that cannot be written.

        Example:
            >>> result.save("values.safetensors")  # `result` as in the example of `dpvalue.Result`
            >>> bool((dpv.load("values.safetensors").values["shapley"] == result.values["shapley"]).all())
            True
        """
        header, tensors = self.table.parts()
        header["result"] = {
            "semivalues": [kind.name for kind in self.semivalues],
            "walks": self.walks,
            "converged": self.converged,
            "engine": {"dtype": str(self.engine.torch_dtype).removeprefix("torch.")},
        }
        for number, kind in enumerate(self.semivalues):
            for name in FIELDS:
                tensors[f"{name}.{number}"] = torch.from_numpy(getattr(self.estimates[kind.name], name))
        FILE.write(Path(path), header, tensors)

    def __repr__(self) -> str:
        kinds = "; ".join(f"{name}: {extremes(self.table.names, values)}" for name, values in self.values.items())
        return f"Result({len(self)} parties, {kinds}, {self._how})"

    def _repr_html_(self) -> str:
        rows = [
            [self.table.names[place], *(float(values[place]) for values in self.values.values())]
            for place in by_value(self.values[self.semivalues[0].name])
        ]
        return html_table(f"{len(self)} parties, {self._how}", ["party", *self.values], rows)

    @property
    def _how(self) -> str:
        """How the values were made, in a few words."""
        walked = counted(self.walks, "permutation") if self.walks else "exact"
        return f"{self.table.game_name}, {walked}, {self.guarantee.terms}"
