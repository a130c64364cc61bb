"""Choosing the learning rate on the public set alone, over all directions or along a line.

Rows of the public set stand in for the parties ("stand-ins", as many rows each as the parties publicly have), and noise
of the planned size stands in for the mechanism's. No private row is read, so nothing here costs privacy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.rows import PublicRows
from dpvalue.data.utility import LOSS, PublicSet
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError
from dpvalue.models import Model
from dpvalue.party.contributions import Contributions
from dpvalue.planning.folds import PublicFacts
from dpvalue.planning.situation import Situation
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.projection import Basis
from dpvalue.streams import Purpose, stream

RATES = tuple(10 ** (exponent / 4) for exponent in range(-24, 5))  # 1e-6 to 10

_REPEATS = 2

_MOST_STAND_INS, _MOST_ROWS = 128, 64

_MOST_STEPS, _MOST_DRAWN = 1000, 8192

_WALK_FRACTIONS = (0.125, 0.375, 0.625, 0.875)


class PublicTuner(PublicFacts):
    """What the learning rate is chosen from."""

    def learning_rate(self, mechanism: Mechanism, own_gradients: bool, releases: int) -> float:
        """Return the rate with the best model after one pass: trained on half of the public set, scored on the other.

        Args:
            mechanism: how stand-ins are clipped, and how large the noise of one release is.
            own_gradients: whether a step uses the own release alone, or the mean of all `releases`.
            releases: releases per party.
        """
        scores = np.zeros(len(RATES))
        for repeat in range(_REPEATS):
            generator = stream(self.seed, Purpose.TUNING, 1 + repeat)
            halves = np.array_split(generator.permutation(len(self.public.x)), 2)
            rows = max(1, int(self.sizes.mean()))
            most = max(_MOST_STAND_INS, min(_MOST_STEPS, _MOST_DRAWN // rows)) if own_gradients else _MOST_STAND_INS
            parties = self._stand_ins(generator, halves[0], self.sizes, most)
            contributions = self._contributions(parties, mechanism)
            if own_gradients:
                final = self._pass_with_own_gradients(contributions, generator)
            else:
                final = self._pass_with_a_table(contributions, releases, generator)
            other = replace(self.public, x=self.public.x[halves[1]], y=self.public.y[halves[1]], metric=LOSS, l2=0.0)
            score = Evaluator(other, self.model, self.engine)(final).cpu().numpy()
            scores += np.where(np.isfinite(score), score, -np.inf)
        return RATES[int(scores.argmax())]

    def _contributions(self, parties: PublicRows, mechanism: Mechanism) -> Contributions:
        return Contributions(self.model, parties, mechanism.for_public_rows(), self.engine)

    def _stand_ins(self, generator: np.random.Generator, rows: Ints, sizes: Ints, most: int) -> PublicRows:
        """At most so many stand-ins for parties, each of rows drawn from the given public rows."""
        chosen = np.minimum(generator.choice(sizes, min(len(sizes), most), replace=False), _MOST_ROWS)
        return self.public.stand_ins(generator.choice(rows, chosen.sum()), chosen, self.initial)

    def _noise(self, generator: np.random.Generator, count: int) -> Tensor:
        drawn = generator.standard_normal((count, len(self.initial)))
        return torch.from_numpy(drawn).to(self.initial)

    def _rates(self) -> Tensor:
        return torch.tensor(RATES, dtype=self.initial.dtype, device=self.initial.device)[:, None]

    def _pass_with_own_gradients(self, contributions: Contributions, generator: np.random.Generator) -> Tensor:
        """One pass of noisy gradient steps, for all rates side by side: the models (rates, d) at its end."""
        rates, theta = self._rates(), self.initial.repeat(len(RATES), 1)
        std = float(self._release_std(contributions.mechanism))
        for number in range(contributions.n):
            party = torch.full((len(RATES),), number, device=theta.device)
            step = contributions.gradients_at(theta, party).to(theta.dtype)
            if std:
                step = step + std * self._noise(generator, 1)
            theta = theta - rates * step
        return theta

    def _pass_with_a_table(self, contributions: Contributions, releases: int, generator: np.random.Generator) -> Tensor:
        """The model after all parties moved it by the mean of their releases.

        The first release is taken at the initial model, the rest along a walk. In the mean over stand-ins: after a
        fraction u of n parties the model has moved by u n times their mean release, and by noise of sqrt(u n) times
        that of one party's table row.
        """
        n, rates = len(self.sizes), self._rates()
        parties = torch.arange(contributions.n, device=self.initial.device)
        std = float(self._release_std(contributions.mechanism)) / releases**0.5
        noise = self._noise(generator, 1) * (std * n**0.5)
        first = contributions.gradients_at(self.initial.expand(len(parties), -1), parties).mean(0).to(self.initial)
        mean = first.expand(len(RATES), -1)
        if releases > 1:
            sampled = parties[: max(1, len(parties) // len(_WALK_FRACTIONS))]
            along = torch.zeros(len(RATES), len(first)).to(first)
            together = max(1, self.engine.piece(3 * len(first), least=2048) // len(sampled))
            for u in _WALK_FRACTIONS:
                points = self.initial - rates * (u * n * first + u**0.5 * noise)
                for total, few in zip(along.split(together), points.split(together), strict=True):
                    gradients = contributions.gradients_at(
                        few.repeat_interleave(len(sampled), dim=0), sampled.repeat(len(few))
                    )
                    total += gradients.unflatten(0, (len(few), len(sampled))).mean(1) / len(_WALK_FRACTIONS)
            mean = (first + (releases - 1) * along) / releases
        moved: Tensor = self.initial - rates * (n * mean + noise)
        return moved

    def _release_std(self, mechanism: Mechanism) -> Tensor:
        """The noise of one release, as root mean square over the parties."""
        return mechanism.noise_std(torch.from_numpy(self.units)).square().mean().sqrt()


_DISTANCES = tuple(10 ** (exponent / 8) for exponent in range(-24, 25))  # a thousandth to a thousand

_MOST_LINE_ROWS = 256


def rate_on_line(
    situation: Situation, model: Model, initial: Tensor, basis: Basis, mechanism: Mechanism, mixed: float
) -> float:
    """Return the rate at which all parties together move the model to where most of what the line offers is reached.

    That is the nearest point with nine tenths of the best fall of the public loss. It is reached if the parties are
    like public rows and their noise adds up to three standard deviations: a walk past the best point would turn the
    signs of late marginals, and far out, where the loss is flat, marginals would vanish.
    """
    public, engine = situation.public, situation.settings.engine
    unit = _unit_of_length(model, initial, basis, public)
    lengths = torch.tensor([unit * distance for distance in _DISTANCES], dtype=initial.dtype, device=initial.device)
    evaluate = Evaluator(replace(public, metric=LOSS, l2=0.0), model, engine)
    falls = (evaluate(-lengths[:, None]) - evaluate(initial[None])).nan_to_num(0.0, 0.0, 0.0)
    if not float(falls.max()) > 0:
        raise DpvalueError(
            "no step along the public direction lowers the public loss: scale the features (preprocess=)"
        )
    best = float(lengths[int((falls >= 0.9 * falls.max()).nonzero()[0, 0])])
    evenly = np.arange(0, len(public.x), -(-len(public.x) // _MOST_LINE_ROWS))
    count = len(evenly)
    rows = public.stand_ins(evenly, np.ones(count, dtype=np.int64), initial)
    alone = Contributions(model, rows, replace(mechanism, unit="party"), engine)
    everyone = torch.arange(count, device=initial.device)
    step = float(mechanism.scale.read(alone.mean_gradients(basis.points, basis.shares, everyone)).mean())
    std = (
        mixed
        * mechanism.scale.gain
        * float(mechanism.noise_std(torch.from_numpy(situation.units)).square().mean().sqrt())
    )
    reach = situation.n * max(step, 0.0) + 3 * std * situation.n**0.5
    return best / reach if reach > 0 else 1.0


def _unit_of_length(model: Model, initial: Tensor, basis: Basis, public: PublicSet) -> float:
    """How far is far on this line: to the end of a path, or until public outputs have changed by about 1."""
    if len(basis.points) > 1:
        return float(basis.points.abs().max())
    step = 1e-3
    outputs = model.outputs(torch.stack([initial, initial - step]), model.inputs(public.x))
    change = float((outputs[1] - outputs[0]).square().mean().sqrt()) / step
    return 1 / change if np.isfinite(change) and change > 0 else 1.0
