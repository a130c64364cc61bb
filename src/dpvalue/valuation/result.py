"""What a valuation found: values per semivalue, their errors, and what was spent to find them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import Utility, as_utility
from dpvalue.engine.base import Engine
from dpvalue.errors import DpvalueError, require_choice, require_count
from dpvalue.privacy.budget import Guarantee
from dpvalue.privacy.laws import law_named
from dpvalue.progress import Progress, reporting
from dpvalue.releasing.schedule import LEAST_WALKS
from dpvalue.streams import Purpose, stream
from dpvalue.valuation.additive import ADDITIVE, AdditiveGame
from dpvalue.valuation.estimates import FIELDS, Estimate
from dpvalue.valuation.games import MOST_PLAYERS_ENUMERATED, estimate_values
from dpvalue.valuation.plots import ResultPlots
from dpvalue.valuation.replay import TableGame
from dpvalue.valuation.saved import FILE
from dpvalue.valuation.semivalues import Semivalue

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
    """

    table: Table
    semivalues: tuple[Semivalue, ...]
    estimates: dict[str, Estimate]
    walks: int
    converged: bool | None
    utility: Utility | None = field(repr=False)
    engine: Engine = field(repr=False)

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

    def noise_std(
        self, draws: int = 20, utility: Any = None, target: str | None = None, progress: bool | Progress = False
    ) -> dict[str, Floats]:
        """Return the standard deviation of each value due to the DP noise, by semivalue.

        Fresh noise of the table's size is added to the table, which is then replayed over the same permutations, all
        that `draws` times. Free: no private data is read. An estimate, as the table that it perturbs is noisy already;
        for the paper's schedules it is that of a replay of their final table.

        Args:
            draws: how many times; at least 2.
            utility: the utility of the run, needed again only after loading.
            target: the label column when utility is a DataFrame.
            progress: show a bar on a terminal; or a callable (stage, done, total).
        """
        require_count("draws", draws, least=2)
        if not self.guarantee.private:
            return {kind.name: np.zeros(self.table.n) for kind in self.semivalues}
        again = []
        with self.engine.threading(), reporting(progress) as tell:
            game = self.game(utility, target)
            std = torch.from_numpy(self.table.noise_std).to(game.rows)[:, None]
            # The same way as the run: all coalitions, or its permutations, as many as give each party 20 marginals.
            walks = min(self.walks, self._walks_for(LEAST_WALKS)) or 2**MOST_PLAYERS_ENUMERATED
            for number, drawn in enumerate(self._fresh_noise(draws), start=1):
                noisy = game.with_rows(game.rows + std * torch.from_numpy(drawn).to(std))
                again.append(estimate_values(noisy, self.semivalues, walks, 1e-12, self.table.seed).estimates)
                tell("errors", number, draws)
        names = [kind.name for kind in self.semivalues]
        return {name: np.std([estimates[name].values for estimates in again], axis=0, ddof=1) for name in names}

    def game(self, utility: Any = None, target: str | None = None) -> TableGame | AdditiveGame:
        """Return the game that is valued: that of the table, under the utility of the run or another."""
        return self._own_game if utility is None else self.table.game(as_utility(utility, target), self.engine)

    @cached_property
    def _own_game(self) -> TableGame | AdditiveGame:
        if self.utility is None:
            raise DpvalueError("utility must be given: files hold no rows, so a loaded result does not have it")
        return self.table.game(self.utility, self.engine)

    def _walks_for(self, marginals: int) -> int:
        """How many permutations give each party this many marginals, counted by their weights."""
        weights = [kind.position_weights(self.table.n) for kind in self.semivalues]
        # Leave-one-out is not sampled. Of weights p that are 1 on average, the effective share is n / sum p^2.
        shares = [float(np.square(p).mean()) for p in weights if p[:-1].any()]
        return round(marginals * max(shares, default=1.0))

    def _fresh_noise(self, draws: int) -> Iterator[Floats]:
        """Yield noise of variance 1, of the law and shape of the table's."""
        law, shape, seed = law_named(self.guarantee.law), tuple(self.table.rows.shape), self.table.seed
        if not law.scalar:
            for draw in range(draws):
                yield law.sampling.numbers(stream(seed, Purpose.RENOISE, draw), shape) / law.sampling.std
            return
        # Tails may be heavy: the spread of 20 Laplace draws would be off by a quarter, so it is made exact.
        drawn = law.sampling.numbers(stream(seed, Purpose.RENOISE), (draws, *shape))
        yield from (drawn - drawn.mean(0)) / drawn.std(0, ddof=1)

    def frame(self, noise: bool = False, draws: int = 20, progress: bool | Progress = False) -> pandas.DataFrame:
        """Return a DataFrame: party, each semivalue with its errors, and the rank by the first semivalue (1 is best).

        `<semivalue>_mc_error` is the Monte Carlo error of the permutations; with `noise`, `<semivalue>_noise` is the
        usually far larger standard deviation due to the DP noise (see `noise_std`, which takes a while, from `draws`).
        """
        import pandas as pd

        spread = self.noise_std(draws, progress=progress) if noise else {}
        columns: dict[str, Any] = {"party": list(self.table.names)}
        for name, estimate in self.estimates.items():
            columns[name] = estimate.values
            columns[f"{name}_mc_error"] = estimate.std_errors
            if noise:
                columns[f"{name}_noise"] = spread[name]
        frame = pd.DataFrame(columns)
        frame["rank"] = frame[self.semivalues[0].name].rank(ascending=False, method="first").astype("Int64")
        return frame

    def top(self, k: int, semivalue: str | None = None, lowest: bool = False) -> pandas.DataFrame:
        """Return the rows of `frame()` of the k parties with the highest (or lowest) values, best (or worst) first."""
        require_count("k", k)
        name = self.name_of(semivalue)
        return self.frame().sort_values(name, ascending=lowest, kind="stable").head(k).reset_index(drop=True)

    def revalue(self, utility: Any, **settings: Any) -> Result:
        """Return other values from the same table, free: no private data is read. Arguments as in `Table.value`."""
        return self.table.value(utility, **settings)

    def save(self, path: str | Path) -> None:
        """Write the result and its table to a file; `dpvalue.load` reads it back. It holds no rows of any data set."""
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
        names = ", ".join(kind.name for kind in self.semivalues)
        how = f"{self.walks} permutations" if self.walks else "exact"
        scores = f"; {ADDITIVE}" if self.table.is_score else ""
        return f"Result({names} of {self.table.n} parties, {how}, {self.table.schedule}{scores})"
