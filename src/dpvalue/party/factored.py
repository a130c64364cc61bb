"""Walks of linear models over single rows, many positions at once.

The clipped gradient of a party of one row is an outer product: a few coefficients (o,) times its row (f + 1,). So for a
segment of a walk everything except these coefficients can be computed in advance: the noise, the earlier releases, and
the products of the rows with each other. With m_q the move of position q without its gradient, and r the step along a
gradient,

    theta_p = theta + sum_(q < p) (m_q + r coefficients_q (x) x_q),

and the outputs of party p are theta x_p + sum_(q < p) m_q x_p + sum_(q < p) r (x_q . x_p) coefficients_q. The
sequential part is of size o, not of size d.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from dpvalue.data.rows import PrivateRows, PublicRows
from dpvalue.models import Linear
from dpvalue.models.base import REGRESSION
from dpvalue.privacy.clipping import clip_bound, divide_clipped
from dpvalue.privacy.mechanism import Mechanism


@dataclass(frozen=True)
class OuterProducts:
    """Vectors (..., o (f + 1)) that are coefficients (..., o) times rows (..., f + 1)."""

    coefficients: Tensor
    x: Tensor

    def add_to(self, others: Tensor) -> Tensor:
        """Add them to other vectors, in place; return those."""
        others.unflatten(-1, (-1, self.x.shape[-1])).addcmul_(self.coefficients.unsqueeze(-1), self.x.unsqueeze(-2))
        return others


@dataclass(frozen=True)
class WalkSegment:
    """Precomputed tensors of some positions of some walks.

    Attributes:
        x: the rows (walks, positions, f + 1).
        y: their targets, positions first (positions, walks, o).
        lengths: their lengths over the bound of clipping (positions, walks, 1), in float64.
        moved: the sums of moves up to each position (walks, positions, d).
        outputs: of each party at the sum of moves before it (positions, walks, o).
        products: r times the products of rows (position, later position, walks, 1).
    """

    x: Tensor
    y: Tensor
    lengths: Tensor
    moved: Tensor
    outputs: Tensor
    products: Tensor


class FactoredRows:
    """The rows of parties with one row each, behind a linear model and the mechanism."""

    def __init__(self, model: Linear, rows: PrivateRows | PublicRows, mechanism: Mechanism) -> None:
        self._model, self._clipped = model, mechanism.clip is not None
        places = rows.places(torch.arange(rows.n, device=rows.x.device), 0, 1)
        x = model.inputs(rows.x)[places[:, 0]]
        # A row with a non-finite entry, and a party without rows, have a gradient of zero: as rows of zeros they do.
        self._x = torch.where(x.isfinite().all(-1, keepdim=True) & (rows.weights[places] > 0), x, 0.0)
        self._y = model.targets(rows.y)[places[:, 0]]
        bound = 1.0 if mechanism.clip is None else clip_bound(mechanism.clip, x.dtype)
        self._lengths = torch.linalg.vector_norm(self._x, dim=-1, keepdim=True, dtype=torch.float64) / bound

    def prepare(self, parties: Tensor, moves: Tensor, reach: Tensor) -> WalkSegment:
        """Return the precomputed tensors of a segment.

        Args:
            parties: the parties at each position of each walk.
            moves: what each position adds to the model besides its gradient (walks, positions, d); overwritten.
            reach: r, how far the model goes along a gradient (walks,): - alpha * own weight.
        """
        x = self._x[parties]
        for current, after in itertools.pairwise(moves.unbind(1)):  # three times as fast as cumsum along this dimension
            after += current
        outputs = x.new_zeros(*parties.shape, self._model.width)
        matrices = moves[:, :-1].unflatten(2, (self._model.width, -1))
        outputs[:, 1:] = (matrices @ x[:, 1:].unsqueeze(-1)).squeeze(-1)
        products = (x @ x.transpose(1, 2)).mul_(reach[:, None, None])
        return WalkSegment(
            x=x,
            y=self._y[parties.T],
            lengths=self._lengths[parties.T],
            moved=moves,
            outputs=outputs.transpose(0, 1).contiguous(),
            products=products.permute(1, 2, 0).contiguous().unsqueeze(-1),
        )

    def clipped_gradients(self, theta: Tensor, segment: WalkSegment) -> OuterProducts:
        """Walk a stretch from the models theta (walks, d); return the clipped gradients (walks, positions, d)."""
        matrices = theta.unflatten(1, (self._model.width, -1))
        with torch.inference_mode():  # the operations below are so small that autograd's book-keeping shows
            outputs = (segment.x @ matrices.transpose(1, 2)).transpose(0, 1).add(segment.outputs)
            by_position = []
            parts = zip(outputs, segment.y, segment.lengths, segment.products, strict=True)
            for p, (at, y, lengths, products) in enumerate(parts, start=1):
                by_position.append(self._coefficients_at(at, y, lengths))
                outputs[p:].addcmul_(products[p:], by_position[-1])
            coefficients = torch.stack(by_position, dim=1)
        return OuterProducts(coefficients.clone(), segment.x)

    def clipped_gradients_compiled(
        self, theta: Tensor, parties: Tensor, noise: Tensor, before: Tensor, weights: Tensor
    ) -> OuterProducts:
        """Return the clipped gradients (walks, positions, d) of walks from theta, in compiled code (`walk_kernel`)."""
        from dpvalue.models.linear_kernels import find_coefficients

        coefficients = theta.new_empty(*parties.shape, self._model.width)
        places = (coefficients, theta, parties, noise, before, weights, self._x, self._y, self._lengths.squeeze(-1))
        find_coefficients(*(place.numpy() for place in places), self._clipped, self._model.task != REGRESSION)
        return OuterProducts(coefficients, self._x[parties])

    def _coefficients_at(self, outputs: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        """The coefficients (walks, o) whose products with the rows are clipped gradients, at these outputs."""
        residuals = self._model.residuals(outputs, y)
        if not self._clipped:
            return residuals
        length = torch.linalg.vector_norm(residuals, dim=-1, keepdim=True, dtype=torch.float64)
        return divide_clipped(residuals, length.mul_(lengths))
