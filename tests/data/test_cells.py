"""A cell is parsed alone: one canonical form whatever the format, and nothing that raises or looks at a neighbour."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import uuid
from collections.abc import Callable
from math import inf, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pytest

from dpvalue.data.cells import identity, index_of, is_missing, number, text
from dpvalue.data.columns import Column
from dpvalue.data.conversions import as_column, as_columns
from dpvalue.data.files import read_private
from dpvalue.data.lines import LONGEST_LINE, Layout, blocks, count_lines
from tests.datasets import peek

DAY = datetime.date(2024, 5, 1)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ((2, 2.0, "2", "2.0", " 2 ", "02", "+2", "2.", np.int8(2), np.float32(2), decimal.Decimal("2.00"), b"2"), "2"),
        ((0, -0.0, "-0", "0.000", "00"), "0"),
        ((-7, "-007", "-7.0", -7.0), "-7"),
        ((0.5, "0.50", ".5", "5e-1", "+0.5"), "0.5"),
        ((1000, "1e3", "1E+3", 1e3), "1000"),
        ((True, "true", "TRUE", " True", np.bool_(True)), "true"),
        ((None, nan, "", "  ", "NA", "nan", "NULL", "?", pd.NA, pd.NaT, np.datetime64("NaT")), None),
        ((decimal.Decimal("NaN"), decimal.Decimal("sNaN"), b""), None),
        ((DAY, "2024-05-01", "2024-05-01 00:00:00", datetime.datetime(2024, 5, 1), pd.Timestamp(DAY),
          np.datetime64("2024-05-01T00:00:00.000000000")), "2024-05-01"),
        (("2024-05-01 10:30", datetime.datetime(2024, 5, 1, 10, 30), "2024-05-01T10:30:00.000"), "2024-05-01T10:30:00"),
        (("Zu\u0308rich", "Z\u00fcrich", " Z\u00fcrich "), "Z\u00fcrich"),
        (("1e400",), "1e400"),
        (("1_000",), "1_000"),
        (("\u0661\u0662",), "\u0661\u0662"),  # digits, but not ASCII's
        ((2**70, str(2**70), f"000{2**70}"), str(2**70)),
        ((uuid.UUID(int=7),), "00000000-0000-0000-0000-000000000007"),
        (([1], {}, object(), 10**5000, 1j), None),
    ],
)  # fmt: skip
def test_the_canonical_text(cells: tuple[Any, ...], expected: str | None) -> None:
    assert [text(cell) for cell in cells] == [expected] * len(cells)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ((1, 1.0, "1", True, "true", "1.000", np.uint8(1)), 1.0),
        (("-2.5e-3", -0.0025, decimal.Decimal("-0.0025")), -0.0025),
        (("maybe", "1e400", inf, -inf, "inf", "-Infinity", "1,5", "1_0", "0x10", DAY, [1], 10**400, b"\xff"), inf),
    ],
)
def test_a_cell_as_a_number(cells: tuple[Any, ...], expected: float) -> None:
    assert [number(cell) for cell in cells] == [expected] * len(cells)


def test_a_missing_number_is_no_bad_one() -> None:
    assert all(
        isnan(number(cell)) and is_missing(cell) for cell in (None, "", "NaN", "?", nan, pd.NA, np.float32("nan"))
    )
    assert not any(is_missing(cell) for cell in ("maybe", 0, False, inf, [1]))


def test_identities() -> None:
    assert {identity(cell) for cell in ("007", 7, 7.0, "7", "7.0", np.int64(7), b"7")} == {"7"}
    exact = 2**53 + 1
    assert identity(exact) == identity(str(exact)) == identity(np.int64(exact)) == str(exact)
    # Stored as floats, these may stand for other whole numbers: they are nobody.
    for cell in (float(2**53), 1e300, "9007199254740993.0", "9.1e+15", -float(2**60), np.float64(2**60)):
        assert identity(cell) is None, cell
    assert identity(float(2**53 - 1)) == str(2**53 - 1)
    assert identity("A-7") == "A-7"


def test_true_and_one_are_what_the_public_column_says() -> None:
    assert index_of((False, True))["1"] == index_of(("true", "false"))["false"] == 1
    assert index_of((0, 1))["true"] == 1
    assert "true" not in index_of(("no", "yes"))
    assert "" not in index_of(("",))


STORED: dict[str, Callable[[list[Any]], Column]] = {
    "list": as_column,
    "object array": lambda cells: as_column(np.array([*cells, None], dtype=object)[:-1]),
    "pandas": lambda cells: as_column(pd.Series(cells)),
    "pandas objects": lambda cells: as_column(pd.Series(cells, dtype=object)),
    "pandas categories": lambda cells: as_column(pd.Series(cells).astype("category")),
    "polars": lambda cells: as_column(polars.Series(cells, strict=False)),
    "frame": lambda cells: as_columns(pd.DataFrame({"a": cells}))["a"],
}


@pytest.mark.parametrize("how", STORED)
@pytest.mark.parametrize("others", [[1, 2, 7], [1.5, 2.0, 7.0], ["1", "2", "7"], [True, False, True]])
@pytest.mark.parametrize("odd", [None, nan, 3, 2.5, True, "maybe", "", "2", 10**18, 2**70])
def test_no_cell_changes_what_others_are(how: str, others: list[Any], odd: Any) -> None:
    """Types are inferred by pandas and polars over a whole column; what its cells say does not change with them."""
    if how == "polars" and odd == 2**70 and others[0] != 1:
        pytest.skip("polars itself makes something else of whole numbers beyond 64 bits")
    try:
        alone, beside = STORED[how](others), STORED[how]([*others, odd])
    except (TypeError, OverflowError):
        pytest.skip("no such column can be made")
    expected = [text(cell) for cell in others]
    if others[0] is True and isinstance(odd, float | int) and how in ("pandas", "polars", "frame", "pandas categories"):
        expected = ["1", "0", "1"] if beside.texts()[0] == "1" else expected  # the frame itself holds 1.0 and no True
        assert [index_of((False, True))[one] for one in beside.texts()[:3]] == [1, 0, 1]
    assert alone.texts().tolist() == [text(cell) for cell in others]
    assert beside.texts()[:3].tolist() == expected
    np.testing.assert_array_equal(beside.numbers()[:3], [number(cell) for cell in others])
    assert beside.identities()[:3].tolist() == expected


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_files_hold_the_same_cells(kind: str, tmp_path: Path) -> None:
    """The demonstration of the leak: one blank cell turned everybody's "2" into "2.0"."""
    for odd in (None, 3, 2.5, "maybe"):
        frame = pd.DataFrame({"grade": [1, 2, 7, odd], "flag": [True, False, True, odd]}, dtype=object)
        path = tmp_path / f"rows.{kind}"
        if kind == "parquet":
            frame = (
                frame.astype(str)
                if isinstance(odd, str)
                else frame.astype({"grade": "Float64" if odd == 2.5 else "Int64"})
            )
            frame.assign(flag=frame["flag"].astype(str)).to_parquet(path)
        else:
            frame.to_csv(path, index=False)
        (block,) = read_private(path, ["grade", "flag"])
        assert block.columns["grade"].texts()[:3].tolist() == ["1", "2", "7"], odd
        assert block.columns["flag"].texts()[:3].tolist() == ["true", "false", "true"], odd


