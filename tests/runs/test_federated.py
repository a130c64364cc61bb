"""Federated learning: one global model, asked round by round, in one process, by messages, and through a ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import dpvalue as dpv
from dpvalue.data.parties import as_parties
from dpvalue.party.contributions import Contributions, Responder
from dpvalue.privacy import accounting
from dpvalue.protocol.messages import AtPoints, Query
from dpvalue.runs.federated import Learning, learn, learning_for, learning_of, prepare_learning
from dpvalue.runs.run import PreparedRun
from dpvalue.streams import Purpose, permutations
from tests.datasets import classification
from tests.federation import ask_each

SIZES = {"centre": 12, "east": 7, "north": 1, "south": 30}
PRIVATE, PUBLIC = classification(sum(SIZES.values()), classes=3, features=4, test=60)
GROUPS = np.repeat(list(SIZES), list(SIZES.values()))
ENGINE = dpv.Local(device="cpu", dtype="float64")
SCHEDULES = [dpv.Schedule("independent"), dpv.Schedule("decaying", burn_in=0.4)]
ROUNDS, ORDERS = 5, 6
Rows = tuple[NDArray[Any], NDArray[Any]]


def settings(**given: Any) -> dpv.Settings:
    own = {"privacy": dpv.Privacy(4.0, unit="record"), "noise": "fast", "learning_rate": 0.4, "clip": 1.0, "seed": 3}
    return dpv.Settings(engine=ENGINE, **{**own, **given})


def federated(private: Rows = PRIVATE, **given: Any) -> dpv.FederatedResult:
    return dpv.federated(
        private, PUBLIC, settings(**given), groups=GROUPS, rounds=ROUNDS, orders=ORDERS, progress=False
    )


def ready(**given: Any) -> PreparedRun:
    asked = settings(**given)
    counts = as_parties(PRIVATE, groups=GROUPS).counts(asked.privacy)
    return prepare_learning(dpv.Utility(*PUBLIC), asked, ROUNDS, *counts)


def at_home(private: Rows = PRIVATE, **given: Any) -> list[dpv.Party]:
    """One party after the other, each with its own rows alone."""
    X, y = private
    return [dpv.Party(name, X[name == GROUPS], y[name == GROUPS], engine=ENGINE, **given) for name in SIZES]


def by_messages(prepared: PreparedRun, parties: list[dpv.Party]) -> dpv.FederatedResult:
    """What a server finds that asks each party by a message, in the form of bytes, and reads bytes."""
    job = dpv.Job.from_bytes(prepared.job(list(SIZES)).to_bytes())

    def carried(party: dpv.Party) -> Callable[[dpv.Job, dpv.Request], dpv.Release]:
        def answer(job: dpv.Job, request: dpv.Request) -> dpv.Release:
            asked = dpv.Request.from_bytes(request.to_bytes())
            return dpv.Release.from_bytes(party.answer(job, asked).to_bytes())

        return answer

    ask = ask_each(job, list(SIZES), [carried(party) for party in parties])
    return learning_for(prepared, tuple(SIZES), ask).run(ORDERS)


def assert_same(one: dpv.FederatedResult, other: dpv.FederatedResult) -> None:
    assert one.names == other.names
    assert float((one.table - other.table).abs().max()) < 1e-12
    assert float((one.model - other.model).abs().max()) < 1e-12
    np.testing.assert_allclose(one.values["shapley"], other.values["shapley"], rtol=0, atol=1e-12)
    assert one.utility == pytest.approx(other.utility, abs=1e-12)


@pytest.mark.parametrize("unit", ["party", "record"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_single_parties_asked_by_messages_learn_what_one_process_learns(schedule: dpv.Schedule, unit: str) -> None:
    given: dict[str, Any] = {"schedule": schedule, "privacy": dpv.Privacy(4.0, unit=unit)}
    local = federated(**given)
    assert_same(local, by_messages(ready(**given), at_home(simulation=True)))
    X, y = PRIVATE
    moved = by_messages(ready(**given), at_home((X, np.where(GROUPS == "east", (y + 1) % 3, y)), simulation=True))
    assert float((moved.table - local.table).abs().max()) > 1e-9


def recorded(learning: Learning) -> tuple[Learning, list[tuple[Tensor, Tensor]]]:
    """The same learning, and a list that will hold where parties were asked, and what they released."""
    seen: list[tuple[Tensor, Tensor]] = []

    def ask(number: int, after: Tensor, asked: Query) -> Tensor:
        assert isinstance(asked, AtPoints)
        assert number == len(seen)
        assert asked.points.shape == (1, len(after[0]))
        assert asked.shares.tolist() == [1.0]
        release = learning.ask(number, after, asked)
        seen.append((asked.points[0], release))
        return release

    return replace(learning, ask=ask), seen


@pytest.mark.parametrize("schedule", [*SCHEDULES, dpv.Schedule("running-mean")], ids=str)
@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_plain_loops_over_the_releases_say_the_same(schedule: dpv.Schedule, metric: str) -> None:
    asked, parties = settings(schedule=schedule), as_parties(PRIVATE, groups=GROUPS)
    prepared = prepare_learning(dpv.Utility(*PUBLIC, metric=metric), asked, ROUNDS, *parties.counts(asked.privacy))
    learning, seen = recorded(learning_of(prepared.run(parties)))
    found = learning.run(ORDERS)
    features, labels = np.c_[PUBLIC[0], np.ones(len(PUBLIC[0]))], PUBLIC[1]

    def worth(theta: NDArray[Any]) -> float:
        outputs = features @ theta.reshape(3, 5).T
        if metric == "accuracy":
            return float((outputs.argmax(1) == labels).mean())
        return float((outputs[np.arange(len(labels)), labels] - np.log(np.exp(outputs).sum(1))).mean())

    n, theta = len(SIZES), np.zeros(15)
    combined, total, valued = [np.zeros(15)] * n, np.zeros(n), 0
    for t, (point, release) in enumerate(seen, start=1):
        np.testing.assert_allclose(point.numpy(), theta, rtol=0, atol=1e-12)
        own = {"independent": 1.0, "running-mean": 1 / t, "decaying": 0.75 - 0.7 * t / ROUNDS if t > 1 else 1.0}
        share = own[schedule.kind]
        combined = [share * release[i].numpy() + (1 - share) * combined[i] for i in range(n)]
        if t > round(ROUNDS * schedule.burn_in):
            valued += 1
            for order in permutations(3, Purpose.PERMUTATION, (t - 1) * ORDERS, ORDERS, n):
                before = worth(theta)
                for place, party in enumerate(order):
                    after = worth(theta - 0.4 * np.mean([combined[i] for i in order[: place + 1]], axis=0))
                    total[party] += after - before
                    before = after
        theta = theta - 0.4 * np.mean(combined, axis=0)
    np.testing.assert_allclose(found.values["shapley"], total / valued / ORDERS, atol=1e-9)
    np.testing.assert_allclose(found.model.numpy(), theta, atol=1e-12)
    np.testing.assert_allclose(found.table.numpy(), combined, atol=1e-12)
    assert found.utility == pytest.approx(worth(theta), abs=1e-9)
    assert found.estimates["shapley"].counts.tolist() == [valued * ORDERS] * n


def test_a_release_is_the_clipped_gradient_at_the_global_model_with_the_noise_of_all_rounds() -> None:
    prepared, parties = ready(), as_parties(PRIVATE, groups=GROUPS)
    learning, seen = recorded(learning_of(prepared.run(parties)))
    learning.run(ORDERS)
    multiplier = accounting.noise_multiplier(4.0, 5e-5, ROUNDS)
    assert prepared.choice.mechanism.noise_multiplier == pytest.approx(multiplier)
    X, y = np.c_[PRIVATE[0], np.ones(len(GROUPS))], PRIVATE[1]
    errors = []
    for point, release in seen:
        logits = X @ point.reshape(3, 5).T.numpy()
        residuals = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(3)[y]
        gradients = (residuals[:, :, None] * X[:, None]).reshape(len(X), 15)
        gradients /= np.maximum(np.linalg.norm(gradients, axis=1, keepdims=True), 1.0)
        for place, (name, size) in enumerate(SIZES.items()):
            clean = gradients[name == GROUPS].sum(0) / size
            errors.append((release[place].numpy() - clean) * size / multiplier)
    noise = np.array(errors)  # standard normal: 20 releases of 15 numbers
    assert abs(noise.mean()) < 4 / noise.size**0.5
    assert noise.std() == pytest.approx(1, abs=4 / (2 * noise.size) ** 0.5)


def test_the_plan_states_the_honest_epsilon_of_all_rounds() -> None:
    for accounted in ("composition", "poisson"):
        privacy = dpv.Privacy(1.0, accounting=accounted)
        given: dict[str, Any] = {"privacy": privacy, "schedule": dpv.Schedule("decaying")}
        planned = dpv.plan(len(SIZES), permutations=ROUNDS, **given)
        found = federated(**given)
        assert planned.guarantee is not None
        assert planned.guarantee.noise_multiplier == found.guarantee.noise_multiplier
        assert planned.guarantee.epsilon == found.guarantee.epsilon
        assert found.guarantee.noise_multiplier is not None
        honest = accounting.epsilon(found.guarantee.noise_multiplier, 5e-5, ROUNDS)
        assert found.guarantee.epsilon == pytest.approx(honest)
        assert found.guarantee.releases == ROUNDS
        if accounted == "poisson":
            assert honest > 1.5
            assert found.guarantee.claimed_epsilon == 1.0
            assert "claimed: epsilon = 1 (poisson accounting); really spent:" in str(planned)
            assert "The claim does not hold for releases that carry names" in str(found)


def made_secure(**given: Any) -> dict[str, Any]:
    return {"noise": "secure", "privacy": dpv.Privacy(1.0, unit="record"), **given}


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
def test_all_rounds_are_charged_before_the_first_and_answered_again_for_nothing(
    schedule: dpv.Schedule, tmp_path: Path
) -> None:
    ledger = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(1.3, unit="record"), "me")
    first = federated(**made_secure(ledger=ledger, schedule=schedule))
    entries = ledger.entries()
    assert [entry.kind for entry in entries] == ["reserved", *["release"] * ROUNDS]
    assert [entry.round for entry in entries] == [ROUNDS, *range(ROUNDS)]
    assert ledger.spent_epsilon == pytest.approx(1.0, abs=1e-6)
    again = federated(**made_secure(ledger=ledger, schedule=schedule))
    assert ledger.entries() == entries
    assert torch.equal(again.table, first.table)
    np.testing.assert_array_equal(again.values["shapley"], first.values["shapley"])
    assert "charged to a ledger" in str(first)
    assert "returned again" in str(again)
    other = dpv.Ledger(tmp_path / "ledger", purpose="another question")
    with pytest.raises(dpv.BudgetExceeded):
        federated(**made_secure(ledger=other, schedule=schedule))
    with pytest.raises(dpv.DpvalueError, match="already requested with other settings"):
        federated(**made_secure(ledger=ledger, schedule=schedule, learning_rate=0.3))
    assert ledger.entries() == entries


class Died(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("keeper", ["ledger", "checkpoint"])
def test_learning_that_died_goes_on_from_what_was_released(keeper: str, tmp_path: Path) -> None:
    if keeper == "ledger":
        kept: Any = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(1.01, unit="record"), "me")
    else:
        kept = tmp_path / "releases"
    run = ready(**made_secure(**{keeper: kept})).run(as_parties(PRIVATE, groups=GROUPS))
    seen: list[Tensor] = []

    def see(who: Tensor, release: Tensor) -> None:
        seen.append(release)
        if len(seen) == 2:
            raise Died

    with pytest.raises(Died):
        learn(replace(run, witness=see), ORDERS)
    if keeper == "ledger":  # what is left of the budget is for the rounds that are to come
        assert kept.spent_epsilon == pytest.approx(1.0, abs=1e-6)
        with pytest.raises(dpv.BudgetExceeded):
            federated(**made_secure(ledger=kept.with_purpose("meanwhile"), privacy=dpv.Privacy(0.5, unit="record")))
    before = list(seen)
    learn(replace(run, witness=lambda who, release: seen.append(release)), ORDERS)
    assert len(seen) == 2 + ROUNDS
    assert all(torch.equal(one, other) for one, other in zip(before, seen[2:4], strict=True))


def test_a_budget_for_some_of_the_rounds_is_refused_before_the_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ledger = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(0.9, unit="record"), "me")
    monkeypatch.setattr(Responder, "answer", lambda *_: pytest.fail("a row was read"))
    with pytest.raises(dpv.BudgetExceeded):
        federated(**made_secure(ledger=ledger))
    assert ledger.entries() == []


def test_parties_at_home_charge_their_own_ledgers_once(tmp_path: Path) -> None:
    parties = [
        at_home(ledger=dpv.Ledger.create(tmp_path / name, dpv.Privacy(1.01, unit="record"), name))[place]
        for place, name in enumerate(SIZES)
    ]
    prepared = ready(**made_secure())
    first = by_messages(prepared, parties)
    assert_same(first, by_messages(prepared, parties))
    for party in parties:
        assert party.ledger is not None
        assert [entry.kind for entry in party.ledger.entries()] == ["reserved", *["release"] * ROUNDS]
        assert party.ledger.spent_epsilon == pytest.approx(1.0, abs=1e-6)
    with pytest.raises(dpv.BudgetExceeded):
        by_messages(ready(**made_secure(seed=4)), parties)


def test_rows_are_read_through_releases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the mechanism's output held fixed, rows change nothing that comes out; the rate is searched in public."""
    release, read = Contributions.release, []

    def released(self: Contributions, clipped: Any, noise: Tensor | None, who: Tensor, grid: Any) -> Any:
        read.append(len(clipped))
        return release(self, torch.zeros_like(clipped), noise, who, grid)

    X, y = PRIVATE
    east = GROUPS == "east"
    worlds: list[Rows] = [
        (X, y),
        (np.where(east[:, None], np.nan, X), y),
        (np.where(east[:, None], 1e30, X), np.where(east, 7, y)),
        (np.zeros_like(X), np.zeros_like(y)),
    ]
    rate = federated(learning_rate="auto").learning_rate
    monkeypatch.setattr(Contributions, "release", released)
    first = federated()
    assert read == [len(SIZES)] * ROUNDS  # one release a party and round
    for world in worlds[1:]:
        assert_same(federated(world), first)
    monkeypatch.undo()
    for world in worlds[1:]:
        assert federated(world, learning_rate="auto").learning_rate == rate


