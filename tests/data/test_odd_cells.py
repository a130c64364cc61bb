"""One odd cell in a typed column: bytes that are not UTF-8, giants, stacks of marks, numbers beyond a double.

Whatever one row holds, every other row is what it was: its text, its number, its identity, and whether it is missing;
nothing is raised or warned, and the work is bounded.
"""

from __future__ import annotations

import datetime
import unicodedata
import warnings
from collections.abc import Callable
from decimal import Decimal
from math import inf, isnan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from pyarrow import compute, parquet

import dpvalue as dpv
from dpvalue.data import cells
from dpvalue.data.cells import (
    LONGEST_CELL,
    MOST_BYTES,
    MOST_MARKS,
    identity,
    is_missing,
    number,
    party_name,
    text,
    word,
)
from dpvalue.data.columns import Column
from dpvalue.data.conversions import as_column, as_columns
from dpvalue.data.files import open_private, read_private
from dpvalue.data.parties import as_parties
from dpvalue.party.party import PartyFile
from tests.datasets import peek

BAD = b"\xff\xfe"
GIANT = "9" * (MOST_BYTES + 10)
STACK = "a" + "\u0316\u0300" * MOST_MARKS
LONG_DOUBLE = np.longdouble


def strings(cells: list[bytes | None], large: bool = False) -> Any:
    """Texts of Arrow as other writers leave them: nothing checks that their bytes are UTF-8."""
    raw = pa.array(cells, type=pa.large_binary() if large else pa.binary())
    kind = pa.LargeStringArray if large else pa.StringArray
    return kind.from_buffers(len(cells), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])


def in_dictionary(cells: list[bytes | None]) -> Any:
    known = list(dict.fromkeys(cell for cell in cells if cell is not None))
    places = pa.array([None if cell is None else known.index(cell) for cell in cells], type=pa.int32())
    return pa.DictionaryArray.from_arrays(places, strings(list(known)))


def pandas_categories(cells: list[bytes | None]) -> Any:
    known = list(dict.fromkeys(cell for cell in cells if cell is not None))
    codes = [-1 if cell is None else known.index(cell) for cell in cells]
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(known, dtype=object)))


