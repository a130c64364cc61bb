"""What an engine must not change: values, whatever its memory and threads; and memory, which follows the rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import dpvalue as dpv
from dpvalue.arrays import Ints
from dpvalue.data.rows import PublicRows
from dpvalue.models import Model, build_model
from dpvalue.party import contributions as contributions_module
from dpvalue.party.contributions import Contributions, cut
from dpvalue.privacy.mechanism import Mechanism
from tests.datasets import Arrays, classification, images

LIMITS = ((1, None), (1, 1), (2, 2**27), (3, 2**40), (8, None))  # threads and memory
FIXED: dict[str, Any] = {"progress": False, "noise": "fast", "clip": 1.0, "learning_rate": 0.1, "projection": None}
SIZES = np.array([1, 40, 3, 0, 7, 2, 23, 5, 1, 18])


def network() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 3))


def runs(model: Any, data: tuple[Arrays, Arrays], schedule: str, **settings: Any) -> list[dpv.Result]:
    train, test = data
    how = dpv.Schedule(schedule, probes=3 if schedule == "replay" else None)
    settings = {**FIXED, "model": model, "permutations": 20, "semivalues": ("shapley", "banzhaf"), **settings}
    engines = [dpv.Local(device="cpu", threads=threads, memory=memory) for threads, memory in LIMITS]
    return [dpv.value(train, test, schedule=how, engine=engine, **settings) for engine in engines]


@pytest.mark.parametrize("schedule", ["replay", "running-mean", "independent"])
@pytest.mark.parametrize("unit", ["party", "record", "person"])
def test_memory_and_threads_change_no_bit(schedule: str, unit: Any) -> None:
    """Parties of many sizes, so that there are several pieces; the last bits depend on neither."""
    (X, y), test = classification(int(SIZES.sum()), features=30, test=200)
    groups, persons = np.repeat(np.arange(len(SIZES)), SIZES), np.arange(len(X)) // 2
    privacy = dpv.Privacy(4.0, 1e-4, unit=unit, parties_per_person=2 if unit == "person" else 1)
    found = runs("logistic", ((X, y), test), schedule, groups=groups, persons=persons, privacy=privacy)
    for other in found[1:]:
        assert torch.equal(other.table.rows, found[0].table.rows)
        for name, values in found[0].values.items():
            assert (other.values[name] == values).all()


@pytest.mark.parametrize("model", ["cnn", network])
def test_memory_and_threads_change_no_bit_of_a_network(model: Any) -> None:
    """Wide images: large enough for torch to split a product over its own threads, if they were switched on."""
    data = images(30, side=8 if callable(model) else 28, test=60)
    found = runs(model, data, "replay", permutations=4)
    for other in found[1:]:
        assert torch.equal(other.table.rows, found[0].table.rows)
        assert (other.values["shapley"] == found[0].values["shapley"]).all()


@pytest.mark.parametrize("most", [1, 4, 5, 64])
def test_parties_are_cut_by_their_sizes_with_little_padding(most: int) -> None:
    generator = np.random.default_rng(0)
    sizes = np.concatenate([generator.integers(0, 200, 100), [0, 1, most, most + 1]])
    cuts, kind = cut(sizes, most)
    for size, how in zip(sizes, (cuts[number] for number in kind), strict=True):
        assert how.width <= most
        assert size <= how.slices * how.width < max(2 * size + how.slices, 2)
    assert len(cut(np.full(50, 37), 64)[0]) == 1  # equal sizes are one class, without padding
    assert cut(np.full(50, 37), 64)[0][0].width == 37
    assert cut(np.array([1, 0, 1]), 64)[0] == cut(np.ones(3, dtype=np.int64), 64)[0]


def contributions(model: Model, x: Any, y: Any, sizes: Ints, unit: str) -> Contributions:
    rows = PublicRows.by_party(x, y, sizes, torch.float64, torch.device("cpu"))
    return Contributions(model, rows, Mechanism(0.5, 1.0, unit, "zero_out"), dpv.Local(dtype="float64", threads=2))


@pytest.mark.parametrize("unit", ["party", "record"])
@pytest.mark.parametrize("slices", [10, 500, 10**6])
def test_a_party_contributes_the_same_beside_others_and_in_slices(
    unit: str, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against each party alone, whole: what is summed in slices, and beside parties of other sizes."""
    (x, y), _ = classification(int(SIZES.sum()))
    model = build_model("logistic", "classification", torch.zeros(4), 3, torch.float64, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    who = torch.randint(len(SIZES), (60,), generator=generator)
    theta = torch.randn(60, model.size, generator=generator, dtype=torch.float64)
    starts = np.cumsum(SIZES) - SIZES
    expected: list[Tensor] = []
    for party, at in zip(who.tolist(), theta, strict=True):
        own = slice(starts[party], starts[party] + SIZES[party])
        alone = contributions(model, x[own], y[own], SIZES[party : party + 1], unit)
        expected.append(alone.gradients_at(at[None], torch.tensor([0]))[0])
    monkeypatch.setattr(contributions_module, "_SLICE_NUMBERS", slices)
    together = contributions(model, x, y, SIZES, unit)
    assert len(together._cuts) > 3
    torch.testing.assert_close(together.gradients_at(theta, who), torch.stack(expected), rtol=1e-12, atol=1e-15)
    points, shares = theta[:3], torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    everyone = torch.arange(len(SIZES))
    whole = together.mean_gradients(points, shares, everyone)
    for party in (1, 3, 9):
        own = slice(starts[party], starts[party] + SIZES[party])
        alone = contributions(model, x[own], y[own], SIZES[party : party + 1], unit)
        torch.testing.assert_close(
            whole[party], alone.mean_gradients(points, shares, torch.tensor([0]))[0], rtol=1e-12, atol=0
        )


def test_one_type_holds_private_rows_and_all_that_touch_it_name_it() -> None:
    """What reads rows on their way to a release, and what makes, hands on or retrains on them; public ones never do."""
    package = Path(dpv.__file__).parent
    texts = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    private = {name for name, text in texts.items() if "PrivateRows" in text}
    assert private == {
        "data/rows.py", "data/parties.py", "party/contributions.py", "party/people.py", "party/factored.py",
        "party/party.py", "tasks.py", "auditing/canaries.py",
    }  # fmt: skip
    makers = {name for name, text in texts.items() if "PrivateRows.by_" in text}
    assert makers == {"data/parties.py"}
    assert not any("PublicRows.by_" in texts[name] for name in private)


MEMORY = """
import resource, sys
import numpy as np
import dpvalue as dpv

unit, many, few, largest = sys.argv[1], *map(int, sys.argv[2:])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 3 * 2**30  # what takes far too much fails, and does not stop the machine
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
generator = np.random.default_rng(0)
groups = np.r_[np.repeat(np.arange(many), few), np.full(largest, many)]
X, y = generator.normal(size=(len(groups), 20)), generator.integers(2, size=len(groups))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
parties = dpv.Parties(X, y, groups, persons=np.arange(len(groups)))
table = dpv.release(
    parties, (X[:100].copy(), y[:100].copy()), privacy=dpv.Privacy(4.0, 1e-9, unit=unit), clip=1.0, learning_rate=0.1,
    noise="fast", projection=None, schedule=dpv.Schedule("replay", rounds=2, probes=2), progress=False,
    engine=dpv.Local(device="cpu", threads=2),
)
assert table.rows.isfinite().all() and (table.rows != 0).any(1).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="counts pages as Linux does")
@pytest.mark.parametrize("unit", ["party", "record", "person"])
@pytest.mark.parametrize(("many", "few", "largest"), [(10_000, 10, 50_000), (1, 10, 200_000)])
def test_memory_is_proportional_to_rows(unit: str, many: int, few: int, largest: int) -> None:
    """Padded to the largest, the first parties took 13.7 GB, and 20,000 rows of one party 3 GB."""
    command = [sys.executable, "-W", "ignore", "-c", MEMORY, unit, str(many), str(few), str(largest)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 300, "MB beyond import and the rows themselves"
