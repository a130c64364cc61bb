"""Data sets and clients as parties: the federated simulation, and the code of the table in small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.experiments.paper import EXPERIMENTS, use_cases
from dpvalue.experiments.paper.datasets import MissingDataError, load_hospitals
from dpvalue.experiments.paper.federated import (
    ROUND_DECAYING,
    ROUND_IID,
    ROUND_NO_DP,
    round_rate,
    run_rounds,
    value_rounds,
)
from dpvalue.experiments.paper.methods import (
    IID,
    PaperMethod,
    no_dp,
    open_run,
    run_method,
    running_mean,
)
from dpvalue.experiments.paper.problem import PaperProblem, make_problem, make_sets
from dpvalue.experiments.paper.readings import AS_PRINTED
from dpvalue.experiments.paper.trials import TrialScale, stored_trials
from dpvalue.experiments.paper.valuing import run_methods
from dpvalue.protocol.schedule import Schedule

RESULTS = Path(__file__).parents[2] / "results"


def clients(n: int = 12, per_party: int = 6, wrong: int = 4) -> PaperProblem:
    """Two well separated classes; the labels of the first parties are all wrong."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, n * per_party + 80)
    X = np.where(y[:, None] == 1, 1.0, -1.0) + generator.normal(0, 0.8, (len(y), 4))
    changed = np.arange(n) < wrong
    labels = np.where(np.repeat(changed, per_party), 1 - y[: n * per_party], y[: n * per_party])
    return PaperProblem((X[: n * per_party], labels), (X[n * per_party :], y[n * per_party :]), changed, per_party)


def test_one_walk_serves_all_burn_ins() -> None:
    problem = make_problem("digits", None, 40, 100, seed=0, share=0.3)
    methods = [no_dp(walks=10), IID, running_mean(), running_mean(0.5), running_mean(0.8)]
    together = run_methods(methods, problem, 20, seed=3, learning_rate=0.02, semivalues=("shapley", "loo"))
    assert list(together) == ["no DP", "i.i.d.", "X*", "Y* q=0.5", "Y* q=0.8"]
    for method in methods:
        alone = run_method(method, problem, 20, seed=3, learning_rate=0.02, semivalues=("shapley", "loo"))
        for kind, values in together[method.name].values.items():
            np.testing.assert_allclose(values, alone[0].values[kind], rtol=1e-5)
        assert together[method.name].cost["epsilon"] == alone[1]["epsilon"]


def test_parties_of_several_rows_are_changed_as_a_whole() -> None:
    X = np.arange(200.0)[:, None]
    y = np.arange(200) % 5
    problem = make_sets((X, y), parties=20, per_party=6, public=50, seed=1, share=0.3)
    assert problem.n == problem.parties.n == 20
    assert problem.changed.sum() == 6
    own = (problem.train[0][:, 0].astype(int) % 5).reshape(20, 6)
    differs = problem.train[1].reshape(20, 6) != own
    assert (differs == problem.changed[:, None]).all()
    assert len(problem.test[1]) == 50
    assert not set(problem.train[0][:, 0]) & set(problem.test[0][:, 0])
    with pytest.raises(dpv.DpvalueError, match="200 rows are fewer than 40 parties of 6, and 50 public ones"):
        make_sets((X, y), parties=40, per_party=6, public=50, seed=1, share=0.3)
    with pytest.raises(dpv.DpvalueError, match="3 public rows, drawn at random, do not hold every class"):
        make_sets((X, y), parties=20, per_party=6, public=3, seed=1, share=0.3)


