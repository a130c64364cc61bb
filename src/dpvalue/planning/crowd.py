"""The AUC among parties of the sizes that they really have, from the contributions of single units.

A party's release is the mean of its units' contributions plus noise that shrinks with their number, so that small
parties are told apart worse than large ones. Sizes are represented by quantiles: a clean and a corrupted party of a
pair have sizes of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from dpvalue.arrays import Floats, Ints
from dpvalue.detection import expected_auc, pairwise_auc
from dpvalue.planning.folds import MOST_TOGETHER, GradientSketch
from dpvalue.privacy.laws import find_law
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.streams import Purpose, stream

Way = tuple[str, float, float]  # clipping rule, norm and centre
_SIZES, _EACH, _DRAWS = 16, 3, 16  # quantiles of sizes; of each, quantiles of releases, and stand-ins


@dataclass(frozen=True)
class Crowd:
    """Parties' numbers of units, by quantiles: `units` are the different ones, `counts` how many of the quantiles."""

    units: Ints
    counts: Ints
    seed: int
    _lots: dict[tuple[int, int], _Lots] = field(default_factory=dict, init=False, repr=False, compare=False)

    def auc(
        self, pair: tuple[GradientSketch, GradientSketch], way: Way, mechanism: Mechanism, fine: bool = False
    ) -> float:
        """Return the expected AUC of parties whose units have these sketches, clean and planted, exact in the noise.

        Half of a corrupted party's units are planted.

        Args:
            pair: the sketches of units.
            way: how they are clipped.
            mechanism: the mechanism, with a norm of 1.
            fine: more stand-ins and quantiles, for a result that is stated.
        """
        return float(self.aucs(pair, [way], mechanism, fine)[0])

    def aucs(
        self, pair: tuple[GradientSketch, GradientSketch], ways: list[Way], mechanism: Mechanism, fine: bool = False
    ) -> Floats:
        """Return the same for each of several ways to clip (ways,): all that are by one rule are taken at once."""
        found = np.empty(len(ways))
        scales = mechanism.noise_scale(torch.from_numpy(self.units)).numpy()
        times = 4 if fine else 1
        for rule in dict.fromkeys(way[0] for way in ways):
            places = [place for place, way in enumerate(ways) if way[0] == rule]
            norms, centres = (np.array([ways[place][part] for place in places]) for part in (1, 2))
            clean, bad = (sketch.contributions(rule, norms, centres) for sketch in pair)
            if self.units[-1] == 1:
                points = times * _SIZES * _EACH
                scores = _quantiles(clean, points), _quantiles(bad, points)
                found[places] = _each_auc(*scores, mechanism.law, norms * scales[0])
            else:
                lots = self._drawn(clean.shape[1], times)
                for place, norm, *units in zip(places, norms, clean, bad, strict=True):
                    scale = norm * np.repeat(scales, times * _EACH * self.counts)
                    same = len(scales) == 1  # a common scale is faster
                    found[place] = expected_auc(*lots.parties(*units), mechanism.law, scale[0] if same else scale)
        return found

    def bound(self, mechanism: Mechanism) -> float:
        """Return what no way to clip can exceed: the AUC of units that are as far apart as clipping leaves any.

        >>> make_crowd(np.ones(9), 0).bound(Mechanism(1.0, 1.0, "party", "zero_out", "laplace")) > 0.86
        True
        """
        scale = mechanism.noise_scale(torch.from_numpy(self.units)).numpy().repeat(self.counts)
        return expected_auc(np.ones(len(scale)), -np.ones(len(scale)), mechanism.law, scale)

    def matrix(self, pair: tuple[GradientSketch, GradientSketch], way: Way, mechanism: Mechanism) -> Floats:
        """Return the same for each pair of a clean and a planted unit; for parties of one unit."""
        clean, bad = (sketch.contribution(*way) for sketch in pair)
        scale = way[1] * float(mechanism.noise_scale(torch.ones(1, dtype=torch.int64))[0])
        return pairwise_auc(clean, bad, mechanism.law, scale, scale)

    def _drawn(self, length: int, times: int) -> _Lots:
        if (length, times) not in self._lots:
            generator = stream(self.seed, Purpose.PLANTING, times)
            self._lots[length, times] = _draw(self.units, self.counts, length, times, generator)
        return self._lots[length, times]


