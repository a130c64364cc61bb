"""The game of parties that released one, two or three numbers each: v(S) = f(sum of their rows), mostly without walks.

Of one number each, f is tabulated once, to a stated accuracy; for accuracy as utility of a linear model it is known
exactly, by where along the line each public row is classified rightly (an interval: a half-line for each other class).
A walk is then a cumulative sum and a look-up.

Of many parties no sample is needed where f is smooth. A semivalue is an expectation over a coalition that each of the
others joins with probability t, where t has a law of the semivalue's own (`Semivalue.joining`), and the sum of a
coalition of many is normal:

    phi(r) = E_t E_z [f(m + s z + r) - f(m + s z)],    m = t (T - r),    s^2 = t (1 - t) (Q - r^2),

with T and Q the sums of all numbers and of their squares. Two Gaussian quadratures on a grid of own numbers r give all
values. What it leaves out, that a sum is not quite normal, falls with the number of parties. Shapley values must sum to
f(T) - f(0): by how much they do not is stated as the error of all values, shared by the parties' numbers; where that is
more than a thousandth, permutations are walked.

Of two or three numbers each the sum of a coalition of many is normal in two or three dimensions,

    phi(r) = E_t E_z [f(m + s z + r) - f(m + s z)],    m = t (T - r),    s s' = t (1 - t) (1 - 1/n) Q,

with T the sum of all n rows and Q that of their outer products, less an average party's. phi is smooth in r, and r is
short beside the way of a sum: so it is found at the nodes of a grid of own rows (Chebyshev's), and a polynomial through
them gives all values. The models at all quadrature points are evaluated, some hundred thousand, however many parties
there are; nothing is tabulated, as a grid in three dimensions that is as close would be larger. Errors are stated, and
permutations walked instead, as along a line. Fewer parties than `MANY_ROWS` are walked, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import ACCURACY
from dpvalue.engine.evaluator import Evaluator, Walker
from dpvalue.games.estimates import Estimate
from dpvalue.games.semivalues import Semivalue, semivalue
from dpvalue.methods.sums import TableGame
from dpvalue.models import CLASSIFICATION
from dpvalue.models.derived import SubspaceLinear

MANY = 1000
"""From so many parties on, values are expectations, and nothing is walked."""
GAP = 1e-3
"""By which share of what everybody is worth Shapley values may fail to sum to it, so that they are used."""
_KNOTS, _MOST_KNOTS = 2**9, 2**15
_CLOSE = 1e-7  # of a table, as a share of how much f varies in it
_OWN, _JOINING, _NORMAL = 257, 96, 48  # own numbers, probabilities of joining, normal sums
_PIECE = 2**22
Function = Callable[[Floats], Floats]


class LineGame(TableGame):
    """What coalitions are worth if each party released one number; made by `Table.game`.

    Formal guarantee: reads the table and public things only; what it returns is post-processing.
    """

    def __init__(self, walker: Walker, evaluate: Evaluator, rows: Tensor, along: _Line | None = None) -> None:
        super().__init__(walker, evaluate, rows)
        self._along = along or _Line(walker, evaluate)

    @staticmethod
    def suits(walker: Walker, evaluate: Evaluator) -> bool:
        """Return whether a table of one number a party has a function that can be tabulated."""
        if walker.model.size != 1:
            return False
        metric, is_linear = evaluate.public.metric, isinstance(walker.model, SubspaceLinear)
        return metric.of_loss is not None or (metric == ACCURACY and is_linear)

    @property
    def _numbers(self) -> Floats:
        numbers: Floats = self.rows[:, 0].to("cpu", torch.float64).numpy()
        return numbers

    def with_rows(self, rows: Tensor) -> LineGame:
        """Return the game of another table of the same parties."""
        return LineGame(self.walker, self.evaluate, rows, self._along)

    def walk(self, orders: Ints) -> Floats:
        """Return marginals along each order: sums, looked up."""
        numbers = self._numbers
        reached = [np.cumsum(numbers[order]) for order in orders]
        ends = [end for sums in reached for end in (sums.min(initial=0.0), sums.max(initial=0.0))]
        f = self._along.over(min(ends), max(ends))
        return np.stack([np.diff(f(np.concatenate([[0.0], sums]))) for sums in reached])

    def leave_one_out(self) -> Floats:
        """Return what each party adds to all the others."""
        numbers = self._numbers
        total = numbers.sum()
        without = total - numbers
        f = self._along.over(min(total, without.min()), max(total, without.max()))
        return f(np.array([total])) - f(without)

    def known(self, kind: Semivalue) -> Estimate | None:
        """Return the values of many parties, with the error of their expectations; None for few, or unknown laws."""
        if self.n < MANY or kind.joining is None or not self._along.is_smooth:
            return super().known(kind)
        values = self._expected(kind)
        shapley = values if kind.name == "shapley" else self._expected(semivalue("shapley"))
        numbers = self._numbers
        whole = self._along.over(min(0.0, numbers.sum()), max(0.0, numbers.sum()))(np.array([0.0, numbers.sum()]))
        gap = abs(float(shapley.sum() - (whole[1] - whole[0])))
        if not gap <= GAP * abs(float(whole[1] - whole[0])):
            return super().known(kind)
        errors = gap * np.abs(numbers) / max(float(np.abs(numbers).sum()), 1e-300)
        return Estimate(values, errors, np.ones(self.n, dtype=np.int64), np.square(errors))

    def _expected(self, kind: Semivalue) -> Floats:
        numbers = self._numbers
        assert kind.joining is not None
        chances, weights = kind.joining(_JOINING)
        steps, masses = np.polynomial.hermite_e.hermegauss(_NORMAL)
        masses = masses / masses.sum()
        total, squares = numbers.sum(), float(numbers @ numbers)
        own = np.linspace(numbers.min(), numbers.max(), _OWN) if numbers.min() < numbers.max() else numbers[:1]
        middle = chances * (total - own[:, None])
        spread = np.sqrt(np.maximum(chances * (1 - chances) * (squares - np.square(own)[:, None]), 0.0))
        sums = middle[..., None] + spread[..., None] * steps
        moved = sums + own[:, None, None]
        ends = sums.min(), sums.max(), moved.min(), moved.max()
        f = self._along.over(min(ends), max(ends))
        gained = np.einsum("rtz,t,z->r", f(moved) - f(sums), weights, masses)
        return np.full(self.n, gained[0]) if len(own) == 1 else _cubic(own[0], own[-1], gained)(numbers)


class _Line:
    """The utility along the line, as a function of the sum of parties' numbers; tabulated where it is needed."""

    def __init__(self, walker: Walker, evaluate: Evaluator) -> None:
        self._walker, self._evaluate = walker, evaluate
        self._exact = _accuracy(walker, evaluate) if evaluate.public.metric == ACCURACY else None
        self._low = self._high = 0.0
        self._table: Function | None = None

    @property
    def is_smooth(self) -> bool:
        """Whether the function has no steps."""
        return self._exact is None

    def over(self, low: float, high: float) -> Function:
        """Return the function, for sums from `low` to `high`."""
        if self._exact is not None:
            return self._exact
        if self._table is None or low < self._low or high > self._high:
            room = 0.05 * (high - low) + 1e-12
            self._low, self._high = min(self._low, low - room), max(self._high, high + room)
            self._table = self._tabulated(self._low, self._high)
        return self._table

    def _tabulated(self, low: float, high: float) -> Function:
        """The function by cubic pieces between knots, twice as many until it is close halfway between them."""
        knots = _KNOTS
        values = self._at(np.linspace(low, high, knots + 1))
        while True:
            between = low + (high - low) * (np.arange(knots) + 0.5) / knots
            halfway = self._at(between)
            off = np.abs(_cubic(low, high, values)(between) - halfway)
            values, knots = np.append(np.stack([values[:-1], halfway], axis=1).reshape(-1), values[-1]), 2 * knots
            if not float(off.max()) > _CLOSE * float(np.ptp(values)) or knots >= _MOST_KNOTS:
                return _cubic(low, high, values)

    def _at(self, sums: Floats) -> Floats:
        initial, rate = self._walker.initial, self._walker.learning_rate
        worths: Floats = self._evaluate(initial - rate * torch.from_numpy(sums).to(initial)[:, None]).cpu().numpy()
        return worths


