"""The consortium benchmark: its problems, what retraining says of them, the baseline, and the scores."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.experiments.consortium import __main__ as command
from dpvalue.experiments.consortium.averaging import averaged_values, averaged_worths
from dpvalue.experiments.consortium.cells import CELLS, DEFECT_SETS, Cell, chosen_cells
from dpvalue.experiments.consortium.check import compare
from dpvalue.experiments.consortium.defects import DEFECTS, FREE_RIDER, UNKNOWN, Public, Records
from dpvalue.experiments.consortium.fits import fit
from dpvalue.experiments.consortium.harness import CellOutcome, IntervalScores, judge, pearson, score, shares, spearman
from dpvalue.experiments.consortium.problems import make_problem
from dpvalue.experiments.consortium.stored import keep_data, read_truths, truth_of, write_truths
from dpvalue.experiments.consortium.truth import Values, coalition_worths, private_stack, retrain
from dpvalue.experiments.paper.datasets import HOSPITALS

HEART = Cell("heart", 4, "own", "none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made files in the formats of the real ones; a class of Covertype is as rare as there."""
    place, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    y = rng.choice(7, 15_000, p=[0.36, 0.49, 0.06, 0.001, 0.02, 0.03, 0.039])
    x = np.round(100 * (rng.normal(0, 0.5, (7, 54))[y] + rng.normal(0, 1, (len(y), 54))))
    np.savez(place / "covtype.npz", x=x.astype(np.int16), y=(y + 1).astype(np.uint8))
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


@pytest.fixture(scope="module")
def public() -> Public:
    rng = np.random.default_rng(1)
    x = rng.normal([3, -5, 0], [1, 20, 0.1], (300, 3))
    return Public(Records(x, rng.choice(3, 300, p=[0.5, 0.3, 0.2]), np.arange(300)), regression=False)


@pytest.fixture(scope="module")
def party() -> Records:
    rng = np.random.default_rng(2)
    return Records(rng.normal([3, -5, 0], [1, 20, 0.1], (90, 3)), rng.choice(3, 90), np.arange(300, 390))


def changed(defect: str, party: Records, public: Public) -> Records:
    return DEFECTS[defect](party, public, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        (Cell("breast-cancer"), 20), (Cell("breast-cancer", 12, "skewed", "other"), 10), (Cell("digits", 4), 4),
        (Cell("covtype-2", 4), 8), (Cell("covtype-7", 4, "skewed"), 4), (Cell("wine"), 10), (HEART, 10),
    ],
)  # fmt: skip
def test_our_fits_are_scikit_learns(cell: Cell, count: int, folder: Path) -> None:
    """66 coalitions in all; those of few records lack classes."""
    masks = np.random.default_rng(3).choice(2**cell.n - 1, count, replace=False) + 1
    found = compare(make_problem(cell, 1, folder), (masks[:, None] >> np.arange(cell.n) & 1).astype(bool))
    assert found.difference < 1e-6
    assert found.predictions < 1e-5
    assert np.ptp(found.theirs) > 0.01


def test_all_coalitions_are_fitted_as_each_alone(folder: Path) -> None:
    for cell in (Cell("breast-cancer", 4), Cell("wine", 4)):
        problem = make_problem(cell, 0, folder)
        worths = coalition_worths(problem)
        coalitions = (np.arange(1, 16)[:, None] >> np.arange(4) & 1).astype(bool)
        np.testing.assert_allclose(worths[1:], compare(problem, coalitions).ours, atol=1e-9)
        nobody = -float(np.mean(problem.utility()[1] ** 2)) if problem.regression else -np.log(2)
        assert worths[0] == pytest.approx(nobody)


def test_a_hard_start_converges() -> None:
    """A line search is needed: full steps from far away overshoot."""
    records = private_stack(make_problem(Cell("breast-cancer", 4), 0))
    everyone = torch.ones(1, 4, dtype=torch.long)
    far = 20 * torch.randn(1, 1, records.x.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fit(records, everyone, far), fit(records, everyone), atol=1e-6, rtol=1e-6)


def test_values_by_retraining(folder: Path) -> None:
    problem = make_problem(Cell("breast-cancer"), 0)
    truth = retrain(problem)
    assert sum(truth.shapley) == pytest.approx(truth.everybody - truth.nobody)
    assert problem.defects[int(np.argmin(truth.shapley))] == "wrong-labels"
    assert truth.everybody > truth.nobody == pytest.approx(-np.log(2))
    assert truth.sizes == problem.sizes.tolist()


