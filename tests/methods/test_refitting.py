"""The refit game's values: what retraining by scikit-learn says, zero for no data, and what nobody can spoil."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue.arrays import Floats
from dpvalue.games.semivalues import semivalue
from dpvalue.games.solving import enumerate_values
from dpvalue.methods import refitting as refit_module
from dpvalue.methods.fits import learning_curves
from dpvalue.methods.refit import Refit
from dpvalue.methods.refitting import RefitGame
from tests.datasets import Arrays, classification

Parts = dict[str, Arrays]
HONEST = {"a": 90, "b": 60, "c": 30, "d": 15}
ENGINE = dpv.Local(device="cpu", dtype="float64")


def consortium(seed: int) -> tuple[Parts, Arrays]:
    """Breast cancer: four honest hospitals, one with all labels wrong, one with two of five; 200 public rows."""
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(X))
    X, y = X[order], y[order]
    parts, at = {}, 200
    for name, size in {**HONEST, "e": 50, "f": 40}.items():
        parts[name] = X[at : at + size].copy(), y[at : at + size].copy()
        at += size
    parts["e"] = parts["e"][0], 1 - parts["e"][1]
    parts["f"][1][np.arange(40) % 5 < 2] ^= 1
    return parts, (X[:200], y[:200])


def with_no_data(parts: Parts, rows: int = 30) -> Parts:
    """A hospital of blank rows, and one with labels that nobody knows."""
    X, _ = parts["a"]
    blank, unknown = np.full((rows, 30), np.nan), np.resize(X, (rows, 30))
    return {**parts, "g": (blank, np.zeros(rows, dtype=int)), "h": (unknown, np.full(rows, 7))}


def valued(parts: Parts, public: Any, epsilon: float | None = None, **given: Any) -> dpv.Result:
    data = np.concatenate([X for X, _ in parts.values()]), np.concatenate([y for _, y in parts.values()])
    groups = np.concatenate([[name] * len(y) for name, (_, y) in parts.items()])
    privacy = None if epsilon is None else dpv.Privacy(epsilon, 1e-5, unit="record")
    defaults = {"game": "refit", "privacy": privacy, "noise": "fast", "progress": False, "engine": ENGINE}
    return dpv.value(data, public, groups=groups, **{**defaults, "preprocess": StandardScaler(), **given})


def retrained(parts: Parts, public: Arrays, regression: bool = False) -> tuple[Floats, Floats]:
    """The Shapley and leave-one-out values of scikit-learn's fits to each coalition's rows, C = 1 or alpha = 1."""
    scale = StandardScaler().fit(public[0])

    def inputs(X: Any) -> Any:
        return np.c_[scale.transform(X), np.ones(len(X))]

    members, worths = list(parts.values()), []
    for coalition in range(2 ** len(members)):
        own = [part for place, part in enumerate(members) if coalition >> place & 1]
        if not own:
            worths.append(-float(np.mean(public[1] ** 2)) if regression else -np.log(2))
            continue
        X, y = inputs(np.concatenate([X for X, _ in own])), np.concatenate([y for _, y in own])
        if regression:
            predicted = Ridge(alpha=1, fit_intercept=False).fit(X, y).predict(inputs(public[0]))
            worths.append(-float(np.mean((predicted - public[1]) ** 2)))
        else:
            fitted = LogisticRegression(C=1, fit_intercept=False, max_iter=5000).fit(X, y)
            logs = fitted.predict_log_proba(inputs(public[0]))
            worths.append(float(logs[np.arange(len(logs)), public[1]].mean()))
    listed, n = np.array(worths), len(members)
    without = listed[[(2**n - 1) ^ (1 << place) for place in range(n)]]
    return enumerate_values(listed, n, semivalue("shapley")), listed[-1] - without


def spearman(first: Floats, second: Floats) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


@cache
def problem(seed: int) -> tuple[Parts, Arrays, tuple[Floats, Floats]]:
    """A consortium, and what retraining on every coalition says of it."""
    parts, public = consortium(seed)
    return parts, public, retrained(parts, public)


@cache
def agreement(game: str, epsilon: float | None) -> tuple[float, float]:
    """Mean rank correlations with retraining, of Shapley values and of leave-one-out, over seeds of our own."""
    found = []
    for seed in (31, 33, 34):
        parts, public, truth = problem(seed)
        result = valued(parts, public, epsilon, seed=seed, game=game, semivalues=("shapley", "loo"))
        values = result.values
        found.append((spearman(values["shapley"], truth[0]), spearman(values["loo"], truth[1])))
        if game == "refit":
            assert (np.diff(values["shapley"][:4]) < 0).sum() >= 2  # larger honest parties have larger values
            assert values["shapley"][0] > values["shapley"][3]
            assert (values["shapley"][:4] > 0).all()
            assert values["shapley"][4] == values["shapley"].min()
            assert values["shapley"][4] < -0.05  # all labels wrong
    shapley, loo = np.mean(found, axis=0)
    return float(shapley), float(loo)


@pytest.mark.parametrize("epsilon", [pytest.param(None, marks=pytest.mark.slow), 20.0])
def test_values_are_those_of_retraining_where_steps_are_not(epsilon: float | None) -> None:
    shapley, loo = agreement("refit", epsilon)
    assert shapley >= 0.95
    assert loo >= 0.9
    steps = agreement("steps", epsilon)
    assert steps[0] < 0.9
    assert steps[1] < 0.85


@pytest.mark.parametrize(("most_curved", "sooner"), [(40, 0.6), (0, 0.95)])
def test_fits_that_begin_near_those_of_another_table_end_where_others_do_and_sooner(
    most_curved: int, sooner: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the curvature of their own, and where features are too many for that."""
    monkeypatch.setattr(refit_module, "_MOST_CURVED", most_curved)
    parts, public = consortium(0)
    result = valued(parts, public, 20.0)
    game = result.game()
    assert isinstance(game, RefitGame)
    coalitions = (np.arange(64)[:, None] >> np.arange(6) & 1).astype(bool)
    noise = torch.from_numpy(np.random.default_rng(0).normal(size=tuple(game.rows.shape))).to(game.rows)
    rows = game.rows + 0.01 * noise
    tried: list[int] = []

    def counted(refitting: Any, theta: Any, shift: Any) -> Any:
        tried.append(len(theta))
        return at(refitting, theta, shift)

    at = refit_module.Refitting._objective
    with mock.patch.object(refit_module.Refitting, "_objective", counted):
        far = RefitGame(game.refitting, rows, result.table.noise_std, result.table.sizes).worth(coalitions)
        from_afar = sum(tried)
        game.worth(coalitions)
        tried.clear()
        near = game.with_rows(rows).worth(coalitions)
    assert np.abs(near - far).max() < 1e-4
    assert np.abs(near - game.worth(coalitions)).max() > 1e-2
    assert sum(tried) < sooner * from_afar
    with mock.patch.multiple(refit_module, _STEPS=2000, _CLOSE=1e-13):
        best = RefitGame(game.refitting, rows, result.table.noise_std, result.table.sizes).worth(coalitions)
    assert np.abs(far - best).max() < 1e-4


