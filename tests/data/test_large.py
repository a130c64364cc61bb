"""Files and Datasets that are larger than what may be in memory at once, by the operating system's count."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue.data import binary_files
from dpvalue.data.files import open_private, read_private, read_public
from dpvalue.data.parties import as_parties
from dpvalue.runs.demo import embedded, write_demo
from tests.datasets import classification, peek

ROWS, WIDTH = 1_000_000, 40
MEGABYTES = ROWS * WIDTH * 8 / 1e6

# What reading adds to the peak of a process that has imported all that it needs, in MB. Not by getrusage: what it says
# of a process that was just started begins with the peak of the one that started it.
READS = """
import re, sys
from pathlib import Path
import numpy as np
from dpvalue.data.files import read_private
warm, path, names = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].split(",")
def total(path):
    return sum(len(block.columns) + 0 * block.columns[name].numbers().sum() for block in read_private(path, names)
               for name in names[:1])
total(warm)
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3
before = peak()
print(total(path), peak() - before)
"""


def added(folder: Path, small: Path, large: Path, names: list[str]) -> tuple[int, float]:
    """How many rows a process of its own reads, and what the second of two files adds to its peak of memory."""
    command = [sys.executable, "-c", READS, str(small), str(large), ",".join(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    rows, megabytes = done.stdout.split()
    return int(float(rows)), float(megabytes)


counted = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not count so")


@counted
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rows", "columns", "packed", "parquet"])
def test_memory_is_bounded_however_long_a_file_is(kind: str, tmp_path: Path) -> None:
    assert MEGABYTES > 300
    names = [f"X{place}" for place in range(WIDTH)]
    paths = []
    for name, rows in (("small", 1000), ("large", ROWS)):
        numbers = np.random.default_rng(0).integers(0, 256, (rows, WIDTH)).astype(np.float64)
        path = tmp_path / f"{name}.{'parquet' if kind == 'parquet' else 'npz'}"
        if kind == "parquet":  # in one row group
            columns = {name: numbers[:, place] for place, name in enumerate(names)}
            parquet.write_table(pa.table(columns), path, row_group_size=rows, compression="none", use_dictionary=False)
        elif kind == "packed":
            archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
            with archive, archive.open("X.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, numbers)
        else:
            np.savez(path, X=np.asfortranarray(numbers) if kind == "columns" else numbers)
        paths.append(path)
    rows, megabytes = added(tmp_path, paths[0], paths[1], names)
    assert rows == ROWS
    assert megabytes < 150


@pytest.mark.parametrize("pack", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_npz_file_is_read_in_blocks(order: Any, pack: Any, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    X = np.array(generator.normal(size=(70_000, 2, 3)), order=order)
    names = np.array(["a", "bc", ""] * 23_333 + ["d"])
    pack(tmp_path / "rows.npz", X=X, names=names, label=np.arange(70_000))
    wanted = ["label", "X5", "names", "X0"]
    blocks = list(read_private(tmp_path / "rows.npz", wanted))
    assert len(blocks) == 2
    assert [block.columns.columns for block in blocks] == [tuple(wanted)] * 2
    joined = {name: np.concatenate([block.columns[name].texts() for block in blocks]) for name in wanted}
    assert joined["label"].tolist() == [str(row) for row in range(70_000)]
    assert joined["names"].tolist() == [name or None for name in names.tolist()]
    public = read_public(tmp_path / "rows.npz")
    for name, numbers in (("X0", X[:, 0, 0]), ("X5", X[:, 1, 2])):
        found = np.concatenate([block.columns[name].numbers() for block in blocks])
        np.testing.assert_array_equal(found, numbers)
        np.testing.assert_array_equal(public[name].numbers(), numbers)
    assert peek(tmp_path / "rows.npz").rows == 70_000


def test_wide_files_are_read_fewer_rows_at_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "wide.npz", X=np.zeros((5000, 1000), dtype=np.uint8))
    names = [f"X{place}" for place in range(1000)]
    assert [len(block.columns) for block in read_private(tmp_path / "wide.npz", names)] == [2097, 2097, 806]


def test_headers_tell_what_is_public_of_an_npz_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez(tmp_path / "rows.npz", X=np.zeros((7, 2)))
    for name in ("_stream_array", "_map_array", "_read_array"):
        monkeypatch.setattr(binary_files, name, lambda *given: pytest.fail("cells were read"))
    assert peek(tmp_path / "rows.npz").rows == 7


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_damaged_npz_file_is_refused(order: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=np.full((90_000, 3), 174.0, order=order))
    content = bytearray((tmp_path / "rows.npz").read_bytes())
    content[1_000_000] ^= 1
    (tmp_path / "rows.npz").write_bytes(content)
    assert peek(tmp_path / "rows.npz").rows == 90_000  # no cell of it is read
    with pytest.raises(dpv.DpvalueError, match="is not an NPZ file of plain arrays") as caught:
        list(read_private(tmp_path / "rows.npz", ["X0"]))
    assert "174" not in str(caught.value)


def test_columns_that_are_packed_are_refused_where_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "rows.npz", X=np.ones((300, 50), order="F"))
    monkeypatch.setattr(binary_files, "MOST_BYTES_WHOLE", 100_000)
    with open_private(tmp_path / "rows.npz") as file:
        assert file.count() == 300
        with pytest.raises(dpv.DpvalueError, match=r"'X' of .* could only be read whole .*: save it by numpy.savez"):
            list(file.read(["X0"], None))
    monkeypatch.undo()
    (block,) = read_private(tmp_path / "rows.npz", ["X0"])
    assert block.columns["X0"].numbers().sum() == 300


class Made(torch.utils.data.Dataset[Any]):
    """Items that are made when they are asked for; counts how many were, and how many are there at once."""

    def __init__(self, X: Any, y: Any) -> None:
        self.X, self.y, self.asked = X, y, 0

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, place: int) -> Any:
        self.asked += 1
        return torch.tensor(self.X[place]), int(self.y[place])


@pytest.mark.parametrize("preprocess", [None, StandardScaler()])
def test_a_dataset_is_asked_once_and_encoded_in_pieces(preprocess: Any) -> None:
    (X, y), test = classification(3000, classes=2, features=3)
    dataset = Made(X, y)
    parties = as_parties(dataset)
    assert (parties.n, dataset.asked) == (3000, 0)
    encoding = dpv.Utility(*test).encoding("logistic", preprocess)
    for dtype in (torch.float32, torch.float64):
        dataset.asked = 0
        lazy = as_parties(dataset).encode(encoding, dtype, torch.device("cpu"))
        assert dataset.asked == 3000
        eager = as_parties((X, y)).encode(encoding, dtype, torch.device("cpu"))
        for name in ("x", "y", "weights", "offsets"):
            assert torch.equal(getattr(lazy, name), getattr(eager, name))


DATASET = """
import re, sys
from pathlib import Path
import numpy as np, torch
import dpvalue as dpv
from dpvalue.data.parties import as_parties
class Items(torch.utils.data.Dataset):
    def __init__(self, rows): self.rows = rows
    def __len__(self): return self.rows
    def __getitem__(self, place): return torch.full((3000,), float(place % 7)), place % 2
