"""The GPU's kernels in Triton's interpreter, where Triton is installed: it comes with torch's builds for GPUs alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

CHECKED = """
from tests import gpu_checks as checks
for shape, outputs, images in (((1, 8, 8), 3, 130), ((3, 9, 10), 16, 5)):
    print(checks.kernel_gap(shape, outputs, images, "cpu"), checks.gradient_gap(shape, outputs, "cpu"))
"""


def test_the_cnns_kernels_compute_what_torch_does() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], capture_output=True, text=True, timeout=300, check=True,
        cwd=Path(__file__).parents[2], env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    gaps = [float(gap) for gap in done.stdout.split()]
    assert len(gaps) == 4
    assert max(gaps) < 1e-5
