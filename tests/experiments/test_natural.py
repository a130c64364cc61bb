"""The natural benchmark: its cells and their halves, its problems, its truths, its baselines and its tables."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, Ridge

import dpvalue as dpv
from dpvalue.experiments.consortium import __main__ as command
from dpvalue.experiments.consortium.averaging import averaged_values
from dpvalue.experiments.consortium.methods import DELTA
from dpvalue.experiments.consortium.natural.cells import (
    DEVELOPMENT,
    HALF_OF,
    JUDGING,
    NATURAL_CELLS,
    NaturalCell,
    chosen_natural,
)
from dpvalue.experiments.consortium.natural.methods import BUDGETS, EXACT, METHODS, Budget, effective_epsilon
from dpvalue.experiments.consortium.natural.page import write_natural_page
from dpvalue.experiments.consortium.natural.problems import HIDDEN, OTHER_SHARE, OWNER, TWIN, WRONG, make_natural
from dpvalue.experiments.consortium.natural.stored import Said, read_natural_truths, read_said
from dpvalue.experiments.consortium.natural.tables import tables
from dpvalue.experiments.consortium.natural.truth import (
    BOOSTED,
    LINEAR,
    LOSSES,
    NaturalTruth,
    boosted_losses,
    retrain_natural,
)
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.paper.datasets import HOSPITALS
from dpvalue.experiments.processes import Processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made files in the formats of the real ones, as far as strata are made of them."""
    place, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    x = np.round(100 * rng.normal(0, 1, (12_000, 54)))
    x[:, 10:14] = np.eye(4)[rng.choice(4, len(x), p=[0.4, 0.1, 0.4, 0.1])]
    y = (x[:, 0] > 0) + 2 * (rng.random(len(x)) < 0.3) + 1
    np.savez(place / "covtype.npz", x=x.astype(np.int16), y=np.where(y == 3, 7, y).astype(np.uint8))
    y = rng.integers(0, 10, 9000)
    images = 40 * rng.normal(0, 1, (10, 784))[y] + rng.normal(128, 30, (len(y), 784))
    np.savez(place / "mnist.npz", x_train=images.clip(0, 255).astype(np.uint8).reshape(-1, 28, 28), y_train=y)
    x = rng.normal(0, 1, (1599, 11))
    wine = np.c_[x, np.clip(np.round(5.6 + x[:, 0] + rng.normal(0, 0.5, len(x))), 3, 8)]
    np.savetxt(place / "winequality-red.csv", wine, delimiter=";", header="columns", comments="")
    (place / "heart-disease").mkdir()
    for name, size in zip(HOSPITALS, (303, 294, 123, 200), strict=True):
        x = rng.normal(0, 1, (size, 13))
        cells = np.where(rng.random(x.shape) < 0.1, "?", np.char.mod("%.3f", x))
        ill = np.where(x[:, 0] + rng.normal(0, 1, size) > 0, rng.integers(1, 5, size), 0).astype(str)
        text = "\n".join(",".join(row) for row in np.c_[cells, ill])
        (place / "heart-disease" / f"processed.{name}.data").write_text(text + "\n")
    return place


NAMES = {
    "development": """
        covtype-2/regions/8 covtype-2/only-region/8 covtype-2/only-class/8 covtype-2/identical/8
        covtype-2/label-share/8 covtype-2/lacks-region/8 covtype-2/regions/8/large covtype-2/only-region/8/large
        covtype-2/regions/8/public-100 covtype-2/regions/8/public-500 covtype-2/regions/8/public-2000
        covtype-2/regions/12 covtype-7/regions/8 digits/disjoint/8 digits/dirichlet/8 digits/only-class/8
        digits/lacks-class/8 diabetes/age/8 diabetes/mass/8 diabetes-2/age/8 diabetes-2/mass/8 xor/regions/8
        xor/sites/10
    """,
    "judging": """
        heart/regions/4 heart/regions/8 heart/public-one/8 mnist-2/regions/8 mnist-2/only-region/8
        mnist-2/only-class/8 mnist-2/identical/8 mnist-2/label-share/8 mnist-2/lacks-region/8
        mnist-2/regions/8/large mnist-2/only-region/8/large mnist-2/regions/8/public-100
        mnist-2/regions/8/public-500 mnist-2/regions/8/public-2000 mnist-2/regions/12 mnist/disjoint/8
        mnist/dirichlet/8 mnist/only-class/8 mnist/lacks-class/8 mnist/dirichlet/8/large wine/alcohol/8
        wine/only-region/8 wine-2/alcohol/8 wine-2/only-region/8 breast-cancer/radius/8
        breast-cancer/only-class/8 breast-cancer/label-share/8 circles/regions/8 circles/sites/10
    """,
}


