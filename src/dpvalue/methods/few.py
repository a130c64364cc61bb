"""Games of one, two or three released numbers per party: v(S) = f(sum of the rows of S), mostly without walks.

One number per party: f is tabulated once, to a relative error of 1e-7. With the utility accuracy and a linear model, f
is exact: along the line, each public row is classified correctly on an interval (a half-line per other class). A walk
is then a cumulative sum and a look-up.

Many parties and a smooth f need no permutations. A semivalue is an expectation over a coalition that each other party
joins with probability t. The law of t depends on the semivalue only (`Semivalue.joining`). The sum of a large coalition
is normal:

    phi(r) = E_t E_z [f(m + s z + r) - f(m + s z)],    m = t (T - r),    s^2 = t (1 - t) (Q - r^2),

with T and Q the sums of all numbers and of their squares. Two Gaussian quadratures on a grid of numbers r give all
values. The error of the normal approximation falls with the number of parties. Shapley values must sum to f(T) - f(0);
the difference is stated as the error of the values, in proportion to the parties' numbers. Above a thousandth,
permutations are walked instead.

Two or three numbers per party: the sum of a large coalition is normal in two or three dimensions,

    phi(r) = E_t E_z [f(m + s z + r) - f(m + s z)],    m = t (T - r),    s s' = t (1 - t) (1 - 1/n) Q,

with T the sum of all n rows and Q the sum of their outer products. phi is smooth in r, and r is short compared to a
sum. So phi is computed at a grid of Chebyshev nodes, and a polynomial interpolates all values. About a hundred thousand
models are evaluated, whatever the number of parties. f is not tabulated: a grid in three dimensions of the same
accuracy would be larger. Errors and the fallback to permutations are as along a line. Fewer parties than `MANY_ROWS`
are walked, which is faster.
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
"""The least number of parties whose values are computed as expectations, without walks."""
GAP = 1e-3
"""The largest relative error of the sum of Shapley values at which expectations are used."""
_KNOTS, _MOST_KNOTS = 2**9, 2**15
_NOWHERE = 1e-12
_CLOSE = 1e-7  # error of the table, relative to the range of f
_OWN, _JOINING, _NORMAL = 257, 96, 48  # grid points: numbers, probabilities of joining, normal sums
_PIECE = 2**22
Function = Callable[[Floats], Floats]


class LineGame(TableGame):
    """The game of one released number per party; made by `Table.game`.

    Formal guarantee: reads the table and public inputs only; its results are post-processing.
    """

    def __init__(self, walker: Walker, evaluate: Evaluator, rows: Tensor, line: _Line | None = None) -> None:
        super().__init__(walker, evaluate, rows)
        self._line = line or _Line(walker, evaluate)

    @staticmethod
    def suits(walker: Walker, evaluate: Evaluator) -> bool:
        """Return whether there is one number per party, and a utility that can be tabulated along the line."""
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
        return LineGame(self.walker, self.evaluate, rows, self._line)

    def walk(self, orders: Ints) -> Floats:
        """Return the marginals along each order, from tabulated utilities."""
        numbers = self._numbers
        sums_by_order = [np.cumsum(numbers[order]) for order in orders]
        ends = [end for sums in sums_by_order for end in (sums.min(initial=0.0), sums.max(initial=0.0))]
        f = self._line.over(min(ends), max(ends))
        return np.stack([np.diff(f(np.concatenate([[0.0], sums]))) for sums in sums_by_order])

    def leave_one_out(self) -> Floats:
        """Return the marginal of each party to all others."""
        numbers = self._numbers
        total = numbers.sum()
        without = total - numbers
        f = self._line.over(min(total, without.min()), max(total, without.max()))
        return f(np.array([total])) - f(without)

    def direct_estimate(self, kind: Semivalue) -> Estimate | None:
        """Return the values of many parties, with the error of their expectations; None for few, or unknown laws."""
        if self.n < MANY or kind.joining is None or not self._line.is_smooth:
            return super().direct_estimate(kind)
        values = self._expected_values(kind)
        shapley = values if kind.name == "shapley" else self._expected_values(semivalue("shapley"))
        numbers = self._numbers
        whole = self._line.over(min(0.0, numbers.sum()), max(0.0, numbers.sum()))(np.array([0.0, numbers.sum()]))
        gap = abs(float(shapley.sum() - (whole[1] - whole[0])))
        if not gap <= GAP * abs(float(whole[1] - whole[0])):
            return super().direct_estimate(kind)
        errors = gap * np.abs(numbers) / max(float(np.abs(numbers).sum()), 1e-300)
        return Estimate(values, errors, np.ones(self.n, dtype=np.int64), np.square(errors))

    def _expected_values(self, kind: Semivalue) -> Floats:
        numbers = self._numbers
        assert kind.joining is not None
        chances, weights = kind.joining(_JOINING)
        steps, masses = np.polynomial.hermite_e.hermegauss(_NORMAL)
        masses = masses / masses.sum()
        total, squares = numbers.sum(), float(numbers @ numbers)
        grid_numbers = np.linspace(numbers.min(), numbers.max(), _OWN) if numbers.min() < numbers.max() else numbers[:1]
        mean = chances * (total - grid_numbers[:, None])
        spread = np.sqrt(np.maximum(chances * (1 - chances) * (squares - np.square(grid_numbers)[:, None]), 0.0))
        sums = mean[..., None] + spread[..., None] * steps
        sums_with_own = sums + grid_numbers[:, None, None]
        ends = sums.min(), sums.max(), sums_with_own.min(), sums_with_own.max()
        f = self._line.over(min(ends), max(ends))
        gains = np.einsum("rtz,t,z->r", f(sums_with_own) - f(sums), weights, masses)
        return (
            np.full(self.n, gains[0])
            if len(grid_numbers) == 1
            else _cubic(grid_numbers[0], grid_numbers[-1], gains)(numbers)
        )


class _Line:
    """The utility along the line as a function of the sum of the parties' numbers; tabulated on demand.

    A table reaches to the next of few ends beyond what is asked for, so that what a game gets does not depend on which
    other games asked before.
    """

    def __init__(self, walker: Walker, evaluate: Evaluator) -> None:
        self._walker, self._evaluate = walker, evaluate
        self._exact = _accuracy(walker, evaluate) if evaluate.public.metric == ACCURACY else None
        self._tables: dict[tuple[float, float], Function] = {}

    @property
    def is_smooth(self) -> bool:
        """Whether the function has no steps."""
        return self._exact is None

    def over(self, low: float, high: float) -> Function:
        """Return the function on the interval from `low` to `high`."""
        if self._exact is not None:
            return self._exact
        ends = -_beyond(-low), _beyond(high)
        if ends not in self._tables:
            self._tables[ends] = self._tabulate(*ends)
        return self._tables[ends]

    def _tabulate(self, low: float, high: float) -> Function:
        """The function by cubic interpolation; knots double until the error halfway between knots is small."""
        knots = _KNOTS
        values = self._utilities(np.linspace(low, high, knots + 1))
        while True:
            between = low + (high - low) * (np.arange(knots) + 0.5) / knots
            halfway = self._utilities(between)
            errors = np.abs(_cubic(low, high, values)(between) - halfway)
            values, knots = np.append(np.stack([values[:-1], halfway], axis=1).reshape(-1), values[-1]), 2 * knots
            if not float(errors.max()) > _CLOSE * float(np.ptp(values)) or knots >= _MOST_KNOTS:
                return _cubic(low, high, values)

    def _utilities(self, sums: Floats) -> Floats:
        initial, rate = self._walker.initial, self._walker.learning_rate
        worths: Floats = self._evaluate(initial - rate * torch.from_numpy(sums).to(initial)[:, None]).cpu().numpy()
        return worths


def _beyond(end: float) -> float:
    """The next quarter of a power of two: a table reaches at least to zero, and up to a fifth farther than needed."""
    return float(2.0 ** (np.ceil(4 * np.log2(end)) / 4)) if end > _NOWHERE else _NOWHERE


def _accuracy(walker: Walker, evaluate: Evaluator) -> Function:
    """The accuracy of a linear model along the line: the share of rows in the interval of their correct class."""
    model = walker.model
    assert isinstance(model, SubspaceLinear)
    assert model.task == CLASSIFICATION
    outputs = model.inputs(evaluate.public.x).to("cpu", torch.float64).numpy()
    labels = evaluate.public.y.cpu().numpy()
    rows = np.arange(len(labels))
    # The margin to class c is a + b w at the parameter w = initial - rate * sum.
    lead = outputs[rows, :, labels][:, :, None] - outputs
    slope = lead[:, 1] * -walker.learning_rate
    start = lead[:, 0] + lead[:, 1] * float(walker.initial[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = -start / slope
    earlier = np.arange(outputs.shape[2]) < labels[:, None]  # of equal outputs the first class wins
    lost = (slope == 0) & ((start < 0) | ((start == 0) & earlier))
    begin, end = np.where(slope > 0, crossing, -np.inf), np.where(slope < 0, crossing, np.inf)
    low, high = begin.max(1), end.min(1)
    after = (earlier & (begin == low[:, None]) & np.isfinite(begin)).any(1)  # open at the lower end
    before = (earlier & (end == high[:, None]) & np.isfinite(end)).any(1)  # open at the upper end
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
    """Cubic interpolation by the four nearest of the values, which are evenly spaced from `low` to `high`."""
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
        return np.concatenate([piece(flat[start : start + _PIECE]) for start in range(0, len(flat), _PIECE)]).reshape(
            x.shape
        )

    return interpolated


MANY_ROWS = {2: 5_000, 3: 30_000}
"""The least number of parties whose values are expectations, by the numbers that each released."""
_OWN_ROWS = 4  # in each dimension
_CHANCES = 24  # of joining
_NORMAL_SUMS = {2: 12, 3: 6}  # in each dimension, by their number
_LEAST = 0.02  # of the length of a sum: rounding errors would dominate closer nodes
_MODELS = 2**16


class FewGame(TableGame):
    """The game of two or three released numbers per party; made by `Table.game`.

    Formal guarantee: reads the table and public inputs only; its results are post-processing.
    """

    @staticmethod
    def suits(walker: Walker, evaluate: Evaluator) -> bool:
        """Return whether there are two or three numbers per party, and a utility without steps."""
        return walker.model.size in _NORMAL_SUMS and evaluate.public.metric.of_loss is not None

    def with_rows(self, rows: torch.Tensor) -> FewGame:
        """Return the game of another table of the same parties."""
        return FewGame(self.walker, self.evaluate, rows)

    def direct_estimate(self, kind: Semivalue) -> Estimate | None:
        """Return the values of many parties, with the error of their expectations; None for few, or unknown laws."""
        if self.n < MANY_ROWS[self.rows.shape[1]] or kind.joining is None:
            return super().direct_estimate(kind)
        rows: Floats = self.rows.to("cpu", torch.float64).numpy()
        values = self._expected_values(rows, kind)
        shapley = values if kind.name == "shapley" else self._expected_values(rows, semivalue("shapley"))
        nobody, everybody = self._utilities(np.stack([np.zeros(rows.shape[1]), rows.sum(0)]))
        gap = abs(float(shapley.sum() - (everybody - nobody)))
        if not gap <= GAP * abs(float(everybody - nobody)):
            return super().direct_estimate(kind)
        lengths = np.linalg.norm(rows, axis=1)
        errors = gap * lengths / max(float(lengths.sum()), 1e-300)
        return Estimate(values, errors, np.ones(self.n, dtype=np.int64), np.square(errors))

    def _expected_values(self, rows: Floats, kind: Semivalue) -> Floats:
        assert kind.joining is not None
        m = rows.shape[1]
        chances, weights = kind.joining(_CHANCES)
        steps, masses = _normal_quadrature(m)
        total, squares = rows.sum(0), rows.T @ rows
        reach = np.maximum(np.abs(rows).max(0), _LEAST * np.sqrt(np.diag(squares) + total**2))
        reach = np.where(reach > 0, reach, 1.0)
        nodes = np.cos(np.pi * (np.arange(_OWN_ROWS) + 0.5) / _OWN_ROWS)
        spread = np.sqrt(chances * (1 - chances))[:, None, None] * (steps @ _matrix_root((1 - 1 / self.n) * squares).T)
        gains = np.empty((_OWN_ROWS,) * m)
        for place in product(range(_OWN_ROWS), repeat=m):
            row = reach * nodes[list(place)]
            sums = chances[:, None, None] * (total - row) + spread
            gains[place] = np.einsum("tz,t,z->", self._utilities(sums + row) - self._utilities(sums), weights, masses)
        interpolated = _interpolate(nodes, gains, np.concatenate([np.zeros((1, m)), rows / reach]))
        # A row of zeros has value zero; without the difference, rounding errors of a million parties would add up.
        return np.asarray(interpolated[1:] - interpolated[0])

    def _utilities(self, sums: Floats) -> Floats:
        """The utility of the models after steps with these sums (..., m)."""
        initial, rate = self.walker.initial, self.walker.learning_rate
        flat = torch.from_numpy(sums.reshape(-1, sums.shape[-1])).to(initial)
        worths: Floats = self.evaluate(initial - rate * flat).cpu().numpy().reshape(sums.shape[:-1])
        return worths


def _normal_quadrature(m: int) -> tuple[Floats, Floats]:
    """The points (q, m) and weights (q,) of a quadrature over the standard normal law in m dimensions."""
    steps, masses = np.polynomial.hermite_e.hermegauss(_NORMAL_SUMS[m])
    points = np.array(list(product(steps, repeat=m)))
    weights = np.array([np.prod(combination) for combination in product(masses / masses.sum(), repeat=m)])
    return points, weights


def _matrix_root(squares: Floats) -> Floats:
    """A matrix R with R R' = squares; negative eigenvalues count as zero."""
    lengths, directions = np.linalg.eigh(squares)
    return np.asarray(directions * np.sqrt(np.maximum(lengths, 0.0)))


def _interpolate(nodes: Floats, values: Floats, points: Floats) -> Floats:
    """Evaluate at points (n, m) the polynomial through values (k, ..., k) at a grid of Chebyshev nodes (k,)."""
    degree = len(nodes) - 1
    into = np.linalg.inv(np.polynomial.chebyshev.chebvander(nodes, degree))
    for axis in range(values.ndim):
        values = np.moveaxis(np.tensordot(into, values, axes=(1, axis)), 0, axis)
    polynomial = np.empty(len(points))
    for first in range(0, len(points), _MODELS):
        piece = points[first : first + _MODELS]
        partial = np.broadcast_to(values, (len(piece), *values.shape))
        for axis in range(points.shape[1]):
            basis = np.polynomial.chebyshev.chebvander(piece[:, axis], degree)
            partial = np.einsum("nk,nk...->n...", basis, partial)
        polynomial[first : first + _MODELS] = partial
    return polynomial
