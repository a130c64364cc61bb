r"""The refit game: what a model trained on a coalition's data would be worth, from one private description a party.

The model of a coalition S is that of the public loss with another slope,

    theta_S = argmin  public loss(theta) + (g_S - gradient of the public loss at theta_p) . theta + ridge/2 |theta|^2,

g_S being the mean gradient of its members' records at theta_p, weighed by their numbers of valid units (a surrogate
likelihood: Shamir et al. 2014; Jordan, Lee and Yang 2019). Its worth is

    v(S) = V(theta_S) - V(theta of as many meaningless labels) - what a fit to so many records loses (`refit.curves`),

so that a coalition of honest parties, and one of meaningless labels, is worth what retraining on public rows says; the
surrogate tells what else sets S apart. Nobody, and a coalition without a valid unit, is worth the model without data.
A utility that is no multiple of the loss has no curves: there v(S) is V(theta_S).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpvalue.arrays import Bools, Floats, Ints
from dpvalue.engine.evaluator import Evaluator
from dpvalue.games.solving import ReleaseGame
from dpvalue.methods.fits import Curves, Rows, learning_curves
from dpvalue.methods.reading import Reading, read, without_noise
from dpvalue.methods.surrogate import RIDGE, Surrogate

_STEPS, _CLOSE, _REMEMBERED = 100, 1e-8, 6
_TURN = 6  # steps with the public curvature, before the fits' own is made
_LEAST_BATCH, _MOST_BATCH, _NUMBERS = 64, 1024, 2**19  # coalitions fitted together: their outputs stay in a cache
_MOST_KEPT = 8192  # models of coalitions
_MOST_CURVED = 40  # features: of more, a curvature costs more than the steps that it saves
_MOST_SQUARES = 2**24  # products of features of all public rows, for curvatures
_WAY = np.linspace(0.0, 1.5, 16)
REFIT = "released a description: what is valued is what retraining on a coalition's data would give, the refit game"


class Refitting:
    """Public rows, ready to be fitted with other slopes: the same for every table of the same job.

    Args:
        surrogate: what parties were asked.
        rows: the public rows.
        evaluate: the utility of models.
        seed: of the learning curves.
    """

    def __init__(self, surrogate: Surrogate, rows: Rows, evaluate: Evaluator, seed: int) -> None:
        self.surrogate, self.evaluate = surrogate, evaluate
        curved = evaluate.public.metric.of_loss is not None
        self._curves: Curves | None = learning_curves(rows, seed, evaluate.public.l2) if curved else None
        origin = surrogate.origin.to(rows.x)
        values, vectors = torch.linalg.eigh(rows.curvature(origin))
        like = evaluate.public.x  # coalitions are many: they are fitted in the precision of the engine
        self.rows = Rows(rows.x.to(like), rows.y.to(like), rows.regression)
        self._mirrored = not rows.regression and rows.y.shape[1] == 2  # slopes and models of two classes are
        self._origin, self._slope = origin.to(like), rows.mean_gradient(origin).to(like)
        self._vectors, self._inverse = vectors.to(like), (1 / (values.clamp_min(0) + RIDGE)).to(like)
        way = torch.from_numpy(_WAY).to(rows.x)[:, None] * surrogate.noise.to(rows.x)
        fitted = self.fitted((surrogate.clean.to(rows.x) + way).to(like))
        losses = rows.mean_loss(fitted.to(rows.x)) + evaluate.public.l2 * fitted.to(rows.x).square().sum(1)
        self._way = losses.cpu().numpy()

    def fitted(self, gradients: Tensor, start: Tensor | None = None, inverses: Tensor | None = None) -> Tensor:
        """Return the models (c, d) of coalitions with these mean gradients (c, d) at the public model.

        Steps begin at `start` (c, d) with its `inverse_curvatures`; at the public model, with its own, if these are
        left out.
        """
        begin = self._origin.expand(len(gradients), -1) if start is None else start
        batch = min(max(_NUMBERS // self.rows.y.numel(), _LEAST_BATCH), _MOST_BATCH)
        found = []
        for first in range(0, len(gradients), batch):
            part = slice(first, first + batch)
            own = None if inverses is None else inverses[part]
            found.append(self._fitted(gradients[part] - self._slope, begin[part], own))
        return torch.cat(found)

    def inverse_curvatures(self, theta: Tensor) -> Tensor | None:
        """Return the inverses (c, d/2, d/2) of the second derivatives of what is minimised, at models of two classes.

        The parameters of the classes mirror each other, as slopes do: these are those of either. None for numbers,
        which curve everywhere as at the public model, for more classes, and for many features or public rows.
        """
        x, features = self.rows.x, self.rows.x.shape[1]
        if not self._mirrored or features > _MOST_CURVED or len(x) * features**2 > _MOST_SQUARES:
            return None
        chances = (2 * theta[:, :features] @ x.T).sigmoid_()
        curved = (chances * (1 - chances)) @ (x[:, :, None] * x[:, None]).flatten(1) * (2 / len(x))
        ridge = RIDGE * torch.eye(features).to(x)
        inverses: Tensor = torch.linalg.inv(curved.unflatten(1, (features, features)) + ridge)
        return inverses

    def _fitted(self, shift: Tensor, theta: Tensor, inverses: Tensor | None) -> Tensor:
        """The models of a batch: L-BFGS that begins with a known curvature, steps shortened where they would go up.

        Fits that are done leave the batch once they are half of it. What the public curvature does not fit in a few
        steps goes on with its own.
        """
        rounding = 8 * torch.finfo(shift.dtype).eps
        (now, slope), memory = self._at(theta, shift), _Memory(self._vectors, self._inverse, inverses)
        length = torch.ones(len(shift)).to(shift)
        found, here = theta.clone(), torch.arange(len(shift), device=shift.device)
        for number in range(_STEPS):
            if number == _TURN and inverses is None and (own := self.inverse_curvatures(theta)) is not None:
                memory = _Memory(self._vectors, self._inverse, own)
            step = memory.step(slope)
            going = (slope * step).sum(1) >= 2 * _CLOSE  # about twice what is left to gain
            count = int(going.sum())
            if count == 0:
                break
            if 2 * count <= len(going):
                found[here] = theta
                here, shift, theta, slope, step, now, length = (
                    part[going] for part in (here, shift, theta, slope, step, now, length)
                )
                memory.keep(going)
            moved = theta - length[:, None] * step
            then, after = self._at(moved, shift)
            better = then <= now + rounding * (1 + now.abs())
            keep = better[:, None]
            memory.add(torch.where(keep, moved - theta, 0.0), torch.where(keep, after - slope, 0.0))
            theta, slope = torch.where(keep, moved, theta), torch.where(keep, after, slope)
            now, length = torch.where(better, then, now), torch.where(better, 1.0, length / 4)
        found[here] = theta
        return found

    def _at(self, theta: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """What is minimised (b,), and its slope (b, d), at models of coalitions whose slopes differ by `shift`."""
        rows = self.rows
        if self._mirrored:  # one output is the other's negative: half of the work
            apart = 2 * theta[:, : rows.x.shape[1]] @ rows.x.T
            losses = functional.softplus(apart) - apart * rows.y[:, 0]
            half = (apart.sigmoid_() - rows.y[:, 0]) @ rows.x
            residuals = torch.cat([half, -half], dim=1)
        else:
            losses, all_residuals = rows.losses_and_residuals(rows.outputs(theta))
            residuals = (all_residuals @ rows.x).flatten(1)
        slope = residuals / len(rows.x) + shift + RIDGE * theta
        return losses.mean(-1) + (shift * theta).sum(1) + RIDGE / 2 * theta.square().sum(1), slope

    def correction(self, records: Floats, meaningless: Floats, copies: Floats) -> Floats:
        """Return what is added to the utility of a coalition's refitted model."""
        if self._curves is None:
            return np.zeros(len(records))
        less = np.interp(meaningless, _WAY, self._way) - self._curves(records, meaningless, copies)
        return np.asarray(self.evaluate.slope * less)


