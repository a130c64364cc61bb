"""The cases of the benchmark, each a ratio or a measurement of one run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpvalue.api import value
from dpvalue.arrays import Floats
from dpvalue.detection import auc
from dpvalue.engine.engines import Local
from dpvalue.errors import require_choice
from dpvalue.experiments.bench.data import SyntheticData, made
from dpvalue.experiments.bench.literal import LiteralLoop
from dpvalue.experiments.bench.machine import Measured, environment, facts, measure
from dpvalue.models import paper_cnn
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.noise import NoiseStream, noise_source
from dpvalue.protocol.schedule import Schedule

SEMIVALUES = ("shapley", "banzhaf", "beta(4,1)", "beta(16,1)")
# The noise of the paper's k = 1000 (multiplier 3.867) under honest accounting, for every schedule at equal final noise.
PRIVACY = Privacy(epsilon=64.4, delta=5e-5)
CLIP, ALPHA = 1.0, 0.03
RUNNING_MEAN = Schedule("running-mean", burn_in=0.9, block=50)
EXACT = Schedule("running-mean", burn_in=0.9)  # one walk after the other, as in the paper
REPLAY = Schedule("replay", rounds=2, probes=20, tolerance=1e-9)  # walks all permutations that it is given


@dataclass(frozen=True)
class BenchmarkLine:
    """One line of the table: what was run, how fast, beside what."""

    case: str
    seconds: float = 0.0
    steps_per_second: float = 0.0
    peak_mb: float = 0.0
    ratio: float | None = None
    against: str = ""
    target: str = ""
    note: str = ""


@dataclass(frozen=True)
class Timed:
    """A run to time: so many permutations, which stand for k of the literal loop."""

    schedule: Schedule
    permutations: int
    k: int
    target: str = ""
    compiled: bool = False
    noise: str = "fast"

    def __str__(self) -> str:
        marks = [", compiled" if self.compiled else "", ", secure noise" if self.noise == "secure" else ""]
        return f"{self.schedule}{''.join(marks)}"


def _value(data: SyntheticData, schedule: Schedule, permutations: int, gpu: bool = False, **settings: Any) -> Any:
    defaults: dict[str, Any] = {
        "privacy": PRIVACY, "clip": CLIP, "learning_rate": ALPHA, "noise": "fast", "progress": False,
        "projection": None, "semivalues": SEMIVALUES, "engine": Local(device="cuda" if gpu else "cpu"),
    }  # fmt: skip
    return value(data.train, data.test, schedule=schedule, permutations=permutations, **{**defaults, **settings})


def _compare(
    name: str,
    data: SyntheticData,
    module: nn.Module,
    model: str,
    runs: list[Timed],
    gpu: bool,
    slice_: int,
    times: int = 1,
) -> list[BenchmarkLine]:
    """Time the engine on whole runs beside a slice of the literal loop, in turns, so many times; the least count.

    Ratios are by the clock; on a CPU the notes have them in seconds of cores as well, which others' work on the same
    machine moves less. Twice that is what two cores would give at best.
    """
    loop, threads = LiteralLoop(module, data, torch.device("cuda" if gpu else "cpu")), torch.get_num_threads()
    steps: list[float] = []
    cores: list[float] = []
    found: list[list[Measured[Any]]] = [[] for _ in runs]
    for turn in range(times):
        torch.set_num_threads(1)
        steps.append(loop.seconds_per_step(slice_, 0.9, ALPHA, CLIP, 3.867))
        if not gpu:
            cores.append(loop.seconds_per_step(slice_, 0.9, ALPHA, CLIP, 3.867, time.process_time))
        torch.set_num_threads(threads)
        for run, measured in zip(runs, found, strict=True):
            with environment(DPVALUE_COMPILED="1" if run.compiled else "0"):
                if turn == 0:
                    _value(data, run.schedule, min(run.permutations, 40), gpu, model=model)  # warm up
                work = partial(_value, data, run.schedule, run.permutations, gpu, model=model, noise=run.noise)
                measured.append(measure(work, gpu))
    step, n = min(steps), len(data.train[0])
    note = "seconds of one step, 0.9 without utility" + (f"; {min(cores):.3g} s of a core" if cores else "")
    lines = [BenchmarkLine(f"{name}: literal loop", step, 1 / step, note=note)]
    for run, measured in zip(runs, found, strict=True):
        seconds, stands_for = min(one.seconds for one in measured), run.k * n
        busy = min(one.cpu_seconds for one in measured)
        lines.append(
            BenchmarkLine(
                f"{name}: {run}",
                seconds,
                stands_for / seconds,
                max(one.peak_bytes for one in measured) / 1e6,
                step * stands_for / seconds,
                f"literal loop, k = {run.k}",
                run.target,
                note=f"{busy:.3g} s of cores: {min(cores) * stands_for / busy:.3g} x for each" if cores else "",
            )
        )
    return lines


def covertype() -> list[BenchmarkLine]:
    """Covertype's shape: 800 points, 54 features, 7 classes; logistic regression on the CPU."""
    runs = [Timed(RUNNING_MEAN, 1000, 1000), Timed(EXACT, 100, 100), Timed(REPLAY, 40, 1000, ">= 200")]
    if find_spec("numba") is not None:
        runs += [Timed(RUNNING_MEAN, 1000, 1000, ">= 100", True), Timed(EXACT, 100, 100, ">= 10", True)]
    runs.append(Timed(RUNNING_MEAN, 100, 100, noise="secure"))
    return _compare("covertype shape", made(800, (54,), 7), nn.Linear(54, 7), "logistic", runs, False, 2000, times=3)


