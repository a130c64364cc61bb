"""The plan: the design's ceilings, and that it is what a run then spends."""

from __future__ import annotations

import numpy as np
import pytest

import dpvalue as dpv

from .data import classification


@pytest.mark.parametrize(
    ("epsilon", "ceiling", "gaussian"), [(1, 0.881, 0.663), (2, 0.982, 0.782), (4, 0.9997, 0.922), (8, 1.0, 0.994)]
)
def test_ceilings(epsilon: float, ceiling: float, gaussian: float) -> None:
    found = dpv.plan(800, privacy=dpv.Privacy(epsilon=epsilon, delta=5e-5))
    assert found.ceiling == pytest.approx(ceiling, abs=6e-4)
    assert found.gaussian_ceiling == pytest.approx(gaussian, abs=6e-4)
    replaced = dpv.plan(800, privacy=dpv.Privacy(epsilon=epsilon, delta=5e-5, neighbours="replace"))
    assert replaced.ceiling == pytest.approx(1 / (1 + np.exp(-epsilon)))
    assert (replaced.gaussian_ceiling or 0) < (found.gaussian_ceiling or 0)


@pytest.mark.parametrize("schedule", ["replay", "running-mean", "decaying", "independent"])
def test_the_plan_is_what_a_run_spends(schedule: str) -> None:
    train, test = classification(9)
    privacy = dpv.Privacy(epsilon=2.0)
    planned = dpv.plan(9, privacy=privacy, schedule=schedule, permutations=12, parameters=15)
    run = dpv.release(
        train, test, privacy=privacy, schedule=schedule, permutations=12, clip=0.5, learning_rate=0.1, progress=False,
        projection=None,
    )  # fmt: skip
    assert run.guarantee.releases == planned.releases
    assert run.guarantee.noise_multiplier == pytest.approx(planned.spent.noise_multiplier)
    np.testing.assert_allclose(run.noise_std, 0.5 * planned.table_noise)
    assert planned.table_bytes == run.rows.numel() * 4
    assert f"{planned.releases} release" in str(planned)


def test_bad_input() -> None:
    with pytest.raises(dpv.DpvalueError, match="parties must be a whole number of at least 2"):
        dpv.plan(1)
    with pytest.raises(dpv.DpvalueError, match="parties must be"):
        dpv.plan("many")
    with pytest.raises(dpv.DpvalueError, match=r"auc must be above 0\.5 and below 1, got 1\.5"):
        dpv.plan(5, auc=1.5)
    with pytest.raises(dpv.DpvalueError, match="parameters must be"):
        dpv.plan(5, parameters=0)
