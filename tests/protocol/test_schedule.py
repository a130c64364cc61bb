"""Schedules: what their matrices promise (P1, P2), and the weights that a run really uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import dpvalue as dpv
from dpvalue.engine.evaluator import Evaluator
from dpvalue.privacy import accounting
from dpvalue.runs import run as run_module
from tests.datasets import classification
from tests.privacy.test_mechanism import Constant

PAPER_KINDS = ["independent", "running-mean", "optimal", "decaying"]


@pytest.mark.parametrize(
    ("kind", "block"), [(kind, 1) for kind in PAPER_KINDS] + [(kind, 3) for kind in PAPER_KINDS[1:]]
)
@pytest.mark.parametrize("ratio", [0.0, 0.7, float("inf")])
def test_p1_lower_triangular_and_p2_rows_sum_to_one(kind: str, block: int, ratio: float) -> None:
    X = dpv.Schedule(kind, block=block).matrix(10, ratio)
    assert X.shape == (10, 10)
    assert (np.triu(X, 1) == 0).all()
    np.testing.assert_allclose(X.sum(1), 1.0)
    assert (X >= 0).all()


def test_running_mean_is_the_papers_x_star() -> None:
    X = dpv.Schedule("running-mean").matrix(6)
    np.testing.assert_allclose(X, [[1 / i if j <= i else 0 for j in range(1, 7)] for i in range(1, 7)])


def test_optimal_is_the_papers_formal_proposition() -> None:
    v, g2, k = 3.0, 0.5, 6
    X = dpv.Schedule("optimal").matrix(k, ratio=g2 / v)
    for t in range(2, k + 1):
        assert X[t - 1, t - 1] == pytest.approx((v + t * g2) / (t * (v + g2)))
        np.testing.assert_allclose(X[t - 1, : t - 1], v / (t * (v + g2)))
    np.testing.assert_allclose(dpv.Schedule("optimal").matrix(k, 0.0), dpv.Schedule("running-mean").matrix(k))


def test_decaying_is_recursive() -> None:
    X = dpv.Schedule("decaying").matrix(5)
    for t in range(2, 6):
        own = 0.75 - 0.7 * t / 5
        expected = (1 - own) * X[t - 2]
        expected[t - 1] = own
        np.testing.assert_allclose(X[t - 1], expected)


@pytest.mark.parametrize("kind", PAPER_KINDS)
def test_burn_in_takes_the_last_rows(kind: str) -> None:
    whole, rest = dpv.Schedule(kind).matrix(10), dpv.Schedule(kind, burn_in=0.72).matrix(10)
    np.testing.assert_allclose(rest, whole[7:])


def test_blocks_read_nothing_of_their_own_block() -> None:
    X = dpv.Schedule("running-mean", block=2).matrix(4)
    np.testing.assert_allclose(X, np.array([[3, 0, 0, 0], [0, 3, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]) / 3)


def test_lagged_and_replay() -> None:
    lagged = dpv.Schedule("lagged", rounds=3, probes=2)
    np.testing.assert_allclose(lagged.matrix(6), np.array([[2, 0, 0], [2, 0, 0], [1, 1, 0], [1, 1, 0]]) / 2)
    assert lagged.releases(6) == 3
    assert dpv.Schedule("lagged").shape(1000) == (20, 50)
    assert dpv.Schedule("lagged", burn_in=0.9).first_valued(1000) == 900
    assert str(dpv.Schedule("lagged", rounds=4)) == "lagged, 4 rounds"
    assert str(dpv.Schedule("lagged")) == "lagged, 50 probes per round"
    replay = dpv.Schedule("replay", rounds=4)
    assert str(replay) == "replay, 4 rounds of 20 probes"
    np.testing.assert_allclose(replay.matrix(1000), [[0.25] * 4])
    assert replay.releases(1000) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "running mean"}, "schedule must be one of"),
        ({"kind": "running-mean", "burn_in": 1.0}, "burn_in must be at least 0 and below 1"),
        ({"kind": "running-mean", "burn_in": -0.1}, "burn_in must be"),
        ({"kind": "replay", "burn_in": 0.5}, "burn_in is for the schedules"),
        ({"kind": "running-mean", "rounds": 2}, "rounds is for the schedules lagged, replay"),
        ({"kind": "replay", "probes": 0}, "probes must be"),
        ({"kind": "lagged", "block": 5}, "block is for the schedules"),
        ({"kind": "independent", "block": 5}, "block is for the schedules"),
        ({"kind": "lagged", "tolerance": 0.2}, "tolerance is for the schedules replay"),
        ({"kind": "replay", "fresh_start": True}, "fresh_start is for the schedules"),
        ({"kind": "replay", "tolerance": 0}, "tolerance must be positive"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.Schedule(**settings)


def test_burn_in_must_leave_something() -> None:
    with pytest.raises(dpv.DpvalueError, match="burn_in must leave a permutation to value"):
        dpv.Schedule("running-mean", burn_in=0.95).first_valued(5)


@pytest.mark.parametrize(
    ("rounds", "probes", "permutations"), [(3, 3, 10), (None, 7, 10), (1, 10, 10), (None, None, 60)]
)
def test_lagged_permutations_are_rounds_times_probes(rounds: int, probes: int, permutations: int) -> None:
    with pytest.raises(dpv.DpvalueError, match="permutations must be rounds x probes"):
        dpv.Schedule("lagged", rounds=rounds, probes=probes).shape(permutations)


class UnitVectors:
    """In place of noise: every party's release number t is the unit vector e_t, times the noise standard deviation."""

    on_grid = False

    def stream(self, release: int, like: torch.Tensor, law: str, bits: int) -> Any:
        return UnitStream(release, like)

    def rows(self, release: int, parties: Any, like: torch.Tensor, law: str, bits: int) -> torch.Tensor:
        return UnitStream(release, like).fill(like.new_empty(len(parties), len(like)))


