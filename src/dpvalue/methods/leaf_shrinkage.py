"""From noisy shares in leaves to what a party's counts are likely to be: free, from releases and public things.

A party of M units releases, for each cell (tree, leaf, class), its number of units there over M, plus noise of standard
deviation s. It is taken for

    presence * (public shares + deviation) + noise,

with the presence the share of its units that count. Presence has a prior (nearly all parties have all units, some none)
and is averaged over its likelihood, from the totals of the trees. The deviation of each tree is shrunk by positive-part
James and Stein: by 1 - (k - 2) s^2 / |deviation|^2, k being the number of cells of a tree. What is negative after that
counts as zero, and each tree keeps its total. A blank party, whose total is noise alone, is thereby read as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpvalue.arrays import Floats, Ints

_ALL, _NONE = 0.9, 0.05  # priors of all units counting, and none
_PRESENCES = np.linspace(0.0, 1.0, 41)


@dataclass(frozen=True, eq=False)
class Reading:
    """How releases in leaves are read.

    Attributes:
        public: the shares of public rows (trees, leaves, classes), which sum to 1 in each tree.
    """

    public: Floats

    def counts(self, rows: Floats, noise_std: Floats, units: Ints) -> Floats:
        """Return what parties' counts are likely to be (n, size), none below zero."""
        presence, deviation, kept = self._parts(rows, noise_std)
        return self._whole(presence, kept[..., None] * deviation, units)

    def drawn(self, rows: Floats, noise_std: Floats, units: Ints, generator: np.random.Generator) -> Floats:
        """Return a draw of what parties' counts may be, given what was released (n, size)."""
        presence, deviation, kept = self._parts(rows, noise_std)
        spread = np.sqrt(kept) * noise_std[:, None]
        moved = kept[..., None] * deviation + spread[..., None] * generator.standard_normal(deviation.shape)
        return self._whole(presence, moved, units)

    def _parts(self, rows: Floats, noise_std: Floats) -> tuple[Floats, Floats, Floats]:
        """Presence (n,), deviations (n, trees, cells) and how much of these is kept (n, trees)."""
        trees = len(self.public)
        shares = rows.reshape(len(rows), trees, -1)
        cells = shares.shape[2]
        presence = _presence(shares.sum(2).mean(1), noise_std * np.sqrt(cells / trees))
        deviation = shares - presence[:, None, None] * self.public.reshape(trees, -1)
        squares = np.square(deviation).sum(2)
        noise = max(cells - 2, 1) * np.square(noise_std)[:, None]
        kept = np.clip(1 - noise / np.maximum(squares, 1e-300), 0.0, 1.0)
        return presence, deviation, np.where(noise > 0, kept, 1.0)

    def _whole(self, presence: Floats, deviation: Floats, units: Ints) -> Floats:
        """Counts of shares of which none is below zero, and each tree has the total that is present."""
        public = self.public.reshape(len(self.public), -1)
        shares = np.maximum(presence[:, None, None] * public + deviation, 0.0)
        totals = shares.sum(2, keepdims=True)
        shares *= presence[:, None, None] / np.where(totals > 0, totals, 1.0)
        return np.asarray((shares * units[:, None, None]).reshape(len(shares), -1))


def _presence(totals: Floats, std: Floats) -> Floats:
    """The mean share of units that count, given noisy totals (n,); the totals themselves where there is no noise."""
    prior = np.full(len(_PRESENCES), (1 - _ALL - _NONE) / (len(_PRESENCES) - 2))
    prior[0], prior[-1] = _NONE, _ALL
    scale = np.where(std > 0, std, 1.0)
    logs = -0.5 * np.square((totals[:, None] - _PRESENCES) / scale[:, None]) + np.log(prior)
    likely = np.exp(logs - logs.max(1, keepdims=True))
    means = (likely @ _PRESENCES) / likely.sum(1)
    return np.where(std > 0, means, np.clip(totals, 0.0, 1.0))
