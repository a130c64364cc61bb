"""Plots of a result with matplotlib: each function draws on the given axes, or on new ones, and returns them.

Colours, fonts and sizes come from the caller's style.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.errors import require_choice, require_count
from dpvalue.games.solving import estimate_values
from dpvalue.values.curves import ORDERS, addition_curve, removal_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from dpvalue.values.result import Result


@dataclass(frozen=True)
class ResultPlots:
    """The plots of one result, as `result.plot.values()`."""

    result: Result

    def values(self, semivalue: str | None = None, ax: Axes | None = None, noise: bool = True) -> Axes:
        """Plot the values in descending order, with their Monte Carlo errors and, with `noise`, the DP noise."""
        name, values = self._of(semivalue)
        axes = _axes(ax)
        order = np.argsort(-values, kind="stable")
        place = np.arange(1, len(order) + 1)
        (line,) = axes.plot(place, values[order], marker="." if len(order) < 50 else "", label=name)
        colour = line.get_color()
        if noise and self.result.guarantee.private:
            spread = self.result.noise_std()[name][order]
            axes.fill_between(
                place, values[order] - spread, values[order] + spread, alpha=0.2, color=colour, label="± DP noise"
            )
        errors = self.result.std_errors[name][order]
        if np.isfinite(errors).all() and errors.any():
            axes.fill_between(
                place, values[order] - errors, values[order] + errors, alpha=0.4, color=colour, label="± Monte Carlo"
            )
        axes.axhline(0.0, linewidth=0.8, color=axes.xaxis.label.get_color())
        axes.set(xlabel="party, by rank", ylabel=f"{name} value")
        axes.legend()
        return axes

    def curve(self, kind: str = "removal", semivalue: str | None = None, ax: Axes | None = None) -> Axes:
        """Plot the utility as parties are removed (or added): highest first, lowest first, and at random."""
        require_choice("kind", kind, ("removal", "addition"))
        name, _ = self._of(semivalue)
        make = removal_curve if kind == "removal" else addition_curve
        axes = _axes(ax)
        for order in ORDERS:
            curve = make(self.result, order, semivalue=name)
            label = "random" if order == "random" else f"{order}est first"
            (line,) = axes.plot(curve.shares, curve.mean, label=label)
            if curve.spread.any():
                low, high = curve.mean - curve.spread, curve.mean + curve.spread
                axes.fill_between(curve.shares, low, high, alpha=0.2, color=line.get_color())
        worth = self.result.table.method.worth_label
        axes.set(xlabel=f"share of parties {'removed' if kind == 'removal' else 'added'}", ylabel=worth)
        axes.legend()
        return axes

    def histogram(self, semivalue: str | None = None, ax: Axes | None = None, bins: int | str = "auto") -> Axes:
        """Plot the histogram of the values."""
        name, values = self._of(semivalue)
        axes = _axes(ax)
        axes.hist(values[np.isfinite(values)], bins=bins)
        axes.axvline(0.0, linewidth=0.8, color=axes.xaxis.label.get_color())
        axes.set(xlabel=f"{name} value", ylabel="parties")
        return axes

    def convergence(self, semivalue: str | None = None, ax: Axes | None = None, permutations: int = 320) -> Axes:
        """Plot the largest standard error, relative to the spread of the values, against the number of permutations."""
        name, _ = self._of(semivalue)
        require_count("permutations", permutations, least=40)
        steps = [20 * 2**doubling for doubling in range((permutations // 20).bit_length())]
        kinds = tuple(kind for kind in self.result.semivalues if kind.name == name)
        ratios = []
        with self.result.engine.threading():
            game = self.result.game()
            for count in steps:
                estimate = estimate_values(game, kinds, count, 1e-12, self.result.table.seed).estimates[name]
                spread = float(np.std(estimate.values))
                ratios.append(float(np.max(estimate.std_errors)) / spread if spread else 0.0)
        axes = _axes(ax)
        axes.plot(steps, ratios, marker="o")
        axes.axhline(self.result.table.schedule.tolerance, linestyle="--", linewidth=0.8, label="tolerance")
        axes.set(xscale="log", xlabel="permutations", ylabel="largest error / spread of values")
        axes.set_xticks(steps, [str(step) for step in steps])
        axes.legend()
        return axes

    def _of(self, semivalue: str | None) -> tuple[str, Floats]:
        name = self.result.name_of(semivalue)
        return name, self.result.values[name]


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots()[1]
