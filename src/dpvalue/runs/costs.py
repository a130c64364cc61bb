"""The costs of a run: bytes, computed from public sizes, and seconds, measured on public rows.

A process that has opened private data measures nothing: its time and memory depend on that data. Seconds are known
only if the parties' sizes are given as numbers. Parts of the run are then timed on public stand-ins and scaled up. They
include all that `dpvalue run` does after its start: choices, reading and encoding rows, releases with secure noise,
walks until the tolerance is met, walks for `noise_std`, curves and report.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor

from dpvalue.data.rows import PublicRows
from dpvalue.engine.engines import TABLES
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.games.estimates import Estimator
from dpvalue.games.semivalues import semivalues
from dpvalue.games.solving import MOST_PLAYERS_ENUMERATED, ReleaseGame
from dpvalue.methods.base import Choice
from dpvalue.methods.few import MANY
from dpvalue.party.contributions import Contributions, Responder
from dpvalue.party.interleaved import InterleavedReleases, runs_compiled
from dpvalue.planning.situation import Situation
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.noise import noise_source
from dpvalue.progress import silent
from dpvalue.protocol.messages import AtPoints
from dpvalue.protocol.schedule import LEAST_WALKS
from dpvalue.runs.rounds import Rounds
from dpvalue.streams import Purpose, permutations, stream
from dpvalue.values.intervals import default_draws

_STAND_INS, _MOST_ROWS = 256, 4096

_TRIAL_WALKS, _SEQUENTIAL_STAND_INS, _TRIAL_COALITIONS = 16, 32, 64

_TIMES = 3  # the best counts: the machine may be busy with something else

_CELL = 1e-6, 14.0  # seconds and bytes that reading and encoding a cell takes: a number as it is read, and in a tensor

_PROCESS_BYTES = 4e8  # of Python with torch and pandas, and of trials on public rows

_PARTY_BYTES = 300  # names, values and their intervals

_PARTY_SECONDS = 2e-5  # the same in seconds: mostly values.csv


@dataclass(frozen=True)
class Costs:
    """The expected costs of a run.

    Attributes:
        table_bytes: size of the table; None without a utility or a number of parameters.
        memory_bytes: peak memory of the process of `dpvalue run`, from public sizes; without a utility, that of the
            table and its sums.
        seconds: time of `dpvalue run`, expected and at most; None without a utility, and if private data was opened.
        value_seconds: expected time of `dpvalue.value`, without noise errors, curves and report; None like `seconds`.
    """

    table_bytes: int | None
    memory_bytes: int | None
    seconds: tuple[float, float] | None = None
    value_seconds: float | None = None


def byte_costs(situation: Situation, choice: Choice) -> Costs:
    """Return the expected memory of a run, a function of public sizes; nothing is measured."""
    cells = float(situation.sizes.sum()) * situation.public.x[0].numel()
    table = situation.n * choice.model.size * choice.initial.element_size()
    public = 2 * situation.public.x.numel() * situation.public.x.element_size()
    return Costs(table, int(_PROCESS_BYTES + public + TABLES * table + cells * _CELL[1] + situation.n * _PARTY_BYTES))


def measured_costs(situation: Situation, choice: Choice, choice_seconds: float) -> Costs:
    """Return the expected costs of a run, with seconds measured on public rows.

    Formal guarantee: reads public rows and the parties' public sizes only. Its caller must not have opened private
    data in this process, whose clock would tell of it.
    """
    n, most = situation.n, situation.settings.permutations
    trial = _Trial(situation, choice)
    cells = float(situation.sizes.sum()) * situation.public.x[0].numel()
    first = choice_seconds + cells * _CELL[0]
    if choice.method.fits_coalitions:
        start = time.perf_counter()
        game = trial.game(min(n, MOST_PLAYERS_ENUMERATED))
        first += time.perf_counter() - start
        each, walks = trial.coalition(game) * n, LEAST_WALKS
        if n <= MOST_PLAYERS_ENUMERATED and 2**n <= most * n:
            walks = -(-(2**n) // n)
            most = walks
        value = first + trial.rounds() + each * walks
        longest = value + each * (most - walks)
    elif choice.schedule.kind == "replay":
        each, walks, most = trial.walk(most)
        value = first + trial.rounds() + each * walks
        longest = value + each * (most - walks)
    else:
        each = trial.walk(1)[0]
        value = longest = first + (trial.rounds() if choice.schedule.in_rounds else trial.interleaved())
        walks = most - choice.schedule.first_valued(most)
    replays = walks if choice.method.fits_coalitions else min(walks, LEAST_WALKS)
    error_seconds = each * default_draws(n, 0) * replays + n * _PARTY_SECONDS
    return replace(
        byte_costs(situation, choice), seconds=(value + error_seconds, longest + error_seconds), value_seconds=value
    )


class _Trial:
    """Parts of a run with stand-ins for a few parties, of public rows, as many as the parties have."""

    def __init__(self, situation: Situation, choice: Choice) -> None:
        self._situation, self._choice, self._engine = situation, choice, situation.settings.engine
        self._mechanism = choice.mechanism.for_public_rows()
        self._generator = stream(situation.settings.seed, Purpose.TUNING)
        self._noise = noise_source(situation.settings.noise, situation.settings.seed)

    def _contributions(self, most: int) -> tuple[Contributions, float]:
        """Stand-ins for at most `most` parties, and the ratio of the work of all parties to theirs."""
        situation = self._situation
        sizes = np.maximum(situation.sizes, 1)
        sample_sizes = self._generator.permutation(sizes)[: min(situation.n, most)]
        sample_sizes = sample_sizes[: max(1, int(np.searchsorted(sample_sizes.cumsum(), _MOST_ROWS, "right")))]
        rows = self._rows(np.minimum(sample_sizes, _MOST_ROWS))
        secure = situation.settings.noise == "secure"
        times = float(sizes.sum() / np.minimum(sample_sizes, _MOST_ROWS).sum())
        return Contributions(self._choice.unit_numbers, rows, self._mechanism, self._engine, secure), times

    def _rows(self, sizes: np.ndarray) -> PublicRows:
        public, initial = self._situation.public, self._choice.initial
        return public.stand_ins(self._generator.integers(len(public.x), size=sizes.sum()), sizes, initial)

    def _walker(self, n: int) -> Walker:
        """The walker of n stand-ins; the learning rate grows as their number shrinks."""
        rate = self._choice.learning_rate * self._situation.n / n
        return Walker(self._choice.walk_model, self._choice.initial, rate, self._engine)

    def rounds(self) -> float:
        """Return the seconds of the releases of all parties in rounds."""
        contributions, times = self._contributions(_STAND_INS)
        rounds, probes = self._choice.schedule.shape(self._situation.settings.permutations)
        answering = Responder(contributions, self._noise, np.arange(contributions.n), self._choice.initial)
        asking = Rounds(
            walker=self._walker(contributions.n),
            parties=contributions.n,
            seed=self._situation.settings.seed,
            rounds=rounds,
            probes=probes,
            start=AtPoints(self._choice.points_for(contributions.n), self._choice.shares),
            ask=lambda number, table, asked: answering.answer(number, asked),
        )
        asking.run(silent)  # the first time is slower
        return times * _measure(lambda: asking.run(silent))

    def game(self, count: int) -> ReleaseGame:
        """Return the game of `count` parties with rows of zeros."""
        choice = self._choice
        return choice.method.stand_in_game(
            self._situation, choice, choice.initial.new_zeros(count, len(choice.initial))
        )

    def coalition(self, game: ReleaseGame) -> float:
        """Return the seconds of the worth of one coalition."""
        coalitions = self._generator.random((_TRIAL_COALITIONS, game.n)) < 0.5
        return min(_measure(lambda: game.worth(coalitions)) for _ in range(_TIMES)) / _TRIAL_COALITIONS

    def interleaved(self) -> float:
        """Return the seconds of a schedule of the paper, with releases and values."""
        schedule, most = self._choice.schedule, self._situation.settings.permutations
        contributions, times = self._contributions(_SEQUENTIAL_STAND_INS)
        evaluate = Evaluator(self._situation.public, self._choice.walk_model, self._engine)
        walks = min(most, max(_TRIAL_WALKS, schedule.block) if schedule.correlated else 10 * _TRIAL_WALKS)
        estimator, walker = Estimator(semivalues("shapley")[0], contributions.n, walks), self._walker(contributions.n)
        compiled = runs_compiled(contributions, schedule, most, self._situation.n, walker.initial)
        trial = InterleavedReleases(
            walker=walker,
            contributions=contributions,
            noise=self._noise,
            seed=self._situation.settings.seed,
            schedule=schedule,
            permutations=walks,
            compiled=compiled,
        )
        if compiled:  # what is compiled, or loaded, once is no part of what a walk takes
            trial.run(silent, evaluate)
        return times * most / walks * _measure(lambda: trial.run(silent, evaluate, estimator.add))

    def walk(self, most: int) -> tuple[float, int, int]:
        """Return the seconds of a walk over the final table, the expected number of walks, and the largest number.

        Values that are computed as expectations count as a single walk.
        """
        table = self._table(min(self._situation.n, _STAND_INS))
        count, n = len(table), self._situation.n
        estimator = Estimator(semivalues("shapley")[0], count)
        orders = permutations(self._situation.settings.seed, Purpose.REPLAY, 0, LEAST_WALKS, count)
        method = self._choice.method
        if n >= MANY:
            full_game = method.stand_in_game(self._situation, self._choice, table.repeat(-(-n // count), 1)[:n])
            if full_game.direct_estimate(semivalues("shapley")[0]) is not None:
                return _measure(partial(full_game.direct_estimate, semivalues("shapley")[0])), 1, 1
        game = method.stand_in_game(self._situation, self._choice, table)
        game.walk(orders[:1])

        walk_seconds = min(_measure(lambda: game.walk(orders)) for _ in range(_TIMES))
        marginals = game.walk(orders)
        add_seconds = _measure(
            lambda: estimator.add(orders, marginals)
        )  # a few calls a walk, however many parties there are
        each = (walk_seconds * self._situation.n / count + add_seconds) / LEAST_WALKS
        # The largest error is that of the largest row; of more rows with noise it is larger, as the logarithm of their
        # number (Laplace), or as its root.
        tail = (math.log(self._situation.n) / math.log(count)) ** (
            2 if find_law(self._choice.mechanism.law).pure else 1
        )
        walks = tail * walks_needed(estimator, self._choice.schedule.tolerance)
        return each, int(min(most, LEAST_WALKS * math.ceil(walks / LEAST_WALKS))), most

    def _table(self, count: int) -> Tensor:
        """Rows like those of the final table: clipped contributions of public rows, with noise."""
        choice, situation = self._choice, self._situation
        parties = self._generator.permutation(situation.n)[:count]
        rows = self._rows(np.minimum(np.maximum(situation.sizes[parties], 1), 64))
        mechanism = self._mechanism
        contributions = Contributions(choice.unit_numbers, rows, mechanism, self._engine)
        clipped = contributions.mean_gradients(
            choice.points_for(count), choice.shares, torch.arange(count, device=rows.x.device)
        )
        noise_factor = float(np.linalg.norm(choice.schedule.table_weights(situation.settings.permutations)))
        scale = noise_factor * mechanism.noise_scale(torch.from_numpy(situation.units[parties]))[:, None].numpy()
        normals = find_law(mechanism.law).sampling.numbers(self._generator, tuple(clipped.shape))
        noise = torch.from_numpy(scale * normals).to(clipped)
        return mechanism.scale.read(clipped + noise).to(choice.initial)


def walks_needed(estimator: Estimator, tolerance: float) -> int:
    """Return the expected number of walks at which the largest standard error is below tolerance x spread of values.

    Two biases of few walks are subtracted: errors add to the spread of the values, and the largest of many estimated
    errors is large by chance.
    """
    estimate = estimator.estimate
    walks, square = int(estimate.counts.max()), np.square(estimate.std_errors)
    by_chance = 1 + NormalDist().inv_cdf(1 - 1 / (1 + len(square))) * (2 / max(walks - 1, 1)) ** 0.5
    largest = max(float(square.max()) / by_chance, float(square.mean()))
    spread = float(np.var(estimate.values) - square.mean())
    if not spread > 0:
        return sys.maxsize
    walks_at_tolerance = walks * (largest / tolerance**2 - float(square.mean())) / spread
    return int(LEAST_WALKS * max(1, np.ceil(walks_at_tolerance / LEAST_WALKS)))


def _measure(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
