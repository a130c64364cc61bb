"""Real data: embedded in scikit-learn, or from a folder that the user names, in the formats at hand and as published.

Nothing is downloaded. What is missing is said in one line: which file, and where it is published.
"""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpvalue.arrays import Array
from dpvalue.errors import DpvalueError, require_choice

Arrays = tuple[Array, Array]
ENVIRONMENT = "DPVALUE_DATA"


class MissingDataError(DpvalueError):
    """A file of a data set, or of weights, is not there."""


def load(name: str, folder: str | Path | None = None) -> Arrays:
    """Return features and labels of a data set.

    Args:
        name: one of `NAMES`.
        folder: where files are; None takes the environment variable DPVALUE_DATA. Not needed for scikit-learn's sets.
    """
    require_choice("data set", name, NAMES)
    place = Path(folder or os.environ.get(ENVIRONMENT, "."))
    try:
        return _LOADERS[name](place)
    except DpvalueError:
        raise
    except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise DpvalueError(f"{name} in {place} cannot be read: a file is damaged ({type(error).__name__})") from None


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def load_hospitals(folder: str | Path | None = None) -> tuple[Array, Array, Array]:
    """Return UCI's heart disease data: 13 measurements (NaN: missing), whether ill, and the hospital of each row."""
    place = Path(folder or os.environ.get(ENVIRONMENT, "."))
    parts = []
    for name in HOSPITALS:
        file = f"processed.{name}.data"
        path = _first(place, f"heart-disease/{file}", file)
        if path is None:
            raise _missing(place, f"heart-disease/{file}", "Heart Disease (UCI)")
        try:
            rows = np.array([line.split(",") for line in path.read_text().replace("?", "nan").split()], dtype=float)
        except ValueError as error:
            raise DpvalueError(f"{path} cannot be read: it is damaged ({error})") from None
        if rows.ndim != 2 or rows.shape[1] != 14:
            raise DpvalueError(f"{path} cannot be read: it is damaged (its lines must have 14 cells)")
        parts.append(rows)
    rows = np.concatenate(parts)
    return rows[:, :-1], (rows[:, -1] > 0).astype(np.int64), np.repeat(HOSPITALS, [len(part) for part in parts])


def is_embedded(name: str) -> bool:
    """Whether a data set needs no folder."""
    return name in ("breast-cancer", "diabetes", "digits")


def _embedded(name: str, stored: Path) -> Arrays:
    if stored.is_file():  # the same rows, for a machine without scikit-learn
        with np.load(stored, allow_pickle=False) as file:
            return file["x"], file["y"]
    from sklearn import datasets

    found = {
        "breast-cancer": datasets.load_breast_cancer,
        "diabetes": datasets.load_diabetes,
        "digits": datasets.load_digits,
    }
    X, y = found[name](return_X_y=True)
    if name == "diabetes":  # the paper's: its target split at the median
        y = (y > np.median(y)).astype(np.int64)
    return X, y


def _mnist(folder: Path) -> Arrays:
    """28 x 28 grey images, from 0 to 1; the training set."""
    if (folder / "mnist.npz").is_file():
        with np.load(folder / "mnist.npz", allow_pickle=False) as file:
            return file["x_train"].astype(np.float32) / 255, file["y_train"].astype(np.int64)
    images, labels = (_first(folder, name, name.replace("-idx", ".idx"), *(f"{name}.gz",)) for name in _MNIST_FILES)
    if images is None or labels is None:
        raise _missing(folder, "mnist.npz, or train-images-idx3-ubyte.gz and train-labels-idx1-ubyte.gz", "MNIST")
    return _idx(images).astype(np.float32) / 255, _idx(labels).astype(np.int64)


_MNIST_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")


def _idx(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file: a magic number with the number of dimensions, their sizes, and bytes."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise DpvalueError(f"{path} is not an idx file of bytes")
    dimensions = content[3]
    sizes = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions)
    if len(values) != np.prod(sizes):
        raise DpvalueError(f"{path} is cut: it holds {len(values)} of {np.prod(sizes)} bytes")
    return values.reshape(sizes)


