"""Releases in public directions: what a basis is, that the projected model is the model, and what is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.preprocessing import StandardScaler
from torch import nn

import dpvalue as dpv
from dpvalue.data.parties import Parties
from dpvalue.methods.choosing import choose
from dpvalue.models import Linear, Model, Network, project_model, row_losses
from dpvalue.party.contributions import Contributions
from dpvalue.planning.settings import Settings
from dpvalue.privacy.mechanism import make_mechanism
from dpvalue.protocol.projection import Basis, make_basis
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.run import open_setting, run_for
from tests.datasets import Arrays, classification, flipped_breast_cancer, images, regression

CPU = torch.device("cpu")
EXACT = dpv.Local(dtype="float64")
QUIET: dict[str, Any] = {"noise": "fast", "progress": False}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def models() -> list[tuple[Model, torch.Tensor, torch.Tensor]]:
    """A linear classifier, a network and a linear regression, each with rows and labels."""
    (X, y), _ = classification(40)
    (R, r), _ = regression(40)
    x, labels = torch.tensor(X), torch.tensor(y)
    return [
        (Linear(4, 3, "classification", torch.float64, CPU), x, labels),
        (Network(net, "classification", "custom", x[0], torch.float64, CPU), x, labels),
        (Linear(3, 1, "regression", torch.float64, CPU), torch.tensor(R), torch.tensor(r)),
    ]


def basis_of(projection: dpv.Projection, number: int) -> tuple[Basis, Model, torch.Tensor, torch.Tensor]:
    model, x, y = models()[number]
    return make_basis(projection, model, model.initial(0), model.inputs(x), model.targets(y), 0), model, x, y


@pytest.mark.parametrize("number", [0, 1, 2], ids=["logistic", "network", "regression"])
@pytest.mark.parametrize(
    "projection",
    [
        dpv.Projection(1, "path", 30),
        dpv.Projection(3, "path", 30),
        dpv.Projection(1, "utility"),
        dpv.Projection(2, "utility", 5),
        dpv.Projection(3, "classes"),
        dpv.Projection(1, "singular"),
        dpv.Projection(4, "singular"),
    ],
    ids=str,
)
def test_a_basis_is_orthonormal_and_points_uphill(projection: dpv.Projection, number: int) -> None:
    if (projection.source, number) == ("classes", 2):
        with pytest.raises(dpv.DpvalueError, match="'classes' is for classification"):
            basis_of(projection, number)
        return
    basis, model, x, y = basis_of(projection, number)
    assert basis.vectors.shape == (projection.m, model.size)
    torch.testing.assert_close(basis.vectors @ basis.vectors.T, torch.eye(projection.m, dtype=torch.float64))
    assert float(basis.shares.sum()) == pytest.approx(1.0)
    moved = project_model(model, basis.origin, basis.vectors)
    loss = moved.mean_loss(moved.inputs(x), y)
    points = torch.zeros(2, projection.m, dtype=torch.float64)
    points[1, 0] = -0.05
    before, after = loss(points)
    assert after < before  # downhill is against the first direction


@pytest.mark.parametrize("number", [0, 1, 2], ids=["logistic", "network", "regression"])
def test_a_projected_model_is_the_model_along_the_basis(number: int) -> None:
    """Outputs and losses are those of the lifted model; gradients are its gradients, projected."""
    basis, model, x, y = basis_of(dpv.Projection(3, "path", 30), number)
    moved = project_model(model, basis.origin, basis.vectors)
    w = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    theta = basis.origin + w @ basis.vectors
    torch.testing.assert_close(moved.lift(w), theta)
    assert torch.equal(moved.initial(3), torch.zeros(3, dtype=torch.float64))
    inputs, plain = moved.inputs(x), model.inputs(x)
    torch.testing.assert_close(moved.outputs(w, inputs), model.outputs(theta, plain))
    torch.testing.assert_close(moved.mean_loss(inputs, y)(w), model.mean_loss(plain, y)(theta))
    rows, weights = torch.arange(10).view(5, 2), torch.tensor([0.3, 0.7], dtype=torch.float64).expand(5, 2)
    targets, plain_targets = moved.targets(y)[rows], model.targets(y)[rows]
    expected = model.gradients(theta, plain[rows], plain_targets, weights) @ basis.vectors.T
    torch.testing.assert_close(moved.gradients(w, inputs[rows], targets, weights), expected)
    expected = model.record_gradients(theta, plain[rows], plain_targets) @ basis.vectors.T
    torch.testing.assert_close(moved.record_gradients(w, inputs[rows], targets), expected)
    assert moved.digest() == model.digest()


@pytest.mark.parametrize("number", [0, 1, 2], ids=["logistic", "network", "regression"])
def test_a_path_releases_how_much_public_training_lowers_the_loss(number: int) -> None:
    """The mean gradient along the line, times its length, is the difference of the losses at its ends."""
    basis, model, x, y = basis_of(dpv.Projection(1, "path", 40), number)
    moved = project_model(model, basis.origin, basis.vectors)
    inputs, targets = moved.inputs(x)[:, None], moved.targets(y)[:, None]
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    released = sum(
        float(share) * moved.gradients(point.expand(len(x), 1), inputs, targets, ones)[:, 0]
        for point, share in zip(basis.points, basis.shares, strict=True)
    )
    end = basis.points.sum() / basis.points[:, 0].numel() * 2  # the points lie evenly about the middle
    ends = moved.outputs(torch.stack([torch.zeros_like(basis.points[0]), end.view(1)]), moved.inputs(x))
    start, trained = (row_losses(model.task, outputs, y) for outputs in ends)
    torch.testing.assert_close(released, (start - trained) / -end, rtol=1e-3, atol=2e-3)
    assert float(trained.mean()) < float(start.mean())


def test_too_many_directions_are_refused() -> None:
    with pytest.raises(dpv.DpvalueError, match="m must be at most 3 for the source 'classes'"):
        basis_of(dpv.Projection(4, "classes"), 0)
    for settings, message in (
        ({"m": 0}, "m must be a whole number of at least 1, got 0"),
        ({"source": "random"}, "source must be one of refit, path, utility, classes, singular, loss; got 'random'"),
        ({"steps": 0}, "steps must be a whole number of at least 1, got 0"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.Projection(**settings)
    train, test = classification(10)
    with pytest.raises(dpv.DpvalueError, match="projection must be a Projection, 'auto' or None, got 3"):
        dpv.value(train, test, projection=3, **QUIET)  # type: ignore[arg-type]
    with pytest.raises(dpv.DpvalueError, match="source 'refit' is for game='refit'"):
        dpv.value(train, test, projection=dpv.Projection(2, "refit"), **QUIET)


@pytest.mark.parametrize("schedule", ["replay", "lagged", "independent", "running-mean", "optimal", "decaying"])
def test_every_schedule_walks_in_the_projected_space(schedule: str) -> None:
    """Without noise, all parameters span the whole space: values are those of the unprojected run."""
    (X, y), test = regression(6, features=2)
    kind = dpv.Schedule("replay", rounds=2, probes=3) if schedule == "replay" else dpv.Schedule(schedule)
    settings: dict[str, Any] = {
        "model": "linear", "privacy": None, "schedule": kind, "permutations": 100, "learning_rate": 0.02,
        "progress": False, "engine": EXACT, "semivalues": ("shapley", "loo"),
    }  # fmt: skip
    whole = dpv.value((X, y), test, **settings)
    moved = dpv.value((X, y), test, projection=dpv.Projection(3, "singular"), **settings)
    assert moved.table.rows.shape == (6, 3)
    np.testing.assert_allclose(moved.values["shapley"], whole.values["shapley"], atol=1e-10)
    np.testing.assert_allclose(moved.values["loo"], whole.values["loo"], atol=1e-10)
    assert moved.table.basis is not None
    torch.testing.assert_close(moved.table.rows @ moved.table.basis, whole.table.rows)


def test_a_projected_table_is_saved_with_its_basis_and_replayed(tmp_path: Path) -> None:
    train, test = classification(20)
    result = dpv.value(
        train, test, model=net, privacy=dpv.Privacy(4.0), projection=dpv.Projection(2, "utility"), **QUIET
    )
    result.save(tmp_path / "file")
    loaded = dpv.load(tmp_path / "file", model=net)
    assert isinstance(loaded, dpv.Result)
    assert loaded.table.projection == dpv.Projection(2, "utility")
    assert loaded.table.expected_auc == result.table.expected_auc
    assert loaded.table.basis is not None
    again = loaded.revalue(test, progress=False)
    np.testing.assert_allclose(again.values["shapley"], result.values["shapley"], rtol=1e-6)
    whole = dpv.release(train, test, model=net, privacy=dpv.Privacy(4.0), projection=None, **QUIET)
    assert result.table.rows.numel() * 20 < whole.rows.numel()


def released(data: tuple[Arrays, Arrays], privacy: dpv.Privacy | None, seed: int, **settings: Any) -> dpv.Table:
    return dpv.release(*data, privacy=privacy, engine=EXACT, seed=seed, **{**QUIET, **settings})


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
def test_one_number_gets_laplace_noise_of_sensitivity_over_epsilon(neighbours: str) -> None:
    data = classification(8000, classes=2)
    privacy = dpv.Privacy(epsilon=0.7, delta=0, neighbours=neighbours)
    fixed: dict[str, Any] = {"projection": dpv.Projection(steps=16), "clip": 0.3, "learning_rate": 0.1}
    table = released(data, privacy, 0, **fixed)
    spent = table.guarantee
    assert (spent.mechanism, spent.delta, spent.mu, spent.epsilon) == ("Laplace", 0.0, None, 0.7)
    assert spent.advantage == pytest.approx(1 - np.exp(-0.35))
    exact, gain = clipped_rows(data, privacy, fixed)
    scale = gain * 0.3 * (2 if neighbours == "replace" else 1) / 0.7
    np.testing.assert_allclose(table.noise_std, scale * 2**0.5)
    difference = table.rows[:, 0].numpy() - exact
    assert stats.kstest(difference, "laplace", args=(0, scale)).pvalue > 1e-3
    for wrong in (0.85, 1.15):
        assert stats.kstest(difference, "laplace", args=(0, scale * wrong)).pvalue < 1e-3
    assert stats.kstest(difference, "norm", args=(0, scale * 2**0.5)).pvalue < 1e-3


def clipped_rows(data: tuple[Arrays, Arrays], privacy: dpv.Privacy, fixed: dict[str, Any]) -> Any:
    """What would be read of the releases without noise: the parties' clipped components; and the gain of reading."""
    settings = Settings(
        model="logistic", privacy=privacy, schedule=Schedule("replay"), permutations=1000, clip_rule="auto",
        noise="fast", preprocess=None, engine=EXACT, seed=0, **fixed,
    )  # fmt: skip
    run = run_for(Parties(*data[0]), dpv.Utility(*data[1]), settings)
    mechanism, n = run.choice.mechanism, len(data[0][0])
    found = run.contributions.mean_gradients(run.choice.points, run.choice.shares, torch.arange(n))[:, 0]
    assert (found.abs() <= 0.3).all()
    assert (found.abs() > 0.29).any()
    return mechanism.scale.read(found).numpy(), mechanism.scale.gain


