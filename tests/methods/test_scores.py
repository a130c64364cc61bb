"""Scores: the loss under a public model, released instead of a gradient, and the additive game that they play."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression, Ridge
from torch import nn

import dpvalue as dpv
from dpvalue.data.rows import PrivateRows
from dpvalue.games.solving import Game
from dpvalue.methods.choosing import choose
from dpvalue.methods.scores import AdditiveGame
from dpvalue.models import Linear, Model, Score, SubspaceModel, build_model, project_model, row_losses
from dpvalue.models.build import ridge
from dpvalue.party.contributions import Contributions
from dpvalue.planning.rehearsal import Option, prefer
from dpvalue.planning.situation import Expectation
from dpvalue.privacy.mechanism import Mechanism, Scale
from dpvalue.protocol.statistics import Description, Gradient, Loss
from dpvalue.runs.run import open_setting, run_for
from tests.datasets import Arrays, classification, flipped_breast_cancer, regression

CPU = torch.device("cpu")
ENGINE = dpv.Local(device="cpu", dtype="float64")
SCORE = dpv.Projection(1, "loss")
KINDS = ("shapley", "banzhaf", "beta(4,1)", "loo")


def far_off(n: int = 200, seed: int = 0, units: float = 1.0) -> tuple[Arrays, Arrays, Any]:
    """A regression with a fifth of the private labels far above where they should be: (private, public, which)."""
    (X, y), (X_public, y_public) = regression(n, test=200, seed=seed)
    wrong = np.arange(n) % 5 == 0
    return (X, units * np.where(wrong, y + 5, y)), (X_public, units * y_public), wrong


@pytest.mark.parametrize("n", [5, 40])
def test_every_semivalue_of_scores_is_the_score(n: int) -> None:
    scores = torch.randn(n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    game = AdditiveGame(scores)
    for kind, permutations in [*((kind, None) for kind in KINDS), ("shapley", 7)]:
        found = dpv.games.value_game(game, semivalue=kind, permutations=permutations)
        np.testing.assert_allclose(found.values, scores[:, 0].numpy(), atol=1e-12)
    orders = np.stack([np.random.default_rng(k).permutation(n) for k in range(3)])
    np.testing.assert_allclose(game.walk(orders), Game.walk(game, orders), atol=1e-12)
    np.testing.assert_allclose(game.leave_one_out(), Game.leave_one_out(game), atol=1e-12)


def lines() -> dict[str, tuple[SubspaceModel, int]]:
    """Models on a line, with their numbers of outputs."""
    torch.manual_seed(3)
    models: dict[str, tuple[Model, int]] = {
        "logistic": (Linear(4, 3, "classification", torch.float64, CPU), 3),
        "linear": (Linear(4, 1, "regression", torch.float64, CPU), 1),
    }
    for task, outputs in (("classification", 3), ("regression", 1)):

        def factory(outputs: int = outputs) -> nn.Module:
            return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))

        zeros = torch.zeros(4, dtype=torch.float64)
        models[f"network, {task}"] = build_model(factory, task, zeros, outputs, torch.float64, CPU), outputs
    made = {}
    for name, (model, outputs) in models.items():
        direction = nn.functional.normalize(torch.randn(1, model.size, dtype=torch.float64))
        made[name] = project_model(model, torch.randn(model.size, dtype=torch.float64), direction), outputs
    return made


@pytest.mark.parametrize("name", ["logistic", "linear", "network, classification", "network, regression"])
@pytest.mark.parametrize("same", [True, False], ids=["one model", "own models"])
def test_scores_are_negated_losses(name: str, same: bool) -> None:
    line, outputs = lines()[name]
    score = Score(line)
    x = torch.randn(5, 7, 4, dtype=torch.float64)
    y = torch.randint(outputs, (5, 7)) if outputs > 1 else torch.randn(5, 7, dtype=torch.float64)
    theta = torch.randn(1, 1, dtype=torch.float64).repeat(5, 1) if same else torch.randn(5, 1, dtype=torch.float64)
    inputs = score.inputs(x.flatten(0, 1)).unflatten(0, (5, 7))
    found = score.record_gradients(theta, inputs, score.targets(y))
    for party in range(5):
        expected = -row_losses(line.task, line.outputs(theta[party : party + 1], inputs[party])[0], y[party])
        torch.testing.assert_close(found[party, :, 0], expected)
    weights = torch.rand(5, 7, dtype=torch.float64)
    torch.testing.assert_close(score.gradients(theta, inputs, y, weights)[:, 0], (found[..., 0] * weights).sum(1))
    assert score.digest() != line.digest()  # another question, to a ledger


def test_the_public_regression_has_the_ridge_of_least_leave_one_out_error() -> None:
    (X, y), _ = regression(30, features=12, seed=4)
    y = y + np.random.default_rng(0).normal(0, 2, 30)
    model = Linear(12, 1, "regression", torch.float64, CPU)
    found = ridge(model.inputs(torch.tensor(X)), model.targets(torch.tensor(y))).numpy()
    scaled = (X - X.mean(0)) / X.std(0)

    def left_out(alpha: float) -> float:
        errors = []
        for row in range(30):
            kept = np.arange(30) != row
            # Centred and scaled as for all rows: what a row's own label adds is all that is left out.
            penal = np.diag([*([alpha] * 12), 0.0])
            design = np.column_stack([scaled, np.ones(30)])
            theta = np.linalg.solve(design[kept].T @ design[kept] + penal, design[kept].T @ y[kept])
            errors.append((design[row] @ theta - y[row]) ** 2)
        return float(np.mean(errors))

    alphas = [30 * 10.0**exponent for exponent in range(-4, 4)]
    best = Ridge(alpha=min(alphas, key=left_out)).fit(scaled, y)
    np.testing.assert_allclose(X @ found[:-1] + found[-1], best.predict(scaled), atol=1e-8)
    other = ridge(model.inputs(torch.tensor(1e4 * X + 7)), model.targets(torch.tensor(1e6 * y - 3))).numpy()
    predicted = (1e4 * X + 7) @ other[:-1] + other[-1]
    np.testing.assert_allclose((predicted + 3) / 1e6, best.predict(scaled), atol=1e-6)


def test_without_privacy_values_are_losses_below_those_of_public_rows(tmp_path: Path) -> None:
    private, public, _ = far_off(60)
    result = dpv.value(
        private, public, model="linear", privacy=None, projection=SCORE, semivalues=KINDS, engine=ENGINE, progress=False
    )
    losses = (LinearRegression().fit(*public).predict(private[0]) - private[1]) ** 2
    values = result.values["shapley"]
    np.testing.assert_allclose(values - values.mean(), losses.mean() - losses, atol=0.05 * losses.std())
    public_losses = (LinearRegression().fit(*public).predict(public[0]) - public[1]) ** 2
    assert float((values + losses).mean()) == pytest.approx(public_losses.mean(), rel=0.2)
    for kind in KINDS:
        np.testing.assert_allclose(result.values[kind], values, atol=1e-12)
    said = "released a score: what is valued is the sum of scores, an additive game"
    assert result.table.method.summary == said
    assert "sum of scores" in repr(result)
    assert "sum of scores" in repr(result.table)
    result.save(tmp_path / "file")
    again = dpv.load(tmp_path / "file")
    assert isinstance(again, dpv.Result)
    assert again.table.method.summary == said
    np.testing.assert_array_equal(again.revalue(public, semivalues="banzhaf").values["banzhaf"], values)


@pytest.mark.parametrize("units", [pytest.param(1.0, marks=pytest.mark.slow), 1e5])
def test_labels_that_are_far_off_are_found(units: float) -> None:
    """A path's component is linear in the label: a label far above its place looks better than one that is right."""
    private, public, wrong = far_off(units=units)
    given: dict[str, Any] = {"model": "linear", "privacy": dpv.Privacy(4.0), "noise": "fast", "progress": False}
    result = dpv.value(private, public, **given)
    assert result.table.method.name == "scores"
    assert result.guarantee.mechanism == "Laplace"
    assert dpv.detection.auc(result.values["shapley"], wrong) > 0.93
    # Zero is what public rows have: rows with right labels are there on average, the others far below.
    spread = float(result.noise_std()["shapley"].mean())
    assert abs(result.values["shapley"][~wrong].mean()) < 4 * spread / (~wrong).sum() ** 0.5
    assert result.values["shapley"][wrong].mean() < -4 * spread / wrong.sum() ** 0.5
    np.testing.assert_allclose(result.noise_std()["shapley"], result.table.noise_std, rtol=1e-6)
    along = dpv.value(private, public, projection=dpv.Projection(1, "path"), **given)
    assert dpv.detection.auc(along.values["shapley"], wrong) < 0.8


