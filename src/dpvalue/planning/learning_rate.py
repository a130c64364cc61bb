"""Choose the learning rate on the public set, over all directions or along a line.

Stand-ins for the parties consist of public rows, as many as the parties have, with noise of the planned size. No
private row is read, so the choice spends nothing.
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
    """Choose the learning rate over all directions, from public inputs."""

    def learning_rate(self, mechanism: Mechanism, own_gradients: bool, releases: int) -> float:
        """Return the rate with the best model after one pass: trained on half of the public set, scored on the other.

        Args:
            mechanism: clipping and noise of one release.
            own_gradients: whether a step uses one release, instead of the mean of all `releases`.
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
            judge = replace(self.public, x=self.public.x[halves[1]], y=self.public.y[halves[1]], metric=LOSS, l2=0.0)
            score = Evaluator(judge, self.model, self.engine)(final).cpu().numpy()
            scores += np.where(np.isfinite(score), score, -np.inf)
        return RATES[int(scores.argmax())]

    def _contributions(self, parties: PublicRows, mechanism: Mechanism) -> Contributions:
        return Contributions(self.model, parties, mechanism.for_public_rows(), self.engine)

    def _stand_ins(self, generator: np.random.Generator, rows: Ints, sizes: Ints, most: int) -> PublicRows:
        """At most `most` stand-ins for parties, of random rows from `rows`."""
        stand_in_sizes = np.minimum(generator.choice(sizes, min(len(sizes), most), replace=False), _MOST_ROWS)
        return self.public.stand_ins(generator.choice(rows, stand_in_sizes.sum()), stand_in_sizes, self.initial)

    def _noise(self, generator: np.random.Generator, count: int) -> Tensor:
        normals = generator.standard_normal((count, len(self.initial)))
        return torch.from_numpy(normals).to(self.initial)

    def _rates(self) -> Tensor:
        return torch.tensor(RATES, dtype=self.initial.dtype, device=self.initial.device)[:, None]

    def _pass_with_own_gradients(self, contributions: Contributions, generator: np.random.Generator) -> Tensor:
        """The models (rates, d) after one pass of noisy gradient steps, for all rates."""
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
        """The models (rates, d) after the steps of all parties, each by the mean of its releases.

        The first release is at the initial model, the others are along a walk. On average over stand-ins, after a
        fraction u of n parties the model has moved by u n times their mean release, plus noise of sqrt(u n) times that
        of one table row.
        """
        n, rates = len(self.sizes), self._rates()
        parties = torch.arange(contributions.n, device=self.initial.device)
        std = float(self._release_std(contributions.mechanism)) / releases**0.5
        noise = self._noise(generator, 1) * (std * n**0.5)
        first = contributions.gradients_at(self.initial.expand(len(parties), -1), parties).mean(0).to(self.initial)
        mean = first.expand(len(RATES), -1)
        if releases > 1:
            sampled = parties[: max(1, len(parties) // len(_WALK_FRACTIONS))]
            mean_along = torch.zeros(len(RATES), len(first)).to(first)
            batch_size = max(1, self.engine.piece(3 * len(first), least=2048) // len(sampled))
            for u in _WALK_FRACTIONS:
                points = self.initial - rates * (u * n * first + u**0.5 * noise)
                for total, batch in zip(mean_along.split(batch_size), points.split(batch_size), strict=True):
                    gradients = contributions.gradients_at(
                        batch.repeat_interleave(len(sampled), dim=0), sampled.repeat(len(batch))
                    )
                    total += gradients.unflatten(0, (len(batch), len(sampled))).mean(1) / len(_WALK_FRACTIONS)
            mean = (first + (releases - 1) * mean_along) / releases
        final: Tensor = self.initial - rates * (n * mean + noise)
        return final

    def _release_std(self, mechanism: Mechanism) -> Tensor:
        """The noise standard deviation of one release, as root mean square over the parties."""
        return mechanism.noise_std(torch.from_numpy(self.units)).square().mean().sqrt()


_DISTANCES = tuple(10 ** (exponent / 8) for exponent in range(-24, 25))  # a thousandth to a thousand

_MOST_LINE_ROWS = 256


def rate_on_line(
    situation: Situation, model: Model, initial: Tensor, basis: Basis, mechanism: Mechanism, noise_factor: float
) -> float:
    """Return the rate at which the steps of all parties reach 90% of the largest decrease of the public loss.

    The target is the nearest such point on the line. All parties reach it if they resemble public rows and their noise
    adds up to three standard deviations. Beyond the minimum, the marginals of late parties would change sign; far
    beyond, where the loss is flat, marginals would vanish.
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
    row_indices = np.arange(0, len(public.x), -(-len(public.x) // _MOST_LINE_ROWS))
    count = len(row_indices)
    rows = public.stand_ins(row_indices, np.ones(count, dtype=np.int64), initial)
    contributions = Contributions(model, rows, replace(mechanism, unit="party"), engine)
    everyone = torch.arange(count, device=initial.device)
    step = float(mechanism.scale.read(contributions.mean_gradients(basis.points, basis.shares, everyone)).mean())
    std = (
        noise_factor
        * mechanism.scale.gain
        * float(mechanism.noise_std(torch.from_numpy(situation.units)).square().mean().sqrt())
    )
    reach = situation.n * max(step, 0.0) + 3 * std * situation.n**0.5
    return best / reach if reach > 0 else 1.0


def _unit_of_length(model: Model, initial: Tensor, basis: Basis, public: PublicSet) -> float:
    """The unit of length on the line: the length of a path, or the distance that changes public outputs by about 1."""
    if len(basis.points) > 1:
        return float(basis.points.abs().max())
    step = 1e-3
    outputs = model.outputs(torch.stack([initial, initial - step]), model.inputs(public.x))
    change = float((outputs[1] - outputs[0]).square().mean().sqrt()) / step
    return 1 / change if np.isfinite(change) and change > 0 else 1.0
