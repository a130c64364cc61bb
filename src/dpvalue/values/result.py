"""The result of a valuation: values per semivalue, their errors, and the guarantee; also as a DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import Utility, as_utility
from dpvalue.display import by_value, counted, extremes, html_table
from dpvalue.engine.engines import Engine
from dpvalue.errors import DpvalueError, require_choice, require_count, require_positive
from dpvalue.games.estimates import FIELDS, Estimate
from dpvalue.games.semivalues import Semivalue
from dpvalue.games.solving import ReleaseGame
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.values.comparison import find, place
from dpvalue.values.intervals import NoiseDraws, NoiseDrawSettings
from dpvalue.values.noisy import NoisyValues
from dpvalue.values.payouts import require_payable, share_out, split
from dpvalue.values.plots import ResultPlots

if TYPE_CHECKING:
    import pandas

    from dpvalue.methods.leaf_coverage import CellHolding
    from dpvalue.values.table import Table


@dataclass(frozen=True, eq=False)
class Result(NoisyValues):
    """Data values of the parties; made by `dpvalue.value`, `Table.value` or `revalue`.

    Formal guarantee: all content is post-processing of the releases; `guarantee` states what they spent.

    A result is a mapping from party names: `result["north"]` is the party's value by each semivalue; `len`, `in`,
    iteration, `keys()` and `items()` use the names. A whole number may be given as text. `values` holds the same
    numbers as arrays, by semivalue. A pickle holds the public rows; a file written by `save` does not.

    Attributes:
        table: the private table.
        semivalues: the estimated semivalues, in order.
        estimates: values, Monte Carlo errors and counts, by semivalue.
        walks: number of valued permutations; 0 for exact values.
        converged: whether a replay met its tolerance; None for the other schedules.
        utility: the public utility of the run; None after loading, as files hold no rows.
        engine: the engine of the run.
        valued_game: the game of the values, for intervals; None to make it from the table.

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
    valued_game: ReleaseGame | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """The number of parties."""
        return self.table.n

    def __iter__(self) -> Iterator[str | int]:
        """The names of the parties, in the order of the arrays in `values`."""
        return iter(self.table.names)

    def __contains__(self, party: object) -> bool:
        return isinstance(party, str | Integral) and find(self.table.names, party) is not None

    def __getitem__(self, party: str | int) -> dict[str, float]:
        index = place(self.table.names, party)
        return {name: float(values[index]) for name, values in self.values.items()}

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
        """Return the name of each party with `result[name]`.

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
        """The Monte Carlo errors of the permutations, by semivalue; `noise_std()` is the part of the DP noise."""
        return {name: estimate.std_errors for name, estimate in self.estimates.items()}

    @property
    def counts(self) -> dict[str, Ints]:
        """The number of marginals of non-zero weight behind each value, by semivalue."""
        return {name: estimate.counts for name, estimate in self.estimates.items()}

    @property
    def sample_variances(self) -> dict[str, Floats]:
        """The paper's s_j^2, the variance of the mean for independent marginals, by semivalue."""
        return {name: estimate.sample_variances for name, estimate in self.estimates.items()}

    def name_of(self, semivalue: str | None) -> str:
        """Return the name of a semivalue of this result; None stands for its first. Raise for an unknown one."""
        name = semivalue or self.semivalues[0].name
        require_choice("semivalue", name, self.estimates)
        return name

    @property
    def plot(self) -> ResultPlots:
        """Plots: `plot.values()`, `plot.curve()`, `plot.histogram()`, `plot.convergence()`; each returns Axes."""
        return ResultPlots(self)

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the releases; str() returns it as a sentence."""
        return self.table.guarantee

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the game: it holds functions that cannot be pickled, and is made again from table and utility."""
        return {name: vars(self)[name] for name in self.__dataclass_fields__} | {"valued_game": None}

    def game(self, utility: Any = None, target: str | None = None) -> ReleaseGame:
        """Return the game of the table, under the utility of the run or another one."""
        return self._game if utility is None else self.table.game(as_utility(utility, target), self.engine)

    @cached_property
    def _game(self) -> ReleaseGame:
        if self.valued_game is not None:
            return self.valued_game
        if self.utility is None:
            raise DpvalueError("utility must be given: a loaded result has none, because files hold no rows")
        return self.table.game(self.utility, self.engine)

    def frame(
        self, noise: bool = False, pay: float | None = None, level: float = 0.95, **again: Unpack[NoiseDrawSettings]
    ) -> pandas.DataFrame:
        """Return a DataFrame: party, size, each semivalue with its errors, and the rank by the first (1 is best).

        `size` is the public number of records (of persons for unit "person"). `<semivalue>_per_record` (or
        `_per_person`) is the value divided by it, if some party has more than one. `<semivalue>_mc_error` is the Monte
        Carlo error of the permutations. With `noise`, `<semivalue>_noise` is the standard deviation due to the DP
        noise, which is usually far larger; `_low` and `_high` are the ends of the interval at `level`, and `rank_low`
        and `rank_high` those of the rank. With `pay`, `payout` is the party's part of that total by the first
        semivalue, with `noise` also `payout_low` and `payout_high`.

        Args:
            noise: add the columns of DP noise, intervals and ranks; this takes some time.
            pay: a total; adds the payouts.
            level: of the intervals, above 0 and below 1.
            **again: as in `noise_draws`: draws, utility, target, progress.

        Returns:
            one row for each party, in the order of `values`.

        Raises:
            DpvalueError: a total that is not positive, or no positive value.

        Example:
            >>> list(result.frame().columns)  # `result` as in the example of `dpvalue.Result`
            ['party', 'size', 'shapley', 'shapley_mc_error', 'shapley_per_record', 'rank']
        """
        return result_frame(self, self.noise_draws(**again) if noise else None, level, pay)

    def top(self, k: int, semivalue: str | None = None, lowest: bool = False) -> pandas.DataFrame:
        """Return the rows of `frame()` of the k parties with the highest (or lowest) values, best (or worst) first.

        Args:
            k: number of parties.
            semivalue: name of the semivalue; None stands for the first.
            lowest: return the lowest values instead of the highest.

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

    def coverage(self) -> tuple[CellHolding, ...]:
        """Return which records parties mostly hold themselves, where releases tell: those of `model="trees"`.

        A statement holds for all parties and cells together at 95%, against the noise. Of more than 30 parties there is
        none.

        Returns:
            the statements, by party; str() of each is a sentence.

        Example:
            >>> result.coverage()  # `result` as in the example of `dpvalue.Result`, whose releases are no counts
            ()
        """
        return self.table.method.coverage(self.table)

    def revalue(self, utility: Any, **settings: Any) -> Result:
        """Return other values of the same table; it spends nothing, as no private data is read.

        Args:
            utility: the public set; it may differ from that of the run.
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
        """Write the result and its table to a file, which `dpvalue.load` reads. It holds no rows of any data set.

        Args:
            path: the file; an existing one is replaced.

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
        self.table.archive.write(Path(path), header, tensors)

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
        """The game, the number of permutations and the guarantee, as short text."""
        walks = counted(self.walks, "permutation") if self.walks else "exact"
        return f"{self.table.method.game_name}, {walks}, {self.guarantee.terms}"


def result_frame(
    result: Result, draws: dict[str, NoiseDraws] | None, level: float, pay: float | None
) -> pandas.DataFrame:
    """Return a result as a DataFrame; without `draws` there is nothing in it of noise and intervals."""
    import pandas as pd

    table = result.table
    columns: dict[str, Any] = {"party": list(table.names), "size": table.sizes}
    for name, estimate in result.estimates.items():
        columns[name] = estimate.values
        columns[f"{name}_mc_error"] = estimate.std_errors
        if draws is not None:
            interval = draws[name].values(level)
            columns[f"{name}_noise"] = draws[name].noise_std
            columns |= {f"{name}_low": interval.low, f"{name}_high": interval.high}
        if (table.sizes > 1).any():
            columns[f"{name}_per_{table.counted}"] = per_size(result, name)
    frame = pd.DataFrame(columns)
    first = result.semivalues[0].name
    frame["rank"] = ranks(frame[first])
    if draws is not None:
        interval = draws[first].ranks(level)
        for end, edge in (("low", interval.low), ("high", interval.high)):
            frame[f"rank_{end}"] = pd.Series(edge).astype("Int64")
    if pay is not None:
        if draws is None:
            require_positive("pay", pay)
            require_payable(result.values[first])
            frame["payout"] = split(result.values[first], pay)
        else:
            payouts = share_out(table.names, draws[first], pay, level).frame()
            frame = frame.assign(**{name: payouts[name] for name in ("payout", "payout_low", "payout_high")})
    return frame


def ranks(values: pandas.Series) -> pandas.Series:
    """Return the rank of each value, 1 for the highest; ties by position."""
    return values.rank(ascending=False, method="first").astype("Int64")


def per_size(result: Result, name: str) -> Floats:
    """Return the value of each party divided by its number of records (or persons); NaN for an empty party."""
    sizes = result.table.sizes.astype(np.float64)
    return np.asarray(np.divide(result.values[name], sizes, out=np.full(len(sizes), np.nan), where=sizes > 0))