class _Memory:
    """The last steps of a batch of fits, and what they say of the curvature, beside the public one or the fits' own."""

    def __init__(self, vectors: Tensor, inverse: Tensor, own: Tensor | None) -> None:
        self._vectors, self._inverse, self._own = vectors, inverse, own
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, moved: Tensor, changed: Tensor) -> None:
        """Take note of steps (b, d) and of what they did to slopes; steps that were not taken are zero."""
        bent = (moved * changed).sum(1, keepdim=True)
        weight = torch.where(bent > 0, 1 / bent.clamp_min(1e-30), 0.0)
        self._pairs = [*self._pairs, (moved, changed, weight)][-_REMEMBERED:]

    def keep(self, which: Tensor) -> None:
        """Forget the fits of a batch that are not among these."""
        self._pairs = [(moved[which], changed[which], weight[which]) for moved, changed, weight in self._pairs]
        self._own = None if self._own is None else self._own[which]

    def step(self, slope: Tensor) -> Tensor:
        """Return the steps (b, d) from slopes: the two loops of L-BFGS."""
        direction, shares = slope, []
        for moved, changed, weight in reversed(self._pairs):
            share = weight * (moved * direction).sum(1, keepdim=True)
            direction = direction - share * changed
            shares.append(share)
        if self._own is None:
            direction = ((direction @ self._vectors) * self._inverse) @ self._vectors.T
        else:
            half = (self._own @ direction[:, : self._own.shape[1], None]).squeeze(-1)
            direction = torch.cat([half, -half], dim=1)
        for (moved, changed, weight), share in zip(self._pairs, reversed(shares), strict=True):
            direction = direction + moved * (share - weight * (changed * direction).sum(1, keepdim=True))
        return direction


