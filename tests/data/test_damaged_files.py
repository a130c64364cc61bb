"""Files of rows that are damaged: one clear line that names the file, never a traceback and never a cell."""

from __future__ import annotations

import gzip
import io
import struct
import warnings
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from pyarrow import parquet
from typer.testing import CliRunner

from dpvalue.cli import app
from dpvalue.data.files import open_private, read_private, read_public
from dpvalue.errors import DpvalueError

SECRET = "cell-of-a-patient"
COLUMNS = {
    "x": np.arange(50.0), "who": [SECRET] * 50, "town": ["north", "south"] * 25, "whole": np.arange(50),
    "label": [0, 1] * 25,
}  # fmt: skip


def content_of(kind: str) -> bytes:
    buffer = io.BytesIO()
    if kind == "parquet":
        table = pa.table({**COLUMNS, "lists": [[1]] * 50, "index": np.arange(50)})
        table = table.replace_schema_metadata({"pandas": '{"index_columns": ["index"]}'})
        parquet.write_table(table, buffer, row_group_size=20)
    elif kind == "npz":
        arrays: Any = {name: np.asarray(cells) for name, cells in COLUMNS.items()}
        np.savez_compressed(buffer, **arrays)
    else:
        lines = [",".join(COLUMNS), *(",".join(map(str, row)) for row in zip(*COLUMNS.values(), strict=True))]
        text = "\n".join(lines).encode()
        return gzip.compress(text) if kind == "csv.gz" else zstandard.compress(text)
    return buffer.getvalue()


def outcome(path: Path) -> str:
    """Read a file in all ways; return "read" or "refused". Anything but that fails the test."""
    found = "read"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, about headers of Python 2
        for read in (counted, private, read_public):
            said = ""
            try:
                read(path)
            except DpvalueError as error:
                said = str(error)
            if said:
                found = "refused"
                assert str(path) in said
                assert SECRET not in said.replace(str(path), "")
                assert "\n" not in said
    return found


def counted(path: Path) -> None:
    with open_private(path) as file:
        assert file.count() >= 0


def private(path: Path) -> None:
    with open_private(path) as file:
        names = file.columns
    for block in read_private(path, names):
        for name in names:
            assert len(block.columns[name].texts()) == len(block.columns)


@pytest.mark.parametrize("kind", ["parquet", "npz", "csv.gz", "csv.zst"])
def test_damaged_bytes(kind: str, tmp_path: Path) -> None:
    """Bytes are flipped, files cut and stuffed, most often at the end, where metadata stands."""
    generator, content = np.random.default_rng(0), content_of(kind)
    path = tmp_path / f"rows.{kind}"
    path.write_bytes(content)
    assert outcome(path) == "read"
    found: Counter[str] = Counter()
    for number in range(200):
        damaged = bytearray(content)
        for _ in range(int(generator.integers(1, 4))):
            near = generator.random() < 0.6
            at = (
                len(damaged) - 1 - int(generator.integers(min(len(damaged), 2000)))
                if near
                else int(generator.integers(len(damaged)))
            )
            damaged[at] = int(generator.integers(256))
        if number % 5 == 0:
            del damaged[int(generator.integers(len(damaged))) :]
        elif number % 5 == 1:
            at = int(generator.integers(len(damaged)))
            damaged[at:at] = generator.integers(0, 256, int(generator.integers(1, 40)), dtype=np.uint8).tobytes()
        path.write_bytes(bytes(damaged))
        found[outcome(path)] += 1
    assert found["refused"] > 60


@pytest.mark.parametrize(
    "stored",
    [b"{", b"[]", b"5", b'{"index_columns": null}', b'{"index_columns": 5}', b'{"index_columns": [{}, 5, null]}',
     b"\xff", b"[" * 100_000, b"1" * 100_000],
)  # fmt: skip
def test_pandas_notes_in_a_parquet_file_that_are_none(stored: bytes, tmp_path: Path) -> None:
    table = pa.table(COLUMNS).replace_schema_metadata({b"pandas": stored})
    parquet.write_table(table, tmp_path / "rows.parquet")
    assert outcome(tmp_path / "rows.parquet") in ("read", "refused")


@pytest.mark.parametrize("cut", [0, 100, -1, -8])
def test_a_cut_file_stops_a_run_with_one_line(cut: int, tmp_path: Path) -> None:
    for kind in ("parquet", "npz", "csv.gz"):
        path = tmp_path / f"rows.{kind}"
        path.write_bytes(content_of(kind)[:cut])
        (tmp_path / "test.csv").write_text("x,label\n" + "1,0\n2,1\n" * 10)
        done = CliRunner().invoke(app, ["run", str(path), "--test", str(tmp_path / "test.csv"), "--target", "label"])
        assert done.exit_code == 2
        assert isinstance(done.exception, SystemExit), repr(done.exception)
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


def member(header: str, content: bytes = b"") -> bytes:
    text = header.encode("latin1")
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + content


@pytest.mark.parametrize(
    "stored",
    [
        member("{'descr': '<f8', 'fortran_order': False, 'shape': (-2, -3), }", b"\0" * 48),
        member("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000, 0), }"),
        member("{'descr': '<f8', 'fortran_order': False, 'shape': (2.0,), }", b"\0" * 16),
        member("{'descr': '<f8', 'fortran_order': False, 'shape': ('a',), }", b"\0" * 16),
        member("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", b"\0" * 16),
        member("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (2,), }", b"\0" * 16),
        member("{'descr': '<U999999999999', 'fortran_order': False, 'shape': (2,), }", b"\0" * 16),
        member("{'descr': None, 'fortran_order': False, 'shape': (2,), }", b"\0" * 16),
        member("(" * 5000, b"\0" * 16),
        member("{'descr': '<f8', 'fortran_order': False, 'shape': " + "-" * 9000 + "1, }"),
        member("9" * 9000),
        b"",
        b"\x93NUMPY\x09\x00",
    ],
)
@pytest.mark.parametrize("pack", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_headers_of_arrays_that_are_none(stored: bytes, pack: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    with zipfile.ZipFile(path, "w", pack) as archive:
        archive.writestr("x.npy", stored)
    assert outcome(path) == "refused"


def test_a_parquet_file_that_claims_other_rows_than_its_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(content_of("parquet"))
    original = parquet.ParquetFile

    class Claims:
        def __init__(self, *given: Any, **more: Any) -> None:
            self._file = original(*given, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        @property
        def metadata(self) -> Any:
            class Metadata:
                num_rows = 10**15
                row_group = self._file.metadata.row_group

            return Metadata

    monkeypatch.setattr(parquet, "ParquetFile", Claims)
    assert outcome(path) == "refused"


def test_a_packed_cell_takes_no_memory_before_it_is_read(tmp_path: Path) -> None:
    """Of a zstd file a few kilobytes are unpacked at once: they may hold 30,000 times as much."""
    content = b"who,x\n" + b"9" * 2**26 + b",1\nP1,2\n"
    path = tmp_path / "rows.csv.zst"
    path.write_bytes(zstandard.compress(content))
    assert path.stat().st_size < 20_000
    blocks = list(read_private(path, ["who"]))
    assert [one for block in blocks for one in block.columns["who"].identities().tolist()] == [None, "P1"]
