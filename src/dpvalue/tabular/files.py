"""Reading rows from CSV (any common separator, gzipped too), Parquet and NPZ files.

`peek` reads no more than the names of the columns and the number of rows, which are public. What is wrong with a file
is said in one line that names the file and, where there is one, the column; never what is in a cell.
"""

from __future__ import annotations

import csv
import gzip
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dpvalue.errors import DpvalueError

if TYPE_CHECKING:
    import pandas

_SEPARATORS = ",;\t|"


@dataclass(frozen=True)
class Peek:
    """What is public of a file: the names of its columns and its number of rows."""

    columns: tuple[str, ...]
    rows: int


def peek(path: Path) -> Peek:
    """Return the columns and the number of rows of a file, without looking at any cell."""
    kind = _kind(path)
    if kind == "parquet":
        file = _parquet(path)
        found = Peek(tuple(file.schema_arrow.names), file.metadata.num_rows)
    elif kind == "npz":
        arrays = _npz(path)
        found = Peek(tuple(_npz_columns(path, arrays)), len(next(iter(arrays.values()))))
    else:
        with _csv(path) as (names, lines):
            found = Peek(names, sum(1 for line in lines if line))
    _require_sound(path, found)
    return found


def read(path: Path, columns: list[str] | None = None) -> pandas.DataFrame:
    """Return the rows of a file; only some columns of it, if they are named."""
    import pandas as pd

    frame: pd.DataFrame
    kind = _kind(path)
    if kind == "parquet":
        frame = _parquet(path).read(columns=columns).to_pandas()
    elif kind == "npz":
        arrays = _npz(path)
        frame = pd.DataFrame(_npz_columns(path, arrays))
        frame = frame if columns is None else frame[columns]
    else:
        with _csv(path) as (names, _):
            separator = names.separator
        _require_sound(path, Peek(names, 1))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    path,
                    sep=separator,
                    usecols=columns,
                    index_col=False,
                    encoding="utf-8-sig",
                    skipinitialspace=True,
                    low_memory=False,
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError):  # whose messages may quote a line
            raise DpvalueError(f"{path} is not a table: some lines have more cells than the header") from None
        frame = frame if columns is None else frame[columns]
    _require_sound(path, Peek(tuple(map(str, frame.columns)), len(frame)))
    return frame


def _kind(path: Path) -> str:
    if not path.is_file():
        raise DpvalueError(f"there is no file {path}")
    if path.suffix in (".parquet", ".npz"):
        return path.suffix[1:]
    return "csv"


def _require_sound(path: Path, found: Peek) -> None:
    if not found.columns:
        raise DpvalueError(f"{path} is empty")
    twice = [name for name, count in Counter(found.columns).items() if count > 1]
    if twice:
        raise DpvalueError(f"{path} has several columns that are called {twice[0]!r}")
    if any(not name.strip() for name in found.columns):
        raise DpvalueError(f"{path} has a column without a name")
    if not found.rows:
        raise DpvalueError(f"{path} has a header and no rows")


class _Names(tuple[str, ...]):
    """The names of columns, and the separator that parted them."""

    separator: str


@contextmanager
def _csv(path: Path) -> Iterator[tuple[_Names, Any]]:
    """The names of the columns and an iterator over the lines after them."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as text:
            yield _header(text)
    except (UnicodeDecodeError, csv.Error):
        raise DpvalueError(f"{path} is not a text file in UTF-8") from None
    except (gzip.BadGzipFile, EOFError):
        raise DpvalueError(f"{path} is not a whole gzip file") from None


def _header(text: IO[str]) -> tuple[_Names, Any]:
    first = text.readline()
    # The separator of the header is the one that parts it most often.
    separator = max(_SEPARATORS, key=first.count)
    names = _Names(name.strip() for name in next(csv.reader([first], delimiter=separator), []))
    names.separator = separator
    return names, csv.reader(text, delimiter=separator)


def _parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ModuleNotFoundError:
        raise DpvalueError("reading Parquet needs pyarrow: pip install 'dpvalue[parquet]'") from None
    try:
        return parquet.ParquetFile(path)
    except (ArrowInvalid, OSError):
        raise DpvalueError(f"{path} is not a Parquet file") from None


def _npz(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as binary, np.load(binary, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile):  # ValueError: arrays of objects, which would be unpickled
        raise DpvalueError(f"{path} is not an NPZ file of plain arrays") from None
    if not arrays or len({len(one) if one.ndim else -1 for one in arrays.values()}) != 1:
        raise DpvalueError(f"{path} must hold arrays with one row per record each")
    return arrays


def _npz_columns(path: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    """One column a flat array; an array of rows, say X, becomes X0, X1, ..."""
    columns: dict[str, Any] = {}
    for name, array in arrays.items():
        flat = array.reshape(len(array), -1)
        parts = {name: flat[:, 0]} if array.ndim == 1 else {f"{name}{i}": flat[:, i] for i in range(flat.shape[1])}
        if columns.keys() & parts.keys():
            raise DpvalueError(f"{path} has several columns that are called {min(columns.keys() & parts.keys())!r}")
        columns |= parts
    return columns
