"""The head of a network on a public trunk: a linear model of the trunk's features.

The trunk is a network without its last linear layer, with fixed parameters trained on public rows. The head is logistic
or linear regression on the trunk's features, which are centred and divided by one public scale. It supports everything
that a linear model does.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpvalue.errors import DpvalueError
from dpvalue.models.base import Model
from dpvalue.models.linear import Linear
from dpvalue.models.network import Network

_AT_ONCE = 2**22  # outputs of layers, in numbers
_FAILURES = (RuntimeError, AttributeError, TypeError, ValueError, IndexError)
NO_HEAD = "is for linear and logistic regression, and for networks whose last layer is an nn.Linear with a bias"


@dataclass(frozen=True)
class Head:
    """The last layer of a network: its name in the module, and its numbers of inputs and outputs."""

    name: str
    features: int
    outputs: int

    @property
    def size(self) -> int:
        """The number of its parameters."""
        return (self.features + 1) * self.outputs


def find_head(model: Model, example: Tensor) -> Head:
    """Return the head of a network, found from the forward pass of one public row; raise if there is none.

    The head is the `nn.Linear` whose output the network returns. It must be called once, be trainable and have a bias.
    The rest of the network must work row by row without it.
    """
    if not isinstance(model, Network):
        raise DpvalueError(NO_HEAD)
    module, calls = model.module(model.initial(0)), list[tuple[str, Tensor]]()

    def look(name: str, layer: nn.Module) -> None:
        layer.register_forward_hook(lambda layer, given, output: calls.append((name, output)))

    for name, layer in module.named_modules():
        if type(layer) is nn.Linear:
            look(name, layer)
    with torch.no_grad():
        result = module(example[None])
    last = [name for name, output in calls if output is result]
    if len(last) != 1 or [name for name, _ in calls].count(last[0]) != 1:
        raise DpvalueError(NO_HEAD)
    layer = module.get_submodule(last[0])
    assert isinstance(layer, nn.Linear)
    parameters = {f"{last[0]}.{part}".removeprefix(".") for part in ("weight", "bias")}
    if layer.bias is None or not parameters <= set(model.trained_names):
        raise DpvalueError(NO_HEAD)
    head = Head(last[0], layer.in_features, layer.out_features)
    try:
        with torch.no_grad():
            features = _features(_trunk(module, head), example[None])
            recomputed = nn.functional.linear(features, layer.weight, layer.bias)
    except _FAILURES:
        raise DpvalueError(f"{NO_HEAD}; without it, this network does not work row by row") from None
    if features.shape != (1, head.features) or not torch.allclose(
        recomputed, result, rtol=1e-3, atol=1e-4, equal_nan=True
    ):
        raise DpvalueError(f"{NO_HEAD}; in this network, its input is not the output of the layers before it")
    return head


def _trunk(module: nn.Module, head: Head) -> nn.Module:
    """The module without its head; the module is changed."""
    if not head.name:
        return nn.Identity()
    parent, _, name = head.name.rpartition(".")
    setattr(module.get_submodule(parent), name, nn.Identity())
    return module


def _features(trunk: nn.Module, x: Tensor) -> Tensor:
    """The features of rows, each computed alone, so that no layer can mix rows."""
    features: Tensor = vmap(lambda row: trunk(row[None])[0])(x)
    return features


class HeadOnTrunk(Linear):
    """The head of a network on a public trunk; its parameters are those of a linear model of the trunk's features.

    Formal guarantee: the features of a row are a function of that row and of the trunk only. A row with a non-finite
    feature has a non-finite gradient, which clipping makes zero.

    Args:
        network: the network.
        head: its last layer.
        trunk: public numbers: the network's parameters, then the centre of the features and their scale.
    """

    def __init__(self, network: Network, head: Head, trunk: Tensor) -> None:
        like = network.initial(0)
        if trunk.dim() != 1 or len(trunk) != network.size + head.features + 1 or not bool(trunk.isfinite().all()):
            raise DpvalueError(f"trunk must be {network.size + head.features + 1} finite numbers for this model")
        super().__init__(head.features, head.outputs, network.task, like.dtype, like.device)
        self.kind, self.trunk = network.kind, trunk
        self._network, self._head = network, head
        self._theta, self._centre, self._scale = trunk.to(like).split([network.size, head.features, 1])
        self._module = _trunk(network.module(self._theta), head)

    @classmethod
    def of(cls, network: Network, head: Head, theta: Tensor, x: Tensor) -> HeadOnTrunk:
        """Return the head on a trunk with the network's parameters theta (size,) and the scale of public rows x."""
        plain = torch.cat([theta, theta.new_zeros(head.features), theta.new_ones(1)])
        features = cls(network, head, plain).inputs(x)[:, :-1].to(torch.float64)
        centre = features.mean(0)
        scale = (features - centre).square().mean().sqrt()
        scale = torch.where(scale > 0, scale, 1.0)
        return cls(network, head, torch.cat([theta, centre.to(theta), scale.to(theta)[None]]).cpu())

    def inputs(self, x: Tensor) -> Tensor:
        """Return the features of rows with a column of ones, computed a few rows at a time."""
        if not len(x):
            return x.new_zeros(0, self.features + 1)
        few = max(1, _AT_ONCE // max(self._network.numbers_per_row(), x[0].numel()))
        with torch.no_grad():
            features = torch.cat([_features(self._module, rows) for rows in x.split(few)])
        return super().inputs((features - self._centre) / self._scale)

    def digest(self) -> str:
        """Return a digest of the network and of all numbers of the trunk."""
        hasher = hashlib.sha256(f"head {self._head} ".encode() + self._network.digest().encode())
        hasher.update(self.trunk.to(torch.float64).cpu().contiguous().numpy().tobytes())
        return hasher.hexdigest()


def head_on_trunk(model: Model, example: Tensor, trunk: Tensor) -> HeadOnTrunk:
    """Return a network's head on the trunk of a job or a file; raise if they do not fit."""
    head = find_head(model, example)
    assert isinstance(model, Network)
    return HeadOnTrunk(model, head, trunk)
