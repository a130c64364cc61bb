"""Values on the GPU equal those on the CPU, and noise has the same law; no unit moves another's whole numbers there."""

import numpy as np
import torch

import dpvalue as dpv
from dpvalue.bench.data import made
from dpvalue.engine.contributions import Contributions
from dpvalue.models import build_model
from dpvalue.privacy.mechanism import mechanism

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


def whole_numbers(parties: dpv.Parties, public: tuple[object, object], model: str, unit: str) -> torch.Tensor:
    """What all units contribute on the GPU, in whole steps: of each party, or of its records or persons."""
    privacy = dpv.Privacy(2.0, 1e-4, unit)
    utility, cuda = dpv.Utility(*public), dpv.Local(device="cuda")
    encoding = utility.encoding(model)
    rows = parties.encode(encoding, cuda.torch_dtype, cuda.torch_device, privacy)
    built = build_model(model, encoding.task, rows.x[0], encoding.outputs, cuda.torch_dtype, cuda.torch_device)
    made_by = Contributions(built, rows, mechanism(privacy, 1.0, 1.0), cuda, on_grid=True)
    theta = torch.linspace(-1, 1, built.size, device="cuda").expand(parties.n, -1)
    grid = made_by.grid()
    assert grid is not None
    gradients = made_by._gradients(theta, torch.arange(parties.n, device="cuda"))
    return grid.round(made_by.mechanism.clipped(gradients))


# One unit's row moves no other unit's whole numbers, also where persons have other numbers of rows in other places.
for model, shape in (("logistic", (20,)), ("logistic", (300,)), ("cnn", (1, 12, 12))):
    (X, y), public = (lambda data: (data.train, data.test))(made(90, shape, 4, test=60))
    groups, persons = np.arange(90) % 5, np.arange(90) // 5 % 6 * 5 + np.arange(90) % 5
    other = np.array(X)
    other[7] *= -3
    for unit in ("party", "record"):
        before = whole_numbers(dpv.Parties(X, y, groups, persons), public, model, unit)
        after = whole_numbers(dpv.Parties(other, y, groups, persons), public, model, unit)
        moved = (before != after).any(-1).nonzero().tolist()
        assert moved == [[2]] if unit == "party" else moved == [[2, 1]], moved
    order = np.r_[7, np.arange(7), 7, np.arange(8, 90), 7]  # one person has more rows; everybody stands elsewhere
    before = whole_numbers(dpv.Parties(X, y, groups, persons), public, model, "person")
    after = whole_numbers(dpv.Parties(other[order], y[order], groups[order], persons[order]), public, model, "person")
    for party, (one, two) in enumerate(zip(before.tolist(), after.tolist(), strict=True)):
        gone = {tuple(row) for row in one} - {tuple(row) for row in two}
        assert len(gone) == (1 if party == 2 else 0), (party, len(gone))
    print(f"{model:10s} {shape}: no unit moves another's whole numbers")  # noqa: T201
