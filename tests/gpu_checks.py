"""What must hold on a GPU, as measurements and the limits they must keep.

`tests/engine/test_gpu.py` runs them under pytest, `benchmarks/check_gpu.py` on a machine that has torch, numpy and
safetensors alone. Hence no pytest here, and no scikit-learn.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import vector_to_parameters

import dpvalue as dpv
from dpvalue.arrays import Floats, Ints
from dpvalue.experiments.paper.abreast import Lane, walk_abreast
from dpvalue.experiments.paper.methods import open_run, running_mean
from dpvalue.experiments.paper.problem import PaperProblem
from dpvalue.experiments.paper.readings import AS_RUN
from dpvalue.models import build_model, paper_cnn
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.mechanism import make_mechanism
from dpvalue.progress import silent
from tests.datasets import Arrays, classification, images

Shape = tuple[int, ...]
Unit = Literal["party", "record", "person"]

LARGEST_GAP = 1e-3
"""Between values on two devices, as a share of the largest value."""
LARGEST_REFIT_GAP = 0.1
"""The same for the refit game: noise is drawn on the device, so that releases differ, by noise of epsilon = 4."""
LARGEST_KERNEL_GAP = 1e-5
"""Between outputs, or gradients, of a kernel and of torch in float64, as a share of the largest."""
SPREAD_WITHIN = 0.05
"""Of releases over the stated noise, from 1: their other part, a clipped gradient, is small beside it."""

PROBLEMS: tuple[tuple[str, Shape], ...] = (("logistic", (20,)), ("cnn", (1, 12, 12)), ("cnn", (3, 12, 12)))
SCHEDULES = (
    *(dpv.Schedule(kind) for kind in ("independent", "running-mean", "optimal", "decaying")),
    dpv.Schedule("decaying", block=3), dpv.Schedule("running-mean", block=3), dpv.Schedule("replay", probes=3),
)  # fmt: skip
NEIGHBOURS: tuple[tuple[str, Shape], ...] = (("logistic", (20,)), ("logistic", (300,)), ("cnn", (1, 12, 12)))
KERNELS: tuple[tuple[Shape, int, int], ...] = (
    ((1, 28, 28), 10, 130),  # one tile of images and a bit
    ((1, 12, 12), 1, 128),  # a regression, exactly one tile
    ((3, 13, 10), 16, 5),  # an odd side, whose last row no window covers
    ((4, 8, 8), 3, 1),
)
"""Shapes of images, numbers of outputs, and of images."""


def data(shape: Shape, n: int) -> tuple[Arrays, Arrays]:
    """Rows of this shape in four classes, as (train, test)."""
    if len(shape) == 1:
        return classification(n, 4, *shape, test=60)
    (X, y), (public, labels) = images(n, 4, shape[1], test=60)
    colours = np.linspace(1, -0.5, shape[0])[:, None, None]
    return (colours * X[:, None], y), (colours * public[:, None], labels)


def value(model: str, shape: Shape, schedule: dpv.Schedule, device: str, privacy: dpv.Privacy | None = None) -> Any:
    """Shapley values of a small problem, as an array; with privacy, under seeded noise."""
    train, public = data(shape, 120 if model == "logistic" else 24)
    result = dpv.value(
        train, public, model=model, schedule=schedule, permutations=20 if model == "logistic" else 4, privacy=privacy,
        noise="fast", clip=1.0, learning_rate=0.1, projection=None, engine=dpv.Local(device=device), progress=False,
    )  # fmt: skip
    return result.values["shapley"]


def refit(model: str, shape: Shape, device: str) -> Any:
    """Shapley values of data sets by the refit game, under seeded noise."""
    (X, y), public = data(shape, 120)
    result = dpv.value(
        dpv.Parties(X, y, groups=np.repeat(np.arange(4), 30)), public, model=model, game="refit", noise="fast",
        privacy=dpv.Privacy(4.0, 1e-4, unit="record"), engine=dpv.Local(device=device), progress=False,
    )  # fmt: skip
    return result.values["shapley"]


def gap(one: Any, two: Any) -> float:
    """The largest difference, as a share of the largest number."""
    one, two = (torch.as_tensor(each, dtype=torch.float64, device="cpu") for each in (one, two))
    return float((one - two).abs().max() / one.abs().max())


def spread(model: str, shape: Shape, device: str) -> float:
    """The spread of releases over the stated noise: 1 where the noise has the stated scale."""
    train, public = data(shape, 120 if model == "logistic" else 24)
    table = dpv.release(
        train, public, model=model, noise="fast", clip=1.0, learning_rate=1e-6, projection=None, progress=False,
        privacy=dpv.Privacy(2.0, 1e-4), schedule=dpv.Schedule("replay", rounds=1), engine=dpv.Local(device=device),
    )  # fmt: skip
    return float((table.rows / torch.from_numpy(table.noise_std)[:, None]).std())


def whole_numbers(parties: dpv.Parties, public: Arrays, model: str, unit: Unit, device: str) -> Tensor:
    """What all units contribute, in whole steps: of each party, or of its records or persons."""
    privacy = dpv.Privacy(2.0, 1e-4, unit)
    utility, engine = dpv.Utility(*public), dpv.Local(device=device)
    encoding = utility.encoding(model)
    rows = parties.encode(encoding, engine.torch_dtype, engine.torch_device, privacy)
    built = build_model(model, encoding.task, rows.x[0], encoding.outputs, engine.torch_dtype, engine.torch_device)
    contributions = Contributions(built, rows, make_mechanism(privacy, 1.0, 1.0), engine, on_grid=True)
    theta = torch.linspace(-1, 1, built.size, device=device).expand(parties.n, -1)
    grid = contributions.grid()
    assert grid is not None
    clip, noted = Contributions._clip, []

    def noting(*given: Any) -> Tensor:
        noted.append(clip(*given))
        return noted[-1]

    with mock.patch.object(Contributions, "_clip", noting):
        contributions.gradients_at(theta, torch.arange(parties.n, device=device), grid)
    return torch.cat(noted)


def moved(model: str, shape: Shape, unit: Unit, device: str) -> list[list[int]]:
    """The places whose whole numbers change with row 7: those of its party (2) or record ([2, 1]) and no others.

    For unit person, where rows also change places and that person has more of them: [party, how many rows of numbers
    went away] for each party where any did.
    """
    (X, y), public = data(shape, 90)
    groups, persons = np.arange(90) % 5, np.arange(90) // 5 % 6 * 5 + np.arange(90) % 5
    other = np.array(X)
    other[7] *= -3
    before = whole_numbers(dpv.Parties(X, y, groups, persons), public, model, unit, device)
    if unit != "person":
        after = whole_numbers(dpv.Parties(other, y, groups, persons), public, model, unit, device)
        places: list[list[int]] = (before != after).any(-1).nonzero().tolist()
        return places
    order = np.r_[7, np.arange(7), 7, np.arange(8, 90), 7]
    neighbour = dpv.Parties(other[order], y[order], groups[order], persons[order])
    after = whole_numbers(neighbour, public, model, unit, device)
    gone = [
        len({tuple(row) for row in one} - {tuple(row) for row in two})
        for one, two in zip(before.tolist(), after.tolist(), strict=True)
    ]
    return [[party, count] for party, count in enumerate(gone) if count]


MAY_MOVE: dict[Unit, list[list[int]]] = {"party": [[2]], "record": [[2, 1]], "person": [[2, 1]]}


def kernel_gap(shape: Shape, outputs: int, count: int, device: str) -> float:
    """The gap between the outputs of three CNNs on so many images by the kernel, and by torch in float64.

    Infinite if what is not a number does not stay so.
    """
    from dpvalue.models.cnn_kernels import cnn_outputs

    generator = torch.Generator().manual_seed(0)
    module = paper_cnn(shape, outputs).double()
    size = sum(one.numel() for one in module.parameters())
    theta = torch.randn(6, size, generator=generator)[::2] / 4  # every other row: not contiguous
    x = torch.randn(count, *shape, generator=generator)
    expected = []
    with torch.no_grad():
        for one in theta.double():
            vector_to_parameters(one, module.parameters())
            expected.append(module(x.double()))
    broken = theta.clone()
    broken[0, 0] = float("nan")
    if not cnn_outputs(broken.to(device), x.to(device), outputs)[0].isnan().any():
        return float("inf")  # what is not a number must stay so
    return gap(torch.stack(expected), cnn_outputs(theta.to(device), x.to(device), outputs))


def gradient_gap(shape: Shape, outputs: int, device: str) -> float:
    """The gap between the gradients of five CNNs on an image each by the kernel, and by autograd in float64.

    Rows weigh differently, and one that does not count adds nothing; what is not a number stays so.
    """
    from dpvalue.models.cnn_kernels import cnn_gradients

    generator = torch.Generator().manual_seed(0)
    module = paper_cnn(shape, outputs).double()
    size = sum(one.numel() for one in module.parameters())
    theta = torch.randn(10, size, generator=generator)[::2] / 4
    x = torch.randn(5, 1, *shape, generator=generator)
    y = torch.randint(0, outputs, (5, 1), generator=generator)
    weights = torch.tensor([[1.0], [0.5], [0.0], [1.0], [0.25]])
    expected = []
    for one, image, label, weight in zip(theta.double(), x.double(), y, weights.double(), strict=True):
        vector_to_parameters(one, module.parameters())
        loss = torch.nn.functional.cross_entropy(module(image), label, reduction="none") * weight
        parts = torch.autograd.grad(loss.sum(), list(module.parameters()))
        expected.append(torch.cat([part.flatten() for part in parts]))
    found = cnn_gradients(theta.to(device), x.to(device), y.to(device), weights.to(device), outputs)
    for place in (0, -1):  # of a kernel, and of the last layer
        broken = theta.clone()
        broken[0, place] = float("nan")
        got = cnn_gradients(broken.to(device), x.to(device), y.to(device), weights.to(device), outputs)
        if not (got[0].isnan().any() and torch.equal(got[1:], found[1:])):
            return float("inf")
    return gap(torch.stack(expected), found)


def abreast_gap(device: str) -> float:
    """The gap between the marginals of two runs that are walked side by side, and each by itself."""
    lanes, found = [], []
    for seed, rate in enumerate((0.05, 0.02)):
        train, test = data((1, 12, 12), 70)  # a stretch of 50, and the rest
        problem = PaperProblem(train, test, np.zeros(70, dtype=bool))
        own = {"model": "cnn", "engine": dpv.Local(device=device), "reading": AS_RUN.at(rate), "learning_rate": rate}
        run = open_run([running_mean(0.4)], problem, 5, 1.0, metric="loss", seed=seed, **own)
        together: list[Any] = []
        alone: list[Any] = []
        lanes.append(Lane(run, problem, partial(_keep, together)))
        run.walks().run(silent, run.evaluate, partial(_keep, alone))
        found.append((alone, together))
    assert lanes[0].kind == lanes[1].kind is not None
    walk_abreast(lanes)
    return max(gap(np.concatenate(alone), np.concatenate(together)) for alone, together in found)


def _keep(to: list[Any], orders: Ints, marginals: Floats) -> None:
    to.append(marginals)
