"""What the refit game is expected to be worth: how well it agrees with retraining, tried on made-up parties.

Half of the public rows play the public set, the other half is dealt to made-up parties, a third of which have a defect
planted. They release as the real ones would, with the noise of the real sizes, and their values are compared with those
of retraining on every coalition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.rows import PublicRows
from dpvalue.data.utility import PublicSet
from dpvalue.engine.base import Engine
from dpvalue.engine.evaluator import Evaluator
from dpvalue.models import Linear
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.refit.fits import Rows, fit_many
from dpvalue.refit.planted import DEFECTS
from dpvalue.refit.surrogate import Surrogate, make_surrogate
from dpvalue.releasing.contributions import Contributions
from dpvalue.streams import Purpose, stream
from dpvalue.valuation.games import ListedGame, value_game
from dpvalue.valuation.refit import RefitGame, Refitting

_PARTIES, _REPEATS = 6, 3
_LEAST_RECORDS = 5
TOO_SMALL = 0.5
"""A party is too small for its budget if its noise hides half of the way to meaningless labels."""


@dataclass(frozen=True)
class Agreement:
    """What values are expected to have in common with retraining.

    Attributes:
        spearman: the rank correlation of Shapley values, the mean over rehearsals.
        error: its standard error.
        scaled: how many records made-up parties had for each of a real one: below 1 where public rows are too few.
        too_small: the numbers of units of the parties that are too small for the budget.
    """

    spearman: float
    error: float
    scaled: float
    too_small: tuple[int, ...]

    @property
    def cannot_work(self) -> bool:
        """Whether values are not expected to say anything, for sure."""
        return self.spearman + 2 * self.error < 0.3


@dataclass(frozen=True, eq=False)
class Made:
    """What made-up parties are like.

    Attributes:
        units: numbers of units.
        noise: in clipping norms.
        whole: whether parties are clipped as a whole.
        shape: of a row's features.
    """

    units: Ints
    noise: Floats
    whole: bool
    shape: tuple[int, ...]


def too_small(surrogate: Surrogate, made: Made) -> tuple[int, ...]:
    """Return the numbers of units of the parties whose noise hides what matters most."""
    hidden = []
    for party, (std, size) in enumerate(zip(made.noise.tolist(), made.units.tolist(), strict=True)):
        window = surrogate.window(party)
        if std * window.norm > TOO_SMALL * float(window.noise.norm()):
            hidden.append(int(size))
    return tuple(sorted(hidden))


def rehearse(
    model: Linear, public: PublicSet, made: Made, surrogate: Surrogate, engine: Engine, seed: int
) -> Agreement:
    """Return how well values are expected to agree with retraining, for parties like these.

    Formal guarantee: reads public rows and public sizes only.
    """
    found, scales = [], []
    for repeat in range(_REPEATS):
        once = _rehearsed(model, public, made, engine, stream(seed, Purpose.REHEARSAL, repeat))
        found.append(once[0])
        scales.append(once[1])
    error = float(np.std(found, ddof=1) / len(found) ** 0.5)
    return Agreement(float(np.mean(found)), error, float(np.mean(scales)), too_small(surrogate, made))


def _rehearsed(
    model: Linear, public: PublicSet, made: Made, engine: Engine, generator: np.random.Generator
) -> tuple[float, float]:
    """One rehearsal: the rank correlation with retraining, and by how much sizes were scaled down."""
    order = torch.from_numpy(generator.permutation(len(public.x))).to(public.x.device)
    judging, dealt = order[: len(order) // 2], order[len(order) // 2 :]
    picked = generator.permutation(len(made.units))[:_PARTIES]
    scale = min(1.0, len(dealt) / max(int(made.units[picked].sum()), 1))
    counts = np.maximum((made.units[picked] * scale).astype(np.int64), _LEAST_RECORDS)
    half = replace(public, x=public.x[judging], y=public.y[judging], metric="loss", l2=0.0)
    pool = Rows.of(model, replace(half, x=public.x[dealt], y=public.y[dealt]))
    parties = _parties(pool, counts, generator)
    seed, noise = int(generator.integers(2**31)), made.noise[picked]
    surrogate = make_surrogate(model, half, counts, noise, seed, made.whole)
    rows = _releases(model, surrogate, parties, replace(made, noise=noise), engine, generator)
    judged = Rows.of(model, half)
    refitting = Refitting(surrogate, judged, Evaluator(half, model, engine), seed)
    game = RefitGame(refitting, rows.to(public.x), noise, counts)
    values, truth = (value_game(played).values for played in (game, ListedGame(_truth(judged, parties))))
    return _spearman(values, truth), scale


def _parties(pool: Rows, counts: Ints, generator: np.random.Generator) -> list[Rows]:
    """Parties of so many rows, every third of which has a defect."""
    parties = []
    at = 0
    for number, count in enumerate(counts):
        own = pool.take(torch.arange(at, at + count) % len(pool.x))
        at += int(count)
        if number % 3 == 0:
            own, _ = DEFECTS[int(generator.integers(2 * len(DEFECTS))) % len(DEFECTS)](own, generator, int(count))
        parties.append(own)
    return parties


def _releases(
    model: Linear, surrogate: Surrogate, parties: list[Rows], made: Made, engine: Engine, generator: np.random.Generator
) -> Tensor:
    """What parties would release: descriptions behind the mechanism, with noise of the real sizes (n, size)."""
    x = torch.cat([party.x[:, :-1] for party in parties]).cpu().numpy()  # the constant is the model's
    y = torch.cat([party.y[:, 0] if party.regression else party.y.argmax(1) for party in parties]).cpu().numpy()
    sizes = np.array([len(party.x) for party in parties])
    like = surrogate.weights().to(engine.torch_device, engine.torch_dtype)
    rows = PublicRows.by_party(x.reshape(len(x), *made.shape), y, sizes, like.dtype, like.device)
    mechanism = Mechanism(1.0, 0.0, "party" if made.whole else "record", "zero_out")
    contributions = Contributions(surrogate.described(model, like), rows, mechanism, engine)
    clipped = contributions.along(like[None], like.new_ones(1), torch.arange(len(sizes), device=like.device)).cpu()
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


def _spearman(first: Floats, second: Floats) -> float:
    ranks = np.stack([np.argsort(np.argsort(values)).astype(np.float64) for values in (first, second)])
    table = np.asarray(np.corrcoef(ranks))
    return float(table[0, 1])
