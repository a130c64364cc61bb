"""The refit game's parts: fits against scikit-learn, descriptions against autograd, their sensitivity, and files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

import dpvalue as dpv
from dpvalue.data.utility import METRICS, PublicSet
from dpvalue.engine.evaluator import Evaluator
from dpvalue.methods.choosing import choose
from dpvalue.methods.fits import Rows, fit, fit_many, learning_curves
from dpvalue.methods.reading import read
from dpvalue.methods.refit import Refit
from dpvalue.methods.refitting import Refitting
from dpvalue.methods.surrogate import RIDGE, Surrogate, make_surrogate
from dpvalue.models import Linear, build_model
from dpvalue.models.derived import EXTRA_NUMBERS
from dpvalue.party.contributions import Contributions
from dpvalue.party.party import PrivacyBoundary
from dpvalue.party.people import lone_gradients, lone_inputs
from dpvalue.runs.run import PreparedRun, open_setting, prepare
from tests.datasets import Arrays, classification, images, regression

CPU = torch.device("cpu")
ENGINE = dpv.Local(device="cpu", dtype="float64")
QUIET: dict[str, Any] = {"noise": "fast", "progress": False, "engine": ENGINE}
TASKS = ("two", "three", "numbers")


def made(task: str, n: int = 120, seed: int = 0, test: int = 60) -> tuple[Arrays, Arrays, str]:
    """Private rows, public rows and a model."""
    if task == "numbers":
        return *regression(n, test=test, seed=seed), "linear"
    return *classification(n, classes=3 if task == "three" else 2, test=test, seed=seed), "logistic"


def public_of(task: str, rows: int = 60, seed: int = 0) -> tuple[Linear, PublicSet]:
    _, (X, y), kind = made(task, 1, seed, rows)
    x = torch.tensor(X)
    outputs = 1 if task == "numbers" else int(y.max()) + 1
    problem = "regression" if task == "numbers" else "classification"
    model = build_model(kind, problem, x[0], outputs, torch.float64, CPU)
    assert isinstance(model, Linear)
    return model, PublicSet(x, torch.tensor(y), METRICS["mse" if task == "numbers" else "loss"], 0.0)


def oracle(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], strength: float) -> Any:
    """The parameters of scikit-learn's fit to the sum of losses, with C = 1 / strength or alpha = strength."""
    if y.dtype.kind == "f":
        return Ridge(alpha=strength, fit_intercept=False).fit(x, y, weights).coef_[None]
    fitted = LogisticRegression(C=1 / strength, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(x, y, weights)
    return np.concatenate([-fitted.coef_ / 2, fitted.coef_ / 2]) if len(fitted.coef_) == 1 else fitted.coef_


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("ridge", [0.3, 0.01])
def test_one_fit_is_that_of_scikit_learn(task: str, ridge: float) -> None:
    model, public = public_of(task)
    rows = Rows.of(model, public)
    x, y, count = rows.x.numpy(), public.y.numpy(), len(rows.x)
    # mean loss + ridge / 2 |theta|^2; of two classes |theta|^2 is half of |w|^2
    strength = ridge * count / (1 if task == "three" else 2)
    expected = torch.from_numpy(oracle(x, y, np.ones(count), strength)).flatten()
    found = fit(rows, ridge)

    def objective(theta: torch.Tensor) -> float:
        return float(rows.mean_loss(theta) + ridge / 2 * theta.square().sum())

    assert objective(found) == pytest.approx(objective(expected), abs=1e-6)
    torch.testing.assert_close(rows.outputs(found), rows.outputs(expected), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_many_fits_are_those_of_scikit_learn_on_subsets(task: str) -> None:
    """C = 1, alpha = 1; with rows that count twenty times, and with other labels."""
    model, public = public_of(task, rows=80)
    rows, generator = Rows.of(model, public), np.random.default_rng(1)
    weights = (generator.random((12, 80)) < 0.5) * generator.choice([1.0, 20.0], (12, 1))
    others = [generator.permutation(80) if fit % 2 else np.arange(80) for fit in range(12)]
    labels = torch.stack([rows.y[torch.from_numpy(order)].T for order in others])
    found = fit_many(rows, torch.from_numpy(weights), labels)
    for theta, weight, order, label in zip(found, weights, others, labels, strict=True):
        expected = torch.from_numpy(oracle(rows.x.numpy(), public.y.numpy()[order], weight, 1.0)).flatten()
        own, judged = Rows(rows.x, label.T, rows.regression), torch.stack([theta, expected])
        counted = torch.from_numpy(weight)
        loss = (own.losses(own.outputs(judged)) * counted).sum(-1) + rows.retraining_ridge / 2 * judged.square().sum(-1)
        assert float(loss[0] - loss[1]) / weight.sum() < 1e-3
        on_public = rows.mean_loss(judged)
        assert float(on_public[0]) == pytest.approx(float(on_public[1]), abs=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_derivatives_are_those_of_autograd(task: str) -> None:
    model, public = public_of(task)
    rows = Rows.of(model, public)
    theta = torch.randn(rows.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rows.mean_gradient(theta), torch.func.grad(rows.mean_loss)(theta))
    torch.testing.assert_close(rows.curvature(theta), torch.func.jacrev(torch.func.jacrev(rows.mean_loss))(theta))


def surrogate_of(task: str, units: Any = (40, 40, 5), noise: Any = (0.0, 0.1, 0.5)) -> tuple[Linear, PublicSet, Any]:
    model, public = public_of(task)
    return model, public, make_surrogate(model, public, np.array(units), np.array(noise), 3, False)


def row_gradients(rows: Rows, theta: torch.Tensor) -> torch.Tensor:
    """The gradient of each row's loss (rows, size) at one model."""
    return torch.func.jacrev(lambda at: rows.losses(rows.outputs(at)))(theta)  # type: ignore[no-any-return]


@pytest.mark.parametrize("task", TASKS)
def test_a_refit_solves_the_problem_that_it_states(task: str) -> None:
    model, public, surrogate = surrogate_of(task)
    rows = Rows.of(model, public)
    refitting = Refitting(surrogate, rows, Evaluator(public, model, ENGINE), 0)
    at_origin = rows.mean_gradient(surrogate.origin)
    torch.testing.assert_close(refitting.fit(at_origin[None])[0], surrogate.origin, atol=1e-4, rtol=0)
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randint(len(rows.x), (70, 10), generator=generator)  # more than a batch
    slopes = row_gradients(rows, surrogate.origin)[chosen].mean(1) * torch.linspace(0.1, 3, 70)[:, None]
    theta = refitting.fit(slopes)
    left = rows.mean_gradient(theta) + slopes - at_origin + RIDGE * theta
    assert float(left.norm(dim=1).max()) < 1e-3
    # Half of left' H^-1 left is what is still to be gained; of a bare public fit it is a thousand times that.
    bend = torch.stack([torch.linalg.solve(rows.curvature(t) + RIDGE * torch.eye(len(t)), g)
                        for t, g in zip(theta, left, strict=True)])  # fmt: skip
    assert float((left * bend).sum(1).max()) < 1e-6
    beside = rows.mean_gradient(surrogate.origin) + slopes - at_origin + RIDGE * surrogate.origin
    assert float(beside.norm(dim=1).min()) > 1e-2
    again = refitting.fit(slopes.flip(0), theta.flip(0).roll(1, 0))  # from anywhere
    torch.testing.assert_close(again.flip(0), theta, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("task", TASKS)
def test_what_a_penalty_of_parameters_costs_is_that_of_retrained_models(task: str) -> None:
    """A coalition of records like public ones is worth what retraining on as many is, penalty and all."""
    model, public, surrogate = surrogate_of(task)
    public, rows = replace(public, l2=0.5), Rows.of(model, public)
    refitting = Refitting(surrogate, rows, Evaluator(public, model, ENGINE), 0)
    worth = float(refitting.evaluate(refitting.fit(surrogate.clean[None].to(rows.x))))
    few, none, one = np.array([30.0]), np.zeros(1), np.ones(1)
    said = worth + refitting.correction(few, none, one)[0]
    assert said == pytest.approx(-learning_curves(rows, 0, dpv.Local(), 0.5)(few, none, one)[0], abs=1e-4)
    assert said < -learning_curves(rows, 0, dpv.Local())(few, none, one)[0] - 1e-3


@pytest.mark.parametrize("task", TASKS)
def test_a_party_that_is_off_is_read_as_far_off_as_it_is(task: str) -> None:
    """Directions that weigh less in a description are not read as less."""
    _, _, surrogate = surrogate_of(task, units=(4000,), noise=(0.0,))
    window = surrogate.window(0)
    assert window.profile[0] == 1
    where = 1 + int(window.defect_squares[1:].argmax())  # a direction in which parties may be off
    assert window.profile[where] < 1
    away = 3 * float(
        (window.defect_squares + window.spread[:-2] / surrogate.public)[where].sqrt() / window.profile[where]
    )
    weighed = window.centre.clone()
    weighed[where] += away * window.profile[where]
    row = torch.zeros(surrogate.size, dtype=torch.float64)
    row[: window.count], row[-2:] = weighed[:-2], weighed[-2:]
    found = read(surrogate, 0, row / window.norm, 0.0, 4000, task == "numbers").gradient - surrogate.clean
    expected = away * surrogate.lift[where]
    assert float((found @ expected) / expected.square().sum()) == pytest.approx(1, abs=0.25)


@pytest.mark.parametrize("task", TASKS)
def test_learning_curves_are_those_of_retraining(task: str) -> None:
    """Beside scikit-learn's fits to as many rows; meaningless labels and copies cost more, more records less."""
    model, public = public_of(task, rows=200)
    rows = Rows.of(model, public)
    made_with, generator = [learning_curves(rows, seed, dpv.Local()) for seed in range(6)], np.random.default_rng(0)
    x, y = rows.x.numpy(), public.y.numpy()

    def curve(records: Any, meaningless: float = 0.0, copies: float = 1.0) -> Any:
        """The mean over seeds: one curve is off by as much as five draws of rows are."""
        many = np.array(records, dtype=np.float64)
        shares, repeats = np.full(len(many), meaningless), np.full(len(many), copies)
        return np.mean([one(many, shares, repeats) for one in made_with], axis=0)

    for size in (20, 100):
        losses = []
        for _ in range(60):
            order = generator.permutation(200)
            theta = torch.from_numpy(oracle(x[order[:size]], y[order[:size]], np.ones(size), 1.0)).flatten()
            losses.append(float(rows.select(torch.from_numpy(order[size:])).mean_loss(theta)))
        assert curve([size])[0] == pytest.approx(np.mean(losses), rel=0.15)
    sizes = [5, 20, 80, 160, 1000]
    clean, half, none = (curve(sizes, share) for share in (0.0, 0.5, 1.0))
    assert clean[0] > clean[1] > clean[3] >= clean[4]
    assert (none[1:] > half[1:]).all()
    assert (half[1:] > clean[1:]).all()
    assert task != "two" or (curve(sizes, copies=20.0) > clean)[1:3].all()  # a ridge that counts for less may help
    curves = made_with[0]
    assert curves.no_data_loss == pytest.approx(float(rows.mean_loss(torch.zeros(rows.size, dtype=torch.float64))))


@pytest.mark.parametrize("task", TASKS)
def test_a_description_is_what_it_says(task: str) -> None:
    """The gradient along each vector by autograd, 1, and the squared residual; the same for rows on their own."""
    model, public, surrogate = surrogate_of(task)
    rows, described = Rows.of(model, public), surrogate.description_model(model, torch.zeros(1, dtype=torch.float64))
    weights = surrogate.weights()
    x, y = described.inputs(public.x), described.targets(public.y)
    each = torch.func.jacrev(lambda at: rows.losses(rows.outputs(at)))(surrogate.origin)
    outputs = rows.outputs(surrogate.origin).clone().requires_grad_()
    rows.losses(outputs).sum().backward()
    assert outputs.grad is not None
    off = (outputs.grad.square().sum(0) / surrogate.distance).clamp_max(1.0)
    full = torch.cat([each @ surrogate.vectors.T, torch.ones(len(off), 1), off[:, None]], dim=1)
    for own in weights:
        found = described.record_gradients(own[None], x[None], y[None])[0]
        torch.testing.assert_close(found, full * own)
        alone = lone_gradients(described, own.expand(len(x), -1), lone_inputs(described, public.x), y)
        torch.testing.assert_close(alone, full * own)
    assert (off > 0).all()
    assert surrogate.size == described.size == full.shape[1] == len(surrogate.vectors) + EXTRA_NUMBERS
    assert (weights[:, -EXTRA_NUMBERS:] > 0).all()
    assert [int((own != 0).sum()) for own in weights] == [
        surrogate.window(party).count + EXTRA_NUMBERS for party in range(3)
    ]


def test_directions_are_whitened_and_lift_takes_them_back() -> None:
    """vectors . curvature . vectors = a rotation where the curvature is far above kappa; vectors . lift = 1."""
    for task in TASKS:
        _, _, surrogate = surrogate_of(task)
        identity = torch.eye(len(surrogate.vectors), dtype=torch.float64)
        torch.testing.assert_close(surrogate.vectors @ surrogate.lift.T, identity)


def behind(unit: str, neighbours: str, task: str, game: str = "refit") -> tuple[PreparedRun, dict[str, Any]]:
    private, public, kind = made(task)
    given: dict[str, Any] = {
        "X": private[0],
        "y": private[1],
        "groups": np.arange(120) % 3,
        "persons": np.arange(120) // 6,
    }
    privacy = dpv.Privacy(2.0, unit=unit, neighbours=neighbours, parties_per_person=3 if unit == "person" else 1)
    settings = dpv.Settings(game=game, model=kind, privacy=privacy, noise="fast", engine=ENGINE)
    return prepare(dpv.Utility(*public), settings, *dpv.Parties(**given).counts(privacy)), given


def contributed(ready: PreparedRun, given: dict[str, Any], weights: torch.Tensor | None = None) -> torch.Tensor:
    """What three parties contribute, before noise."""
    choice, settings = ready.choice, ready.situation.settings
    behind = PrivacyBoundary(
        choice.unit_numbers, choice.mechanism, ready.encoding, settings.privacy, torch.float64, False
    )
    contributions: Contributions = behind.enclose(dpv.Parties(**given), ENGINE)
    points = choice.points if weights is None else weights
    return contributions.mean_gradients(points, choice.shares, torch.arange(3))


@pytest.mark.parametrize("unit", ["record", "person", "party"])
@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize("task", TASKS)
def test_one_unit_moves_a_release_by_at_most_its_share(unit: str, neighbours: str, task: str) -> None:
    """Whatever the weights that a server asks with: clipping comes after them."""
    ready, given = behind(unit, neighbours, task)
    generator = np.random.default_rng(0)
    units = {"record": 40, "person": 20, "party": 1}[unit]
    mine = {"record": given["groups"] + 0 == -1, "person": given["persons"] == 4, "party": given["groups"] == 1}[unit]
    if unit == "record":
        mine[7] = True  # of party 1
    bound = {"zero_out": 1.0, "replace": 2.0}[neighbours] / units
    noise = ready.choice.mechanism.noise_scale(torch.tensor([units]))
    assert float(noise[0]) == pytest.approx(ready.choice.mechanism.noise_multiplier * bound)
    kinds = np.unique(given["y"])
    furthest, hostile = 0.0, torch.from_numpy(generator.lognormal(0, 6, tuple(ready.choice.points.shape)))
    for weights in (ready.choice.points, hostile, 1e200 * hostile, 0 * hostile):
        before = contributed(ready, given, weights)
        assert float(before.norm(dim=1).max()) <= 1
        for change in range(8):
            X, y = given["X"].copy(), given["y"].copy()
            if neighbours == "zero_out":
                X[mine] = np.nan
            else:
                X[mine] = generator.normal(0, 10.0 ** generator.integers(-1, 6), X[mine].shape)
                y[mine] = kinds[generator.integers(len(kinds))] if task != "numbers" else generator.normal(0, 1e3)
            moved = (contributed(ready, {**given, "X": X, "y": y}, weights) - before).norm(dim=1)
            affected = moved > 0
            assert float(moved.max()) <= bound + 1e-12
            if unit != "person":
                assert affected.tolist() in ([False, True, False], [False] * 3)
            if change and weights is hostile:
                furthest = max(furthest, float(moved.max()))
    assert furthest > 0.2 * bound  # the bound is not idle


@pytest.mark.parametrize("unit", ["record", "person", "party"])
@pytest.mark.parametrize("task", TASKS)
def test_bad_rows_contribute_nothing_and_are_not_present(unit: str, task: str) -> None:
    ready, given = behind(unit, "zero_out", task)
    blank, good = given["groups"] == 2, contributed(ready, given)
    for what in ("blank", "label", "half"):
        X, y = given["X"].copy(), given["y"].astype(float)
        if what == "label":
            y[blank] = np.nan if task == "numbers" else 9
        else:
            X[blank & (np.arange(120) % 2 == 0 if what == "half" else True)] = np.nan
        found = contributed(ready, {**given, "X": X, "y": y})
        if what != "half":
            assert bool((found[2] == 0).all())
        elif unit == "record":  # half of the presence of rows that are not long enough to be clipped
            assert 0.2 < float(found[2, -2] / good[2, -2]) < 0.8
        torch.testing.assert_close(found[:2], good[:2], rtol=0, atol=0)


def test_the_game_is_chosen_by_settings_and_public_things() -> None:
    (X, y), public, _ = made("three")
    sites = np.arange(120) % 3

    def chosen(groups: Any = sites, utility: Any = public, **given: Any) -> str:
        given = {"privacy": dpv.Privacy(2.0, unit="record"), "engine": ENGINE, "noise": "fast", **given}
        settings = dpv.Settings(**given)
        sizes = dpv.Parties(X, y, groups).counts(settings.privacy)
        at = open_setting(dpv.Utility(*utility), settings, *sizes)[0]
        return choose(at).method.statistic.name

    assert chosen() == chosen(game="refit") == chosen(privacy=None) == "description"
    for unit in ("record", "party"):
        assert chosen(privacy=dpv.Privacy(2.0, unit=unit)) == "description"
    assert chosen(game="refit", groups=None) == "description"  # where it is asked for, single rows too
    few, large = (public[0][:19], public[1][:19]), (1e5 * public[0], public[1])
    laplace = dpv.Privacy(2.0, 0.0, unit="record")
    for given, message in (
        ({"utility": few}, "needs at least 20 public rows"),
        ({"utility": large}, "needs scaled features"),
        ({"privacy": laplace}, "needs Gaussian noise"),
    ):
        assert chosen(**given) != "description"
        with pytest.raises(dpv.DpvalueError, match=message):
            chosen(game="refit", **given)
    assert chosen(groups=None) != "description"
    assert chosen(game="steps") != "description"
    for name, setting in {
        "schedule": "replay", "projection": None, "clip": 1.0, "learning_rate": 0.1, "clip_rule": "flat",
    }.items():  # fmt: skip
        assert chosen(**{name: setting}) != "description"
        with pytest.raises(dpv.DpvalueError, match=f"game='refit' makes one release of its own: leave {name} unset"):
            chosen(game="refit", **{name: setting})
    with pytest.raises(dpv.DpvalueError, match="game must be one of auto, refit, steps; got 'paper'"):
        dpv.Settings(game="paper")


def test_large_models_take_steps() -> None:
    given: dict[str, Any] = {"groups": np.arange(24) % 3, "privacy": None, "permutations": 2, **QUIET}
    train, public = images(24, test=24, side=24)
    with pytest.raises(dpv.DpvalueError, match="game='refit' is for heads of networks of up to 2000 parameters"):
        dpv.value(train, public, model="cnn", game="refit", **given)
    wide = np.random.default_rng(0).normal(size=(24, 700))
    labels = np.arange(24) % 3
    with pytest.raises(dpv.DpvalueError, match="game='refit' is for models of up to 2000 parameters"):
        dpv.value((wide, labels), (wide.copy(), labels.copy()), game="refit", **given)
    assert dpv.value((wide, labels), (wide.copy(), labels.copy()), **given).table.method.name == "steps"


@pytest.fixture(name="result", scope="module")
def made_result() -> tuple[dpv.Result, Arrays]:
    private, public, _ = made("three")
    privacy = dpv.Privacy(4.0, unit="record")
    return dpv.value(private, public, groups=np.repeat([0, 1, 2], [80, 30, 10]), privacy=privacy, **QUIET), public


def test_a_table_survives_its_file_bit_for_bit(result: tuple[dpv.Result, Arrays], tmp_path: Path) -> None:
    made_with, public = result
    for dtype in ("float64", "float32"):
        private, _, _ = made("three")
        engine = dpv.Local(device="cpu", dtype=dtype)
        given = {**QUIET, "engine": engine, "groups": np.arange(120) % 3, "privacy": dpv.Privacy(4.0, unit="record")}
        table = dpv.release(private, public, **given)
        table.save(tmp_path / "file")
        loaded = dpv.load(tmp_path / "file")
        assert isinstance(loaded, dpv.Table)
        assert isinstance(table.method, Refit)
        assert isinstance(loaded.method, Refit)
        first, second = table.method.surrogate, loaded.method.surrogate
        for name, tensor in first.tensors().items():
            assert torch.equal(tensor, second.tensors()[name]), name
        assert torch.equal(first.weights(), second.weights())
        worth = [one.value(public, engine=engine, progress=False).values["shapley"] for one in (table, loaded)]
        np.testing.assert_array_equal(worth[0], worth[1])
    made_with.save(tmp_path / "file")
    again = dpv.load(tmp_path / "file")
    assert isinstance(again, dpv.Result)
    np.testing.assert_array_equal(again.values["shapley"], made_with.values["shapley"])
    revalued = again.table.value(public, engine=ENGINE, progress=False)
    np.testing.assert_array_equal(revalued.values["shapley"], made_with.values["shapley"])


def spoilt(tensor: torch.Tensor, change: str) -> torch.Tensor | None:
    if change == "missing":
        return None
    if change == "shape":
        return torch.cat([tensor, tensor])
    if change == "scalar":
        return tensor.flatten()[0].clone()
    if change == "empty":
        return tensor[:0].clone()
    if change == "type":
        return tensor.to(torch.float32)
    return torch.full_like(tensor, float(change))


CHANGES = ("missing", "shape", "scalar", "empty", "type")
SPOILT = {
    **dict.fromkeys(("lift", "clean", "noise"), (*CHANGES, "nan", "inf")),
    **dict.fromkeys(("numbers", "windows"), (*CHANGES, "nan", "inf", "-1", "0")),
    "chosen": (*CHANGES, "-1", "100"),
}


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, changes in SPOILT.items() for change in changes])
def test_corrupted_tensors_are_refused(
    name: str, change: str, result: tuple[dpv.Result, Arrays], tmp_path: Path
) -> None:
    header, tensors = result[0].table.parts()
    tensor = tensors[f"method.{name}"]
    other = spoilt(tensor, change)
    if (name, change) == ("windows", "shape"):  # more of them than are used would be no harm
        other = torch.cat([tensor, tensor], dim=1)
    kept = {key: one for key, one in tensors.items() if key != f"method.{name}"}
    dpv.Table.archive.write(tmp_path / "file", header, kept if other is None else kept | {f"method.{name}": other})
    with pytest.raises(dpv.DpvalueError, match=rf"is not a whole dpvalue file: .*method\.{name}"):
        dpv.load(tmp_path / "file")


def test_a_basis_must_fit_what_describes(result: tuple[dpv.Result, Arrays], tmp_path: Path) -> None:
    header, tensors = result[0].table.parts()
    for changed, message in (
        ({"basis": tensors["basis"][:-1]}, "the tensor 'method.lift' must be"),
        ({"basis": tensors["basis"] * float("nan")}, "the tensor 'basis' must be of finite numbers"),
        ({"method.chosen": torch.zeros(2, dtype=torch.int64)}, "for each of 3 parties"),
    ):
        dpv.Table.archive.write(tmp_path / "file", header, tensors | changed)
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.load(tmp_path / "file")
    bare = {name: tensor for name, tensor in tensors.items() if name != "basis"}
    dpv.Table.archive.write(tmp_path / "file", {**header, "projection": None}, bare)
    with pytest.raises(dpv.DpvalueError, match="the refit game needs a basis"):
        dpv.load(tmp_path / "file")
    own = result[0].table.method.tensors()
    own["windows"] = own["windows"].clone()
    own["windows"][:, 0, 0] = 1e6
    with pytest.raises(dpv.DpvalueError, match="holds no windows"):
        Surrogate.from_tensors(tensors["initial"], tensors["basis"], own)
    table = replace(result[0].table, digest="other")
    with pytest.raises(dpv.DpvalueError, match="its digest differs"):
        table.value(result[1], progress=False)