def test_it_is_chosen_for_rows_of_a_regression_alone() -> None:
    private, public, _ = far_off()

    def chosen(parties: dpv.Parties, utility: Any, **given: Any) -> Any:
        settings = dpv.Settings(privacy=dpv.Privacy(4.0, unit=given.pop("unit", "party")), noise="fast", **given)
        at, _ = open_setting(dpv.Utility(*utility), settings, *parties.counts(settings.privacy))
        return choose(at)

    rows = chosen(dpv.Parties(*private), public, model="linear")
    assert rows.projection == SCORE
    assert rows.method.statistic == Loss()
    assert rows.expectation.far_off > 0.9 > rows.expected_auc
    for unit in ("party", "record"):
        sites = chosen(dpv.Parties(*private, np.arange(200) % 8), public, model="linear", unit=unit, game="steps")
        assert sites.projection != SCORE
        assert sites.method.statistic == Gradient()
        assert sites.expectation.far_off is None
        refits = chosen(dpv.Parties(*private, np.arange(200) % 8), public, model="linear", unit=unit)
        assert refits.projection.source == "refit"
        assert refits.method.statistic == Description(refits.method.surrogate.distance)
    train, test, _ = flipped_breast_cancer(200)
    labelled = chosen(dpv.Parties(*train), test)
    assert labelled.projection is None or not labelled.projection.is_score
    assert labelled.expectation.far_off is None


