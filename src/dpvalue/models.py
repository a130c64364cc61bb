"""Models as functions of one flat parameter vector, for many vectors at once.

Both kinds answer the same questions (`Model`): the initial parameters, the outputs on a set of rows, the gradient of
each party's weighted loss, and the gradient of each single record. `Linear` has them in closed form; `Network` is any
`nn.Module`, through `torch.func`.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from math import prod
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpvalue.errors import DpvalueError, require_choice
from dpvalue.streams import Purpose, stream

ModelFactory = Callable[[], nn.Module]
KINDS = ("logistic", "linear", "cnn")
CLASSIFICATION, REGRESSION = "classification", "regression"


class Model(Protocol):
    """A model with `size` parameters; `theta` is a batch of parameter vectors (b, size).

    Rows come in the model's own form, made once by `inputs` and `targets`. Rows of parties are x (b, r, ...), y (b, r,
    ...) and weights (b, r): the loss of a party is the weighted sum over its r rows (weights 1/count, 0 for padding).
    """

    task: str
    kind: str
    size: int
    zero_start: bool
    """Whether it starts from zeros, and not at random."""
    threads_may_share: bool
    """Whether several threads may use it at once."""

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return the initial parameters (size,); zeros for linear models, else the factory's own under a seed."""
        ...

    def inputs(self, x: Tensor) -> Tensor:
        """Return features (rows, *shape) in the form that the other methods take."""
        ...

    def targets(self, y: Tensor) -> Tensor:
        """Return labels (rows,) in the form that the gradients take."""
        ...

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (b, rows, outputs) of each model on the same rows x."""
        ...

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function from theta to the mean losses (b,), as float64, on the rows x with labels y (rows,)."""
        ...

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients (b, size) of the weighted losses, model i on the rows of x[i]."""
        ...

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients (b, r, size) of the loss of each single row."""
        ...

    def module(self, theta: Tensor) -> nn.Module:
        """Return an `nn.Module` with the parameters theta (size,), to be looked at rather than trained."""
        ...

    def numbers_per_row(self) -> int:
        """Return about how many numbers one row makes on its way through one model."""
        ...

    def digest(self) -> str:
        """Return a digest of everything about the model but theta."""
        ...