def numbers(seed: int) -> tuple[Parts, Arrays]:
    """A linear function of eight features: one party has it upside down, one a third of its labels far off."""
    generator = np.random.default_rng(seed)
    slope = generator.normal(size=8)

    def draw(rows: int) -> Arrays:
        X = generator.normal(size=(rows, 8))
        return X, X @ slope + generator.normal(0, 1.5, rows)

    public, parts = draw(150), {name: draw(size) for name, size in {**HONEST, "e": 60, "f": 60}.items()}
    parts["f"][1][::3] += 8 * generator.choice([-1, 1], 20)
    return {**parts, "e": (parts["e"][0], -parts["e"][1])}, public


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [None, 20.0])
def test_values_of_a_regression_are_those_of_retraining(epsilon: float | None) -> None:
    found = []
    for seed in range(4):
        parts, public = numbers(seed)
        truth, _ = retrained(parts, public, regression=True)
        given: dict[str, Any] = {"model": "linear", "seed": seed}
        refit, steps = (
            valued(parts, public, epsilon, game=game, **given).values["shapley"] for game in ("refit", "steps")
        )
        assert refit[4] == refit.min() < 0
        found.append((spearman(refit, truth), spearman(steps, truth)))
    refits, others = np.mean(found, axis=0)
    assert refits >= 0.85, found
    assert others < refits - 0.1, found


