"""The paper's CNN on a GPU: outputs of many models in one pass, and gradients on one image per model.

Evaluated layer by layer, the time goes into moving the feature maps of every model to memory and back (43 MB per model
for 1,000 images of MNIST's size). In the kernel of outputs, a thread has a few images of one model and keeps in
registers the pixels of one pooling window, the four sums of a channel there, and the outputs so far. Threads share the
weights and exchange nothing.

A gradient step has some thirty small operations, whose launches take longer than their work, even from a CUDA graph. In
the kernel of gradients, one program has one model and its image, and feature maps stay in registers in both passes.
Arithmetic in both kernels is plain float32.
"""

# Triton's functions do not follow Python's types.
# mypy: disable-error-code="assignment, misc, no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLOURS = 4  # at most; each number of colours compiles its own kernel

_MODELS = 2**15  # a grid has at most 2^16 - 1 places along its second axis

# Images of a tile, the warps that share it, and channels between two branches: by the number of colours.
_SHAPES = {1: (128, 1, 2), 2: (64, 1, 4), 3: (64, 1, 4), 4: (32, 1, 4)}


@triton.jit
def _pixels(first, there, apart, WIDTH: tl.constexpr):
    """Load the 4 x 4 pixels of one colour under a pooling window."""
    pixels = ()
    for place in tl.static_range(16):
        pixel = tl.load(first + (place // 4 * WIDTH + place % 4) * apart, mask=there, other=0.0)
        pixels = pixels + (pixel,)  # noqa: RUF005
    return pixels


@triton.jit
def _convolve(total, pixels, kernel, CORNER: tl.constexpr):
    """Add the convolution of a 3 x 3 kernel with the pixels at a corner."""
    for tap in tl.static_range(9):
        total += pixels[CORNER + tap // 3 * 4 + tap % 3] * tl.load(kernel + tap)
    return total


@triton.jit
def _larger(first, second):
    """Return the larger number; NaN propagates."""
    return tl.maximum(first, second, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _outputs(
    theta, x, out, images, size,
    COLOURS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    OUTPUTS: tl.constexpr, TILE: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    image = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = image < images
    apart = tl.full((), images, dtype=tl.int64)  # of neighbouring pixels of an image
    kernels = theta + model * size
    biases = kernels + 144 * COLOURS
    linear = biases + 16
    features = 16 * ROWS * COLUMNS
    totals = ()
    for output in tl.static_range(OUTPUTS):
        shift = tl.load(linear + OUTPUTS * features + output)
        totals = totals + (tl.zeros((TILE,), dtype=tl.float32) + shift,)  # noqa: RUF005
    for i in range(ROWS):
        for j in range(COLUMNS):
            pixels = ()
            for colour in tl.static_range(COLOURS):
                first = x + ((colour * HEIGHT + 2 * i) * WIDTH + 2 * j) * apart + image
                pixels = pixels + (_pixels(first, there, apart, WIDTH),)  # noqa: RUF005
            for channel in tl.range(16, loop_unroll_factor=UNROLL):
                s00 = tl.zeros((TILE,), dtype=tl.float32) + tl.load(biases + channel)
                s01, s10, s11 = s00, s00, s00
                for colour in tl.static_range(COLOURS):
                    kernel = kernels + (channel * COLOURS + colour) * 9
                    s00 = _convolve(s00, pixels[colour], kernel, 0)
                    s01 = _convolve(s01, pixels[colour], kernel, 1)
                    s10 = _convolve(s10, pixels[colour], kernel, 4)
                    s11 = _convolve(s11, pixels[colour], kernel, 5)
                hidden = _larger(_larger(_larger(s00, s01), _larger(s10, s11)), 0.0)
                weights = linear + channel * (ROWS * COLUMNS) + i * COLUMNS + j
                sums = ()
                for output in tl.static_range(OUTPUTS):
                    sums = sums + (totals[output] + hidden * tl.load(weights + output * features),)  # noqa: RUF005
                totals = sums
    for output in tl.static_range(OUTPUTS):
        tl.store(out + (model * images + image) * OUTPUTS + output, totals[output], mask=there)


def fits(example: Tensor, outputs: int) -> bool:
    """Return whether the kernel supports images like this: float32 on a GPU, few colours, at most 16 classes."""
    return example.is_cuda and example.dtype == torch.float32 and len(example) <= _COLOURS and outputs <= 16


def cnn_outputs(theta: Tensor, x: Tensor, outputs: int) -> Tensor:
    """Return the outputs (b, images, outputs) of the CNNs theta (b, size) on images x (images, colours, h, w)."""
    images, colours, height, width = x.shape
    columns_first = x.permute(1, 2, 3, 0).contiguous()
    out = torch.empty(len(theta), images, outputs, dtype=theta.dtype, device=theta.device)
    tile, warps, unroll = _SHAPES[colours]
    for models, part in zip(theta.contiguous().split(_MODELS), out.split(_MODELS), strict=True):
        _outputs[triton.cdiv(images, tile), len(models)](
            models, columns_first, part, images, theta.shape[1],
            COLOURS=colours, HEIGHT=height, WIDTH=width, ROWS=(height - 2) // 2, COLUMNS=(width - 2) // 2,
            OUTPUTS=outputs, TILE=tile, UNROLL=unroll, num_warps=warps, num_stages=1,
        )  # fmt: skip
    return out


_WARPS = 8

MOST_CELLS = 256
"""The largest number of pooling windows; a program keeps sixteen maps of this size in registers."""


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
    kernels, gradients = theta + model * size, out + model * size
    biases = 144 * COLOURS
    linear = biases + 16
    features = 16 * ROWS * COLUMNS
    shifts = linear + OUTPUTS * features
    feature = channel * (ROWS * COLUMNS) + cell
    # Forward: the largest of the four sums of a window, and its corner.
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
    # The softmax minus the label, times the weight of the row.
    most = logits[0]
    for output in tl.static_range(1, OUTPUTS):
        most = tl.maximum(most, logits[output])
    mass = tl.exp(logits[0] - most)
    for output in tl.static_range(1, OUTPUTS):
        mass += tl.exp(logits[output] - most)
    label, weight = tl.load(y + model), tl.load(weights + model)
    # Backward: through the linear layer to the maxima of windows, then to the taps of the kernels.
    back = tl.zeros((16, CELLS), dtype=tl.float32)
    for output in tl.static_range(OUTPUTS):
        residual = (tl.exp(logits[output] - most) / mass - tl.where(label == output, 1.0, 0.0)) * weight
        row = tl.load(kernels + linear + output * features + feature, mask=there, other=0.0)
        back += residual * row
        tl.store(gradients + linear + output * features + feature, residual * hidden, mask=there)
        tl.store(gradients + shifts + output, residual)
    back = tl.where(hidden > 0, back, 0.0 * hidden)  # NaN propagates
    channels = tl.arange(0, 16)
    tl.store(gradients + biases + channels, tl.sum(back, axis=1))
    for tap in tl.static_range(9 * COLOURS):
        offset = (tap // 9 * HEIGHT + tap % 9 // 3) * WIDTH + tap % 3
        pixels = tl.load(image + pixel + corner + offset, mask=there, other=0.0)
        tl.store(gradients + channels * (9 * COLOURS) + tap, tl.sum(back * pixels, axis=1))


def cnn_gradients(theta: Tensor, x: Tensor, y: Tensor, weights: Tensor, outputs: int) -> Tensor:
    """Return the gradients (b, size) of the weighted losses of CNNs theta (b, size) on one image each.

    x is (b, 1, colours, h, w), y and weights (b, 1); images satisfy `fits`.
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