def test_parquet_cells_that_python_cannot_hold(tmp_path: Path) -> None:
    """A year beyond 9999 and bytes that are not UTF-8 stop nobody else's cells."""
    import pyarrow as pa
    from pyarrow import parquet

    far = pa.array([0, 2**58 // 10**6 * 10**3], type=pa.int64()).cast(pa.timestamp("s"))
    raw = pa.array([b"north", b"\xff\xfe"], type=pa.binary())
    words = pa.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    parquet.write_table(
        pa.table({"day": far, "word": words, "whole": pa.array([2**60 + 1, None])}), tmp_path / "x.parquet"
    )
    (block,) = read_private(tmp_path / "x.parquet", ["day", "word", "whole"])
    assert block.columns["day"].texts()[0] == "1970-01-01"
    assert block.columns["word"].texts().tolist() == ["north", "\ufffd\ufffd"]
    assert block.columns["whole"].identities().tolist() == [str(2**60 + 1), None]


LAYOUT = Layout(("a", "b", "c"), ",")


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (b"1,2,3", ["1", "2", "3"]),
        (b"1,2,3\r", ["1", "2", "3"]),
        (b'"x, y", "2",3', ["x, y", "2", "3"]),
        (b'1,"say ""hi""",3', ["1", 'say "hi"', "3"]),
        (b'1,5" pipe,3', ["1", '5" pipe', "3"]),
        (b'1,"open,3', "quotes that do not close"),
        (b'1,"a"b,3', "quotes that do not close, or text beside them"),
        (b"1,2", "2 cells, not 3 as in the header"),
        (b"1,2,3,4", "4 cells, not 3 as in the header"),
        (b"", "a blank line"),
        (b" \r", "a blank line"),
        (b"1,\0,3", "holds a NUL byte"),
        (b"1,\xff,3", "not UTF-8"),
        (b"1," + b"9" * LONGEST_LINE + b",3", "longer than a mebibyte"),
        (b'1,"' + b"9" * 200_000 + b'",3', ["1", "9" * 200_000, "3"]),  # longer than a cell of the csv module
        (b'1,"a\rb",3', ["1", "a b", "3"]),
    ],
)
def test_a_line_is_a_record_or_a_bad_one(line: bytes, cells: list[str] | str) -> None:
    found = LAYOUT.cells(line)
    if isinstance(cells, list):
        assert found == cells
    else:
        assert isinstance(found, str)
        assert found.startswith(cells)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10**6])
