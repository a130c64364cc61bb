"""The private table, as users have it: valued, saved and shown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from dpvalue.data.encoding import encoding_to_json
from dpvalue.data.utility import as_utility
from dpvalue.engine.engines import Engine, Local
from dpvalue.errors import require_count, require_positive
from dpvalue.games.estimates import warn_if_not_finite
from dpvalue.games.semivalues import Semivalue, semivalues
from dpvalue.games.solving import estimate_values
from dpvalue.methods.table import ReleaseTable
from dpvalue.progress import Progress, reporting
from dpvalue.protocol.archive import Archive, Parts
from dpvalue.streams import require_seed
from dpvalue.values.result import Result

PLAIN = ("names", "learning_rate", "digest", "seed")
"""The fields that a file holds unchanged."""

METHOD = "method."
"""The prefix of the names of a method's tensors."""


@dataclass(frozen=True, eq=False)
class Table(ReleaseTable):
    """Per party, the combination of all it released; made by `dpvalue.release`.

    Formal guarantee: all content is a function of the releases and of public inputs. It may be shown to anyone who may
    see the releases, and used any number of times; `guarantee` states what the releases spent.

    Attributes:
        rows: the combined releases (n, d).
        names: the parties, in the order of the rows.
        noise_std: the noise standard deviation per coordinate of each row (n,); zeros without privacy.
        guarantee: the guarantee of the releases.
        initial: theta_0, the initial parameters of every walk (d,).
        basis: the public directions of the releases (m, d), with m the length of a row; None for all directions.
        learning_rate: alpha, the factor of a row in a step.
        model: the name of the model or its factory; None for a custom model loaded without it.
        digest: digest of the model.
        encoding: the encoding of features and labels.
        seed: seed of the replayed permutations, derived from that of the run; in a simulation from the rows.
        origin: schedule, permutations, expected AUC and sizes.
        method: the method of valuing.

    Example:
        >>> privacy = dpv.Privacy(8.0, unit="record")
        >>> table = dpv.release(train, test, groups=sites, privacy=privacy, progress=False)  # as in `dpvalue.Result`
        >>> table.n, table.method.game_name
        (4, 'refit game')
    """

    archive: ClassVar[Archive] = Archive("table", 9)

    def value(
        self,
        utility: Any,
        *,
        semivalues: str | Semivalue | tuple[str | Semivalue, ...] = ("shapley",),
        permutations: int = 1000,
        tolerance: float = 0.1,
        target: str | None = None,
        engine: Engine | None = None,
        seed: int | None = None,
        progress: bool | Progress = True,
    ) -> Result:
        """Return data values of the table, any number of times.

        Formal guarantee: post-processing of the releases; spends nothing.

        Args:
            utility: (X_test, y_test), a `Utility`, or a DataFrame with `target`; public.
            semivalues: which to estimate; one walk serves all.
            permutations: the most permutations to walk.
            tolerance: stop once the largest standard error is at most tolerance * standard deviation of the values.
            target: the label column when utility is a DataFrame.
            engine: where to compute.
            seed: of the permutations; None takes the table's.
            progress: show a bar on a terminal; or a callable (stage, done, total).

        Returns:
            the values, with errors and guarantee.

        Raises:
            DpvalueError: a utility that does not fit the model, or a setting out of range.

        Example:
            >>> table.value(test, semivalues=("shapley", "loo"), progress=False).keys()  # names as in `dpvalue.Result`
            ('east', 'north', 'south', 'west')
        """
        kinds = _semivalues(semivalues)
        require_count("permutations", permutations)
        require_positive("tolerance", tolerance)
        seed = self.seed if seed is None else seed
        require_seed(seed)
        engine = engine or Local()
        public_utility = as_utility(utility, target)
        with engine.threading(), reporting(progress) as report_progress:
            game = self.game(public_utility, engine)
            solution = estimate_values(game, kinds, permutations, tolerance, seed, report_progress)
        warn_if_not_finite(solution.estimates)
        return Result(self, kinds, solution.estimates, solution.walks, solution.converged, public_utility, engine, game)

    def save(self, path: str | Path) -> None:
        """Write the table to a file; `dpvalue.load` reads it back. It holds no private data and no public rows.

        Args:
            path: the file; one that is there is replaced.

        Raises:
            DpvalueError: a path that cannot be written.

        Example:
            >>> table.save("table.safetensors")  # `table` is that of the `result` of `dpvalue.Result`
            >>> dpv.load("table.safetensors").names
            ('east', 'north', 'south', 'west')
        """
        self.archive.write(Path(path), *self.parts())

    def parts(self) -> Parts:
        """Return the header and the tensors of a file."""
        origin = asdict(self.origin)
        sizes = torch.from_numpy(origin.pop("sizes"))
        header = {name: getattr(self, name) for name in PLAIN} | origin
        header |= {
            "guarantee": asdict(self.guarantee),
            "model": self.model if isinstance(self.model, str) else "custom",
            "encoding": encoding_to_json(self.encoding),
            "method": {"name": self.method.name, **self.method.header()},
        }
        noise_std = torch.from_numpy(self.noise_std)
        tensors = {"rows": self.rows, "initial": self.initial, "noise_std": noise_std, "sizes": sizes}
        if self.basis is not None:
            tensors["basis"] = self.basis
        return header, tensors | {f"{METHOD}{name}": part for name, part in self.method.tensors().items()}

    def __repr__(self) -> str:
        noise = f"noise std {float(np.median(self.noise_std)):.4g}, " if self.guarantee.private else ""
        size = f"{self.n} parties x {self.rows.shape[1]}"
        return f"Table({size}, {self.schedule.kind}, {self.method.game_name}, {noise}{self.guarantee.terms})"


_semivalues = semivalues  # the argument of Table.value shadows the function