def test_the_split_is_as_committed_before_tuning() -> None:
    """Moving a data set to the other half would let rules be tuned on what judges them."""
    halves = {half: {data for data in HALF_OF if HALF_OF[data] == half} for half in (DEVELOPMENT, JUDGING)}
    assert halves == {
        "development": {"covtype-2", "covtype-7", "digits", "diabetes", "diabetes-2", "xor"},
        "judging": {"heart", "mnist", "mnist-2", "wine", "wine-2", "breast-cancer", "circles"},
    }
    assert {cell.name: cell.half for cell in NATURAL_CELLS} == {
        name: half for half, names in NAMES.items() for name in names.split()
    }


def test_both_halves_have_every_family() -> None:
    families = [Counter(cell.family for cell in chosen_natural(half=half)) for half in (DEVELOPMENT, JUDGING)]
    assert families[0].keys() == families[1].keys()
    assert len(families[0]) == 7
    for half in (DEVELOPMENT, JUDGING):
        cells = chosen_natural(half=half)
        assert {cell.public for cell in cells} == {0, 100, 500, 2000}
        assert sum(cell.n == 12 for cell in cells) == 1
        assert any(cell.large for cell in cells)
        assert any(cell.regression for cell in cells)
    with pytest.raises(dpv.DpvalueError, match="no cell matches 'cifar"):
        chosen_natural(["cifar/*"])
    with pytest.raises(dpv.DpvalueError, match="half must be one of"):
        chosen_natural(half="both")
    with pytest.raises(dpv.DpvalueError, match="kind must be one of"):
        NaturalCell("heart", "planted")


@pytest.mark.parametrize("cell", NATURAL_CELLS, ids=lambda cell: cell.name)
def test_a_problem_follows_from_its_seed_and_uses_no_row_twice(cell: NaturalCell, folder: Path) -> None:
    problem, again = (make_natural(cell, 5, folder) for _ in range(2))
    assert problem.fingerprint() == again.fingerprint()
    parties = [
        records
        for number, (records, mark) in enumerate(zip(problem.parties, problem.defects, strict=True))
        if mark != TWIN or number == problem.defects.index(TWIN)
    ]
    rows = np.concatenate([problem.public.records.rows, *(records.rows for records in parties)])
    assert len(np.unique(rows)) == len(rows)
    assert problem.n == cell.n
    assert problem.regression == cell.regression
    assert (problem.classes == 2) == cell.two_class
    assert problem.sizes.min() >= 4


def test_seeds_differ_and_public_sizes_share_their_parties(folder: Path) -> None:
    small = NaturalCell("covtype-2", "regions", public=100)
    problem, other, larger = (
        make_natural(cell, seed, folder)
        for cell, seed in ((small, 5), (small, 6), (NaturalCell("covtype-2", "regions"), 5))
    )
    assert problem.fingerprint() != other.fingerprint()
    assert set(problem.public.records.rows) < set(larger.public.records.rows)
    assert [r.x[:, 10:14].argmax(1)[0] for r in problem.parties] == [r.x[:, 10:14].argmax(1)[0] for r in larger.parties]


