"""Choosing in less time: what is skipped could not have won, and what is done at once is what was done one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.detection import expected_auc
from dpvalue.models import build_model
from dpvalue.models.build import Training, train
from dpvalue.planning import rehearsal as rehearsal_module
from dpvalue.planning.crowd import make_crowd
from dpvalue.planning.folds import GradientSketch
from dpvalue.planning.rehearsal import Option, is_past_best, prefer
from dpvalue.planning.settings import Settings
from dpvalue.planning.situation import Situation, options
from dpvalue.privacy.mechanism import Mechanism, Scale
from dpvalue.protocol.projection import Projection
from dpvalue.runs.run import prepare
from tests.datasets import classification

GENERATOR = np.random.default_rng(0)
WAYS = [("flat", 0.3, 0.0), ("normalise", 1.0, 0.2), ("flat", 1.5, -0.4), ("normalise", 2.0, 0.0)]


def sketches(count: int) -> tuple[GradientSketch, GradientSketch]:
    scores = GENERATOR.normal(0.5, 1, count), GENERATOR.normal(-0.5, 1, count)
    return GradientSketch(scores[0], np.abs(scores[0])), GradientSketch(scores[1], np.abs(scores[1]))


def contributed(sketch: GradientSketch, rule: str, clip: float, centre: float) -> Any:
    """Clipping of one number, as one would write it down."""
    moved = sketch.score - centre
    return np.clip(moved, -clip, clip) if rule == "flat" else clip * np.sign(moved)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_all_ways_to_clip_at_once_are_each_of_them(law: str) -> None:
    mechanism = Mechanism(1.0, 0.7, "party", "zero_out", law)
    crowd, pair = make_crowd(np.ones(20, dtype=np.int64), 0), sketches(48)
    places = (np.arange(48) + 0.5) / 48
    expected = []
    for way in WAYS:
        clean, bad = (np.quantile(contributed(one, *way), places) for one in pair)
        expected.append(expected_auc(clean, bad, law, way[1] * 0.7))
    np.testing.assert_allclose(crowd.aucs(pair, WAYS, mechanism), expected, rtol=1e-9)
    assert [crowd.auc(pair, way, mechanism) for way in WAYS] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("units", [[1, 1, 1, 1], [3, 3, 3], [1, 2, 30, 80]])
def test_no_way_to_clip_finds_more_than_the_bound(law: str, units: list[int]) -> None:
    mechanism = Mechanism(1.0, 0.9, "record", "zero_out", law)
    crowd = make_crowd(np.array(units), 0)
    bound = crowd.bound(mechanism)
    apart = (
        GradientSketch(np.full(30, 100.0), np.full(30, 100.0)),
        GradientSketch(np.full(30, -100.0), np.full(30, 100.0)),
    )
    assert 0.5 < crowd.auc(sketches(30), WAYS[0], mechanism) < bound
    assert crowd.auc(apart, ("normalise", 1.0, 0.0), mechanism) <= bound + 1e-12
    if max(units) == 1:
        assert crowd.auc(apart, ("flat", 3.0, 0.0), mechanism) == pytest.approx(bound)  # it is reached


@pytest.mark.parametrize(("epsilon", "features"), [
    (2.0, 3), pytest.param(0.5, 12, marks=pytest.mark.slow), pytest.param(8.0, 12, marks=pytest.mark.slow),
])  # fmt: skip
def test_what_is_skipped_would_not_have_been_preferred(
    epsilon: float, features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, public = classification(90, classes=2, features=features)
    settings = Settings(privacy=dpv.Privacy(epsilon))
    at: Situation = prepare(
        dpv.Utility(*public), settings, np.ones(90, dtype=np.int64), np.ones(90, dtype=np.int64)
    ).situation
    assert settings.privacy is not None
    few = options(at, settings.privacy, at.rehearsal())
    monkeypatch.setattr(rehearsal_module, "can_win", lambda *given: True)
    monkeypatch.setattr(rehearsal_module, "is_past_best", lambda *given: False)
    everything = options(at, settings.privacy, at.rehearsal())
    assert len(few) < len(everything) or epsilon > 2
    (one, elsewhere), (other, rivals) = prefer(few, at.model.size), prefer(everything, at.model.size)
    assert (one.projection, one.law, one.clip, one.folds) == (other.projection, other.law, other.clip, other.folds)
    assert [option.projection for option in elsewhere] == [option.projection for option in rivals]


def test_a_path_is_not_followed_farther_once_it_finds_less() -> None:
    mechanism = Mechanism(1.0, 1.0, "party", "zero_out", "laplace")

    def option(steps: int, auc: float, source: str = "path") -> Option:
        return Option(Projection(1, source, steps), mechanism, 1.0, "flat", Scale(), (auc,), auc, ())

    far = Projection(1, "path", 1024)
    assert is_past_best(far, [option(16, 0.7), option(64, 0.8), option(256, 0.79)])
    assert not is_past_best(far, [option(16, 0.8), option(64, 0.7), option(256, 0.71)])
    assert not is_past_best(far, [option(64, 0.8), option(256, 0.7, "utility")])
    assert not is_past_best(Projection(1, "path", 64), [option(256, 0.7), option(1024, 0.6)])
    assert not is_past_best(far, [])
    assert not is_past_best(None, [option(16, 0.8), option(64, 0.7)])


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_training_in_stages_and_by_columns_is_training(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets of different sizes, one smaller than a batch; in stages, at once, alone, and by any model's gradients."""
    kind = "logistic" if task == "classification" else "linear"
    x = torch.from_numpy(GENERATOR.normal(size=(400, 3)))
    y = (x[:, 0] > 0).long() if task == "classification" else x[:, 0] - 2 * x[:, 1]
    device = torch.device("cpu")
    model = build_model(kind, task, x[0], 2 if task == "classification" else 1, torch.float64, device)
    rows, labels = model.inputs(x), model.targets(y)
    sets = [(rows[:200], labels[:200]), (rows[200:350], labels[200:350]), (rows[350:], labels[350:])]
    training = Training(model, model.initial(0), sets, 7)
    stages = [training.run_until(steps) for steps in (3, 3, 20)]
    assert training.step == 20
    for place, (own, its) in enumerate(sets):
        alone = train(model, model.initial(0), own, its, (3, 20), 7)
        for stage, expected in ((0, alone[0]), (1, alone[0]), (2, alone[1])):
            torch.testing.assert_close(stages[stage][place], expected, rtol=1e-9, atol=1e-12)
    monkeypatch.setattr(Training, "_linear_gradients", lambda self: self._any_gradients)
    slow = Training(model, model.initial(0), sets, 7).run_until(20)
    for one, other in zip(slow, stages[2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
