"""How often intervals hold the noise-free value: the same job, clip and basis, once with noise zero, often with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dpvalue.arrays import Floats
from dpvalue.data.parties import as_parties
from dpvalue.data.utility import as_utility
from dpvalue.experiments.consortium.methods import settings_of
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.games.semivalues import semivalues
from dpvalue.games.solving import ReleaseGame, estimate_values
from dpvalue.methods.refitting import RefitGame
from dpvalue.progress import silent
from dpvalue.runs.run import prepare
from dpvalue.values.intervals import NoiseDraws, default_draws


@dataclass(frozen=True)
class Coverage:
    """How often 95% intervals of Shapley values held the noise-free ones, pooled and for the least covered party.

    Attributes:
        cell: the problem's.
        seed: its seed.
        epsilon: per record.
        draws: of noise.
        pooled: over draws and parties.
        least: of the party that was covered least.
        width: the mean width, in standard deviations of the estimates.
        ratio: stated over real standard deviation of the estimates, the mean over parties.
    """

    cell: str
    seed: int
    epsilon: float
    draws: int
    pooled: float
    least: float
    width: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Drawn:
    """What some draws of noise make of a problem: each (draws, n)."""

    held: Floats
    estimates: Floats
    stated: Floats
    widths: Floats


def draw(problem: PartyProblem, epsilon: float, draws: int, part: int = 0) -> Drawn:
    """Return what so many draws of noise make of a problem; another `part` has other draws."""
    settings = settings_of(problem, "refit", epsilon)
    x, y, groups = problem.private()
    parties = as_parties((x, y), None, groups, None)
    prepared = prepare(as_utility(problem.utility()), settings, *parties.counts(settings.privacy))
    run = prepared.run(parties)
    table = run.release(silent)[0]
    everyone = torch.arange(table.n, device=prepared.choice.initial.device)
    exact = run.contributions.mean_gradients(prepared.choice.points, prepared.choice.shares, everyone)
    game = table.game(prepared.utility, settings.engine)
    assert isinstance(game, RefitGame)
    rows, std = exact.to(game.rows), torch.from_numpy(table.noise_std).to(game.rows)[:, None]
    target = _shapley(RefitGame(game.refitting, rows, np.zeros(table.n), table.sizes))
    generator = torch.Generator().manual_seed(1000 * problem.seed + part)
    drawing, inner = np.random.default_rng([problem.seed, part]), default_draws(table.n, 0)
    found = []
    for _ in range(draws):
        noisy = game.with_rows(rows + std * torch.randn(rows.shape, generator=generator).to(std))
        estimate = _shapley(noisy)
        again = np.stack(
            [
                _shapley(noisy.with_rows(noisy.rows + std * torch.randn(rows.shape, generator=generator).to(std)))
                for _ in range(inner)
            ]
        )
        without = np.stack([_shapley(noisy.without_noise(drawing)) for _ in range(inner)])
        made = NoiseDraws(estimate, estimate, again, np.zeros(table.n), 0, without)
        edges = made.values()
        held = (edges.low <= target) & (target <= edges.high)
        found.append((held, estimate, made.spread(lambda values: values)[0], edges.high - edges.low))
    return Drawn(*(np.array(part) for part in zip(*found, strict=True)))


def coverage(problem: PartyProblem, epsilon: float, parts: Sequence[Drawn]) -> Coverage:
    """Return how often intervals hold the noise-free value, over all draws of noise."""
    held, estimates, stated, widths = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("held", "estimates", "stated", "widths")
    )
    real = estimates.std(axis=0, ddof=1)
    return Coverage(
        problem.cell.name, problem.seed, epsilon, len(held), float(held.mean()), float(held.mean(axis=0).min()),
        float(np.mean(widths.mean(axis=0) / real)), float(np.mean(stated.mean(axis=0) / real)),
    )  # fmt: skip


def _shapley(game: ReleaseGame) -> Floats:
    kinds = semivalues("shapley")
    return estimate_values(game, kinds, 2**20, 1e-12, 0).estimates["shapley"].values
