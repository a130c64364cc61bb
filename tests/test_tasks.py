"""What values are used for: removal and addition curves, precision, rank stability, pictures."""

from __future__ import annotations

from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.tasks import addition_curve, rank_stability, removal_curve, retraining_curve
from tests.datasets import Arrays, flipped_breast_cancer

matplotlib.use("Agg")


@pytest.fixture(scope="module")
def flipped() -> tuple[Arrays, Arrays, Any]:
    from sklearn.preprocessing import StandardScaler

    (X, y), (X_test, y_test), changed = flipped_breast_cancer(60)
    scale = StandardScaler().fit(X_test)
    return (scale.transform(X), y), (scale.transform(X_test), y_test), changed


@pytest.fixture(scope="module")
def private(flipped: Any) -> dpv.Result:
    privacy = dpv.Privacy(30.0, mechanism="gaussian")
    return dpv.value(*flipped[:2], privacy=privacy, projection=None, noise="fast", progress=False)


@pytest.fixture(scope="module")
def exposed(flipped: Any) -> dpv.Result:
    return dpv.value(*flipped[:2], privacy=None, permutations=100, progress=False)


def test_removing_the_lowest_helps_and_the_highest_hurts(private: dpv.Result) -> None:
    high, low, random = (removal_curve(private, order) for order in ("high", "low", "random"))
    assert high.shares[0] == 0.0
    assert high.shares[-1] == 1.0
    for one in (high, low, random):  # all end with nobody, and start with everybody
        assert one.mean[0] == pytest.approx(high.mean[0])
        assert one.mean[-1] == pytest.approx(high.mean[-1])
    inner = slice(2, -2)
    assert (low.mean[inner] > random.mean[inner]).all()
    assert (high.mean[inner] < random.mean[inner]).all()
    assert random.spread[5] > 0
    assert not low.spread.any()


def test_adding_is_removing_the_others(private: dpv.Result) -> None:
    added, removed = addition_curve(private, "high"), removal_curve(private, "low")
    np.testing.assert_allclose(added.mean, removed.mean[::-1], rtol=1e-5)


def test_a_curve_is_the_utility_of_the_models_that_are_left(private: dpv.Result, flipped: Any) -> None:
    curve = removal_curve(private, "high", points=4)
    order = np.argsort(-private.values["shapley"], kind="stable")
    engine, table = private.engine, private.table
    walker = table.walker(engine)
    for share, found in zip(curve.shares, curve.mean, strict=True):
        kept = order[round(share * table.n) :]
        theta = walker.initial - walker.learning_rate * table.rows[kept.copy()].sum(0)
        X, y = flipped[1]
        outputs = np.c_[X, np.ones(len(X))] @ theta.numpy().reshape(2, -1).T
        losses = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(len(y)), y]
        assert found == pytest.approx(-losses.mean(), rel=1e-4)


def test_retraining_is_for_runs_without_privacy(private: dpv.Result, exposed: dpv.Result, flipped: Any) -> None:
    with pytest.raises(dpv.DpvalueError, match="would undo the privacy of this result"):
        retraining_curve(private, flipped[0], flipped[1])
    low = retraining_curve(exposed, flipped[0], flipped[1], "removal", "low", points=5)
    high = retraining_curve(exposed, flipped[0], flipped[1], "removal", "high", points=5)
    assert low.retrained
    assert low.mean[1] > low.mean[0]  # without the worst quarter the model is better
    assert low.mean[2] > high.mean[2]
    with pytest.raises(dpv.DpvalueError, match="parties must be those of the result"):
        retraining_curve(exposed, (flipped[0][0][:9], flipped[0][1][:9]), flipped[1])


def test_bad_arguments_of_curves(private: dpv.Result, tmp_path: Any) -> None:
    with pytest.raises(dpv.DpvalueError, match="order must be one of high, low, random"):
        removal_curve(private, "best")
    with pytest.raises(dpv.DpvalueError, match="semivalue must be one of shapley"):
        removal_curve(private, semivalue="banzhaf")
    private.save(tmp_path / "file")
    loaded = dpv.load(tmp_path / "file")
    assert isinstance(loaded, dpv.Result)
    with pytest.raises(dpv.DpvalueError, match="utility must be given"):
        removal_curve(loaded)


def test_precision() -> None:
    values, bad = [5.0, -1.0, -3.0, 2.0], [False, True, True, False]
    assert dpv.detection.precision_at(values, bad, 2) == 1.0
    assert dpv.detection.precision_at(values, bad, 4) == 0.5
    with pytest.raises(dpv.DpvalueError, match="k must be between 1 and 4, got 5"):
        dpv.detection.precision_at(values, bad, 5)


def test_stability() -> None:
    generator = np.random.default_rng(0)
    truth = generator.normal(0, 1, 200)
    steady = rank_stability([truth + generator.normal(0, 0.1, 200) for _ in range(4)], k=20)
    shaky = rank_stability([truth + generator.normal(0, 3.0, 200) for _ in range(4)], k=20)
    assert len(steady.spearman) == 6
    assert steady.spearman.min() > 0.95 > 0.5 > shaky.spearman.max()
    assert steady.overlap.mean() > 0.7 > shaky.overlap.mean()
    with pytest.raises(dpv.DpvalueError, match="runs must be at least two"):
        rank_stability([truth])
    with pytest.raises(dpv.DpvalueError, match="finite"):
        rank_stability([truth, truth * np.nan])


def test_pictures_return_axes_and_follow_the_style(private: dpv.Result, exposed: dpv.Result) -> None:
    with plt.rc_context({"lines.linewidth": 7.0}):
        axes = private.plot.values()
        assert axes.lines[0].get_linewidth() == 7.0
        assert axes.get_ylabel() == "shapley value"
        labels = [text.get_text() for text in axes.get_legend().get_texts()]  # type: ignore[union-attr]
        assert labels == ["shapley", "± DP noise", "± Monte Carlo"]
        drawn = np.asarray(axes.lines[0].get_ydata(), dtype=float)
        np.testing.assert_allclose(drawn, np.sort(private.values["shapley"])[::-1])
    own = plt.subplots()[1]
    assert private.plot.curve("addition", ax=own) is own
    assert len(own.lines) == 3
    assert private.plot.histogram(bins=7).patches
    steps = private.plot.convergence(permutations=80)
    falling = np.asarray(steps.lines[0].get_ydata(), dtype=float)
    assert len(falling) == 3
    assert falling[-1] < falling[0]
    assert len(exposed.plot.values().get_legend().get_texts()) == 2  # type: ignore[union-attr]
    with pytest.raises(dpv.DpvalueError, match="semivalue must be one of shapley; got 'loo'"):
        private.plot.histogram("loo")
    plt.close("all")