def test_a_copy_falls_as_it_does_under_retraining() -> None:
    parts, public = consortium(21)
    few = {name: parts[name] for name in "abcf"}
    copied = {**few, "z": parts["a"]}
    kept = retrained(copied, public)[0][0] / retrained(few, public)[0][0]
    assert 0.6 < kept < 0.85
    for epsilon in (None, 20.0):
        alone, both = (valued(which, public, epsilon).values["shapley"] for which in (few, copied))
        assert both[0] / alone[0] == pytest.approx(kept, abs=0.08)
        assert both[4] == pytest.approx(both[0], rel=0.1)


def test_learning_curves_are_measured_once_for_values_and_intervals() -> None:
    (X, y), public = classification(60, test=60)
    given: dict[str, Any] = {"noise": "fast", "progress": False, "engine": ENGINE, "game": "refit"}
    with mock.patch.object(refit_module, "learning_curves", wraps=learning_curves) as measured:
        privacy = dpv.Privacy(2.0, unit="record")
        result = dpv.value((X, y), public, groups=np.repeat(list("abc"), 20), privacy=privacy, **given)
        before = measured.call_count
        result.intervals("shapley", draws=2)
    assert before == measured.call_count == 1


def test_nobody_is_worth_the_model_of_zeros_and_shapley_adds_up() -> None:
    (X, y), public = classification(150, classes=3, test=60)
    groups = np.repeat(list("abcde"), [60, 40, 30, 15, 5])
    given: dict[str, Any] = {"noise": "fast", "progress": False, "engine": ENGINE}
    for privacy in (None, dpv.Privacy(2.0, unit="record")):
        result = dpv.value((X, y), public, groups=groups, privacy=privacy, semivalues=("shapley", "loo"), **given)
        game = result.game()
        assert isinstance(game, RefitGame)
        everyone = np.ones(5, dtype=bool)
        each = np.stack([np.zeros(5, dtype=bool), everyone, *(everyone ^ np.eye(5, dtype=bool))])
        nobody, all_of_them, *without = game.worth(each)
        assert nobody == pytest.approx(-np.log(3))
        assert result.values["shapley"].sum() == pytest.approx(all_of_them - nobody, abs=1e-5)
        np.testing.assert_allclose(result.values["loo"], all_of_them - np.array(without), atol=1e-5)
        assert result.walks == 0  # all coalitions
        listed = game.worth((np.arange(32)[:, None] >> np.arange(5) & 1).astype(bool))
        np.testing.assert_allclose(
            result.values["shapley"], enumerate_values(listed, 5, semivalue("shapley")), atol=1e-5
        )


def test_nobody_predicts_zero() -> None:
    parts, public = numbers(5)
    game = valued(parts, public, model="linear").game()
    nobody = np.zeros((1, 6), dtype=bool)
    assert game.worth(nobody)[0] == pytest.approx(-np.mean(public[1] ** 2))


@pytest.mark.slow
def test_few_records_are_worth_what_retraining_on_few_gives() -> None:
    """An expansion around the public model does not know that; learning curves do."""
    found, expected = [], []
    for seed in (31, 32, 33, 34):
        parts, public = consortium(seed)
        honest = {name: parts[name] for name in "ad"}
        both = valued(honest, public, seed=seed).game().worth(np.eye(2, dtype=bool))
        found.append(both[0] - both[1])
        truth = [retrained({name: part}, public)[0][0] for name, part in honest.items()]
        expected.append(truth[0] - truth[1])
    assert np.mean(found) > 0.03
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=0.05)


