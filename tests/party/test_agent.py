"""The agent of a party: its policy decides, its ledger counts, and nobody learns from what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pandas as pd
import pytest
import torch

import dpvalue as dpv
from dpvalue.coordinator.state import Coordinator as Asking
from dpvalue.party import agent as texts
from dpvalue.party.agent import Refusal
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import AllowedModel, KnownCoordinator, Limits, Policy, Protection, read_policy
from dpvalue.protocol.archive import Key, open_seal
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from tests.federation import REFUSALS, Files, simulated, write_files

OPEN = Policy(Protection(epsilon=10.0), unsigned=True)
ROUNDS = {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return write_files(tmp_path)


def refused(work: Callable[[], object]) -> str:
    """The text that a coordinator gets."""
    with pytest.raises(Refusal) as caught:
        work()
    assert caught.value.public in REFUSALS
    return caught.value.public


def changed(job: Job, **changes: Any) -> bytes:
    return replace(job, **changes).to_bytes()


def test_weighing_says_what_would_happen_and_releases_nothing(files: Files) -> None:
    agent = files.agent("north")
    weighed = agent.assess(files.job().to_bytes())
    assert weighed.units == 90
    assert weighed.epsilon == pytest.approx(1.0, abs=1e-3)
    assert weighed.columns == ("a", "b", "c", "kind", "label")
    assert files.ledger("north").entries() == []


def test_the_policy_decides(files: Files) -> None:
    job = files.job()
    mechanism, privacy = job.mechanism, job.privacy

    def asked(content: bytes, **policy: Any) -> str:
        return refused(lambda: files.agent("north", replace(OPEN, **policy)).answer(content))

    forbidden = [
        asked(job.to_bytes(), protection=Protection(unit="party", epsilon=10.0)),
        asked(job.to_bytes(), protection=Protection(neighbours="replace", epsilon=10.0)),
        asked(job.to_bytes(), protection=Protection(epsilon=0.9)),
        asked(job.to_bytes(), protection=Protection(epsilon=10.0, delta=1e-6)),
        asked(job.to_bytes(), protection=Protection(epsilon=10.0, laws=("laplace",))),
        asked(job.to_bytes(), limits=Limits(numbers=3)),
        asked(job.to_bytes(), limits=Limits(units=91)),
        asked(job.to_bytes(), columns=("a", "b", "c", "label")),
        asked(job.to_bytes(), models=(AllowedModel("linear"),)),
        asked(job.to_bytes(), models=(AllowedModel("logistic", "another digest"),)),
        asked(changed(job, mechanism=replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2))),
        asked(changed(job, mechanism=replace(mechanism, clip=1e31))),
        asked(changed(job, origin=job.origin + float("nan"))),
        asked(changed(job, mechanism=replace(mechanism, clip=10**31))),
        asked(changed(job, origin=torch.full_like(job.origin, 1e-35))),
        asked(changed(job, model=replace(job.model, kind="elsewhere.code:run"))),
        asked(changed(job, model=replace(job.model, kind="custom"))),
        asked(changed(job, model=replace(job.model, digest="0" * 64))),
        asked(changed(job, about=replace(job.about, target="secret"))),
        asked(changed(job, privacy=replace(privacy, accounting="poisson", unit="party"),
                      mechanism=replace(mechanism, unit="party"))),
        asked(simulated(files)[1].to_bytes()),
    ]  # fmt: skip
    assert set(forbidden) == {texts.FORBIDDEN}
    assert asked(b"garbage") == texts.UNREADABLE
    assert asked(job.to_bytes()[:-1]) == texts.UNREADABLE
    assert files.ledger("north").entries() == []
    files.agent("north", replace(OPEN, limits=Limits(units=90))).answer(job.to_bytes())


def test_a_signature_that_is_taken_off_gains_nothing(files: Files) -> None:
    """A policy knows its coordinators or answers anybody; no job has a better chance without its signature."""
    office, lab, job = Key.new(), Key.new(), files.job()
    known = Policy(Protection(epsilon=10.0), coordinators=(KnownCoordinator("office", office.public),))
    for forbidden in (known, replace(known, protection=Protection(epsilon=0.9))):
        for content in (job.to_bytes(lab), job.to_bytes()):
            assert refused(lambda: files.agent("north", forbidden).answer(content)) == texts.UNKNOWN  # noqa: B023
    with pytest.raises(dpv.DpvalueError, match="must not name coordinators and set unsigned = true"):
        replace(known, unsigned=True)
    agent = files.agent("north", OPEN)
    signed = Release.from_bytes(agent.answer(job.to_bytes(lab)))
    assert Release.from_bytes(agent.answer(job.to_bytes())).digest == signed.digest
    assert [entry.purpose.split()[0] for entry in files.ledger("north").entries()] == ["unsigned"]
    small = files.agent("north", replace(OPEN, protection=Protection(epsilon=0.9)))
    assert refused(lambda: small.answer(job.to_bytes(lab))) == texts.FORBIDDEN
    assert refused(lambda: small.answer(job.to_bytes())) == texts.FORBIDDEN
    _, rounds = simulated(files, **ROUNDS)
    content, asked = rounds.to_bytes(lab), Request(rounds.digest, 0, *_first(rounds, files.sizes["west"]))
    west = replace(files.agent("west", OPEN), ledger=None, simulation=True)
    assert west.answer(content, asked.to_bytes()) == west.answer(rounds.to_bytes(), asked.to_bytes(office))


def _first(job: Job, units: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    own = job.first_request(units)
    return own.points, own.shares


def test_budgets_are_for_each_coordinator_and_for_all(files: Files) -> None:
    office, lab = Key.new(), Key.new()
    policy = Policy(
        Protection(epsilon=10.0),
        coordinators=(KnownCoordinator("office", office.public, epsilon=1.2), KnownCoordinator("lab", lab.public)),
    )
    first, second = files.job(), files.job(seed=1)
    files.ledger("west", epsilon=1.6)
    agent = files.agent("west", policy)
    assert refused(lambda: agent.answer(first.to_bytes())) == texts.UNKNOWN
    assert refused(lambda: agent.answer(first.to_bytes(Key.new()))) == texts.UNKNOWN
    agent.answer(first.to_bytes(office))
    assert refused(lambda: agent.answer(second.to_bytes(office))) == texts.SPENT
    agent.answer(first.to_bytes(office))  # the same again costs nothing
    agent.answer(second.to_bytes(lab))
    assert refused(lambda: agent.answer(files.job(seed=2).to_bytes(lab))) == texts.SPENT  # of all together
    assert [entry.purpose.split()[0] for entry in files.ledger("west").entries()] == ["office", "lab"]
    sets = replace(policy, coordinators=(KnownCoordinator("lab", lab.public, public_sets=("f" * 64,)),))
    assert refused(lambda: files.agent("north", sets).answer(second.to_bytes(lab))) == texts.FORBIDDEN
    known = replace(policy, coordinators=(KnownCoordinator("lab", lab.public, public_sets=(second.about.utility,)),))
    files.agent("north", known).answer(second.to_bytes(lab))


def test_two_jobs_at_once_cannot_both_spend_what_a_coordinator_has_for_one(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Key.new()
    policy = Policy(Protection(epsilon=10.0), coordinators=(KnownCoordinator("office", office.public, epsilon=1.2),))
    files.ledger("west", epsilon=10.0)
    both, read = Barrier(2, timeout=1.0), PartyFile.read

    def slowly(self: PartyFile, job: Job) -> Any:
        with suppress(BrokenBarrierError):  # as it must, since the other has to wait
            both.wait()
        return read(self, job)

    monkeypatch.setattr(PartyFile, "read", slowly)

    def ask(seed: int) -> str:
        try:
            files.agent("west", policy).answer(files.job(seed=seed).to_bytes(office))
        except Refusal as error:
            return error.public
        return "answered"

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(ask, (0, 1))) == sorted([texts.SPENT, "answered"])
    assert len(files.ledger("west").entries()) == 1


def test_a_ledger_that_cannot_be_held_alone_is_refused_in_a_fixed_text(files: Files) -> None:
    agent, path = files.agent("south"), files.ledger("south").path
    path.with_name(f".{path.name}.lock").mkdir()
    assert refused(lambda: agent.answer(files.job().to_bytes())) == texts.UNABLE
    assert files.ledger("south").entries() == []


def test_a_repeated_request_gets_the_same_bytes(files: Files) -> None:
    key, content = Key.new(), files.job().to_bytes()
    agent = files.agent("south", key=key)
    answer = agent.answer(content)
    assert agent.answer(content) == answer
    assert len(files.ledger("south").entries()) == 1
    seal = open_seal(answer, "it")
    assert seal is not None
    assert (seal.by, seal.head) == (key.public, files.ledger("south").entries()[0].digest)
    frame = pd.read_csv(files.own("south"))
    frame.iloc[:-1].to_csv(files.own("south"), index=False)
    assert refused(lambda: agent.answer(content)) == texts.BEFORE  # with one record fewer: M stays as it was told


def test_requests_are_those_of_the_job(files: Files, tmp_path: Path) -> None:
    """In two rounds, with secure noise: a changed request for a round that was answered is refused."""
    _, seeded = simulated(files, **ROUNDS)
    job = replace(seeded, simulation=None)
    office, stranger = Key.new(), Key.new()
    content = job.to_bytes(office)
    policy = Policy(Protection(epsilon=10.0), coordinators=(KnownCoordinator("office", office.public),))
    coordinator = Asking(tmp_path / "study", content, None, office)
    agents = {name: files.agent(name, policy, key=Key.new()) for name in files.sizes}
    for agent in agents.values():
        coordinator.receive(agent.answer(content))
    coordinator.close()
    asked = coordinator.pending_requests()["east"]
    agent, good = agents["east"], Request.from_bytes(asked)
    assert good.head == files.ledger("east").entries()[-1].digest
    for bad in (
        good.to_bytes(), good.to_bytes(stranger), replace(good, job="0" * 64).to_bytes(office),
        replace(good, round=2).to_bytes(office), replace(good, round=0).to_bytes(office), asked[:-1],
        replace(good, points=good.points[:, :1]).to_bytes(office),
        replace(good, points=good.points + 1e31).to_bytes(office),
        replace(good, points=good.points * 1e-40).to_bytes(office),
        replace(good, points=good.points.repeat(1000, 1)).to_bytes(office),
    ):  # fmt: skip
        assert refused(lambda bad=bad: agent.answer(content, bad)) == texts.WRONG  # type: ignore[misc]
    release = agent.answer(content, asked)
    assert agent.answer(content, asked) == release
    assert Release.from_bytes(release).round == 1
    other = replace(good, points=good.points + 0.1).to_bytes(office)
    assert refused(lambda: agent.answer(content, other)) == texts.BEFORE
    assert [entry.kind for entry in files.ledger("east").entries()] == ["reserved", "release", "release"]
    assert files.ledger("east").spent_epsilon == pytest.approx(1.0, abs=1e-3)


def test_an_old_copy_of_the_ledger_is_noticed_by_what_a_coordinator_echoes(files: Files, tmp_path: Path) -> None:
    _, seeded = simulated(files, **ROUNDS)
    job = replace(seeded, simulation=None)
    office = Key.new()
    content = job.to_bytes(office)
    policy = Policy(Protection(epsilon=10.0), coordinators=(KnownCoordinator("office", office.public),))
    coordinator = Asking(tmp_path / "study", content, None, office)
    files.agent("east", policy)
    shutil.copy(tmp_path / "east.ledger", tmp_path / "old")
    for name in files.sizes:
        coordinator.receive(files.agent(name, policy, key=Key.new()).answer(content))
    coordinator.close()
    asked = coordinator.pending_requests()["east"]
    now = tmp_path / "now"
    shutil.copy(tmp_path / "east.ledger", now)
    shutil.copy(tmp_path / "old", tmp_path / "east.ledger")
    assert refused(lambda: files.agent("east", policy).answer(content, asked)) == texts.BEFORE
    shutil.copy(now, tmp_path / "east.ledger")
    files.agent("east", policy).answer(content, asked)


def test_rounds_are_reserved_before_the_first(files: Files) -> None:
    """Another job cannot use up what a study in two rounds was promised."""
    _, seeded = simulated(files, **ROUNDS)
    job = replace(seeded, simulation=None)
    files.ledger("west", epsilon=1.4)
    agent = files.agent("west", replace(OPEN, protection=Protection(epsilon=10.0)))
    agent.answer(job.to_bytes())
    assert refused(lambda: agent.answer(files.job().to_bytes())) == texts.SPENT
    request = Request(job.digest, 1, torch.zeros(3, job.size, dtype=torch.float64))
    agent.answer(job.to_bytes(), request.to_bytes())


@pytest.mark.parametrize("unit", ["record", "person"])
def test_nothing_but_the_numbers_depends_on_rows(files: Files, monkeypatch: Any, unit: str) -> None:
    """With noise held fixed at what replaces it, one odd row changes neither words nor bytes, but for its share."""
    given: dict[str, Any] = {"unit": unit}
    person = "who" if unit == "person" else None
    frame = pd.read_csv(files.own("west"))
    frame["who"] = [f"p{row}" for row in range(len(frame))]
    frame.to_csv(files.own("west"), index=False)
    job = files.job(**given)
    policy = Policy(Protection(unit=unit, epsilon=10.0, person=person), unsigned=True)
    from dpvalue.party.contributions import Contributions

    monkeypatch.setattr(Contributions, "release", lambda self, clipped, noise, who, grid: torch.zeros_like(clipped))
    seen = set()
    for number, cell in enumerate(("1.0", "1e400", "nonsense", '"open', "", "nan", "1,2", "\x00")):
        lines = [",".join(map(str, row)) for row in frame.to_numpy().tolist()]
        lines[3] = f"{cell},0.1,0.2,u,yes,p3"
        files.own("west").write_bytes("\n".join([",".join(frame.columns), *lines, ""]).encode())
        ledger = dpv.Ledger.create(
            files.folder / f"{number}.ledger", dpv.Privacy(10.0, unit=unit), "west", person=person
        )
        agent = texts.Agent("west", PartyFile(files.own("west"), person), ledger, policy)
        weighed = agent.assess(job.to_bytes())
        seen.add((agent.answer(job.to_bytes()), weighed.units, weighed.epsilon, str(ledger.spent_epsilon)))
    assert len(seen) == (1 if unit == "record" else 2)  # a line that is no record has no person: their number is public


def test_a_policy_is_read_strictly(tmp_path: Path) -> None:
    key = Key.new().public
    path = tmp_path / "policy.toml"
    path.write_text(f"""
