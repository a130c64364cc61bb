"""The cases of the benchmark, each a ratio or a measurement of one run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpvalue.bench.data import Made, auc, made
from dpvalue.bench.literal import LiteralLoop
from dpvalue.bench.machine import facts, measure
from dpvalue.engine.local import Local
from dpvalue.models import paper_cnn
from dpvalue.privacy.budget import Privacy
from dpvalue.schedule import Schedule
from dpvalue.valuation import value

SEMIVALUES = ("shapley", "banzhaf", "beta(4,1)", "beta(16,1)")
# The noise of the paper's k = 1000 (multiplier 3.867) under honest accounting, for every schedule at equal final noise.
PRIVACY = Privacy(epsilon=64.4, delta=5e-5)
CLIP, ALPHA = 1.0, 0.03
RUNNING_MEAN = Schedule("running-mean", burn_in=0.9, block=50)
REPLAY = Schedule("replay", rounds=2, probes=20, tolerance=1e-9)  # walks all permutations that it is given


@dataclass(frozen=True)
class Line:
    """One line of the table: what was run, how fast, beside what."""

    case: str
    seconds: float
    steps_per_second: float
    peak_mb: float
    ratio: float | None = None
    against: str = ""
    target: str = ""
    note: str = ""


def _value(data: Made, schedule: Schedule, permutations: int, gpu: bool = False, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "privacy": PRIVACY, "clip": CLIP, "learning_rate": ALPHA, "noise": "fast", "progress": False,
        "semivalues": SEMIVALUES, "engine": Local(device="cuda" if gpu else "cpu"),
    }  # fmt: skip
    return value(data.train, data.test, schedule=schedule, permutations=permutations, **{**defaults, **settings})


def _compare(
    name: str,
    data: Made,
    module: nn.Module,
    model: str,
    runs: list[tuple[Schedule, int, int, str]],
    gpu: bool,
    slice_: int,
) -> list[Line]:
    """Time the engine on whole runs beside a slice of the literal loop; runs: schedule, permutations, k, target."""
    device = torch.device("cuda" if gpu else "cpu")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    step = LiteralLoop(module, data, device).seconds_per_step(slice_, 0.9, ALPHA, CLIP, 3.867)
    torch.set_num_threads(threads)
    n = len(data.train[0])
    lines = [Line(f"{name}: literal loop", step, 1 / step, 0.0, note="seconds of one step, 0.9 without utility")]
    for schedule, permutations, k, target in runs:
        _value(data, schedule, min(permutations, 40), gpu, model=model)  # warm up
        found = measure(lambda s=schedule, p=permutations: _value(data, s, p, gpu, model=model), gpu)  # type: ignore[misc]
        stands_for = k * n
        lines.append(
            Line(
                f"{name}: {schedule}",
                found.seconds,
                stands_for / found.seconds,
                found.peak_bytes / 1e6,
                step * stands_for / found.seconds,
                f"literal loop, k = {k}",
                target,
            )
        )
    return lines


def covertype() -> list[Line]:
    """Covertype's shape: 800 points, 54 features, 7 classes; logistic regression on the CPU."""
    runs = [(RUNNING_MEAN, 1000, 1000, ">= 60"), (REPLAY, 40, 1000, ">= 200")]
    return _compare("covertype shape", made(800, (54,), 7), nn.Linear(54, 7), "logistic", runs, False, 3000)


def quality() -> list[Line]:
    """Planted label noise: the AUC of the engine and of the literal loop, equal within two standard errors."""
    scores: dict[str, list[float]] = {"literal loop": [], "running-mean, block 10": [], "replay": []}
    n, k = 100, 60
    for seed in range(5):
        data = made(n, (54,), 7, test=300, seed=seed)
        loop = LiteralLoop(nn.Linear(54, 7), data, torch.device("cpu"))
        loop.start = [torch.zeros_like(p) for p in loop.start]
        std = PRIVACY.noise_multiplier(k, n) * CLIP
        scores["literal loop"].append(auc(data.changed, loop.shapley(k, 0.5, ALPHA, CLIP, std, seed)))
        blocks = Schedule("running-mean", burn_in=0.5, block=10)
        for name, schedule in (("running-mean, block 10", blocks), ("replay", REPLAY)):
            found = _value(data, schedule, k, seed=seed, semivalues=("shapley",))
            scores[name].append(auc(data.changed, found.values["shapley"]))
    literal = np.array(scores["literal loop"])
    lines = []
    for name, found in scores.items():
        gap = np.array(found) - literal
        note = f"AUC {np.mean(found):.3f} ({np.std(found, ddof=1) / 5**0.5:.3f})"
        if name != "literal loop":
            note += f", gap {gap.mean():+.3f} ({gap.std(ddof=1) / 5**0.5:.3f})"
        lines.append(Line(f"planted label noise, n = {n}, k = {k}: {name}", 0.0, 0.0, 0.0, note=note))
    return lines