class _Fits:
    """The models (c, d) of some coalitions, and the curvature there."""

    def __init__(self, refitting: Refitting, of: bytes, theta: Tensor) -> None:
        self._refitting, self.of, self.theta = refitting, of, theta

    @cached_property
    def inverses(self) -> Tensor | None:
        """`Refitting.inverse_curvatures` of the models."""
        return self._refitting.inverse_curvatures(self.theta)


class RefitGame(ReleaseGame):
    """What coalitions of the parties of a table of descriptions are worth; made by `Table.game`.

    Formal guarantee: reads the table and public things only; what it returns is post-processing.

    Args:
        refitting: the public side.
        rows: the releases (n, m + 2).
        noise_std: the noise in them (n,).
        units: the parties' public numbers of units (n,).
        near: a game of releases near these: its models are where the fits of the same coalitions begin.
    """

    def __init__(
        self, refitting: Refitting, rows: Tensor, noise_std: Floats, units: Ints, near: RefitGame | None = None
    ) -> None:
        self._near: RefitGame | None = near
        self._fits: _Fits | None = None
        self.refitting, self.rows, self.n = refitting, rows, len(rows)
        self._noise_std, self._units = noise_std, units
        self.readings: list[Reading] = [read(*given) for given in self._given()]

    def _given(self) -> Iterator[tuple[Surrogate, int, Tensor, float, int, bool]]:
        """What is known of each party's release."""
        surrogate, regression = self.refitting.surrogate, self.refitting.rows.regression
        known = zip(self.rows.cpu(), self._noise_std.tolist(), self._units.tolist(), strict=True)
        for party, (row, std, size) in enumerate(known):
            yield surrogate, party, row, std, size, regression

    def without_noise(self, generator: np.random.Generator) -> RefitGame:
        """Return the game of what parties would have released without noise: one draw, given what they have."""
        rows = torch.stack([without_noise(*given, generator) for given in self._given()])
        return RefitGame(self.refitting, rows.to(self.rows), np.zeros(self.n), self._units, self)

    def with_rows(self, rows: Tensor) -> RefitGame:
        """Return the game of another table of the same parties."""
        return RefitGame(self.refitting, rows, self._noise_std, self._units, self)

    def worth(self, coalitions: Bools) -> Floats:
        """Return the worth of each coalition, all of them refitted at once."""
        parties = self.readings
        units, copies, meaningless, further = (
            np.array([getattr(reading, name) for reading in parties])
            for name in ("units", "copies", "meaningless", "further_off")
        )
        weights = coalitions * units
        records = weights.sum(1)
        some = records > 0
        weights, records = weights[some], records[some]
        repeated, spread = weights @ copies, weights @ (copies * further)
        worths = np.empty(len(coalitions))
        nobody = torch.zeros(1, len(self.refitting.surrogate.origin)).to(self.rows)
        worths[~some] = float(self.refitting.evaluate(nobody))
        if not some.any():
            return worths
        gradients = torch.stack([reading.gradient for reading in parties])
        means = (torch.from_numpy(weights / records[:, None]) @ gradients).to(self.rows)
        which = np.packbits(coalitions[some]).tobytes()
        near = None if self._near is None else self._near._fits
        if near is not None and near.of == which:
            theta = self.refitting.fitted(means, near.theta, near.inverses)
        else:
            theta = self.refitting.fitted(means)
        if len(theta) <= _MOST_KEPT:
            self._fits = _Fits(self.refitting, which, theta)
        utilities = self.refitting.evaluate(theta).cpu().numpy()
        noise = weights @ meaningless / records
        worths[some] = utilities + self.refitting.correction(records**2 / spread, noise, repeated / records)
        return worths
