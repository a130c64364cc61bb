"""The private table: the combined releases, with all other inputs of a valuation except the utility."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.encoding import Encoding, encoding_to_json
from dpvalue.data.utility import Utility, as_utility
from dpvalue.engine.engines import Engine, Local
from dpvalue.engine.evaluator import Walker
from dpvalue.errors import DpvalueError, require_count, require_positive
from dpvalue.games.estimates import warn_if_not_finite
from dpvalue.games.semivalues import Semivalue, semivalues
from dpvalue.games.solving import ReleaseGame, estimate_values
from dpvalue.methods.base import Method
from dpvalue.models import Model, ModelFactory, build_model, projected
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.progress import Progress, reporting
from dpvalue.protocol.archive import Archive, Parts
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.schedule import Schedule
from dpvalue.streams import require_seed
from dpvalue.values.result import Result

PLAIN = ("names", "learning_rate", "digest", "seed")
"""The fields that a file holds unchanged."""

METHOD = "method."
"""The prefix of the names of a method's tensors."""


@dataclass(frozen=True, eq=False)
class Origin:
    """The origin of a table.

    Attributes:
        schedule: the schedule of the releases.
        permutations: the number in the settings.
        expected_auc: the expected AUC of detecting corrupted parties, by rehearsal on the public set; None without one.
        sizes: the public number of records of each party (n,); of persons for unit "person".
    """

    schedule: Schedule
    permutations: int
    expected_auc: float | None
    sizes: Ints


@dataclass(frozen=True, eq=False)
class Table:
    """The combined releases of each party; made by `dpvalue.release`.

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

    rows: Tensor
    names: tuple[str | int, ...]
    noise_std: Floats
    guarantee: Guarantee
    initial: Tensor
    basis: Tensor | None
    learning_rate: float
    model: str | ModelFactory | None
    digest: str
    encoding: Encoding
    seed: int
    origin: Origin
    method: Method

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.names)

    @property
    def schedule(self) -> Schedule:
        """The schedule of the releases."""
        return self.origin.schedule

    @property
    def projection(self) -> Projection | None:
        """The directions of the releases; None: all."""
        return self.method.projection

    @property
    def expected_auc(self) -> float | None:
        """The expected AUC of detecting corrupted parties; None without a rehearsal."""
        return self.origin.expected_auc

    @property
    def sizes(self) -> Ints:
        """The public number of records of each party (n,); of persons for unit "person"."""
        return self.origin.sizes

    @property
    def counted(self) -> str:
        """What `sizes` count: "record" or "person"."""
        return "person" if self.guarantee.unit == "person" else "record"

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

    def game(self, utility: Utility, engine: Engine) -> ReleaseGame:
        """Return the game of this table's method under a public utility."""
        public = utility.encode(self.encoding, engine.torch_dtype, engine.torch_device)  # raises for one of other rows
        return self.method.game(self, public, engine)

    def walker(self, engine: Engine) -> Walker:
        """Return the walker from the initial model of this table."""
        if self.schedule.fresh_start:
            raise DpvalueError("a table made with fresh_start cannot be replayed: its releases belong to many starts")
        model = self.whole_model(engine)
        initial = self.initial.to(engine.torch_device, engine.torch_dtype)
        if self.basis is not None:
            model = projected(model, initial, self.basis.to(initial))
            initial = model.initial(0)
        return Walker(model, initial, self.learning_rate, engine)

    def whole_model(self, engine: Engine) -> Model:
        """Return the full model, with all its parameters.

        Args:
            engine: where to compute.

        Returns:
            the model.

        Raises:
            DpvalueError: a model that is not the one of the run, or a custom model that was not passed again.

        Example:
            >>> table.whole_model(dpv.Local()).size == len(table.initial)  # `table` is that of `dpvalue.Result`
            True
        """
        if self.model is None:
            raise DpvalueError("the table was made with a custom model: pass it again with load(path, model=...)")
        example_row = torch.zeros(self.encoding.shape, dtype=engine.torch_dtype, device=engine.torch_device)
        model = build_model(
            self.model, self.encoding.task, example_row, self.encoding.outputs, engine.torch_dtype, engine.torch_device
        )
        model = self.method.complete(model, example_row)
        if self.method.digest(model, example_row) != self.digest:
            raise DpvalueError("model is not the one that the table was made with: its digest differs")
        if model.size != len(self.initial):
            raise DpvalueError(
                f"the table's initial model has {len(self.initial)} numbers; the model takes {model.size}"
            )
        return model

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
