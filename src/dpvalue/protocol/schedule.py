"""Schedules: when parties release, and which combination of releases each permutation uses.

In the paper's kinds every permutation has one release per party, and permutation t walks with the combination
W = X A of the releases A so far (paper, sec:norr_noise_reduce_eu). X is lower triangular (P1) and its rows sum to 1
(P2). A burn-in q values only the rows t > round(kq): the paper's Y.

    independent    own release only (i.i.d. noise)
    running-mean   1/t on each of the releases 1..t (X*)
    optimal        X_tt = (v + t g2) / (t (v + g2)), the rest equal; v is the noise variance of a release, g2 the
                   mean per-coordinate variance of the clipped gradients
    decaying       recursive: X_tt = 0.75 - 0.7 t/k on the own release, 1 - X_tt on the previous combination

With blocks of b permutations the walks of a block advance together: each reads the releases before the block and its
own release. Then t in the formulas of X_tt is (releases before the block) + 1; `decaying` reads the mean of the
combinations over the previous block.

`lagged` releases in R rounds of B probes: round 0 is taken at the initial model, a later round walks with the mean of
the rounds before it and is valued. `replay` makes the same releases and then values with the final mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Real

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.display import changed_fields, counted
from dpvalue.errors import DpvalueError, require_choice, require_count, require_number, require_positive

PAPER_KINDS = ("independent", "running-mean", "optimal", "decaying")

ROUND_KINDS = ("lagged", "replay")

DEFAULT_LAGGED_PROBES = 50

DEFAULT_REPLAY_ROUNDS, DEFAULT_REPLAY_PROBES = 2, 20

LEAST_WALKS = 20  # before errors are looked at


@dataclass(frozen=True)
class Schedule:
    """When a party releases, and how its releases are combined.

    Args:
        kind: "independent", "running-mean", "optimal", "decaying", "lagged" or "replay".
        burn_in: q; only permutations t > round(kq) are valued. Not for "replay", whose walks all use the final table.
        rounds: rounds of "lagged" (default: permutations / probes) and "replay" (default 2).
        probes: probes per round of "lagged" (default 50) and, after the first round, of "replay" (default 20).
        tolerance: "replay" stops once the largest standard error is below tolerance * standard deviation of the values.
        block: how many walks of a correlated paper kind advance together; 1 is the exact schedule. Larger blocks are
            faster and average less, because the walks of a block do not use each other's releases; for the effect see
            docs/reproduction.md.
        fresh_start: a new random initial model for each permutation (paper's kinds, models that start at random).

    Example:
        >>> print(Schedule("running-mean", burn_in=0.5))
        running-mean, burn-in 0.5
    """

    kind: str
    burn_in: float = 0.0
    rounds: int | None = None
    probes: int | None = None
    tolerance: float = 0.1
    block: int = 1
    fresh_start: bool = False

    def __post_init__(self) -> None:
        require_choice("schedule", self.kind, PAPER_KINDS + ROUND_KINDS)
        number = isinstance(self.burn_in, Real)
        require_number("burn_in", self.burn_in, "at least 0 and below 1", number and 0 <= self.burn_in < 1)
        require_positive("tolerance", self.tolerance)
        require_count("block", self.block)
        for name in ("rounds", "probes"):
            count = getattr(self, name)
            if count is not None:
                require_count(name, count)
                self._require(self.in_rounds, name, count, ROUND_KINDS)
        self._require(self.kind != "replay" or not self.burn_in, "burn_in", self.burn_in, (*PAPER_KINDS, "lagged"))
        self._require(self.kind == "replay" or self.tolerance == 0.1, "tolerance", self.tolerance, ("replay",))
        self._require(self.kind in PAPER_KINDS[1:] or self.block == 1, "block", self.block, PAPER_KINDS[1:])
        self._require(not self.in_rounds or not self.fresh_start, "fresh_start", self.fresh_start, PAPER_KINDS)

    def _require(self, ok: bool, name: str, value: object, kinds: tuple[str, ...]) -> None:
        if not ok:
            raise DpvalueError(
                f"{name} is for the schedules {', '.join(kinds)}; got {name}={value!r} with {self.kind!r}"
            )

    @property
    def in_rounds(self) -> bool:
        """Whether releases come in rounds, apart from the walks."""
        return self.kind in ROUND_KINDS

    @property
    def learns(self) -> bool:
        """Whether it can combine the releases of federated learning, which are sequential at one model."""
        return self.kind in ("independent", "running-mean", "decaying") and self.block == 1 and not self.fresh_start

    @property
    def correlated(self) -> bool:
        """Whether the marginals of different permutations share noise."""
        return self.kind not in ("independent", "replay")

    def shape(self, permutations: int) -> tuple[int, int]:
        """Return (rounds, probes); one round of one probe per permutation for the paper's kinds."""
        require_count("permutations", permutations)
        if not self.in_rounds:
            return permutations, 1
        if self.kind == "replay":
            return self.rounds or DEFAULT_REPLAY_ROUNDS, self.probes or DEFAULT_REPLAY_PROBES
        probes = self.probes or (permutations // self.rounds if self.rounds else DEFAULT_LAGGED_PROBES)
        rounds = self.rounds or permutations // max(probes, 1)
        if rounds * probes != permutations or rounds < 2:
            raise DpvalueError(
                f"permutations must be rounds x probes with at least 2 rounds for 'lagged'; got permutations = "
                f"{permutations}, rounds = {self.rounds or 'unset'}, probes = {probes}"
            )
        return rounds, probes

    def releases(self, permutations: int) -> int:
        """Return the number of noisy messages per party.

        Args:
            permutations: k.

        Returns:
            how many releases each party makes.

        Raises:
            DpvalueError: a number of permutations that does not fit the schedule.

        Example:
            >>> Schedule("running-mean").releases(100), Schedule("replay", rounds=2).releases(100)
            (100, 2)
        """
        return self.shape(permutations)[0]

    def first_valued(self, permutations: int) -> int:
        """Return the index (from 0) of the first permutation that is valued."""
        probes = self.shape(permutations)[1]
        if self.kind == "replay":
            return 0
        first = round(permutations * self.burn_in)
        if self.kind == "lagged":
            first = max(first, probes)
        if first >= permutations:
            raise DpvalueError(
                f"burn_in must leave a permutation to value, got burn_in = {self.burn_in} with {permutations} of them"
            )
        return first

    def own_weight(self, index: int, releases_before: int, permutations: int, ratio: float = 0.0) -> float:
        """Return X_tt, the weight of the own release, of permutation `index` (from 0) of a paper kind.

        Args:
            index: t - 1.
            releases_before: releases per party before this permutation's block.
            permutations: k.
            ratio: g2 / v, used by "optimal".
        """
        if self.kind == "independent" or releases_before == 0:
            return 1.0
        if self.kind == "decaying":
            return 0.75 - 0.7 * (index + 1) / permutations
        t = releases_before + 1
        if self.kind == "running-mean":
            return 1.0 / t
        return 1.0 if ratio == inf else (1.0 + t * ratio) / (t * (1.0 + ratio))

    def matrix(self, permutations: int, ratio: float = 0.0) -> Floats:
        """Return the weights on a party's releases (columns) in each valued permutation (rows): X, or Y with burn-in.

        `ratio` is g2 / v for "optimal", whose matrix depends on the data; 0 gives X*.

        Args:
            permutations: k.
            ratio: of "optimal".

        Returns:
            one row for each valued permutation, one column for each release.

        Raises:
            DpvalueError: a number of permutations that does not fit the schedule.

        Example:
            >>> Schedule("running-mean", burn_in=0.5).matrix(4).round(2)
            array([[0.33, 0.33, 0.33, 0.  ],
                   [0.25, 0.25, 0.25, 0.25]])
        """
        rounds, probes = self.shape(permutations)
        first = self.first_valued(permutations)
        if self.kind == "replay":
            return np.full((1, rounds), 1.0 / rounds)
        if self.kind == "lagged":
            number = np.arange(permutations)[:, None] // probes
            return np.where(np.arange(rounds) < number, 1.0 / np.maximum(number, 1), 0.0)[first:]
        rows = np.zeros((permutations, permutations))
        previous = np.zeros(permutations)
        for start in range(0, permutations, self.block):
            stop = min(start + self.block, permutations)
            for t in range(start, stop):
                own = self.own_weight(t, start, permutations, ratio)
                rows[t] = (1.0 - own) * previous
                rows[t, t] += own
            if self.kind == "decaying":
                previous = rows[start:stop].mean(0)
            else:
                previous = np.where(np.arange(permutations) < stop, 1.0 / stop, 0.0)
        return rows[first:]

    def table_weights(self, permutations: int) -> Floats:
        """Return the weights on a party's releases in its row of the final table.

        They give the mean of all releases, which has the least noise. For "decaying" they give the last combination,
        because its gradients differ.
        """
        releases = self.releases(permutations)
        if self.kind != "decaying":
            return np.full(releases, 1.0 / releases)
        weights = np.zeros(releases)
        for start in range(0, releases, self.block):
            stop = min(start + self.block, releases)
            own = np.array([self.own_weight(t, start, permutations) for t in range(start, stop)])
            weights *= 1.0 - own.mean()
            weights[start:stop] = own / len(own)
        return weights

    def __repr__(self) -> str:
        return changed_fields(self)

    def __str__(self) -> str:
        text = self.kind
        if self.kind == "replay":
            text += f", {counted(self.shape(1)[0], 'round')} of {counted(self.shape(1)[1], 'probe')}"
        elif self.kind == "lagged":
            probes = self.probes or (None if self.rounds else DEFAULT_LAGGED_PROBES)
            text += f", {counted(self.rounds, 'round')}" if self.rounds else ""
            text += f", {counted(probes, 'probe')} per round" if probes else ""
        if self.burn_in:
            text += f", burn-in {self.burn_in:g}"
        if self.block > 1:
            text += f", in blocks of {self.block}"
        if self.fresh_start:
            text += ", fresh start"
        return text


def as_schedule(schedule: str | Schedule | None, private: bool) -> Schedule:
    """Return a schedule from a name; None is "replay" with privacy and "independent" (own gradients) without."""
    if schedule is None:
        return Schedule("replay" if private else "independent")
    return schedule if isinstance(schedule, Schedule) else Schedule(schedule)
