"""The package as installed: what it imports, what it promises, and the command line as a user types it."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import dpvalue as dpv

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "dpvalue"

BLOCKED = """
import sys
class Blocker:
    blocked = ("scipy", "pandas", "sklearn", "dp_accounting", "typer", "rich", "cryptography", "ray", "flwr",
               "matplotlib", "numba")
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.blocked:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)
sys.meta_path.insert(0, Blocker())
import numpy as np, dpvalue as dpv
X, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 3
for schedule in ("replay", "running-mean", "lagged"):
    result = dpv.value((X[:20], y[:20]), (X[20:], y[20:]), schedule=schedule, permutations=100, noise="fast",
                       semivalues=("shapley", "banzhaf", "beta(4,1)", "loo"))
    result.noise_std()
result.save(sys.argv[1])
print(dpv.load(sys.argv[1]).revalue((X[20:], y[20:])), dpv.plan(20))
try:
    dpv.value((X[:20], y[:20]), (X[20:], y[20:]))
except dpv.DpvalueError as error:
    print(error)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def test_import_and_help_load_no_torch() -> None:
    """They would take a second and more; the names are there all the same."""
    heavy = "sorted({'torch', 'pandas', 'scipy', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules))"
    for what in ("dpvalue", "dpvalue.cli"):
        done = run(sys.executable, "-c", f"import sys, {what}; print({heavy})")
        assert done.stdout.strip() == "[]", what
    assert sorted([*dpv.__all__, "__version__"]) == sorted(dir(dpv))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dpv.nothing  # noqa: B018


def test_the_core_needs_torch_numpy_and_safetensors_only(tmp_path: Path) -> None:
    done = run(sys.executable, "-c", BLOCKED, str(tmp_path / "file"))
    assert done.returncode == 0, done.stderr
    assert "noise='secure' needs the package cryptography" in done.stdout


def test_every_public_name_has_a_docstring_and_guarantees_are_stated() -> None:
    for name in dpv.__all__:
        assert inspect.getdoc(getattr(dpv, name)), name
    for promise in (
        dpv.value,
        dpv.release,
        dpv.federated,
        dpv.FederatedResult,
        dpv.Privacy,
        dpv.Table,
        dpv.Table.value,
        dpv.Result,
    ):
        assert "Formal guarantee" in (inspect.getdoc(promise) or ""), promise
    assert "Formal guarantee" in (inspect.getdoc(dpv.privacy.accounting.noise_multiplier) or "")


def test_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert project["version"] == dpv.__version__ == citation["version"]
    assert project["license"] == citation["license"]