def test_laplace_needs_one_release_of_one_number() -> None:
    train, test = classification(10)
    pure = dpv.Privacy(delta=0)
    for settings in (
        {"schedule": "running-mean"},
        {"schedule": dpv.Schedule("replay", rounds=2)},
        {"projection": None},
        {"projection": dpv.Projection(2, "utility")},
    ):
        with pytest.raises(dpv.DpvalueError, match="delta = 0 needs one release of one number"):
            dpv.value(train, test, privacy=pure, **settings, **QUIET)
    with pytest.raises(dpv.DpvalueError, match="mechanism='laplace' needs one release of one number"):
        dpv.value(train, test, privacy=dpv.Privacy(mechanism="laplace"), projection=None, clip=1.0, **QUIET)
    gaussian = dpv.value(train, test, privacy=dpv.Privacy(mechanism="gaussian"), **QUIET)
    assert gaussian.guarantee.mechanism == "Gaussian"


def test_the_choice_reads_no_private_row() -> None:
    """Other private rows of the same sizes: the same choice, number for number."""
    train, test, _ = flipped_breast_cancer(200)
    junk = np.random.default_rng(0).normal(size=train[0].shape), 1 - train[1]
    tables = [
        dpv.release(one, test, privacy=dpv.Privacy(2.0), preprocess=StandardScaler(), **QUIET) for one in (train, junk)
    ]
    first, second = tables
    assert (first.projection, first.guarantee, first.learning_rate, first.expected_auc) == (
        second.projection, second.guarantee, second.learning_rate, second.expected_auc,
    )  # fmt: skip
    assert torch.equal(first.basis, second.basis)  # type: ignore[arg-type]
    assert not torch.equal(first.rows, second.rows)