def growth() -> list[Line]:
    """Four times the parties, four times the permutations: time and memory."""
    base = measure(lambda: None, False)
    lines: list[Line] = []
    for label, n, permutations in (("base", 1000, 40), ("n x 4", 4000, 40), ("permutations x 4", 1000, 160)):
        data = made(n, (54,), 7)
        _value(data, REPLAY, 20)
        base = measure(lambda d=data, p=permutations: _value(d, REPLAY, p, semivalues=("shapley",)), False)  # type: ignore[misc]
        ratio = base.seconds / lines[0].seconds if lines else None
        speed = n * permutations / base.seconds
        target = "4 within 1.3" if lines else ""
        lines.append(Line(f"growth: {label}", base.seconds, speed, base.peak_bytes / 1e6, ratio, "base", target))
    return lines


_README = """
import numpy as np, dpvalue as dpv
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
X, target = load_diabetes(return_X_y=True)
y = (target > np.median(target)).astype(int)
dpv.value((X[:400], y[:400]), (X[400:], y[400:]), preprocess=StandardScaler())
"""


def readme() -> list[Line]:
    """A user's first call: 400 points of diabetes with all defaults, in a fresh process, import included."""
    done = measure(lambda: subprocess.run([sys.executable, "-c", _README], check=True), False)
    return [
        Line("first call: diabetes, n = 400, defaults", done.seconds, 0.0, 0.0, target="< 10 s", note="import included")
    ]


def mnist() -> list[Line]:
    """MNIST's shape: 800 images, the paper's CNN; on the GPU."""
    exact = Schedule("running-mean", burn_in=0.9)
    runs = [(REPLAY, 40, 1000, ">= 1000"), (RUNNING_MEAN, 1000, 1000, ">= 200"), (exact, 20, 20, "")]
    data = made(800, (1, 28, 28), 10)
    return _compare("MNIST CNN shape", data, paper_cnn((1, 28, 28), 10), "cnn", runs, True, 400)


def hundred_thousand() -> list[Line]:
    """A hundred thousand points, logistic regression; on the GPU."""
    data = made(100_000, (54,), 7)
    schedule = Schedule("replay", rounds=2, probes=5, tolerance=1e-9)
    privacy = Privacy(epsilon=64.4, delta=1e-7)
    work = lambda: _value(data, schedule, 20, True, privacy=privacy, semivalues=("shapley",))  # noqa: E731
    found = measure(work, True)
    speed = 100_000 * 20 / found.seconds
    return [
        Line("n = 100,000, logistic: replay", found.seconds, speed, found.peak_bytes / 1e6, target="< 180 s, < 20 GB")
    ]


CPU_CASES: dict[str, Callable[[], list[Line]]] = {
    "covertype": covertype, "quality": quality, "growth": growth, "readme": readme,
}  # fmt: skip
GPU_CASES: dict[str, Callable[[], list[Line]]] = {"mnist": mnist, "hundred-thousand": hundred_thousand}


def run_cases(names: list[str], json_file: Path | None = None) -> list[Line]:
    """Run the cases called `names`; write the lines and the machine's facts to a JSON file, if one is given."""
    lines: list[Line] = []
    for name in names:
        for line in {**CPU_CASES, **GPU_CASES}[name]():
            lines.append(line)
            print(as_text(line), flush=True)  # noqa: T201
    if json_file is not None:
        content = {"machine": facts(), "lines": [asdict(line) for line in lines]}
        json_file.write_text(json.dumps(content, indent=1) + "\n")
    return lines


def as_text(line: Line) -> str:
    """Return a line as text."""
    parts = [f"{line.case:<72}"]
    if line.seconds:
        parts.append(f"{line.seconds:10.4g} s")
    if line.steps_per_second:
        parts.append(f"{line.steps_per_second:12,.0f} steps/s")
    if line.peak_mb:
        parts.append(f"{line.peak_mb:8,.0f} MB")
    if line.ratio is not None:
        parts.append(f"{line.ratio:8.1f} x {line.against}")
    if line.target:
        parts.append(f"(target {line.target})")
    return "  ".join([*parts, line.note]).rstrip()
