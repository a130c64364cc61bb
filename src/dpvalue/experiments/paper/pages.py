"""Tables in Markdown and figures in the paper's layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.experiments.paper.readings import LOOSE


def mean_and_error(numbers: Sequence[float]) -> str:
    """Return a mean with its standard error in parentheses."""
    found = np.asarray(numbers, dtype=float)
    mean = f"{found.mean().round(3) + 0.0:.3f}"  # no "-0.000"
    return mean if len(found) < 2 else f"{mean} ({found.std(ddof=1) / np.sqrt(len(found)):.3f})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def said_spent(cost: dict[str, Any]) -> str:
    """Return what a method really spent, in words; where nothing was bounded, for the longest gradient seen."""
    if cost["epsilon"] is None:
        return "-"
    if "longest" in cost:
        if cost["longest"] > LOOSE:
            return f"eps = {cost['epsilon']:.3g} (a clip of {LOOSE:g} bound gradients of up to {cost['longest']:.3g})"
        return f"no bound (eps = {cost['epsilon']:.3g} for a gradient of {cost['longest']:.3g}, the longest seen)"
    return f"eps = {cost['epsilon']:.3g}"


def save_figure(figure: Any, path: Path) -> None:
    """Save a figure as vectors and as pixels, beside each other."""
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    with plt.rc_context({"svg.hashsalt": path.parent.name}):  # or every save names its shapes anew
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=130)
    plt.close(figure)


def plotted(columns: int = 1, rows: int = 1, width: float = 4.2, height: float = 3.2) -> tuple[Any, Any]:
    """Return a figure and its axes, without a display."""
    import matplotlib

    matplotlib.use("Agg", force=False)
    import matplotlib.pyplot as plt

    return plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)


def band(axes: Any, x: Any, trials: Any, label: str, **style: Any) -> None:
    """Draw the mean over trials (trials, points) with a band of one standard error."""
    found = np.asarray(trials, dtype=float)
    mean = found.mean(0)
    (line,) = axes.plot(x, mean, label=label, **style)
    if len(found) > 1:
        error = found.std(0, ddof=1) / np.sqrt(len(found))
        axes.fill_between(x, mean - error, mean + error, alpha=0.2, color=line.get_color())


def whole_ticks(axes: Any, numbers: Sequence[int]) -> None:
    """Mark the numbers themselves on a logarithmic axis, and nothing between them."""
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_xticks([], minor=True)
