"""The paper's CNN, with the gradients of many parties in closed form: a few matrix products instead of autograd.

The layers are Conv(c, 16, 3), MaxPool(2, 2), ReLU, Linear. A convolution is a product of the kernel with the image's
patches. The gradient by the kernel is the product of the patches with the gradient behind the pooling, which goes to
the maximum of each window.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpvalue.models.base import CLASSIFICATION, REGRESSION
from dpvalue.models.network import Network

CHANNELS = 16
_CACHED = 2**18  # numbers


def paper_cnn(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the paper's CNN without its softmax, which is in the loss: Conv(c,16,3), ReLU, MaxPool(2,2), Linear.

    ReLU is monotone, so it is applied after the pooling, to a quarter of the numbers.
    """
    channels, height, width = shape
    flat = CHANNELS * ((height - 2) // 2) * ((width - 2) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, CHANNELS, 3), nn.MaxPool2d(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(flat, outputs)
    )


class PaperCNN(Network):
    """The paper's CNN for images like `example`; the parameters are those of `paper_cnn`, in order."""

    def __init__(self, example: Tensor, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> None:
        shape = tuple(example.shape)
        super().__init__(partial(paper_cnn, shape, outputs), task, "cnn", example, dtype, device)
        self._rows, self._columns = (shape[1] - 2) // 2, (shape[2] - 2) // 2
        self._outputs, self._taps = outputs, 9 * shape[0]
        self._gradients_of_one: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
        if example.is_cuda:
            from dpvalue.models.cnn_kernels import MOST_CELLS, cnn_gradients, cnn_outputs, fits

            if fits(example, outputs):
                self.use_kernel(partial(cnn_outputs, outputs=outputs), outputs)
                if task == CLASSIFICATION and self._rows * self._columns <= MOST_CELLS:
                    self._gradients_of_one = partial(cnn_gradients, outputs=outputs)

    def _parts(self, theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Kernel (b, 16, taps), its bias (b, 16), linear weights (b, o, features), their bias (b, o)."""
        features = CHANNELS * self._rows * self._columns
        sizes = [CHANNELS * self._taps, CHANNELS, self._outputs * features, self._outputs]
        kernel, bias, weights, shift = theta.split(sizes, dim=1)
        return kernel.unflatten(1, (CHANNELS, -1)), bias, weights.unflatten(1, (self._outputs, -1)), shift

    def _windows(self, x: Tensor) -> Tensor:
        """The patches of images (b, r, c, h, w) by the four places of a pooling window: (b, r, 4, taps, windows)."""
        used = x[..., : 2 * self._rows + 2, : 2 * self._columns + 2]
        patches = used.unfold(3, 3, 1).unfold(4, 3, 1)  # a view (b, r, c, h, w, 3, 3): nothing is copied yet
        split: Tensor = patches.unflatten(4, (self._columns, 2)).unflatten(3, (self._rows, 2))
        return split.permute(0, 1, 4, 6, 2, 7, 8, 3, 5).reshape(*x.shape[:2], 4, self._taps, -1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of each model; on a CPU a few images at a time, so that feature maps fit the cache."""
        if theta.is_cuda:
            return super().outputs(theta, x)
        kernel, bias, linear, shift = self._parts(theta)
        kernels, hidden = kernel.flatten(0, 1), []
        few = max(1, _CACHED // (4 * len(kernels) * self._rows * self._columns))
        for windows in self._windows(x.unsqueeze(1)).squeeze(1).split(few):
            maps = (kernels @ windows).unbind(1)  # four of (images, b 16, windows)
            hidden.append(torch.maximum(torch.maximum(maps[0], maps[1]), torch.maximum(maps[2], maps[3])))
        flat = torch.cat(hidden).add_(bias.flatten()[:, None]).relu_().unflatten(1, (len(theta), CHANNELS))
        return torch.baddbmm(shift.unsqueeze(1), flat.flatten(2).transpose(0, 1), linear.transpose(1, 2))

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients of the weighted losses in closed form; for one row each on a GPU, by one kernel."""
        if x.shape[1] == 1 and self._gradients_of_one is not None:
            return self._gradients_of_one(theta, x, y, weights)
        kernel, bias, linear, shift = self._parts(theta)
        windows = self._windows(x)
        pooled, place = (kernel[:, None, None] @ windows).max(dim=2)  # (b, r, 16, windows), of four places
        hidden = (pooled + bias[:, None, :, None]).relu_()
        flat = hidden.flatten(2)
        outputs = torch.baddbmm(shift.unsqueeze(1), flat, linear.transpose(1, 2))
        if self.task == REGRESSION:
            residuals = (outputs - y.unsqueeze(-1)).mul_(2)
        else:
            residuals = outputs.softmax(-1).sub_(functional.one_hot(y, self._outputs))
        residuals = residuals * weights.unsqueeze(-1)
        back = (residuals @ linear).view_as(hidden).mul_(hidden > 0)
        spread = torch.zeros_like(windows[:, :, :, :1]).expand(-1, -1, -1, CHANNELS, -1).contiguous()
        spread.scatter_(2, place.unsqueeze(2), back.unsqueeze(2))
        by_kernel = (spread @ windows.transpose(-1, -2)).sum((1, 2))
        # One row: an outer product, cheaper than a product of thin matrices.
        by_linear = residuals.transpose(1, 2) * flat if x.shape[1] == 1 else residuals.transpose(1, 2) @ flat
        parts = (by_kernel, back.sum((1, 3)), by_linear, residuals.sum(1))
        return torch.cat([part.flatten(1) for part in parts], dim=1)
