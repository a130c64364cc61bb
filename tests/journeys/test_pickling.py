"""Results, plans, tables and settings can be pickled and copied; private rows cannot."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.data.parties import as_parties
from dpvalue.runs.run import prepare
from tests.datasets import classification, images

TRAIN, TEST = classification(24)
GROUPS = np.repeat(np.arange(4), 6)
PRIVACY = dpv.Privacy(4.0, 1e-4, unit="record")
SETTINGS: dict[str, Any] = {"groups": GROUPS, "privacy": PRIVACY, "noise": "fast"}
Again = Callable[[Any], Any]


def pickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))  # noqa: S301


WAYS = pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])


def plain(given: Any) -> Any:
    """Numbers and texts alone, to be compared."""
    if isinstance(given, dict):
        return {name: plain(part) for name, part in given.items()}
    if isinstance(given, torch.Tensor):
        return given.numpy()
    return plain(vars(given)) if isinstance(given, dpv.games.Estimate | dpv.Guarantee) else given


def small_network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))


def early(n: int) -> Any:
    """All weight on the first position."""
    return np.eye(n)[0] * n


@pytest.fixture(scope="module")
def result() -> dpv.Result:
    kinds = ("shapley", "banzhaf", "beta(4,1)", "loo", dpv.Semivalue("early", early))
    return dpv.value(TRAIN, TEST, semivalues=kinds, progress=False, **SETTINGS)


@WAYS
@pytest.mark.parametrize("game", ["refit", "steps"])
def test_a_result_keeps_its_values_and_can_go_on(result: dpv.Result, again: Again, game: str) -> None:
    if game == "steps":
        result = dpv.value(TRAIN, TEST, game="steps", progress=False, **SETTINGS)
    found = again(result)
    assert found.semivalues == result.semivalues
    assert (found.guarantee, found.walks, found.converged) == (result.guarantee, result.walks, result.converged)
    for name, values in result.values.items():
        np.testing.assert_array_equal(found.values[name], values)
        np.testing.assert_array_equal(found.noise_std(2)[name], result.noise_std(2)[name])
    assert torch.equal(found.table.rows, result.table.rows)
    assert str(found.verdict(draws=2)) == str(result.verdict(draws=2))
    np.testing.assert_array_equal(
        found.revalue(TEST, progress=False).values["shapley"], result.revalue(TEST, progress=False).values["shapley"]
    )


@WAYS
@pytest.mark.parametrize("model", ["logistic", "cnn", small_network], ids=["logistic", "cnn", "network"])
def test_a_plan_releases_the_same(again: Again, model: Any) -> None:
    train, test = images(24) if model == "cnn" else (TRAIN, TEST)
    parties = dpv.Parties(*train, groups=GROUPS)
    plan = dpv.plan(parties, test, model=model, privacy=PRIVACY, noise="fast")
    found = again(plan)
    assert found == plan
    assert str(found) == str(plan)
    released, expected = (made.release(parties, progress=False) for made in (found, plan))
    assert torch.equal(released.rows, expected.rows)


@WAYS
def test_what_is_equal_stays_equal(again: Again, result: dpv.Result) -> None:
    verdict, comparison = result.verdict(draws=2), result.compare(0, 1, draws=2)
    equal = [
        dpv.Privacy(2.0), dpv.Schedule("replay", rounds=1), dpv.Projection(2, "utility"), dpv.Local(), dpv.plan(20),
        dpv.Settings(privacy=PRIVACY), result.guarantee, verdict, comparison, dpv.Problem(1, "age", "not a number"),
        *result.semivalues,
    ]  # fmt: skip
    for given in equal:
        found = again(given)
        assert found == given
        assert (type(found), repr(found)) == (type(given), repr(given))


@WAYS
def test_arrays_stay_as_they_are(again: Again, result: dpv.Result) -> None:
    learned = dpv.federated(TRAIN, TEST, groups=GROUPS, rounds=3, orders=2, privacy=None, progress=False)
    attack = dpv.MembershipAttack(np.array([0.5, 0.6]), result.guarantee, 0.7)
    curve, stable = dpv.tasks.removal_curve(result), dpv.tasks.rank_stability([[1.0, 2.0], [2.0, 1.0]], k=1)
    shares, intervals = result.shares(100.0, draws=2), result.intervals(draws=2)
    for given in (learned, attack, curve, stable, shares, intervals, result.estimates["shapley"], dpv.Utility(*TEST)):
        found = again(given)
        for name, part in vars(given).items():
            np.testing.assert_equal(plain(getattr(found, name)), plain(part))


@WAYS
def test_what_crosses_keeps_its_digest(again: Again) -> None:
    job = dpv.plan(dpv.Parties(*TRAIN, groups=GROUPS), TEST, privacy=PRIVACY).job()
    request = job.first_request(6)
    release = dpv.Party("a", *TRAIN).answer(job, job.first_request(24))
    for given in (job, request, release):
        assert again(given).digest == given.digest


@pytest.mark.parametrize("name", ["shapley", "banzhaf", "loo", "beta(4,1)", " Beta(0.5, 2) "])
def test_a_semivalue_is_pickled_by_its_name(name: str) -> None:
    kind = dpv.semivalue(name)
    assert dpv.semivalue(name) == kind
    assert pickled(kind) == kind
    assert b"lambda" not in pickle.dumps(kind)
    assert len(pickle.dumps(kind)) < 100
    np.testing.assert_array_equal(pickled(kind).position_weights(9), kind.position_weights(9))


def test_a_semivalue_with_a_lambda_is_copied_and_says_why_it_is_not_pickled(result: dpv.Result) -> None:
    kind = dpv.Semivalue("mine", lambda n: np.ones(n))
    for again in (copy.copy, copy.deepcopy):
        assert again(kind) == kind
    with pytest.raises(dpv.DpvalueError, match="the semivalue 'mine' cannot be pickled: its functions must be defined"):
        pickle.dumps(kind)
    with pytest.raises(dpv.DpvalueError, match="the semivalue 'mine' cannot be pickled"):
        pickle.dumps(result.revalue(TEST, semivalues=kind, progress=False))


def test_errors_are_pickled_with_their_numbers() -> None:
    found = pickled(dpv.BudgetExceeded(1.0, 2.0, 0.5))
    assert (found.spent_epsilon, found.requested_epsilon, found.remaining_epsilon) == (1.0, 2.0, 0.5)
    assert str(found) == str(dpv.BudgetExceeded(1.0, 2.0, 0.5))
    assert str(pickled(dpv.DpvalueError("one line"))) == "one line"


@WAYS
def test_a_ledger_is_opened_anew_with_its_checks(again: Again, tmp_path: Path) -> None:
    ledger = dpv.Ledger.create(tmp_path / "ledger", PRIVACY, "me", head=tmp_path / "head")
    found = again(ledger)
    assert found.head() == ledger.head()
    assert found.budget == PRIVACY
    kept = pickle.dumps(ledger)
    (tmp_path / "head").unlink()
    with pytest.raises(dpv.DpvalueError, match="does not exist: without it a rollback"):
        again(ledger)
    with pytest.raises(dpv.DpvalueError, match="does not exist: without it a rollback"):
        pickle.loads(kept)  # noqa: S301


@pytest.mark.parametrize("again", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("model", ["logistic", small_network], ids=["logistic", "network"])
def test_what_holds_rows_that_are_ready_to_contribute_is_not_pickled(again: Again, model: Any) -> None:
    parties = as_parties(TRAIN, groups=GROUPS)
    settings = dpv.Settings(privacy=PRIVACY, model=model, game="steps", clip=1.0, projection=None, learning_rate=0.1)
    prepared = prepare(dpv.Utility(*TEST), settings, *parties.counts(PRIVACY))
    run = prepared.run(parties)
    for held in (run.contributions, run) if again is not copy.copy else (run.contributions._rows,):
        with pytest.raises(dpv.DpvalueError, match="private rows cannot be pickled or copied"):
            again(held)


def test_a_plan_holds_no_private_row() -> None:
    secret = 1234567.25
    X = TRAIN[0].copy()
    X[3] = secret
    plan = dpv.plan(dpv.Parties(X, TRAIN[1], groups=GROUPS), TEST, privacy=PRIVACY)
    held = pickle.dumps(plan)
    assert TEST[0][0].astype(np.float32).tobytes() in held  # the public rows are
    for kind in (np.float32, np.float64):
        assert kind(secret).tobytes() not in held
    assert str(secret).encode() not in held


def test_nothing_that_holds_private_rows_prints_them() -> None:
    secret = 1234567.25
    X = np.full_like(TRAIN[0], secret)
    parties = dpv.Parties(X, TRAIN[1], groups=GROUPS)
    run = dpv.plan(parties, TEST, privacy=PRIVACY).prepared
    assert run is not None
    held = run.run(parties)
    for given in (parties, held, held.contributions, held.answering, dpv.Party("a", X, TRAIN[1])):
        assert "1234567" not in repr(given) + str(given)
        assert "1.2346e+06" not in repr(given)
