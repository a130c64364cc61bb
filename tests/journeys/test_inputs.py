"""Bad input: one sentence that names the argument, the value and what is allowed; of private rows their positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer, OneHotEncoder, OrdinalEncoder, StandardScaler

import dpvalue as dpv
from tests.datasets import Arrays, classification, regression

SECRET = 987654.25


def call(train: Any = None, test: Any = None, **settings: Any) -> None:
    good = classification(8)
    dpv.value(good[0] if train is None else train, good[1] if test is None else test, progress=False, **settings)


def with_row(data: Arrays, row: int, number: float) -> Arrays:
    X = data[0].copy()
    X[row] = SECRET
    X[row, 1] = number
    return X, data[1]


GOOD, TEST = classification(8)
FRAME = pd.DataFrame(GOOD[0]).rename(columns=str).assign(label=GOOD[1])
TEST_FRAME = pd.DataFrame(TEST[0]).rename(columns=str).assign(label=TEST[1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": (GOOD[0], GOOD[1][:5])}, r"parties' labels must be one per row of features \(8\), got 5"),
        ({"train": (GOOD[0][:, :3], GOOD[1])}, r"parties' features must have rows of shape \(4,\), got \(3,\)"),
        ({"train": (GOOD[0][:, 0], GOOD[1])}, r"parties' features must have rows of shape \(4,\), got \(\)"),
        ({"train": (GOOD[0], np.stack([GOOD[1], GOOD[1]], 1))}, "parties' labels must be one label per row"),
        ({"train": (GOOD[0][:1], GOOD[1][:1])}, "parties must number at least 2, got 1"),
        ({"train": (GOOD[0], GOOD[1]), "groups": np.zeros(8)}, "parties must number at least 2, got 1"),
        ({"train": (GOOD[0], GOOD[1]), "groups": np.zeros(3)}, r"groups must be one label per row \(8\), got 3"),
        ({"train": (GOOD[0], GOOD[1]), "groups": "site"}, "groups may be a column name only for a DataFrame"),
        ({"train": dpv.Parties(*GOOD), "groups": np.arange(8)}, "groups must be given to Parties itself"),
        ({"train": 5}, r"parties must be \(X, y\), a DataFrame"),
        ({"train": FRAME, "test": TEST_FRAME}, "name its label column with target="),
        ({"train": FRAME, "test": TEST_FRAME, "target": "y"}, "target must be one of the columns"),
        ({"train": GOOD, "target": "y"}, "target='y' names a column, but neither"),
        ({"train": (GOOD[0], [[1], [2, 3]])}, r"parties' labels must be one per row of features \(8\), got 2"),
        ({"test": (np.array([["a"] * 4] * 30), TEST[1])}, "utility features must be numbers; encode text"),
        ({"classes": [0, 1]}, "classes must hold all labels of the public set; '2' is missing"),
        ({"classes": [0, 1, 2, "1.0"]}, "classes must differ in canonical form"),
        ({"model": "linear", "classes": [0, 1]}, "classes must not be given for regression"),
        ({"semivalues": dpv.Semivalue("loo", np.ones)}, "must not be called 'loo', which means other weights"),
        ({"semivalues": dpv.Semivalue("rank", np.ones)}, "must not be called 'rank'"),
        (
            {"train": FRAME.drop(columns="1"), "test": TEST_FRAME, "target": "label"},
            "must have the columns of the public set",
        ),
        ({"test": (TEST[0], TEST[1][:3])}, "utility labels must be one per row of features"),
        ({"test": (TEST[0], np.zeros(30, dtype=int))}, "utility labels must hold at least 2 classes, got 1"),
        ({"test": (TEST[0][:, 0], TEST[1])}, r"utility features must have shape \(rows, features\)"),
        (
            {"test": with_row(TEST, 2, np.nan)},
            r"utility features: features must be finite; violated in 1 of 30 rows: 2",
        ),
        ({"test": dpv.Utility(*TEST, metric="mse")}, "metric 'mse' does not fit a classification model"),
        ({"model": "linear", "test": dpv.Utility(*TEST, metric="accuracy")}, "does not fit a regression model"),
        ({"permutations": 0}, "permutations must be a whole number of at least 1, got 0"),
        ({"permutations": 2.5}, "permutations must be a whole number"),
        ({"semivalues": ()}, "semivalues must name at least one"),
        ({"semivalues": ("shapley", "shapley")}, "semivalues must not repeat a name"),
        ({"semivalues": "owen"}, "semivalue must be one of"),
        ({"schedule": "sometimes"}, "schedule must be one of"),
        (
            {"schedule": dpv.Schedule("running-mean", burn_in=0.99), "permutations": 10},
            "burn_in must leave a permutation",
        ),
        ({"clip": 0}, "clip must be positive, got 0"),
        ({"clip": "huge"}, "clip must be a positive number or 'auto', got 'huge'"),
        ({"clip": float("nan")}, "clip must be positive, got nan"),
        ({"clip_rule": "layer"}, "clip_rule must be one of auto, flat, normalise.*; got 'layer'"),
        ({"learning_rate": -0.1}, "learning_rate must be positive, got -0.1"),
        ({"noise": "none"}, "noise must be one of secure, fast; got 'none'"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"privacy": 1.0}, "privacy must be a Privacy or None, got 1.0"),
        ({"engine": "cpu"}, "engine must be an Engine, such as Local"),
        (
            {"preprocess": "standard"},
            "preprocess must be columns, numbers, a scikit-learn transformer or None; got 'standard'",
        ),
    ],
)
def test_bad_arguments(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message) as caught:
        call(**settings)
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_a_public_set_without_rows_is_refused() -> None:
    with pytest.raises(dpv.DpvalueError, match="utility features must have rows, got int"):
        dpv.Utility(5, [1, 2])


class Complains(FunctionTransformer):  # type: ignore[misc]
    """A transformer that quotes a cell, as scikit-learn's encoders do."""

    def transform(self, X: Any) -> Any:
        if (np.asarray(X) == SECRET).any():
            raise KeyError(f"unknown category {SECRET} in column 0")
        return X