def test_budgets_choose_the_mechanism_and_records_the_directions() -> None:
    """Rows at a small epsilon get one Laplace number; large data sets are described, or take steps anywhere."""
    train, test, _ = flipped_breast_cancer(400)
    small = dpv.release(train, test, preprocess=StandardScaler(), **QUIET)
    assert small.guarantee.mechanism == "Laplace"
    assert small.rows.shape == (400, 1)
    record = dpv.Privacy(unit="record")
    given: dict[str, Any] = {"groups": np.arange(400) % 8, "privacy": record, "preprocess": StandardScaler(), **QUIET}
    sites = dpv.release(train, test, **given)
    assert sites.guarantee.mechanism == "Gaussian"
    assert sites.projection == dpv.Projection(40, "refit")
    assert sites.rows.shape == (8, 42)
    steps = dpv.release(train, test, game="steps", **given)
    assert steps.guarantee.mechanism == "Gaussian"
    assert steps.projection is None
    assert steps.rows.shape == (8, 62)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_what_is_expected_is_what_is_found(epsilon: float) -> None:
    """Mean AUC over fresh noise on flipped rows nobody rehearsed with, beside what the public rows promised."""
    found: list[float] = []
    expected: list[float] = []
    for seed in range(3):
        train, test, flipped = flipped_breast_cancer(300, seed=seed)
        for draw in range(6):
            result = dpv.value(
                train, test, privacy=dpv.Privacy(epsilon), preprocess=StandardScaler(), **QUIET, seed=10 * seed + draw
            )
            found.append(dpv.detection.auc(result.values["shapley"], flipped))
            assert result.table.expected_auc is not None
            expected.append(result.table.expected_auc)
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=0.03)
    assert dpv.detection.efficiency(float(np.mean(found)), epsilon) > 0.85
    planned = dpv.plan(300, test, privacy=dpv.Privacy(epsilon), preprocess=StandardScaler(), seed=25)
    assert planned.expected_auc == expected[-1]


