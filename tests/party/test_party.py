"""A party's side of its own: alone, by messages, each party releases what it would among all others in one process."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import dpvalue as dpv
from dpvalue.engine.evaluator import Walker
from dpvalue.progress import silent
from dpvalue.protocol.archive import as_text
from dpvalue.protocol.messages import AtPoints
from dpvalue.runs.rounds import Rounds, require_answer
from dpvalue.runs.run import PreparedRun, prepare
from tests.datasets import classification
from tests.federation import ask_each

SIZES = {"north": 1, "south": 40, "east": 7, "west": 0, "centre": 12}
ENGINE = dpv.Local(device="cpu", dtype="float64")


def rows() -> tuple[dict[str, Any], Any]:
    (X, y), public = classification(60, classes=3, features=4, test=40)
    cuts = np.cumsum(list(SIZES.values()))
    own = {}
    for name, start, stop in zip(SIZES, [0, *cuts[:-1]], cuts, strict=True):
        persons = [f"{name} {row // 2}" for row in range(start, stop)]
        own[name] = {"X": X[start:stop], "y": y[start:stop], "persons": persons}
    return own, public


def together(own: dict[str, Any]) -> dpv.Parties:
    """All rows in one place; a party without rows is there by one without a label."""
    parts = [pd.DataFrame(part["X"]).assign(y=part["y"], who=part["persons"], site=name) for name, part in own.items()]
    frame = pd.concat(parts, ignore_index=True)
    return dpv.Parties(frame[[0, 1, 2, 3]].to_numpy(), frame["y"].to_numpy(), frame["site"], frame["who"], "who")


def prepared(own: dict[str, Any], public: Any, **given: Any) -> PreparedRun:
    settings = dpv.Settings(engine=ENGINE, **{"noise": "fast", "seed": 3, **given})
    return prepare(dpv.Utility(*public), settings, *together(own).counts(settings.privacy))


@cache
def prepared_for_records(game: str) -> PreparedRun:
    """Of the rows above; nothing changes what was prepared."""
    return prepared(*rows(), privacy=dpv.Privacy(4.0, unit="record"), game=game)


def request_to(ready: PreparedRun, job: dpv.Job, name: str = "south") -> dpv.Request:
    """The first round's question to one party; under the refit game each is asked with weights of its own."""
    points, request = ready.choice.points, job.first_request(SIZES[name])
    if points.dim() == 3:
        points = points[:, sorted(party for party, size in SIZES.items() if size).index(name)]
    assert bool((request.points == points).all())  # a job asks a party of a size of the plan what the plan would ask
    return request


def by_messages(ready: PreparedRun, parties: dict[str, dpv.Party]) -> torch.Tensor:
    """The table that a server gets which asks each party by a message, in the form of bytes, and reads bytes."""
    names = sorted(parties)
    job = dpv.Job.from_bytes(ready.job(names).to_bytes())

    def answer(name: str) -> Any:
        def carried(job: dpv.Job, request: dpv.Request) -> dpv.Release:
            asked = dpv.Request.from_bytes(request.to_bytes())
            return dpv.Release.from_bytes(parties[name].answer(job, asked).to_bytes())

        return carried

    choice, settings = ready.choice, ready.situation.settings
    count, probes = choice.schedule.shape(settings.permutations)
    rounds = Rounds(
        walker=Walker(choice.walk_model, choice.initial, choice.learning_rate, ENGINE),
        parties=len(names),
        seed=settings.seed,
        rounds=count,
        probes=probes,
        start=AtPoints(choice.points, choice.shares),
        ask=ask_each(job, names, [answer(name) for name in names]),
    )
    return rounds.run(silent)


