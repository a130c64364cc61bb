"""The natural benchmark: its cells and their halves, its problems, its truths, its baselines and its tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import dpvalue as dpv
from dpvalue.experiments.consortium.natural.cells import (
    DEVELOPMENT,
    HALF_OF,
    JUDGING,
    NATURAL_CELLS,
    NaturalCell,
    chosen_natural,
)
from dpvalue.experiments.consortium.natural.problems import HIDDEN, OTHER_SHARE, OWNER, TWIN, make_natural
from dpvalue.experiments.paper.datasets import HOSPITALS


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
    problem, again, other = (make_natural(cell, seed, folder) for seed in (5, 5, 6))
    assert problem.fingerprint() == again.fingerprint() != other.fingerprint()
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
