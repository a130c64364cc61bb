"""Learning curves: what retraining on so many records gives, measured by retraining on public rows.

Subsets of public rows are trained on, and judged by the rows that are left: as they are, with half and with all labels
shuffled, and with each record repeated twenty times. This knows what no expansion around a model does: what a fit to
few, to meaningless or to repeated records costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import numpy as np
import torch

from dpvalue.arrays import Floats
from dpvalue.methods.fits import Rows, fit_many
from dpvalue.streams import Purpose, stream

_SIZES, _REPEATS = 7, 5
_SHUFFLED = (0.0, 0.5, 1.0)
_COPIES = 20.0
_LEAST = 10
_LAST = 4  # of the sizes, from which the curve goes on


@dataclass(frozen=True, eq=False)
class Curves:
    """Mean losses on rows that were not trained on, with the utility's penalty of parameters.

    Attributes:
        sizes: numbers of records (s,).
        losses: after training on so many (4, s): with no label, half and all of them shuffled, and with copies.
        slopes: of each curve in 1 / size, beyond the last size (4,).
        nothing: the loss of the model without data.
    """

    sizes: Floats
    losses: Floats
    slopes: Floats
    nothing: float

    def __call__(self, records: Floats, meaningless: Floats, copies: Floats) -> Floats:
        """Return the mean loss after training on so many different records.

        Args:
            records: how many different ones (c,).
            meaningless: the part of labels without meaning (c,).
            copies: how often each is repeated (c,).
        """
        inside = np.concatenate([[0.0], np.log(self.sizes)])
        known = np.stack(
            [np.interp(np.log(np.maximum(records, 1)), inside, [self.nothing, *row]) for row in self.losses]
        )
        last = self.sizes[-1]
        beyond = self.losses[:, -1:] + self.slopes[:, None] * (1 / np.maximum(records, 1) - 1 / last)
        curves = np.where(records > last, beyond, known)
        share = np.clip(meaningless, 0, 1.5) * 2
        lower = np.clip(share.astype(np.int64), 0, len(_SHUFFLED) - 2)
        place = np.arange(len(records))
        mixed = curves[lower, place] + (share - lower) * (curves[lower + 1, place] - curves[lower, place])
        return np.asarray(mixed + (curves[-1] - curves[0]) * np.log(np.maximum(copies, 1)) / log(_COPIES))


def learning_curves(rows: Rows, seed: int, l2: float = 0.0) -> Curves:
    """Return the learning curves of public rows, for a utility that subtracts l2 |theta|^2."""
    generator, count = stream(seed, Purpose.LEARNING_CURVES), len(rows.x)
    sizes = np.unique(np.geomspace(min(_LEAST, count // 2), max(0.8 * count, 1), _SIZES).astype(int))
    losses = []
    for shuffled, copies in [*((share, 1.0) for share in _SHUFFLED), (0.0, _COPIES)]:
        weights, labels = [], []
        for size in np.repeat(sizes, _REPEATS):
            chosen = generator.permutation(count)[:size]
            other = chosen[generator.random(size) < shuffled]
            label = rows.y.T.clone()
            label[:, torch.from_numpy(other)] = rows.y.T[
                :, torch.from_numpy(generator.permutation(count)[: len(other)])
            ]
            weight = torch.zeros(count, dtype=torch.float64)
            weight[torch.from_numpy(chosen)] = copies
            weights.append(weight)
            labels.append(label)
        counted = torch.stack(weights).to(rows.x)
        theta = fit_many(rows, counted, torch.stack(labels))
        left = (counted == 0).to(rows.x)
        means = (rows.losses(rows.outputs(theta)) * left).sum(1) / left.sum(1) + l2 * theta.square().sum(1)
        losses.append(means.reshape(len(sizes), _REPEATS).mean(1).cpu().numpy())
    table = np.array(losses)
    nothing = float(rows.mean_loss(rows.x.new_zeros(rows.size)))
    return Curves(sizes.astype(np.float64), table, np.array([_slope(sizes, row) for row in table]), nothing)


def _slope(sizes: Floats, losses: Floats) -> float:
    """The slope of the last part of a curve in 1 / size; none where more records do not help."""
    few, tail = np.asarray(sizes[-_LAST:], dtype=np.float64), losses[-_LAST:]
    if len(few) < 2:
        return 0.0
    weights = np.sqrt(few)
    design = np.stack([np.ones(len(few)), 1 / few], axis=1) * weights[:, None]
    return max(float(np.linalg.lstsq(design, tail * weights, rcond=None)[0][1]), 0.0)
