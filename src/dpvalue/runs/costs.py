"""What a run takes, in bytes and seconds. Bytes are computed from public sizes; seconds are measured, on public rows.

Nothing is measured of a process that has opened private data: its clock and its memory tell of that data. Seconds are
therefore known only where the parties' sizes are given as numbers. Pieces of the run are then done on public stand-ins,
timed, and scaled up. Included is what `dpvalue run` does once it has started: choosing, reading and encoding rows, the
releases with secure noise, the walks until the tolerance is met, the walks behind `noise_std`, curves and report.
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
    """What a run is expected to take.

    Attributes:
        table_bytes: size of the table; None where neither a utility nor a number of parameters tells it.
        memory_bytes: of the whole process of `dpvalue run` at its peak, from public sizes; without a utility, the table
            and the sums that it is made from.
        seconds: of `dpvalue run`, from choosing to the report: expected, and if all permutations are walked; None
            without a utility, and where private data was opened before: nothing is measured then. So for the next one.
        value_seconds: of `dpvalue.value` alone, which makes no errors due to noise, curves or report: expected.
    """

    table_bytes: int | None
    memory_bytes: int | None
    seconds: tuple[float, float] | None = None
    value_seconds: float | None = None


def stated_costs(situation: Situation, choice: Choice) -> Costs:
    """Return the bytes that a run is expected to take: a function of public sizes, with nothing measured."""
    cells = float(situation.sizes.sum()) * situation.public.x[0].numel()
    table = situation.n * choice.model.size * choice.initial.element_size()
    public = 2 * situation.public.x.numel() * situation.public.x.element_size()
    return Costs(table, int(_PROCESS_BYTES + public + TABLES * table + cells * _CELL[1] + situation.n * _PARTY_BYTES))


def timed_costs(situation: Situation, choice: Choice, chosen_in: float) -> Costs:
    """Return what a run is expected to take, with seconds from trials on public rows.

    Formal guarantee: reads public rows and the parties' public sizes only. Its caller must not have opened private
    data in this process, whose clock would tell of it.
    """
    n, most = situation.n, situation.settings.permutations
    trial = _Trial(situation, choice)
    cells = float(situation.sizes.sum()) * situation.public.x[0].numel()
    first = chosen_in + cells * _CELL[0]
    if choice.method.fits_coalitions:
        began = time.perf_counter()
        game = trial.game(min(n, MOST_PLAYERS_ENUMERATED))
        first += time.perf_counter() - began
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
    again = walks if choice.method.fits_coalitions else min(walks, LEAST_WALKS)
    after = each * default_draws(n, 0) * again + n * _PARTY_SECONDS
    return replace(stated_costs(situation, choice), seconds=(value + after, longest + after), value_seconds=value)


class _Trial:
    """Pieces of a run, done with stand-ins for a few of the parties: public rows, as many as the parties have."""

    def __init__(self, situation: Situation, choice: Choice) -> None:
        self._situation, self._choice, self._engine = situation, choice, situation.settings.engine
        self._mechanism = choice.mechanism.for_public_rows()
        self._generator = stream(situation.settings.seed, Purpose.TUNING)
        self._noise = noise_source(situation.settings.noise, situation.settings.seed)

    def _contributions(self, most: int) -> tuple[Contributions, float]:
        """Stand-ins for at most so many parties, and how many times the work of theirs that of all parties is."""
        situation = self._situation
        sizes = np.maximum(situation.sizes, 1)
        few = self._generator.permutation(sizes)[: min(situation.n, most)]
        few = few[: max(1, int(np.searchsorted(few.cumsum(), _MOST_ROWS, "right")))]
        rows = self._rows(np.minimum(few, _MOST_ROWS))
        secure = situation.settings.noise == "secure"
        times = float(sizes.sum() / np.minimum(few, _MOST_ROWS).sum())
        return Contributions(self._choice.unit_numbers, rows, self._mechanism, self._engine, secure), times

    def _rows(self, sizes: np.ndarray) -> PublicRows:
        public, initial = self._situation.public, self._choice.initial
        return public.stand_ins(self._generator.integers(len(public.x), size=sizes.sum()), sizes, initial)

    def _walker(self, n: int) -> Walker:
        """A walk of fewer parties goes as far with larger steps."""
        rate = self._choice.learning_rate * self._situation.n / n
        return Walker(self._choice.walk_model, self._choice.initial, rate, self._engine)

    def rounds(self) -> float:
        """Return the seconds that the releases of all parties take, made in rounds."""
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
        return times * _timed(lambda: asking.run(silent))

    def game(self, few: int) -> ReleaseGame:
        """Return the game of a few parties without rows."""
        choice = self._choice
        return choice.method.stand_in_game(self._situation, choice, choice.initial.new_zeros(few, len(choice.initial)))

    def coalition(self, game: ReleaseGame) -> float:
        """Return the seconds that the worth of a coalition takes."""
        coalitions = self._generator.random((_TRIAL_COALITIONS, game.n)) < 0.5
        return min(_timed(lambda: game.worth(coalitions)) for _ in range(_TIMES)) / _TRIAL_COALITIONS

    def interleaved(self) -> float:
        """Return the seconds that a schedule of the paper takes, releases and values together."""
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
        return times * most / walks * _timed(lambda: trial.run(silent, evaluate, estimator.add))

    def walk(self, most: int) -> tuple[float, int, int]:
        """Return the seconds of a walk of all parties over the final table, how many meet the tolerance, and the most.

        Where values are expectations, all of them take as long as one walk.
        """
        table = self._table(min(self._situation.n, _STAND_INS))
        few, n = len(table), self._situation.n
        estimator = Estimator(semivalues("shapley")[0], few)
        orders = permutations(self._situation.settings.seed, Purpose.REPLAY, 0, LEAST_WALKS, few)
        method = self._choice.method
        if n >= MANY:
            whole = method.stand_in_game(self._situation, self._choice, table.repeat(-(-n // few), 1)[:n])
            if whole.direct_estimate(semivalues("shapley")[0]) is not None:
                return _timed(partial(whole.direct_estimate, semivalues("shapley")[0])), 1, 1
        game = method.stand_in_game(self._situation, self._choice, table)
        game.walk(orders[:1])

        walked = min(_timed(lambda: game.walk(orders)) for _ in range(_TIMES))
        marginals = game.walk(orders)
        added = _timed(lambda: estimator.add(orders, marginals))  # a few calls a walk, however many parties there are
        each = (walked * self._situation.n / few + added) / LEAST_WALKS
        # The largest error is that of the largest row; of more rows with noise it is larger, as the logarithm of their
        # number (Laplace), or as its root.
        tail = (math.log(self._situation.n) / math.log(few)) ** (2 if find_law(self._choice.mechanism.law).pure else 1)
        needed = tail * walks_needed(estimator, self._choice.schedule.tolerance)
        return each, int(min(most, LEAST_WALKS * math.ceil(needed / LEAST_WALKS))), most

    def _table(self, count: int) -> Tensor:
        """Rows of a table like the final one: clipped contributions of public rows, read after noise."""
        choice, situation = self._choice, self._situation
        picked = self._generator.permutation(situation.n)[:count]
        rows = self._rows(np.minimum(np.maximum(situation.sizes[picked], 1), 64))
        mechanism = self._mechanism
        contributions = Contributions(choice.unit_numbers, rows, mechanism, self._engine)
        clipped = contributions.mean_gradients(
            choice.points_for(count), choice.shares, torch.arange(count, device=rows.x.device)
        )
        mixed = float(np.linalg.norm(choice.schedule.table_weights(situation.settings.permutations)))
        scale = mixed * mechanism.noise_scale(torch.from_numpy(situation.units[picked]))[:, None].numpy()
        drawn = find_law(mechanism.law).sampling.numbers(self._generator, tuple(clipped.shape))
        noise = torch.from_numpy(scale * drawn).to(clipped)
        return mechanism.scale.read(clipped + noise).to(choice.initial)


def walks_needed(estimator: Estimator, tolerance: float) -> int:
    """Return after how many walks the largest standard error is likely to be under tolerance x the values' spread.

    The spread of values from few walks is their own and that of their errors, which is taken off. The largest of many
    errors that are estimated from few walks is large by chance: by how much if all were alike is taken off as well.
    """
    estimate = estimator.estimate
    walks, square = int(estimate.counts.max()), np.square(estimate.std_errors)
    by_chance = 1 + NormalDist().inv_cdf(1 - 1 / (1 + len(square))) * (2 / max(walks - 1, 1)) ** 0.5
    largest = max(float(square.max()) / by_chance, float(square.mean()))
    spread = float(np.var(estimate.values) - square.mean())
    if not spread > 0:
        return sys.maxsize
    needed = walks * (largest / tolerance**2 - float(square.mean())) / spread
    return int(LEAST_WALKS * max(1, np.ceil(needed / LEAST_WALKS)))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
