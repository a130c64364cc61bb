"""Rehearse the refit game on pseudo-parties: the expected rank correlation of its values with retraining.

One half of the public rows serves as the public set. The other half is dealt to pseudo-parties; a third of them get a
planted defect. They release descriptions with the noise of the real sizes. Their values, and for comparison their
sizes, which are public, are compared with retraining on every coalition. There are several splits, and several deals of
each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.rows import PublicRows
from dpvalue.data.utility import LOSS, PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.engine.evaluator import Evaluator
from dpvalue.games.solving import ListedGame, value_game
from dpvalue.methods.fits import Rows, fit_many
from dpvalue.methods.refitting import RefitGame, Refitting
from dpvalue.methods.surrogate import Surrogate, make_surrogate
from dpvalue.methods.windows import DEFECTS
from dpvalue.models import Linear
from dpvalue.party.contributions import Contributions
from dpvalue.planning.situation import Agreement, RehearsedMean
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.streams import Purpose, stream

_PARTIES, _SPLITS, _DEALS = 6, 3, 4
_LEAST_RECORDS = 5
TOO_SMALL = 0.5
"""A party is too small for its budget if its noise exceeds this share of the effect of meaningless labels."""


@dataclass(frozen=True, eq=False)
class PseudoParties:
    """The sizes and noise of pseudo-parties.

    Attributes:
        units: number of units of each party (n,).
        noise: noise standard deviation of each party, in clipping norms (n,).
        whole: whether parties are clipped as a whole.
    """

    units: Ints
    noise: Floats
    whole: bool


def too_small(surrogate: Surrogate, pseudo: PseudoParties) -> tuple[int, ...]:
    """Return the numbers of units of the parties that are too small for the budget, ascending."""
    hidden = []
    for party, (std, size) in enumerate(zip(pseudo.noise.tolist(), pseudo.units.tolist(), strict=True)):
        window = surrogate.window(party)
        if std * window.norm > TOO_SMALL * float(window.noise.norm()):
            hidden.append(int(size))
    return tuple(sorted(hidden))


def rehearse(
    model: Linear, public: PublicSet, pseudo: PseudoParties, surrogate: Surrogate, engine: Engine, seed: int
) -> Agreement:
    """Return the expected agreement of values with retraining, for parties of these sizes.

    Formal guarantee: reads public rows and public sizes only.
    """
    tasks = (SplitTask(model, public, pseudo, engine, seed, split) for split in range(_SPLITS))
    scales, correlations = zip(*engine.tasks(rehearse_split, tasks), strict=True)
    values, sizes = np.moveaxis(np.array(correlations), -1, 0)
    whole, beyond = RehearsedMean.of(values), RehearsedMean.of(values - sizes)
    scale = float(np.mean(scales))
    return Agreement(whole.mean, whole.error, float(sizes.mean()), beyond, scale, too_small(surrogate, pseudo))


@dataclass(frozen=True, eq=False)
class SplitTask:
    """One split of the public rows to rehearse on: the arguments of `rehearse`, and the number of the split."""

    model: Linear
    public: PublicSet
    pseudo: PseudoParties
    engine: Engine
    seed: int
    split: int


def rehearse_split(task: SplitTask) -> tuple[float, list[tuple[float, float]]]:
    """Return the scale of a split's sizes, and of each deal the correlations of values and sizes with retraining."""
    generator = stream(task.seed, Purpose.REHEARSAL, task.split)
    half = _Half(task.model, task.public, task.pseudo, task.engine, generator)
    return half.scale, [half.rehearse() for _ in range(_DEALS)]


