"""Membership inference by values: it works without differential privacy, and stays under its bound with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue.auditing.membership import _likelihood_ratios
from dpvalue.runs.demo import embedded


def attack(name: str, **given: Any) -> dpv.MembershipAttack:
    X, y = embedded(name)
    order = np.random.default_rng(1).permutation(len(X))
    mine, public = order[:300], order[300:]
    settings: dict[str, Any] = {"permutations": 100, "preprocess": StandardScaler(), **given}
    return dpv.membership_attack((X[mine], y[mine]), (X[public], y[public]), progress=False, **settings)


GAUSSIAN = dpv.Privacy(1.0, mechanism="gaussian")
PAPER = dpv.Schedule("running-mean", burn_in=0.9, block=20)


@pytest.mark.slow
def test_without_privacy_members_are_told() -> None:
    found = attack("diabetes", privacy=None)
    assert len(found.aurocs) == 40
    assert found.mean > 0.5 + 3 * found.std_error
    assert found.bound == 1.0
    assert "no differential privacy: AUROC 0.5" in str(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["breast-cancer", "diabetes"])
@pytest.mark.parametrize("how", ["default", "gaussian", "paper"])
def test_with_privacy_the_attack_stays_under_its_bound(name: str, how: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "default": {},
        "gaussian": {"privacy": GAUSSIAN},
        "paper": {"privacy": GAUSSIAN, "schedule": PAPER},
    }
    found = attack(name, **settings[how])
    assert len(found.aurocs) == 40
    assert found.mean < found.bound + 3 * found.std_error
    assert found.mean < 0.5 + 4 * found.std_error  # far under it, in fact
    assert found.holds


@pytest.mark.slow
def test_bounds_are_those_of_replacing_one_party() -> None:
    quick: dict[str, Any] = {"trials": 2, "shadows": 12, "members": 6, "shadow_rows": 40, "permutations": 20}
    gaussian = attack("diabetes", privacy=GAUSSIAN, **quick)
    assert gaussian.bound == pytest.approx(0.6167, abs=1e-3)  # Phi(mu), mu = 0.297
    laplace = attack("diabetes", privacy=dpv.Privacy(1.0, 0.0), **quick)
    assert laplace.bound == pytest.approx(1 - np.exp(-1) / 2, abs=1e-6)
    replace = attack("diabetes", privacy=dpv.Privacy(1.0, 0.0, neighbours="replace"), **quick)
    assert replace.bound == pytest.approx(1 - np.exp(-0.5) / 2, abs=1e-6)


@pytest.mark.slow
def test_it_is_repeatable_and_says_when_a_bound_is_broken() -> None:
    quick: dict[str, Any] = {"trials": 4, "shadows": 16, "members": 10, "shadow_rows": 60, "permutations": 20}
    first, second = (attack("diabetes", privacy=GAUSSIAN, **quick) for _ in range(2))
    assert first.aurocs.tolist() == second.aurocs.tolist()
    told = dpv.MembershipAttack(np.full(40, 0.9), first.guarantee, first.bound)
    assert not told.holds
    assert "BROKEN" in str(told)


def test_ratios_find_a_planted_difference() -> None:
    generator = np.random.default_rng(0)
    held = generator.random((30, 50)) < 0.4
    seen = generator.normal(0, 1, (30, 50)) + 2.0 * held
    members = np.arange(50) < 25
    told = generator.normal(0, 1, 50) + 2.0 * members
    ratios = _likelihood_ratios(told, seen, held)
    assert dpv.detection.auc(-ratios, members) > 0.85  # Phi(sqrt 2) = 0.921 with laws known
    with pytest.raises(dpv.DpvalueError, match="shadows must be larger"):
        _likelihood_ratios(told, seen, np.zeros((30, 50), dtype=bool))


def test_bad_arguments() -> None:
    with pytest.raises(dpv.DpvalueError, match="rows must number at least 2 x members \\+ shadow_rows = 350, got 300"):
        attack("diabetes", shadow_rows=300)
    with pytest.raises(dpv.DpvalueError, match="shadow_rows must be at least members"):
        attack("diabetes", shadow_rows=10)
    with pytest.raises(dpv.DpvalueError, match="trials must be"):
        attack("diabetes", trials=1)


@pytest.mark.slow
def test_the_command_shows_both_sides() -> None:
    command = [str(Path(sys.executable).with_name("dpvalue")), "audit", "--attack", "membership", "--data", "diabetes"]
    shown = subprocess.run(
        [*command, "--runs", "2", "--permutations", "20"], capture_output=True, text=True, timeout=300, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "no differential privacy: AUROC 0." in shown.stdout
    assert "epsilon = 1, Laplace: AUROC 0." in shown.stdout
    assert "at most 0.816 by the guarantee" in shown.stdout