def test_blanks_are_worth_nothing_and_a_copy_what_its_original_is(folder: Path) -> None:
    for name in ("breast-cancer", "wine"):
        problem = make_problem(Cell(name, defects="blanks"), 0, folder)
        truth = retrain(problem)
        for defect in ("blank-rows", "unknown-labels"):
            party = problem.defects.index(defect)
            assert len(problem.parties[party]) > 0
            assert abs(truth.shapley[party]) + abs(truth.loo[party]) < 1e-8
        x, y, groups = problem.private()
        assert np.isnan(x[groups == problem.names[problem.defects.index("blank-rows")]]).all()
        unknown = y[groups == problem.names[problem.defects.index("unknown-labels")]]
        assert (np.isnan(unknown) if problem.regression else unknown == UNKNOWN).all()
        problem = make_problem(Cell(name, defects="free-rider"), 0, folder)
        copy = problem.defects.index(FREE_RIDER)
        (original,) = (
            i for i in range(8) if i != copy and np.array_equal(problem.parties[i].rows, problem.parties[copy].rows)
        )
        assert problem.defects[original] == ""
        truth = retrain(problem)
        assert truth.shapley[copy] == pytest.approx(truth.shapley[original])


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.problem != "covtype-7"], ids=lambda cell: cell.name)
def test_a_problem_follows_from_its_seed(cell: Cell, folder: Path) -> None:
    problem, again, other = (make_problem(cell, seed, folder) for seed in (5, 5, 6))
    assert problem.fingerprint() == again.fingerprint() != other.fingerprint()
    for one, two in zip(problem.parties, again.parties, strict=True):
        np.testing.assert_array_equal(one.x, two.x)
        np.testing.assert_array_equal(one.y, two.y)
    used = [problem.public.records.rows] + [
        np.unique(records.rows)
        for records, defect in zip(problem.parties, problem.defects, strict=True)
        if defect != FREE_RIDER
    ]
    rows = np.concatenate(used)
    assert len(np.unique(rows)) == len(rows)
    assert problem.n == cell.n
    assert sorted(defect for defect in problem.defects if defect) == sorted(cell.planted)
    assert (problem.note == "") == (problem.scale == 1)
    if cell.problem != "heart":
        first = make_problem(Cell(cell.problem), 5, folder).public.records.rows
        np.testing.assert_array_equal(problem.public.records.rows, first)


def test_a_fingerprint_sees_the_order_of_cells() -> None:
    problem = make_problem(Cell("breast-cancer", 4), 0)
    first, *others = problem.parties
    shuffled = replace(first, x=np.random.default_rng(0).permuted(first.x, axis=0))
    assert replace(problem, parties=(shuffled, *others)).fingerprint() != problem.fingerprint()
    rounded = replace(first, x=first.x * (1 + 1e-14))
    assert replace(problem, parties=(rounded, *others)).fingerprint() == problem.fingerprint()


def test_public_rows_hold_every_class(folder: Path) -> None:
    for seed in range(5):
        problem = make_problem(Cell("covtype-7", 4), seed, folder)
        assert problem.classes == len(np.unique(problem.public.records.y)) == 7
        assert len(problem.public.records) == 1000


def test_sizes(folder: Path) -> None:
    sizes = make_problem(Cell("covtype-2"), 0, folder).sizes
    assert sizes.min() >= 100
    assert sizes.max() <= 3000
    assert len(np.unique(make_problem(Cell("covtype-2", sizes="equal"), 0, folder).sizes)) == 1
    skewed = make_problem(Cell("covtype-2", sizes="skewed"), 0, folder).sizes
    assert skewed.max() / skewed.min() == pytest.approx(30, rel=0.02)
    cut = make_problem(Cell("breast-cancer", 12), 3)
    assert cut.scale < 1
    assert f"{cut.scale:.2f} of those asked for" in cut.note
    assert cut.sizes.sum() <= 569 - 200


def test_hospitals_are_standardised_by_public_rows(folder: Path) -> None:
    problem = make_problem(HEART, 0, folder)
    assert problem.sizes.sum() == 920 - 180
    x, y, groups = problem.private()
    assert np.isfinite(x).all()
    assert (x == 0).mean() == pytest.approx(0.1, abs=0.02)
    assert set(y.tolist()) == {0, 1}
    assert set(groups.tolist()) == set(HOSPITALS)
    known = np.isfinite(problem.public.records.x)
    judging = np.where(known, problem.utility()[0], np.nan)
    np.testing.assert_allclose(np.nanmean(judging, 0), 0, atol=1e-9)
    np.testing.assert_allclose(np.nanstd(judging, 0), 1)


