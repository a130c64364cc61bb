"""Any `nn.Module`, called functionally through `torch.func`."""

from __future__ import annotations

import copy
import hashlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpvalue.errors import DpvalueError
from dpvalue.models.base import ModelFactory, row_losses, squared_norm
from dpvalue.streams import Purpose, stream

_LOOKUPS = (
    "embedding", "embedding_bag", "_embedding_bag", "_embedding_bag_forward_only", "index", "_unsafe_index",
    "index_select", "gather", "take", "take_along_dim", "scatter", "scatter_", "scatter_add", "scatter_add_",
    "index_put", "index_put_", "index_add", "index_add_", "index_fill", "index_copy",
)  # fmt: skip


class _Lookups(TorchDispatchMode):
    """Records all lookups by index, with the indices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[str, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in _LOOKUPS:
            tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
            self.calls.append((name, [tensor.tolist() for tensor in tensors if not tensor.is_floating_point()]))
        return func(*args, **(kwargs or {}))


class Network:
    """Any `nn.Module`, called functionally.

    Parameters with requires_grad=False and buffers keep the factory's values. Layers that mix rows or draw random
    numbers (batch norm and dropout in training mode) raise, because clipping would not bound a record's influence. So
    do lookups by an index from a row (embeddings): an index out of range would read and change another party's
    parameters in a batch, or raise.
    """

    zero_start = False

    def __init__(
        self, factory: ModelFactory, task: str, kind: str, example: Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.task, self.kind = task, kind
        self._factory = factory
        self._dtype, self._device = dtype, device
        self._module = self._build(0, 0)
        self._of_thread = threading.local()  # torch.func.functional_call swaps a module's parameters while it runs
        trained = {name: p for name, p in self._module.named_parameters() if p.requires_grad}
        if not trained:
            raise DpvalueError("model must have at least one parameter with requires_grad=True, got none")
        self._names = list(trained)
        self._shapes = [p.shape for p in trained.values()]
        self._sizes = [p.numel() for p in trained.values()]
        self.size = self.numbers = sum(self._sizes)
        state = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        self._fixed = {name: tensor.detach() for name, tensor in state.items() if name not in trained}
        self._numbers = self._count_numbers(example)
        self._refuse_lookups(example)
        self._kernel: Callable[[Tensor, Tensor], Tensor] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the modules of threads, which are rebuilt on demand."""
        return {name: part for name, part in vars(self).items() if name != "_of_thread"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._of_thread = threading.local()

    @property
    def trained_names(self) -> tuple[str, ...]:
        """The names of the trainable parameters, in order."""
        return tuple(self._names)

    def use_kernel(self, kernel: Callable[[Tensor, Tensor], Tensor], outputs: int) -> None:
        """Use a kernel for the outputs of theta (b, size) on rows x, which stores no intermediate outputs."""
        self._kernel, self._numbers = kernel, outputs

    def _build(self, seed: int, index: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, Purpose.INITIAL_MODEL, index).integers(2**62)))
            module = copy.deepcopy(self._factory())  # a factory may return the caller's own module
        if not isinstance(module, nn.Module):
            raise DpvalueError(f"model must be a callable that returns a torch nn.Module, got {type(module).__name__}")
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and (layer.training or layer.running_mean is None):
                raise DpvalueError(
                    f"model has batch norm in training mode at {name!r}: it mixes the rows of a batch, so clipping a "
                    "gradient does not bound one record's influence; use running statistics with .eval(), or group norm"
                )
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.training and layer.p > 0:
                raise DpvalueError(f"model has dropout in training mode at {name!r}: call .eval() in the factory")
        return module.to(device=self._device, dtype=self._dtype)

    def _count_numbers(self, example: Tensor) -> int:
        """The number of outputs of all layers for one row; raises if the model does not fit a public row."""
        count_of_numbers = [0]

        def count(layer: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not list(layer.children()):
                count_of_numbers[0] += output.numel()

        hooks = [layer.register_forward_hook(count) for layer in self._module.modules()]
        try:
            with torch.no_grad():
                self._module(example[None])
        except RuntimeError as error:
            raise DpvalueError(f"model cannot take a row of shape {tuple(example.shape)}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
        return count_of_numbers[0]

    def _refuse_lookups(self, example: Tensor) -> None:
        """Raise if the forward pass looks anything up by indices that depend on the row."""
        calls = []
        for row in (example, 3 * example + 1):
            with _Lookups() as lookups, torch.no_grad():
                try:
                    self._module(row[None])
                except (IndexError, RuntimeError):
                    lookups.calls.append(("out of range", []))
            calls.append(lookups.calls)
        for (name, indices), (other_name, other_indices) in itertools.zip_longest(*calls, fillvalue=("", [])):
            if (name, indices) != (other_name, other_indices):
                raise DpvalueError(
                    f"model looks something up by an index that comes from a row ({name or other_name}): an index out "
                    "of range would reach another party's data; encode categories as columns of zeros and ones instead"
                )

    def _flatten(self, module: nn.Module) -> Tensor:
        named = dict(module.named_parameters())
        return torch.cat([named[name].detach().flatten() for name in self._names])

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return the parameters of a freshly made module; the factory draws under a seed of its own."""
        return self._flatten(self._build(seed, index))

    def inputs(self, x: Tensor) -> Tensor:
        """Return the rows as they are."""
        return x

    def targets(self, y: Tensor) -> Tensor:
        """Return the labels as they are."""
        return y

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean of the row losses of each model."""

        def mean(theta: Tensor) -> Tensor:
            losses = row_losses(self.task, self.outputs(theta, x), y.expand(len(theta), -1))
            return losses.mean(-1, dtype=torch.float64)

        return mean

    def _take_module(self) -> None:
        """Copy the module for this thread; must not run inside a gradient, which would include the copy."""
        if not hasattr(self._of_thread, "module"):
            self._of_thread.module = copy.deepcopy(self._module)

    def _forward(self, theta: Tensor, x: Tensor) -> Tensor:
        parts = theta.split(self._sizes)
        named = {n: part.view(s) for n, part, s in zip(self._names, parts, self._shapes, strict=True)}
        outputs: Tensor = functional_call(self._of_thread.module, {**named, **self._fixed}, (x,))
        return outputs if outputs.dim() > 1 else outputs.unsqueeze(-1)

    def _loss(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (row_losses(self.task, self._forward(theta, x), y) * weights).sum()

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of each model; a single model skips the batching rules."""
        if self._kernel is not None:
            return self._kernel(theta, x)
        self._take_module()
        with torch.no_grad():
            if len(theta) == 1:
                return self._forward(theta[0], x).unsqueeze(0)
            outputs: Tensor = vmap(self._forward, in_dims=(0, None))(theta, x)
            return outputs

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients of the weighted losses by autograd, batched over models."""
        self._take_module()
        gradients: Tensor = vmap(grad(self._loss))(theta, x, y, weights)
        return gradients

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients of single rows by autograd, batched over models and rows."""
        b, r = y.shape
        repeated = theta.repeat_interleave(r, dim=0)
        ones = torch.ones(b * r, 1, dtype=theta.dtype, device=theta.device)
        rows = self.gradients(repeated, x.flatten(0, 1).unsqueeze(1), y.flatten().unsqueeze(1), ones)
        return rows.view(b, r, self.size)

    def module(self, theta: Tensor) -> nn.Module:
        """Return the factory's module with these parameters."""
        module = self._build(0, 0)
        named = dict(module.named_parameters())
        with torch.no_grad():
            for name, part, shape in zip(self._names, theta.split(self._sizes), self._shapes, strict=True):
                named[name].copy_(part.view(shape))
        return module.requires_grad_(False)

    def squared_norm(self, theta: Tensor) -> Tensor:
        """Return |theta|^2."""
        return squared_norm(theta)

    def numbers_per_row(self) -> int:
        """Return the number of outputs of all layers for one row."""
        return self._numbers

    def digest(self) -> str:
        """Return a digest of the architecture's text, the parameters' names and shapes, and the fixed tensors."""
        hasher = hashlib.sha256(repr(self._module).encode())
        for name, shape in zip(self._names, self._shapes, strict=True):
            hasher.update(f"{name}{tuple(shape)}".encode())
        for name, tensor in sorted(self._fixed.items()):
            hasher.update(name.encode())
            hasher.update(tensor.double().cpu().contiguous().numpy().tobytes())
        return hasher.hexdigest()