def parquet_column(cells: Any, folder: Path) -> Column:
    parquet.write_table(pa.table({"who": cells}), folder / "who.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        blocks = list(read_private(folder / "who.parquet", ["who"]))
    return Column([cell for block in blocks for cell in block.columns["who"].cells])


STORED: dict[str, Callable[[list[bytes | None], Path], Column]] = {
    "arrow string": lambda cells, _: as_column_of_arrow(strings(cells)),
    "arrow large_string": lambda cells, _: as_column_of_arrow(strings(cells, large=True)),
    "arrow string_view": lambda cells, _: as_column_of_arrow(strings(cells).cast("string_view")),
    "arrow binary": lambda cells, _: as_column_of_arrow(pa.array(cells, type=pa.binary())),
    "arrow binary_view": lambda cells, _: as_column_of_arrow(pa.array(cells, type=pa.binary()).cast("binary_view")),
    "arrow dictionary": lambda cells, _: as_column_of_arrow(in_dictionary(cells)),
    "arrow json": lambda cells, _: as_column_of_arrow(pa.ExtensionArray.from_storage(pa.json_(), strings(cells))),
    "parquet string": lambda cells, folder: parquet_column(strings(cells), folder),
    "parquet large_string": lambda cells, folder: parquet_column(strings(cells, large=True), folder),
    "parquet binary": lambda cells, folder: parquet_column(pa.array(cells, type=pa.binary()), folder),
    "parquet dictionary": lambda cells, folder: parquet_column(in_dictionary(cells), folder),
    "pandas arrow": lambda cells, _: as_column(pd.Series(strings(cells), dtype=pd.ArrowDtype(pa.string()))),
    "pandas str": lambda cells, _: as_column(pd.Series(pd.arrays.ArrowStringArray(strings(cells, large=True)))),
    "pandas categories": lambda cells, _: as_column(pandas_categories(cells)),
    "pandas objects": lambda cells, _: as_column(pd.Series(cells, dtype=object)),
    "polars binary": lambda cells, _: as_column(polars.Series(cells, dtype=polars.Binary)),
    "polars string": lambda cells, _: as_column(polars.from_arrow(strings(cells))),
    "numpy bytes": lambda cells, _: as_column(np.array([cell or b"" for cell in cells])),
    "numpy objects": lambda cells, _: as_column(np.array([*cells, None], dtype=object)[:-1]),
    "list": lambda cells, _: as_column(cells),
}


def as_column_of_arrow(column: Any) -> Column:
    return as_columns(pa.table({"who": column}))["who"]


def said(column: Column, rows: int) -> list[Any]:
    """All that a column says of its first rows."""
    numbers = [None if isnan(one) else one for one in column.numbers()[:rows].tolist()]
    parts = (column.texts(), column.identities(), column.party_names(), column.missing_cells(), column.words())
    return [*(part[:rows].tolist() for part in parts), numbers]


OTHERS: list[bytes | None] = [b"NA", b"007", b"north", b"", None, "Zu\u0308rich".encode(), b"true", b"1e400", b"NULL"]


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize(
    "odd", [BAD, GIANT.encode(), STACK.encode(), ("\u0f73" * 99).encode()], ids=["bytes", "giant", "marks", "tibetan"]
)
def test_one_odd_cell_of_a_typed_column_changes_no_other(how: str, odd: bytes, tmp_path: Path) -> None:
    """One id that is not UTF-8 made bytes of its whole block, in which NA was a person."""
    plain = STORED[how]([*OTHERS, b"P1"], tmp_path)
    beside = STORED[how]([*OTHERS, odd], tmp_path)
    assert said(plain, len(OTHERS)) == said(beside, len(OTHERS))
    assert said(plain, 4)[1] == [None, "7", "north", None]
    assert said(plain, 4)[3][0] is True
    assert plain.identities()[-1] == "P1"
    if odd is not BAD:
        assert (beside.texts()[-1], beside.identities()[-1], beside.words()[-1]) == (None, None, None)
        assert beside.numbers()[-1] == inf
        assert not beside.missing_cells()[-1]


def test_an_id_that_is_not_utf8_makes_no_person_of_what_is_missing(tmp_path: Path) -> None:
    """The agent counts persons as the release does, in either world: NA is nobody."""
    counts = []
    for odd in (b"P9", BAD):
        column = strings([b"P1", b"P1", b"NA", None, b"n/a", odd])
        parquet.write_table(pa.table({"who": column, "x": [1.0] * 6, "y": [0, 1] * 3}), tmp_path / "own.parquet")
        counts.append(PartyFile(tmp_path / "own.parquet", "who").units())
        (block,) = read_private(tmp_path / "own.parquet", ["who"])
        parties = dpv.Parties(np.zeros((6, 1)), np.zeros(6), ["a"] * 5 + ["b"], block.columns["who"].identities())
        assert parties.units("person").sum() == counts[-1]
    assert counts == [2, 2]


def test_bytes_are_texts_before_anything_is_asked_of_them() -> None:
    for cell in (b"NA", np.bytes_(b"NA"), b" ? ", b""):
        assert is_missing(cell), cell
        assert identity(cell) is None
        assert isnan(number(cell))
    assert identity(b"007") == party_name(b"7.0") == "7"
    assert party_name(b"NA") == "NA"


def test_a_cell_is_as_long_as_the_limit_or_unreadable() -> None:
    for letter in ("9", "x", "\u00e9", " ", "\U0001f600"):
        longest, longer = letter * LONGEST_CELL, letter * (LONGEST_CELL + 1)
        assert text(longest) == (longest.strip() or None)
        for cell in (longer, longer.encode(), "NA" + " " * LONGEST_CELL, Decimal("9" * (LONGEST_CELL + 1))):
            assert (text(cell), identity(cell), party_name(cell), word(cell)) == (None, None, None, None)
            assert number(cell) == inf
            assert not is_missing(cell)


def test_every_character_that_begins_with_a_mark_counts_as_one() -> None:
    everything = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    marks = [letter for letter in everything if unicodedata.combining(unicodedata.normalize("NFD", letter)[0])]
    assert len(marks) > 800
    assert all(cells.is_readable("a" + mark * MOST_MARKS) for mark in marks)
    assert not any(cells.is_readable("a" + mark * (MOST_MARKS + 1)) for mark in marks)
    assert text("e\u0301" * 1000) == "\u00e9" * 1000


@pytest.mark.parametrize(
    "cell",
    ["\u0958" * (LONGEST_CELL - 1), "\ufb2c" * 30_000, "a" + "\u0344" * 16, "a" + "\u0f73" * 20, "Zu\u0308rich ",
     "\ud800x", "\u2000 x", "\u212a", "007", "7.0", "1e15", "NA", "\u037e", " true "],
    ids=range(14),
)  # fmt: skip
def test_an_id_that_is_read_twice_stays_the_same(cell: str) -> None:
    """Forms of Unicode may be longer than a text: an id counts for its person everywhere or nowhere."""
    for read in (identity, party_name, text):
        once = read(cell)
        assert once is None or read(once) == once
    assert dpv.Parties([[1.0]] * 2, [0, 1], persons=[cell, identity(cell)]).person_of_row.tolist() in ([0, 0], [-1, -1])


LARGE: dict[str, Any] = {
    "marks": "a" + "\u0316\u0300" * 2**19, "marks without a class": "\u0f73" * 2**20, "digits": "9" * 2**20,
    "fraction": "1." + "0" * 2**20 + "e", "space": " " * 2**20, "syllables": "\u1100\u1161" * 2**19,
    "letters that grow": "\u0130" * 2**20, "quotes": '"' * 2**20, "exponent": "1e" + "9" * 2**20,
    "decimal": Decimal("1." + "0" * 2**20), "short runs": ("a" + "\u0316\u0300" * 15) * 2**10,
    "time": "2024-05-01 10:30:00." + "9" * 2**20, "whole": 7**400_000, "negative": -(2**3_000_000),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_no_cell_stalls(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that grows with the square of a mebibyte takes minutes; nothing long reaches Unicode's forms."""
    normalize, longest = unicodedata.normalize, []

    def bounded(form: Any, letters: str) -> str:
        longest.append(len(letters))
        assert cells.is_readable(letters)
        return normalize(form, letters)

    monkeypatch.setattr(unicodedata, "normalize", bounded)
    cell = LARGE[name]
    for ask in (text, number, identity, party_name, is_missing, word):
        ask(cell)
        ask(cell.encode() if isinstance(cell, str) else cell)
    Column([cell]).numbers()
    assert max(longest, default=0) <= LONGEST_CELL
    assert bool(longest) == (name == "short runs")


WIDE = "x" * (LONGEST_CELL + 5)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("odd", [WIDE, "\0" * (LONGEST_CELL + 3) + "y", "n" + "\0" * (MOST_BYTES + 9) + "z"])
def test_a_giant_in_an_npz_file_widens_nobodys_cell(odd: str, order: Literal["<", ">"], tmp_path: Path) -> None:
    """An array gives each text the room of the longest: a block is bounded in bytes, and cells are cut."""
    for kind, giant in (("U", odd), ("S", odd.encode() * 5)):
        cells = np.array(["NA", "7", giant] if kind == "U" else [b"NA", b"7", giant])
        cells = cells.astype(cells.dtype.newbyteorder(order)) if kind == "U" else cells
        np.savez_compressed(tmp_path / "rows.npz", who=cells, x=np.arange(3.0))
        blocks = list(read_private(tmp_path / "rows.npz", ["who", "x"]))
        found = [one for block in blocks for one in block.columns["who"].texts().tolist()]
        assert found == [None, "7", None]
        assert [one for block in blocks for one in block.columns["who"].missing_cells().tolist()] == [
            True,
            False,
            False,
        ]
        assert max(len(cell) for block in blocks for cell in block.columns["who"].cells) <= MOST_BYTES + 1
        assert peek(tmp_path / "rows.npz").rows == 3


def test_blocks_of_an_npz_file_are_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpvalue.data.files._BLOCK_BYTES", 4000)
    np.savez(tmp_path / "rows.npz", who=np.array(["x" * 300, *"abcdefghij"]), x=np.arange(22.0).reshape(11, 2))
    sizes = [len(block.columns) for block in read_private(tmp_path / "rows.npz", ["who", "x1"])]
    assert sizes == [3, 3, 3, 2]


def test_a_giant_cell_of_a_typed_column_is_not_copied(tmp_path: Path) -> None:
    """Python gets no more than the beginning of it."""
    giant = b"9" * (20 * 2**20)
    for column in (strings([b"a", giant]), pa.array([b"a", giant]), strings([giant], large=True).cast("string_view")):
        cells = as_column_of_arrow(column).cells
        assert max(map(len, cells)) == MOST_BYTES + 1
    assert max(map(len, as_column(polars.Series([b"a", giant])).cells)) == MOST_BYTES + 1
    table = pa.table({"who": strings([b"a", giant]), "lists": [[1], [2]], "x": [1.0, 2.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    (block,) = read_private(tmp_path / "rows.parquet", ["who", "lists", "x"])
    assert max(map(len, block.columns["who"].cells)) == MOST_BYTES + 1
    assert block.columns["lists"].cells == [None, None]


def in_paris(moments: Any) -> Any:
    return pd.Series(moments).dt.tz_localize("UTC").dt.tz_convert("Europe/Paris")


ODD: dict[str, Any] = {
    "long doubles": lambda: np.array([1.5, LONG_DOUBLE("1e4000"), 7, LONG_DOUBLE("nan")]),
    "object long doubles": lambda: np.array([1.5, LONG_DOUBLE("1e4000"), 7], dtype=object),
    "pandas long doubles": lambda: pd.Series(np.array([1.5, LONG_DOUBLE("1e4000"), 7])),
    "half": lambda: np.array([1.5, 6e4, 7, np.inf], dtype=np.float16),
    "single": lambda: np.array([1.5, 1e38, 7, np.inf], dtype=np.float32),
    "complex": lambda: np.array([1.5, 1j, 7]),
    "pandas complex": lambda: pd.Series([1.5, 1j, 7]),
    "objects": lambda: np.array(
        [1.5, 10**5000, Decimal("1e9999"), 1j, LONG_DOUBLE("1e4000"), Decimal("sNaN"), datetime.datetime.max,
         np.datetime64(2**62, "s"), np.timedelta64(2**62, "s"), pd.NaT, pd.NA, b"\xff", "\ud800", (), {}, [1], object,
         datetime.timedelta.max, np.float16(6e4), np.bytes_(b"NA"), np.ma.masked, float("-inf"), 2**1023, -(2**1024)],
        dtype=object,
    ),
    "times": lambda: np.array([1, 2**62, -(2**62)], dtype="M8[s]"),
    "times of no unit": lambda: np.array([1, 2**62, -(2**63)], dtype=np.int64).view("M8"),
    "durations": lambda: np.array([1, 2**62], dtype="m8[s]"),
    "pandas times": lambda: pd.Series(np.array([1, 2**50], dtype="M8[s]")),
    "pandas times in a zone": lambda: in_paris(np.array([1, 2**50], "M8[s]")),
    "pandas durations": lambda: pd.Series(np.array([1, 2**50], dtype="m8[s]")),
    "structures": lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f4")]),
    "masked": lambda: np.ma.masked_array([1.5, 2.0, 7.0], [False, True, False]),
    "masked texts": lambda: np.ma.masked_array(["1.5", "2"], [False, True]),
    "numpy strings": lambda: np.array(["NA", "7"], dtype=np.dtypes.StringDType()),
    "arrow decimals": lambda: pa.array([Decimal("1e70"), None, Decimal("7")], pa.decimal256(76, 0)),
    "arrow times in no zone": lambda: pa.array([1, 2**62], pa.int64()).cast(pa.timestamp("s", "Not/Known")),
    "arrow intervals": lambda: pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "arrow times of day": lambda: pa.array([-1, 1, 10**13], pa.int64()).cast(pa.time64("us")),
    "arrow durations": lambda: pa.array([2**62, 1], pa.int64()).cast(pa.duration("us")),
    "arrow dates": lambda: pa.array([2**31 - 1, 1], pa.int32()).cast(pa.date32()),
    "arrow halves": lambda: pa.array([1.5, 6e4, None], pa.float16()),
    "arrow nulls": lambda: pa.nulls(3),
    "arrow runs": lambda: compute.run_end_encode(pa.array(["a", "a", "b"])),
    "arrow dictionary of numbers": lambda: pa.array([2**60 + 1, None, 7]).dictionary_encode(),
    "polars wide": lambda: polars.Series([2**100, None, 7], dtype=polars.Int128),
    "polars times": lambda: polars.Series([1, 2**62, -(2**63)], dtype=polars.Int64).cast(polars.Datetime("ms")),
    "polars objects": lambda: polars.Series([1, "a", b"NA", 10**5000], dtype=polars.Object),
    "tensors": lambda: torch.tensor([1.5, 1e300, 7], dtype=torch.float64),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_no_private_value_warns_or_raises(name: str) -> None:
    raw = ODD[name]()
    with warnings.catch_warnings(), np.errstate(all="raise"):  # and whatever the caller has numpy do
        warnings.simplefilter("error")
        column = as_column_of_arrow(raw) if isinstance(raw, pa.Array | pa.ChunkedArray) else as_column(raw)
        said(column, len(column))
        assert column.texts().shape == column.numbers().shape == (len(column),)


FEATURES = [LONG_DOUBLE("1e4000"), 1e308, 5e-324, -0.0, np.inf, 10**5000, 1j, Decimal("1e999")]


def repr_of(cell: Any) -> str:
    return "huge" if type(cell) is int else repr(cell)


@pytest.mark.parametrize("made", ["array", "objects", "list", "frame", "objects frame", "Dataset"])
@pytest.mark.parametrize("odd", FEATURES, ids=repr_of)
def test_no_feature_warns_or_raises(made: str, odd: Any) -> None:
    """From rows as they are handed over to tensors, in single precision."""
    generator = np.random.default_rng(0)
    y = np.arange(30) % 2
    X: Any = generator.normal(size=(30, 2))
    plain: list[list[Any]] = generator.normal(size=(6, 2)).tolist()
    rows = [[odd, 1.0], *plain[1:]]
    given: Any = rows
    if made == "array" and type(odd) is not int:
        given = np.array(rows, dtype=complex if isinstance(odd, complex) else LONG_DOUBLE)
    elif made == "objects":
        given = np.array(rows, dtype=object)
    elif "frame" in made:
        given = pd.DataFrame(rows, dtype=object if "objects" in made else None).rename(columns=str)
        X = pd.DataFrame(X).rename(columns=str)
    elif made == "Dataset":
        given = _Items(rows)
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        encoding = dpv.Utility(X, y).encoding("logistic")
        parties = as_parties(given) if made == "Dataset" else dpv.Parties(given, np.arange(6) % 2)
        encoded = parties.encode(encoding, torch.float32, torch.device("cpu"))
    counted = encoded.weights[:6] > 0
    assert counted[1:].all() or (made in ("array", "frame") and isinstance(odd, complex))  # all are
    expected = np.array(plain, dtype=np.float32)[1:]
    np.testing.assert_array_equal(encoded.x[1:6][counted[1:]], expected[counted[1:]])


class _Items(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place], place % 2


def test_a_long_double_is_no_more_exact_than_a_double() -> None:
    assert identity(LONG_DOUBLE(2) ** 53 + 1) is None
    assert identity(LONG_DOUBLE(7)) == "7"


def test_a_giant_line_of_a_text_file_is_a_record_with_an_unreadable_cell(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("who,x\n" + f"{GIANT},1\n" + f"{STACK},2\nP1,3\n")
    (block,) = read_private(path, ["who", "x"])
    assert block.columns["who"].identities().tolist() == [None, None, "P1"]
    assert block.columns["x"].numbers().tolist() == [1, 2, 3]
    assert not block.faults
    with open_private(path) as file:
        assert file.count() == 3
