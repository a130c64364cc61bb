"""The benchmark: its baseline is Algorithm 1, its cases run, and its files say on what machine."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dpvalue as dpv
from dpvalue.experiments.bench import cases
from dpvalue.experiments.bench.data import made
from dpvalue.experiments.bench.literal import LiteralLoop
from dpvalue.experiments.bench.machine import measure


def test_the_literal_loop_finds_the_values_of_the_engine() -> None:
    """Without noise, over enough permutations, both estimate the same values."""
    data = made(12, (5,), 3, test=60)
    loop = LiteralLoop(nn.Linear(5, 3), data, torch.device("cpu"))
    loop.start = [torch.zeros_like(p) for p in loop.start]
    literal = loop.shapley(300, 0.5, 0.2, 1.0, 0.0, seed=0)
    engine = dpv.value(
        data.train, data.test, privacy=None, schedule=dpv.Schedule("running-mean", burn_in=0.5), permutations=300,
        clip=1.0, learning_rate=0.2, progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(literal, engine.values["shapley"], atol=0.05 * np.abs(literal).max())


def test_memory_is_measured() -> None:
    found = measure(lambda: np.ones(20_000_000).sum(), gpu=False)
    assert found.peak_bytes == pytest.approx(160e6, rel=0.2)
    assert found.made == 20_000_000


def test_a_case_prints_lines_and_writes_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = cases.BenchmarkLine("a case", 2.0, 1000.0, 3.0, 60.5, "the literal loop", ">= 60")
    monkeypatch.setitem(cases.CPU_CASES, "growth", lambda: [line])
    cases.run_cases(["growth"], tmp_path / "out.json")
    printed = capsys.readouterr().out
    assert "60.5 x the literal loop" in printed
    assert "(target >= 60)" in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["lines"][0]["ratio"] == 60.5
    assert written["machine"]["torch"] == torch.__version__
    with pytest.raises(dpv.DpvalueError, match="case must be one of cpu, gpu"):
        cases.run_cases(["fastest"])


@pytest.mark.slow
def test_the_engine_is_as_good_as_the_literal_loop_on_planted_noise() -> None:
    for line in cases.quality()[1:]:
        difference, error = (float(part) for part in line.note.split("difference ")[1].rstrip(")").split(" ("))
        assert abs(difference) <= 2 * error


@pytest.mark.slow
def test_growth_is_measured_in_processes_of_their_own_and_stopped_at_the_cap() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "growth.py"
    growth = runpy.run_path(str(script))
    source = Path(dpv.__file__).parents[1]
    found = growth["measured"](source, "released", 1, 60)
    assert 0 < found["processor_seconds"] < 60
    assert 100 < found["peak_mb"] < 2000
    assert growth["measured"](source, "rows", 100_000, 1) is None
