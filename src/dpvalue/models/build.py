"""From what a user names or passes as model= to a model that fits the public set."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

from dpvalue.errors import DpvalueError, require_choice
from dpvalue.models.base import CLASSIFICATION, KINDS, REGRESSION, TASK_OF, Model, ModelFactory
from dpvalue.models.cnn import PaperCNN
from dpvalue.models.linear import Linear
from dpvalue.models.network import Network


def task_of(model: str | ModelFactory, by_metric: str | None, float_labels: bool) -> str:
    """Return the task: fixed by a named model; for a factory by the metric, else by the public labels' type."""
    if isinstance(model, str):
        require_choice("model", model, KINDS)
        return TASK_OF[model]
    if isinstance(model, nn.Module):
        raise DpvalueError("model must be a callable that returns an nn.Module, got a module: pass lambda: module")
    if not callable(model):
        raise DpvalueError(
            f"model must be one of {', '.join(KINDS)}, or a callable returning an nn.Module; got {model!r}"
        )
    return by_metric or (REGRESSION if float_labels else CLASSIFICATION)


def build_model(
    model: str | ModelFactory, task: str, example: Tensor, outputs: int, dtype: torch.dtype, device: torch.device
) -> Model:
    """Return the model for rows like `example` (public) and this many outputs (classes, or 1 for regression)."""
    if model in ("logistic", "linear"):
        return Linear(prod(example.shape), outputs, task, dtype, device)
    if model == "cnn":
        if example.dim() != 3 or min(example.shape[1:]) < 4:
            shape = tuple(example.shape)
            raise DpvalueError(f"model 'cnn' needs images (rows, [channels,] height, width) of 4 or more, got {shape}")
        return PaperCNN(example, outputs, task, dtype, device)
    assert callable(model)
    network = Network(model, task, "custom", example, dtype, device)
    width = network.outputs(network.initial(0)[None], example[None]).shape[-1]
    if width != outputs:
        needed = f"{outputs} (the classes of the public set)" if task == CLASSIFICATION else "1"
        raise DpvalueError(f"model must have {needed} outputs, got {width}")
    try:
        labels = torch.zeros(2, 1, dtype=torch.int64 if task == CLASSIFICATION else dtype, device=device)
        theta = network.initial(0).expand(2, -1)
        network.gradients(theta, example.expand(2, 1, *example.shape), labels, torch.ones(2, 1).to(theta))
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        raise DpvalueError(f"model cannot be differentiated for several parties at once: {first}") from error
    return network