class _Half:
    """A split of the public rows: one half serves as the public set, the other is dealt to pseudo-parties."""

    def __init__(
        self, model: Linear, public: PublicSet, pseudo: PseudoParties, engine: Engine, generator: np.random.Generator
    ) -> None:
        order = torch.from_numpy(generator.permutation(len(public.x))).to(public.x.device)
        judging, dealt = order[: len(order) // 2], order[len(order) // 2 :]
        picked = generator.permutation(len(pseudo.units))[:_PARTIES]
        self.scale = min(1.0, len(dealt) / max(int(pseudo.units[picked].sum()), 1))
        self._counts = np.maximum((pseudo.units[picked] * self.scale).astype(np.int64), _LEAST_RECORDS)
        half = replace(public, x=public.x[judging], y=public.y[judging], metric=LOSS, l2=0.0)
        self._pool = Rows.of(model, replace(half, x=public.x[dealt], y=public.y[dealt]))
        self._pseudo = replace(pseudo, noise=pseudo.noise[picked])
        seed = int(generator.integers(2**31))
        self._surrogate = make_surrogate(model, half, self._counts, self._pseudo.noise, seed, pseudo.whole)
        self._judging = Rows.of(model, half)
        self._refitting = Refitting(self._surrogate, self._judging, Evaluator(half, model, engine), seed)
        self._model, self._engine, self._generator, self._like = model, engine, generator, public.x

    def rehearse(self) -> tuple[float, float]:
        """Deal the rows once; return the rank correlations of values and of sizes with retraining."""
        order = torch.from_numpy(self._generator.permutation(len(self._pool.x)))
        parties = _parties(self._pool.select(order.to(self._pool.x.device)), self._counts, self._generator)
        rows = _releases(self._model, self._surrogate, parties, self._pseudo, self._engine, self._generator)
        refit_game = RefitGame(self._refitting, rows.to(self._like), self._pseudo.noise, self._counts)
        values, truth = (value_game(game).values for game in (refit_game, ListedGame(_truth(self._judging, parties))))
        return spearman(values, truth), spearman(self._counts, truth)


def _parties(pool: Rows, counts: Ints, generator: np.random.Generator) -> list[Rows]:
    """Parties with these numbers of rows; a random third has a defect."""
    parties = []
    start, number = 0, len(counts)
    corrupted = generator.permutation(number)[: -(-number // 3)]
    for index, count in enumerate(counts):
        party = pool.select(torch.arange(start, start + count) % len(pool.x))
        start += int(count)
        if index in corrupted:
            party, _ = DEFECTS[int(generator.integers(2 * len(DEFECTS))) % len(DEFECTS)](party, generator, int(count))
        parties.append(party)
    return parties


def _releases(
    model: Linear,
    surrogate: Surrogate,
    parties: list[Rows],
    pseudo: PseudoParties,
    engine: Engine,
    generator: np.random.Generator,
) -> Tensor:
    """The releases of the parties (n, size): clipped descriptions, with the noise of the real sizes."""
    x = torch.cat([party.x[:, :-1] for party in parties]).cpu().numpy()  # the constant is the model's
    y = torch.cat([party.y[:, 0] if party.regression else party.y.argmax(1) for party in parties]).cpu().numpy()
    sizes = np.array([len(party.x) for party in parties])
    like = surrogate.weights().to(engine.torch_device, engine.torch_dtype)
    rows = PublicRows.by_party(x, y, sizes, like.dtype, like.device)
    mechanism = Mechanism(1.0, 0.0, "party" if pseudo.whole else "record", "zero_out")
    contributions = Contributions(surrogate.description_model(model, like), rows, mechanism, engine)
    clipped = contributions.mean_gradients(
        like[None], like.new_ones(1), torch.arange(len(sizes), device=like.device)
    ).cpu()
    noise = generator.standard_normal(tuple(clipped.shape))
    return clipped + torch.from_numpy(pseudo.noise[:, None] * noise)


def _truth(judging: Rows, parties: list[Rows]) -> Floats:
    """The worths of retraining on each coalition's rows (2^n,)."""
    rows = Rows(
        torch.cat([party.x for party in parties]), torch.cat([party.y for party in parties]), judging.regression
    )
    owner = np.repeat(np.arange(len(parties)), [len(party.x) for party in parties])
    coalitions = np.arange(2 ** len(parties))[:, None] >> owner & 1
    weights = torch.from_numpy(coalitions.astype(np.float64)).to(rows.x)
    theta = fit_many(rows, weights, rows.y.T.expand(len(weights), -1, -1))
    return np.asarray(-judging.mean_loss(theta).cpu().numpy())


def spearman(first: Floats | Ints, second: Floats) -> float:
    """Return the rank correlation; ties share their ranks, and a constant vector has correlation 0."""
    ranks = [(values[:, None] > values).sum(1) + (values[:, None] == values).sum(1) / 2 for values in (first, second)]
    first_rank, second_rank = (rank - rank.mean() for rank in ranks)
    lengths = float(np.linalg.norm(first_rank) * np.linalg.norm(second_rank))
    return float(first_rank @ second_rank) / lengths if lengths > 0 else 0.0