def test_images_through_a_network_release_one_number_along_a_path() -> None:
    """With the paper's CNN: the noise-free component along the path tells wrong labels, all of them."""
    (X, y), test = images(60, classes=3)
    wrong = np.arange(60) < 18
    labels = np.where(wrong, (y + 1) % 3, y)
    result = dpv.value(
        (X, labels), test, model="cnn", privacy=dpv.Privacy(4.0), projection=dpv.Projection(steps=64), **QUIET
    )
    assert result.table.rows.shape == (60, 1)
    assert dpv.detection.auc(result.values["shapley"], wrong) > 0.9


def test_clean_public_rows_read_back_to_what_they_are() -> None:
    """Clipping to a narrow interval takes most of a component away; on average over clean rows, reading restores it."""
    train, test, _ = flipped_breast_cancer(300, share=0.0)
    settings = Settings(
        model="logistic", privacy=dpv.Privacy(), schedule=Schedule("replay"), permutations=100,
        projection=dpv.Projection(steps=64), clip="auto", clip_rule="auto", learning_rate=0.1, noise="fast",
        preprocess=StandardScaler(), engine=EXACT, seed=0,
    )  # fmt: skip
    run = run_for(Parties(*train), dpv.Utility(*test), settings)
    points, shares, everyone = run.choice.points, run.choice.shares, torch.arange(300)
    bounded = run.contributions.mean_gradients(points, shares, everyone)
    free = Contributions(run.choice.model, run.contributions._rows, make_mechanism(None, None, 0.0), EXACT)
    raw = free.mean_gradients(points, shares, everyone)
    read = run.choice.mechanism.scale.read(bounded)
    assert float(read.mean()) == pytest.approx(float(raw.mean()), rel=0.1)
    assert abs(float(bounded.mean() / raw.mean()) - 1) > 0.2  # what leaves is not on that scale


