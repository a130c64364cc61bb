r"""Ridge fits of many coalitions at once, each on the union of its members' records.

A coalition S has the model

    theta_S = argmin  sum over its records of loss(theta; record) + 1/2 |theta|^2,

scikit-learn's C = 1 (or alpha = 1) with a constant as one of the features: its weight is penalised like all others. A
coalition that lacks a class would otherwise have an intercept of minus infinity, and a worth of minus infinity with it.
Three classes or more have one vector of weights each (softmax); two have one together (sigmoid), the first class's
being zero; a number has one, and its loss is half the squared error.

Newton's steps with a line search, many coalitions a batch. With all records' x x' as the rows of one matrix, the
curvatures of a batch are one product of matrices; a coalition starts from the fit of the one without its smallest
member. Numbers need no steps: their curvatures are sums over members.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Floats
from dpvalue.errors import DpvalueError

TOLERANCE = 1e-10
"""Of what the last step can still gain, in loss a record; it is taken, and after it far less is left."""
WARM_STEPS, MOST_STEPS = 25, 125
_CPU_BYTES, _GPU_BYTES = 2**28, 2**34


@dataclass(frozen=True, eq=False)
class Stack:
    """Records of all parties, one after the other, on one device.

    Attributes:
        x: features and a constant (rows, features + 1).
        y: what is learned: (rows,) numbers, or (outputs, rows) of zeros and ones.
        owner: the party of each row.
        n: the number of parties.
        classes: 0 if labels are numbers.
    """

    x: Tensor
    y: Tensor
    owner: Tensor
    n: int
    classes: int

    @property
    def outputs(self) -> int:
        """How many vectors of weights a model has."""
        return self.classes if self.classes > 2 else 1

    def logits(self, theta: Tensor) -> Tensor:
        """Return what models (models, outputs, features) say of each row (models, outputs, rows)."""
        return theta @ self.x.T

    def losses(self, logits: Tensor) -> Tensor:
        """Return the losses (models, rows): log losses, or squared errors."""
        if not self.classes:
            return (logits[:, 0] - self.y) ** 2
        return _with_first(self, logits).logsumexp(1) - (logits * self.y).sum(1)


def stack(parts: Sequence[tuple[Floats, Array]], classes: int, device: str = "cpu") -> Stack:
    """Return the rows of several parties, (features, labels) each, without blanks, as one stack."""
    x = np.concatenate([np.c_[x, np.ones(len(x))] for x, _ in parts])
    y = torch.from_numpy(np.concatenate([y for _, y in parts]))
    owner = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts])
    if classes:
        y = torch.nn.functional.one_hot(y.long(), classes).T[1 if classes == 2 else 0 :]
    rows, labels, owners = (part.to(device) for part in (torch.from_numpy(x), y.double(), torch.from_numpy(owner)))
    return Stack(rows, labels.contiguous(), owners, len(parts), classes)


def fit_all(records: Stack) -> Tensor:
    """Return the models of all 2^n coalitions (2^n, outputs, features); bit j of its number is set if j is in."""
    masks = torch.arange(2**records.n, device=records.x.device)
    members = (masks[:, None] >> torch.arange(records.n, device=masks.device)) & 1
    if not records.classes:
        return _least_squares(records, members)
    theta = records.x.new_zeros(len(masks), records.outputs, records.x.shape[1])
    counts = torch.bincount(records.owner, minlength=records.n)
    for size in range(1, records.n + 1):
        some = masks[members.sum(1) == size]
        smallest = torch.where(members[some] == 1, counts, counts.sum() + 1).argmin(1)
        theta[some] = fit(records, members[some], theta[some ^ (1 << smallest)])
    return theta


def fit(records: Stack, members: Tensor, start: Tensor | None = None) -> Tensor:
    """Return the models of coalitions, a row of ones and zeros each (coalitions, n), from where to start (or zero)."""
    if not records.classes:
        return _least_squares(records, members)
    rows, features = records.x.shape
    if start is None:
        start = records.x.new_zeros(len(members), records.outputs, features)
    upper = torch.triu_indices(features, features, device=records.x.device)
    products = records.x[:, upper[0]] * records.x[:, upper[1]]
    pairs = records.outputs * (records.outputs + 1) // 2
    cost = 8 * (3 * pairs * rows + 4 * (records.outputs * features) ** 2)
    piece = max(1, (_GPU_BYTES if records.x.is_cuda else _CPU_BYTES) // cost)
    return torch.cat(
        [
            _newton(records, products, some, begin)
            for some, begin in zip(members.split(piece), start.split(piece), strict=True)
        ]
    )


def worth(public: Stack, theta: Tensor) -> Floats:
    """Return minus the mean loss of each model on the public rows."""
    rows = public.x.shape[0]
    piece = max(1, (_GPU_BYTES if public.x.is_cuda else _CPU_BYTES) // (8 * 4 * public.outputs * rows))
    means = [public.losses(public.logits(some)).mean(1) for some in theta.split(piece)]
    return np.asarray(-torch.cat(means).cpu().numpy())


def _least_squares(records: Stack, members: Tensor) -> Tensor:
    """The models where labels are numbers: curvatures and slopes are sums over members."""
    features = records.x.shape[1]
    belongs = torch.nn.functional.one_hot(records.owner, records.n).T.double()
    curvature = torch.einsum("nr,ri,rj->nij", belongs, records.x, records.x)
    slope = (belongs * records.y) @ records.x
    chosen = members.double()
    ridge = torch.eye(features).to(records.x)
    theta: Tensor = torch.linalg.solve(torch.einsum("sn,nij->sij", chosen, curvature) + ridge, chosen @ slope)
    return theta[:, None]


def _newton(records: Stack, products: Tensor, members: Tensor, start: Tensor) -> Tensor:
    """The models of a batch of coalitions, in classification."""
    theta, working = start.clone(), torch.arange(len(members), device=members.device)
    weights = members.double()[:, records.owner]
    now, logits = theta, records.logits(theta)
    for number in range(MOST_STEPS):
        if number == WARM_STEPS:  # a start where chances are all but 0 and 1 can make steps go back and forth
            now, logits = torch.zeros_like(now), torch.zeros_like(logits)
        gradient, curvature = _derivatives(records, products, weights, now, logits)
        factor = torch.linalg.cholesky(curvature)
        step = torch.cholesky_solve(gradient.flatten(1)[..., None], factor).view_as(now)
        gain = (gradient * step).flatten(1).sum(1)
        change = records.logits(step)
        length = _line_search(records, weights, now, step, logits, change, gain)
        now, logits = now - length * step, logits - length * change
        theta[working] = now
        left = gain > TOLERANCE * weights.sum(1).clamp_min(1)
        if not left.any():
            return theta
        working, weights, now, logits = (part[left] for part in (working, weights, now, logits))
    raise DpvalueError(f"the fits of {len(working)} coalitions did not converge in {MOST_STEPS} steps")


def _derivatives(
    records: Stack, products: Tensor, weights: Tensor, theta: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients (coalitions, outputs, features), and the curvatures, a square matrix of all parameters each."""
    outputs, features = theta.shape[1:]
    chances = _with_first(records, logits).softmax(1)[:, -outputs:]
    gradient = ((chances - records.y) * weights[:, None]) @ records.x + theta
    one, other = torch.triu_indices(outputs, outputs, device=theta.device)
    spread = (weights[:, None] * chances)[:, one] * ((one == other).double()[:, None] - chances[:, other])
    blocks = spread @ products
    curvature = blocks[:, _square(outputs, theta.device)][..., _square(features, theta.device)]
    curvature = curvature.transpose(2, 3).reshape(len(theta), outputs * features, outputs * features)
    curvature.diagonal(dim1=1, dim2=2).add_(1.0)
    return gradient, curvature