public = np.random.default_rng(0).normal(size=(20, 3000)), np.arange(20) % 2
encoding = dpv.Utility(*public).encoding("logistic")
encode = lambda rows: as_parties(Items(rows)).encode(encoding, torch.float32, torch.device("cpu"))
encode(1000)
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1e3
before = peak()
rows = encode(20_000)
print(rows.x.nbytes / 1e6, peak() - before)
"""


@counted
@pytest.mark.slow
def test_of_a_dataset_no_more_than_its_numbers_is_in_memory() -> None:
    done = subprocess.run([sys.executable, "-c", DATASET], capture_output=True, text=True, check=True)
    numbers, megabytes = map(float, done.stdout.split())
    assert numbers > 200
    assert megabytes < 2 * numbers + 100  # as they are read, and as a tensor; items would be as much again


def test_the_demonstrations_rows_are_those_of_scikit_learn(tmp_path: Path) -> None:
    expected = load_breast_cancer()
    X, y = embedded("breast-cancer")
    np.testing.assert_array_equal(X, expected.data)
    np.testing.assert_array_equal(y, expected.target)
    write_demo(tmp_path)
    named = [str(name).replace(" ", "_") for name in expected.feature_names]
    assert list(read_public(tmp_path / "public.csv").columns) == [*named, "diagnosis"]


def test_a_fault_of_whoever_reads_is_not_called_damage_of_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.zeros((4, 2)), y=np.zeros(4))

    def read() -> None:
        with binary_files.open_npz(tmp_path / "rows.npz") as arrays:
            next(arrays.blocks(("x0",), 2))
            raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        read()