def _accuracy(walker: Walker, evaluate: Evaluator) -> Function:
    """The accuracy of a linear model along the line: how many rows are in the interval where they are right."""
    model = walker.model
    assert isinstance(model, SubspaceLinear)
    assert model.task == CLASSIFICATION
    outputs = model.inputs(evaluate.public.x).to("cpu", torch.float64).numpy()
    labels = evaluate.public.y.cpu().numpy()
    rows = np.arange(len(labels))
    # Beyond class c by a + b w at the model's parameter w = initial - rate * sum.
    lead = outputs[rows, :, labels][:, :, None] - outputs
    slope = lead[:, 1] * -walker.learning_rate
    start = lead[:, 0] + lead[:, 1] * float(walker.initial[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -start / slope
    earlier = np.arange(outputs.shape[2]) < labels[:, None]  # of equal outputs the first class wins
    lost = (slope == 0) & ((start < 0) | ((start == 0) & earlier))
    begin, end = np.where(slope > 0, crossing, -np.inf), np.where(slope < 0, crossing, np.inf)
    low, high = begin.max(1), end.min(1)
    after = (earlier & (begin == low[:, None]) & np.isfinite(begin)).any(1)  # right only beyond where it begins
    before = (earlier & (end == high[:, None]) & np.isfinite(end)).any(1)  # no longer right where it ends
    right = ((low < high) | ((low == high) & ~after & ~before)) & ~lost.any(1)
    begins = np.sort(low[right & ~after]), np.sort(low[right & after])
    ends = np.sort(high[right & before]), np.sort(high[right & ~before])
    count = len(labels)

    def accuracy(sums: Floats) -> Floats:
        begun = np.searchsorted(begins[0], sums, "right") + np.searchsorted(begins[1], sums, "left")
        ended = np.searchsorted(ends[0], sums, "right") + np.searchsorted(ends[1], sums, "left")
        return np.asarray((begun - ended) / count)

    return accuracy


def _cubic(low: float, high: float, values: Floats) -> Function:
    """The cubic through the four nearest of values at even distances from `low` to `high`."""
    cells = len(values) - 1

    def piece(x: Floats) -> Floats:
        place = (x - low) * (cells / (high - low))
        first = np.clip(place.astype(np.int64), 1, cells - 2) - 1
        t = place - first - 1
        a, b, c, d = (values[first + k] for k in range(4))
        return np.asarray(
            b + t * ((c - a / 3 - b / 2 - d / 6) + t * ((a + c) / 2 - b + t * ((d - a) / 6 + (b - c) / 2)))
        )

    def interpolated(x: Floats) -> Floats:
        flat = x.reshape(-1)
        return np.concatenate([piece(flat[at : at + _PIECE]) for at in range(0, len(flat), _PIECE)]).reshape(x.shape)

    return interpolated


MANY_ROWS = {2: 5_000, 3: 30_000}
"""From so many parties on, by how many numbers each released, values are expectations."""
_OWN_ROWS = 4  # in each dimension
_CHANCES = 24  # of joining
_NORMAL_SUMS = {2: 12, 3: 6}  # in each dimension, by their number
_LEAST = 0.02  # of the way of a sum: nearer nodes would drown in rounding
_MODELS = 2**16


class FewGame(TableGame):
    """What coalitions are worth if each party released two or three numbers; made by `Table.game`.

    Formal guarantee: reads the table and public things only; what it returns is post-processing.
    """

    @staticmethod
    def suits(walker: Walker, evaluate: Evaluator) -> bool:
        """Return whether a table has so few numbers a party, and a utility without steps."""
        return walker.model.size in _NORMAL_SUMS and evaluate.public.metric.of_loss is not None

    def with_rows(self, rows: torch.Tensor) -> FewGame:
        """Return the game of another table of the same parties."""
        return FewGame(self.walker, self.evaluate, rows)

    def known(self, kind: Semivalue) -> Estimate | None:
        """Return the values of many parties, with the error of their expectations; None for few, or unknown laws."""
        if self.n < MANY_ROWS[self.rows.shape[1]] or kind.joining is None:
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
        chances, weights = kind.joining(_CHANCES)
        steps, masses = _normal(m)
        total, squares = rows.sum(0), rows.T @ rows
        reach = np.maximum(np.abs(rows).max(0), _LEAST * np.sqrt(np.diag(squares) + total**2))
        reach = np.where(reach > 0, reach, 1.0)
        nodes = np.cos(np.pi * (np.arange(_OWN_ROWS) + 0.5) / _OWN_ROWS)
        spread = np.sqrt(chances * (1 - chances))[:, None, None] * (steps @ _root((1 - 1 / self.n) * squares).T)
        gained = np.empty((_OWN_ROWS,) * m)
        for place in product(range(_OWN_ROWS), repeat=m):
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
    steps, masses = np.polynomial.hermite_e.hermegauss(_NORMAL_SUMS[m])
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
    for first in range(0, len(points), _MODELS):
        here = points[first : first + _MODELS]
        left = np.broadcast_to(values, (len(here), *values.shape))
        for axis in range(points.shape[1]):
            basis = np.polynomial.chebyshev.chebvander(here[:, axis], degree)
            left = np.einsum("nk,nk...->n...", basis, left)
        found[first : first + _MODELS] = left
    return found
