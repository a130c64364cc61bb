"""Times the kernels of the paper's CNN on a GPU: outputs in several shapes of a tile, and gradients of one image each.

Beside each time stands the gap to torch: of outputs in float64, of gradients by the layers one after the other. Needs
torch for a GPU, and numpy.
"""

# ruff: noqa: T201
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from dpvalue.models import cnn_kernels
from dpvalue.models.cnn import PaperCNN

MODELS, STEP = 800, 20
IMAGES = {1: (28, 1000), 3: (32, 500)}
"""By the number of colours: the side of an image, and how many there are."""
SHAPES = {
    1: ((64, 1, 4), (128, 1, 2), (128, 1, 4), (128, 1, 8), (128, 2, 4), (256, 4, 4), (64, 1, 8), (64, 1, 16)),
    3: ((32, 1, 4), (64, 1, 2), (64, 1, 4), (64, 1, 8), (128, 2, 4)),
}


def milliseconds(work: Callable[..., Tensor], *given: Any) -> float:
    """Return the least time of three, after one that is not counted."""
    work(*given)
    times = []
    for _ in range(3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work(*given)
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return min(times)


def gap(found: Tensor, expected: Tensor) -> float:
    """Return how far two tensors are apart, beside the length of the second."""
    return float((found - expected).norm() / expected.norm())


def measure(colours: int, side: int, images: int) -> None:
    """Print the times of both kernels on images of so many colours."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.rand(images, colours, side, side, device="cuda", generator=generator)
    model = PaperCNN(x[0], 10, "classification", torch.float32, torch.device("cuda"))
    theta = torch.stack([model.initial(seed) for seed in range(4)]).repeat(MODELS // 4, 1)
    theta = theta + 0.05 * torch.randn(theta.shape, device="cuda", generator=generator)
    expected = model.module(theta[5]).double().cuda()(x.double())
    used = cnn_kernels._SHAPES[colours]
    for shape in SHAPES[colours]:
        cnn_kernels._SHAPES[colours] = shape
        each = 1000 * milliseconds(cnn_kernels.cnn_outputs, theta, x, 10) / MODELS
        far = gap(cnn_kernels.cnn_outputs(theta, x, 10)[5], expected)
        said = f"{shape}{' (used)' if shape == used else ''}"
        print(f"{colours} colour(s), tile {said}: {each:.1f} us a model, gap {far:.1e}")
    cnn_kernels._SHAPES[colours] = used
    given = (theta[:STEP], x[:STEP, None], torch.arange(STEP, device="cuda")[:, None] % 10, x.new_ones(STEP, 1))
    kernel, found = 1000 * milliseconds(model.gradients, *given), model.gradients(*given)
    model._gradients_of_one = None
    layers, far = 1000 * milliseconds(model.gradients, *given), gap(found, model.gradients(*given))
    print(f"{colours} colour(s), {STEP} gradients: {kernel:.0f} us, layer by layer {layers:.0f} us, gap {far:.1e}")


for colours, (side, images) in IMAGES.items():
    measure(colours, side, images)
