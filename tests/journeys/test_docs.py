"""Numbers in the guides are what the code computes."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dpvalue import detection
from dpvalue.privacy import accounting

DOCS = Path(__file__).parents[2] / "docs"


def test_every_promise_names_a_test_file_that_exists() -> None:
    page = (DOCS / "threat-model.md").read_text()
    promises = [line for line in page.split("## ")[2].splitlines() if line.startswith("|")][2:]
    assert len(promises) > 8
    for promise in promises:
        files = re.findall(r"`(tests/[\w/]+\.py)`", promise.split("|")[3])
        assert files, promise
        for file in files:
            assert (DOCS.parent / file).is_file(), file


def test_no_page_claims_a_ceiling_for_any_method() -> None:
    """A trusted curator passes it (tests/test_detection.py)."""
    root = DOCS.parent
    pages = [*root.glob("*.md"), *DOCS.glob("*.md"), root / "benchmarks" / "README.md", *(root / "src").rglob("*.py")]
    assert len(pages) > 50
    for page in pages:
        claim = r"any (?:\S+-DP )?method|no method at all|whatever the method"
        assert not re.search(claim, " ".join(page.read_text().split()), re.IGNORECASE), page


def test_the_ceilings_of_the_budget_guide() -> None:
    lines = (DOCS / "budgets.md").read_text().splitlines()
    table = {line.split("|")[1].strip(): line for line in lines if line.startswith(("| ceiling", "| epsilon |"))}
    epsilons = [float(cell) for cell in re.findall(r"[\d.]+", table["epsilon"])]
    assert len(epsilons) == 5
    rules: dict[str, Callable[[float], float]] = {
        "ceiling, each row on its own": detection.ceiling,
        "ceiling, one Laplace number": detection.laplace_ceiling,
        "ceiling, Gaussian, delta = 5e-5": lambda e: detection.gaussian_ceiling(accounting.mu_of_budget(e, 5e-5)),
    }
    for name, rule in rules.items():
        cells = table[name].split("|")[2:-1]
        for epsilon, cell in zip(epsilons, cells, strict=True):
            assert float(cell) == pytest.approx(rule(epsilon), abs=0.6 * 10.0 ** -len(cell.strip().split(".")[1]))


def _prose(page: str) -> list[str]:
    """The lines of a page outside code blocks and tables."""
    lines, code, found = page.splitlines(), False, []
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            code = not code
        indented = line.startswith("    ") and not lines[number - 1].strip()
        if indented and not re.match(r"\s*([-*]|\d+\.) ", line):
            lines[number] = ""  # the next line of the block follows a blank one, too
        elif not code and not line.lstrip().startswith("|"):
            found.append(line)
    return found


def _could_be_wrapped(line: str) -> bool:
    """Whether a line is longer than 100 columns and not one link or code span that cannot be broken."""
    text = re.sub(r"^\s*([-*]|\d+\.)?\s*", "", line)
    return len(line) > 100 and len(re.findall(r"(?:`[^`]*`|\]\([^)]*\)|\S)+", text)) > 1


def test_prose_wraps_at_100_columns() -> None:
    root = DOCS.parent
    pages = [*root.glob("*.md"), *DOCS.rglob("*.md"), *(root / "examples").rglob("*.md"), *root.glob("benchmarks/*.md")]
    assert len(pages) > 14
    long = [f"{page.name}: {line}" for page in pages for line in _prose(page.read_text()) if _could_be_wrapped(line)]
    assert long == []
    assert _could_be_wrapped("word " * 21)
    assert _could_be_wrapped(_prose("- " + "word " * 21)[0])
    assert _prose("```\n" + "word " * 21 + "\n```\n| " + "cell | " * 20) == ["```"]


def _steps(page: str) -> list[str]:
    """The paragraphs of the proof that name code and tests."""
    return [part for part in re.split(r"\n\n(?=\*\*|## )", page) if "Code:" in part or "Tests:" in part]


def test_every_name_of_the_proof_is_there() -> None:
    page = (DOCS / "privacy-proof.md").read_text()
    names = set(re.findall(r"`(dpvalue\.[\w.]+)`", page))
    tests = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page))
    assert len(names) > 50
    assert len(tests) > 50
    for name in names:
        pkgutil.resolve_name(name)  # raises for what is not there
    for file, test in tests:
        source = (DOCS.parent / file).read_text()
        assert not test or re.search(rf"^def {test}\(", source, re.MULTILINE), f"{file}::{test}"


def test_every_step_of_the_proof_names_code_and_a_test() -> None:
    steps = _steps((DOCS / "privacy-proof.md").read_text())
    assert len(steps) >= 17
    for step in steps:
        code, _, tests = step.partition("Tests:")
        assert "`dpvalue." in code, step[:80]
        assert "`tests/" in tests, step[:80]


def test_ten_likely_changes_stay_in_their_rooms() -> None:
    """The table of CONTRIBUTING: at most three files each, all in the rooms named, and a test that is there."""
    page = (DOCS.parent / "CONTRIBUTING.md").read_text().split("## How to add")[1]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 10
    for change, rooms, counted, _, test in rows[2:]:
        files = re.findall(r"`([\w/]+\.py)`", counted)
        assert counted.startswith(f"{len(files)}:"), change
        assert len(files) <= 3, change
        for file in files:
            assert f"`{file.split('/')[0]}/`" in rooms, f"{change}: {file}"
            assert "NEW" in file or (DOCS.parent / "src" / "dpvalue" / file).is_file(), file
        assert (DOCS.parent / test.strip("`")).is_file(), test