def _cifar10(folder: Path) -> Arrays:
    """3 x 32 x 32 images, from 0 to 1; training and test images together."""
    if (folder / "cifar10.npz").is_file():
        with np.load(folder / "cifar10.npz", allow_pickle=False) as file:
            images = np.concatenate([file[name] for name in ("x_train", "x_test") if name in file.files])
            labels = np.concatenate([file[name] for name in ("y_train", "y_test") if name in file.files])
        return images.transpose(0, 3, 1, 2).astype(np.float32) / 255, labels.astype(np.int64)
    places = (folder / "cifar-10-batches-py", folder)
    batches = [path for place in places for name in ("data_batch_*", "test_batch") for path in sorted(place.glob(name))]
    if not batches:
        raise _missing(folder, "cifar10.npz, or the folder cifar-10-batches-py", "CIFAR-10")
    parts = [_batch(path) for path in batches]
    return np.concatenate([x for x, _ in parts]).astype(np.float32) / 255, np.concatenate([y for _, y in parts])


class _PlainUnpickler(pickle.Unpickler):
    """Reads the published batches, which are pickles of dictionaries, lists, bytes and one array; nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype"),
            ("numpy._core.multiarray", "_reconstruct"), ("_codecs", "encode"),
        }  # fmt: skip
        if (module, name) not in allowed:
            raise DpvalueError(f"a batch of CIFAR-10 must hold plain arrays, got {module}.{name}")
        return super().find_class(module, name)


def _batch(path: Path) -> Arrays:
    with path.open("rb") as file:
        content = _PlainUnpickler(file, encoding="bytes").load()
    images = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    return images, np.asarray(content[b"labels"], dtype=np.int64)


def _covertype(folder: Path) -> Arrays:
    """54 columns, 7 classes from 0."""
    if (folder / "covtype.npz").is_file():
        with np.load(folder / "covtype.npz", allow_pickle=False) as file:
            return file["x"].astype(np.float64), file["y"].astype(np.int64) - 1
    path = _first(folder, "covtype.data.gz", "covtype.data")
    if path is None:
        raise _missing(folder, "covtype.npz, or covtype.data.gz", "Covertype (UCI)")
    rows = np.loadtxt(path, delimiter=",", dtype=np.float64)
    return rows[:, :-1], rows[:, -1].astype(np.int64) - 1


def _wine(folder: Path) -> Arrays:
    """11 measurements of red wines and their quality, a number."""
    path = folder / "winequality-red.csv"
    if not path.is_file():
        raise _missing(folder, "winequality-red.csv", "Wine Quality (UCI)")
    rows = np.loadtxt(path, delimiter=";", skiprows=1)
    return rows[:, :-1], rows[:, -1]


def _first(folder: Path, *names: str) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _missing(folder: Path, files: str, published: str) -> MissingDataError:
    return MissingDataError(
        f"{published} is wanted in {folder}: {files}; name the folder with --data-dir or {ENVIRONMENT} "
        f"({_PUBLISHED[published]})"
    )


_PUBLISHED = {
    "MNIST": "yann.lecun.com/exdb/mnist",
    "CIFAR-10": "www.cs.toronto.edu/~kriz/cifar.html",
    "Covertype (UCI)": "archive.ics.uci.edu/dataset/31/covertype",
    "Wine Quality (UCI)": "archive.ics.uci.edu/dataset/186/wine+quality",
    "Heart Disease (UCI)": "archive.ics.uci.edu/dataset/45/heart+disease",
}
_LOADERS: dict[str, Callable[[Path], Arrays]] = {
    "breast-cancer": lambda folder: _embedded("breast-cancer", folder / "breast-cancer.npz"),
    "diabetes": lambda folder: _embedded("diabetes", folder / "diabetes.npz"),
    "digits": lambda folder: _embedded("digits", folder / "digits.npz"),
    "mnist": _mnist,
    "cifar10": _cifar10,
    "covertype": _covertype,
    "wine": _wine,
}
NAMES = tuple(_LOADERS)
