r"""The refit game: the utility of retraining on a coalition's data, estimated from one private description per party.

The model of a coalition S minimises the public loss with a shifted gradient,

    theta_S = argmin  public loss(theta) + (g_S - gradient of the public loss at theta_p) . theta + ridge/2 |theta|^2,

where g_S is the mean gradient of its members' records at theta_p, weighted by their numbers of valid units (a
surrogate likelihood: Shamir et al. 2014; Jordan, Lee and Yang 2019). Its worth is

    v(S) = V(theta_S) - V(theta with the same share of meaningless labels) - loss after training on |S| records,

where the last term comes from learning curves of public rows (`methods.fits`). So coalitions of honest parties, and of
meaningless labels, have the worth of retraining on public rows; the surrogate adds all other differences. The empty
coalition, and one without a valid unit, has the worth of the model without data. For a utility that is no multiple of
the loss there are no curves, and v(S) = V(theta_S).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
_TURN = 6  # steps with the public curvature before each fit computes its own
_LEAST_BATCH, _MOST_BATCH, _NUMBERS = 64, 1024, 2**19  # coalitions per batch, whose outputs fit in a cache
_MOST_KEPT = 8192  # models of coalitions
_MOST_CURVED = 40  # features; above that, a curvature costs more than the steps it saves
_MOST_SQUARES = 2**24  # products of features of all public rows, for curvatures
_WAY = np.linspace(0.0, 1.5, 16)
REFIT = "released a description: what is valued is what retraining on a coalition's data would give, the refit game"


class Refitting:
    """Fits of public rows with shifted gradients; shared by all tables of a job.

    Args:
        surrogate: the public side of the descriptions.
        rows: the public rows.
        evaluate: the utility of models.
        seed: seed of the learning curves.
    """

    def __init__(self, surrogate: Surrogate, rows: Rows, evaluate: Evaluator, seed: int) -> None:
        self.surrogate, self.evaluate = surrogate, evaluate
        curved = evaluate.public.metric.of_loss is not None
        self._curves: Curves | None = None
        if curved:
            self._curves = learning_curves(rows, seed, evaluate.engine, evaluate.public.l2)
        origin = surrogate.origin.to(rows.x)
        values, vectors = torch.linalg.eigh(rows.curvature(origin))
        engine_rows = evaluate.public.x  # fits use the precision of the engine
        self.rows = Rows(rows.x.to(engine_rows), rows.y.to(engine_rows), rows.regression)
        self._mirrored = not rows.regression and rows.y.shape[1] == 2  # gradients and models of two classes are
        self._origin, self._slope = origin.to(engine_rows), rows.mean_gradient(origin).to(engine_rows)
        self._vectors, self._inverse = vectors.to(engine_rows), (1 / (values.clamp_min(0) + RIDGE)).to(engine_rows)
        way = torch.from_numpy(_WAY).to(rows.x)[:, None] * surrogate.noise.to(rows.x)
        fitted = self.fit((surrogate.clean.to(rows.x) + way).to(engine_rows))
        losses = rows.mean_loss(fitted.to(rows.x)) + evaluate.public.l2 * fitted.to(rows.x).square().sum(1)
        self._way = losses.cpu().numpy()

    def fit(self, gradients: Tensor, start: Tensor | None = None, inverses: Tensor | None = None) -> Tensor:
        """Return the models (c, d) of coalitions with these mean gradients (c, d) at the public model.

        Steps start at `start` (c, d) with its `inverse_curvatures`; by default at the public model, with its own.
        """
        begin = self._origin.expand(len(gradients), -1) if start is None else start
        batch = min(max(_NUMBERS // self.rows.y.numel(), _LEAST_BATCH), _MOST_BATCH)
        pieces = [slice(first, first + batch) for first in range(0, len(gradients), batch)]
        tasks = (
            FitTask(self, gradients[piece] - self._slope, begin[piece], None if inverses is None else inverses[piece])
            for piece in pieces
        )
        return torch.cat(list(self.evaluate.engine.tasks(fit_batch, tasks)))

    def inverse_curvatures(self, theta: Tensor) -> Tensor | None:
        """Return the inverse Hessians (c, d/2, d/2) of the objective, at models of two classes.

        The parameters of the two classes have opposite signs, so half of the Hessian is enough. None for regression,
        whose Hessian is constant, for more classes, and for many features or public rows.
        """
        x, features = self.rows.x, self.rows.x.shape[1]
        if not self._mirrored or features > _MOST_CURVED or len(x) * features**2 > _MOST_SQUARES:
            return None
        chances = (2 * theta[:, :features] @ x.T).sigmoid_()
        curved = (chances * (1 - chances)) @ (x[:, :, None] * x[:, None]).flatten(1) * (2 / len(x))
        ridge = RIDGE * torch.eye(features).to(x)
        inverses: Tensor = torch.linalg.inv(curved.unflatten(1, (features, features)) + ridge)
        return inverses

    def fit_batch(self, shift: Tensor, theta: Tensor, inverses: Tensor | None) -> Tensor:
        """Return the models of a batch, by L-BFGS with an initial curvature; steps that add to the loss are shortened.

        Converged fits leave the batch once they are half of it. Fits that need more than a few steps switch from the
        public curvature to their own.
        """
        rounding = 8 * torch.finfo(shift.dtype).eps
        (now, slope), memory = self._objective(theta, shift), _Memory(self._vectors, self._inverse, inverses)
        length = torch.ones(len(shift)).to(shift)
        models, places = theta.clone(), torch.arange(len(shift), device=shift.device)
        for number in range(_STEPS):
            if number == _TURN and inverses is None and (inverses_now := self.inverse_curvatures(theta)) is not None:
                memory = _Memory(self._vectors, self._inverse, inverses_now)
            step = memory.step(slope)
            active = (slope * step).sum(1) >= 2 * _CLOSE  # about twice the remaining decrease
            count = int(active.sum())
            if count == 0:
                break
            if 2 * count <= len(active):
                models[places] = theta
                places, shift, theta, slope, step, now, length = (
                    part[active] for part in (places, shift, theta, slope, step, now, length)
                )
                memory.keep(active)
            updated = theta - length[:, None] * step
            then, after = self._objective(updated, shift)
            better = then <= now + rounding * (1 + now.abs())
            keep = better[:, None]
            memory.add(torch.where(keep, updated - theta, 0.0), torch.where(keep, after - slope, 0.0))
            theta, slope = torch.where(keep, updated, theta), torch.where(keep, after, slope)
            now, length = torch.where(better, then, now), torch.where(better, 1.0, length / 4)
        models[places] = theta
        return models

    def _objective(self, theta: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        """The objective (b,) and its gradient (b, d), at models of coalitions with the gradient shift `shift`."""
        rows = self.rows
        if self._mirrored:  # the outputs have opposite signs: half of the work
            margins = 2 * theta[:, : rows.x.shape[1]] @ rows.x.T
            losses = functional.softplus(margins) - margins * rows.y[:, 0]
            half = (margins.sigmoid_() - rows.y[:, 0]) @ rows.x
            residuals = torch.cat([half, -half], dim=1)
        else:
            losses, all_residuals = rows.losses_and_residuals(rows.outputs(theta))
            residuals = (all_residuals @ rows.x).flatten(1)
        slope = residuals / len(rows.x) + shift + RIDGE * theta
        return losses.mean(-1) + (shift * theta).sum(1) + RIDGE / 2 * theta.square().sum(1), slope

    def correction(self, records: Floats, meaningless: Floats, copies: Floats) -> Floats:
        """Return the correction to the utility of the refitted models, from learning curves (c,)."""
        if self._curves is None:
            return np.zeros(len(records))
        loss_difference = np.interp(meaningless, _WAY, self._way) - self._curves(records, meaningless, copies)
        return np.asarray(self.evaluate.slope * loss_difference)


@dataclass(frozen=True, eq=False)
class FitTask:
    """A batch of coalitions to fit: the arguments of `Refitting.fit_batch`."""

    refitting: Refitting
    shift: Tensor
    theta: Tensor
    inverses: Tensor | None


def fit_batch(task: FitTask) -> Tensor:
    """Return the models of a batch."""
    return task.refitting.fit_batch(task.shift, task.theta, task.inverses)


class _Memory:
    """The L-BFGS memory of a batch: its last steps, and the initial inverse curvature (public, or each fit's own)."""

    def __init__(self, vectors: Tensor, inverse: Tensor, own_inverse: Tensor | None) -> None:
        self._vectors, self._inverse, self._own_inverse = vectors, inverse, own_inverse
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, step: Tensor, slope_change: Tensor) -> None:
        """Add steps (b, d) and the changes of the gradient; rejected steps are zero."""
        curvature = (step * slope_change).sum(1, keepdim=True)
        weight = torch.where(curvature > 0, 1 / curvature.clamp_min(1e-30), 0.0)
        self._pairs = [*self._pairs, (step, slope_change, weight)][-_REMEMBERED:]

    def keep(self, index: Tensor) -> None:
        """Keep only these fits of the batch."""
        self._pairs = [(step[index], slope_change[index], weight[index]) for step, slope_change, weight in self._pairs]
        self._own_inverse = None if self._own_inverse is None else self._own_inverse[index]

    def step(self, slope: Tensor) -> Tensor:
        """Return the steps (b, d) for these gradients, by the two-loop recursion of L-BFGS."""
        direction, coefficients = slope, []
        for step, slope_change, weight in reversed(self._pairs):
            coefficient = weight * (step * direction).sum(1, keepdim=True)
            direction = direction - coefficient * slope_change
            coefficients.append(coefficient)
        if self._own_inverse is None:
            direction = ((direction @ self._vectors) * self._inverse) @ self._vectors.T
        else:
            half = (self._own_inverse @ direction[:, : self._own_inverse.shape[1], None]).squeeze(-1)
            direction = torch.cat([half, -half], dim=1)
        for (step, slope_change, weight), coefficient in zip(self._pairs, reversed(coefficients), strict=True):
            direction = direction + step * (coefficient - weight * (slope_change * direction).sum(1, keepdim=True))
        return direction


