"""The paper's measures of uncertainty: how they grow with k is its main result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import dpvalue as dpv
from dpvalue.diagnostics import estimation_uncertainty, mean_adjusted_variance
from tests.datasets import classification, regression


def slope(schedule: dpv.Schedule) -> float:
    """The log-log slope of Var[psi | models] against k = 50..800, linear regression, noise sqrt(k) * C * sigma."""
    train, test = regression(60)
    x, y = torch.tensor(test[0]), torch.tensor(test[1])

    def utility(models: Tensor) -> Tensor:
        return -((models @ x.T - y) ** 2).mean(1)

    row, label, alpha, clip, sigma = torch.tensor(train[0][0]), float(train[1][0]), 1.0, 1.0, 1.0
    budgets, found = [50, 100, 200, 400, 800], []
    for k in budgets:
        generator = torch.Generator().manual_seed(k)
        models = torch.randn(k, 3, generator=generator, dtype=torch.float64) * 0.3
        gradients = 2 * (models @ row - label)[:, None] * row
        gradients = gradients / (gradients.norm(dim=1, keepdim=True) / clip).clamp_min(1.0)
        found.append(
            estimation_uncertainty(
                models, gradients, utility, schedule=schedule, noise_std=clip * sigma * k**0.5, learning_rate=alpha,
                repeats=400,
            )
        )  # fmt: skip
    return float(np.polyfit(np.log(budgets), np.log(found), 1)[0])


def test_uncertainty_grows_linearly_with_independent_noise() -> None:
    assert 0.8 < slope(dpv.Schedule("independent")) < 1.2


def test_uncertainty_does_not_grow_with_correlated_noise_and_burn_in() -> None:
    assert slope(dpv.Schedule("running-mean", burn_in=0.5)) < 0.2


def test_uncertainty_grows_far_slower_with_correlated_noise() -> None:
    assert slope(dpv.Schedule("running-mean")) < 0.5


def test_uncertainty_in_closed_form() -> None:
    """A linear utility: Var = (alpha * std)^2 |c|^2 / k for own releases, and the same for the mean of two of them."""
    c = torch.tensor([3.0, 4.0], dtype=torch.float64)
    zeros = torch.zeros(2, 2, dtype=torch.float64)
    settings = {"noise_std": 0.5, "learning_rate": 2.0, "repeats": 4000}
    own = estimation_uncertainty(zeros, zeros, lambda m: m @ c, schedule=dpv.Schedule("independent"), **settings)  # type: ignore[arg-type]
    assert own == pytest.approx((2.0 * 0.5) ** 2 * 25 / 2, rel=0.1)
    mixed = estimation_uncertainty(zeros, zeros, lambda m: m @ c, schedule=dpv.Schedule("running-mean"), **settings)  # type: ignore[arg-type]
    assert mixed == pytest.approx((2.0 * 0.5) ** 2 * 25 * (0.75**2 + 0.25**2), rel=0.1)


def test_mean_adjusted_variance_is_the_papers_formula() -> None:
    train, test = classification(6)
    result = dpv.value(train, test, privacy=None, permutations=30, learning_rate=0.2, progress=False)
    found = mean_adjusted_variance(result)
    np.testing.assert_allclose(found, result.std_errors["shapley"] ** 2 / np.abs(result.values["shapley"]))


def test_mean_adjusted_variance_falls_with_k_for_correlated_noise_far_below_independent() -> None:
    train, test = classification(10, classes=2)
    privacy = dpv.Privacy(epsilon=1.0)

    def measure(schedule: dpv.Schedule, k: int) -> float:
        found = [
            mean_adjusted_variance(
                dpv.value(
                    train, test, privacy=privacy, schedule=schedule, permutations=k, clip=1.0, learning_rate=0.5,
                    noise="fast", seed=seed, progress=False,
                )
            ).mean()
            for seed in range(3)
        ]  # fmt: skip
        return float(np.median(found))

    correlated = dpv.Schedule("running-mean", burn_in=0.8)
    many = measure(correlated, 400)
    assert many < measure(correlated, 50)
    assert many < 0.3 * measure(dpv.Schedule("independent"), 400)


def test_bad_input() -> None:
    ones = torch.ones(3, 2)
    with pytest.raises(dpv.DpvalueError, match="models and gradients must both be"):
        estimation_uncertainty(
            ones, ones[:2], lambda m: m[:, 0], schedule=dpv.Schedule("independent"), noise_std=1.0, learning_rate=1.0
        )
    with pytest.raises(dpv.DpvalueError, match="schedule must be one of"):
        estimation_uncertainty(
            ones, ones, lambda m: m[:, 0], schedule=dpv.Schedule("replay"), noise_std=1.0, learning_rate=1.0
        )
