"""How time and memory grow with parties, rows, skewed sizes, features, released numbers and permutations.

    git worktree add ../before 48ef3de
    python benchmarks/growth.py --before ../before/src --json benchmarks/results/growth.json
    python benchmarks/growth.py --draw benchmarks/results/growth.json --figure docs/images/growth.png

Every measurement is a process of its own, of one thread; with `--before`, both versions are measured in turns, and the
ratio of their processor times stands beside. Counted is the call that is named, not imports or the making of rows;
memory is the peak of the whole process, by the system's count. What takes more processor time than `--cap` is stopped,
and nothing larger of its kind is tried. Curves that a file has already, and that are not measured, stay in it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PUBLIC, FEATURES = 500, 20
MOST_MADE = 100_000  # more numbers than this are repeated
LARGE = 50_000  # records of the one large party
LONG = 10.0  # seconds: what takes longer is run once
Work = Callable[[], Any]


@dataclass(frozen=True)
class Curve:
    """What grows, along which sizes, and the work of one size."""

    title: str
    axis: str
    sizes: tuple[int, ...]
    work: Callable[[int], Work]


def made(rows: int, seed: int, features: int = FEATURES) -> tuple[Any, Any]:
    """Return rows of two classes."""
    import numpy as np

    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features)).astype(np.float32)
    return x, (x[:, :5].sum(1) + generator.normal(size=rows) > 0).astype(int)


def numbers(n: int) -> Work:
    """Shapley values of n parties that released a number each: `Table.value`."""
    import numpy as np

    import dpvalue as dpv

    public, rows = made(PUBLIC, 1), made(min(n, MOST_MADE), 2)
    table = dpv.release(
        rows, public, privacy=dpv.Privacy(2.0), projection=dpv.Projection(1), noise="fast", progress=False
    )
    if n > MOST_MADE:
        more = n // MOST_MADE
        table = replace(
            table,
            rows=(table.rows / more).repeat(more, 1),
            names=tuple(range(n)),
            noise_std=np.tile(table.noise_std / more, more),
            origin=replace(table.origin, sizes=np.tile(table.sizes, more)),
        )
    return lambda: table.value(public, progress=False)


def rows(n: int) -> Work:
    """`dpvalue.value` of n rows, each a party, with all defaults."""
    import dpvalue as dpv

    public, private = made(PUBLIC, 1), made(n, 2)
    return lambda: dpv.value(private, public, privacy=dpv.Privacy(2.0), progress=False)


def data_sets(n: int, large: int = 0, game: str = "auto") -> Work:
    """`dpvalue.value` of n parties of 10 records, which are protected; and of one of `large`, if there is one."""
    import numpy as np

    import dpvalue as dpv

    public, private = made(PUBLIC, 1), made(10 * n + large, 2)
    groups = np.concatenate([np.repeat(np.arange(n), 10), np.full(large, n)])
    privacy = dpv.Privacy(1.0, unit="record")
    return lambda: dpv.value(private, public, groups=groups, privacy=privacy, game=game, progress=False)


def features(d: int) -> Work:
    """`dpvalue.value` of 1,000 rows of d numbers, with all defaults."""
    import dpvalue as dpv

    public, private = made(PUBLIC, 1, d), made(1_000, 2, d)
    return lambda: dpv.value(private, public, privacy=dpv.Privacy(2.0), progress=False)


def walks(permutations: int, m: int | None = None) -> Work:
    """So many permutations of 1,000 rows that released m numbers each, or whole gradients: release and walk."""
    import dpvalue as dpv

    public, private = made(PUBLIC, 1, 64), made(1_000, 2, 64)
    given: dict[str, Any] = {
        "projection": None if m is None else dpv.Projection(m, "singular"), "permutations": permutations,
        "schedule": dpv.Schedule("replay", tolerance=1e-9), "clip": 1.0, "learning_rate": 0.03, "noise": "fast",
    }  # fmt: skip
    return lambda: dpv.value(private, public, privacy=dpv.Privacy(8.0), progress=False, **given)


CURVES = {
    "numbers": Curve("one number a party: valuing", "parties", tuple(10**k for k in range(3, 8)), numbers),
    "rows": Curve("rows as parties, all defaults", "rows", (1_000, 10_000, 100_000), rows),
    "parties": Curve(
        "data sets of 10 records, all defaults", "parties", (10, 30, 100, 300, 1_000, 10_000, 100_000), data_sets
    ),
    "skewed": Curve(
        "the same beside one party of 50,000", "small parties", (10, 100, 1_000, 10_000), lambda n: data_sets(n, LARGE)
    ),
    "steps": Curve(
        'data sets of 10 records, game="steps"',
        "parties",
        tuple(10**k for k in range(1, 6)),
        lambda n: data_sets(n, game="steps"),
    ),
    "features": Curve("numbers in a row, 1,000 rows", "features", (10, 30, 100, 300, 1_000), features),
    "released": Curve(
        "released numbers, 1,000 rows, 100 walks", "m", (1, 2, 4, 8, 16, 32, 64), lambda m: walks(100, m)
    ),
    "permutations": Curve("walks of 1,000 whole gradients", "permutations", (10, 30, 100, 300, 1_000), walks),
}


def one(name: str, size: int) -> None:
    """Measure one size in this process, and print it."""
    import warnings

    import dpvalue as dpv

    warnings.simplefilter("ignore")
    assert callable(dpv.value)  # imported when it is first asked for
    work = CURVES[name].work(size)
    began, used = time.perf_counter(), time.process_time()
    work()
    used, taken = time.process_time() - used, time.perf_counter() - began
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    print(json.dumps({"seconds": taken, "processor_seconds": used, "peak_mb": peak * 1024 / 1e6}))  # noqa: T201


def measured(source: Path, name: str, size: int, cap: int) -> dict[str, float] | None:
    """Measure one size by one version in a process of its own; None if that takes more processor time than the cap."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", name, str(size)],
        env={**os.environ, "PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (cap, cap + 5)),
        capture_output=True,
        text=True,
    )
    if done.returncode == -signal.SIGXCPU:
        return None
    if done.returncode:
        raise RuntimeError(f"{name}, {size}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, sources: dict[str, Path], cap: int, runs: int) -> list[dict[str, Any]]:
    """Measure a curve by all versions in turns; of runs of a size the one with the least processor time counts."""
    found = []
    over: set[str] = set()
    for size in CURVES[name].sizes:
        best: dict[str, dict[str, float]] = {}
        for run in range(runs):
            for version, source in sources.items():
                if version in over or (run and best[version]["processor_seconds"] > LONG):
                    continue
                taken = measured(source, name, size, cap)
                if taken is None:
                    over.add(version)
                elif version not in best or taken["processor_seconds"] < best[version]["processor_seconds"]:
                    best[version] = taken
        case: dict[str, Any] = {"curve": name, "size": size}
        case |= {version: best.get(version, f"over {cap} s") for version in sources}
        if len(best) > 1:
            case["ratio"] = best["before"]["processor_seconds"] / best["now"]["processor_seconds"]
        print(case, flush=True)  # noqa: T201
        found.append(case)
    return found


def facts() -> dict[str, str | int]:
    """Return the machine's facts, asked of another process: this one stays small and loads no torch."""
    code = "import json; from dpvalue.experiments.bench.machine import facts; print(json.dumps(facts()))"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, str | int] = json.loads(done.stdout)
    return found