class _Fits:
    """The models (c, d) of a batch of coalitions, and the curvature there."""

    def __init__(self, refitting: Refitting, key: bytes, theta: Tensor) -> None:
        self._refitting, self.key, self.theta = refitting, key, theta

    @cached_property
    def inverses(self) -> Tensor | None:
        """`Refitting.inverse_curvatures` of the models."""
        return self._refitting.inverse_curvatures(self.theta)


class RefitGame(ReleaseGame):
    """The refit game of a table of descriptions; made by `Table.game`.

    Formal guarantee: reads the table and public inputs only; its results are post-processing.

    Args:
        refitting: the public side.
        rows: the releases (n, m + 2).
        noise_std: noise standard deviation of each row (n,).
        units: public number of units of each party (n,).
        near: a game of similar releases; its models start the fits of the same coalitions.
    """

    def __init__(
        self, refitting: Refitting, rows: Tensor, noise_std: Floats, units: Ints, near: RefitGame | None = None
    ) -> None:
        self._near: RefitGame | None = near
        self._fits: _Fits | None = None
        self.refitting, self.rows, self.n = refitting, rows, len(rows)
        self._noise_std, self._units = noise_std, units
        self.readings: list[Reading] = [read(*arguments) for arguments in self._reading_arguments()]

    def _reading_arguments(self) -> Iterator[tuple[Surrogate, int, Tensor, float, int, bool]]:
        """The arguments of `reading.read` for each party."""
        surrogate, regression = self.refitting.surrogate, self.refitting.rows.regression
        releases = zip(self.rows.cpu(), self._noise_std.tolist(), self._units.tolist(), strict=True)
        for party, (row, std, size) in enumerate(releases):
            yield surrogate, party, row, std, size, regression

    def without_noise(self, generator: np.random.Generator) -> RefitGame:
        """Return the game of a posterior draw of the releases without noise."""
        rows = torch.stack([without_noise(*arguments, generator) for arguments in self._reading_arguments()])
        return RefitGame(self.refitting, rows.to(self.rows), np.zeros(self.n), self._units, self)

    def with_rows(self, rows: Tensor) -> RefitGame:
        """Return the game of another table of the same parties."""
        return RefitGame(self.refitting, rows, self._noise_std, self._units, self)

    def worth(self, coalitions: Bools) -> Floats:
        """Return the worth of each coalition, refitted in batches."""
        parties = self.readings
        units, copies, meaningless, further = (
            np.array([getattr(reading, name) for reading in parties])
            for name in ("units", "copies", "meaningless", "further_off")
        )
        weights = coalitions * units
        records = weights.sum(1)
        nonempty = records > 0
        weights, records = weights[nonempty], records[nonempty]
        repeated, spread = weights @ copies, weights @ (copies * further)
        worths = np.empty(len(coalitions))
        nobody = torch.zeros(1, len(self.refitting.surrogate.origin)).to(self.rows)
        worths[~nonempty] = float(self.refitting.evaluate(nobody))
        if not nonempty.any():
            return worths
        gradients = torch.stack([reading.gradient for reading in parties])
        means = (torch.from_numpy(weights / records[:, None]) @ gradients).to(self.rows)
        coalition_key = np.packbits(coalitions[nonempty]).tobytes()
        near = None if self._near is None else self._near._fits
        if near is not None and near.key == coalition_key:
            theta = self.refitting.fit(means, near.theta, near.inverses)
        else:
            theta = self.refitting.fit(means)
        if len(theta) <= _MOST_KEPT:
            self._fits = _Fits(self.refitting, coalition_key, theta)
        utilities = self.refitting.evaluate(theta).cpu().numpy()
        noise = weights @ meaningless / records
        worths[nonempty] = utilities + self.refitting.correction(records**2 / spread, noise, repeated / records)
        return worths