def test_images_are_standardised_by_the_public_rows() -> None:
    generator = np.random.default_rng(0)
    images = generator.normal([[[2.0]], [[-3.0]]], [[[1.0]], [[5.0]]], (60, 2, 4, 4))
    problem = make_sets((images, np.arange(60) % 3), 10, 3, 30, 0, 0.0).standardised()
    np.testing.assert_allclose(problem.test[0].mean((0, 2, 3)), 0, atol=1e-12)
    np.testing.assert_allclose(problem.test[0].std((0, 2, 3)), 1)
    assert np.abs(problem.train[0].mean((0, 2, 3))).max() > 1e-3
    centred = problem.standardised(mean_image=True)
    np.testing.assert_allclose(centred.test[0].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(centred.train[0] - problem.train[0], -problem.test[0].mean(0)[None].repeat(30, 0))


def test_a_federation_is_the_appendix_round_by_round() -> None:
    """Against a literal loop in numpy: combined releases, round values, and the global model."""
    problem, k, rate = clients(n=5, wrong=2), 4, 0.3
    method = PaperMethod("decaying", Schedule("decaying", burn_in=0.25), "none")
    run = open_run([method], problem, k, 1.0, metric="accuracy", learning_rate=rate, seed=1)
    (X, y), (X_test, y_test) = problem.train, problem.test
    features, test = np.c_[X, np.ones(len(X))], np.c_[X_test, np.ones(len(X_test))]
    theta, combined = np.zeros((2, 5)), np.zeros((5, 2, 5))
    literal = np.zeros(5)
    for t in range(1, k + 1):
        logits = features @ theta.T
        residuals = np.exp(logits) / np.exp(logits).sum(1, keepdims=True) - np.eye(2)[y]
        gradients = (residuals[:, :, None] * features[:, None]).reshape(5, 6, 2, 5).mean(1)
        own = 1.0 if t == 1 else 0.75 - 0.7 * t / k
        combined = own * gradients + (1 - own) * combined
        if t > 1:
            for order in dpv.streams.permutations(1, dpv.streams.Purpose.PERMUTATION, (t - 1) * 7, 7, 5):
                before = ((test @ theta.T).argmax(1) == y_test).mean()
                for place, party in enumerate(order):
                    model = theta - rate * combined[order[: place + 1]].mean(0)
                    after = ((test @ model.T).argmax(1) == y_test).mean()
                    literal[party] += (after - before) / (7 * (k - 1))
                    before = after
        theta = theta - rate * combined.mean(0)
    found = run_rounds(run, 7)
    np.testing.assert_allclose(found.values["shapley"], literal, atol=1e-6)
    assert found.cost["final utility"] == pytest.approx(((test @ theta.T).argmax(1) == y_test).mean())


def test_a_federation_spends_its_budget_over_all_rounds() -> None:
    problem = clients()
    for method in (ROUND_IID, ROUND_DECAYING):
        run = open_run([method], problem, 10, 1.0, metric="accuracy", learning_rate=0.01, seed=0)
        assert run.choice.releases == 10
        spent = dpv.privacy.accounting.epsilon(run.choice.mechanism.noise_multiplier, 5e-5, 10)
        assert run_rounds(run, 3).cost["epsilon"] == pytest.approx(spent)
    honest = open_run([replace(ROUND_DECAYING, noise="honest")], problem, 10, 1.0, metric="accuracy", seed=0)
    assert run_rounds(honest, 3).cost["epsilon"] == 1.0


@pytest.mark.parametrize("noise", ["fast", "secure"])
def test_a_federation_adds_the_noise_that_it_claims(noise: str) -> None:
    """What an observer sees, less what the same clients release without noise."""
    seen: dict[str, list[torch.Tensor]] = {"none": [], "honest": []}
    for kind, releases in seen.items():
        method = replace(ROUND_DECAYING, noise=kind)
        own = {"clip": 1.0, "learning_rate": 1e-9, "noise": noise, "seed": 0}
        run = open_run([method], clients(), 20, 1.0, metric="accuracy", **own)

        def see(who: torch.Tensor, release: torch.Tensor, to: list[torch.Tensor] = releases) -> None:
            to.append(release)

        run_rounds(replace(run, witness=see), 2)
    errors = torch.stack(seen["honest"]) - torch.stack(seen["none"])
    assert errors.shape[:2] == (20, 12)
    claimed = run.choice.mechanism.noise_multiplier  # of the last run, the honest one
    assert float(errors.std()) == pytest.approx(claimed, rel=0.1)
    assert float(errors[0].std()) == pytest.approx(float(errors[-1].std()), rel=0.4)


def test_a_federation_refuses_what_it_does_not_do() -> None:
    method = replace(ROUND_DECAYING, schedule=Schedule("decaying", block=2))
    run = open_run([method], clients(), 4, 1.0, metric="accuracy", learning_rate=0.1)
    with pytest.raises(dpv.DpvalueError, match="no blocks"):
        run_rounds(run, 2)


def test_which_methods_share_a_learning_rate() -> None:
    problem = make_problem("digits", None, 40, 100, seed=0, share=0.3)
    methods = [no_dp(walks=2), IID, running_mean(0.5)]
    rates = [one.cost["learning_rate"] for one in run_methods(methods, problem, 20).values()]
    assert rates[1] == rates[2] != rates[0]
    fixed = run_methods(methods, problem, 20, reading=AS_PRINTED.at(0.05))
    assert [one.cost["learning_rate"] for one in fixed.values()] == [0.05] * 3


def test_spare_rows_are_for_the_search_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made_images(tmp_path)
    case = replace(use_cases.CASES["federated-mnist"], k=2, n=4, per_party=2, public=30, spare=50, orders=1)
    seen: dict[str, set[int]] = {"searched": set(), "valued": set()}

    def searched(noise: str, problem: PaperProblem, *rest: Any, **settings: Any) -> float:
        seen["searched"].add(len(problem.test[0]))
        return round_rate(noise, problem, *rest, **settings)

    def valued(method: PaperMethod, problem: PaperProblem, *rest: Any, **settings: Any) -> Any:
        seen["valued"].add(len(problem.test[0]))
        return value_rounds(method, problem, *rest, **settings)

    monkeypatch.setattr(use_cases, "round_rate", searched)
    monkeypatch.setattr(use_cases, "value_rounds", valued)
    monkeypatch.setattr(use_cases, "run_methods", lambda *rest, **settings: {})
    found = use_cases.make_trials(case, TrialScale(quick=False, data=str(tmp_path)), [0])[0]["readings"]
    assert [*found] == [reading.name for reading in case.readings]
    assert all([*methods] == ["no DP", "i.i.d.", "correlated"] for methods in found.values())
    assert seen == {"searched": {80}, "valued": {30}}


def test_wrong_clients_are_found_and_the_rate_is_searched_in_public() -> None:
    problem = clients()
    rate = round_rate("none", problem, 6, 1.0, seed=0)
    assert rate > 1e-4
    other = replace(problem, train=(np.zeros_like(problem.train[0]), problem.train[1]))
    assert round_rate("none", other, 6, 1.0, seed=0) == rate  # no private row is read
    run = open_run([ROUND_NO_DP], problem, 6, 1.0, metric="loss", learning_rate=rate, seed=0)
    values = run_rounds(run, 20).values["shapley"]
    assert values[problem.changed].max() < values[~problem.changed].min()


@pytest.mark.parametrize("name", ["sets-mnist", "federated-mnist"])
def test_a_use_case_must_show_what_the_page_says(name: str) -> None:
    def trials(ours: float, correlated: float = 0.7) -> list[dict[str, Any]]:
        walked = {"no DP": {"auc": 0.9}, "i.i.d.": {"auc": 0.6}, "correlated": {"auc": correlated}}
        readings = {reading.name: walked for reading in use_cases.CASES[name].readings}
        return [{"readings": readings, "methods": {"dpvalue, equal noise": {"auc": ours}}}]

    check = EXPERIMENTS[name].check
    check(trials(0.8), False)
    check(trials(0.5), True)
    with pytest.raises(dpv.DpvalueError, match=r"equal noise has an AUC of 0\.500, not above 0\.600"):
        check(trials(0.5), False)
    with pytest.raises(dpv.DpvalueError, match=r"correlated has an AUC of 0\.550, not above 0\.600"):
        check(trials(0.8, 0.55), False)


@pytest.mark.parametrize("name", use_cases.CASES)
def test_correlated_noise_is_ahead_in_every_use_case(name: str) -> None:
    """In the committed trials, at the fitted rate, by more than two standard errors where there are several."""
    trials = stored_trials(EXPERIMENTS[name], TrialScale(quick=False, data=None), RESULTS)
    reading = use_cases.CASES[name].readings[-1].name
    found = [one["readings"][reading] for one in trials]
    gains = np.array([one["correlated"]["auc"] - one["i.i.d."]["auc"] for one in found])
    assert len(gains) == EXPERIMENTS[name].trials
    error = gains.std(ddof=1) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    assert gains.mean() > 2 * error


def test_hospitals(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"processed\.cleveland\.data.*archive\.ics\.uci\.edu"):
        load_hospitals(tmp_path)
    place = tmp_path / "heart-disease"
    place.mkdir()
    for number, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        row = ",".join([str(float(number)), "?", *["1.0"] * 11, str(number)])
        (place / f"processed.{name}.data").write_text(f"{row}\n{row}\n")
    X, y, hospital = load_hospitals(tmp_path)
    assert X.shape == (8, 13)
    assert np.isnan(X[:, 1]).all()
    assert y.tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert hospital.tolist()[::2] == ["cleveland", "hungarian", "switzerland", "va"]
    for damaged in ("1,2,3\n", "", "1,2\n1\n", "a,b\n"):
        (place / "processed.va.data").write_text(damaged)
        with pytest.raises(dpv.DpvalueError, match="is damaged"):
            load_hospitals(tmp_path)


def made_images(folder: Path) -> None:
    """Small images in MNIST's format: a bright column that depends on the class."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 1000)
    images = generator.integers(0, 60, (1000, 8, 8))
    for shift in range(2):
        images[np.arange(1000), :, 2 * y + shift] += 180
    pixels = images.astype(np.uint8)
    np.savez(folder / "mnist.npz", x_train=pixels, y_train=y, x_test=pixels[:1], y_test=y[:1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sets-mnist", "federated-mnist"])
def test_use_cases_in_small(name: str, tmp_path: Path) -> None:
    made_images(tmp_path)
    trial = EXPERIMENTS[name].trial(TrialScale(quick=True, data=str(tmp_path)), 0)
    methods, printed = trial["methods"], trial["readings"]["as printed"]
    assert methods["dpvalue, equal noise"]["epsilon"] == printed["i.i.d."]["epsilon"] > 1
    assert methods["dpvalue, equal noise"]["auc"] > 0.9
    assert methods["dpvalue, honest"]["auc"] > 0.8
    assert methods["refit, honest"]["epsilon"] == 1.0
    run = use_cases.CASES[name].run
    assert ("longest" in trial["readings"][run.name]["correlated"]) is not run.binds
    table = EXPERIMENTS[name].show([json.loads(json.dumps(trial))], tmp_path / "figure")
    assert "| lost, paper |" in table
    assert ("no bound (eps = " in table) is not run.binds
    assert (tmp_path / "figure.svg").is_file()