def _line_search(
    records: Stack, weights: Tensor, theta: Tensor, step: Tensor, logits: Tensor, change: Tensor, gain: Tensor
) -> Tensor:
    """How much of its step each coalition takes (coalitions, 1, 1): halved until the loss falls enough."""

    def objective(length: Tensor) -> Tensor:
        losses = (records.losses(logits - length * change) * weights).sum(1)
        return losses + 0.5 * (theta - length * step).flatten(1).square().sum(1)

    length = torch.ones_like(gain)[:, None, None]
    before = objective(torch.zeros_like(length))
    rounding = 1e-11 * (1 + before.abs())
    while True:
        fails = objective(length) > before - 1e-4 * length.flatten() * gain + rounding
        if not fails.any() or length.min() < 1e-6:
            return length
        length = torch.where(fails[:, None, None], length / 2, length)


def _with_first(records: Stack, logits: Tensor) -> Tensor:
    """The logits of all classes: of two the first has zero."""
    return logits if records.classes > 2 else torch.nn.functional.pad(logits, (0, 0, 1, 0))


def _square(side: int, device: torch.device) -> Tensor:
    """Where the cells of a symmetric matrix stand in its upper triangle, row by row."""
    places = torch.zeros(side, side, dtype=torch.long, device=device)
    one, other = torch.triu_indices(side, side, device=device)
    places[one, other] = places[other, one] = torch.arange(len(one), device=device)
    return places