def make_targets() -> set[str]:
    """What `make` can be asked for by name."""
    (names,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return set(names.split())


def test_every_make_target_is_there_and_explained_or_part_of_one_that_is() -> None:
    makefile = (ROOT / "Makefile").read_text()
    rules = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert rules == make_targets()
    explained = set(re.findall(r'@echo "make (\w+) ', makefile))
    assert rules - explained == {"help", "lint", "types", "fast"}


@pytest.mark.parametrize("workflow", ["test", "build", "docs"])
def test_workflows_run_make_targets_that_exist(workflow: str) -> None:
    path = ROOT / ".github" / "workflows" / f"{workflow}.yml"
    (job,) = yaml.safe_load(path.read_text())["jobs"].values()
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    made = [line.split() for line in lines if not line.startswith("apt-get ")]
    assert made
    for command, python, target in made:
        assert (command, python) == ("make", "PYTHON=python")
        assert target in make_targets()


def test_the_workflows_are_these_and_try_every_supported_python() -> None:
    folder = ROOT / ".github" / "workflows"
    assert sorted(path.name for path in folder.iterdir()) == ["build.yml", "docs.yml", "test.yml"]
    tried = yaml.safe_load((folder / "test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert tried == named == ["3.11", "3.12", "3.13"]


def test_hooks_run_the_tools_of_the_environment_and_fetch_nothing() -> None:
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text()
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        tool = hook["entry"].removesuffix(" --force-exclude").removeprefix(".venv/bin/")
        assert re.search(rf"^\t\$\(BIN\)/{tool}( \.)?$", makefile, re.MULTILINE), tool


@pytest.mark.slow
def test_the_readmes_python_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(code.strip().splitlines()) <= 14
    script = tmp_path / "readme.py"
    script.write_text(code)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Each record of each party is protected by (epsilon = 1, delta = 5e-05)" in done.stdout
    assert (tmp_path / "values.safetensors").is_file()


@pytest.mark.slow
def test_the_demo_finds_the_bad_hospitals(tmp_path: Path) -> None:
    done = run(str(COMMAND), "demo", "--epsilon", "3", "--out", str(tmp_path / "demo"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "agreement with retraining: expected rank correlation" in " ".join(done.stdout.split())
    assert "3 of the 3 bad hospitals are among the 3 lowest values" in done.stdout
    assert "epsilon = 3, delta = 5e-05" in " ".join(done.stdout.split())
    report = tmp_path / "demo" / "results" / "report.html"
    assert done.stdout.splitlines()[-1] == f"report: {report}"
    assert "Data values of 10 parties" in report.read_text()
    again = run(str(COMMAND), "demo", "--epsilon", "3", "--out", str(tmp_path / "demo"))
    assert again.returncode == 0, again.stderr


def test_bad_input_is_one_line_and_exit_code_2() -> None:
    done = run(str(COMMAND), "demo", "--epsilon", "-1")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "error: epsilon must be positive, got -1.0\n"


def test_a_bad_seed_is_one_line_too() -> None:
    done = run(str(COMMAND), "demo", "--seed", "-1")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: seed must be a whole number of at least 0, got -1"


def test_a_traceback_would_not_show_private_rows() -> None:
    from dpvalue.cli import app

    assert app.pretty_exceptions_show_locals is False


def test_version() -> None:
    assert run(str(COMMAND), "--version").stdout == f"dpvalue {dpv.__version__}\n"


PACKAGES = [
    ".".join(path.relative_to(ROOT / "src").parent.parts)
    for path in sorted((ROOT / "src" / "dpvalue").rglob("__init__.py"))
]
# Each imports from those before it, as CONTRIBUTING.md says: modules at the top, and packages.
LAYERS = (
    "errors", "arrays", "compiled", "stored", "storage", "display", "names", "streams", "progress",
    "models", "privacy", "data", "engine", "protocol", "party", "games", "detection", "planning", "methods", "values",
    "tasks", "report", "runs", "coordinator", "flower", "diagnostics", "baselines", "auditing", "api", "cli",
)  # fmt: skip


def imported(path: Path) -> set[str]:
    """The modules that a file imports from, anywhere in it, for annotations, too."""
    tree, found = ast.parse(path.read_text()), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
    return found


def test_no_module_has_the_name_of_a_public_function() -> None:
    """`dpvalue.plan` is the function, whatever has been imported."""
    functions = [name for name in dpv.__all__ if inspect.isfunction(getattr(dpv, name))]
    assert {"audit", "load", "plan", "release", "value"} <= set(functions)
    for name in functions:
        assert importlib.util.find_spec(f"dpvalue.{name}") is None, name


def test_what_has_the_path_of_a_module_is_that_module() -> None:
    assert len(PACKAGES) > 10
    for name in PACKAGES:
        package = importlib.import_module(name)
        folder = ROOT / "src" / name.replace(".", "/")
        inside = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/__init__.py")
        }
        for module in inside - {"__init__", "__main__"}:
            found = getattr(package, module, None)
            assert found is None or inspect.ismodule(found), f"{name}.{module} is {found!r}"


def test_imports_go_one_way_and_the_library_imports_no_experiment() -> None:
    """Commands import experiments where they run them; experiments import from all layers but commands."""
    source = ROOT / "src/dpvalue"
    rooms = {path.stem if path.is_file() else path.name for path in source.iterdir() if path.name[0] != "_"}
    assert rooms - {"py.typed", "py", "experiments"} == set(LAYERS)
    upwards = set()
    for path in source.rglob("*.py"):
        room = path.relative_to(source).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        below = LAYERS[:-1] if room == "experiments" else LAYERS[: LAYERS.index(room)]
        allowed = {room, *below, "__version__", "DpvalueError", *(("experiments",) if room == "cli" else ())}
        names = {name.split(".")[1] for name in imported(path) if name.startswith("dpvalue.")}
        upwards |= {(path.relative_to(source).as_posix(), name) for name in names - allowed}
    assert not upwards


def module_imports(name: str, modules: set[str], path: Path) -> tuple[set[str], set[str]]:
    """Which of our modules one imports when it is imported itself, and which only in its functions.

    Names for annotations alone (TYPE_CHECKING) are not imported at all.
    """

    def ours(nodes: list[ast.AST]) -> set[str]:
        found = set()
        for node in nodes:
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (inside & modules) | ({node.module} if inside - modules else set())
        return (found & modules) - {name}

    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return ours(list(tree.body)), ours([inner for function in functions for inner in ast.walk(function)])


def test_no_import_is_part_of_a_cycle_nor_hides_one_inside_a_function() -> None:
    files = {}
    for path in (ROOT / "src/dpvalue").rglob("*.py"):
        if "experiments" in path.parts:
            continue
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports = {name: module_imports(name, set(files), path) for name, path in files.items()}
    assert "dpvalue.values.result" in imports["dpvalue.values.table"][0]
    assert "dpvalue.runs.folder" in imports["dpvalue.cli.run"][1]

    def reached(name: str) -> set[str]:
        found: set[str] = set()
        waiting = [name]
        while waiting:
            following = imports[waiting.pop()][0] - found
            found |= following
            waiting += following
        return found

    for name, (above, within) in imports.items():
        for other in above | within:
            assert name not in reached(other), f"{name} imports {other}, which imports it"
