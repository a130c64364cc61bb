"""On a GPU values, noise and whole numbers are those of the CPU, and recorded steps and the kernel compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dpvalue as dpv
from dpvalue.engine.engines import Graph
from dpvalue.models import build_model
from tests import gpu_checks as checks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]


def whole(*shape: int) -> Tensor:
    """Small whole numbers on the GPU: sums and products of them are exact in any order."""
    return torch.randint(-9, 10, shape, device="cuda").float()


def test_a_recorded_computation_computes_the_same() -> None:
    weights = whole(3, 2)

    def work(x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        return x @ weights + shift, x.sum(1)

    graph = Graph(work, whole(5, 3), whole(2))
    for _ in range(3):
        x, shift = whole(5, 3), whole(2)
        kept = x.clone(), shift.clone()
        for found, expected in zip(graph(x, shift), work(*kept), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(x, kept[0])
        assert torch.equal(shift, kept[1])


def test_a_recorded_computation_reads_other_tensors_anew() -> None:
    weights = torch.ones(2, device="cuda")
    graph = Graph(lambda x: (x * weights,), torch.ones(2, device="cuda"))
    weights.fill_(3)
    assert graph(torch.full((2,), 2.0, device="cuda"))[0].tolist() == [6, 6]


def test_what_a_recorded_computation_returns_holds_until_the_next_call() -> None:
    graph = Graph(lambda x: (x + 1,), torch.zeros(1, device="cuda"))
    (first,) = graph(torch.ones(1, device="cuda"))
    assert first.item() == 2
    graph(torch.full((1,), 5.0, device="cuda"))
    assert first.item() == 6


def test_a_recorded_computation_takes_as_many_tensors_as_it_was_recorded_with() -> None:
    graph = Graph(lambda x, y: (x + y,), torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda"))
    with pytest.raises(ValueError, match="zip"):
        graph(torch.ones(1, device="cuda"))


@pytest.mark.parametrize("schedule", [dpv.Schedule("running-mean", block=3), dpv.Schedule("decaying")], ids=str)
def test_walks_by_recorded_steps_are_those_by_single_launches(
    schedule: dpv.Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, privacy = [], dpv.Privacy(50.0, 1e-4)

    class Counted(Graph):
        def __init__(self, work: Callable[..., tuple[Tensor, ...]], *like: Tensor) -> None:
            recorded.append(work)
            super().__init__(work, *like)

    def launched(work: Callable[..., tuple[Tensor, ...]], *like: Tensor) -> Callable[..., tuple[Tensor, ...]]:
        return work

    monkeypatch.setattr("dpvalue.party.interleaved.Graph", Counted)
    by_graph = checks.value("cnn", (1, 12, 12), schedule, "cuda", privacy)
    assert recorded
    monkeypatch.setattr("dpvalue.party.interleaved.Graph", launched)
    by_launch = checks.value("cnn", (1, 12, 12), schedule, "cuda", privacy)
    assert checks.gap(by_launch, by_graph) < checks.LARGEST_GAP


@pytest.mark.parametrize(("shape", "outputs", "images"), checks.KERNELS)
def test_the_cnns_kernel_computes_what_torch_does(shape: checks.Shape, outputs: int, images: int) -> None:
    assert checks.kernel_gap(shape, outputs, images, "cuda") < checks.LARGEST_KERNEL_GAP
    if outputs > 1:
        assert checks.gradient_gap(shape, outputs, "cuda") < checks.LARGEST_KERNEL_GAP


@pytest.mark.parametrize(
    ("shape", "outputs", "dtype", "device", "served"),
    [
        ((1, 8, 8), 10, torch.float32, "cuda", True),
        ((4, 8, 8), 16, torch.float32, "cuda", True),
        ((5, 8, 8), 10, torch.float32, "cuda", False),
        ((1, 8, 8), 17, torch.float32, "cuda", False),
        ((1, 8, 8), 10, torch.float64, "cuda", False),
        ((1, 8, 8), 10, torch.float32, "cpu", False),
    ],
)
def test_the_cnn_uses_the_kernel_where_it_fits_and_computes_the_same_without(
    shape: checks.Shape, outputs: int, dtype: torch.dtype, device: str, served: bool
) -> None:
    from dpvalue.models.cnn_kernels import fits

    example = torch.zeros(shape, dtype=dtype, device=device)
    assert fits(example, outputs) == served
    model = build_model("cnn", "classification", example, outputs, dtype, torch.device(device))
    assert (getattr(model, "_kernel", None) is not None) == served
    oracle = build_model("cnn", "classification", example.cpu().double(), outputs, torch.float64, torch.device("cpu"))
    theta = torch.stack([oracle.initial(0), oracle.initial(1)])
    x = torch.randn(7, *shape, generator=torch.Generator().manual_seed(0)).double()
    found = model.outputs(theta.to(device, dtype), x.to(device, dtype))
    assert checks.gap(oracle.outputs(theta, x), found) < checks.LARGEST_GAP  # torch's own convolutions may use TF32


@pytest.mark.parametrize("schedule", checks.SCHEDULES, ids=str)
@pytest.mark.parametrize(("model", "shape"), checks.PROBLEMS)
def test_values_are_those_of_the_cpu(model: str, shape: checks.Shape, schedule: dpv.Schedule) -> None:
    cpu, gpu = (checks.value(model, shape, schedule, device) for device in ("cpu", "cuda"))
    assert checks.gap(cpu, gpu) < checks.LARGEST_GAP


def test_the_refit_game_is_that_of_the_cpu() -> None:
    cpu, gpu = (checks.refit("logistic", (20,), device) for device in ("cpu", "cuda"))
    assert checks.gap(cpu, gpu) < checks.LARGEST_REFIT_GAP


@pytest.mark.parametrize(("model", "shape"), checks.PROBLEMS)
def test_noise_has_the_stated_scale(model: str, shape: checks.Shape) -> None:
    assert checks.spread(model, shape, "cuda") == pytest.approx(1, abs=checks.SPREAD_WITHIN)


@pytest.mark.parametrize("unit", checks.MAY_MOVE)
@pytest.mark.parametrize(("model", "shape"), checks.NEIGHBOURS)
def test_no_unit_moves_anothers_whole_numbers(model: str, shape: checks.Shape, unit: checks.Unit) -> None:
    assert checks.moved(model, shape, unit, "cuda") == checks.MAY_MOVE[unit]


def test_runs_are_walked_side_by_side_as_by_themselves() -> None:
    assert checks.abreast_gap("cuda") < checks.LARGEST_GAP


def test_large_images_have_gradients_layer_by_layer() -> None:
    for side, served in ((34, True), (36, False)):  # 16 x 16 windows of the pooling, and 17 x 17
        example = torch.zeros(1, side, side, device="cuda")
        model = build_model("cnn", "classification", example, 10, torch.float32, torch.device("cuda"))
        assert (getattr(model, "_gradients_of_one", None) is not None) == served
