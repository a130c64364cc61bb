"""What the refit game is expected to be worth: how well it agrees with retraining, tried on made-up parties.

Half of the public rows play the public set, the other half is dealt to made-up parties, a third of which have a defect
planted. They release as the real ones would, with the noise of the real sizes, and their values are compared with those
of retraining on every coalition. So are their sizes, which are public and cost nothing. Rows are halved a few times,
and dealt anew a few times each.
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
"""A party is too small for its budget if its noise hides half of the way to meaningless labels."""


@dataclass(frozen=True, eq=False)
class PseudoParties:
    """What made-up parties are like.

    Attributes:
        units: numbers of units.
        noise: in clipping norms.
        whole: whether parties are clipped as a whole.
    """

    units: Ints
    noise: Floats
    whole: bool


def too_small(surrogate: Surrogate, made: PseudoParties) -> tuple[int, ...]:
    """Return the numbers of units of the parties whose noise hides what matters most."""
    hidden = []
    for party, (std, size) in enumerate(zip(made.noise.tolist(), made.units.tolist(), strict=True)):
        window = surrogate.window(party)
        if std * window.norm > TOO_SMALL * float(window.noise.norm()):
            hidden.append(int(size))
    return tuple(sorted(hidden))


def rehearse(
    model: Linear, public: PublicSet, made: PseudoParties, surrogate: Surrogate, engine: Engine, seed: int
) -> Agreement:
    """Return how well values are expected to agree with retraining, for parties like these.

    Formal guarantee: reads public rows and public sizes only.
    """
    streams = [stream(seed, Purpose.REHEARSAL, repeat) for repeat in range(_SPLITS)]
    halves = [_Half(model, public, made, engine, generator) for generator in streams]
    found = np.array([[half.rehearsed() for _ in range(_DEALS)] for half in halves])
    values, sizes = found[..., 0], found[..., 1]
    whole, beyond = RehearsedMean.of(values), RehearsedMean.of(values - sizes)
    scale = float(np.mean([half.scale for half in halves]))
    return Agreement(whole.mean, whole.error, float(sizes.mean()), beyond, scale, too_small(surrogate, made))


class _Half:
    """One half of the public rows, which plays the public set, and the other, which is dealt to made-up parties."""

    def __init__(
        self, model: Linear, public: PublicSet, made: PseudoParties, engine: Engine, generator: np.random.Generator
    ) -> None:
        order = torch.from_numpy(generator.permutation(len(public.x))).to(public.x.device)
        judging, dealt = order[: len(order) // 2], order[len(order) // 2 :]
        picked = generator.permutation(len(made.units))[:_PARTIES]
        self.scale = min(1.0, len(dealt) / max(int(made.units[picked].sum()), 1))
        self._counts = np.maximum((made.units[picked] * self.scale).astype(np.int64), _LEAST_RECORDS)
        half = replace(public, x=public.x[judging], y=public.y[judging], metric=LOSS, l2=0.0)
        self._pool = Rows.of(model, replace(half, x=public.x[dealt], y=public.y[dealt]))
        self._made = replace(made, noise=made.noise[picked])
        seed = int(generator.integers(2**31))
        self._surrogate = make_surrogate(model, half, self._counts, self._made.noise, seed, made.whole)
        self._judging = Rows.of(model, half)
        self._refitting = Refitting(self._surrogate, self._judging, Evaluator(half, model, engine), seed)
        self._model, self._engine, self._generator, self._like = model, engine, generator, public.x

    def rehearsed(self) -> tuple[float, float]:
        """Deal the rows once; return the rank correlations with retraining, of values and of sizes."""
        order = torch.from_numpy(self._generator.permutation(len(self._pool.x)))
        parties = _parties(self._pool.take(order.to(self._pool.x.device)), self._counts, self._generator)
        rows = _releases(self._model, self._surrogate, parties, self._made, self._engine, self._generator)
        game = RefitGame(self._refitting, rows.to(self._like), self._made.noise, self._counts)
        values, truth = (value_game(played).values for played in (game, ListedGame(_truth(self._judging, parties))))
        return _spearman(values, truth), _spearman(self._counts, truth)


def _parties(pool: Rows, counts: Ints, generator: np.random.Generator) -> list[Rows]:
    """Parties of so many rows, a third of which have a defect, whoever they are."""
    parties = []
    at, number = 0, len(counts)
    hurt = generator.permutation(number)[: -(-number // 3)]
    for place, count in enumerate(counts):
        own = pool.take(torch.arange(at, at + count) % len(pool.x))
        at += int(count)
        if place in hurt:
            own, _ = DEFECTS[int(generator.integers(2 * len(DEFECTS))) % len(DEFECTS)](own, generator, int(count))
        parties.append(own)
    return parties


def _releases(
    model: Linear,
    surrogate: Surrogate,
    parties: list[Rows],
    made: PseudoParties,
    engine: Engine,
    generator: np.random.Generator,
) -> Tensor:
    """What parties would release: descriptions behind the mechanism, with noise of the real sizes (n, size)."""
    x = torch.cat([party.x[:, :-1] for party in parties]).cpu().numpy()  # the constant is the model's
    y = torch.cat([party.y[:, 0] if party.regression else party.y.argmax(1) for party in parties]).cpu().numpy()
    sizes = np.array([len(party.x) for party in parties])
    like = surrogate.weights().to(engine.torch_device, engine.torch_dtype)
    rows = PublicRows.by_party(x, y, sizes, like.dtype, like.device)
    mechanism = Mechanism(1.0, 0.0, "party" if made.whole else "record", "zero_out")
    contributions = Contributions(surrogate.described(model, like), rows, mechanism, engine)
    clipped = contributions.mean_gradients(
        like[None], like.new_ones(1), torch.arange(len(sizes), device=like.device)
    ).cpu()
    drawn = generator.standard_normal(tuple(clipped.shape))
    return clipped + torch.from_numpy(made.noise[:, None] * drawn)


def _truth(judging: Rows, parties: list[Rows]) -> Floats:
    """What retraining on each coalition's rows is worth (2^n,)."""
    rows = Rows(
        torch.cat([party.x for party in parties]), torch.cat([party.y for party in parties]), judging.regression
    )
    owner = np.repeat(np.arange(len(parties)), [len(party.x) for party in parties])
    coalitions = np.arange(2 ** len(parties))[:, None] >> owner & 1
    weights = torch.from_numpy(coalitions.astype(np.float64)).to(rows.x)
    theta = fit_many(rows, weights, rows.y.T.expand(len(weights), -1, -1))
    return np.asarray(-judging.mean_loss(theta).cpu().numpy())


def _spearman(first: Floats | Ints, second: Floats) -> float:
    """The rank correlation; equals share their ranks, and what is equal throughout has none: 0."""
    ranks = [(values[:, None] > values).sum(1) + (values[:, None] == values).sum(1) / 2 for values in (first, second)]
    one, other = (rank - rank.mean() for rank in ranks)
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths > 0 else 0.0
