"""What examples in docstrings may use without making it: data, a result and a plan.

They are those of the examples of `dpvalue.Result` and `dpvalue.Plan`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpvalue as dpv


@lru_cache(maxsize=1)
def _example() -> dict[str, Any]:
    x, x_test = np.linspace(-2, 2, 240)[:, None], np.linspace(-2, 2, 50)[:, None]
    sites = np.array(["north", "east", "south", "west"])[np.arange(240) % 4]
    y = (x[:, 0] > 0) != (sites == "west")
    train, test = (x, y.astype(int)), (x_test, (x_test[:, 0] > 0).astype(int))
    privacy = dpv.Privacy(8.0, unit="record")
    result = dpv.value(train, test, groups=sites, privacy=privacy, noise="fast", progress=False)
    parties = dpv.Parties(*train, groups=sites)
    return {
        "train": train, "test": test, "sites": sites, "privacy": privacy, "result": result, "table": result.table,
        "parties": parties, "plan": dpv.plan(parties, test, privacy=privacy),
    }  # fmt: skip


@pytest.fixture(autouse=True)
def example(
    request: pytest.FixtureRequest, doctest_namespace: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give an example these names, and a folder of its own to write to."""
    monkeypatch.chdir(tmp_path)
    doctest_namespace.update(_example(), dpv=dpv, np=np)