def test_a_coalition_without_data_is_worth_nobody() -> None:
    parts, public = consortium(5)
    result = valued(with_no_data(parts), public)
    assert (np.abs(result.values["shapley"][6:]) < 1e-9).all()
    game = result.game()
    coalitions = np.zeros((3, 8), dtype=bool)
    coalitions[0, 6], coalitions[1, 6:] = True, True
    np.testing.assert_array_equal(game.worth(coalitions), np.full(3, game.worth(coalitions[2:])[0]))
    others = valued(parts, public).values["shapley"]
    np.testing.assert_allclose(result.values["shapley"][:6], others, atol=1e-6)  # they change nothing for others
    regression = valued({"a": (parts["a"][0], parts["a"][0][:, 3]), "g": (np.full((30, 30), np.nan), np.zeros(30))},
                        (public[0], public[0][:, 3]), model="linear")  # fmt: skip
    assert abs(regression.values["shapley"][1]) < 1e-9
    assert regression.values["shapley"][0] > 0


@pytest.mark.parametrize(("epsilon", "rows"), [(4.0, 30), pytest.param(1.0, 150, marks=pytest.mark.slow), (1.0, 1500)])
@pytest.mark.slow
def test_no_data_is_worth_nothing_within_its_interval(epsilon: float, rows: int) -> None:
    """Whatever number of rows it claims: a larger one makes it easier to see that there are none."""
    parts, public = consortium(5)
    few = with_no_data({name: parts[name] for name in "abe"}, rows)
    for seed in range(2):
        result = valued(few, public, epsilon, seed=seed)
        values, found = result.values["shapley"], result.intervals()
        assert (found.low[3:] - 1e-9 <= 0).all(), (values[3:], found.low[3:])
        assert (found.high[3:] + 1e-9 >= 0).all(), (values[3:], found.high[3:])
        assert found.low[0] > 0
        if rows > 1000:
            np.testing.assert_allclose(values[3:], 0, atol=1e-6)
            assert (found.high[3:] < 0.2 * values[0]).all()


def test_no_privacy_is_the_limit() -> None:
    seed = 41
    parts, public = consortium(seed)
    parts = with_no_data(parts)
    limit = valued(parts, public, seed=seed).values["shapley"]
    far, further = (valued(parts, public, epsilon, seed=seed).values["shapley"] for epsilon in (1e4, 1e8))
    assert spearman(far.round(9), limit.round(9)) > 0.99  # two have no data: zero, but for rounding
    np.testing.assert_allclose(far, limit, atol=0.01)
    np.testing.assert_allclose(further, limit, atol=1e-4)
    near = valued(parts, public, 1.0, seed=seed).values["shapley"]
    assert np.abs(near - limit).max() > 0.02


def test_persons_of_one_record_are_records() -> None:
    """The same releases, and the same values."""
    parts, public = consortium(6)
    data = np.concatenate([X for X, _ in parts.values()]), np.concatenate([y for _, y in parts.values()])
    groups = np.concatenate([[name] * len(y) for name, (_, y) in parts.items()])
    given: dict[str, Any] = {"groups": groups, "persons": np.arange(len(groups)), "engine": ENGINE, "noise": "fast"}
    given |= {"preprocess": StandardScaler(), "progress": False}
    record, person = (
        dpv.value(data, public, privacy=dpv.Privacy(2.0, 1e-5, unit=unit), **given) for unit in ("record", "person")
    )
    torch.testing.assert_close(record.table.rows, person.table.rows, rtol=0, atol=1e-10)
    np.testing.assert_allclose(record.values["shapley"], person.values["shapley"], atol=1e-6)


