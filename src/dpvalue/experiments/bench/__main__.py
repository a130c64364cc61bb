"""`python -m dpvalue.experiments.bench [cpu | gpu | CASE ...] [--json FILE]`, with torch and numpy alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpvalue.experiments.bench.cases import run_cases

parser = argparse.ArgumentParser(prog="dpvalue.experiments.bench")
parser.add_argument("cases", nargs="*", default=["cpu"], help="cpu, gpu, or names of cases")
parser.add_argument("--json", type=Path, default=None)
given = parser.parse_args()
run_cases(given.cases, given.json)
