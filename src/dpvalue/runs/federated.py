"""Federated learning on the server's side: one global model, and values round by round (the paper's appendix).

In round t every party releases its gradient at the global model. Its contribution is that release, or a combination of
its releases (`Schedule`; decaying: weight X_tt = 0.75 - 0.7 t/k on the new one, the rest on the last contribution). A
coalition moves the global model by the mean of its members' contributions, as in federated averaging; the values of the
round come from permutations. Then all parties move the model. A party's value is the mean over the rounds after the
burn-in. Each round needs one release and one message of every party.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.parties import read_data
from dpvalue.data.utility import LOSS, Utility
from dpvalue.display import extremes
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.errors import DpvalueError, require_count
from dpvalue.games.estimates import Estimate, Estimator, warn_if_not_finite
from dpvalue.games.semivalues import Semivalue, semivalues
from dpvalue.party.contributions import Contributions, Responder
from dpvalue.planning.settings import EntryKeywords, Settings, read_keywords, shows_settings
from dpvalue.privacy.guarantees import Guarantee
from dpvalue.privacy.noise import noise_source
from dpvalue.progress import Progress, reporting, silent
from dpvalue.protocol.messages import AtPoints, Query
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.rounds import Ask
from dpvalue.runs.run import PreparedRun, Run, announce, prepare
from dpvalue.streams import Purpose, permutations, stream

RATES = tuple(10 ** (exponent / 2) for exponent in range(-10, 3))  # 1e-5 to 10

PAPER = Schedule("decaying", burn_in=0.2)


@dataclass(frozen=True, eq=False)
class FederatedResult:
    """The result of federated learning.

    Formal guarantee: a function of the parties' releases and of public inputs; `guarantee` is that of all releases.

    Attributes:
        names: the parties.
        estimates: the mean over rounds, by semivalue; errors are those of the permutations only.
        model: the final global model (size,).
        table: the contributions of the parties to the last step (n, size).
        utility: the utility of the final global model.
        learning_rate: alpha.
        guarantee: the guarantee of all rounds together.

    Example:
        >>> learned = dpv.federated(train, test, groups=sites, rounds=3, orders=10, privacy=None,
        ...                         learning_rate=1.0, progress=False)  # data as in `dpvalue.Result`
        >>> min(zip(learned.values["shapley"], learned.names))[1]
        'west'
    """

    names: tuple[str | int, ...]
    estimates: dict[str, Estimate]
    model: Tensor
    table: Tensor
    utility: float
    learning_rate: float
    guarantee: Guarantee

    @property
    def values(self) -> dict[str, Floats]:
        """The values of each semivalue."""
        return {name: estimate.values for name, estimate in self.estimates.items()}

    def __repr__(self) -> str:
        kinds = "; ".join(f"{name}: {extremes(self.names, values)}" for name, values in self.values.items())
        summary = f"{len(self.names)} parties, {kinds}, utility {self.utility:.4g}"
        return f"FederatedResult({summary}, {self.guarantee.terms})"

    def __str__(self) -> str:
        lines = [f"utility of the global model: {self.utility:.4g}"]
        for name, values in self.values.items():
            lines += [f"{name} of {party}: {value:+.4g}" for party, value in zip(self.names, values, strict=True)]
        return "\n".join([*lines, str(self.guarantee)])


@dataclass(frozen=True)
class Learning:
    """The server's side of federated learning; it receives releases only.

    Attributes:
        walker: model, initial parameters and learning rate.
        evaluate: the utility of models.
        schedule: weights of a party's releases, and the burn-in.
        rounds: the number of rounds k.
        seed: seed of the permutations.
        ask: returns the releases of a round, in the order of `names`.
        names: the parties.
        guarantee: the guarantee of k releases.
    """

    walker: Walker
    evaluate: Evaluator
    schedule: Schedule
    rounds: int
    seed: int
    ask: Ask
    names: tuple[str | int, ...]
    guarantee: Guarantee

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds)
        _require_learns(self.schedule)
        self.schedule.first_valued(self.rounds)

    def run(self, orders: int = 100, kinds: tuple[Semivalue, ...] = (), progress: Progress = silent) -> FederatedResult:
        """Train the global model, and value each round by `orders` permutations; Shapley values by default."""
        require_count("orders", orders)
        first, n = self.schedule.first_valued(self.rounds), len(self.names)
        estimators = {kind.name: Estimator(kind, n) for kind in kinds or semivalues("shapley")}
        with self.walker.engine.threading():
            progress("learning", 0, self.rounds)
            for number, (theta, combined) in enumerate(self._states()):
                if number >= first:
                    sampled_orders = permutations(self.seed, Purpose.PERMUTATION, number * orders, orders, n)
                    marginals = self._marginals(theta, combined, sampled_orders)
                    for estimator in estimators.values():
                        estimator.add(sampled_orders, marginals)
                progress("learning", number + 1, self.rounds)
            model = self._step(theta, combined)
            worth = float(self.evaluate(model[None])[0])
        return FederatedResult(
            names=self.names,
            estimates={name: estimator.estimate for name, estimator in estimators.items()},
            model=model.cpu(),
            table=combined.cpu(),
            utility=worth,
            learning_rate=self.walker.learning_rate,
            guarantee=self.guarantee,
        )

    def at_rate(self, rate: float) -> Learning:
        """Return a copy with another learning rate."""
        return replace(self, walker=replace(self.walker, learning_rate=rate))

    def best_rate(self) -> float:
        """Return the rate in `RATES` with the best final model; it repeats all rounds: for public rows only."""
        scores = []
        with self.walker.engine.threading():
            for rate in RATES:
                learning = self.at_rate(rate)
                *_, (theta, combined) = learning._states()
                scores.append(float(self.evaluate(learning._step(theta, combined)[None])[0]))
        return RATES[int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))]

    def _states(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the global model of each round, and the contributions (n, size) that will move it."""
        theta = self.walker.initial
        combined = torch.zeros(len(self.names), len(theta)).to(theta)
        for number in range(self.rounds):
            release = self.ask(number, theta[None], AtPoints(theta[None], theta.new_ones(1)))
            combined = combined.lerp(release, self.schedule.own_weight(number, number, self.rounds))
            yield theta, combined
            theta = self._step(theta, combined)

    def _step(self, theta: Tensor, combined: Tensor) -> Tensor:
        return theta - self.walker.learning_rate * combined.mean(0)

    def _marginals(self, theta: Tensor, combined: Tensor, orders: Ints) -> Floats:
        """The marginals (orders, positions) of a round: a coalition moves the global model by its members' mean."""
        n, d = combined.shape
        members = torch.arange(1, n + 1, device=theta.device).unsqueeze(-1)
        start = self.evaluate(theta[None])
        pieces = []
        batch_size = self.walker.engine.piece(2 * n * d, least=2048)
        for batch in torch.from_numpy(orders).to(theta.device).split(batch_size):
            models = theta - self.walker.learning_rate * (combined[batch].cumsum(1) / members)
            utilities = self.evaluate(models.flatten(0, 1)).view(len(batch), n)
            pieces.append(torch.cat([start.expand(len(batch), 1), utilities], dim=1).diff(dim=1))
        return torch.cat(pieces).cpu().numpy()