class UnitStream:
    def __init__(self, release: int, like: torch.Tensor) -> None:
        self.row = torch.zeros_like(like)
        self.row[release] = 1.0

    def fill(self, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(self.row)


def steps_of_a_run(schedule: dpv.Schedule, permutations: int, monkeypatch: pytest.MonkeyPatch) -> list[NDArray[Any]]:
    """The weights on the releases in each step that a run takes, read off the models that it shows to the utility."""
    monkeypatch.setattr(run_module, "noise_source", lambda kind, seed: UnitVectors())
    seen: list[NDArray[Any]] = []

    def record(evaluate: Evaluator, theta: torch.Tensor) -> torch.Tensor:
        seen.extend(theta.numpy().copy())
        return torch.zeros(len(theta), dtype=torch.float64)

    monkeypatch.setattr(Evaluator, "__call__", record)
    train, test = classification(4, classes=2)
    result = dpv.value(
        train, test, model=lambda: Constant(16, 2), schedule=schedule, clip=1.0,
        learning_rate=0.5, permutations=permutations, progress=False, engine=dpv.Local(dtype="float64"),
        privacy=dpv.Privacy(epsilon=5.0, delta=1e-3), projection=None, noise="fast",
    )  # fmt: skip
    releases = schedule.releases(permutations)
    std = accounting.noise_multiplier(5.0, 1e-3, releases)
    assert result.guarantee.releases == releases
    return [model[:releases] / (-0.5 * std) for model in seen]


@pytest.mark.parametrize("kind", ["running-mean", "optimal", "decaying"])
@pytest.mark.parametrize(("block", "burn_in"), [(1, 0.0), (1, 0.5), (3, 0.0), (3, 0.5)])
def test_effective_weights_of_the_papers_kinds(
    kind: str, block: int, burn_in: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    k, n = 6, 4
    schedule = dpv.Schedule(kind, block=block, burn_in=burn_in)
    steps = steps_of_a_run(schedule, k, monkeypatch)
    # Unit vectors vary by 1/d per coordinate, far less than the noise that they stand for: g2 is clamped to 0.
    matrix = schedule.matrix(k, ratio=0.0)
    assert len(steps) == len(matrix) * (n + 1)
    first, row = schedule.first_valued(k), 0
    while row < len(matrix):
        together = min(block - (first + row) % block, len(matrix) - row)
        models = np.array(steps[row * (n + 1) : (row + together) * (n + 1)])
        for walk, path in enumerate(models[together:].reshape(together, n, k)):  # after the starts, walk by walk
            moved = np.diff([models[walk], *path], axis=0)
            np.testing.assert_allclose(moved, [matrix[row + walk]] * n, atol=1e-12)
        row += together


def test_effective_weights_of_independent(monkeypatch: pytest.MonkeyPatch) -> None:
    models = np.array(steps_of_a_run(dpv.Schedule("independent"), 6, monkeypatch))
    for walk, path in enumerate(models[6:].reshape(6, 4, 6)):
        np.testing.assert_allclose(np.diff([models[walk], *path], axis=0), [np.eye(6)[walk]] * 4, atol=1e-12)


def test_effective_weights_of_lagged_after_a_burn_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six permutations the last three are valued: one of round 1, two of round 2."""
    schedule = dpv.Schedule("lagged", rounds=3, probes=2, burn_in=0.5)
    steps = steps_of_a_run(schedule, 6, monkeypatch)
    assert len(steps) == (1 + 4) + (1 + 8)
    np.testing.assert_allclose(np.diff([np.zeros(3), *steps[1:5]], axis=0), [schedule.matrix(6)[0]] * 4, atol=1e-12)


def test_effective_weights_of_lagged(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = dpv.Schedule("lagged", rounds=3, probes=2)
    steps = steps_of_a_run(schedule, 6, monkeypatch)
    walks = [np.array([np.zeros(3), *steps[1 + r * 9 : 9 + r * 9]]) for r in range(2)]  # a round: start, then 2 x 4
    for number, models in enumerate(walks):
        for walk in range(2):
            path = np.array([models[0], *models[1 + 4 * walk : 5 + 4 * walk]])
            np.testing.assert_allclose(np.diff(path, axis=0), [schedule.matrix(6)[2 * number + walk]] * 4, atol=1e-12)


def test_effective_weights_of_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four parties are enumerated: each coalition's model is the sum of its members' rows, the mean of 3 rounds."""
    steps = np.array(steps_of_a_run(dpv.Schedule("replay", rounds=3, probes=2), 100, monkeypatch))
    sizes = np.array([bin(mask).count("1") for mask in range(16)])
    np.testing.assert_allclose(steps, sizes[:, None] * np.full((16, 3), 1 / 3), atol=1e-12)


def test_optimal_measures_the_gradients_variance() -> None:
    """With little noise the gradients' own variance dominates, and the weight moves to the own release."""
    from dpvalue.party import interleaved

    weights: list[float] = []
    original = interleaved._History.variance_ratio

    def spy(self: Any) -> float:
        weights.append(original(self))
        return weights[-1]

    train, test = classification(8)
    settings: dict[str, Any] = {
        "schedule": "optimal", "permutations": 12, "clip": 5.0, "learning_rate": 0.3, "noise": "fast",
        "progress": False,
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interleaved._History, "variance_ratio", spy)
        dpv.value(train, test, privacy=dpv.Privacy(epsilon=1e6, delta=1e-3), **settings)
        precise, weights[:] = list(weights), []
        dpv.value(train, test, privacy=dpv.Privacy(epsilon=0.1, delta=1e-5), **settings)
    assert precise[:2] == [0.0, 0.0]
    assert min(precise[2:]) > 10
    assert max(weights) < 1e-3