unsigned = false
columns = ["a", "label"]
[protection]
unit = "person"
person = "patient"
parties_per_person = 2
epsilon = 0.5
delta = 1e-6
laws = ["gaussian"]
[limits]
rounds = 3
tick = 2.5
[[coordinators]]
name = "office"
key = "{key}"
epsilon = 2
[[models]]
name = "logistic"
""")
    policy = read_policy(path)
    assert policy.protection == Protection("person", "zero_out", 0.5, 1e-6, ("gaussian",), "patient", 2)
    assert policy.coordinators == (KnownCoordinator("office", key, 2),)
    assert policy.limits == Limits(rounds=3, tick=2.5)
    assert policy.models == (AllowedModel("logistic"),)
    for text, why in {
        "": "must name coordinators",
        "unsigned = true\n[protection]\nepsilom = 1": "unknown option protection.epsilom",
        "unsigned = true\nunsinged = true": "unknown option unsinged",
        "unsigned = true\n[protection]\nepsilon = -1": "protection.epsilon must be a positive",
        'unsigned = true\n[protection]\nunit = "row"': "unit must be one of",
        'unsigned = true\n[protection]\nunit = "person"': "person needs unit person",
        f'[[coordinators]]\nname = "a b"\nkey = "{key}"': "name must be a word",
        '[[coordinators]]\nname = "a"\nkey = "x"': "a public key must be",
        f'[[coordinators]]\nname = "a"\nkey = "{key}"\nepsilo = 1': "unknown option coordinators.epsilo",
        2 * f'[[coordinators]]\nname = "a"\nkey = "{key}"\n': "must have its own name",
        'unsigned = true\n[[models]]\nname = "x"\nfactory = "os:system"': "needs the digest of its model",
        "unsigned =": "cannot be read as TOML",
        f'unsigned = true\n[[coordinators]]\nname = "a"\nkey = "{key}"': "must not name coordinators and set unsigned",
        "unsigned = true\n[protection]\ndelta = false": "protection.delta must be above 0 and below 1, got False",
        "unsigned = true\n[protection]\ndelta = 0": "protection.delta must be above 0 and below 1, got 0",
        "unsigned = true\n[protection]\nepsilon = true": "protection.epsilon must be a positive number, got True",
        "unsigned = true\n[protection]\nparties_per_person = true": "must be a whole number of at least 1, got True",
        "unsigned = true\n[limits]\ntick = 1e-320": "limits.tick must be from 0.001 to 86400 seconds",
        "unsigned = true\n[limits]\ntick = 86401": "limits.tick must be from 0.001 to 86400 seconds",
        "unsigned = true\n[limits]\nunits = 0": "limits.units must be a whole number of at least 1, got 0",
        f"unsigned = true\n[limits]\nrounds = {2**63}": r"limits.rounds must be a whole number below 2\^63",
    }.items():
        path.write_text(text)
        with pytest.raises(dpv.DpvalueError, match=why):
            read_policy(path)


def small_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))


def test_a_model_of_ones_own_comes_from_what_the_party_has_installed(files: Files) -> None:
    _, seeded = simulated(files, model=small_net, game="steps", projection=dpv.Projection(1))
    job = Job.from_bytes(replace(seeded, simulation=None, about=replace(seeded.about, target="label")).to_bytes())
    assert job.model.kind == "custom"
    named = AllowedModel("custom", job.model.digest, "tests.party.test_agent:small_net")
    assert refused(lambda: files.agent("north", OPEN).answer(job.to_bytes())) == texts.FORBIDDEN
    wrong = replace(named, factory="tests.party.test_agent:nothing")
    for model in (wrong, replace(named, factory="nowhere:nothing"), replace(named, digest="0" * 64)):
        policy = replace(OPEN, models=(model,))
        assert refused(lambda policy=policy: files.agent("north", policy).answer(job.to_bytes())) == texts.FORBIDDEN  # type: ignore[misc]
    release = files.agent("north", replace(OPEN, models=(named,))).answer(job.to_bytes())
    assert Release.from_bytes(release).job == job.digest


def test_keys_sign_what_they_say(tmp_path: Path, files: Files) -> None:
    key, other = Key.new(), Key.new()
    key.save(tmp_path / "my.key")
    assert Key.read(tmp_path / "my.key") == key
    assert (tmp_path / "my.key").stat().st_mode & 0o077 == 0
    with pytest.raises(dpv.DpvalueError, match="is never overwritten"):
        other.save(tmp_path / "my.key")
    assert key.secret.hex() not in repr(key)
    (tmp_path / "bad.key").write_text(key.public)
    with pytest.raises(dpv.DpvalueError, match="is not a key"):
        Key.read(tmp_path / "bad.key")
    job = files.job()
    content = job.to_bytes(key)
    assert Job.from_bytes(content).digest == job.digest  # a seal is no part of what it seals
    seal = json.loads(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["dpvalue"])
    assert seal["seal"]["by"] == key.public
    lying = job.archive.pack(*job.parts(), {**seal["seal"], "by": other.public})
    taken = files.job(seed=3).archive.pack(*files.job(seed=3).parts(), seal["seal"])
    headed = job.archive.pack(*job.parts(), {**seal["seal"], "head": "x"})
    broken = job.archive.pack(*job.parts(), {**seal["seal"], "signature": "zz"})
    for forged in (lying, taken, headed, broken):
        with pytest.raises(dpv.DpvalueError, match="is invalid"):
            Job.open_sealed(forged)
