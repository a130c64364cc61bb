"""The yardstick: the loss under a public model, released through the same mechanism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from tests.datasets import classification, flipped_breast_cancer, images

QUIET: dict[str, Any] = {"noise": "fast"}


def test_without_privacy_it_is_the_loss_of_a_trained_model() -> None:
    train, test, _ = flipped_breast_cancer(200)
    found = dpv.baselines.public_loss(train, test, privacy=None, preprocess=StandardScaler())
    scaler = StandardScaler().fit(test[0])
    other = LogisticRegression(C=1.0).fit(scaler.transform(test[0]), test[1])
    chances = other.predict_log_proba(scaler.transform(train[0]))[np.arange(200), train[1]]
    assert stats.spearmanr(found.scores, chances).statistic > 0.9
    assert not found.guarantee.private
    assert found.expected_auc is None


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_it_finds_what_it_expects_to_find_and_no_more_than_values_do(epsilon: float) -> None:
    scores, values, expected = [], [], []
    for seed in range(10):
        train, test, flipped = flipped_breast_cancer(300, seed=seed % 3)
        settings: dict[str, Any] = {
            "privacy": dpv.Privacy(epsilon), "preprocess": StandardScaler(), "seed": seed, **QUIET,
        }  # fmt: skip
        found = dpv.baselines.public_loss(train, test, **settings)
        scores.append(dpv.detection.auc(found.scores, flipped))
        expected.append(found.expected_auc or 0.0)
        valued = dpv.value(train, test, progress=False, **settings).values["shapley"]
        values.append(dpv.detection.auc(valued, flipped))
    assert found.guarantee.mechanism == "Laplace"
    assert np.mean(scores) == pytest.approx(np.mean(expected), abs=0.03)
    assert np.mean(values) == pytest.approx(np.mean(scores), abs=0.03)


def test_it_has_the_noise_and_the_guarantee_of_its_unit() -> None:
    train, test = classification(4000, classes=2)
    pure = dpv.Privacy(0.5, delta=0)
    fast, secure = (dpv.baselines.public_loss(train, test, privacy=pure, noise=kind) for kind in ("fast", "secure"))
    difference = fast.scores - secure.scores  # of two Laplace variables: no clipped score is left in it
    assert abs(np.mean(difference)) < 4 * np.std(difference) / 4000**0.5
    assert stats.kurtosis(difference) > 0.4  # 1.5 in theory; a difference of two Gaussians has 0
    assert fast.guarantee.simulation
    assert not secure.guarantee.simulation
    record = dpv.Privacy(delta=1e-6, unit="record")
    sites = dpv.baselines.public_loss(train, test, groups=np.arange(4000) % 5, privacy=record, **QUIET)
    assert len(sites.scores) == 5
    assert "Each record of each party" in str(sites.guarantee)
    with pytest.warns(UserWarning, match="exceeds 0.1"):
        dpv.baselines.public_loss(train, test, privacy=dpv.Privacy(delta=1e-3, mechanism="gaussian"), **QUIET)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_records_and_persons_are_screened_with_secure_noise(mechanism: str) -> None:
    train, test = classification(60)
    groups, persons = np.arange(60) % 4, np.arange(60) // 4
    for unit in ("record", "person"):
        privacy = dpv.Privacy(unit=unit, mechanism=mechanism, parties_per_person=4 if unit == "person" else 1)
        found = dpv.baselines.public_loss(train, test, groups=groups, persons=persons, privacy=privacy)
        assert np.isfinite(found.scores).all()
        assert found.guarantee.mechanism == mechanism.capitalize()
    everywhere = dpv.Privacy(unit="person")  # a person in more parties than one counts in the first, and stops nobody
    dpv.baselines.public_loss(train, test, groups=groups, persons=persons, privacy=everywhere)


def test_its_seeded_noise_is_not_that_of_a_run() -> None:
    train, test = classification(3000, classes=2)
    tiny = dpv.Privacy(1e-3, delta=0)
    table = dpv.release(train, test, privacy=tiny, projection=dpv.Projection(steps=16), progress=False, noise="fast")
    scores = dpv.baselines.public_loss(train, test, privacy=tiny, noise="fast").scores
    assert abs(np.corrcoef(table.rows[:, 0], scores)[0, 1]) < 0.1


def test_networks_screen_too() -> None:
    (X, y), test = images(40)
    wrong = np.arange(40) < 12
    private = X, np.where(wrong, (y + 1) % 3, y)
    found = dpv.baselines.public_loss(private, test, model="cnn", privacy=dpv.Privacy(6.0), **QUIET)
    assert dpv.detection.auc(found.scores, wrong) > 0.9
