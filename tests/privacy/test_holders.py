"""A ledger accepts runs of its own unit and holding alone, whichever command or function is handed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from click import Command, Group
from click.testing import Result
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.coordinator.study import make_study
from dpvalue.party.agent import SPENT, Agent, Refusal
from dpvalue.party.party import PartyFile
from dpvalue.party.policy import KnownCoordinator, Policy, Protection
from dpvalue.privacy import laws
from dpvalue.protocol.archive import Key
from dpvalue.protocol.job import Job
from dpvalue.runs.config import RunConfig

UNITS = ("party", "record", "person")
WRONG = [(own, asked) for own in UNITS for asked in UNITS if own != asked]
PUBLIC = ("--test", "public.csv", "--target", "label")


def here(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def frame(rows: int, seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, 2))
    label = np.where(X[:, 0] + generator.normal(size=rows) > 0, "yes", "no")
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": label})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two persons of 50 rows each, in four wards; and the public file."""
    monkeypatch.chdir(tmp_path)
    frame(80, 1).to_csv("public.csv", index=False)
    rows = np.arange(100)
    frame(100, 2).assign(who=rows // 50, ward=rows % 4, site=rows % 2).to_csv("persons.csv", index=False)
    return tmp_path


def new_ledger(unit: str, path: str = "my.ledger", epsilon: float = 10.0) -> dpv.Ledger:
    whose: dict[str, dict[str, Any]] = {"party": {"parties": ["me"]}, "record": {}, "person": {"person": "who"}}
    spread = 2 if unit == "person" else 1
    budget = dpv.Privacy(epsilon, 1e-5, unit, parties_per_person=spread)
    return dpv.Ledger.create(path, budget, "me", **whose[unit])


def refused_in_one_line(done: Result, remedy: str) -> None:
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert remedy in done.stderr, done.stderr


def test_one_person_of_many_rows_is_not_charged_as_a_row(folder: Path) -> None:
    """The attack: rows as parties on a ledger per person, where one person of 50 rows loses 50 times the charge."""
    assert here("ledger", "new", "pl.ledger", "--unit", "person", "--epsilon", 10, "--name", "me").exit_code == 0
    done = here("run", "persons.csv", *PUBLIC, "--ledger", "pl.ledger", "--epsilon", 4, "--force")
    refused_in_one_line(done, "--unit person")
    assert "is per person, and this run protects each party" in done.stderr
    assert dpv.Ledger("pl.ledger").entries() == []
    assert not (folder / "results").exists()


def commands(command: Command, name: str = "") -> Iterator[tuple[str, Command]]:
    if isinstance(command, Group):
        for inner, below in command.commands.items():
            yield from commands(below, f"{name} {inner}".strip())
    else:
        yield name, command


JOBS: dict[str, Job] = {}


def job_of(unit: str) -> Job:
    if unit not in JOBS:
        spread = {"person": "who", "parties_per_person": 2} if unit == "person" else {}
        config = RunConfig(test="public.csv", target="label", sizes=(40, 60), unit=unit, **spread)  # type: ignore[arg-type]
        JOBS[unit] = make_study(config).job
    return JOBS[unit]


def policy_of(unit: str) -> str:
    ids = 'person = "who"\nparties_per_person = 2\n' if unit == "person" else ""
    return f'unsigned = true\n[protection]\nunit = "{unit}"\nepsilon = 9.0\n{ids}'


@pytest.mark.parametrize(("own", "asked"), WRONG)
def test_every_command_refuses_a_ledger_of_another_unit(own: str, asked: str, folder: Path) -> None:
    ledger = new_ledger(own)
    job_of(asked).save("study.job")
    Path("policy.toml").write_text(policy_of(asked))
    Path("ca").write_text("")
    options: tuple[object, ...] = ("--unit", asked, "--group", "ward", "--person", "who")
    if asked == "person":
        options += ("--parties-per-person", 2)
    home = ("--name", "me", "--ledger", "my.ledger", "--policy", "policy.toml")
    reached = ("--superlink", "127.0.0.1:9", "--ca", "ca", "--node-key", "ca")
    typed: dict[str, tuple[object, ...]] = {
        "run": ("persons.csv", *PUBLIC, *options, "--ledger", "my.ledger", "--force"),
        "party check": ("study.job", "persons.csv", *home),
        "party answer": ("study.job", "persons.csv", *home),
        "party serve": ("persons.csv", *home, *reached),
    }
    takers = {
        name
        for name, command in commands(typer.main.get_command(app))
        if any(parameter.name == "ledger" for parameter in command.params)
    }
    assert takers == set(typed)
    for name, arguments in typed.items():
        done = here(*name.split(), *arguments)
        refused_in_one_line(done, f"unit {own}")
        assert f"is per {own}, and this run protects each {asked}" in done.stderr, name
    by_ledger = here("party", "answer", "study.job", "persons.csv", *home[:4])
    refused_in_one_line(by_ledger, f"unit must be {own!r}, the job has {asked!r}")
    assert ledger.entries() == []
    assert sorted(path.suffix for path in folder.iterdir() if path.suffix == ".release") == []


def private_rows() -> dict[str, Any]:
    return {"groups": "ward", "persons": "who", "target": "label", "progress": False}


@pytest.mark.parametrize(("own", "asked"), WRONG)
def test_every_function_refuses_a_ledger_of_another_unit(own: str, asked: str, folder: Path) -> None:
    ledger = new_ledger(own)
    rows, public = pd.read_csv("persons.csv").drop(columns="site"), pd.read_csv("public.csv")
    spread = 2 if asked == "person" else 1
    privacy = dpv.Privacy(1.0, 1e-5, asked, parties_per_person=spread)
    quiet = private_rows()
    silent = {name: given for name, given in quiet.items() if name != "progress"}
    own_rows = rows[["a", "b"]], rows["label"], rows["who"], "who"
    calls: dict[str, Callable[[], object]] = {
        "value": lambda: dpv.value(rows, public, privacy=privacy, ledger=ledger, **quiet),
        "release": lambda: dpv.release(rows, public, privacy=privacy, ledger=ledger, **quiet),
        "federated": lambda: dpv.federated(rows, public, privacy=privacy, ledger=ledger, rounds=2, **quiet),
        "plan": lambda: dpv.plan(rows, public, privacy=privacy, ledger=ledger, **silent),
        "audit": lambda: dpv.audit(rows, public, privacy=privacy, ledger=ledger, **silent),
        "membership_attack": lambda: dpv.membership_attack(
            rows, public, privacy=privacy, ledger=ledger, noise="secure"
        ),
        "public_loss": lambda: dpv.baselines.public_loss(rows, public, privacy=privacy, ledger=ledger, **silent),
        "Settings": lambda: dpv.Settings(privacy=privacy, ledger=ledger),
        "Party": lambda: dpv.Party("me", *own_rows, ledger=ledger).answer(job_of(asked)),
        "Agent": lambda: agent_of(asked, ledger).answer(job_of(asked).to_bytes()),
    }
    entries = {name: getattr(dpv, name) for name in dpv.__all__} | {"public_loss": dpv.baselines.public_loss}
    errors = dpv.DpvalueError, dpv.BudgetExceeded
    functions = {name: entry for name, entry in entries.items() if callable(entry) and entry not in errors}
    takers = {name for name, entry in functions.items() if "ledger" in signature(entry).parameters}
    assert takers | {"Agent"} == set(calls)
    for name, call in calls.items():
        with pytest.raises(dpv.DpvalueError, match=f"is per {own}, and this run protects each {asked}") as caught:
            call()
        assert f"unit {own}" in str(caught.value), name
        assert "\n" not in str(caught.value)
    assert ledger.entries() == []


def agent_of(unit: str, ledger: dpv.Ledger, name: str = "me") -> Agent:
    ids = ("who", 2) if unit == "person" else (None, 1)
    policy = Policy(Protection(unit, epsilon=9.0, person=ids[0], parties_per_person=ids[1]), unsigned=True)
    return Agent(name, PartyFile(Path("persons.csv"), ids[0]), ledger, policy)


@pytest.mark.parametrize("attack", ["audit", "membership_attack"])
def test_what_releases_nothing_is_charged_to_no_ledger(attack: str, folder: Path) -> None:
    ledger = dpv.Ledger.create("my.ledger", dpv.Privacy(9.0, 1e-5), "me")
    rows, public = ((rows[["a", "b"]].to_numpy(), rows["label"].to_numpy()) for rows in (frame(100, 2), frame(60, 3)))
    settings = dpv.Settings(privacy=dpv.Privacy(1.0, 1e-5), ledger=ledger)
    with pytest.raises(dpv.DpvalueError, match="ledger must not be given to"):
        getattr(dpv, attack)(rows, public, settings)
    assert ledger.entries() == []


def test_a_column_that_names_the_party_is_checked(folder: Path) -> None:
    """The same names, dealt to the rows by another column, in files, or by hand: each is refused."""
    rows = pd.read_csv("persons.csv")
    for name in ("0", "1"):
        rows[rows["site"] == int(name)].to_csv(f"{name}.csv", index=False)
    made = here("ledger", "new", "my.ledger", "--party-column", "site", "--epsilon", 9, "--name", "me")
    assert "for parties of the column 'site'" in made.output, made.output
    assert "for parties of the column 'site'" in here("ledger", "show", "my.ledger").output
    ledger = dpv.Ledger("my.ledger")
    other = rows.assign(site=(rows["site"] + rows["ward"] // 2) % 2)  # the names stay, the column is another
    other.rename(columns={"site": "team", "ward": "site"}).to_csv("dealt.csv", index=False)
    charged = (*PUBLIC, "--ledger", "my.ledger", "--force")
    for given, found in (
        (["persons.csv"], "rows as parties"),
        (["persons.csv", "--group", "ward"], "them in 'ward'"),
        (["dealt.csv", "--group", "team"], "them in 'team'"),
        (["0.csv", "1.csv"], "no party column"),
    ):
        done = here("run", *given, *charged)
        refused_in_one_line(done, "accepts only runs with --group site")
        assert f"this run has {found}" in done.stderr
    test = pd.read_csv("public.csv")
    by_hand = rows[["a", "b", "label"]]
    settings: dict[str, Any] = {"target": "label", "privacy": dpv.Privacy(1.0, 1e-5), "ledger": ledger}
    with pytest.raises(dpv.DpvalueError, match="this run has no party column"):
        dpv.release(by_hand, test, groups=rows["site"].to_numpy(), progress=False, **settings)
    party = dpv.Party("0", by_hand[["a", "b"]], by_hand["label"], ledger=ledger)
    with pytest.raises(dpv.DpvalueError, match="this run has no party column"):
        party.answer(job_of("party"))
    assert ledger.entries() == []
    named = rows[["a", "b", "label", "site"]]
    table = dpv.release(named, test, groups="site", progress=False, **settings)
    assert "per party, neighbours zero_out, parties of the column 'site'" in str(table.guarantee)
    assert len(ledger.entries()) == 1


def test_that_a_name_stands_for_the_same_rows_is_said_to_be_a_promise(folder: Path) -> None:
    made = here("ledger", "new", "my.ledger", "--party", "0", "--party", "1", "--epsilon", 9, "--name", "me")
    assert "the holder promises that a name stands for the same rows in all runs" in made.output
    rows, test = pd.read_csv("persons.csv")[["a", "b", "label", "site"]], pd.read_csv("public.csv")
    table = dpv.release(
        rows, test, groups="site", target="label", privacy=dpv.Privacy(1.0, 1e-5), ledger=dpv.Ledger("my.ledger"),
        progress=False,
    )  # fmt: skip
    assert "provided that each party name stands for the same rows in all runs" in str(table.guarantee)
    for wrong in (("--party-column", "site"), ("--party", "0", "--party-column", "x")):
        unit = here("ledger", "new", "wrong.ledger", "--unit", "record", *wrong, "--name", "me")
        refused_in_one_line(unit, "must be given for unit party and no ")
    refused_in_one_line(
        here("ledger", "new", "wrong.ledger", "--party-column", "", "--name", "me"), "party_column must"
    )


@pytest.mark.parametrize("unit", UNITS)
def test_a_ledger_at_home_bears_the_name_that_answers(unit: str, folder: Path) -> None:
    """Cedar's ledger is not charged for birch, by any command or function."""
    job_of(unit).save("study.job")
    whose: dict[str, tuple[str, ...]] = {
        "party": ("--party", "cedar"), "record": (), "person": ("--person", "who", "--parties-per-person", "2"),
    }  # fmt: skip
    new = here("ledger", "new", "c.ledger", "--unit", unit, "--epsilon", 9, "--name", "cedar", *whose[unit])
    assert new.exit_code == 0, new.output
    home, ledger = ("study.job", "persons.csv", "--ledger", "c.ledger"), dpv.Ledger("c.ledger")
    Path("policy.toml").write_text(policy_of(unit))
    Path("ca").write_text("")
    served = ("--policy", "policy.toml", "--superlink", "127.0.0.1:9", "--ca", "ca", "--node-key", "ca")
    remedy = "name must be one of the parties of the ledger 'cedar', cedar" if unit == "party" else "must be 'cedar'"
    for arguments in (
        ("answer", *home, "--name", "birch"),
        ("check", *home, "--name", "birch"),
        ("serve", *home[1:], *served, "--name", "birch"),
    ):
        refused_in_one_line(here("party", *arguments), remedy)
    rows = pd.read_csv("persons.csv")
    party = dpv.Party("birch", rows[["a", "b"]], rows["label"], rows["who"], "who", ledger=ledger)
    for work in (
        lambda: party.answer(job_of(unit)),
        lambda: agent_of(unit, ledger, "birch").answer(job_of(unit).to_bytes()),
    ):
        with pytest.raises(dpv.DpvalueError, match=remedy):
            work()
    assert ledger.entries() == []
    checked = here("party", "check", *home)  # as the ledger's holder
    assert "Nothing was released." in checked.output, checked.output
    assert here("party", "answer", *home, "--name", "cedar").exit_code == 0
    assert len(ledger.entries()) == 1


def test_one_ledger_does_not_answer_one_job_under_two_names(folder: Path) -> None:
    ledger = dpv.Ledger.create("my.ledger", dpv.Privacy(9.0, 1e-5), "me", parties=["cedar", "birch"])
    rows = pd.read_csv("persons.csv")
    parties = {name: dpv.Party(name, rows[["a", "b"]], rows["label"], ledger=ledger) for name in ("cedar", "birch")}
    parties["cedar"].answer(job_of("party"))
    with pytest.raises(dpv.DpvalueError, match="this ledger already answered the job as 'cedar'"):
        parties["birch"].answer(job_of("party"))
    assert len(ledger.entries()) == 1


def home_ledger(name: str) -> dpv.Ledger:
    budget = dpv.Privacy(1.0, 1e-5, "person", parties_per_person=2)
    return dpv.Ledger.create(f"{name}.ledger", budget, name, person="who")


def test_a_person_in_two_sites_stays_within_what_was_promised(folder: Path) -> None:
    """Both are in the same two sites, at home: what both send is within the budget, by the noise that was added."""
    config = RunConfig(
        test="public.csv", target="label", sizes=(2, 2), unit="person", parties_per_person=2, epsilon=1.0, delta=1e-5,
        game="steps",
    )  # fmt: skip
    job = make_study(replace(config, mechanism="gaussian")).job
    rows = pd.read_csv("persons.csv")
    spent, losses = [], []
    for site in ("0", "1"):
        own = rows[rows["site"] == int(site)]
        own.to_csv(f"{site}.csv", index=False)
        ledger = home_ledger(site)
        policy = Policy.of_ledger(ledger.budget, "who")
        agent = Agent(site, PartyFile(Path(f"{site}.csv"), "who"), ledger, policy)
        if site == "0":
            agent.answer(job.to_bytes())
        else:
            dpv.Party(site, own[["a", "b"]], own["label"], own["who"], "who", ledger=ledger).answer(job)
        spent.append(ledger.spent_epsilon)
        losses += [
            (entry.charge.law, entry.charge.noise_multiplier, job.rounds) for entry in ledger.entries() if entry.charge
        ]
        again = replace(job, about=replace(job.about, utility="another set"))
        with pytest.raises(dpv.BudgetExceeded):
            dpv.Party(site, own[["a", "b"]], own["label"], own["who"], "who", ledger=ledger).answer(again)
    together = laws.total_epsilon(losses, 1e-5)  # each site made so many releases, and the person is in all of them
    assert spent == pytest.approx([1.0, 1.0], abs=1e-3)
    assert together == pytest.approx(1.0, abs=1e-3)
    local = home_ledger("local")
    dpv.release(
        rows.drop(columns="ward"), pd.read_csv("public.csv"), privacy=replace(local.budget, mechanism="gaussian"),
        ledger=local, groups="site", persons="who", target="label", game="steps", progress=False,
    )  # fmt: skip
    assert local.spent_epsilon == pytest.approx(1.0, abs=1e-3)
    charges = [entry.charge for entry in local.entries() if entry.charge]
    at_home = [entry.charge for entry in dpv.Ledger("0.ledger").entries() if entry.charge]
    assert [(c.releases, c.noise_multiplier) for c in charges] == [(c.releases, c.noise_multiplier) for c in at_home]


def test_a_coordinators_own_limit_counts_every_party_of_a_person(folder: Path) -> None:
    """What one coordinator may spend is weighed with the same charge."""
    office, ledger = Key.new(), dpv.Ledger.create(
        "my.ledger", dpv.Privacy(9.0, 5e-5, "person", parties_per_person=2), "me", person="who"
    )  # fmt: skip
    protection = Protection("person", epsilon=9.0, person="who", parties_per_person=2)
    for epsilon, allowed in ((0.95, False), (1.01, True)):
        policy = Policy(protection, coordinators=(KnownCoordinator("office", office.public, epsilon=epsilon),))
        agent = Agent("me", PartyFile(Path("persons.csv"), "who"), ledger, policy)
        content = job_of("person").to_bytes(office)
        if allowed:
            agent.answer(content)
        else:
            with pytest.raises(Refusal) as caught:
                agent.answer(content)
            assert caught.value.public == SPENT
    assert ledger.spent_epsilon == pytest.approx(1.0, abs=1e-3)


def test_a_simulation_is_not_added_up(folder: Path) -> None:
    train, test = ((rows[["a", "b"]], rows["label"]) for rows in (frame(100, 2), frame(60, 3)))
    secure = dpv.release(train, test, progress=False).guarantee
    fast = dpv.release(train, test, noise="fast", progress=False).guarantee
    assert dpv.privacy.total_epsilon([secure, secure], 5e-5) > 1.0
    for runs in ([fast], [secure, fast]):
        with pytest.raises(dpv.DpvalueError, match="must be of runs with secure noise: a simulation"):
            dpv.privacy.total_epsilon(runs, 5e-5)