def test_what_is_special_about_a_party(folder: Path) -> None:
    """Owners, twins, another share of labels, and what public rows lack."""
    problem = make_natural(NaturalCell("covtype-2", "only-region"), 0, folder)
    areas = [set(records.x[:, 10:14].argmax(1).tolist()) for records in problem.parties]
    owner = problem.defects.index(OWNER)
    assert len(areas[owner]) == 1
    assert all(not areas[owner] & area for j, area in enumerate(areas) if j != owner)
    assert areas[owner] < set(problem.public.records.x[:, 10:14].argmax(1).tolist())
    problem = make_natural(NaturalCell("mnist", "only-class"), 0, folder)
    owner = problem.defects.index(OWNER)
    (owned,) = set(problem.parties[owner].y.tolist()) - {
        label for j in range(8) if j != owner for label in problem.parties[j].y.tolist()
    }
    assert np.mean(problem.parties[owner].y == owned) == pytest.approx(0.5, abs=0.15)
    problem = make_natural(NaturalCell("mnist-2", "identical"), 0, folder)
    first, second = (j for j, mark in enumerate(problem.defects) if mark == TWIN)
    np.testing.assert_array_equal(problem.parties[first].x, problem.parties[second].x)
    problem = make_natural(NaturalCell("mnist-2", "label-share"), 0, folder)
    other = problem.defects.index(OTHER_SHARE)
    shares = np.array([records.y.mean() for records in problem.parties])
    assert np.abs(shares - np.median(shares)).argmax() == other
    problem = make_natural(NaturalCell("covtype-2", "lacks-region"), 0, folder)
    areas = [set(records.x[:, 10:14].argmax(1).tolist()) for records in problem.parties]
    shown = set(problem.public.records.x[:, 10:14].argmax(1).tolist())
    assert [not area & shown for area in areas] == [mark == HIDDEN for mark in problem.defects]
    assert problem.defects.count(HIDDEN) == 2
    problem = make_natural(NaturalCell("digits", "lacks-class"), 0, folder)
    assert len(set(problem.public.records.y.tolist())) == 9
    assert problem.classes == 10
    lone = make_natural(NaturalCell("heart", "public-one"), 0, folder)
    assert lone.public.records.rows.max() < 303 < lone.parties[0].rows.max() + 303
    assert sorted(records.rows.min() < 303 for records in lone.parties) == [False] * 6 + [True] * 2


