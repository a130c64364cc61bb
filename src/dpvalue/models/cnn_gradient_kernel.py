"""The gradients of many of the paper's CNNs, each on one image of its own, in one launch on a GPU.

Such a step is some thirty small operations, and launching them, even from a recorded graph, takes longer than their
work. Here one program has one model and its image: feature maps stay in registers, forth and back. Arithmetic is plain
float32.
"""

# Triton's functions are written in Python's words, and not in its types.
# mypy: disable-error-code="assignment, misc, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 8
MOST_CELLS = 256
"""Windows of the pooling: a program keeps sixteen maps of so many numbers in registers, forth and back."""


@triton.jit
def _gradients(
    theta, x, y, weights, out, size,
    COLOURS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    OUTPUTS: tl.constexpr, CELLS: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, 16)[:, None]
    cell = tl.arange(0, CELLS)[None, :]  # a window of the pooling
    there = (cell < ROWS * COLUMNS) & (channel < 16)
    pixel = (2 * (cell // COLUMNS)) * WIDTH + 2 * (cell % COLUMNS) + 0 * channel
    image = x + model * (COLOURS * HEIGHT * WIDTH)
    kernels, found = theta + model * size, out + model * size
    biases = 144 * COLOURS
    linear = biases + 16
    features = 16 * ROWS * COLUMNS
    shifts = linear + OUTPUTS * features
    feature = channel * (ROWS * COLUMNS) + cell
    # Forth: the largest of the four sums of a window, and at which of them it is.
    largest = tl.full((16, CELLS), float("-inf"), dtype=tl.float32)
    corner = tl.zeros((16, CELLS), dtype=tl.int32)
    for place in tl.static_range(4):
        total = tl.zeros((16, CELLS), dtype=tl.float32)
        for tap in tl.static_range(9 * COLOURS):
            offset = (tap // 9 * HEIGHT + place // 2 + tap % 9 // 3) * WIDTH + place % 2 + tap % 3
            kernel = tl.load(kernels + channel * (9 * COLOURS) + tap)
            total += kernel * tl.load(image + pixel + offset, mask=there, other=0.0)
        corner = tl.where(total > largest, place // 2 * WIDTH + place % 2, corner)
        largest = tl.maximum(largest, total, propagate_nan=tl.PropagateNan.ALL)
    largest += tl.load(kernels + biases + channel)
    hidden = tl.where(there, tl.maximum(largest, 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0)
    logits = ()
    for output in tl.static_range(OUTPUTS):
        row = tl.load(kernels + linear + output * features + feature, mask=there, other=0.0)
        logits = logits + (tl.sum(tl.sum(row * hidden, axis=1), axis=0) + tl.load(kernels + shifts + output),)  # noqa: RUF005
    # The softmax less the label, by the weight of the row.
    most = logits[0]
    for output in tl.static_range(1, OUTPUTS):
        most = tl.maximum(most, logits[output])
    mass = tl.exp(logits[0] - most)
    for output in tl.static_range(1, OUTPUTS):
        mass += tl.exp(logits[output] - most)
    label, weight = tl.load(y + model), tl.load(weights + model)
    # Back: through the linear layer to what counts of a window, and from there to the taps of the kernels.
    back = tl.zeros((16, CELLS), dtype=tl.float32)
    for output in tl.static_range(OUTPUTS):
        residual = (tl.exp(logits[output] - most) / mass - tl.where(label == output, 1.0, 0.0)) * weight
        row = tl.load(kernels + linear + output * features + feature, mask=there, other=0.0)
        back += residual * row
        tl.store(found + linear + output * features + feature, residual * hidden, mask=there)
        tl.store(found + shifts + output, residual)
    back = tl.where(hidden > 0, back, 0.0 * hidden)  # what is not a number stays so
    channels = tl.arange(0, 16)
    tl.store(found + biases + channels, tl.sum(back, axis=1))
    for tap in tl.static_range(9 * COLOURS):
        offset = (tap // 9 * HEIGHT + tap % 9 // 3) * WIDTH + tap % 3
        seen = tl.load(image + pixel + corner + offset, mask=there, other=0.0)
        tl.store(found + channels * (9 * COLOURS) + tap, tl.sum(back * seen, axis=1))


def cnn_gradients(theta: Tensor, x: Tensor, y: Tensor, weights: Tensor, outputs: int) -> Tensor:
    """Return the gradients (b, size) of the weighted losses of CNNs theta (b, size) on one image each.

    x is (b, 1, colours, h, w), y and weights (b, 1); images are such as `cnn_kernel.fits`.
    """
    _, _, colours, height, width = x.shape
    rows, columns = (height - 2) // 2, (width - 2) // 2
    out = torch.empty_like(theta, memory_format=torch.contiguous_format)
    _gradients[(len(theta),)](
        theta.contiguous(), x.contiguous(), y.contiguous(), weights.contiguous(), out, theta.shape[1],
        COLOURS=colours, HEIGHT=height, WIDTH=width, ROWS=rows, COLUMNS=columns,
        OUTPUTS=outputs, CELLS=triton.next_power_of_2(rows * columns), num_warps=_WARPS, num_stages=1,
    )  # fmt: skip
    return out
