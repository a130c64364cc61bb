"""pyDVL, OpenDataVal and shapiq beside this library on the same rows: time, memory, agreement, as far as each gets.

    make others                        # environments of their own: .venv-pydvl, .venv-opendataval, .venv-shapiq
    python benchmarks/others.py --data-dir DIR --json benchmarks/results/others.json

Rows of which a fifth have the wrong label are valued by Shapley values: 100 of breast cancer, 1,000 and 10,000 of
Covertype (class 2 or another; covtype.npz in DIR), features standardised by the held-out rows, by which models are
judged. The others fit scikit-learn's logistic regression to every coalition that they ask about, and judge it by its
log-loss; in our game a coalition's gradients move one model. All have the same number of permutations to walk, and
`--seconds` to do it in; a library that is stopped is judged by what it had by then. Each runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.datasets import load_breast_cancer

import dpvalue as dpv
from dpvalue.experiments.bench.machine import facts

ROOT = Path(__file__).parents[1]
RUNNERS = Path(__file__).with_name("other_libraries")
OTHERS = ("pydvl", "opendataval", "shapiq")
PERMUTATIONS = {100: 50, 1_000: 20, 10_000: 20}
HELD_OUT, CHANGED, EPSILON, DRAWS = 1_000, 0.2, 2.0, 5
OURS, PRIVATE = "dpvalue, no privacy", f"dpvalue, epsilon = {EPSILON:g}"


def problem(n: int, folder: Path) -> tuple[dict[str, Any], Any]:
    """Return n rows with their labels, held-out rows with theirs, and which of the n labels were changed."""
    generator = np.random.default_rng([n, 7])
    if n <= 100:
        x, y = load_breast_cancer(return_X_y=True)
    else:
        file = np.load(folder / "covtype.npz")
        x, y = file["x"].astype(float), (file["y"] == 2).astype(int)
    order = generator.permutation(len(x))
    x, y = x[order][: n + HELD_OUT], y[order][: n + HELD_OUT]
    spread = x[n:].std(0)
    x = (x - x[n:].mean(0)) / np.where(spread > 0, spread, 1.0)
    changed = np.zeros(n, dtype=bool)
    changed[generator.choice(n, round(CHANGED * n), replace=False)] = True
    return {"x": x[:n], "y": np.where(changed, 1 - y[:n], y[:n]), "x_test": x[n:], "y_test": y[n:]}, changed


def run(name: str, file: Path, permutations: int, seconds: float, *more: str) -> dict[str, Any]:
    """Let a library value a saved problem, and return what it reports."""
    python = sys.executable if name == "dpvalue" else str(ROOT / f".venv-{name}" / "bin" / "python")
    command = [python, str(RUNNERS / f"by_{name}.py"), str(file), str(permutations), str(seconds), *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if name == "dpvalue":
        environment["PYTHONPATH"] = str(ROOT / "src")
    else:
        environment.pop("PYTHONPATH", None)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 120)
    except subprocess.TimeoutExpired:
        return {"finished": False, "failed": "killed: did not stop when time was up", "values": None}
    if done.returncode:
        failed = (done.stderr.strip().splitlines() or ["killed"])[-1]
        return {"finished": False, "failed": failed.replace(str(ROOT), ""), "values": None}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def version(name: str) -> str:
    """Return the version of a library in its environment."""
    code = f"from importlib.metadata import version; print(version({name!r}), version('scikit-learn'))"
    python = str(ROOT / f".venv-{name}" / "bin" / "python")
    own, sklearn = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return f"{own}, with scikit-learn {sklearn}"


def size(n: int, folder: Path, seconds: float) -> dict[str, Any]:
    """Value n rows by all libraries, and compare what they say."""
    rows, changed = problem(n, folder)
    walks = PERMUTATIONS[n]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "problem.npz"
        np.savez(file, **rows)
        found[OURS] = run("dpvalue", file, walks, seconds)
        draws = [run("dpvalue", file, walks, seconds, str(EPSILON)) for _ in range(DRAWS)]
        for name in OTHERS:
            found[name] = run(name, file, walks, seconds)
            print({**found[name], "values": None}, flush=True)  # noqa: T201
    values = {name: found[name].pop("values") for name in found}
    values = {name: np.array(some) for name, some in values.items() if some is not None}
    noisy = [np.array(draw.pop("values")) for draw in draws]
    found[PRIVATE] = {**draws[0], "draws": DRAWS}
    for name, some in values.items():
        found[name]["auc"] = dpv.detection.auc(some, changed)
        found[name]["rank_correlation"] = {other: correlation(some, values[other]) for other in values if other != name}
    found[PRIVATE]["auc"] = float(np.mean([dpv.detection.auc(draw, changed) for draw in noisy]))
    found[PRIVATE]["aucs"] = [dpv.detection.auc(draw, changed) for draw in noisy]
    found[PRIVATE]["rank_correlation"] = {
        name: float(np.mean([correlation(draw, some) for draw in noisy])) for name, some in values.items()
    }
    return {"rows": n, "held_out": len(rows["y_test"]), "permutations": walks, "libraries": found}


def correlation(one: Any, other: Any) -> float:
    """Return Spearman's rank correlation."""
    return float(spearmanr(one, other).statistic)