def test_whole_parties_are_valued_where_the_budget_allows_it() -> None:
    parts, public = consortium(35)
    truth, _ = retrained(parts, public)
    found = valued(parts, public, privacy=dpv.Privacy(1e6, 1e-5, unit="party")).values["shapley"]
    assert spearman(found, truth) > 0.9
    assert found[4] < 0


def test_a_party_of_noise_spoils_nothing_for_others() -> None:
    """Two records at epsilon = 1: nobody else is read differently, and values hardly move."""
    parts, public = consortium(7)
    small = {**parts, "z": (parts["a"][0][:2], 1 - parts["a"][1][:2])}
    before, after = valued(parts, public, 1.0), valued(small, public, 1.0)
    first, second = before.game(), after.game()
    assert isinstance(first, RefitGame)
    assert isinstance(second, RefitGame)
    assert len(second.readings) == 7
    for one, other in zip(first.readings, second.readings[:6], strict=True):
        assert (one.units, one.copies, one.meaningless) == (other.units, other.copies, other.meaningless)
        assert torch.equal(one.gradient, other.gradient)
    np.testing.assert_allclose(after.values["shapley"][:6], before.values["shapley"], atol=0.02)
    assert abs(after.values["shapley"][6]) < 0.05


@pytest.mark.parametrize("metric", ["accuracy", "callable"])
def test_other_utilities_are_those_of_the_refitted_models(metric: str) -> None:
    parts, public = consortium(8)
    y = public[1]

    def right(outputs: Any, labels: Any) -> float:
        return float((outputs.argmax(1) == labels).mean())

    utility = dpv.Utility(*public, metric=right if metric == "callable" else metric)
    result = valued(parts, utility, 20.0, semivalues=("shapley", "loo"))
    coalitions = np.array([[True] * 6, [False] * 6])
    everyone, nobody = result.game().worth(coalitions)
    assert result.values["shapley"].sum() == pytest.approx(everyone - nobody)
    assert everyone > 0.9
    assert nobody == pytest.approx(float((y == 0).mean()))  # of equal outputs the first
    assert result.values["shapley"].argmin() == 4
    assert result.values["shapley"][:4].min() > result.values["shapley"][4:].max()
    losses = result.revalue(public, engine=ENGINE, progress=False)  # the same table, another utility: free
    np.testing.assert_array_equal(losses.values["shapley"], valued(parts, public, 20.0).values["shapley"])


@pytest.mark.slow
def test_what_a_liar_gains() -> None:
    """A party of garbage that sends the description of public records: as much as as many good ones, and no more."""
    gains = []
    for seed in (51, 52):
        parts, public = consortium(seed)
        honest = valued(parts, public, seed=seed).values["shapley"][1]
        generator = np.random.default_rng(seed)
        X, y = parts["b"]
        garbage = generator.normal(X.mean(0), X.std(0), X.shape), generator.integers(2, size=len(y))
        told = valued({**parts, "b": garbage}, public, seed=seed).values["shapley"][1]
        lies = []
        for claimed in (60, 600):
            empty = np.full((claimed, 30), np.nan), np.zeros(claimed, dtype=int)
            table = valued({**parts, "b": empty}, public, seed=seed).table
            assert isinstance(table.method, Refit)
            surrogate = table.method.surrogate
            window, rows = surrogate.window(1), table.rows.clone()
            rows[1, : window.count] = window.centre[:-2] / window.norm
            rows[1, -2:] = window.centre[-2:] / window.norm
            lied = replace(table, rows=rows).value(public, engine=ENGINE, progress=False)
            lies.append(lied.values["shapley"][1])
        gains.append([told, lies[0] / honest, lies[1] / honest])
    garbage_told, lied, claimed_ten_times = np.mean(gains, axis=0)
    assert garbage_told < 0
    assert lied == pytest.approx(1.0, abs=0.15)
    assert 1.3 < claimed_ten_times < 2.5