def draw(content: dict[str, Any], path: Path) -> None:
    """Draw processor time along each curve, with a line of slope 1, and the peaks of memory."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    curves = _known(content)
    columns = 4 if len(curves) == 7 else 3
    rows = -(-(len(curves) + 1) // columns)
    figure, panels = plt.subplots(
        rows, columns, figsize=(3.1 * columns, 2.7 * rows), constrained_layout=True, squeeze=False
    )
    for panel, (name, curve) in zip(panels.flat, curves.items(), strict=False):
        cases = [case for case in content["cases"] if case["curve"] == name]
        for version, style, colour in (("before", "s--", "0.55"), ("now", "o-", "tab:blue")):
            known = [case for case in cases if isinstance(case.get(version), dict)]
            times = [case[version]["processor_seconds"] for case in known]
            panel.plot([case["size"] for case in known], times, style, color=colour, markersize=4, label=version)
            over = [case for case in cases if isinstance(case.get(version), str)][:1]
            caps = [int(case[version].split()[1]) for case in over]
            panel.plot([case["size"] for case in over], caps, "^", color=colour, markersize=6, zorder=3)
        panel.set(xscale="log", yscale="log", title=curve.title, xlabel=curve.axis, ylim=(0.05, 2 * content["cap"]))
        panel.set_yticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        panel.set_yticks([], minor=True)
        _slope(panel)
        panel.title.set_fontsize(9)
    for panel in panels[:, 0]:
        panel.set_ylabel("processor seconds")
    panels[0, 0].legend(frameon=False, fontsize=8)
    memory, *unused = panels.flat[len(curves) :]
    for panel in unused:
        panel.set_axis_off()
    for name in ("numbers", "rows", "parties", "skewed", "steps"):
        known = [case for case in content["cases"] if case["curve"] == name and isinstance(case.get("now"), dict)]
        sizes, peaks = [case["size"] for case in known], [case["now"]["peak_mb"] for case in known]
        if known:
            memory.plot(sizes, peaks, "o-", markersize=4, label=name)
    memory.set(xscale="log", yscale="log", title="peak memory of the process, now", xlabel="parties", ylabel="MB")
    memory.set_ylim(200, 5000)
    memory.set_yticks([300, 1000, 3000], ["300", "1,000", "3,000"])
    memory.set_yticks([], minor=True)
    memory.title.set_fontsize(9)
    memory.legend(frameon=False, fontsize=8)
    for panel in panels.flat[: len(curves) + 1]:
        panel.grid(True, which="major", color="0.92")
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _known(content: dict[str, Any]) -> dict[str, Curve]:
    """The curves that were measured."""
    return {name: curve for name, curve in CURVES.items() if any(case["curve"] == name for case in content["cases"])}


def table(content: dict[str, Any]) -> str:
    """Return the results as a table in Markdown: a line a curve."""
    lines = [
        "| what | sizes | processor seconds | before, times that | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    for name, curve in _known(content).items():
        cases = [case for case in content["cases"] if case["curve"] == name]
        over = next((place for place, case in enumerate(cases) if isinstance(case["now"], str)), len(cases) - 1)
        cases = cases[: over + 1]  # and the first that was stopped
        now = [case["now"] if isinstance(case["now"], dict) else None for case in cases]
        times = [
            case["now"].removesuffix(" s") if some is None else f"{some['processor_seconds']:.2g}"
            for case, some in zip(cases, now, strict=True)
        ]
        ratios = [case.get("ratio", case.get("before", "")) for case in cases]
        cells = [
            f"{curve.title} ({curve.axis})",
            ", ".join(f"{case['size']:,}".replace(",", " ") for case in cases),
            ", ".join(times),
            ", ".join(
                ratio if isinstance(ratio, str) else f"{ratio:.0f}x" if ratio > 10 else f"{ratio:.1f}x"
                for ratio in ratios
            ),
            ", ".join(f"{some['peak_mb']:.0f}" for some in now if some),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _slope(panel: Any) -> None:
    """Draw slope 1 through the panel's last point, and keep its limits."""
    low, high = panel.get_xlim()
    bottom, top = panel.get_ylim()
    x, y = panel.lines[-2].get_data()
    panel.plot([low, high], [y[-1] * low / x[-1], y[-1] * high / x[-1]], ":", color="0.7", linewidth=1, zorder=0)
    panel.set(xlim=(low, high), ylim=(bottom, top))


