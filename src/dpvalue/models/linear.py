"""Logistic and linear regression, with everything in closed form."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from dpvalue.models.base import REGRESSION, squared_norm


class Linear:
    """Logistic (softmax) or linear regression; parameters are a row (weights, bias) per output: (o, f + 1), flat."""

    zero_start = True

    def __init__(self, features: int, outputs: int, task: str, dtype: torch.dtype, device: torch.device) -> None:
        self.task = task
        self.kind = "linear" if task == REGRESSION else "logistic"
        self.features, self.width = features, outputs
        self.size = self.numbers = (features + 1) * outputs
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

    def on_features(self) -> Linear:
        """Return the model for rows that are features already."""
        return Linear(self.features, self.width, self.task, self._dtype, self._device)

    def _matrix(self, theta: Tensor) -> Tensor:
        return theta.view(len(theta), self.width, self.features + 1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Return x W^T + b for each model."""
        return x @ self._matrix(theta).transpose(1, 2)

    def mean_loss(self, x: Tensor, y: Tensor, compiled: bool = False) -> Callable[[Tensor], Tensor]:
        """Return the mean loss with the outputs of all models in one product, classes before rows.

        Cross-entropy is mean_i log sum_c exp(L_ci) - mean_i L_(y_i)i, and the second mean is linear in theta. With
        `compiled`, the first mean is computed in compiled code.
        """
        columns = x.T.contiguous()
        labels = self.targets(y)
        label_sums = (labels.T.to(torch.float64) @ x.to(torch.float64) / len(x)).flatten()

        def squared_error(theta: Tensor) -> Tensor:
            return (theta @ columns - y).square_().mean(-1, dtype=torch.float64)

        def cross_entropy(theta: Tensor) -> Tensor:
            outputs = (theta.view(-1, self.features + 1) @ columns).view(len(theta), self.width, -1)
            return mean_log_sum_exp(outputs, compiled) - theta.to(torch.float64) @ label_sums

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
        residuals = self._residuals_at(theta, x, y).mul_(weights.unsqueeze(-1)).transpose(1, 2)
        # One row: an outer product, far cheaper than a product of thin matrices.
        return (residuals * x if x.shape[1] == 1 else residuals @ x).flatten(1)

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients of single rows in closed form."""
        residuals = self._residuals_at(theta, x, y)
        return (residuals.unsqueeze(-1) * x.unsqueeze(-2)).flatten(2)

    def squared_norm(self, theta: Tensor) -> Tensor:
        """Return |theta|^2."""
        return squared_norm(theta)

    def numbers_per_row(self) -> int:
        """Return the outputs."""
        return self.width

    def digest(self) -> str:
        """Return a digest of kind and shape."""
        return hashlib.sha256(f"{self.kind} {self.features} {self.width}".encode()).hexdigest()


def mean_log_sum_exp(outputs: Tensor, compiled: bool = False) -> Tensor:
    """Return the mean over rows of log sum_c exp of (b, classes, rows), in float64; `outputs` may be overwritten.

    For absolute values below 60 no exponential overflows or vanishes, so no pass for the largest class is needed.
    """
    if outputs.is_cuda:  # reading the bounds would wait for the device
        return outputs.logsumexp(1).mean(-1, dtype=torch.float64)
    low, high = outputs.aminmax()
    if not max(-float(low), float(high)) < 60.0:
        return outputs.logsumexp(1).mean(-1, dtype=torch.float64)
    if compiled and outputs.dtype == torch.float32:
        from dpvalue.models import linear_kernels

        means = outputs.new_empty(len(outputs), dtype=torch.float64)
        linear_kernels.mean_log_sum_exp(outputs.numpy(), means.numpy())
        return means
    return outputs.exp_().sum(1).log_().mean(-1, dtype=torch.float64)