@pytest.mark.parametrize("preprocess", [Complains(), OneHotEncoder(), OrdinalEncoder(), KBinsDiscretizer()])
def test_what_a_transformer_says_of_private_rows_is_withheld(preprocess: Any) -> None:
    words = np.array(["a", "b", "c"], dtype=object)[np.arange(30) % 3][:, None]
    test = (TEST[0] if isinstance(preprocess, Complains) else words, TEST[1])
    X = np.full((8, 1), "a", dtype=object)
    X[3] = f"patient {SECRET}"
    train = with_row(GOOD, 3, 1.0) if isinstance(preprocess, Complains) else (X, GOOD[1])
    if isinstance(preprocess, KBinsDiscretizer):
        test, train = TEST, (np.hstack([GOOD[0][:, :3].astype(object), X]), GOOD[1])
    call(train, test, preprocess=preprocess)  # nothing is said, and nobody is stopped
    problems = dpv.Parties(*train).problems(test, preprocess=preprocess)
    assert 3 in [problem.row for problem in problems]
    assert "987654" not in str(problems)


@pytest.mark.parametrize("first", [[1.0], "four", None, [1.0, 2.0, 3.0, "a"], [1.0, 2.0, [3.0], 4.0]])
def test_lists_are_read_row_by_row(first: Any) -> None:
    """Whatever the first row is, the others are what they were; with a transformer and without."""
    rows, test = GOOD[0].tolist(), (TEST[0].tolist(), TEST[1])
    for preprocess in (None, StandardScaler()):
        encoding = dpv.Utility(*test).encoding("logistic", preprocess)
        before, after = (encoding.features(one, "rows") for one in (rows, [first, *rows[1:]]))
        np.testing.assert_array_equal(before[1:], after[1:])
        assert np.isfinite(before).all()
        assert np.isnan(after[0]).any()
        call((([first, *rows[1:]]), GOOD[1]), test, preprocess=preprocess)


def test_a_warning_of_a_transformer_about_private_rows_is_withheld() -> None:
    words = np.array(["a", "b", "c"], dtype=object)[np.arange(30) % 3][:, None]
    X = np.full((8, 1), "a", dtype=object)
    X[3] = "unseen"
    call((X, GOOD[1]), (words, TEST[1]), preprocess=OneHotEncoder(handle_unknown="ignore", drop="first"))


