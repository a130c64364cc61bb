"""Metrics: what models are worth, compared with scikit-learn's; in every game, and by functions of users' own."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.preprocessing import StandardScaler
from torch import nn

import dpvalue as dpv
from dpvalue.data.utility import ACCURACY, METRICS, Metric, register_metric
from dpvalue.engine.evaluator import Evaluator
from dpvalue.methods.few import LineGame
from dpvalue.methods.refitting import RefitGame
from dpvalue.methods.sums import TableGame
from dpvalue.models import Linear
from tests.datasets import classification, regression

ENGINE = dpv.Local(device="cpu", dtype="float64", threads=1)
QUIET: dict[str, Any] = {"noise": "fast", "progress": False, "engine": ENGINE}
STEPS: dict[str, Any] = {**QUIET, "privacy": None, "clip": 1.0, "learning_rate": 0.1, "schedule": "replay"}
CLASSES = np.array([0] * 9 + [1] * 14 + [2] * 7)
CPU = torch.device("cpu")


def probabilities(classes: int, tied: bool, models: int = 6) -> torch.Tensor:
    """Outputs of some models on the rows of `CLASSES`; tied ones take few different values."""
    logits = np.random.default_rng(classes).normal(size=(models, len(CLASSES), classes))
    logits[:, np.arange(len(CLASSES)), np.minimum(CLASSES, classes - 1)] += 0.5
    return torch.from_numpy(np.round(logits) if tied else logits).softmax(-1)


def by_sklearn(name: str, labels: Any, outputs: Any) -> float:
    """The metric of one model, by scikit-learn."""
    if name == "auc":
        scores = outputs[:, 1] if outputs.shape[1] == 2 else outputs
        return float(sk.roc_auc_score(labels, scores, multi_class="ovr", average="macro"))
    if name.endswith("accuracy"):
        score = sk.accuracy_score if name == "accuracy" else sk.balanced_accuracy_score
        return float(score(labels, outputs.argmax(1)))
    if name == "loss":
        return -float(sk.log_loss(labels, outputs))
    if name == "r2":
        return float(sk.r2_score(labels, outputs))
    return -float((sk.mean_squared_error if name == "mse" else sk.mean_absolute_error)(labels, outputs))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "auc"])
def test_metrics_of_probabilities_are_those_of_scikit_learn(name: str, classes: int, tied: bool) -> None:
    labels, outputs = np.minimum(CLASSES, classes - 1), probabilities(classes, tied)
    worth = METRICS[name].worth
    assert worth is not None
    expected = [by_sklearn(name, labels, model) for model in outputs.numpy()]
    np.testing.assert_allclose(worth(outputs, torch.from_numpy(labels)).numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("name", list(METRICS))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_models_are_worth_is_what_scikit_learn_says_of_their_outputs(name: str, dtype: str) -> None:
    """From parameters on: the outputs are those of the model, and labels those of the public set."""
    task = METRICS[name].tasks[0]
    _, (X, y) = regression(30, test=50) if task == "regression" else classification(30, classes=3, test=50)
    engine = dpv.Local(device="cpu", dtype=dtype)
    utility = dpv.Utility(X, y, metric=name)
    encoding = utility.encoding("linear" if task == "regression" else "logistic")
    public = utility.encode(encoding, engine.torch_dtype, CPU)
    model = Linear(X.shape[1], encoding.outputs, task, engine.torch_dtype, CPU)
    theta = torch.randn(7, model.size, generator=torch.Generator().manual_seed(0)).to(engine.torch_dtype)
    found = Evaluator(public, model, engine)(theta)
    assert found.dtype == torch.float64
    outputs = model.outputs(theta, model.inputs(public.x)).to(torch.float64)
    shown = outputs[..., 0] if task == "regression" else outputs.softmax(-1)
    expected = [by_sklearn(name, y, one) for one in shown.numpy()]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5 if dtype == "float32" else 1e-10)


def test_classes_that_public_rows_lack_are_left_out() -> None:
    labels, outputs = np.minimum(CLASSES, 1), probabilities(3, tied=True)
    balanced, area = (METRICS[name].worth for name in ("balanced_accuracy", "auc"))
    assert balanced is not None
    assert area is not None
    found = balanced(outputs, torch.from_numpy(labels)).numpy()
    right = outputs.numpy().argmax(2) == labels
    np.testing.assert_allclose(found, (right[:, labels == 0].mean(1) + right[:, labels == 1].mean(1)) / 2)
    areas = [[sk.roc_auc_score(labels == one, model[:, one]) for one in (0, 1)] for model in outputs.numpy()]
    np.testing.assert_allclose(area(outputs, torch.from_numpy(labels)).numpy(), np.mean(areas, axis=1))


def test_public_labels_that_do_not_differ_are_refused_where_the_metric_needs_them_to() -> None:
    train, (X, y) = classification(8)
    table = dpv.release(train, (X, y), **STEPS)
    alike = np.zeros(len(y), dtype=int)
    with pytest.raises(dpv.DpvalueError, match="metric 'auc' needs public labels that differ, got 0 in every row"):
        table.value(dpv.Utility(X, alike, metric="auc"), progress=False)
    same = table.value(dpv.Utility(X, alike, metric="balanced_accuracy"), progress=False, engine=ENGINE)
    accuracy = table.value(dpv.Utility(X, alike, metric="accuracy"), progress=False, engine=ENGINE)
    np.testing.assert_array_equal(same.values["shapley"], accuracy.values["shapley"])
    with pytest.raises(dpv.DpvalueError, match=r"metric 'r2' needs public labels that differ, got 2\.5 in every row"):
        dpv.value(train, dpv.Utility(X, alike + 2.5, metric="r2"), model="linear", **STEPS)


def test_a_model_that_has_overflowed_is_worth_no_number() -> None:
    outputs = probabilities(2, tied=False)
    outputs[1, 3] = torch.nan
    own = dpv.Utility(*classification(8, classes=2)[1], metric=lambda p, y: float(sk.log_loss(y, p)))
    public = own.encode(own.encoding("logistic"), torch.float64, CPU)
    labels = torch.from_numpy(np.minimum(CLASSES, 1))
    for metric in (METRICS["auc"], public.metric):
        assert metric.worth is not None
        worth = metric.worth(outputs[:, : len(public.y)] if metric is public.metric else outputs, labels)
        assert worth.isnan().tolist() == [False, True, False, False, False, False]


def games(metric: Any, task: str, **settings: Any) -> dpv.Result:
    private, public = regression(60, test=40) if task == "regression" else classification(60, classes=3, test=40)
    model = "linear" if task == "regression" else "logistic"
    return dpv.value(private, dpv.Utility(*public, metric=metric), model=model, **QUIET, **settings)


@pytest.mark.parametrize("name", list(METRICS))
@pytest.mark.parametrize("game", ["steps", "refit"])
def test_every_metric_is_valued_in_both_games(name: str, game: str) -> None:
    task = METRICS[name].tasks[-1]
    schedule = "replay" if game == "steps" else None
    result = games(name, task, game=game, schedule=schedule, groups=np.arange(60) // 10, privacy=None)
    assert isinstance(result.game(), RefitGame if game == "refit" else TableGame)
    everyone, nobody = result.game().worth(np.array([[True] * 6, [False] * 6]))
    assert everyone > nobody
    assert result.values["shapley"].sum() == pytest.approx(everyone - nobody)


@pytest.mark.parametrize("game", ["steps", "refit"])
def test_r2_is_the_mean_squared_error_in_other_units(game: str) -> None:
    """Also where learning curves correct what a refitted model is worth."""
    settings: dict[str, Any] = {"game": game, "groups": np.arange(60) // 10, "privacy": dpv.Privacy(8.0, unit="record")}
    errors, shares = (games(name, "regression", **settings).values["shapley"] for name in ("mse", "r2"))
    variance = np.var(regression(60, test=40)[1][1])
    np.testing.assert_allclose(shares, errors / variance, rtol=1e-9)


@pytest.mark.parametrize("schedule", ["running-mean", "lagged"])
def test_schedules_that_value_while_they_release_take_any_metric(schedule: str) -> None:
    settings: dict[str, Any] = {"schedule": dpv.Schedule(schedule, probes=2 if schedule == "lagged" else None)}
    settings |= {"permutations": 4, "clip": 1.0, "learning_rate": 0.1, "projection": None}
    named = games("auc", "classification", **settings).values["shapley"]
    own = games(lambda p, y: sk.roc_auc_score(y, p, multi_class="ovr"), "classification", **settings)
    np.testing.assert_allclose(named, own.values["shapley"], atol=1e-12)
    assert np.ptp(named) > 0.001


def test_a_metric_survives_a_copy() -> None:
    """A result that was copied holds equals of the metrics, which are still these metrics."""
    for metric in METRICS.values():
        again = deepcopy(metric)
        assert again == metric
        assert again.by_name


def test_fast_ways_are_for_the_metrics_that_they_hold_for() -> None:
    """A table of one number a party is looked up along its line for smooth metrics and accuracy, else walked."""
    private, public = classification(40, classes=2, test=60)
    table = dpv.release(private, public, privacy=dpv.Privacy(4.0), projection=dpv.Projection(1), **QUIET)
    kinds = {
        name: type(table.game(dpv.Utility(*public, metric=name), ENGINE)) for name in METRICS if name not in "mser2mae"
    }
    assert kinds == {"loss": LineGame, "accuracy": LineGame, "balanced_accuracy": TableGame, "auc": TableGame}
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(40), (3, 1)), axis=1)
    walks = table.game(dpv.Utility(*public, metric="auc"), ENGINE).walk(orders)
    own = dpv.Utility(*public, metric=lambda p, y: sk.roc_auc_score(y, p[:, 1]))
    np.testing.assert_allclose(walks, table.game(own, ENGINE).walk(orders), atol=1e-12)


def test_values_by_the_area_are_those_of_scikit_learns_function() -> None:
    settings: dict[str, Any] = {"game": "steps", "schedule": "replay", "privacy": None, "permutations": 2}
    own = games(lambda p, y: sk.roc_auc_score(y, p, multi_class="ovr"), "classification", **settings)
    named = games("auc", "classification", **settings)
    np.testing.assert_allclose(own.values["shapley"], named.values["shapley"], atol=1e-12)
    assert np.ptp(named.values["shapley"]) > 0.001


def test_a_function_of_ones_own_gets_outputs_and_the_labels_as_they_were_given() -> None:
    """Never rows: whatever `preprocess` makes of them, a function cannot be given the wrong ones."""
    (X, y), (X_test, y_test) = classification(20, classes=3)
    names = np.array(["rose", "aster", "lily"])
    seen: list[tuple[Any, Any]] = []

    def kept(outputs: Any, labels: Any) -> float:
        seen.append((outputs, labels))
        return -float(sk.log_loss(labels, outputs))

    public = dpv.Utility(1e4 * X_test, names[y_test], metric=kept)
    found = dpv.value((1e4 * X, names[y]), public, preprocess=StandardScaler(), **STEPS)
    outputs, labels = seen[-1]
    assert outputs.shape == (30, 3)
    np.testing.assert_allclose(outputs.sum(1), 1.0)
    assert labels.tolist() == names[y_test].tolist()
    usual = dpv.value((1e4 * X, names[y]), (1e4 * X_test, names[y_test]), preprocess=StandardScaler(), **STEPS)
    np.testing.assert_allclose(found.values["shapley"], usual.values["shapley"], atol=1e-10)
    assert np.ptp(found.values["shapley"]) > 0.001

    numbers, (N_test, n_test) = regression(20)
    seen.clear()

    def error(outputs: Any, labels: Any) -> float:
        seen.append((outputs, labels))
        return -float(sk.mean_absolute_error(labels, outputs))

    found = dpv.value(numbers, dpv.Utility(N_test, n_test.tolist(), metric=error), model="linear", **STEPS)
    assert seen[-1][0].shape == (len(n_test),)
    np.testing.assert_array_equal(seen[-1][1], n_test)
    usual = dpv.value(numbers, dpv.Utility(N_test, n_test, metric="mae"), model="linear", **STEPS)
    np.testing.assert_allclose(found.values["shapley"], usual.values["shapley"], atol=1e-12)


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        (np.nan, "nan"),
        (np.inf, "inf"),
        (None, r"NoneType of shape \(\)"),
        ("high", r"str of shape \(\)"),
        (np.zeros(2), r"ndarray of shape \(2,\)"),
        ([0.5], r"list of shape \(1,\)"),
        (1j, r"complex of shape \(\)"),
    ],
)
def test_a_function_that_returns_no_finite_number_is_told_before_anything_is_spent(returned: Any, what: str) -> None:
    train, test = classification(8)
    parties, utility = train, dpv.Utility(*test, metric=lambda outputs, labels: returned)
    told: list[Any] = []
    with pytest.raises(dpv.DpvalueError, match=f"metric must return one finite number, got {what}"):
        dpv.value(parties, utility, **{**STEPS, "progress": lambda *step: told.append(step)})
    assert told == []


@pytest.mark.parametrize("returned", [1, True, np.float32(1), np.array(1.0), torch.tensor(1.0)])
def test_a_function_may_return_any_kind_of_number(returned: Any) -> None:
    train, test = classification(8)
    found = dpv.value(train, dpv.Utility(*test, metric=lambda outputs, labels: returned), **STEPS)
    assert (found.values["shapley"] == 0).all()


def test_a_metric_of_one_task_does_not_fit_models_of_the_other() -> None:
    train, test = classification(8)
    these = "use one of loss, accuracy, balanced_accuracy, auc"
    for name in ("mse", "mae", "r2"):
        with pytest.raises(dpv.DpvalueError, match=f"metric '{name}' does not fit a classification model; {these}"):
            dpv.value(train, dpv.Utility(*test, metric=name), **STEPS)
    numbers, numbers_test = regression(8)
    for name in ("accuracy", "balanced_accuracy", "auc"):
        with pytest.raises(
            dpv.DpvalueError, match=f"metric '{name}' does not fit a regression model; use one of loss, mse"
        ):
            dpv.value(numbers, dpv.Utility(*numbers_test, metric=name), model="linear", **STEPS)


def test_the_metric_says_which_task_a_network_is_for() -> None:
    (X, y), (X_test, y_test) = classification(8, classes=2)
    for name, outputs in (("mae", 1), ("auc", 2)):
        public = dpv.Utility(X_test, y_test, metric=name)
        found = dpv.value((X, y), public, model=lambda outputs=outputs: nn.Linear(4, outputs), projection=None, **STEPS)  # type: ignore[misc]
        assert found.table.encoding.task == METRICS[name].tasks[0]


def brier(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    wanted = nn.functional.one_hot(labels, outputs.shape[-1])
    return -(outputs - wanted).square().sum(-1).mean(-1)


@pytest.fixture
def outside() -> Iterator[Metric]:
    metric = Metric("brier", "Brier score, negated", ("classification",), brier)
    register_metric(metric)
    yield metric
    del METRICS["brier"]


def test_a_metric_from_outside_is_known_by_its_name(outside: Metric) -> None:
    train, test = classification(8, classes=2)
    named = dpv.value(train, dpv.Utility(*test, metric="brier"), **STEPS)
    own = dpv.value(train, dpv.Utility(*test, metric=lambda p, y: -2 * sk.brier_score_loss(y, p[:, 1])), **STEPS)
    np.testing.assert_allclose(named.values["shapley"], own.values["shapley"], atol=1e-12)
    with pytest.raises(dpv.DpvalueError, match=r"metric must be one of .*, r2, brier, or a callable"):
        dpv.Utility(*test, metric="gini")
    for name in ("brier", "Gini", "two words", ""):
        with pytest.raises(dpv.DpvalueError, match="the name of a metric must be a new lower-case word"):
            register_metric(Metric(name, "", ("classification",), brier))
    with pytest.raises(dpv.DpvalueError, match="the metric 'half' must have either worth or of_loss"):
        register_metric(Metric("half", "", ("classification",)))


def test_every_metric_has_one_way_and_accuracy_is_the_engines() -> None:
    assert list(METRICS) == ["loss", "accuracy", "balanced_accuracy", "auc", "mse", "mae", "r2"]
    assert METRICS["accuracy"] is ACCURACY
    assert all((metric.worth is None) != (metric.of_loss is None) for metric in METRICS.values())