def _require_learns(schedule: Schedule) -> None:
    if not schedule.learns:
        raise DpvalueError(
            "federated learning takes the schedules 'independent', 'running-mean' and 'decaying', no blocks and no "
            f"fresh starts; got {str(schedule)!r}"
        )


@shows_settings(EntryKeywords, schedule=PAPER)
def federated(
    parties: Any,
    utility: Any,
    settings: Settings | None = None,
    *,
    rounds: int = 50,
    orders: int = 100,
    semivalues: str | Semivalue | tuple[str | Semivalue, ...] = ("shapley",),
    progress: bool | Progress = True,
    **keywords: Unpack[EntryKeywords],
) -> FederatedResult:
    """Train one model on all parties' data by federated learning, and value the parties round by round.

    Formal guarantee: as `dpvalue.value`, for the values, the global model and everything else returned. The budget is
    for all rounds together: a party makes one release in each, and an observer of every release by name is counted.
    (With accounting "poisson", the paper's, `guarantee` states what is really spent beside the claim.) With a ledger
    all rounds are charged before the first is answered; the same call again gets the same releases back.

    What it will spend: `dpvalue.plan(parties, schedule="decaying", permutations=rounds)`. More rounds
    train the model further and need more noise in each. The refit game (`dpvalue.value`) values data sets from a single
    release, with one message a party (`docs/federated-learning.md`).

    Args:
        parties: as in `dpvalue.value`; private.
        utility: as in `dpvalue.value`; public.
        settings: as in `dpvalue.value`. The schedule says how a party's releases are combined: "independent",
            "running-mean" or "decaying" (the default, with a burn-in of 0.2); learning_rate="auto" is searched on
            public rows, trained on by as many stand-ins with as much noise.
        rounds: how often each party is asked.
        orders: permutations that value a round.
        semivalues: as in `dpvalue.value`.
        progress: show a bar on a terminal; or a callable (stage, done, total).
        **keywords: as in `dpvalue.value`.

    Returns:
        the values, the global model, and what all rounds spent.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.

    Example:
        >>> learned = dpv.federated(train, test, groups=sites, rounds=3, orders=10, privacy=None,
        ...                         learning_rate=1.0, progress=False)  # data as in `dpvalue.Result`
        >>> learned.model.shape, learned.table.shape
        (torch.Size([4]), torch.Size([4, 4]))
    """
    if "permutations" in keywords:
        raise DpvalueError("permutations must not be given for federated learning: give rounds and orders")
    kinds = _semivalues(semivalues)
    require_count("orders", orders)
    run_settings, labels = read_keywords(settings, keywords)
    private, public = read_data(parties, utility, *labels)
    with run_settings.engine.threading(), reporting(progress) as tell:
        prepared = prepare_learning(public, run_settings, rounds, *private.counts(run_settings.privacy))
        announce(prepared)
        result = learn(prepared.run(private), orders, kinds, tell)
    warn_if_not_finite(result.estimates)
    return result