def table(sizes: list[dict[str, Any]]) -> str:
    """Return the results as a table in Markdown."""
    names = {
        OURS: "dpvalue, no privacy",
        PRIVATE: PRIVATE,
        "pydvl": "pyDVL",
        "opendataval": "OpenDataVal",
        "shapiq": "shapiq",
    }
    heads = ["rows", "library", "permutations walked", "fits", "processor time", "peak memory", "AUC"]
    heads += ["rank correlation with ours, no privacy", "with pyDVL", "with shapiq"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for some in sizes:
        for name, title in names.items():
            found = some["libraries"][name]
            cells = [f"{some['rows']:,}" if name == OURS else "", title]
            if "seconds" not in found:
                lines.append("| " + " | ".join([*cells, found["failed"], *[""] * 7]) + " |")
                continue
            walked = (
                f"{found['permutations']:g}" if found["permutations"] else "none needed" if found["finished"] else "0"
            )
            cells += [walked if found["finished"] else f"{walked} of {some['permutations']} when stopped"]
            cells += [f"{found['fits']:,}", f"{found['processor_seconds']:.1f} s", f"{found['peak_mb']:,.0f} MB"]
            cells += [f"{found['auc']:.3f}" if "auc" in found else ""]
            agreement = found.get("rank_correlation", {})
            cells += [f"{agreement[other]:.2f}" if other in agreement else "" for other in (OURS, "pydvl", "shapiq")]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure sizes; what is found is written after each, beside the other sizes that the file has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, default=Path(), help="folder with covtype.npz")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(PERMUTATIONS), choices=list(PERMUTATIONS))
    parser.add_argument("--seconds", type=float, default=600.0, help="the most that a library may take")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--table", action="store_true", help="print the table of what the file has, and measure nothing"
    )
    given = parser.parse_args()
    if given.table:
        print(table(json.loads(given.json.read_text())["sizes"]))  # noqa: T201
        return
    content: dict[str, Any] = {
        "machine": facts(), "versions": {name: version(name) for name in OTHERS}, "seconds allowed": given.seconds,
        "changed labels": CHANGED, "sizes": [],
    }  # fmt: skip
    known = json.loads(given.json.read_text())["sizes"] if given.json is not None and given.json.exists() else []
    for n in given.sizes:
        found = size(n, given.data_dir, given.seconds)
        print(json.dumps(found, indent=1), flush=True)  # noqa: T201
        known = sorted([*(other for other in known if other["rows"] != n), found], key=lambda some: some["rows"])
        content["sizes"] = known
        if given.json is not None:
            given.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
