"""How often intervals hold the noise-free value: the same job, clip and basis, once with noise zero, often with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

import dpvalue as dpv
from dpvalue.arrays import Floats
from dpvalue.data.parties import as_parties
from dpvalue.data.utility import as_utility
from dpvalue.progress import silent
from dpvalue.server.run import prepare
from dpvalue.valuation.games import estimate_values
from dpvalue.valuation.intervals import Renoised, default_draws
from dpvalue.valuation.refit import RefitGame
from dpvalue.valuation.semivalues import semivalues
from dpvalue_experiments.consortium.methods import settings_of
from dpvalue_experiments.consortium.problems import Problem


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
        ratio: stated over real standard deviation of the noise, the mean over parties.
    """

    cell: str
    seed: int
    epsilon: float
    draws: int
    pooled: float
    least: float
    width: float
    ratio: float


def coverage(problem: Problem, epsilon: float, draws: int, device: str = "cpu") -> Coverage:
    """Return how often intervals hold the noise-free value, over so many draws of noise."""
    settings = replace(settings_of(problem, "refit", epsilon), engine=dpv.Local(device=device))
    x, y, groups = problem.private()
    parties = as_parties((x, y), None, groups, None)
    prepared = prepare(as_utility(problem.utility()), settings, *parties.counts(settings.privacy))
    run = prepared.run(parties)
    table = run.release(silent)[0]
    everyone = torch.arange(table.n, device=prepared.choice.initial.device)
    exact = run.contributions.along(prepared.choice.points, prepared.choice.shares, everyone)
    game = table.game(prepared.utility, settings.engine)
    assert isinstance(game, RefitGame)
    rows, std = exact.to(game.rows), torch.from_numpy(table.noise_std).to(game.rows)[:, None]
    silent_game = RefitGame(game.refitting, rows, np.zeros(table.n), table.sizes)
    target = _shapley(silent_game)
    generator = torch.Generator().manual_seed(problem.seed)
    drawing, inner = np.random.default_rng(problem.seed), default_draws(table.n, 0)
    held, estimates, stated, widths = [], [], [], []
    for _ in range(draws):
        noisy = game.with_rows(rows + std * torch.randn(rows.shape, generator=generator).to(std))
        estimate = _shapley(noisy)
        again = np.stack(
            [
                _shapley(noisy.with_rows(noisy.rows + std * torch.randn(rows.shape, generator=generator).to(std)))
                for _ in range(inner)
            ]
        )
        without = np.stack([_shapley(noisy.drawn(drawing)) for _ in range(inner)])
        found = Renoised(estimate, estimate, again, np.zeros(table.n), 0, without).values()
        half = (found.high - found.low) / 2
        held.append(np.abs(target - estimate) <= half)
        estimates.append(estimate)
        stated.append(again.std(0, ddof=1))
        widths.append(2 * half)
    real = np.std(estimates, axis=0, ddof=1)
    by_party = np.mean(held, axis=0)
    return Coverage(
        problem.cell.name, problem.seed, epsilon, draws, float(np.mean(held)), float(by_party.min()),
        float(np.mean(np.mean(widths, axis=0) / real)), float(np.mean(np.mean(stated, axis=0) / real)),
    )  # fmt: skip


def _shapley(game: RefitGame) -> Floats:
    kinds = semivalues("shapley")
    return estimate_values(game, kinds, 2**20, 1e-12, 0).estimates["shapley"].values