@dataclass(frozen=True)
class _Lots:
    """Which units stand-ins of parties consist of, padded to the most, and where their quantiles lie once sorted.

    Attributes:
        clean: units of the clean parties (parties, most).
        bad: units of the corrupted ones.
        shares: what each counts for (parties, most); 0 for padding.
        wrong: which units of a corrupted party are planted (parties, most), as 0 and 1.
        size: a number per party, the same for parties of the same size, ascending.
        shrink: by how much the mean of all units varies less than that of those drawn.
        below: where in the sorted parties a quantile lies.
        above: the place after it, of the same size.
        between: how far it lies between the two.
    """

    clean: Ints
    bad: Ints
    shares: Floats
    wrong: Floats
    size: Ints
    shrink: Floats
    below: Ints
    above: Ints
    between: Floats

    def parties(self, clean: Floats, bad: Floats) -> tuple[Floats, Floats]:
        """Return quantiles, size by size, of what clean and corrupted parties release, before noise."""
        share = (self.wrong * self.shares).sum(1)
        means = clean.mean(), share * bad.mean() + (1 - share) * clean.mean()
        own = clean[self.bad]
        sums = (
            (clean[self.clean] * self.shares).sum(1),
            ((own + self.wrong * (bad[self.bad] - own)) * self.shares).sum(1),
        )
        honest, spoilt = (
            self._quantiles(mean + self.shrink * (drawn - mean)) for mean, drawn in zip(means, sums, strict=True)
        )
        return honest, spoilt

    def _quantiles(self, releases: Floats) -> Floats:
        ordered = releases[np.lexsort((releases, self.size))]
        low, high = ordered[self.below], ordered[self.above]
        return np.asarray(low + self.between * (high - low))


def _draw(units: Ints, counts: Ints, length: int, times: int, generator: np.random.Generator) -> _Lots:
    """Draw the units of stand-ins, from `length` units."""
    size = np.repeat(np.arange(len(units)), times * _DRAWS * counts)
    together = np.minimum(units, MOST_TOGETHER)
    present = np.arange(together.max()) < together[size][:, None]
    clean, bad = generator.integers(length, size=(2, *present.shape))
    parties, points = times * _DRAWS * counts, times * _EACH * counts
    starts = np.repeat(np.cumsum(parties) - parties, points)
    last = np.repeat(parties - 1, points)
    at = np.concatenate([(np.arange(many) + 0.5) / many for many in points]) * last
    below = at.astype(np.int64)
    return _Lots(
        clean=clean,
        bad=bad,
        shares=present / together[size][:, None],
        wrong=(np.arange(together.max()) < ((together + 1) // 2)[size][:, None]).astype(np.float64),
        size=size,
        shrink=np.sqrt(together / units)[size],
        below=starts + below,
        above=starts + np.minimum(below + 1, last),
        between=np.asarray(at - below, dtype=np.float64),
    )


def _quantiles(numbers: Floats, points: int) -> Floats:
    """Return evenly spread quantiles of each row, as `np.quantile` does, in a tenth of its time."""
    ordered = np.sort(numbers, axis=-1)
    at = (np.arange(points) + 0.5) / points * (ordered.shape[-1] - 1)
    below = at.astype(np.int64)
    low, high = ordered[..., below], ordered[..., np.minimum(below + 1, ordered.shape[-1] - 1)]
    return np.asarray(low + (at - below) * (high - low))


def _each_auc(clean: Floats, bad: Floats, law: str, scales: Floats) -> Floats:
    """The expected AUC of each row of scores (k, points), with noise of a scale (k,) of its own."""
    if not (scales > 0).all():
        each = zip(clean, bad, scales, strict=True)
        return np.array([expected_auc(good, wrong, law, float(scale)) for good, wrong, scale in each])
    shift = clean[:, :, None] - bad[:, None, :]
    scale = scales[:, None, None]
    return np.asarray(find_law(law).wins(shift, scale, scale).mean(axis=(1, 2)))


def make_crowd(units: Ints, seed: int) -> Crowd:
    """Return the quantiles of the parties' public numbers of units."""
    at = (np.arange(_SIZES) + 0.5) / _SIZES
    sizes, counts = np.unique(np.quantile(np.maximum(units, 1), at, method="inverted_cdf"), return_counts=True)
    return Crowd(sizes.astype(np.int64), counts, seed)
