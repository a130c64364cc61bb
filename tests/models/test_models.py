"""Models: closed forms against autograd, the paper's CNN, and what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpvalue as dpv
from dpvalue.models import Linear, Network, PaperCNN, build_model, paper_cnn
from tests.datasets import classification

CPU = torch.device("cpu")
F64 = torch.float64


def flatten_linear(features: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(features, outputs))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_closed_forms_equal_autograd(task: str) -> None:
    outputs = 3 if task == "classification" else 1
    closed = Linear(6, outputs, task, F64, CPU)
    example = torch.zeros(2, 3, dtype=F64)
    network = Network(lambda: flatten_linear(6, outputs), task, "custom", example, F64, CPU)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=F64)

    theirs_theta, x, weights = draw(4, closed.size), draw(4, 5, 2, 3), draw(4, 5).abs()
    y = torch.randint(3, (4, 5), generator=generator) if task == "classification" else draw(4, 5)
    ours_theta = rows_first(theirs_theta, outputs)
    ours_x, ours_y = closed.inputs(x.flatten(0, 1)).unflatten(0, (4, 5)), closed.targets(y)
    ours_loss, theirs_loss = closed.mean_loss(ours_x[0], y[0]), network.mean_loss(x[0], y[0])
    theirs_records = rows_first(network.record_gradients(theirs_theta, x, y), outputs)
    for ours, theirs in (
        (closed.outputs(ours_theta, ours_x[0]), network.outputs(theirs_theta, x[0])),
        (ours_loss(ours_theta), theirs_loss(theirs_theta)),
        (ours_loss(ours_theta * 50), theirs_loss(theirs_theta * 50)),  # logits beyond where exponentials are safe
        (closed.gradients(ours_theta, ours_x, ours_y, weights), (theirs_records * weights[..., None]).sum(1)),
        (
            closed.gradients(ours_theta, ours_x, ours_y, weights),
            rows_first(network.gradients(theirs_theta, x, y, weights), outputs),
        ),
        (closed.record_gradients(ours_theta, ours_x, ours_y), theirs_records),
        (closed.gradients(ours_theta, ours_x[:, :1], ours_y[:, :1], weights[:, :1] * 0 + 1), theirs_records[:, 0]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def rows_first(theta: Tensor, outputs: int) -> Tensor:
    """The parameters of `nn.Linear(6, outputs)` in the layout of the closed form: a row (weights, bias) per output."""
    weight, bias = theta[..., : 6 * outputs].unflatten(-1, (outputs, 6)), theta[..., 6 * outputs :]
    return torch.cat([weight, bias.unsqueeze(-1)], dim=-1).flatten(-2)


def test_the_papers_cnn_on_mnist_has_27210_parameters() -> None:
    model = build_model("cnn", "classification", torch.zeros(1, 28, 28), 10, torch.float32, CPU)
    assert model.size == 27210


def test_logistic_regression_on_covertype_has_385_parameters() -> None:
    assert build_model("logistic", "classification", torch.zeros(54), 7, torch.float32, CPU).size == 385


def test_a_single_model_and_a_batch_give_the_same_outputs() -> None:
    model = build_model("cnn", "classification", torch.zeros(1, 8, 8, dtype=F64), 3, F64, CPU)
    theta = torch.stack([model.initial(0), model.initial(1)])
    x = torch.randn(5, 1, 8, 8, dtype=F64)
    torch.testing.assert_close(model.outputs(theta, x)[:1], model.outputs(theta[:1], x))


def test_initial_models_are_seeded_and_leave_torchs_own_generator_alone() -> None:
    model = build_model("cnn", "classification", torch.zeros(1, 8, 8), 3, torch.float32, CPU)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    starts = [model.initial(4), model.initial(4), model.initial(5), model.initial(4, 1)]
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])
    assert not torch.equal(starts[0], starts[3])


class RandomForward(nn.Linear):
    """Draws random numbers as it computes."""

    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, training=True)


@pytest.mark.slow
def test_a_factory_may_hand_out_the_callers_own_module() -> None:
    train, (X, y) = classification(6)
    mine = nn.Linear(4, 3)
    before = mine.weight.detach().clone()
    public = dpv.Utility(X, y, metric=lambda outputs, labels: float(outputs[:, 0].sum()))
    result = dpv.value(train, public, model=lambda: mine, clip=1.0, learning_rate=0.1, progress=False)
    result.noise_std()
    assert torch.equal(mine.weight, before)
    assert mine.weight.requires_grad


def normed(evaluating: bool, track: bool = True) -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, track_running_stats=track), nn.Linear(5, 3))
    return module.eval() if evaluating else module


def test_batch_norm_in_training_mode_is_refused_with_the_reason() -> None:
    train, test = classification(6)
    settings = {"clip": 1.0, "learning_rate": 0.1, "progress": False, "projection": None}
    for factory in (lambda: normed(False), lambda: normed(True, track=False)):
        with pytest.raises(dpv.DpvalueError, match="mixes the rows of a batch"):
            dpv.value(train, test, model=factory, **settings)  # type: ignore[arg-type]
    result = dpv.value(train, test, model=lambda: normed(True), **settings)  # type: ignore[arg-type]
    assert result.table.rows.shape == (6, 25 + 10 + 18)


def test_dropout_in_training_mode_is_refused() -> None:
    train, test = classification(6)
    with pytest.raises(dpv.DpvalueError, match="dropout in training mode"):
        dpv.value(train, test, model=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), progress=False)


def test_frozen_parameters_do_not_move_and_are_part_of_the_digest() -> None:
    def factory(scale: float) -> nn.Module:
        trunk, head = nn.Linear(4, 5), nn.Linear(5, 3)
        trunk.requires_grad_(False)
        nn.init.constant_(trunk.weight, scale)
        nn.init.constant_(trunk.bias, 0.0)
        return nn.Sequential(trunk, nn.Tanh(), head)

    models = [
        build_model(partial(factory, scale), "classification", torch.zeros(4), 3, torch.float32, CPU)
        for scale in (0.1, 0.2)
    ]
    assert models[0].size == 18
    assert models[0].digest() != models[1].digest()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("forest", "model must be one of logistic, linear, cnn"),
        (7, "model must be one of"),
        (lambda: "no module", "must be a callable that returns a torch nn.Module, got str"),
        (lambda: nn.Linear(9, 3), "cannot take a row of shape"),
        (lambda: nn.Linear(4, 2), r"model must have 3 \(the classes of the public set\) outputs, got 2"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "at least one parameter with requires_grad"),
        ("cnn", "model 'cnn' needs images"),
        (nn.Linear(4, 3), "got a module: pass lambda"),
        (RandomForward, "cannot be differentiated for several parties at once"),
    ],
)
def test_models_that_do_not_fit_are_refused(model: object, message: str) -> None:
    train, test = classification(6)
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.value(train, test, model=model, progress=False)  # type: ignore[arg-type]


def test_fresh_start_needs_a_random_start() -> None:
    train, test = classification(6)
    with pytest.raises(dpv.DpvalueError, match="starts at zero"):
        dpv.value(train, test, schedule=dpv.Schedule("running-mean", fresh_start=True), progress=False)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 6), (2, 5, 11)])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_cnns_closed_form_equals_autograd(shape: tuple[int, int, int], task: str) -> None:
    outputs = 3 if task == "classification" else 1
    example = torch.zeros(shape, dtype=F64)
    closed = PaperCNN(example, outputs, task, F64, CPU)
    network = Network(lambda: paper_cnn(shape, outputs), task, "custom", example, F64, CPU)
    generator = torch.Generator().manual_seed(0)
    theta = closed.initial(0) + 0.3 * torch.randn(4, closed.size, generator=generator, dtype=F64)
    x = torch.randn(4, 5, *shape, generator=generator, dtype=F64)
    x[0, 0] = 0.0  # a blank image: every window has four equal values
    y = torch.randint(3, (4, 5), generator=generator) if task == "classification" else torch.randn(4, 5, dtype=F64)
    weights = torch.rand(4, 5, generator=generator, dtype=F64)
    assert torch.equal(closed.initial(3), network.initial(3))
    for ours, theirs in (
        (closed.outputs(theta, x[0]), network.outputs(theta, x[0])),
        (closed.gradients(theta, x, y, weights), network.gradients(theta, x, y, weights)),
        (closed.record_gradients(theta, x, y), network.record_gradients(theta, x, y)),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_the_cnn_is_the_papers_function() -> None:
    module = paper_cnn((1, 28, 28), 10)
    conv, linear = (layer for layer in module.children() if isinstance(layer, nn.Conv2d | nn.Linear))
    x = torch.randn(3, 1, 28, 28)
    as_printed = linear(nn.functional.max_pool2d(conv(x).relu(), 2, 2).flatten(1))
    torch.testing.assert_close(module(x), as_printed)


class Looked(nn.Module):
    """Looks a number up by what is in the row."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.table, self.out, self.how = nn.Embedding(10, 3), nn.Linear(3, 2), how
        self.places = torch.tensor([0, 2, 1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "embedding":
            found = self.table(x[:, 0].long())
        elif self.how == "index":
            found = self.table.weight[x[:, 0].long()]
        elif self.how == "gather":
            found = self.table.weight[:, 0].expand(len(x), -1).gather(1, x[:, :3].long())
        else:
            found = x[:, :3][:, self.places]  # always the same places
        outputs: torch.Tensor = self.out(found)
        return outputs


@pytest.mark.parametrize("how", ["embedding", "index", "gather"])
def test_a_lookup_by_a_rows_own_index_is_refused(how: str) -> None:
    """In a batch, an index out of range would reach another party's parameters; alone it would raise."""
    generator = np.random.default_rng(0)
    X, y = generator.integers(0, 10, (40, 4)).astype(float), np.arange(40) % 2
    with pytest.raises(dpv.DpvalueError, match="model looks something up by an index that comes from a row"):
        dpv.value((X[:20], y[:20]), (X[20:], y[20:]), model=lambda: Looked(how), progress=False)
    for call in (dpv.audit, dpv.plan):
        with pytest.raises(dpv.DpvalueError, match="model looks something up"):
            call(20, (X[20:], y[20:]), model=lambda: Looked(how))


def test_no_row_moves_the_gradient_of_another_party() -> None:
    generator = np.random.default_rng(0)
    X, y = generator.integers(0, 10, (40, 4)).astype(float), np.arange(40) % 2
    settings: dict[str, Any] = {"model": lambda: Looked("places"), "privacy": None, "clip": 1.0, "progress": False,
        "schedule": dpv.Schedule("replay", rounds=1), "learning_rate": 0.1}  # fmt: skip
    before = dpv.release((X[:20], y[:20]), (X[20:], y[20:]), **settings)
    for bad in (50.0, -3.0, 1e9, 1e38):
        changed = X[:20].copy()
        changed[0] = bad
        after = dpv.release((changed, y[:20]), (X[20:], y[20:]), **settings)
        assert torch.equal(before.rows[1:], after.rows[1:])
