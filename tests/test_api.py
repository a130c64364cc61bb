"""The public entry: what it finds, what it accepts, what it decides from public data, and that it repeats itself."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from torch import nn

import dpvalue as dpv
from tests.datasets import classification, flipped_breast_cancer, images, regression

QUIET: dict[str, Any] = {"progress": False, "noise": "fast"}
# Nothing is left to choose: rehearsals would take nearly all the time, and are tested elsewhere.
FIXED: dict[str, Any] = {**QUIET, "clip": 1.0, "learning_rate": 0.1, "projection": None}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_flipped_labels_are_found_without_privacy(seed: int) -> None:
    train, test, flipped = flipped_breast_cancer(seed=seed)
    result = dpv.value(
        train,
        test,
        privacy=None,
        permutations=50,
        preprocess=StandardScaler(),
        seed=seed,
        semivalues="shapley",
        **QUIET,
    )
    assert roc_auc_score(flipped, -result.values["shapley"]) > 0.85
    assert "No differential privacy" in str(result.guarantee)


def test_every_kind_of_parties_gives_the_same_values() -> None:
    (X, y), (X_test, y_test) = classification(10)
    columns = ["a", "b", "c", "d"]
    frame = pd.DataFrame(X, columns=columns).assign(label=y)
    test_frame = pd.DataFrame(X_test, columns=columns).assign(label=y_test)
    dataset = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(y))
    expected = dpv.value((X, y), (X_test, y_test), **FIXED).values["shapley"]
    for parties in ((X, y), (torch.tensor(X), torch.tensor(y)), dpv.Parties(X, y), dataset):
        found = dpv.value(parties, (X_test, y_test), **FIXED).values["shapley"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    mixed: list[tuple[Any, Any, str | None]] = [
        (frame, test_frame, "label"),
        (frame, (X_test, y_test), "label"),
        ((X, y), test_frame, "label"),
        ((sparse.csr_matrix(X), y), (X_test, y_test), None),
    ]
    for some, public, target in mixed:
        found = dpv.value(some, public, target=target, **FIXED).values["shapley"]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_groups_by_label_by_column_and_in_any_row_order() -> None:
    (X, y), test = classification(20)
    groups = np.array(["north", "south", "east", "west"])[np.random.default_rng(0).integers(4, size=20)]
    result = dpv.value((X, y), test, groups=groups, **FIXED)
    assert result.table.names == ("east", "north", "south", "west")
    frame = pd.DataFrame(X).rename(columns=str).assign(label=y, site=groups)
    test_frame = pd.DataFrame(test[0]).rename(columns=str).assign(label=test[1], site="elsewhere")
    by_column = dpv.value(frame, test_frame, target="label", groups="site", **FIXED)
    np.testing.assert_allclose(by_column.values["shapley"], result.values["shapley"], rtol=1e-6)
    order = np.argsort(groups, kind="stable")
    by_order = dpv.value((X[order], y[order]), test, groups=groups[order], **FIXED)
    np.testing.assert_allclose(by_order.values["shapley"], result.values["shapley"], rtol=1e-5)


def test_text_labels_and_categories_through_a_transformer_of_the_public_set() -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.preprocessing import OneHotEncoder

    generator = np.random.default_rng(0)
    frame = pd.DataFrame({
        "colour": generator.choice(["red", "green", "blue"], 60), "size": generator.normal(0, 1, 60),
    })  # fmt: skip
    frame["label"] = np.where(frame["colour"] == "red", "yes", "no")
    transform = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["colour"]), (StandardScaler(), ["size"])
    )
    private = frame.iloc[:30].copy()
    private.loc[0, "colour"] = "purple"  # not in the public set: all zeros
    result = dpv.value(private, frame.iloc[30:], target="label", preprocess=transform, **FIXED)
    assert result.table.encoding.classes == ("no", "yes")
    assert result.table.rows.shape == (30, 2 * 4 + 2)


def test_preprocess_is_fitted_to_the_public_set_alone() -> None:
    (X, y), (X_test, y_test) = classification(10)
    scaler = StandardScaler()
    result = dpv.value((X * 100, y), (X_test, y_test), preprocess=scaler, **FIXED)
    assert not hasattr(scaler, "mean_")  # the caller's transformer is left alone
    np.testing.assert_allclose(result.table.encoding.preprocess.mean_, X_test.mean(0))


@pytest.mark.parametrize("schedule", [None, "running-mean", "independent"])
@pytest.mark.parametrize("unit", ["party", "record"])
def test_settings_are_chosen_on_the_public_set_alone(schedule: str | None, unit: str) -> None:
    """Other private rows of the same number: the same clipping norm, learning rate, classes and noise."""
    (X, y), test = classification(24)
    groups = np.repeat(np.arange(8), 3)
    settings: dict[str, Any] = {**QUIET, "schedule": schedule, "permutations": 4, "groups": groups}
    settings["privacy"] = dpv.Privacy(unit=unit)
    a = dpv.value((X, y), test, **settings)
    b = dpv.value((X * 1000 + 7, np.zeros_like(y)), test, **settings)
    assert a.guarantee == b.guarantee
    assert a.table.learning_rate == b.table.learning_rate
    assert a.table.encoding == b.table.encoding
    assert (a.table.noise_std == b.table.noise_std).all()
    assert not torch.equal(a.table.rows, b.table.rows)


def test_the_tuned_rate_trains_a_good_model_and_averaged_gradients_get_a_lower_one() -> None:
    train, test, _ = flipped_breast_cancer(share=0.0)
    own = dpv.value(train, test, privacy=None, permutations=2, preprocess=StandardScaler(), **QUIET)
    gain = own.values["shapley"].sum()
    assert gain > 0.5  # the loss of the zero model is 0.69
    averaged = dpv.release(train, test, privacy=None, schedule="replay", preprocess=StandardScaler(), **QUIET)
    assert averaged.learning_rate < own.table.learning_rate
    noisy = dpv.release(train, test, privacy=dpv.Privacy(0.1), projection=None, preprocess=StandardScaler(), **QUIET)
    assert noisy.learning_rate < averaged.learning_rate


def test_models_and_utilities() -> None:
    train, test = classification(8)
    for metric in ("loss", "accuracy"):
        assert np.isfinite(dpv.value(train, dpv.Utility(*test, metric=metric), **FIXED).values["shapley"]).all()
    numbers, numbers_test = regression(8)
    linear = dpv.value(numbers, dpv.Utility(*numbers_test, metric="mse"), model="linear", **FIXED)
    assert linear.values["shapley"].shape == (8,)
    network = dpv.value(train, test, model=lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), **FIXED)
    assert network.table.rows.shape == (8, 4 * 5 + 5 + 5 * 3 + 3)
    pictures, pictures_test = images(6)
    assert dpv.value(pictures, pictures_test, model="cnn", **FIXED).table.rows.shape == (6, 160 + 16 * 9 * 3 + 3)


def test_a_callable_utility_sees_outputs_and_labels() -> None:
    """Negated loss written by hand equals the built-in one."""
    train, (X, y) = classification(6)

    def by_hand(outputs: Any, labels: Any) -> float:
        return float(np.log(outputs[np.arange(len(labels)), labels]).mean())

    engine = dpv.Local(dtype="float64")
    found = dpv.value(train, dpv.Utility(X, y, metric=by_hand), engine=engine, **FIXED)
    expected = dpv.value(train, dpv.Utility(X, y), engine=engine, **FIXED)
    np.testing.assert_allclose(found.values["shapley"], expected.values["shapley"], atol=1e-12)


@pytest.mark.parametrize("schedule", ["independent", "running-mean", "optimal", "decaying", "lagged", "replay"])
@pytest.mark.parametrize("model", ["logistic", "cnn"])
def test_same_settings_same_bits(schedule: str, model: str) -> None:
    train, test = images(5) if model == "cnn" else classification(20)
    settings: dict[str, Any] = {**FIXED, "model": model, "schedule": schedule, "permutations": 100, "seed": 9}
    if model == "cnn":
        settings |= {"permutations": 4, "schedule": dpv.Schedule(schedule, probes=2 if schedule == "lagged" else None)}
    first, second = dpv.value(train, test, **settings), dpv.value(train, test, **settings)
    assert (first.values["shapley"] == second.values["shapley"]).all()
    assert torch.equal(first.table.rows, second.table.rows)
    other = dpv.value(train, test, **{**settings, "seed": 10})
    assert not (first.values["shapley"] == other.values["shapley"]).any()


@pytest.mark.parametrize("schedule", ["independent", "running-mean", "lagged", "replay"])
def test_batches_and_threads_do_not_change_the_values_of_a_network(schedule: str) -> None:
    """Small batches in several threads: a module is not to be used by two of them at once."""
    train, test = images(10)
    probes = 5 if schedule == "lagged" else None
    settings: dict[str, Any] = {**FIXED, "model": "cnn", "schedule": dpv.Schedule(schedule, probes=probes)}
    runs = [
        dpv.value(
            train, test, permutations=10, engine=dpv.Local(dtype="float64", memory=memory, threads=threads), **settings
        )
        for memory, threads in ((2**29, 1), (2**29, 4), (2**20, 4), (1, 4))
    ]
    for other in runs[1:]:
        np.testing.assert_allclose(other.values["shapley"], runs[0].values["shapley"], rtol=1e-9)


@pytest.mark.parametrize("schedule", ["independent", "running-mean", "lagged", "replay"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-5), ("float32", 1e-3)])
def test_batches_and_threads_do_not_change_the_values(schedule: str, dtype: str, tolerance: float) -> None:
    train, test = classification(20)
    settings: dict[str, Any] = {**FIXED, "schedule": schedule, "permutations": 100}
    semivalues = ("shapley", "banzhaf")
    engines = [
        dpv.Local(dtype=dtype, memory=memory, threads=threads) for memory, threads in ((2**29, 1), (2**14, 2), (1, 1))
    ]
    runs = [dpv.value(train, test, engine=engine, semivalues=semivalues, **settings) for engine in engines]
    for name in semivalues:
        expected = runs[0].values[name]
        for other in runs[1:]:
            np.testing.assert_allclose(other.values[name], expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_a_run_that_cannot_fit_says_so_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = classification(20)
    needed = 5 * 20 * 15 * 4
    monkeypatch.setattr(dpv.Local, "free_bytes", lambda self: needed)
    dpv.value(train, test, **FIXED)
    monkeypatch.setattr(dpv.Local, "free_bytes", lambda self: needed - 1)
    seen: list[str] = []
    with pytest.raises(dpv.DpvalueError, match=r"20 parties x 15 parameters .* more than is free on cpu: use a model"):
        dpv.value(train, test, **{**FIXED, "progress": lambda *event: seen.append(event[0])})
    assert not seen


def test_free_memory_is_known_here() -> None:
    free = dpv.Local(device="cpu").free_bytes()
    assert free is None or free > 2**20


def test_threads_are_restored() -> None:
    before = torch.get_num_threads()
    train, test = classification(4)
    dpv.value(train, test, engine=dpv.Local(threads=before + 1), **FIXED)
    assert torch.get_num_threads() == before


def test_progress_is_reported_and_ends_complete() -> None:
    train, test = classification(30)
    seen: list[tuple[str, int, int]] = []
    dpv.value(train, test, **{**FIXED, "progress": lambda *event: seen.append(event)})
    assert seen[:3] == [("releasing", done, 2) for done in range(3)]
    assert {event[0] for event in seen[3:]} == {"walking"}
    assert seen[3][1] == 0
    assert 0 < seen[-1][1] == seen[-1][2]


def test_a_large_delta_is_warned_about() -> None:
    train, test = classification(20)
    with pytest.warns(UserWarning, match=r"units \* delta = 0.2 exceeds 0.1"):
        dpv.value(train, test, privacy=dpv.Privacy(delta=0.01, mechanism="gaussian"), **FIXED)
    groups = np.repeat([0, 1], 10)
    with pytest.warns(UserWarning, match=r"for 20 protected units"):
        dpv.value(train, test, groups=groups, privacy=dpv.Privacy(delta=0.01, unit="record"), **FIXED)


def test_utilities_that_overflow_are_warned_about() -> None:
    train, test = regression(20)
    along: dict[str, Any] = {**FIXED, "learning_rate": 1e18, "projection": None}
    with pytest.warns(UserWarning, match="values of 'shapley' are not finite"):
        dpv.value((train[0] * 1e18, train[1]), (test[0] * 1e18, test[1]), model="linear", **along)


def test_no_privacy_needs_no_noise_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    train, test = classification(6)
    dpv.value(train, test, privacy=None, permutations=2, progress=False)
    with pytest.raises(dpv.DpvalueError, match="needs the package cryptography"):
        dpv.value(train, test, progress=False)


def test_the_guarantee_can_be_quoted() -> None:
    train, test = classification(12)
    privacy = dpv.Privacy(0.5, unit="record", mechanism="gaussian")
    result = dpv.value(train, test, groups=np.repeat([0, 1, 2, 3], 3), privacy=privacy, **FIXED)
    text = str(result.guarantee)
    for part in ("Each record", "epsilon = 0.5", "delta = 5e-05", "mu = ", "zero_out", "Gaussian", "for this run only"):
        assert part in text
    assert result.guarantee.epsilon == 0.5
    with pytest.raises(AttributeError):
        result.guarantee.epsilon = 0.1  # type: ignore[misc]


def test_with_the_papers_accounting_the_honest_epsilon_is_stated_everywhere() -> None:
    train, test = classification(6)
    privacy = dpv.Privacy(epsilon=1.0, delta=1e-3, accounting="poisson")
    result = dpv.value(train, test, privacy=privacy, schedule="running-mean", permutations=3, **FIXED)
    honest = dpv.privacy.accounting.epsilon(result.guarantee.noise_multiplier or 0, 1e-3, 3)
    assert honest > 1.3
    assert result.guarantee.epsilon == pytest.approx(honest)
    assert result.guarantee.claimed_epsilon == 1.0
    assert f"epsilon = {honest:.4g}" in str(result.guarantee)
    planned = dpv.plan(6, privacy=privacy, schedule="running-mean", permutations=3)
    assert planned.epsilon == pytest.approx(honest)
    assert f"epsilon = {honest:.4g}" in str(planned)
