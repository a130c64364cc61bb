"""The outputs of many of the paper's CNNs on the same images, in one pass on a GPU.

Layer by layer the feature maps of every model go to memory and back, which is what such an evaluation spends its time
on (43 MB a model for 1,000 images of MNIST's size). This kernel keeps them in registers: convolution, pooling, ReLU and
the linear layer of a tile of images, one pooled position at a time. Arithmetic is plain float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLOURS = 4  # at most: a kernel of its own is compiled for each number
_IMAGES, _WARPS = 128, 2  # a tile of images, and the warps that share it


@triton.jit  # type: ignore[untyped-decorator]
def _tap(s00, s01, s10, s11, pixel, w, U: tl.constexpr, V: tl.constexpr, KI: tl.constexpr, KJ: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add pixel (U, V) of a 4 x 4 window, times the weight (KI, KJ), to the convolution of the four that it is in."""
    product = pixel[:, None] * w[None, :]
    if (U == KI) and (V == KJ):
        s00 += product
    if (U == KI) and (V == KJ + 1):
        s01 += product
    if (U == KI + 1) and (V == KJ):
        s10 += product
    if (U == KI + 1) and (V == KJ + 1):
        s11 += product
    return s00, s01, s10, s11


@triton.jit
def _kernel(first):  # type: ignore[no-untyped-def]
    """Load the 3 x 3 weights of one colour for all channels."""
    w00, w01, w02 = tl.load(first), tl.load(first + 1), tl.load(first + 2)
    w10, w11, w12 = tl.load(first + 3), tl.load(first + 4), tl.load(first + 5)
    w20, w21, w22 = tl.load(first + 6), tl.load(first + 7), tl.load(first + 8)
    return w00, w01, w02, w10, w11, w12, w20, w21, w22


@triton.jit  # type: ignore[untyped-decorator]
def _outputs(  # type: ignore[no-untyped-def]
    theta, x, out, images, size,
    COLOURS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OUTPUTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(0).to(tl.int64)
    image = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = image < images
    channel = tl.arange(0, 16)
    output = tl.arange(0, 16)
    base = theta + model * size
    kernel = base + channel * (9 * COLOURS)
    w00, w01, w02, w10, w11, w12, w20, w21, w22 = _kernel(kernel)
    bias = tl.load(base + 144 * COLOURS + channel)
    linear = base + 144 * COLOURS + 16
    features = 16 * ROWS * COLUMNS
    total = tl.zeros((TILE, 16), dtype=tl.float32)
    for i in range(ROWS):
        for j in range(COLUMNS):
            s00 = tl.zeros((TILE, 16), dtype=tl.float32)
            s01 = tl.zeros((TILE, 16), dtype=tl.float32)
            s10 = tl.zeros((TILE, 16), dtype=tl.float32)
            s11 = tl.zeros((TILE, 16), dtype=tl.float32)
            for colour in tl.static_range(COLOURS):
                if COLOURS > 1:  # the weights of one colour stay in registers, those of several do not fit
                    w00, w01, w02, w10, w11, w12, w20, w21, w22 = _kernel(kernel + 9 * colour)
                for u in tl.static_range(4):
                    for v in tl.static_range(4):
                        place = ((colour * HEIGHT + 2 * i + u) * WIDTH + 2 * j + v).to(tl.int64) * images
                        pixel = tl.load(x + place + image, mask=there, other=0.0)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w00, u, v, 0, 0)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w01, u, v, 0, 1)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w02, u, v, 0, 2)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w10, u, v, 1, 0)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w11, u, v, 1, 1)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w12, u, v, 1, 2)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w20, u, v, 2, 0)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w21, u, v, 2, 1)
                        s00, s01, s10, s11 = _tap(s00, s01, s10, s11, pixel, w22, u, v, 2, 2)
            pooled = tl.maximum(tl.maximum(s00, s01), tl.maximum(s10, s11))
            hidden = tl.maximum(pooled + bias[None, :], 0.0)
            feature = channel[:, None] * (ROWS * COLUMNS) + i * COLUMNS + j
            weights = tl.load(linear + output[None, :] * features + feature, mask=output[None, :] < OUTPUTS, other=0.0)
            total += tl.dot(hidden, weights, input_precision="ieee")
    total += tl.load(linear + OUTPUTS * features + output, mask=output < OUTPUTS, other=0.0)[None, :]
    place = (model * images + image[:, None]) * OUTPUTS + output[None, :]
    tl.store(out + place, total, mask=there[:, None] & (output[None, :] < OUTPUTS))


def fits(example: Tensor, outputs: int) -> bool:
    """Whether the kernel serves images like this one: float32, on a GPU, few colours, at most 16 classes."""
    return example.is_cuda and example.dtype == torch.float32 and len(example) <= _COLOURS and outputs <= 16


def cnn_outputs(theta: Tensor, x: Tensor, outputs: int) -> Tensor:
    """Return the outputs (b, images, outputs) of the CNNs theta (b, size) on images x (images, colours, h, w)."""
    images, colours, height, width = x.shape
    columns_first = x.permute(1, 2, 3, 0).contiguous()
    out = torch.empty(len(theta), images, outputs, dtype=theta.dtype, device=theta.device)
    grid = (len(theta), triton.cdiv(images, _IMAGES))
    _outputs[grid](
        theta.contiguous(), columns_first, out, images, theta.shape[1],
        COLOURS=colours, HEIGHT=height, WIDTH=width, ROWS=(height - 2) // 2, COLUMNS=(width - 2) // 2,
        OUTPUTS=outputs, TILE=_IMAGES, num_warps=_WARPS,
    )  # fmt: skip
    return out