def brute_force(worth: Callable[[tuple[int, ...]], float], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Shapley values as the mean over all orders, and leave-one-out."""
    known = {members: worth(members) for size in range(n + 1) for members in combinations(range(n), size)}
    shapley = np.zeros(n)
    for order in permutations(range(n)):
        for place, party in enumerate(order):
            before = tuple(sorted(order[:place]))
            shapley[party] += known[tuple(sorted((*before, party)))] - known[before]
    everybody = tuple(range(n))
    loo = [known[everybody] - known[tuple(j for j in everybody if j != party)] for party in everybody]
    return shapley / factorial(n), np.array(loo)


def scikit_learns(problem: PartyProblem, model: str, members: tuple[int, ...]) -> float:
    """The worth of a coalition, as a reader of the module's docstring would compute it."""
    judging, known = problem.utility()
    if not members:
        return -float(np.mean(known**2)) if problem.regression else -np.log(2)
    x, y = (np.concatenate(part) for part in zip(*(problem.ready(problem.parties[j]) for j in members), strict=True))
    trees = {"max_iter": 30, "early_stopping": False, "max_leaf_nodes": 8, "random_state": 0}
    if model == "linear":
        x, judging = (np.c_[rows, np.ones(len(rows))] for rows in (x, judging))
    if problem.regression:
        made = HistGradientBoostingRegressor(**trees) if model == "boosted" else Ridge(alpha=1.0, fit_intercept=False)
        return -float(np.mean((made.fit(x, y).predict(judging) - known) ** 2))
    made = (
        HistGradientBoostingClassifier(**trees)
        if model == "boosted"
        else LogisticRegression(C=1.0, fit_intercept=False, tol=1e-10, max_iter=10_000)
    )
    return float(np.mean(np.log(made.fit(x, y).predict_proba(judging)[np.arange(len(known)), known])))


@pytest.mark.parametrize("cell", [NaturalCell("heart", "regions", 4), NaturalCell("wine", "alcohol", 4)])
@pytest.mark.parametrize("model", [LINEAR, BOOSTED])
def test_truths_are_those_of_brute_force(cell: NaturalCell, model: str, folder: Path) -> None:
    problem = make_natural(cell, 0, folder)
    truth = retrain_natural(problem, model)
    shapley, loo = brute_force(lambda members: scikit_learns(problem, model, members), 4)
    np.testing.assert_allclose(truth.shapley, shapley, atol=1e-6)
    np.testing.assert_allclose(truth.loo, loo, atol=1e-6)
    assert sum(truth.shapley) == pytest.approx(truth.everybody - truth.nobody)
    assert np.ptp(shapley) > 0.005


def test_a_coalition_of_one_class_says_its_share() -> None:
    problem = make_natural(NaturalCell("breast-cancer", "only-class", 4), 0)
    losses, (_, known) = boosted_losses(problem), problem.utility()
    one = next(j for j in range(4) if problem.defects[j] != OWNER)
    size = problem.sizes[one]
    expected = np.where(known == 0, -np.log((size + 1) / (size + 2)), -np.log(1 / (size + 2)))
    np.testing.assert_allclose(losses[1 << one], expected)


def identity(losses: np.ndarray, problem: PartyProblem) -> np.ndarray:
    return losses


def test_the_ceiling_is_what_two_halves_of_the_judge_have_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_natural(NaturalCell("breast-cancer", "radius", 4), 0)
    members = np.arange(16)[:, None] >> np.arange(4) & 1
    worths = members @ [1.0, 2.0, 3.0, 4.0] + members.prod(1)
    for sign in (1, -1):
        losses = np.stack([-worths, -3 * sign * worths], axis=1)
        monkeypatch.setitem(LOSSES, LINEAR, partial(identity, losses))
        truth = retrain_natural(problem, LINEAR)
        assert (truth.ceiling, truth.ceiling_loo) == pytest.approx((sign, sign))
        assert np.argmax(np.abs(truth.shapley)) == 3


def test_divided_noise_is_that_of_a_larger_epsilon() -> None:
    for budget in BUDGETS:
        if budget.epsilon:
            found = dpv.Privacy(effective_epsilon(budget), DELTA).noise_multiplier(1, 1)
            asked = dpv.Privacy(budget.epsilon, DELTA).noise_multiplier(1, 1)
            assert asked / found == pytest.approx(budget.divisor, rel=1e-6)
    assert len(set(BUDGETS)) == len(BUDGETS) == 7


def test_methods(folder: Path) -> None:
    """Sizes need no records; noise divided by ten brings values closer to those without."""
    problem = make_natural(NaturalCell("wine", "alcohol"), 0, folder)
    np.testing.assert_array_equal(
        METHODS["sizes"].value(problem, EXACT, 0).shapley * problem.sizes.sum(), problem.sizes
    )
    np.testing.assert_array_equal(METHODS["averaging"].value(problem, EXACT, 0).loo, averaged_values(problem).loo)
    exact, noisy, divided, other = (
        METHODS["refit"].value(problem, budget, seed).shapley
        for budget, seed in ((EXACT, 0), (Budget(1.0), 0), (Budget(1.0, 10), 0), (Budget(1.0), 1))
    )
    assert np.abs(divided - exact).max() < np.abs(noisy - exact).max() / 2
    assert not np.allclose(noisy, other)


def made(cell: NaturalCell, marks: list[str], **changed: Any) -> NaturalTruth:
    values = [0.4, 0.3, 0.2, -0.1]
    truth = NaturalTruth(cell.name, 0, LINEAR, "f", marks, -1.0, -0.2, values, values, 0.9, 0.8, 1.0)
    return replace(truth, **changed)


def test_tables() -> None:
    """Numbers in tables, from values that can be scored by hand."""
    owner, sites = NaturalCell("covtype-2", "only-region", 4), NaturalCell("xor", "sites", 4)
    truths = {
        truth.key: truth
        for seed in (0, 1)
        for truth in (
            made(owner, [OWNER, "", "", ""], seed=seed),
            made(sites, ["", "", "", WRONG], seed=seed, model=BOOSTED),
        )
    }
    reverse, same = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, -0.1]
    said = [
        Said(owner.name, seed, method, epsilon, 1.0, "f", values, reverse, 0.1)
        for seed in (0, 1)
        for method, epsilon, values in (
            ("refit", 4.0, reverse),
            ("refit", 0.0, [0.3, 0.4, 0.2, -0.1]),
            ("sizes", 0.0, same),
        )
    ]
    said += [Said(sites.name, seed, "refit", 0.0, 1.0, "f", [0.3, 0.2, 0.0, 0.1], same, 0.1) for seed in (0, 1)]
    text = tables([owner, sites], said, truths)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
    assert ["ceiling", "", "0.90 (0.00) / 0.80"] in lines
    assert ["refit", "no noise", "0.80 (0.00) / -1.00", "1 of 1"] in lines
    assert ["refit", "epsilon 4", "-1.00 (0.00) / -1.00", "1 of 1"] in lines
    assert ["linear", "refit", "no noise", "2 of 2", "0.11 (0.00)"] in lines
    assert ["linear", "refit", "epsilon 4", "0 of 2", "0.48 (0.00)"] in lines
    assert ["refit", "no noise", "0.67 (0.00)"] in lines
    assert ["retraining, boosted", "", "1.00 (0.00)"] in lines
    with pytest.raises(dpv.DpvalueError, match="are those of other rows"):
        tables([owner], [replace(said[0], fingerprint="g")], truths)


