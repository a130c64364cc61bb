"""ResNet18 and ResNet34, pre-trained on ImageNet: a fixed trunk that makes features, and a last block to be trained.

The last residual block and a new head are trained, the rest stays as it is; batch norms use their stored statistics. So
the trunk is run once over all images, and what is valued is a small network on its features.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpvalue.errors import DpvalueError
from dpvalue.experiments.paper.datasets import ENVIRONMENT, Arrays, MissingDataError

DEPTHS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
WIDTHS = (64, 128, 256, 512)
PIXELS = 64
_UNREADABLE = (
    OSError, EOFError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, pickle.UnpicklingError,
)  # fmt: skip
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load_weights(name: str, folder: str | Path | None = None) -> dict[str, Tensor]:
    """Return the weights of a ResNet, under torchvision's names, from a safetensors file or a saved state dict."""
    place = Path(folder or os.environ.get(ENVIRONMENT, "."))
    found = sorted([*place.glob(f"{name}*.safetensors"), *place.glob(f"{name}*.pth")])
    if not found:
        raise MissingDataError(
            f"the weights of {name} are wanted in {place}: {name}*.pth as torchvision publishes it, or "
            f"{name}*.safetensors; name the folder with --data-dir or {ENVIRONMENT} (download.pytorch.org/models)"
        )
    try:
        if found[0].suffix == ".safetensors":
            from safetensors.torch import load_file

            weights = load_file(found[0])
        else:
            weights = torch.load(found[0], map_location="cpu", weights_only=True)
        shapes = state_shapes(name)
        for key, shape in shapes.items():
            if weights[key].shape != shape:
                raise ValueError(f"{key} has the shape {tuple(weights[key].shape)}, not {tuple(shape)}")
        return {key: weights[key].float() for key in shapes}
    except _UNREADABLE as error:
        raise DpvalueError(f"{found[0]} is no {name} of torchvision: {_first_line(error)}") from None
    except Exception as error:  # safetensors' own error has no base but this
        if not type(error).__name__.startswith("Safetensor"):
            raise
        raise DpvalueError(f"{found[0]} is no {name} of torchvision: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__} {str(error).splitlines()[0][:100]}" if str(error) else type(error).__name__


def state_shapes(name: str) -> dict[str, torch.Size]:
    """Return the names and shapes of all weights and statistics before the head."""
    block = {f"{_last(name)}.{key}": tensor for key, tensor in ResidualBlock(512, 512).state_dict().items()}
    state = {**Trunk(name).state_dict(), **block}
    return {key: tensor.shape for key, tensor in state.items() if not key.endswith("num_batches_tracked")}


def _last(name: str) -> str:
    return f"layer4.{DEPTHS[name][-1] - 1}"


class Convolution(nn.Module):
    """A 3 x 3 convolution with padding 1, as a product with patches: batches of models then are batches of products."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels, 3, 3))
        nn.init.kaiming_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps (images, width, h, w)."""
        height, width = x.shape[-2:]
        padded = functional.pad(x, (1, 1, 1, 1))
        taps = [padded[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
        columns = torch.stack(taps).permute(2, 0, 1, 3, 4)  # (channels, 9, images, h, w)
        maps: Tensor = self.weight.flatten(1) @ columns.flatten(2).flatten(0, 1)
        return maps.view(-1, *columns.shape[2:]).transpose(0, 1)


class ResidualBlock(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int, width: int, stride: int = 1, trained: bool = True) -> None:
        super().__init__()
        self.conv1 = (
            Convolution(channels, width) if trained else nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = Convolution(width, width) if trained else nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = (
            nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))
            if stride > 1 or channels != width
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the maps after the block."""
        around = x if self.downsample is None else self.downsample(x)
        inside = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(inside + around)


class Trunk(nn.Module):
    """All of a ResNet before its last block."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for number, (depth, width) in enumerate(zip(DEPTHS[name], WIDTHS, strict=True)):
            blocks = []
            for place in range(depth - (number == 3)):
                blocks.append(ResidualBlock(channels, width, 2 if number and not place else 1, trained=False))
                channels = width
            setattr(self, f"layer{number + 1}", nn.Sequential(*blocks))

    def forward(self, x: Tensor) -> Tensor:
        """Return the features (images, 512, h, w)."""
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        for number in range(4):
            x = getattr(self, f"layer{number + 1}")(x)
        return x


class ResNetHead(nn.Module):
    """The last block, pooling and a new linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.block = ResidualBlock(512, 512)
        self.fc = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of features."""
        outputs: Tensor = self.fc(self.block(x).mean((-2, -1)))
        return outputs


def features(name: str, images: Arrays, folder: str | Path | None, device: str, pooled: bool = False) -> Arrays:
    """Return the trunk's features of images (rows, 3, h, w) from 0 to 1, enlarged to `PIXELS`.

    `pooled` returns what the head gets instead: those after the last block, averaged over their places.
    """
    weights = load_weights(name, folder)
    trunk = Trunk(name)
    own = {key: weights[key] for key in trunk.state_dict() if key in weights}
    trunk.load_state_dict(own, strict=False)
    trunk.to(device).eval()
    block = HeadFactory(name, folder, 1)().block.to(device) if pooled else None
    X, y = images
    mean, deviation = (torch.tensor(one, device=device).view(3, 1, 1) for one in (MEAN, DEVIATION))
    found = []
    with torch.inference_mode():
        for some in torch.from_numpy(X).split(256):
            large = functional.interpolate(some.to(device), size=(PIXELS, PIXELS), mode="bilinear", antialias=True)
            maps = trunk((large - mean) / deviation)
            found.append((maps if block is None else block(maps).mean((-2, -1))).cpu())
    return torch.cat(found).numpy(), y


class HeadFactory:
    """Makes the network that is trained: the pre-trained last block, and a new random head."""

    def __init__(self, name: str, folder: str | Path | None, classes: int) -> None:
        prefix = f"{_last(name)}."
        weights = load_weights(name, folder)
        self._block = {key.removeprefix(prefix): weights[key] for key in weights if key.startswith(prefix)}
        self._classes = classes

    def __call__(self) -> ResNetHead:
        """Return a new module, its batch norms in evaluation mode."""
        head = ResNetHead(self._classes)
        head.block.load_state_dict(self._block, strict=False)
        return head.eval()
