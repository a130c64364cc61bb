"""The public names: where they are, and how they are imported."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpvalue as dpv

SOURCE = Path(dpv.__file__).parent
MODULES = ("baselines", "detection", "diagnostics", "games", "privacy", "tasks")
NAMES = [*dpv.__all__, *(f"{module}.{name}" for module in MODULES for name in getattr(dpv, module).__all__)]

# One interpreter, in which dpvalue is forgotten before each name: only torch and its kind stay loaded.
FRESH = """
import importlib, sys
import torch, numpy

def forget():
    for name in [name for name in sys.modules if name.split(".")[0] == "dpvalue"]:
        del sys.modules[name]

for name in sys.argv[1:]:
    module, _, last = f"dpvalue.{name}".rpartition(".")
    forget()
    import dpvalue
    found = dpvalue
    for part in name.split("."):
        found = getattr(found, part)
    assert found.__name__.rpartition(".")[2] == last, name
    if "." in name:
        forget()  # of the top, an import takes the same way as the attribute
    exec(f"from {module} import {last} as imported")
    assert imported.__name__ == found.__name__, name
print(len(sys.argv) - 1)
"""


@pytest.mark.slow
def test_every_public_name_is_imported_both_ways_in_a_fresh_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH, *NAMES], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(NAMES)}\n"
    assert len(NAMES) > 60


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_is_an_attribute_and_can_be_imported(module: str) -> None:
    found = importlib.import_module(f"dpvalue.{module}")
    assert isinstance(found, ModuleType)
    assert getattr(dpv, module) is found
    for name in found.__all__:
        assert getattr(found, name) is not None
        assert not name.startswith("_")


def test_the_names_of_a_type_checker_are_the_names_of_the_package() -> None:
    """What is imported under TYPE_CHECKING is where `__getattr__` finds it."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (checked,) = (node for node in tree.body if isinstance(node, ast.If))
    told = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(told) == sorted(dpv.__all__)
    for name, module in told.items():
        assert module is not None
        assert getattr(importlib.import_module(module), name) is getattr(dpv, name), name