@pytest.mark.parametrize("unit", ["party", "record", "person"])
@pytest.mark.parametrize("given", [
    {"game": "refit"}, {"game": "steps"},
    {"projection": None, "schedule": dpv.Schedule("replay", rounds=3, probes=4)},
    {"schedule": dpv.Schedule("lagged", rounds=2, probes=5), "permutations": 10},
    {"projection": dpv.Projection(2, "classes")}, {"projection": dpv.Projection(1, "loss")},
], ids=["refit", "steps", "rounds", "lagged", "classes", "score"])  # fmt: skip
def test_single_parties_one_by_one_make_the_table_of_a_local_run(unit: str, given: dict[str, Any]) -> None:
    own, public = rows()
    own.pop("west")  # in one process a party without rows is not there at all
    ready = prepared(own, public, privacy=dpv.Privacy(4.0, unit=unit), **given)
    assert (ready.choice.method.name == "refit") == (given == {"game": "refit"})
    local = ready.run(together(own)).release(silent)[0]
    parties = {
        name: dpv.Party(name, **part, person_column="who", simulation=True, engine=ENGINE) for name, part in own.items()
    }
    table = by_messages(ready, parties)
    assert local.names == tuple(sorted(parties))
    assert float((table - local.rows).abs().max()) < 1e-12
    other = dict(own)
    other["east"] = {**own["east"], "y": (own["east"]["y"] + 1) % 3}
    moved = by_messages(
        ready, {name: dpv.Party(name, **part, simulation=True, engine=ENGINE) for name, part in other.items()}
    )
    changed = (moved - table).abs().amax(1) > 1e-9
    if ready.choice.releases == 1:  # in later rounds the others are asked at other models
        assert changed.tolist() == [name == "east" for name in sorted(parties)]


@pytest.mark.parametrize("game", ["refit", "steps"])
def test_secure_noise_has_the_law_of_the_mechanism(game: str) -> None:
    own, public = rows()
    ready = prepared(own, public, privacy=dpv.Privacy(1.0, unit="record"), noise="secure", game=game)
    job = ready.job(sorted(SIZES))
    request = request_to(ready, job)
    drawn = torch.stack([
        dpv.Party("south", **own["south"], engine=ENGINE).answer(job, request).numbers for _ in range(300)
    ])[:, 0]  # fmt: skip
    expected = float(job.mechanism.noise_std(torch.tensor([40]))[0]) * job.mechanism.scale.gain
    assert float(drawn.std()) == pytest.approx(expected, rel=0.2)
    empty = dpv.Party("west", **own["west"], simulation=True, engine=ENGINE)
    assert bool(empty.answer(job, request).numbers.isfinite().all())  # a party without rows releases noise


@pytest.mark.parametrize("game", ["refit", "steps"])
def test_what_crosses_is_the_same_bytes_after_a_file(game: str, tmp_path: Path) -> None:
    own, public = rows()
    ready = prepared_for_records(game)
    job = ready.job(sorted(SIZES))
    request = request_to(ready, job)
    release = dpv.Party("south", **own["south"], simulation=True, engine=ENGINE).answer(job, request)
    for thing in (job, request, release):
        thing.save(tmp_path / "file")
        again = type(thing).load(tmp_path / "file")
        assert again.to_bytes() == thing.to_bytes()
        assert again.digest == thing.digest
        content = (tmp_path / "file").read_bytes()
        (tmp_path / "file").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(dpv.DpvalueError, match=r"altered|truncated"):
            type(thing).load(tmp_path / "file")
    with pytest.raises(dpv.DpvalueError, match="of a job, got 2 of a 'request'"):
        dpv.Job.from_bytes(request.to_bytes())
    assert str(public[0][0, 0]).encode() not in job.to_bytes()


