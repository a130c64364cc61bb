"""Values on the GPU equal those on the CPU, without noise; with it, they have the same law (same table noise)."""

import numpy as np
import torch

import dpvalue as dpv
from dpvalue.bench.data import made

for model, shape, n, k in (("logistic", (20,), 120, 20), ("cnn", (1, 12, 12), 24, 4), ("cnn", (3, 12, 12), 24, 4)):
    data = made(n, shape, 4, test=60)
    schedules = ("independent", "running-mean", "optimal", "decaying", dpv.Schedule("decaying", block=3))
    for schedule in (*schedules, dpv.Schedule("running-mean", block=3), dpv.Schedule("replay", probes=3)):
        found = [
            dpv.value(
                data.train, data.test, model=model, schedule=schedule, permutations=k, privacy=None, clip=1.0,
                learning_rate=0.1, engine=dpv.Local(device=device), progress=False,
            )
            for device in ("cpu", "cuda")
        ]  # fmt: skip
        cpu, gpu = (one.values["shapley"] for one in found)
        gap = np.abs(cpu - gpu).max() / np.abs(cpu).max()
        print(f"{model:10s} {schedule!s:60s} largest difference / largest value: {gap:.2e}")  # noqa: T201
        assert gap < 1e-3
    noisy = [
        dpv.release(
            data.train, data.test, model=model, noise="fast", clip=1.0, learning_rate=1e-6, progress=False,
            privacy=dpv.Privacy(2.0, 1e-4), engine=dpv.Local(device=device), schedule=dpv.Schedule("replay", rounds=1),
            projection=None,
        )
        for device in ("cpu", "cuda")
    ]  # fmt: skip
    spread = [float((one.rows / torch.from_numpy(one.noise_std)[:, None]).std()) for one in noisy]
    print(f"{model:10s} spread of releases / stated noise: cpu {spread[0]:.3f}, gpu {spread[1]:.3f}")  # noqa: T201