def quality() -> list[BenchmarkLine]:
    """Planted label noise on the CPU: the AUC of the engine beside that of the literal loop."""

    def literal(data: SyntheticData, k: int, seed: int) -> Floats:
        loop = LiteralLoop(nn.Linear(54, 7), data, torch.device("cpu"))
        loop.start = [torch.zeros_like(p) for p in loop.start]
        return loop.shapley(k, 0.5, ALPHA, CLIP, PRIVACY.noise_multiplier(k, len(data.changed)) * CLIP, seed)

    return _quality("literal loop", literal, (54,), 7, "logistic", gpu=False)


def gpu_quality() -> list[BenchmarkLine]:
    """Planted label noise on the GPU, with the CNN: the AUC of blocks and replay beside that of the exact schedule."""

    def exact(data: SyntheticData, k: int, seed: int) -> Floats:
        schedule = Schedule("running-mean", burn_in=0.5)
        found: Floats = _value(data, schedule, k, True, model="cnn", seed=seed, semivalues="shapley").values["shapley"]
        return found

    return _quality("running-mean, block 1", exact, (1, 28, 28), 10, "cnn", gpu=True)


def _quality(
    name: str,
    baseline: Callable[[SyntheticData, int, int], Floats],
    shape: tuple[int, ...],
    classes: int,
    model: str,
    gpu: bool,
) -> list[BenchmarkLine]:
    """Compare AUCs over five seeds; equal means: within two standard errors of the difference."""
    n, k = 100, 60
    block = k // 20  # as in the timed case
    schedules = {f"running-mean, block {block}": Schedule("running-mean", burn_in=0.5, block=block), "replay": REPLAY}
    scores: dict[str, list[float]] = {name: [], **{other: [] for other in schedules}}
    for seed in range(5):
        data = made(n, shape, classes, test=300, seed=seed)
        scores[name].append(auc(baseline(data, k, seed), data.changed))
        for other, schedule in schedules.items():
            found = _value(data, schedule, k, gpu, model=model, seed=seed, semivalues="shapley")
            scores[other].append(auc(found.values["shapley"], data.changed))
    lines = []
    for other, found in scores.items():
        note = f"AUC {np.mean(found):.3f} ({np.std(found, ddof=1) / 5**0.5:.3f})"
        if other != name:
            gap = np.array(found) - np.array(scores[name])
            note += f", difference {gap.mean():+.3f} ({gap.std(ddof=1) / 5**0.5:.3f})"
        lines.append(BenchmarkLine(f"planted label noise, n = {n}, k = {k}: {other}", note=note))
    return lines