def test_blocks_do_not_change_lines(size: int) -> None:
    lines = [b"1,2,3", b"", b'"open', b"x" * 50, b"\xff\0", b"last"]
    for end in (b"", b"\n"):
        content = b"\n".join(lines) + end
        assert [line for block in blocks(io.BytesIO(content), size) for line in block] == lines
        assert count_lines(io.BytesIO(content)) == 6


def test_a_line_without_end_takes_no_memory_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a,b\n1,2\n")
        for _ in range(40):
            file.write(b"9" * 2**20)
        file.write(b"\n3,4\n")
    (*_, last) = read_private(path, ["a"])
    assert peek(path).rows == 3
    assert last.columns["a"].texts()[-1] == "3"
    found = [len(line) for block in blocks(io.BytesIO(b"9" * 2**24), 2**20) for line in block]
    assert found == [2 * 2**12 + 5]


def test_the_group_of_a_bad_line_is_what_stands_at_its_end() -> None:
    layout = Layout(("site", "age", "ward"), ",")
    for line, first, last in (
        (b'A,"open,w', "A", "w"),
        (b"A,1,2,3,w\r", "A", "w"),
        (b'"A, 1","B","w, 2"', "A, 1", "w, 2"),  # what stands between must not be taken for either
        (b'"A, 1",,"B,"",\xff\0,"w, 2"', "A, 1", "w, 2"),
        (b'"A ""x""",5,"w ""y"""', 'A "x"', 'w "y"'),
        (b'12",5,13"', '12"', '13"'),
        (b"", "", ""),
    ):
        assert layout.guesses(line, "site") == (first,)
        assert layout.guesses(line, "ward") == (last,)
    assert Layout(("a", "site", "b", "c"), ",").guesses(b"1,2,A,3,4", "site") == ("2", "A")
    assert Layout(("a", "b", "site", "c"), ",").guesses(b"1,2,3,A,4", "site") == ("A", "3")
    assert Layout(("a", "site", "b"), ",").guesses(b"", "site") == ()