def test_wrong_labels(party: Records, public: Public) -> None:
    found = changed("wrong-labels", party, public)
    assert (found.y != party.y).sum() == 36
    assert set(found.y.tolist()) == {0, 1, 2}
    numbers = replace(party, y=party.y.astype(float))
    shifts = changed("wrong-labels", numbers, replace(public, regression=True)).y - numbers.y
    assert sorted(set(shifts.tolist())) == [-3, 0, 3]
    assert (shifts != 0).sum() == 36


def test_near_duplicates(party: Records, public: Public) -> None:
    found = changed("near-duplicates", party, public)
    assert len(found) == 90
    assert np.unique(found.rows).tolist() == party.rows[:4].tolist()
    moved = (found.x - party.x[found.rows - 300]) / public.spread
    assert 0.008 < moved.std() < 0.012
    np.testing.assert_array_equal(found.y, party.y[found.rows - 300])


def test_shuffled_features(party: Records, public: Public) -> None:
    found = changed("shuffled-features", party, public)
    np.testing.assert_array_equal(np.sort(found.x, axis=0), np.sort(party.x, axis=0))
    orders = [np.argsort(np.argsort(found.x[:, i])) - np.argsort(np.argsort(party.x[:, i])) for i in range(3)]
    assert all((order != 0).mean() > 0.9 for order in orders)
    assert not np.array_equal(orders[0], orders[1])
    np.testing.assert_array_equal(found.y, party.y)


def test_relabelled_class(party: Records, public: Public) -> None:
    found = changed("relabelled-class", party, public)
    assert public.frequent.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found.y, np.where(party.y == 0, 1, party.y))
    two = replace(public, records=replace(public.records, y=public.records.y % 2))
    found = changed("relabelled-class", replace(party, y=party.y % 2), two)
    became = (found.y == 1) & (party.y % 2 == 0)
    np.testing.assert_array_equal(
        became, (party.y % 2 == 0) & (two.along(party.x) > np.median(two.along(two.records.x)))
    )
    assert 0.3 < became.sum() / (party.y % 2 == 0).sum() < 0.7
    numbers = replace(public, regression=True, records=replace(public.records, y=np.arange(300.0)))
    capped = changed("relabelled-class", replace(party, y=np.arange(100.0, 190.0)), numbers)
    assert capped.y.max() == 149.5
    assert (capped.y < 149.5).sum() == 50


def test_coarse_features_shifted_region_and_delayed_labels(party: Records, public: Public) -> None:
    assert np.unique(public.standardised(changed("coarse-features", party, public).x).round(9)).tolist() == [-1, 0, 1]
    region = changed("shifted-region", party, public)
    assert len(region) == 30
    rest = np.setdiff1d(party.rows, region.rows) - 300
    assert public.along(region.x).min() > public.along(party.x[rest]).max()
    delayed = changed("delayed-labels", party, public)
    assert (np.diff(public.along(delayed.x)) >= 0).all()
    np.testing.assert_array_equal(delayed.y[1:], party.y[delayed.rows[:-1] - 300])


def test_the_other_defects_are_none_of_the_planted() -> None:
    assert not set(DEFECT_SETS["planted"]) & set(DEFECT_SETS["other"])
    assert {defect for some in DEFECT_SETS.values() for defect in some} == {*DEFECTS, FREE_RIDER}


def test_cells() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS) == 61
    assert [cell.n for cell in chosen_cells(["digits/*/range/planted"])] == [8, 4, 12]
    with pytest.raises(dpv.DpvalueError, match="no cell matches 'mnist"):
        chosen_cells(["mnist/*"])
    with pytest.raises(dpv.DpvalueError, match="heart/4/own/none and no other"):
        Cell("heart")
    with pytest.raises(dpv.DpvalueError, match="and no other"):
        Cell("digits", 4, "own", "none")
    with pytest.raises(dpv.DpvalueError, match="sizes must be one of"):
        Cell("digits", sizes="large")


