"""The benchmark as a whole: a problem is valued, scored, kept, and stands on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpvalue.experiments.consortium.cells import Cell
from dpvalue.experiments.consortium.coverage import coverage, draw
from dpvalue.experiments.consortium.methods import AVERAGING, run_game
from dpvalue.experiments.consortium.page import mean_of, write_page
from dpvalue.experiments.consortium.problems import make_problem
from dpvalue.experiments.consortium.stored import (
    read_coverage,
    read_scored,
    read_truths,
    write_coverage,
    write_scored,
    write_truths,
)
from dpvalue.experiments.consortium.tasks import CellTask, work
from dpvalue.experiments.consortium.truth import retrain

CELL = Cell("breast-cancer", n=4)


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The truth of two seeds, in a file."""
    path = tmp_path_factory.mktemp("truths") / "truths.json"
    write_truths({(CELL.name, seed): retrain(make_problem(CELL, seed)) for seed in (0, 1)}, path)
    return path


def task(truths: Path, method: str, epsilon: float, seed: int = 0, intervals: bool = False) -> CellTask:
    return CellTask(CELL.name, seed, method, epsilon, "", str(truths), intervals)


def test_what_is_run_is_scored_kept_and_shown(truths: Path, tmp_path: Path) -> None:
    tasks = [
        task(truths, method, epsilon, seed) for seed in (0, 1) for method, epsilon in (("refit", 8.0), (AVERAGING, 0.0))
    ]
    tasks += [task(truths, "steps", 8.0), task(truths, "refit", 1.0, intervals=True)]
    scored = {done.key: done for done in map(work, tasks)}
    assert scored[CELL.name, 0, "refit", 1.0].intervals
    assert not scored[CELL.name, 0, "refit", 8.0].intervals
    write_scored(scored, tmp_path / "outcomes.json")
    again = read_scored(tmp_path / "outcomes.json")
    assert again.keys() == scored.keys()
    for key, done in again.items():
        assert done.values == pytest.approx(scored[key].values, rel=1e-5, abs=1e-9)
        assert done.scores.spearman == pytest.approx(scored[key].scores.spearman, rel=1e-5)
    found = mean_of(again, CELL.name, "refit", 8.0, "spearman")
    assert found is not None
    both = [again[CELL.name, seed, "refit", 8.0].scores.spearman for seed in (0, 1)]
    assert found == pytest.approx((sum(both) / 2, abs(both[0] - both[1]) / 2, 2))
    write_page(again, [], read_truths(truths), tmp_path)
    page = (tmp_path / "consortium.md").read_text()
    assert f"| {CELL.name} | refit, epsilon 1 | " in page
    assert (tmp_path / "images" / "consortium.png").stat().st_size > 10_000


def test_the_same_task_gives_the_same_values(truths: Path) -> None:
    first, second = (work(task(truths, "refit", 1.0)) for _ in range(2))
    assert first.values == second.values
    problem = make_problem(CELL, 0)
    assert tuple(run_game(problem, "refit", 1.0).values.shapley.tolist()) == first.values


def test_coverage_counts_what_intervals_hold(tmp_path: Path) -> None:
    problem = make_problem(CELL, 0)
    found = coverage(problem, 4.0, [draw(problem, 4.0, 1, part) for part in range(2)])
    assert 0 <= found.least <= found.pooled <= 1
    assert found.ratio > 0
    write_coverage([found], tmp_path / "coverage.json")
    (again,) = read_coverage(tmp_path / "coverage.json")
    assert (again.cell, again.draws, again.pooled) == (found.cell, 2, found.pooled)
