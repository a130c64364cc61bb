"""A row's gradient has the same bits wherever it stands, alone or among any others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dpvalue.models import DescriptionModel, Linear, Model, Network, Score, build_model, head_on_trunk, project_model
from dpvalue.party.people import add_by_turns, add_in_order, lone_gradients, lone_inputs
from dpvalue.privacy.clipping import clip_rows, normalise_rows

CPU = torch.device("cpu")


def linear(features: int, outputs: int, dtype: torch.dtype) -> Model:
    return Linear(features, outputs, "classification" if outputs > 1 else "regression", dtype, CPU)


def along(features: int, outputs: int, dtype: torch.dtype) -> Model:
    model = Linear(features, outputs, "classification" if outputs > 1 else "regression", dtype, CPU)
    basis = torch.linalg.qr(torch.randn(model.size, 3, dtype=dtype))[0].T
    return project_model(model, torch.randn(model.size, dtype=dtype), basis)


def score(features: int, outputs: int, dtype: torch.dtype) -> Model:
    model = Linear(features, outputs, "classification" if outputs > 1 else "regression", dtype, CPU)
    line = torch.nn.functional.normalize(torch.randn(1, model.size, dtype=dtype))
    return Score(project_model(model, torch.randn(model.size, dtype=dtype), line))


def network(features: int, outputs: int, dtype: torch.dtype) -> Model:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(features, 5), nn.Tanh(), nn.Linear(5, outputs))

    task = "classification" if outputs > 1 else "regression"
    return build_model(factory, task, torch.zeros(features, dtype=dtype), outputs, dtype, CPU)


def described(features: int, outputs: int, dtype: torch.dtype) -> Model:
    """The head of a network, which is asked for descriptions."""
    whole = network(features, outputs, dtype)
    assert isinstance(whole, Network)
    trunk = torch.cat([whole.initial(0), torch.zeros(5, dtype=dtype), torch.ones(1, dtype=dtype)])
    head = head_on_trunk(whole, torch.zeros(features, dtype=dtype), trunk)
    basis = torch.linalg.qr(torch.randn(head.size, 3, dtype=dtype))[0].T
    return DescriptionModel(head, torch.randn(head.size, dtype=dtype), basis, 2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", [linear, along, score, network, described])
@pytest.mark.parametrize(("features", "outputs"), [(1, 1), (4, 2), (30, 3), (54, 7), (257, 10)])
def test_bits_do_not_depend_on_the_place(
    make: Callable[..., Model], features: int, outputs: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(features)
    model = make(features, outputs, dtype)
    rows = 12 if make in (network, described) else 67
    x, y = torch.randn(rows, features, dtype=dtype), torch.arange(rows) % max(outputs, 2)
    y = y if outputs > 1 else y.to(dtype)
    theta = torch.randn(rows, model.size, dtype=dtype)

    def found(some: torch.Tensor) -> torch.Tensor:
        gradients = lone_gradients(model, theta[some], lone_inputs(model, x[some]), model.targets(y[some]))
        clipped = [rule(gradients[:, None], 0.7)[:, 0] for rule in (clip_rows, normalise_rows)]
        return torch.cat([gradients, *clipped], dim=1)

    alone = torch.cat([found(torch.tensor([row])) for row in range(rows)])
    for some in (torch.arange(rows), torch.randperm(rows), torch.randperm(rows)[: rows // 2], torch.arange(3)):
        assert torch.equal(found(some), alone[some])
    # And they are the gradients.
    expected = model.record_gradients(theta, model.inputs(x)[:, None], model.targets(y)[:, None])[:, 0]
    torch.testing.assert_close(alone[:, : model.size], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_adding_by_turns_is_adding_one_after_the_other(rows: int) -> None:
    torch.manual_seed(rows)
    index, values = torch.randint(7, (rows,)), torch.randn(rows, 3)
    expected = torch.randn(7, 3)
    found, plain = expected.clone(), expected.clone()
    for place, row in zip(index, values, strict=True):
        expected[place] += row
    add_by_turns(found, index, values)
    add_in_order(plain, index, values)
    assert torch.equal(found, expected)
    assert torch.equal(plain, expected)