def main() -> None:
    """Measure, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="the folder src of the other version")
    parser.add_argument("--curves", nargs="*", default=list(CURVES), choices=list(CURVES))
    parser.add_argument("--cap", type=int, default=120, help="processor seconds of one process")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--draw", type=Path, help="draw a file of results, and print its table, instead of measuring")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("CURVE", "SIZE"), help="measure one size in this process")
    given = parser.parse_args()
    if given.one is not None:
        one(given.one[0], int(given.one[1]))
        return
    if given.draw is not None:
        content = json.loads(given.draw.read_text())
    else:
        sources = {"now": Path(__file__).parents[1] / "src"}
        if given.before is not None:
            sources = {"before": given.before, **sources}
        known = json.loads(given.json.read_text())["cases"] if given.json is not None and given.json.exists() else []
        content = {"machine": facts(), "cap": given.cap, "cases": known}
        for name in given.curves:
            found = measure(name, sources, given.cap, given.runs)
            content["cases"] = [*(case for case in content["cases"] if case["curve"] != name), *found]
            if given.json is not None:
                given.json.write_text(json.dumps(content, indent=1) + "\n")
    if given.draw is not None:
        print(table(content))  # noqa: T201
    if given.figure is not None:
        draw(content, given.figure)


if __name__ == "__main__":
    main()