def noise() -> list[BenchmarkLine]:
    """Secure noise in one thread and on two cores: numbers a second, beside seeded noise of floating point."""
    rows, size, streams, bits = 4_000, 385, 4, 24
    like, lines = torch.zeros(size, dtype=torch.float64), []
    out = torch.empty(streams, rows, size, dtype=torch.float64)
    for law in ("gaussian", "laplace"):
        found = {}
        for kind, threads in (("fast", 1), ("secure", 1), ("secure", 2)):
            sources = [noise_source(kind, 0).stream(number, like, law, bits) for number in range(streams)]
            fill = partial(_fill_all, Local(device="cpu", threads=threads), sources, out)
            fill()  # warm up
            measured = [measure(fill, False) for _ in range(5)]
            found[kind, threads] = [min(one.seconds for one in measured), min(one.cpu_seconds for one in measured)]
        slower = found["secure", 1][1] / found["fast", 1][1]
        for threads, target in ((1, ">= 2,000,000"), (2, ">= 20,000,000")):
            took, busy = found["secure", threads]
            each = out.numel() / busy / 1e6
            note = f"numbers a second; {each:.3g} million a second of a core; {slower:.1f} x the time of seeded noise"
            case = f"secure noise, {law}, {'one core' if threads == 1 else 'two cores'}"
            lines.append(BenchmarkLine(case, took, out.numel() / took, note=note, target=target))
    return lines


def _fill_all(engine: Local, sources: list[NoiseStream], out: torch.Tensor) -> None:
    engine.map(lambda one: one[0].fill(one[1]), zip(sources, out, strict=True))


def growth() -> list[BenchmarkLine]:
    """Four times the parties, four times the permutations: time and memory."""
    lines: list[BenchmarkLine] = []
    privacy = Privacy(epsilon=64.4, delta=1e-6)
    for label, n, permutations in (("base", 1000, 40), ("n x 4", 4000, 40), ("permutations x 4", 1000, 160)):
        data = made(n, (54,), 7)
        work = partial(_value, data, REPLAY, permutations, semivalues="shapley", privacy=privacy)
        work()
        found = measure(work, False)
        ratio, target = (found.seconds / lines[0].seconds, "4 within 1.3") if lines else (None, "")
        speed = n * permutations / found.seconds
        lines.append(
            BenchmarkLine(f"growth: {label}", found.seconds, speed, found.peak_bytes / 1e6, ratio, "base", target)
        )
    return lines


_README = """
import numpy as np, dpvalue as dpv
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
X, target = load_diabetes(return_X_y=True)
y = (target > np.median(target)).astype(int)
dpv.value((X[:400], y[:400]), (X[400:], y[400:]), preprocess=StandardScaler())
"""


def readme() -> list[BenchmarkLine]:
    """A user's first call: 400 points of diabetes with all defaults, in a fresh process, import included."""
    done = measure(lambda: subprocess.run([sys.executable, "-c", _README], check=True), False)
    return [BenchmarkLine("first call: diabetes, n = 400, defaults, import included", done.seconds, target="< 10 s")]