def test_a_transformer_that_mixes_rows_is_refused() -> None:
    for mixing in (lambda Z: Z - Z.mean(0), lambda Z: np.cumsum(Z, axis=0), lambda Z: Z[::-1]):
        with pytest.raises(dpv.DpvalueError, match="preprocess must transform each row on its own"):
            call(preprocess=FunctionTransformer(mixing))
    with pytest.raises(dpv.DpvalueError, match="each row on its own"):
        call(preprocess=FunctionTransformer(lambda Z: Z[:-1]))


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_a_bad_row_stops_nobody_and_is_told_to_its_holder_alone(
    number: float, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    train = with_row(GOOD, 3, number)
    call(train)
    assert capsys.readouterr() == ("", "")
    assert str(SECRET)[:5] not in caplog.text
    parties = dpv.Parties(*train)
    assert [str(problem) for problem in parties.problems(TEST)] == ["row 3, feature 1: not a finite number"]
    assert [problem.row for problem in parties.problems()] == [3]


def test_labels_that_the_public_set_lacks_stop_nobody() -> None:
    y = GOOD[1].astype(object)
    y[1], y[6] = 424242, None
    call((GOOD[0], y))
    whats = {problem.row: problem.what for problem in dpv.Parties(GOOD[0], y).problems(TEST)}
    assert whats == {1: "not among the classes of the public set", 6: "missing"}
    train, test = regression(8)
    train[1][4] = np.nan
    call(train, test, model="linear")
    assert [problem.row for problem in dpv.Parties(*train).problems(test, model="linear")] == [4]


def test_rows_without_group_or_id_stop_nobody() -> None:
    ids = [0, 1, None, 3, 4, 5, 2.0**60, 7]
    parties = dpv.Parties(*GOOD, groups=[0, 1, None, 0, 1, float("nan"), 0, 1], persons=ids)
    assert parties.names == (0, 1)
    assert parties.sizes.tolist() == [3, 3]
    call(parties, privacy=dpv.Privacy(unit="person"))
    assert [(problem.row, problem.column) for problem in parties.problems()] == [
        (2, "group"), (2, "person"), (5, "group"), (6, "person"),
    ]  # fmt: skip


def test_classes_that_the_public_set_does_not_show() -> None:
    test = TEST[0][TEST[1] < 2], TEST[1][TEST[1] < 2]
    assert dpv.Parties(*GOOD).problems(test)
    assert not dpv.Parties(*GOOD).problems(test, classes=[0, 1, 2])
    result = dpv.value(GOOD, test, classes=[0, 1, 2], progress=False)
    assert result.table.encoding.classes == (0, 1, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0}, "epsilon must be positive, got 0"),
        ({"epsilon": -1}, "epsilon must be positive, got -1"),
        ({"epsilon": float("inf")}, "epsilon must be positive, got inf"),
        ({"epsilon": "1"}, "epsilon must be positive, got '1'"),
        ({"delta": -0.1}, "delta must be at least 0 and below 1, got -0.1"),
        ({"delta": 1}, "delta must be at least 0 and below 1"),
        ({"delta": float("nan")}, "delta must be at least 0 and below 1"),
        ({"delta": 0, "mechanism": "gaussian"}, "delta must be positive for Gaussian noise, got 0"),
        ({"delta": 0, "accounting": "poisson"}, "delta must be positive for Gaussian noise, got 0"),
        ({"mechanism": "laplace", "accounting": "poisson"}, "accounting='poisson' is for Gaussian noise"),
        ({"mechanism": "uniform"}, "mechanism must be one of auto, gaussian, laplace; got 'uniform'"),
        ({"parties_per_person": 0, "unit": "person"}, "parties_per_person must be a whole number of at least 1"),
        ({"parties_per_person": 2}, "parties_per_person needs unit='person', got unit='party'"),
        ({"unit": "row"}, "unit must be one of party, record, person; got 'row'"),
        ({"neighbours": "add"}, "neighbours must be one of zero_out, replace; got 'add'"),
        ({"accounting": "rdp"}, "accounting must be one of composition, poisson; got 'rdp'"),
    ],
)
def test_bad_budgets(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.Privacy(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "tpu"}, "device must be one of auto, cpu, cuda"),
        ({"device": "nowhere"}, "device must be one of"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64; got 'float16'"),
        ({"threads": 0}, "threads must be"),
        ({"memory": 0}, "memory must be"),
    ],
)
def test_bad_engines(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.Local(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "f1"}, "or a callable of .outputs, labels.; got 'f1'"),
        ({"metric": "a callable"}, "metric must be one of loss, accuracy, balanced_accuracy, auc, mse, mae, r2, or a"),
        ({"metric": lambda module: 0.0}, r"metric must be a callable of \(outputs, labels\), got <function"),
        ({"l2": -1}, "l2 must be at least 0, got -1"),
        ({"l2": 0.1, "metric": "accuracy"}, "l2 needs metric='loss'"),
    ],
)
def test_bad_utilities(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.Utility(*TEST, **settings)