def test_parties_with_wrong_labels_are_found_at_a_rate_from_the_public_rows() -> None:
    (X, y), public = classification(400, classes=3, features=4, test=300)
    groups = np.arange(400) // 40
    wrong = groups < 3
    found = dpv.federated(
        (X, np.where(wrong, (y + 1) % 3, y)), public, privacy=dpv.Privacy(4.0, unit="record"), noise="fast",
        groups=groups, rounds=10, orders=20, progress=False, semivalues=("shapley", "banzhaf"),
    )  # fmt: skip
    assert found.names == tuple(range(10))
    for name in ("shapley", "banzhaf"):
        values = found.values[name]
        assert values[:3].max() < values[3:].min()
    assert found.utility > -0.6
    assert 1e-3 < found.learning_rate <= 10


def test_what_federated_learning_does_not_do_is_refused() -> None:
    for schedule in (
        dpv.Schedule("decaying", block=2), dpv.Schedule("optimal"), dpv.Schedule("replay", rounds=ROUNDS),
        dpv.Schedule("lagged"),
    ):  # fmt: skip
        with pytest.raises(dpv.DpvalueError, match=r"federated learning takes the schedules"):
            federated(schedule=schedule)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"permutations": 10}, "permutations must not be given for federated learning"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1"),
        ({"orders": 0}, "orders must be a whole number of at least 1"),
    ]
    for given, message in refused:
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.federated(PRIVATE, PUBLIC, settings(), groups=GROUPS, progress=False, **given)
    with pytest.raises(dpv.DpvalueError, match="a job needs privacy"):
        ready(privacy=None).job(list(SIZES))
    with pytest.raises(dpv.DpvalueError, match="accounting must be 'composition'"):
        by_messages(ready(privacy=dpv.Privacy(1.0, accounting="poisson")), at_home(simulation=True))