def test_the_command_makes_truths_values_and_tables(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a user types it; what is in a file already is not made again."""
    truth, out = tmp_path / "truth.json", tmp_path / "out.json"

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["consortium", "natural", *arguments])
        command.main()
        return capsys.readouterr().out

    some = ["--cells", "heart/regions/4", "--seeds", "0", "--workers", "1", "--data-dir", str(folder)]
    assert "2 of 2: heart/regions/4, seed 0, boosted" in run("truth", *some, "--out", str(truth))
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(Processes, "tasks", lambda self, work, tasks: map(work, tasks))  # quicker than a process
    assert "2 of 2" in run("run", *some, "--methods", "sizes", "averaging", "--out", str(out))
    before = truth.read_text(), out.read_text()
    assert run("truth", *some, "--out", str(truth)) == ""
    assert before == (truth.read_text(), out.read_text())
    cell = NaturalCell("heart", "regions", 4)
    known = read_natural_truths(truth)[cell.name, 0, LINEAR]
    problem = make_natural(cell, 0, folder)
    np.testing.assert_allclose(known.shapley, retrain_natural(problem, LINEAR).shapley, rtol=1e-5)
    found = read_said(out)[cell.name, 0, "averaging", 0.0, 1.0]
    np.testing.assert_allclose(found.loo, averaged_values(problem).loo, rtol=1e-3)
    shown = ["tables", "--outcomes", str(out), "--truths", str(truth), "--half"]
    assert "| heart/regions/4 |" in run(*shown, JUDGING)
    assert "heart" not in run(*shown, DEVELOPMENT)
    run("page", "--outcomes", str(out), "--truths", str(truth), "--folder", str(tmp_path))
    page = (tmp_path / "natural.md").read_text()
    assert "| two classes, no noise | 0.90 / 0.40 |" in page
    assert "| heart/regions/4 |" in page


def test_the_page_is_what_the_command_writes(tmp_path: Path) -> None:
    """`natural page`, from the committed results."""
    root = Path(__file__).parents[2]
    said = read_said(root / "benchmarks" / "results" / "natural-outcomes.json").values()
    write_natural_page(said, read_natural_truths(root / "benchmarks" / "results" / "natural-truth.json"), tmp_path)
    assert (tmp_path / "natural.md").read_text() == (root / "docs" / "natural.md").read_text()
