"""The tables "memory_overhead" and "runtime_overhead": what correlated noise costs beside i.i.d. noise."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from dpvalue.api import release
from dpvalue.engine.engines import Local
from dpvalue.errors import DpvalueError
from dpvalue.experiments.bench.data import made
from dpvalue.experiments.paper.pages import markdown, mean_and_error, plotted, save_figure
from dpvalue.experiments.paper.trials import Experiment, Trial, TrialScale
from dpvalue.privacy.budget import Privacy
from dpvalue.protocol.schedule import Schedule

KINDS = {"i.i.d.": "independent", "correlated": "running-mean"}
PARTIES, QUICK_PARTIES = (100, 200, 300), (20, 40)
IMAGE = (1, 28, 28)
PAPER_MEMORY = {100: "11", 200: "22", 300: "33"}


def _release(data: Any, model: str, kind: str, k: int) -> Any:
    schedule = Schedule(kind, block=1) if kind != "independent" else Schedule(kind)
    return release(
        data.train, data.test, model=model, schedule=schedule, permutations=k, privacy=Privacy(), clip=1.0,
        learning_rate=0.03, noise="fast", engine=Local(device="cpu"), progress=False,
    )  # fmt: skip


def memory_trial(scale: TrialScale, number: int) -> Trial:
    """What is kept of each party's releases: one combination of them, whatever the schedule."""
    found = {}
    for n in QUICK_PARTIES if scale.quick else PARTIES:
        data = made(n, IMAGE, 10, test=20, seed=number)
        found[str(n)] = {name: _release(data, "cnn", kind, 2).rows.nbytes / 1e6 for name, kind in KINDS.items()}
    return {"megabytes": found}


def show_memory(trials: list[Trial], path: Path) -> str:
    """Return the table; draw what is kept against the number of parties."""
    parties = list(trials[0]["megabytes"])
    kept = {name: [trials[0]["megabytes"][n][name] for n in parties] for name in KINDS}
    rows = [["paper, more for correlated noise, MB", *(PAPER_MEMORY.get(int(n), "") for n in parties)]]
    rows += [[f"ours, kept with {name} noise, MB", *(f"{size:.1f}" for size in kept[name])] for name in KINDS]
    figure, axes = plotted()
    axes[0, 0].plot(list(map(int, parties)), kept["correlated"], marker="o")
    axes[0, 0].set(xlabel="parties", ylabel="kept for correlated noise, MB")
    save_figure(figure, path)
    return markdown(["MNIST + CNN", *(f"n = {n}" for n in parties)], rows)


def check_memory(trials: list[Trial], quick: bool) -> None:
    """Raise unless what is kept grows with the parties and nothing else."""
    kept = {int(n): one["correlated"] for n, one in trials[0]["megabytes"].items()}
    ratios = {round(size / n, 6) for n, size in kept.items()}
    if len(ratios) != 1:
        raise DpvalueError(f"memory must grow in proportion to the parties, got {kept}")


MEMORY = Experiment(
    name="memory",
    title="Memory of correlated noise: MNIST's shape, CNN; O(n) and nothing else",
    data=(),
    trials=1,
    minutes="2",
    trial=memory_trial,
    show=show_memory,
    check=check_memory,
)


def runtime_trial(scale: TrialScale, number: int) -> Trial:
    """Seconds of k = 120 permutations of n = 100 parties."""
    n, k = (20, 10) if scale.quick else (100, 120)
    found: dict[str, dict[str, float]] = {}
    for label, shape, classes, model in (("diabetes + LR", (10,), 2, "logistic"), ("MNIST + CNN", IMAGE, 10, "cnn")):
        data = made(n, shape, classes, test=42, seed=number)
        found[label] = {}
        for name, kind in KINDS.items():
            _release(data, model, kind, 2)
            began = time.perf_counter()
            _release(data, model, kind, k)
            found[label][name] = (time.perf_counter() - began) / (n * k) * 1e3
    return {"milliseconds": found}


def show_runtime(trials: list[Trial], path: Path) -> str:
    """Return the table; draw the times."""
    labels = list(trials[0]["milliseconds"])
    paper = {"diabetes + LR": "6.5", "MNIST + CNN": "8.3"}
    figure, axes = plotted()
    rows = []
    for place, label in enumerate(labels):
        times = {name: [one["milliseconds"][label][name] for one in trials] for name in KINDS}
        rows.append([label, paper[label], *(mean_and_error(times[name]) for name in KINDS)])
        for offset, name in enumerate(KINDS):
            axes[0, 0].bar(place + 0.4 * offset, np.mean(times[name]), 0.35, label=name if not place else None)
    axes[0, 0].set_xticks(np.arange(len(labels)) + 0.2, labels)
    axes[0, 0].set(ylabel="ms per party and permutation")
    axes[0, 0].legend()
    save_figure(figure, path)
    return markdown(["ms per party and permutation", "paper (L40)", *(f"ours, {name}" for name in KINDS)], rows)


def check_runtime(trials: list[Trial], quick: bool) -> None:
    """Raise if a time is missing: how long it takes is for the reader to judge."""
    for one in trials:
        if not all(time > 0 for times in one["milliseconds"].values() for time in times.values()):
            raise DpvalueError("a time is missing")


RUNTIME = Experiment(
    name="runtime",
    title="Time of correlated noise: k = 120, n = 100, shapes of diabetes with LR and MNIST with CNN, on the CPU",
    data=(),
    trials=3,
    minutes="3",
    trial=runtime_trial,
    show=show_runtime,
    check=check_runtime,
)