def test_averaging_is_the_mean_of_models_by_size(folder: Path) -> None:
    for cell in (Cell("digits", 4), Cell("wine", 4)):
        problem = make_problem(cell, 0, folder)
        averaged, retrained = averaged_worths(problem), coalition_worths(problem)
        alone = [1, 2, 4, 8]
        np.testing.assert_allclose(averaged[[0, *alone]], retrained[[0, *alone]], atol=1e-9)
        assert not np.allclose(averaged, retrained, atol=1e-3)
    X, y = problem.utility()  # numbers: the mean of models is the mean of their predictions
    predicted = []
    for records in problem.parties[:2]:
        x, own = problem.ready(records)
        x = np.c_[x, np.ones(len(x))]
        predicted.append(np.c_[X, np.ones(len(X))] @ np.linalg.solve(x.T @ x + np.eye(12), x.T @ own))
    mean = np.average(predicted, axis=0, weights=problem.sizes[:2])
    assert averaged[3] == pytest.approx(-np.mean((mean - y) ** 2))
    assert averaged_values(problem).shapley.sum() == pytest.approx(averaged[-1] - averaged[0])


def test_scores() -> None:
    truth = Values(np.array([0.3, 0.1, -0.2, 0.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    perfect = score(truth.shapley, truth.loo, truth)
    assert (perfect.spearman, perfect.pearson, perfect.sign) == pytest.approx((1, 1, 1))
    assert (perfect.loo_spearman, perfect.payout_error) == pytest.approx((1, 0))
    assert perfect.coverage is perfect.sure is None
    values = np.array([0.1, 0.1, 0.1, -0.1])
    below, above = np.array([0.05, 0.2, 0.05, 0.05]), np.array([0.3, 0.2, 0.05, 0.05])
    intervals = IntervalScores(values - below, values + above)
    found = judge(
        CellOutcome("m", Cell("digits", 4), 0, 1.0, Values(values, -truth.loo), intervals, noise_free=values + 0.1),
        truth,
    )
    assert found.loo_spearman == pytest.approx(-1)
    assert found.sign == pytest.approx(2 / 3)  # the third is wrong; the fourth is zero in truth
    assert found.payout_error == pytest.approx(0.75 - 1 / 3)
    assert (found.sure, found.sure_right) == (2, 1)
    assert found.coverage == 0.5
    assert found.covers_truth == 0.5
    with pytest.raises(dpv.DpvalueError, match="values must be of 4 parties"):
        score(values[:3], truth.loo, truth)


def test_correlations_are_those_of_scipy() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    for _ in range(20):
        one, other = rng.normal(size=9), rng.integers(0, 4, 9).astype(float)
        assert spearman(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)
        assert pearson(one, other) == pytest.approx(stats.pearsonr(one, other).statistic)
    assert spearman([1, 2, 2 + 1e-12], [1, 3, 3]) == pytest.approx(1)
    assert spearman([1, np.nan, 3], [1, 2, 3]) == 0
    assert shares([-1.0, -2.0]).tolist() == [0.5, 0.5]


def test_truths_are_stored_and_told_apart(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = tmp_path / "data", tmp_path / "truth.json"
    keep_data(str(folder), data)
    for cell in (Cell("covtype-7", 4), Cell("wine", 4), Cell("digits", 4), HEART):
        assert make_problem(cell, 0, data).fingerprint() == make_problem(cell, 0, folder).fingerprint()
    arguments = ["truth", "--cells", "wine/4/*", "--seeds", "0", "2", "--out", str(out), "--data-dir", str(data)]
    monkeypatch.setattr(sys, "argv", ["consortium", *arguments])
    command.main()
    assert "wine/4/range/planted: 2 problem(s)" in capsys.readouterr().out
    truths = read_truths(out)
    assert list(truths) == [(f"wine/4/range/{defects}", seed) for defects in ("planted", "other") for seed in (0, 2)]
    problem = make_problem(Cell("wine", 4), 2, folder)
    np.testing.assert_allclose(truth_of(problem, truths).values.shapley, retrain(problem).shapley, rtol=1e-8)
    before = out.read_text()
    command.main()
    assert capsys.readouterr().out == ""
    assert out.read_text() == before
    with pytest.raises(dpv.DpvalueError, match="no true values are stored for wine/4/range/planted, seed 1"):
        truth_of(make_problem(Cell("wine", 4), 1, folder), truths)
    key = ("wine/4/range/planted", 2)
    write_truths({key: replace(truths[key], fingerprint="0")}, out)
    with pytest.raises(dpv.DpvalueError, match="are those of other rows"):
        truth_of(problem, read_truths(out))


def test_the_command_compares_with_scikit_learn(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["check", "--cells", "heart/*", "--coalitions", "3", "--data-dir", str(folder)]
    monkeypatch.setattr(sys, "argv", ["consortium", *arguments])
    command.main()
    assert "3 coalitions: the largest difference in worth is" in capsys.readouterr().out
