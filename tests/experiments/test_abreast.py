"""Running means of several runs, walked side by side, are those of each run by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpvalue.experiments.paper import abreast, valuing
from dpvalue.experiments.paper.methods import IID, PaperMethod, open_run, paper_rate, running_mean
from dpvalue.experiments.paper.problem import PaperProblem, make_problem
from dpvalue.experiments.paper.readings import AS_PRINTED, AS_RUN
from dpvalue.experiments.paper.trials import Experiment, TrialScale, missing_batches
from dpvalue.experiments.paper.valuing import ValuationSpec, run_together
from dpvalue.protocol.schedule import Schedule
from tests import gpu_checks

METHODS = [running_mean(), running_mean(0.5), IID]


def images(seed: int, per_party: int = 1) -> PaperProblem:
    """Digits as images, three classes."""
    split = make_problem("digits", None, 400, 200, seed=seed, share=0.3)
    (X, y), (X_test, y_test) = split.train, split.test
    kept, judges = np.flatnonzero(y < 3)[: 12 * per_party], y_test < 3
    train = X[kept].reshape(-1, 1, 8, 8), y[kept]
    changed = split.changed[kept].reshape(-1, per_party)[:, 0]
    return PaperProblem(train, (X_test[judges].reshape(-1, 1, 8, 8), y_test[judges]), changed, per_party)


def asked(per_party: int = 1) -> dict[str, ValuationSpec]:
    """Two splits, two rates, two readings and an honest budget: five that have little in common."""
    honest = replace(running_mean(0.5, noise="honest"), name="Y*")
    return {
        f"{number}": ValuationSpec(
            methods, images(seed, per_party), 7, metric=metric, semivalues=("shapley", "loo"),
            settings={"model": "cnn", "seed": seed, "reading": reading},
        )
        for number, (methods, seed, reading, metric) in enumerate(
            (
                (METHODS, 0, AS_PRINTED.at(0.05), "loss"), (METHODS, 1, AS_PRINTED.at(0.1), "accuracy"),
                ([honest], 0, AS_PRINTED.at(0.02), "loss"), (METHODS, 0, AS_RUN.at(0.05), "loss"),
                (METHODS, 1, AS_RUN.at(0.01), "loss"),
            )
        )
    }  # fmt: skip


@pytest.mark.parametrize("per_party", [1, 3])
def test_side_by_side_is_one_by_one(per_party: int, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = run_together(asked(per_party))
    walked: list[int] = []

    def noted(lanes: Any) -> list[float]:
        walked.append(len(lanes))
        return abreast.walk_abreast(lanes)

    monkeypatch.setattr(valuing._Walks, "kind", property(lambda self: self.lane.kind))  # as on a GPU
    monkeypatch.setattr(valuing, "walk_abreast", noted)
    monkeypatch.setattr(abreast, "STRETCH", 5)  # 5, 5 and 2 of 12
    together = run_together(asked(per_party))
    assert sorted(walked) == [2, 3]  # those with one clip, the honest one among them, and those with the other
    for key, outcomes in alone.items():
        assert list(together[key]) == list(outcomes)
        for name, outcome in outcomes.items():
            other = together[key][name]
            for kind, values in outcome.values.items():
                np.testing.assert_allclose(other.values[kind], values, rtol=2e-4, atol=2e-5)
            assert other.cost.keys() == outcome.cost.keys()
            for fact in {"epsilon", "multiplier", "learning_rate", "longest"} & outcome.cost.keys():
                assert other.cost[fact] == pytest.approx(outcome.cost[fact], rel=1e-4)
    unclipped = asked(per_party)["3"]
    paper_rate("paper", unclipped.problem, 7, model="cnn", seed=0, reading=AS_RUN)  # the watch is of one run again
    longest = [outcomes["X*"].cost["longest"] for key, outcomes in alone.items() if key in "34"]
    assert abs(longest[0] / longest[1] - 1) > 1e-3  # or a lane could say another one's


def test_a_stretch_and_the_rest_are_a_walk() -> None:
    assert gpu_checks.abreast_gap("cpu") < 1e-4


def test_what_is_walked_by_itself() -> None:
    problem = images(0)
    (X, y), (X_test, y_test) = problem.train, problem.test
    flat = replace(problem, train=(X.reshape(12, 64), y), test=(X_test.reshape(-1, 64), y_test))
    fresh = replace(running_mean(), schedule=Schedule("running-mean", fresh_start=True))
    cases: list[tuple[PaperMethod, str, str]] = [
        (IID, "cnn", "fast"), (running_mean(block=2), "cnn", "fast"), (running_mean(), "logistic", "fast"),
        (fresh, "cnn", "fast"), (running_mean(), "cnn", "secure"), (running_mean(), "cnn", "fast"),
    ]  # fmt: skip
    alone = []
    for method, model, noise in cases:
        own = {"model": model, "noise": noise, "learning_rate": 0.1}
        split = problem if model == "cnn" else flat
        lane = abreast.Lane(open_run([method], split, 4, 1.0, metric="loss", **own), split, lambda *walk: None)
        alone.append(lane.kind is None)
    assert alone == [True] * 5 + [False]


def test_trials_that_share_walks_are_batched_on_a_gpu_alone(tmp_path: Any) -> None:
    made: dict[str, Any] = {"title": "", "data": (), "minutes": "", "trial": None, "show": None, "check": None}
    together = Experiment(name="a", trials=130, together=lambda scale, numbers: [], **made)
    lone = Experiment(name="b", trials=3, **made)
    cpu, gpu = TrialScale(quick=False, data=None), TrialScale(quick=False, data=None, device="cuda")
    (tmp_path / "a" / "full").mkdir(parents=True)
    (tmp_path / "a" / "full" / "trial-1.json").write_text("{}")
    assert [len(one) for one in missing_batches(together, cpu, tmp_path)] == [1] * 129
    assert [len(one) for one in missing_batches(together, gpu, tmp_path)] == [60, 60, 9]
    assert missing_batches(lone, gpu, tmp_path) == [[0], [1], [2]]