@pytest.mark.parametrize("game", ["refit", "steps"])
def test_a_party_answers_nothing_but_its_job(game: str) -> None:
    own, _ = rows()
    ready = prepared_for_records(game)
    job, party = ready.job(sorted(SIZES)), dpv.Party("south", **own["south"], simulation=True, engine=ENGINE)
    good = request_to(ready, job)
    quiet = replace(job, mechanism=replace(job.mechanism, noise_multiplier=job.mechanism.noise_multiplier / 2))
    wide = torch.zeros(1, job.size + 1)
    for asked, request, message in (
        (job, replace(good, job="other"), "not of this job"),
        (job, replace(good, round=job.rounds), "round must be below"),
        (job, replace(good, points=wide, shares=torch.ones(1)), "points must have"),
        (quiet, replace(good, job=quiet.digest), "must be at least"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message):
            party.answer(asked, request)
    with pytest.raises(dpv.DpvalueError, match="points must be finite"):
        replace(good, points=good.points * float("nan"))


def test_a_party_adds_laplace_noise_to_one_number_alone() -> None:
    """Of several, one unit moves the sum of their sizes by more than the norm: what a hostile server might ask for."""
    own, public = rows()
    ready = prepared(own, public, projection=None, clip=1.0, schedule=dpv.Schedule("replay", rounds=1))
    fair, budget = ready.job(sorted(SIZES)), dpv.Privacy(1.0, delta=0)
    job = replace(fair, mechanism=replace(fair.mechanism, law="laplace", noise_multiplier=1.0), privacy=budget)
    request = dpv.Request(job.digest, 0, ready.choice.points, ready.choice.shares)
    with pytest.raises(dpv.DpvalueError, match="laplace noise is for one number, got 15 to release"):
        dpv.Party("south", **own["south"], simulation=True, engine=ENGINE).answer(job, request)


@pytest.mark.parametrize("game", ["refit", "steps"])
def test_the_server_takes_no_answer_of_another_round_party_or_shape(game: str) -> None:
    own, _ = rows()
    ready = prepared_for_records(game)
    job = ready.job(sorted(SIZES))
    request = request_to(ready, job)
    good = dpv.Party("south", **own["south"], simulation=True, engine=ENGINE).answer(job, request)
    require_answer(good, job, request, "south")
    for wrong in (
        replace(good, party="north"), replace(good, round=1), replace(good, request="x"), replace(good, job="x"),
        replace(good, numbers=good.numbers * float("inf")), replace(good, numbers=torch.zeros(job.size + 1)),
    ):  # fmt: skip
        with pytest.raises(dpv.DpvalueError):
            require_answer(wrong, job, request, "south")


def test_a_ledger_at_home_is_charged_once_and_gives_the_same_bytes(tmp_path: Path) -> None:
    own, public = rows()
    schedule = dpv.Schedule("replay", rounds=2, probes=2)
    ready = prepared(
        own, public, privacy=dpv.Privacy(1.0, unit="record"), noise="secure", schedule=schedule, projection=None
    )
    job = ready.job(sorted(SIZES))
    ledger = dpv.Ledger.create(tmp_path / "mine", dpv.Privacy(1.001, unit="record"), "south")
    party = dpv.Party("south", **own["south"], ledger=ledger, engine=ENGINE)
    first = dpv.Request(job.digest, 0, ready.choice.points, ready.choice.shares)
    answer = party.answer(job, first)
    assert party.answer(job, first).to_bytes() == answer.to_bytes()
    assert [entry.kind for entry in ledger.entries()] == ["reserved", "release"]
    assert ledger.spent_epsilon == pytest.approx(1.0, abs=2e-3)  # both rounds, from the first on: none is left halfway
    with pytest.raises(dpv.DpvalueError, match="already requested with other settings"):
        party.answer(job, replace(first, points=first.points + 1))
    second = dpv.Request(job.digest, 1, torch.zeros(2, job.size))
    party.answer(job, second)
    assert ledger.spent_epsilon == pytest.approx(1.0, abs=2e-3)
    another = replace(job, about=replace(job.about, utility="another set"))
    with pytest.raises(dpv.BudgetExceeded):
        party.answer(another, replace(first, job=another.digest))
    assert len(ledger.entries()) == 3


@pytest.mark.parametrize("game", ["refit", "steps"])
def test_a_hostile_job_is_refused_before_a_row_is_read(game: str) -> None:
    """A negative norm would clip nothing, and with one that is no number every comparison would be false."""
    ready = prepared_for_records(game)
    written, tensors = ready.job(sorted(SIZES)).parts()
    header = json.loads(as_text(written))

    def asked(**changes: Any) -> None:
        """What a party does with a job; its rows cannot be read, so that nothing must get as far."""
        job = dpv.Job.of_parts({**header, **changes}, tensors)
        request = dpv.Request(job.digest, 0, torch.zeros(1, job.size), torch.ones(1))
        dpv.Party("south", None, None, simulation=True, engine=ENGINE).answer(job, request)

    with pytest.raises(dpv.DpvalueError, match="the party's features"):  # a fair job gets as far as the rows
        asked()
    hostile: dict[str, list[Any]] = {
        "clip": [-1.0, 0.0, float("nan"), float("inf"), None, "1", True, [1]],
        "noise_multiplier": [-9.0, 0.0, float("nan"), float("inf"), 1e-9, "9"],
        "unit": ["party", "nobody", None], "neighbours": ["replace", "none"], "law": ["none", None], "rule": ["none"],
        "scale": [None, {"gain": float("nan")}, {"centre": "0"}, {"other": 1.0}],
    }  # fmt: skip
    for name, values in hostile.items():
        for value in values:
            with pytest.raises(dpv.DpvalueError) as caught:
                asked(mechanism={**header["mechanism"], name: value})
            assert "the party's features" not in str(caught.value), (name, value)
    for statistic in (
        {"name": "other"}, {"name": None}, {"distance": 1.0}, {"name": "description", "distance": 0.0},
        {"name": "description", "distance": -1.0}, {"name": "description", "distance": float("nan")},
        {"name": "description", "distance": "1"}, {"name": "gradient", "other": 1},
    ):  # fmt: skip
        with pytest.raises(dpv.DpvalueError) as caught:
            asked(statistic=statistic)
        assert "the party's features" not in str(caught.value), statistic
    whole, score = tensors, {"name": "score"}
    for numbers, fair in ((1, score), (3, {"name": "description", "distance": 2.0})):  # and so do those for either
        points = whole["course.points"][:, :, :1].expand(-1, -1, numbers)
        tensors = {**whole, "basis": whole["basis"][:1], "course.points": points}
        with pytest.raises(dpv.DpvalueError, match="the party's features"):
            asked(statistic=fair)
    tensors = {**whole, "basis": whole["basis"][:1].repeat(2, 1)}  # two numbers are no score
    with pytest.raises(dpv.DpvalueError, match="score needs a basis of one direction"):
        asked(statistic=score)
    tensors = {name: tensor for name, tensor in whole.items() if name != "basis"}
    for fair in (score, {"name": "description", "distance": 1.0}):
        with pytest.raises(dpv.DpvalueError, match=f"{fair['name']} needs a basis"):
            asked(statistic=fair)
    tensors = whole
    for name in ("encoding", "model", "privacy", "rounds", "dtype", "about", "model_digest", "statistic"):
        for value in (None, -1, {}, [], True):
            with pytest.raises(dpv.DpvalueError) as caught:
                asked(**{name: value})
            assert "the party's features" not in str(caught.value), (name, value)


def test_a_server_cannot_choose_noise_that_it_knows() -> None:
    own, public = rows()
    ready = prepared(own, public, privacy=dpv.Privacy(4.0, unit="record"))
    job = ready.job(sorted(SIZES))
    request = request_to(ready, job)
    with pytest.raises(dpv.DpvalueError, match="the job must not have seeded noise"):
        dpv.Party("south", **own["south"], engine=ENGINE).answer(job, request)


def test_without_a_ledger_a_round_is_answered_once() -> None:
    """A second draw would cost a second time, and nobody would count it."""
    own, public = rows()
    ready = prepared(own, public, privacy=dpv.Privacy(1.0, unit="record"), noise="secure")
    job, party = ready.job(), dpv.Party("south", **own["south"], engine=ENGINE)
    request = request_to(ready, job)
    assert party.answer(job, request).to_bytes() == party.answer(job, request).to_bytes()
    with pytest.raises(dpv.DpvalueError, match="round 0 of this job was already requested with other settings"):
        party.answer(job, replace(request, points=request.points + 1))