def test_an_l2_term_is_that_of_the_whole_model() -> None:
    """Along a basis that does not start at zero, |w|^2 is not |theta|^2."""
    train, (X, y) = classification(5)
    utility = dpv.Utility(X, y, l2=0.7)
    settings: dict[str, Any] = {
        "model": net, "privacy": None, "schedule": dpv.Schedule("replay", rounds=1), "progress": False, "engine": EXACT,
        "projection": dpv.Projection(1, "path", 32),
    }  # fmt: skip
    result = dpv.value(train, utility, **settings)
    table = result.table
    assert table.basis is not None
    ends = table.initial - table.learning_rate * torch.stack([0 * table.rows[0], table.rows.sum(0)]) @ table.basis
    model = Network(net, "classification", "custom", torch.tensor(X[0]), torch.float64, CPU)
    losses = model.mean_loss(torch.tensor(X), torch.tensor(y))(ends) + 0.7 * ends.square().sum(1)
    assert result.values["shapley"].sum() == pytest.approx(float(losses[0] - losses[1]))


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_unscaled_features_are_walked_all_the_same(scale: float) -> None:
    (X, y), (X_test, y_test) = classification(30)
    data = (X * scale, y), (X_test * scale, y_test)
    for projection in ("auto", dpv.Projection(1, "utility"), dpv.Projection(1, "singular")):
        found = dpv.value(*data, privacy=dpv.Privacy(4.0), projection=projection, **QUIET)
        assert np.isfinite(found.values["shapley"]).all()


def test_one_parameter_is_rehearsed_with_its_sign() -> None:
    """A single weight has no basis, but a direction: what agrees with the public set is good, whatever y's sign."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 1))
    expected = []
    for sign in (1.0, -1.0):
        y = sign * x[:, 0] + generator.normal(0, 0.3, 200)
        planned = dpv.plan(
            100, (x, y), model=lambda: nn.Linear(1, 1, bias=False), privacy=dpv.Privacy(8.0), projection=None
        )
        expected.append(planned.expected_auc or 0.0)
    assert min(expected) > 0.6


def test_a_class_that_a_fold_lacks_does_not_refuse_a_projection() -> None:
    train, (X, y) = classification(12, classes=2)
    y = y.copy()
    y[0] = 2
    private = train[0], train[1]
    table = dpv.release(private, (X, y), privacy=dpv.Privacy(4.0), projection=dpv.Projection(3, "classes"), **QUIET)
    assert table.rows.shape == (12, 3)


def test_few_public_rows_are_enough_to_choose() -> None:
    """Folds of one row, classes that a fold lacks, features of zeros: something is chosen, nothing fails."""
    train, (X, y) = classification(10, classes=3)
    assert np.isfinite(dpv.value(train, (X[:3], y[:3]), **QUIET).values["shapley"]).all()
    zeros = dpv.value((train[0] * 0, train[1]), (X * 0, y), **QUIET)
    assert np.isfinite(zeros.values["shapley"]).all()


def test_normalised_releases_all_have_the_same_length() -> None:
    data = classification(50)
    table = released(
        data, None, 0, projection=dpv.Projection(2, "utility"), clip=0.5, clip_rule="normalise", schedule="replay"
    )
    assert table.rows.norm(dim=1).max() <= 0.5 + 1e-9
    lengths = released(
        data, None, 0, projection=dpv.Projection(2, "utility"), clip=0.5, clip_rule="normalise",
        schedule=dpv.Schedule("replay", rounds=1),
    ).rows.norm(dim=1)  # fmt: skip
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.5), rtol=1e-6, atol=0)


def test_walks_stay_on_the_near_side_of_the_best_point() -> None:
    """The tuned rate moves all parties together, at three standard deviations of noise, no further than the best."""
    train, test, _ = flipped_breast_cancer(300, share=0.0)
    result = dpv.value(train, test, preprocess=StandardScaler(), semivalues=("shapley", "loo"), **QUIET)
    assert (result.values["loo"] > 0).mean() > 0.5
    assert np.corrcoef(result.values["loo"], result.values["shapley"])[0, 1] > 0.95


def test_choose_is_deterministic() -> None:
    _, test = classification(10)
    settings = Settings(
        model="logistic", privacy=dpv.Privacy(), schedule=Schedule("replay"), permutations=100, projection="auto",
        clip="auto", clip_rule="auto", learning_rate="auto", noise="fast", preprocess=None, engine=EXACT, seed=3,
    )  # fmt: skip
    ones = np.ones(10, dtype=np.int64)
    at, _ = open_setting(dpv.Utility(*test), settings, ones, ones)
    first, second = choose(at), choose(at)
    assert (first.mechanism, first.learning_rate, first.projection) == (
        second.mechanism,
        second.learning_rate,
        second.projection,
    )
