"""`python -m dpvalue.bench [cpu | gpu | CASE ...] [--json FILE]`: `dpvalue bench`, with torch and numpy alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpvalue.bench.cases import CPU_CASES, GPU_CASES, run_cases

parser = argparse.ArgumentParser(prog="dpvalue.bench")
parser.add_argument(
    "cases", nargs="*", default=["cpu"], help=f"cpu, gpu, or any of {', '.join([*CPU_CASES, *GPU_CASES])}"
)
parser.add_argument("--json", type=Path, default=None)
given = parser.parse_args()
groups = {"cpu": list(CPU_CASES), "gpu": list(GPU_CASES)}
run_cases([name for case in given.cases for name in groups.get(case, [case])], given.json)