def row_losses(task: str, outputs: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each row: cross-entropy of logits, or squared error; outputs (..., o), y (...)."""
    if task == REGRESSION:
        return (outputs[..., 0] - y) ** 2
    return outputs.logsumexp(-1) - outputs.gather(-1, y.unsqueeze(-1)).squeeze(-1)


class Linear:
    """Logistic (softmax) or linear regression; parameters are a row (weights, bias) per output: (o, f + 1), flat."""

    zero_start = True
    threads_may_share = True

    def __init__(self, features: int, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> None:
        self.task = task
        self.kind = "linear" if task == REGRESSION else "logistic"
        self.features, self.width = features, outputs
        self.size = (features + 1) * outputs
        self._dtype, self._device = dtype, device

    def initial(self, seed: int, index: int = 0) -> Tensor:
        """Return zeros."""
        return torch.zeros(self.size, dtype=self._dtype, device=self._device)

    def inputs(self, x: Tensor) -> Tensor:
        """Return flat rows with a column of ones, for the bias."""
        return torch.cat([x.flatten(1), x.new_ones(len(x), 1)], dim=1)

    def targets(self, y: Tensor) -> Tensor:
        """Return one-hot rows, or a column of numbers."""
        if self.task == REGRESSION:
            return y.unsqueeze(-1)
        return functional.one_hot(y, self.width).to(self._dtype)

    def _matrix(self, theta: Tensor) -> Tensor:
        return theta.view(len(theta), self.width, self.features + 1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return x W^T + b for each model."""
        return x @ self._matrix(theta).transpose(1, 2)

    def mean_loss(self, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the mean loss with the outputs of all models in one product, classes before rows.

        Cross-entropy is mean_i log sum_c exp(L_ci) - mean_i L_(y_i)i, and the second mean is linear in theta.
        """
        columns = x.T.contiguous()
        labels = self.targets(y)
        picked = (labels.T.to(torch.float64) @ x.to(torch.float64) / len(x)).flatten()

        def squared_error(theta: Tensor) -> Tensor:
            return (theta @ columns - y).square_().mean(-1, dtype=torch.float64)

        def cross_entropy(theta: Tensor) -> Tensor:
            outputs = (theta.view(-1, self.features + 1) @ columns).view(len(theta), self.width, -1)
            return log_sum_exp(outputs).mean(-1, dtype=torch.float64) - theta.to(torch.float64) @ picked

        return squared_error if self.task == REGRESSION else cross_entropy

    def residuals(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the derivative of the row losses by the outputs (..., o)."""
        if self.task == REGRESSION:
            return (outputs - y).mul_(2)
        return outputs.softmax(-1).sub_(y)

    def _residuals_at(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self.residuals(torch.bmm(x, self._matrix(theta).transpose(1, 2)), y)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients of the weighted losses in closed form."""
        residuals = self._residuals_at(theta, x, y)
        if x.shape[1] == 1:  # one row of weight 1: an outer product, far cheaper than a product of thin matrices
            return (residuals.transpose(1, 2) * x).flatten(1)
        return ((residuals * weights.unsqueeze(-1)).transpose(1, 2) @ x).flatten(1)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients of single rows in closed form."""
        residuals = self._residuals_at(theta, x, y)
        return (residuals.unsqueeze(-1) * x.unsqueeze(-2)).flatten(2)

    def module(self, theta: Tensor) -> nn.Module:
        """Return Flatten and Linear with these parameters."""
        linear = nn.Linear(self.features, self.width, device=self._device, dtype=self._dtype)
        matrix = self._matrix(theta[None])[0]
        with torch.no_grad():
            linear.weight.copy_(matrix[:, :-1])
            linear.bias.copy_(matrix[:, -1])
        return nn.Sequential(nn.Flatten(), linear).requires_grad_(False)

    def numbers_per_row(self) -> int:
        """Return the outputs."""
        return self.width

    def digest(self) -> str:
        """Return a digest of kind and shape."""
        return hashlib.sha256(f"{self.kind} {self.features} {self.width}".encode()).hexdigest()


def log_sum_exp(outputs: Tensor) -> Tensor:
    """Return log sum_c exp over the middle dimension of (b, classes, rows), in place where that is safe.

    Below an absolute value of 60 no exponential overflows or vanishes, which spares the passes for the largest class.
    """
    if outputs.is_cuda:  # reading the bounds would wait for the device
        return outputs.logsumexp(1)
    low, high = outputs.aminmax()
    if max(-float(low), float(high)) < 60.0:
        return outputs.exp_().sum(1).log_()
    return outputs.logsumexp(1)


class Network:
    """Any `nn.Module`, called functionally.

    Parameters with requires_grad=False and buffers stay as the factory made them. Layers that mix rows or draw random
    numbers (batch norm and dropout in training mode) are refused: with them a record's influence is not bounded by
    clipping its gradient.
    """

    zero_start = False
    threads_may_share = False  # torch.func.functional_call swaps the module's parameters while it runs

    def __init__(
        self, factory: ModelFactory, task: str, kind: str, example: Tensor, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.task, self.kind = task, kind
        self._factory = factory
        self._dtype, self._device = dtype, device
        self._module = self._build(0, 0)
        trained = {name: p for name, p in self._module.named_parameters() if p.requires_grad}
        if not trained:
            raise DpvalueError("model must have at least one parameter with requires_grad=True, got none")
        self._names = list(trained)
        self._shapes = [p.shape for p in trained.values()]
        self._sizes = [p.numel() for p in trained.values()]
        self.size = sum(self._sizes)
        state = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        self._fixed = {name: tensor.detach() for name, tensor in state.items() if name not in trained}
        self._numbers = self._count_numbers(example)
        self._kernel: Callable[[Tensor, Tensor], Tensor] | None = None

    def use_kernel(self, kernel: Callable[[Tensor, Tensor], Tensor], outputs: int) -> None:
        """Let a kernel make the outputs of theta (b, size) on rows x, without storing what lies between the layers."""
        self._kernel, self._numbers = kernel, outputs

    def _build(self, seed: int, index: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, Purpose.INITIAL_MODEL, index).integers(2**62)))
            module = copy.deepcopy(self._factory())  # a factory may hand out the caller's own module
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
        """The numbers that the layers write for one row; also checks, on a public row, that the model fits the data."""
        written = [0]

        def count(layer: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and not list(layer.children()):
                written[0] += output.numel()

        hooks = [layer.register_forward_hook(count) for layer in self._module.modules()]
        try:
            with torch.no_grad():
                self._module(example[None])
        except RuntimeError as error:
            raise DpvalueError(f"model cannot take a row of shape {tuple(example.shape)}: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
        return written[0]

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

    def _forward(self, theta: Tensor, x: Tensor) -> Tensor:
        parts = theta.split(self._sizes)
        named = {n: part.view(s) for n, part, s in zip(self._names, parts, self._shapes, strict=True)}
        outputs: Tensor = functional_call(self._module, {**named, **self._fixed}, (x,))
        return outputs if outputs.dim() > 1 else outputs.unsqueeze(-1)

    def _loss(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (row_losses(self.task, self._forward(theta, x), y) * weights).sum()

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of each model; a single model skips the batching rules."""
        if self._kernel is not None:
            return self._kernel(theta, x)
        with torch.no_grad():
            if len(theta) == 1:
                return self._forward(theta[0], x).unsqueeze(0)
            outputs: Tensor = vmap(self._forward, in_dims=(0, None))(theta, x)
            return outputs

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the gradients of the weighted losses by autograd, batched over models."""
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

    def numbers_per_row(self) -> int:
        """Return what the layers write for one row."""
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


def task_of(model: str | ModelFactory, metric: object, float_labels: bool) -> str:
    """Return the task: fixed by a named model; for a factory by the metric, else by the public labels' type."""
    if isinstance(model, str):
        require_choice("model", model, KINDS)
        return REGRESSION if model == "linear" else CLASSIFICATION
    if isinstance(model, nn.Module):
        raise DpvalueError("model must be a callable that returns an nn.Module, got a module: pass lambda: module")
    if not callable(model):
        raise DpvalueError(
            f"model must be one of {', '.join(KINDS)}, or a callable returning an nn.Module; got {model!r}"
        )
    if metric in ("mse", "accuracy"):
        return REGRESSION if metric == "mse" else CLASSIFICATION
    return REGRESSION if float_labels else CLASSIFICATION


def build_model(
    model: str | ModelFactory, task: str, example: Tensor, outputs: int, dtype: torch.dtype, device: torch.device
) -> Model:
    """Return the model for rows like `example` (public) and this many outputs (classes, or 1 for regression)."""
    if model in ("logistic", "linear"):
        return Linear(prod(example.shape), outputs, task, dtype, device)
    if model == "cnn":
        from dpvalue.cnn import PaperCNN

        if example.dim() != 3 or min(example.shape[1:]) < 4:
            shape = tuple(example.shape)
            raise DpvalueError(f"model 'cnn' needs images (rows, [channels,] height, width) of 4 or more, got {shape}")
        return PaperCNN(example, outputs, task, dtype, device)
    assert callable(model)
    network = Network(model, task, "custom", example, dtype, device)
    found = network.outputs(network.initial(0)[None], example[None]).shape[-1]
    if found != outputs:
        needed = f"{outputs} (the classes of the public set)" if task == CLASSIFICATION else "1"
        raise DpvalueError(f"model must have {needed} outputs, got {found}")
    try:
        labels = torch.zeros(2, 1, dtype=torch.int64 if task == CLASSIFICATION else dtype, device=device)
        theta = network.initial(0).expand(2, -1)
        network.gradients(theta, example.expand(2, 1, *example.shape), labels, torch.ones(2, 1).to(theta))
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise DpvalueError(f"model cannot be differentiated for several parties at once: {first}") from error
    return network
