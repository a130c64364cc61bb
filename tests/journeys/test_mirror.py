"""Where a module's tests are: `tests/PACKAGE/test_MODULE.py`, or the file that this table names."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpvalue as dpv

TESTS = Path(__file__).parents[1]
SOURCE = Path(dpv.__file__).parent

# Modules without a test file of their own name, and the file that tests them.
TESTED_BY = {
    "arrays.py": "test_api.py",
    "errors.py": "cli/test_run.py",
    "stored.py": "journeys/test_damage.py",
    "streams.py": "party/test_interleaved.py",
    "auditing/canaries.py": "auditing/test_audit.py",
    "cli/audit.py": "auditing/test_audit.py",
    "cli/check.py": "cli/test_run.py",
    "cli/common.py": "cli/test_run.py",
    "cli/demo.py": "journeys/test_package.py",
    "cli/experiments.py": "experiments/test_paper.py",
    "cli/flower.py": "cli/test_federation.py",
    "cli/job.py": "cli/test_federation.py",
    "cli/key.py": "cli/test_federation.py",
    "cli/ledger.py": "privacy/test_ledger.py",
    "cli/party.py": "cli/test_federation.py",
    "cli/plan.py": "cli/test_run.py",
    "cli/value.py": "cli/test_federation.py",
    "coordinator/comparing.py": "coordinator/test_verifying.py",
    "coordinator/roster.py": "coordinator/test_study.py",
    "coordinator/state.py": "coordinator/test_study.py",
    "data/binary_files.py": "data/test_large.py",
    "data/columns.py": "data/test_cells.py",
    "data/conversions.py": "data/test_odd_cells.py",
    "data/encoding.py": "data/test_boundary.py",
    "data/lines.py": "data/test_cells.py",
    "data/parties.py": "test_api.py",
    "data/raw.py": "data/test_boundary.py",
    "data/rows.py": "engine/test_engines.py",
    "data/schema.py": "data/test_files.py",
    "engine/evaluator.py": "data/test_utility.py",
    "flower/app.py": "flower/test_deployed.py",
    "flower/deploy.py": "flower/test_flower.py",
    "flower/records.py": "flower/test_flower.py",
    "flower/runtime.py": "flower/test_flower.py",
    "flower/serve.py": "flower/test_flower.py",
    "flower/supervise.py": "flower/test_flower.py",
    "games/estimates.py": "methods/test_sums.py",
    "methods/base.py": "extending/test_method.py",
    "methods/choosing.py": "methods/test_refit.py",
    "methods/fits.py": "methods/test_refit.py",
    "methods/growing.py": "methods/test_forest.py",
    "methods/leaf_game.py": "methods/test_forest.py",
    "methods/leaf_rehearsal.py": "methods/test_trees.py",
    "methods/leaf_rule.py": "methods/test_trees.py",
    "methods/leaf_posterior.py": "methods/test_forest.py",
    "methods/leaves.py": "methods/test_forest.py",
    "methods/reading.py": "methods/test_refit.py",
    "methods/steps.py": "methods/test_sums.py",
    "methods/surrogate.py": "methods/test_refit.py",
    "methods/table.py": "methods/test_sums.py",
    "methods/windows.py": "methods/test_refitting.py",
    "models/base.py": "models/test_models.py",
    "models/build.py": "models/test_models.py",
    "models/cnn.py": "models/test_models.py",
    "models/derived.py": "methods/test_refit.py",
    "models/forest.py": "methods/test_forest.py",
    "models/linear.py": "models/test_models.py",
    "models/linear_kernels.py": "test_compiled.py",
    "models/network.py": "models/test_models.py",
    "party/factored.py": "privacy/test_mechanism.py",
    "party/policy.py": "party/test_agent.py",
    "planning/crowd.py": "planning/test_situation.py",
    "planning/folds.py": "planning/test_situation.py",
    "planning/learning_rate.py": "test_api.py",
    "privacy/budget.py": "privacy/test_accounting.py",
    "privacy/charges.py": "privacy/test_ledger.py",
    "privacy/checkpoint.py": "journeys/test_one_draw.py",
    "privacy/clipping.py": "privacy/test_mechanism.py",
    "privacy/guarantees.py": "privacy/test_accounting.py",
    "privacy/laws.py": "privacy/test_second_opinion.py",
    "privacy/ledger_entries.py": "privacy/test_ledger.py",
    "privacy/normal_kernel.py": "test_compiled.py",
    "protocol/job.py": "coordinator/test_study.py",
    "protocol/messages.py": "party/test_party.py",
    "protocol/statistics.py": "methods/test_scores.py",
    "protocol/transport.py": "coordinator/test_conducting.py",
    "report/figures.py": "report/test_page.py",
    "report/record.py": "journeys/test_damage.py",
    "runs/check.py": "cli/test_run.py",
    "runs/config.py": "data/test_files.py",
    "runs/costs.py": "planning/test_situation.py",
    "runs/demo.py": "journeys/test_package.py",
    "runs/execute.py": "journeys/test_kept.py",
    "runs/loading.py": "values/test_result.py",
    "runs/plan_page.py": "runs/test_plan.py",
    "runs/rounds.py": "party/test_party.py",
    "runs/run.py": "test_api.py",
    "runs/sources.py": "data/test_files.py",
    "values/comparison.py": "values/test_intervals.py",
    "values/curves.py": "test_tasks.py",
    "values/noisy.py": "values/test_intervals.py",
    "values/plots.py": "test_tasks.py",
    "values/table.py": "values/test_result.py",
}

MODULES = {
    path.relative_to(SOURCE)
    for path in SOURCE.rglob("*.py")
    if not path.name.startswith("__") and path.relative_to(SOURCE).parts[0] != "experiments"
}


def mirror(module: Path) -> Path:
    return TESTS / module.with_name(f"test_{module.name}")


@pytest.mark.parametrize("name", sorted(module.as_posix() for module in MODULES))
def test_a_newcomer_finds_the_tests_of_a_module(name: str) -> None:
    module = Path(name)
    assert mirror(module).is_file() or (TESTS / TESTED_BY[name]).is_file()


def test_the_table_is_not_stale() -> None:
    for name, file in TESTED_BY.items():
        assert Path(name) in MODULES, f"{name} is no module"
        assert not mirror(Path(name)).exists(), f"{name} has a test file of its own"
        assert (TESTS / file).is_file(), f"{name}: {file} is not there"


def test_folders_of_tests_are_those_of_the_source() -> None:
    """Beside them stand tests of the whole product, and of what a user adds from outside."""
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert folders - packages == {"journeys", "extending"}
    assert packages - folders == set()
    assert {path.name for path in TESTS.glob("test_*.py")} <= {f"test_{path.name}" for path in SOURCE.glob("*.py")}