def pydvl() -> list[BenchmarkLine]:
    """PyDVL's permutation Shapley: breast cancer, 100 points, 50 permutations; ours without privacy beside it."""
    python = os.environ.get("DPVALUE_PYDVL_PYTHON")
    name = "pyDVL 0.10: breast cancer, n = 100, 50 permutations"
    if not python:
        return [BenchmarkLine(name, note="left out: DPVALUE_PYDVL_PYTHON does not name a Python that has pyDVL")]
    from scipy.stats import spearmanr
    from sklearn.datasets import load_breast_cancer
    from sklearn.preprocessing import StandardScaler

    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order], y[order]
    X = StandardScaler().fit(X[100:]).transform(X)
    changed = np.random.default_rng(1).random(100) < 0.3
    labels = np.where(changed, 1 - y[:100], y[:100])
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "problem.npz", x=X[:100], y=labels, x_test=X[100:], y_test=y[100:])
        script = Path(__file__).with_name("pydvl_baseline.py")
        command = [python, str(script), str(Path(folder) / "problem.npz"), "50"]
        theirs = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    data = SyntheticData((X[:100], labels), (X[100:], y[100:]), changed)
    settings: dict[str, Any] = {"privacy": None, "clip": "auto", "learning_rate": "auto", "semivalues": "shapley"}
    ours = measure(lambda: _value(data, Schedule("independent"), 50, **settings), False)
    values, other = ours.made.values["shapley"], np.array(theirs["values"])
    note = (
        f"rank correlation {spearmanr(values, other).statistic:.2f}; "
        f"AUC ours {auc(values, changed):.3f}, theirs {auc(other, changed):.3f}"
    )
    speed = 5000 / ours.seconds
    ratio = theirs["seconds"] / ours.seconds
    return [BenchmarkLine(name, ours.seconds, speed, ours.peak_bytes / 1e6, ratio, "pyDVL", ">= 50", note)]


def mnist() -> list[BenchmarkLine]:
    """MNIST's shape: 800 images, the paper's CNN; on the GPU."""
    runs = [Timed(REPLAY, 40, 1000, ">= 1000"), Timed(RUNNING_MEAN, 1000, 1000, ">= 200"), Timed(EXACT, 20, 20)]
    data = made(800, (1, 28, 28), 10)
    return _compare("MNIST CNN shape", data, paper_cnn((1, 28, 28), 10), "cnn", runs, True, 400)


def hundred_thousand() -> list[BenchmarkLine]:
    """A hundred thousand points, logistic regression; on the GPU."""
    data = made(100_000, (54,), 7)
    schedule = Schedule("replay", rounds=2, probes=5, tolerance=1e-9)
    privacy = Privacy(epsilon=64.4, delta=1e-7)
    found = measure(partial(_value, data, schedule, 20, True, privacy=privacy, semivalues="shapley"), True)
    speed = 100_000 * 20 / found.seconds
    return [
        BenchmarkLine(
            "n = 100,000, logistic: replay", found.seconds, speed, found.peak_bytes / 1e6, target="< 180 s, < 20 GB"
        )
    ]


CPU_CASES: dict[str, Callable[[], list[BenchmarkLine]]] = {
    "covertype": covertype, "quality": quality, "growth": growth, "noise": noise, "readme": readme, "pydvl": pydvl,
}  # fmt: skip
GPU_CASES: dict[str, Callable[[], list[BenchmarkLine]]] = {
    "mnist": mnist, "gpu-quality": gpu_quality, "hundred-thousand": hundred_thousand,
}  # fmt: skip


def run_cases(names: list[str], json_file: Path | None = None) -> list[BenchmarkLine]:
    """Run cases, or the groups "cpu" and "gpu"; print a line each, and write them and the machine's facts as JSON."""
    groups = {"cpu": CPU_CASES, "gpu": GPU_CASES}
    cases = {**CPU_CASES, **GPU_CASES}
    chosen = [name for given in names for name in groups.get(given, [given])]
    for name in chosen:
        require_choice("case", name, [*groups, *cases])
    lines: list[BenchmarkLine] = []
    for name in chosen:
        for line in cases[name]():
            lines.append(line)
            print(as_text(line), flush=True)  # noqa: T201
    if json_file is not None:
        content = {"machine": facts(), "lines": [asdict(line) for line in lines]}
        json_file.write_text(json.dumps(content, indent=1) + "\n")
    return lines


def as_text(line: BenchmarkLine) -> str:
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
