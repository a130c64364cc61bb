"""A metric from outside, by its name: in Python, on the command line, in files and on the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.data.utility import METRICS, Metric, register_metric
from tests.datasets import classification
from tests.federation import write_files


def confidence(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean probability that a model (models, rows, classes) gives to the labels."""
    return outputs[:, torch.arange(len(labels)), labels].mean(1)


@pytest.fixture(autouse=True)
def _added() -> Iterator[None]:
    register_metric(Metric("confidence", "mean probability of the label", ("classification",), confidence))
    yield
    del METRICS["confidence"]


def test_it_is_what_a_function_of_its_own_says() -> None:
    train, (features, labels) = classification(6)
    given: dict[str, Any] = {"privacy": None, "game": "steps", "noise": "fast", "progress": False}
    named = dpv.value(train, dpv.Utility(features, labels, metric="confidence"), **given)
    own = dpv.value(
        train, dpv.Utility(features, labels, metric=lambda p, y: float(p[np.arange(len(y)), y].mean())), **given
    )
    np.testing.assert_allclose(named.values["shapley"], own.values["shapley"], atol=1e-12)


def test_the_command_line_and_the_report_know_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"north": 60, "south": 70})
    given = ["north.csv", "south.csv", "--test", "public.csv", "--target", "label", "--unit", "record", "--yes"]
    done = CliRunner().invoke(app, ["run", *given, "--metric", "confidence"])
    assert done.exit_code == 0, done.output
    assert "mean probability of the label" in Path("results/report.html").read_text()
    again = CliRunner().invoke(app, ["revalue", "results", "--metric", "loss"])
    assert again.exit_code == 0, again.output
    first, second = (pd.read_csv(file)["shapley"].sum() for file in Path("results").rglob("values.csv"))
    assert first != second