def test_a_score_is_taken_only_where_it_finds_more() -> None:
    """It knows of no coalition: along a direction, 98% of what it finds is enough."""
    mechanism = Mechanism(1.0, 1.0, "party", "zero_out", law="laplace")

    def option(source: str, auc: float) -> Option:
        return Option(dpv.Projection(1, source, 16), mechanism, 1.0, "flat", Scale(), (auc, auc), auc, ())

    for auc, taken in ((0.93, "path"), (0.9, "loss")):
        assert prefer([option("loss", 0.935), option("path", auc)], 9)[0].projection == dpv.Projection(1, taken, 16)


def test_the_plan_says_what_is_released_and_what_it_finds() -> None:
    private, public, wrong = far_off()
    planned = dpv.plan(private, public, model="linear", privacy=dpv.Privacy(4.0), noise="fast")
    assert "a score: minus the loss under a public model (additive game)" in str(planned)
    assert isinstance(planned.expected, Expectation)
    assert planned.expected.far_off is not None
    assert f"expected AUC for labels that are three standard deviations off: {planned.expected.far_off:.3f}" in str(
        planned
    )
    found = dpv.detection.auc(planned.value(private, progress=False).values["shapley"], wrong)
    assert found == pytest.approx(planned.expected.far_off, abs=0.05)


def test_a_row_that_cannot_be_read_scores_nothing_and_an_endless_loss_the_least() -> None:
    line, _ = lines()["linear"]
    x = np.ones((4, 4))
    x[1] = np.nan
    y = np.array([0.5, 0.5, 1e200, np.nan])
    rows: PrivateRows = dpv.Parties(x, y).encode(
        dpv.Utility(np.ones((3, 4)), np.arange(3.0)).encoding("linear", None, None), torch.float64, CPU
    )
    mechanism = Mechanism(2.0, 1.0, "party", "zero_out", scale=Scale(-1.0, -1.0))
    contributions = Contributions(Score(line), rows, mechanism, ENGINE)
    found = contributions.mean_gradients(torch.zeros(1, 1, dtype=torch.float64), torch.ones(1), torch.arange(4))[:, 0]
    assert found[1] == found[3] == 0
    assert float(found[2]) == pytest.approx(-2.0)
    assert bool((found.abs() <= 2.0).all())


@pytest.mark.parametrize("unit", ["party", "record", "person"])
def test_one_unit_moves_a_released_score_by_no_more_than_the_sensitivity(unit: str) -> None:
    (X, y), public = regression(12, test=60)
    groups, persons = np.arange(12) // 4, np.arange(12) // 2
    settings = dpv.Settings(
        model="linear", privacy=dpv.Privacy(2.0, unit=unit, mechanism="laplace"), projection=SCORE, engine=ENGINE
    )
    runs = []
    for label in (y[0], 1e9, -40.0, np.nan):
        labels = y.copy()
        labels[: 4 if unit == "party" else 2 if unit == "person" else 1] = label
        runs.append(run_for(dpv.Parties(X, labels, groups, persons), dpv.Utility(*public), settings))
    released = []
    for run in runs:
        grid = run.contributions.grid()
        assert grid is not None
        clipped = run.contributions.mean_gradients(run.choice.points, run.choice.shares, torch.arange(3), grid)
        units = run.contributions.units if unit != "party" else torch.ones(3)
        released.append(clipped[:, 0] * grid.step / units)
        bound = run.choice.mechanism.sensitivity(run.contributions.units)
    for other in released:
        assert torch.equal(other[1:], released[0][1:])
        assert float((other[0] - released[-1][0]).abs()) <= float(bound[0])  # the last is that of a silent unit
    assert float((released[1][0] - released[-1][0]).abs()) == pytest.approx(float(bound[0]), rel=1e-3)


def test_what_a_score_cannot_be_is_refused() -> None:
    with pytest.raises(dpv.DpvalueError, match="m must be 1 for the source 'loss', which is one number, got 2"):
        dpv.Projection(2, "loss")
    train, test = classification(20)
    for schedule in ("lagged", "running-mean", dpv.Schedule("replay", rounds=2)):
        with pytest.raises(dpv.DpvalueError, match="a score of one release"):
            dpv.value(train, test, projection=SCORE, schedule=schedule, clip=1.0, permutations=100, progress=False)