def prepare_learning(utility: Utility, settings: Settings, rounds: int, sizes: Ints, units: Ints) -> PreparedRun:
    """Decide every setting from public things, as `prepare` does; `PreparedRun.job` is then what parties are asked."""
    require_count("rounds", rounds)
    rate, schedule = settings.learning_rate, settings.resolved_schedule if settings.schedule else PAPER
    _require_learns(schedule)
    run_settings = replace(settings, schedule=schedule, permutations=rounds)
    prepared = prepare(utility, replace(run_settings, learning_rate=RATES[0] if rate == "auto" else rate), sizes, units)
    if rate == "auto":
        best_rate = _stand_ins(prepared).best_rate()
        situation = replace(prepared.situation, settings=replace(run_settings, learning_rate=best_rate))
        return replace(prepared, situation=situation, choice=replace(prepared.choice, learning_rate=best_rate))
    return prepared


def learn(
    run: Run, orders: int = 100, kinds: tuple[Semivalue, ...] = (), progress: Progress = silent
) -> FederatedResult:
    """Train and value with all parties in this process.

    Formal guarantee: reads the parties' data only through one release per party and round, of the clipped gradient at a
    model that is a function of earlier releases and public things; all rounds are charged before the first.
    """
    learning = learning_of(run)
    run.contributions.grid()  # raises for sums that would not be exact, before anything is charged
    if run.charging is not None:
        run.charging.keeper.reserve(learning.rounds, run.charging.charge)
    return replace(learning.run(orders, kinds, progress), guarantee=run.guarantee)


def learning_of(run: Run) -> Learning:
    """Return the server's side of a run with all parties in this process."""
    return Learning(
        walker=run.walker,
        evaluate=run.evaluate,
        schedule=run.choice.schedule,
        rounds=run.settings.permutations,
        seed=run.settings.seed,
        ask=run.ask,
        names=run.names,
        guarantee=run.choice.guarantee,
    )


def learning_for(prepared: PreparedRun, names: tuple[str | int, ...], ask: Ask) -> Learning:
    """Return the server's side for parties who are asked by messages, `rounds.requests` of `prepared.job(names)`."""
    choice, settings, public = prepared.choice, prepared.situation.settings, prepared.situation.public
    return Learning(
        walker=Walker(choice.walk_model, choice.initial, choice.learning_rate, settings.engine),
        evaluate=Evaluator(public, choice.walk_model, settings.engine),
        schedule=choice.schedule,
        rounds=settings.permutations,
        seed=settings.seed,
        ask=ask,
        names=names,
        guarantee=choice.guarantee,
    )


def _stand_ins(prepared: PreparedRun) -> Learning:
    """Federated learning of stand-ins from one half of the public set, with planned noise; the other half judges."""
    situation, choice, engine = prepared.situation, prepared.choice, prepared.situation.settings.engine
    mechanism, public, initial = choice.mechanism, situation.public, choice.initial
    generator = stream(situation.settings.seed, Purpose.TUNING)
    training_rows, judging_rows = np.array_split(generator.permutation(len(public.x)), 2)
    sizes = situation.units if mechanism.per_unit else situation.sizes
    rows = public.stand_ins(generator.choice(training_rows, int(sizes.sum())), sizes, initial)
    noise = noise_source("fast", int(generator.integers(2**31)))
    answering = Responder(
        Contributions(choice.unit_numbers, rows, mechanism.for_public_rows(), engine),
        noise,
        np.arange(situation.n),
        initial,
    )
    judging_indices = torch.from_numpy(judging_rows).to(public.x.device)

    def ask(number: int, state: Tensor, query: Query) -> Tensor:
        return answering.answer(number, query)

    judging_set = replace(public, x=public.x[judging_indices], y=public.y[judging_indices], metric=LOSS, l2=0.0)
    learning = learning_for(prepared, tuple(range(situation.n)), ask)
    return replace(learning, evaluate=Evaluator(judging_set, choice.walk_model, engine))


_semivalues = semivalues  # the argument of federated shadows the function
