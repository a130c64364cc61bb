"""The engine against a literal Algorithm 1, given the same permutations and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import dpvalue as dpv
from dpvalue.models import build_model, paper_cnn
from dpvalue.privacy.noise import FastNoise
from dpvalue.streams import Purpose, permutations
from tests.datasets import Arrays, classification, images, regression
from tests.oracle import Affine, Oracle, flat

SEMIVALUES = ("shapley", "banzhaf", "beta(4,1)", "loo")
PRIVACY = dpv.Privacy(epsilon=20.0, delta=1e-3)
C, ALPHA, SEED = 0.8, 0.15, 7
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def oracle_of(
    result: dpv.Result, train: Arrays, test: Arrays, module: nn.Module, theta_0: Callable[[int], torch.Tensor],
    dtype: str, groups: NDArray[Any] | None = None, **settings: Any,
) -> Oracle:  # fmt: skip
    """The oracle for a run of the library; it draws the same permutations and the same noise, in its own way."""
    n, k, d = result.table.n, result.table.origin.permutations, result.table.rows.shape[1]
    labels = torch.float64 if settings.get("regression") else torch.int64
    rows = [np.array([i]) for i in range(n)] if groups is None else [np.flatnonzero(groups == j) for j in range(n)]

    def noise(t: int) -> Callable[[], NDArray[Any]]:
        stream = FastNoise(SEED).stream(t, torch.zeros(d, dtype=DTYPES[dtype]), "gaussian", 0)
        return lambda: stream.fill(torch.empty(1, d, dtype=DTYPES[dtype]))[0].numpy()

    return Oracle(
        module=module.double(),
        x=[torch.tensor(train[0][i], dtype=torch.float64) for i in rows],
        y=[torch.tensor(train[1][i], dtype=labels) for i in rows],
        x_test=torch.tensor(test[0], dtype=torch.float64),
        y_test=torch.tensor(test[1], dtype=labels),
        theta_0=theta_0,
        permutations=permutations(SEED, Purpose.PERMUTATION, 0, k, n).tolist(),
        noise=noise,
        alpha=ALPHA,
        sigma=result.guarantee.noise_multiplier or 0.0,
        **settings,
    )


def assert_equal(result: dpv.Result, oracle: Oracle, tolerance: float) -> None:
    expected = oracle.values(list(SEMIVALUES))
    for name in SEMIVALUES:
        largest = np.nanmax(np.abs(expected[name]))
        np.testing.assert_allclose(result.values[name], expected[name], rtol=0, atol=tolerance * largest, err_msg=name)


def run(train: Arrays, test: Arrays, dtype: str = "float64", **settings: Any) -> dpv.Result:
    settings = {"privacy": PRIVACY, "clip": C, "permutations": 8, **settings}
    return dpv.value(
        train, test, semivalues=SEMIVALUES, learning_rate=ALPHA, noise="fast", seed=SEED,
        engine=dpv.Local(device="cpu", dtype=dtype), progress=False, **settings,
    )  # fmt: skip


PAPER = [
    ("independent", 0.0), ("running-mean", 0.0), ("running-mean", 0.5), ("optimal", 0.0), ("optimal", 0.5),
    ("decaying", 0.0), ("decaying", 0.25),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "q"), PAPER)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-5), ("float32", 1e-3)])
def test_logistic_regression_equals_algorithm_1(kind: str, q: float, dtype: str, tolerance: float) -> None:
    train, test = classification(9)
    result = run(train, test, dtype, schedule=dpv.Schedule(kind, burn_in=q))
    module = Affine(4, 3)
    zeros = torch.zeros(15, dtype=torch.float64)
    oracle = oracle_of(result, train, test, module, lambda t: zeros, dtype, C=C, kind=kind, q=q)
    assert_equal(result, oracle, tolerance)


@pytest.mark.parametrize(("kind", "q"), PAPER)
def test_cnn_equals_algorithm_1(kind: str, q: float) -> None:
    train, test = images(5)
    result = run(train, test, model="cnn", schedule=dpv.Schedule(kind, burn_in=q), permutations=4)
    module = paper_cnn((1, 8, 8), 3)
    theta_0 = result.table.initial.double()
    train, test = (train[0][:, None], train[1]), (test[0][:, None], test[1])
    oracle = oracle_of(result, train, test, module, lambda t: theta_0, "float64", C=C, kind=kind, q=q)
    assert_equal(result, oracle, 1e-5)


def test_cnn_in_float32_equals_algorithm_1() -> None:
    train, test = images(5)
    result = run(train, test, "float32", model="cnn", schedule="running-mean", permutations=4)
    theta_0 = result.table.initial.double()
    train, test = (train[0][:, None], train[1]), (test[0][:, None], test[1])
    oracle = oracle_of(
        result, train, test, paper_cnn((1, 8, 8), 3), lambda t: theta_0, "float32", C=C, kind="running-mean"
    )
    assert_equal(result, oracle, 1e-3)


def test_fresh_start_takes_a_new_model_in_each_permutation() -> None:
    train, test = images(4)
    schedule = dpv.Schedule("running-mean", fresh_start=True)
    result = run(train, test, model="cnn", schedule=schedule, permutations=3)
    example = torch.zeros(1, 8, 8, dtype=torch.float64)
    model = build_model("cnn", "classification", example, 3, torch.float64, torch.device("cpu"))
    starts = [model.initial(SEED, t) for t in range(3)]
    assert not torch.equal(starts[0], starts[1])
    train, test = (train[0][:, None], train[1]), (test[0][:, None], test[1])
    oracle = oracle_of(
        result, train, test, paper_cnn((1, 8, 8), 3), lambda t: starts[t], "float64", C=C, kind="running-mean"
    )
    assert_equal(result, oracle, 1e-5)


def test_no_privacy_is_plain_gradient_shapley() -> None:
    train, test = classification(9)
    result = run(train, test, privacy=None, clip="auto")
    zeros = torch.zeros(15, dtype=torch.float64)
    oracle = oracle_of(result, train, test, Affine(4, 3), lambda t: zeros, "float64")
    assert_equal(result, oracle, 1e-5)
    assert not result.guarantee.private


def test_linear_regression_with_a_custom_module_and_with_the_built_in_model() -> None:
    train, test = regression(8)
    zeros = torch.zeros(4, dtype=torch.float64)
    built_in = run(train, test, model="linear", schedule="running-mean")
    oracle = oracle_of(
        built_in, train, test, Affine(3, 1), lambda t: zeros, "float64", C=C, kind="running-mean", regression=True
    )
    assert_equal(built_in, oracle, 1e-5)
    custom = run(train, test, model=lambda: nn.Linear(3, 1), schedule="running-mean")
    start = custom.table.initial.double()
    oracle = oracle_of(
        custom, train, test, nn.Linear(3, 1), lambda t: start, "float64", C=C, kind="running-mean", regression=True
    )
    assert_equal(custom, oracle, 1e-5)
    assert flat(nn.Linear(3, 1)).shape == custom.table.initial.shape


@pytest.mark.parametrize("unit", ["party", "record"])
def test_data_sets_of_different_sizes(unit: str) -> None:
    train, test = classification(20)
    groups = np.array([0] * 3 + [1] * 7 + [2] * 1 + [3] * 9)
    privacy = dpv.Privacy(epsilon=20.0, delta=1e-3, unit=unit)
    result = run(train, test, groups=groups, privacy=privacy, schedule="running-mean")
    zeros = torch.zeros(15, dtype=torch.float64)
    oracle = oracle_of(
        result, train, test, Affine(4, 3), lambda t: zeros, "float64", groups, C=C, kind="running-mean",
        per_record=unit == "record",
    )  # fmt: skip
    assert_equal(result, oracle, 1e-5)


@pytest.mark.parametrize("kind", ["running-mean", "decaying"])
@pytest.mark.parametrize("block", [3, 8])
def test_blocks_are_the_matrix_that_the_schedule_prints(kind: str, block: int) -> None:
    train, test = classification(9)
    schedule = dpv.Schedule(kind, block=block)
    result = run(train, test, schedule=schedule)
    assert f"in blocks of {block}" in str(result.table.schedule)
    zeros = torch.zeros(15, dtype=torch.float64)
    oracle = oracle_of(
        result, train, test, Affine(4, 3), lambda t: zeros, "float64", C=C, kind="matrix", X=schedule.matrix(8)
    )
    assert_equal(result, oracle, 1e-5)
    weights = torch.from_numpy(schedule.table_weights(8))
    table = torch.stack([weights @ torch.stack(oracle.raw[j]) for j in range(9)])
    torch.testing.assert_close(result.table.rows, table, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["independent", "running-mean", "optimal", "decaying"])
def test_the_final_table_combines_all_releases(kind: str) -> None:
    train, test = classification(9)
    result = run(train, test, schedule=kind)
    zeros = torch.zeros(15, dtype=torch.float64)
    oracle = oracle_of(result, train, test, Affine(4, 3), lambda t: zeros, "float64", C=C, kind=kind)
    oracle.values(["shapley"])
    means = torch.stack([torch.stack(oracle.raw[j]).mean(0) for j in range(9)])
    expected = torch.stack([oracle.combined[j] for j in range(9)]) if kind == "decaying" else means
    torch.testing.assert_close(result.table.rows, expected, rtol=0, atol=1e-9)
