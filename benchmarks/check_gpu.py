"""Runs the checks of tests/engine/test_gpu.py where there is no pytest, and prints what they measure."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests import gpu_checks as checks

for model, shape in checks.PROBLEMS:
    for schedule in checks.SCHEDULES:
        gap = checks.gap(*(checks.value(model, shape, schedule, device) for device in ("cpu", "cuda")))
        print(f"{model:10s} {schedule!s:60s} largest difference / largest value: {gap:.2e}")  # noqa: T201
        assert gap < checks.LARGEST_GAP
    cpu, gpu = (checks.spread(model, shape, device) for device in ("cpu", "cuda"))
    print(f"{model:10s} spread of releases / stated noise: cpu {cpu:.3f}, gpu {gpu:.3f}")  # noqa: T201
    assert abs(gpu - 1) < checks.SPREAD_WITHIN
gap = checks.gap(*(checks.refit("logistic", (20,), device) for device in ("cpu", "cuda")))
print(f"refit game: largest difference / largest value: {gap:.2e}")  # noqa: T201
assert gap < checks.LARGEST_REFIT_GAP
for model, shape in checks.NEIGHBOURS:
    for unit, may_move in checks.MAY_MOVE.items():
        moved = checks.moved(model, shape, unit, "cuda")
        assert moved == may_move, moved
    print(f"{model:10s} {shape}: no unit moves another's whole numbers")  # noqa: T201
for shape, outputs, images in checks.KERNELS:
    gap = checks.kernel_gap(shape, outputs, images, "cuda")
    print(f"kernel     {shape}, {outputs} outputs, {images} images: largest difference / largest output: {gap:.2e}")  # noqa: T201
    assert gap < checks.LARGEST_KERNEL_GAP
    if outputs > 1:
        gap = checks.gradient_gap(shape, outputs, "cuda")
        print(f"           its gradients of one image: largest difference / largest gradient: {gap:.2e}")  # noqa: T201
        assert gap < checks.LARGEST_KERNEL_GAP
gap = checks.abreast_gap("cuda")
print(f"runs side by side: largest difference / largest marginal: {gap:.2e}")  # noqa: T201
assert gap < checks.LARGEST_GAP
