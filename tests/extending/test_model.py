"""A model from outside, by its name: softmax regression without a bias, with nothing but the members of `Model`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
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
from dpvalue.models import COLUMN_MODELS, TASK_OF, Model, build, build_model, register_model, row_losses
from tests.datasets import classification
from tests.federation import write_files


class Unbiased:
    """Logits x W^T; parameters are W (classes, features), flat."""

    task, kind, zero_start = "classification", "unbiased", True

    def __init__(self, example: Tensor, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> None:
        self.features, self.classes, self._like = example.numel(), outputs, torch.zeros(0, dtype=dtype, device=device)
        self.size = self.numbers = self.features * outputs

    def initial(self, seed: int, index: int = 0) -> Tensor:
        return self._like.new_zeros(self.size)

    def inputs(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def targets(self, y: Tensor) -> Tensor:
        return y

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        return x @ theta.view(len(theta), self.classes, self.features).transpose(1, 2)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        def mean(theta: Tensor) -> Tensor:
            outputs = self.outputs(theta, x)
            return row_losses(self.task, outputs, y.expand(len(theta), -1)).mean(-1, dtype=torch.float64)

        return mean

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        residuals = self.outputs(theta, x).softmax(-1)
        residuals = residuals - torch.nn.functional.one_hot(y, self.classes).to(residuals)
        return (residuals.unsqueeze(-1) * x.unsqueeze(-2)).flatten(2)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (self.record_gradients(theta, x, y) * weights.unsqueeze(-1)).sum(1)

    def squared_norm(self, theta: Tensor) -> Tensor:
        return theta.to(torch.float64).square().sum(-1)

    def numbers_per_row(self) -> int:
        return self.classes

    def digest(self) -> str:
        return hashlib.sha256(f"unbiased {self.features} {self.classes}".encode()).hexdigest()


@pytest.fixture(autouse=True)
def _added() -> Iterator[None]:
    register_model("unbiased", "classification", Unbiased)
    yield
    del TASK_OF["unbiased"], build._BUILDERS["unbiased"]
    COLUMN_MODELS.remove("unbiased")


def test_its_gradients_are_autograds() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (3, 5), generator=generator)
    model: Model = build_model("unbiased", "classification", x[0, 0], 3, torch.float64, torch.device("cpu"))
    theta = torch.randn(3, model.size, generator=generator, dtype=torch.float64).requires_grad_()
    weights = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    (row_losses("classification", model.outputs(theta, x), y) * weights).sum().backward()
    assert theta.grad is not None
    assert torch.allclose(model.gradients(theta.detach(), x, y, weights), theta.grad)


@pytest.mark.parametrize("unit", ["party", "record", "person"])
def test_it_is_valued_saved_and_valued_again(unit: str, tmp_path: Path) -> None:
    (x, y), test = classification(40)
    data: dict[str, Any] = {"groups": np.arange(40) % 8} if unit != "party" else {}
    data |= {"persons": np.arange(40)} if unit == "person" else {}
    privacy = dpv.Privacy(4.0, unit=unit)
    result = dpv.value((x, y), test, model="unbiased", privacy=privacy, noise="fast", progress=False, **data)
    assert np.isfinite(result.values["shapley"]).all()
    result.table.save(tmp_path / "table")
    table = dpv.load(tmp_path / "table")
    assert isinstance(table, dpv.Table)
    again = table.value(test, progress=False)
    assert np.array_equal(again.values["shapley"], result.values["shapley"])
    assert dpv.plan(dpv.Parties(x, y, **data), test, model="unbiased", privacy=privacy).prepared is not None


def test_the_command_line_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, {"north": 60, "south": 70})
    given = ["north.csv", "south.csv", "--test", "public.csv", "--target", "label", "--unit", "record", "--yes"]
    done = CliRunner().invoke(app, ["run", *given, "--model", "unbiased", "--epsilon", "4", "--force"])
    assert done.exit_code == 0, done.output
    assert "unbiased model" in " ".join(done.output.split())
    assert len(pd.read_csv("results/values.csv")) == 2


@pytest.mark.parametrize("name", ["unbiased", "logistic", "auto", "custom", "Upper", "two words", ""])
def test_a_name_is_new(name: str) -> None:
    with pytest.raises(dpv.DpvalueError, match="the name of a model must be a new lower-case word"):
        register_model(name, "classification", Unbiased)
