r"""The game of many parties that released two or three numbers each: v(S) = f(sum of their rows), without walks.

As along a line (`dpvalue.methods.line`), a semivalue is an expectation over a coalition that each of the others joins
with probability t, and the sum of a coalition of many is normal, here in two or three dimensions:

    phi(r) = E_t E_z [f(m + s z + r) - f(m + s z)],    m = t (T - r),    s s' = t (1 - t) (1 - 1/n) Q,

with T the sum of all n rows and Q that of their outer products, less an average party's. phi is smooth in r, and r is
short beside the way of a sum: so it is found at the nodes of a grid of own rows (Chebyshev's), and a polynomial through
them gives all values. The models at all quadrature points are evaluated, some hundred thousand, however many parties
there are; nothing is tabulated, as a grid in three dimensions that is as close would be larger. Errors are stated, and
permutations walked instead, as along a line. Fewer parties than `MANY` are walked, which is faster.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from dpvalue.arrays import Floats
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.games.estimates import Estimate
from dpvalue.games.semivalues import Semivalue, semivalue
from dpvalue.methods.line import GAP
from dpvalue.methods.sums import TableGame

MANY = {2: 5_000, 3: 30_000}
"""From so many parties on, by how many numbers each released, values are expectations."""
_OWN, _JOINING, _NORMAL = 4, 24, {2: 12, 3: 6}  # own rows and normal sums in each dimension; chances of joining
_LEAST = 0.02  # of the way of a sum: nearer nodes would drown in rounding
_PIECE = 2**16


class FewGame(TableGame):
    """What coalitions are worth if each party released two or three numbers; made by `Table.game`.

    Formal guarantee: reads the table and public things only; what it returns is post-processing.
    """

    @staticmethod
    def suits(walker: Walker, evaluate: Evaluator) -> bool:
        """Return whether a table has so few numbers a party, and a utility without steps."""
        return walker.model.size in _NORMAL and evaluate.public.metric.of_loss is not None

    def with_rows(self, rows: torch.Tensor) -> FewGame:
        """Return the game of another table of the same parties."""
        return FewGame(self.walker, self.evaluate, rows)

    def known(self, kind: Semivalue) -> Estimate | None:
        """Return the values of many parties, with the error of their expectations; None for few, or unknown laws."""
        if self.n < MANY[self.rows.shape[1]] or kind.joining is None:
            return super().known(kind)
        rows: Floats = self.rows.to("cpu", torch.float64).numpy()
        values = self._expected(rows, kind)
        shapley = values if kind.name == "shapley" else self._expected(rows, semivalue("shapley"))
        nobody, everybody = self._at(np.stack([np.zeros(rows.shape[1]), rows.sum(0)]))
        gap = abs(float(shapley.sum() - (everybody - nobody)))
        if not gap <= GAP * abs(float(everybody - nobody)):
            return super().known(kind)
        lengths = np.linalg.norm(rows, axis=1)
        errors = gap * lengths / max(float(lengths.sum()), 1e-300)
        return Estimate(values, errors, np.ones(self.n, dtype=np.int64), np.square(errors))

    def _expected(self, rows: Floats, kind: Semivalue) -> Floats:
        assert kind.joining is not None
        m = rows.shape[1]
        chances, weights = kind.joining(_JOINING)
        steps, masses = _normal(m)
        total, squares = rows.sum(0), rows.T @ rows
        reach = np.maximum(np.abs(rows).max(0), _LEAST * np.sqrt(np.diag(squares) + total**2))
        reach = np.where(reach > 0, reach, 1.0)
        nodes = np.cos(np.pi * (np.arange(_OWN) + 0.5) / _OWN)
        spread = np.sqrt(chances * (1 - chances))[:, None, None] * (steps @ _root((1 - 1 / self.n) * squares).T)
        gained = np.empty((_OWN,) * m)
        for place in product(range(_OWN), repeat=m):
            own = reach * nodes[list(place)]
            sums = chances[:, None, None] * (total - own) + spread
            gained[place] = np.einsum("tz,t,z->", self._at(sums + own) - self._at(sums), weights, masses)
        through = _through(nodes, gained, np.concatenate([np.zeros((1, m)), rows / reach]))
        # Who adds nothing gains nothing: of a million parties, rounding would add up.
        return np.asarray(through[1:] - through[0])

    def _at(self, sums: Floats) -> Floats:
        """The utility of the models that sums (..., m) lead to."""
        initial, rate = self.walker.initial, self.walker.learning_rate
        flat = torch.from_numpy(sums.reshape(-1, sums.shape[-1])).to(initial)
        worths: Floats = self.evaluate(initial - rate * flat).cpu().numpy().reshape(sums.shape[:-1])
        return worths


def _normal(m: int) -> tuple[Floats, Floats]:
    """The points (q, m) and weights (q,) of a quadrature over the standard normal law in m dimensions."""
    steps, masses = np.polynomial.hermite_e.hermegauss(_NORMAL[m])
    points = np.array(list(product(steps, repeat=m)))
    weights = np.array([np.prod(some) for some in product(masses / masses.sum(), repeat=m)])
    return points, weights


def _root(squares: Floats) -> Floats:
    """A matrix of which these are the products of rows; what is below zero counts as zero."""
    lengths, directions = np.linalg.eigh(squares)
    return np.asarray(directions * np.sqrt(np.maximum(lengths, 0.0)))


def _through(nodes: Floats, values: Floats, points: Floats) -> Floats:
    """The polynomial through values (k, ..., k) at a grid of Chebyshev nodes (k,), at points (n, m)."""
    degree = len(nodes) - 1
    into = np.linalg.inv(np.polynomial.chebyshev.chebvander(nodes, degree))
    for axis in range(values.ndim):
        values = np.moveaxis(np.tensordot(into, values, axes=(1, axis)), 0, axis)
    found = np.empty(len(points))
    for first in range(0, len(points), _PIECE):
        here = points[first : first + _PIECE]
        left = np.broadcast_to(values, (len(here), *values.shape))
        for axis in range(points.shape[1]):
            basis = np.polynomial.chebyshev.chebvander(here[:, axis], degree)
            left = np.einsum("nk,nk...->n...", basis, left)
        found[first : first + _PIECE] = left
    return found
