"""Every public name says what it takes, returns and raises, and has an example; the examples run with the tests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dpvalue as dpv

MODULES = (dpv, dpv.baselines, dpv.detection, dpv.diagnostics, dpv.games, dpv.privacy, dpv.tasks)
NAMED = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in MODULES
    for name in module.__all__
    if not isinstance(getattr(module, name), ModuleType)
}
CLASSES = {name: found for name, found in NAMED.items() if inspect.isclass(found)}
FUNCTIONS = {name: found for name, found in NAMED.items() if inspect.isfunction(found)}

# Methods that the library calls, or that whoever writes an engine or a transport does; a line says what each does.
INTERNAL = {
    "Engine": {"ahead", "map", "piece", "require_room", "threading"},
    "Job": {"build", "from_bytes", "noise", "of_parts", "open_sealed", "parts", "to_bytes"},
    "Ledger": {
        "release",
        "require_entry",
        "require_holding",
        "require_room",
        "require_same",
        "require_unit",
        "reserve",
        "stored_release",
    },
    "Local": {"ahead", "free_bytes", "map", "piece", "require_room", "threading"},
    "Parties": {"counts", "encode", "units"},
    "Projection": {"leaves_open"},
    "Release": {"from_bytes", "of_parts", "open_sealed", "parts", "to_bytes"},
    "Request": {"from_bytes", "of_parts", "open_sealed", "parts", "to", "to_bytes"},
    "Result": {"game", "name_of"},
    "Schedule": {"first_valued", "own_weight", "shape", "table_weights"},
    "Settings": {"require_no_keeper"},
    "Shares": {"words"},
    "Table": {"game", "parts", "walker"},
    "Utility": {"encode", "encoding"},
    "Game": {"direct_estimate"},
}


def methods_of(kind: type) -> dict[str, Callable[..., Any]]:
    """The methods of a class, inherited ones included."""
    found: dict[str, Callable[..., Any]] = {}
    for name in dir(kind):
        held = inspect.getattr_static(kind, name)
        method: Any = held.__func__ if isinstance(held, classmethod | staticmethod) else held
        own = inspect.isfunction(method) and method.__module__.startswith("dpvalue.")
        if own and not name.startswith("_") and inspect.getdoc(method):
            found[name] = method
    return found


METHODS = {
    f"{name}.{method}": found
    for name, kind in CLASSES.items()
    for method, found in methods_of(kind).items()
    if method not in INTERNAL.get(kind.__name__, set()) and kind not in (dpv.games.FunctionGame, dpv.games.ListedGame)
}
"""Games that the library makes have the methods of `Game`, which says what they do."""


def arguments(found: Callable[..., Any]) -> list[str]:
    """The names that a function takes as it is written, `**given` included, whatever signature it shows."""
    code = inspect.unwrap(found).__code__
    stars = sum(bool(code.co_flags & flag) for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS))
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
    return [name for name in names if name not in ("self", "cls")]


def lacking(found: Callable[..., Any], needs_errors: bool) -> list[str]:
    """Which sections of a function's docstring, and which of its arguments in them, are missing."""
    text, names = inspect.getdoc(found) or "", arguments(found)
    described = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
    missing = [f"Args: {name}" for name in names if not re.search(rf"^    \*{{0,2}}{name}: ", described, re.MULTILINE)]
    if inspect.signature(found).return_annotation != "None" and "\nReturns:\n" not in text:
        missing.append("Returns")
    if names and needs_errors and "\nRaises:\n" not in text:
        missing.append("Raises")
    if ">>> " not in text.partition("\nExample:\n")[2]:
        missing.append("Example")
    return missing


def test_there_is_something_to_look_at() -> None:
    assert (len(CLASSES), len(FUNCTIONS)) > (30, 20)
    assert {"dpvalue.Result.compare", "dpvalue.Ledger.create", "dpvalue.Party.answer", "dpvalue.Job.save"} <= set(
        METHODS
    )
    for kind, names in INTERNAL.items():
        held = next(found for found in CLASSES.values() if found.__name__ == kind)
        assert names <= set(methods_of(held)), kind


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_all_sections(name: str) -> None:
    assert lacking(FUNCTIONS[name], needs_errors=True) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_public_method_has_all_sections(name: str) -> None:
    """What a game of one's own does is not the library's to say: its methods raise nothing by themselves."""
    needs_errors = not name.startswith(("dpvalue.games.Game.", "dpvalue.Job.first_request"))
    assert lacking(METHODS[name], needs_errors) == []


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_says_what_it_holds_and_has_an_example(name: str) -> None:
    kind = CLASSES[name]
    text = inspect.getdoc(kind) or ""
    assert ">>> " in text.partition("\nExample:\n")[2]
    held = [field.name for field in fields(kind) if field.init] if is_dataclass(kind) else []
    for field in held:
        assert field.startswith("_") or re.search(rf"^    {field}: |`{field}`", text, re.MULTILINE), f"{name}.{field}"


def test_what_holds_for_a_guarantee_stands_in_the_docstring() -> None:
    stated = [dpv.value, dpv.release, dpv.federated, dpv.plan, dpv.audit, dpv.baselines.public_loss, dpv.Privacy]
    stated += [dpv.Result, dpv.Table, dpv.Table.value, dpv.FederatedResult, dpv.Party, dpv.Ledger, dpv.Plan.release]
    stated += [dpv.tasks.removal_curve, dpv.tasks.addition_curve, dpv.privacy.total_epsilon]
    for promise in stated:
        assert "Formal guarantee" in (inspect.getdoc(promise) or ""), promise


def test_examples_are_collected() -> None:
    """The doctests run from the source, with the names that `src/conftest.py` gives them."""
    root = Path(__file__).parents[2]
    assert "--doctest-modules" in (root / "pyproject.toml").read_text()
    assert "doctest_namespace" in (root / "src" / "conftest.py").read_text()
