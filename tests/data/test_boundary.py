"""Ways in which one row once reached another, or stopped everybody, and no longer does."""

from __future__ import annotations

import io
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import dpvalue as dpv
from dpvalue.data.cells import identity, number, party_name, text
from dpvalue.data.conversions import as_column, as_columns, of_array
from dpvalue.data.files import read_private, read_public
from dpvalue.data.lines import Layout, blocks
from dpvalue.data.parties import as_parties
from tests.datasets import classification, peek

TRAIN, TEST = classification(40, classes=2, features=3)


class Items(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: list[Any], labels: list[Any]) -> None:
        self.rows, self.labels = rows, labels

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Any:
        return self.rows[place], self.labels[place]


def encoded(raw: Any, public: Any, preprocess: Any, positions_public: bool = True) -> Any:
    return dpv.Utility(public, TEST[1]).encoding("logistic", preprocess).features(raw, "rows", positions_public)


# The cells of a bad line's party are read as those of a good line are.
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["A", 'the "old" site', "a, b; c", '12"', '"', "x ", "", "007", "NA"])
@pytest.mark.parametrize("spoil", ["{0}9", '{0}"open', "{0}\0", "{0}{0}{0}", '{0}"a"b', "{0}s2{0}"])
def test_a_bad_line_has_the_party_of_a_good_one(separator: str, name: str, spoil: str) -> None:
    import csv

    out = io.StringIO()
    csv.writer(out, delimiter=separator, lineterminator="").writerow([name])
    cell = out.getvalue() if name else ""
    first, last = Layout(("site", "a", "b"), separator), Layout(("a", "b", "site"), separator)
    good = first.cells(f"{cell}{separator}1{separator}2".encode())
    assert isinstance(good, list)
    expected = party_name(good[0])
    middle = spoil.format(separator)
    for layout, line in ((first, f"{cell}{separator}1{middle}"), (last, f"1{middle}{separator}{cell}")):
        if isinstance(layout.cells(line.encode()), str):
            (guess,) = layout.guesses(line.encode(), "site")
            assert party_name(guess) == expected, line


def test_an_overlong_line_is_cut_in_the_same_place_wherever_blocks_end() -> None:
    long = b"s1" + b"a" * 3_000_000 + b"," + b"b" * 3_000_000 + b",s2"
    found = {
        line
        for before in (10, 5000, 2**20)
        for size in (2**16, 2**20, 2**23)
        for block in blocks(io.BytesIO(b"x" * before + b"\n" + long + b"\nlast\n"), size)
        for line in block
        if line.startswith(b"s1")
    }
    assert len(found) == 1
    assert Layout(("a", "b", "site"), ",").guesses(found.pop(), "site") == ("s2",)


# Rows and the transformers of users.
KINDS: dict[str, Any] = {
    "array": lambda X: X,
    "float32": lambda X: X.astype(np.float32),
    "tensor": torch.tensor,
    "list": lambda X: X.tolist(),
    "frame": lambda X: pd.DataFrame(X, columns=list("abc")),
    "sparse": sparse.coo_matrix,
}


@pytest.mark.parametrize("positions_public", [True, False])
@pytest.mark.parametrize("private", KINDS)
@pytest.mark.parametrize("public", KINDS)
def test_transformers_get_rows_in_the_form_of_the_public_set(public: str, private: str, positions_public: bool) -> None:
    """Whatever private rows are handed over as; one that cannot be read moves no bit of another."""
    scaler = StandardScaler(with_mean=False)
    expected = scaler.fit(TEST[0]).transform(TRAIN[0])
    before = encoded(KINDS[private](TRAIN[0]), KINDS[public](TEST[0]), scaler, positions_public)
    np.testing.assert_allclose(before, expected, rtol=1e-5)
    spoilt = TRAIN[0].copy()
    spoilt[7, 1] = np.inf
    after = encoded(KINDS[private](spoilt), KINDS[public](TEST[0]), scaler, positions_public)
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [7]
    assert not np.isfinite(after[7]).all()


@pytest.mark.parametrize("first", [[1.0, 2.0], "word", None, [1.0, 2.0, "x"], [[1.0, 2.0, 3.0]] * 2, torch.zeros(2, 2)])
@pytest.mark.parametrize("public", ["array", "list", "frame"])
def test_no_private_row_decides_the_width_of_others(first: Any, public: str) -> None:
    rows = [first, *TRAIN[0][1:].tolist()]
    for transformer in (StandardScaler(), FunctionTransformer(np.tanh), None):
        if transformer is None and public == "frame":
            continue
        found = encoded(rows, KINDS[public](TEST[0]), transformer)
        assert np.isfinite(found[1:]).all()
        assert np.isnan(found[0]).any()


def test_a_word_among_numbers_is_a_bad_row_whatever_a_transformer_makes_of_it() -> None:
    frame = pd.DataFrame(TRAIN[0], columns=list("abc")).astype(object)
    frame.iloc[3, 0] = "oops"
    infinite = TRAIN[0].copy()
    infinite[3, 0] = np.inf
    for public in (TEST[0], pd.DataFrame(TEST[0], columns=list("abc"))):
        for rows in (frame, infinite, infinite.tolist()):
            found = encoded(rows, public, FunctionTransformer(np.tanh))
            assert np.flatnonzero(np.isnan(found).any(axis=1)).tolist() == [3]


def test_a_row_that_a_transformer_refuses_moves_no_bit_of_another() -> None:
    """Sums of a matrix product depend on shape and place: both stay."""
    generator = np.random.default_rng(12)
    public, rows = generator.normal(size=(30, 3)), generator.normal(size=(400, 3))
    spoilt = rows.copy()
    spoilt[7, 0] = np.nan
    before, after = (encoded(one, public, PCA(1)) for one in (rows, spoilt))
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [7]


class Choosy(FunctionTransformer):  # type: ignore[misc]
    """Takes any row, but not two that begin with large numbers."""

    def transform(self, X: Any) -> Any:
        if (np.asarray(X)[:, 0] > 1e6).sum() > 1:
            raise ValueError
        return X


def test_rows_that_are_not_taken_together_are_taken_alone() -> None:
    rows = TRAIN[0].copy()
    rows[[3, 9], 0] = 1e7
    np.testing.assert_array_equal(encoded(rows, TEST[0], Choosy()), rows)


def test_texts_reach_transformers_as_they_are() -> None:
    public = pd.DataFrame({"code": ["01", "02", "None"] * 10, "size": np.arange(30.0)})
    known = OneHotEncoder(categories=[["01", "02", "None"]], handle_unknown="ignore")
    transform = make_column_transformer((known, ["code"]), (StandardScaler(), ["size"]))
    found = encoded(public[:6], public, transform)
    np.testing.assert_array_equal(found[:3, :3], np.eye(3))


@pytest.mark.parametrize("preprocess", [None, StandardScaler()])
def test_items_of_a_dataset_are_read_one_by_one(preprocess: Any) -> None:
    rows: list[Any] = [torch.tensor(row, dtype=torch.float32) for row in TRAIN[0]]
    labels: list[Any] = [torch.tensor(label) for label in TRAIN[1]]
    encoding = dpv.Utility(*TEST).encoding("logistic", preprocess)

    def numbers(items: list[Any], marks: list[Any]) -> tuple[Any, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parties = as_parties(Items(items, marks))
            return encoding.features(parties.X, "rows"), encoding.labels(parties.y, "labels")

    before, known = numbers(rows, labels)
    assert np.isfinite(before).all()
    zeros = torch.zeros(3)
    kinds = [zeros.to(kind) for kind in (torch.float64, torch.bfloat16, torch.complex64)]
    odds: list[Any] = [*kinds, torch.zeros(2), zeros.clone().requires_grad_(), zeros.to_sparse(), zeros.to("meta")]
    for odd in (*odds, None, "x", {"a": 1}, [1.0, 2.0, 3.0]):
        after, same = numbers([*rows[:5], odd, *rows[6:]], labels)
        np.testing.assert_array_equal(np.delete(before, 5, 0), np.delete(after, 5, 0))
        np.testing.assert_array_equal(known, same)
    for odd in (torch.tensor(1.0, requires_grad=True), torch.tensor([1, 0]), None, "x", torch.tensor(1, device="meta")):
        _, moved = numbers(rows, [*labels[:5], odd, *labels[6:]])
        np.testing.assert_array_equal(np.delete(known, 5), np.delete(moved, 5))


def test_shapes_of_a_dataset_stop_nobody() -> None:
    parties = as_parties(Items([torch.zeros(5)] * 3, [0, 1, 0]))
    assert np.isnan(dpv.Utility(*TEST).encoding("logistic").features(parties.X, "rows")).all()


# Typed files and frames.
def test_cells_that_python_cannot_hold_stop_nobody(tmp_path: Path) -> None:
    far = polars.Series([0, 2**31 - 1, None], dtype=polars.Int32).cast(polars.Date)
    assert as_column(far).texts()[0] == "1970-01-01"
    late = polars.Series([0, 2**62, None], dtype=polars.Int64).cast(polars.Datetime("ms"))
    assert as_column(late).texts()[[0, 2]].tolist() == ["1970-01-01", None]
    assert as_column(polars.Series([1, 2], dtype=polars.Int64).cast(polars.Duration("us"))).numbers().tolist() == [1, 2]
    assert as_column(polars.Series([[1], [2]])).texts().tolist() == [None, None]
    letters = np.array(["ab", "cd"])
    letters.view(np.uint32)[2] = 0x7FFFFFFF
    assert of_array(letters).texts().tolist() == ["ab", "\ufffd"]
    assert text("\ud800x") == "\ufffdx"
    raw = pa.array([[b"ok"], [b"\xff"]]).cast(pa.list_(pa.binary()))
    words = pa.ListArray.from_arrays(raw.offsets, pa.StringArray.from_buffers(2, *raw.values.buffers()[1:]))
    days = pa.array([0, 2**58 // 10**6 * 10**3]).cast(pa.timestamp("s"))
    table = pa.table({"nested": words, "day": days, "coded": days.dictionary_encode(), "a": [1, 2]})
    parquet.write_table(table, tmp_path / "x.parquet")
    (block,) = read_private(tmp_path / "x.parquet", ["nested", "day", "coded", "a"])
    assert block.columns["coded"].texts()[0] == block.columns["day"].texts()[0] == "1970-01-01"
    assert as_columns(table)["a"].texts().tolist() == ["1", "2"]
    arrow = pd.Series(pd.array(table["day"], dtype=pd.ArrowDtype(pa.timestamp("s"))))
    assert as_column(arrow).texts()[0] == "1970-01-01"


def test_a_parquet_index_is_no_column(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2]}, index=pd.Index(["p", "q"], name="patient"))
    frame.to_parquet(tmp_path / "x.parquet")
    assert peek(tmp_path / "x.parquet").columns == read_public(tmp_path / "x.parquet").columns == ("a",)


@pytest.mark.parametrize("cell", ["0" * 60_000 + "x", "1" * 60_000 + "x", "9" * 60_000, "1." + "0" * 60_000 + "e"])
def test_no_cell_takes_longer_than_its_length(cell: str) -> None:
    """Expressions that go back and forth over a megabyte would take hours: these end at once."""
    assert number(cell) == float("inf")
    assert text(cell) == identity(cell) == party_name(cell) == cell


def test_ids_that_look_like_numbers_are_kept_apart() -> None:
    ids = ["12345e67", "1.10", "1.1", "1e3", "1000", "TRUE", "true", "0x1F"]
    assert len({identity(one) for one in ids}) == len(ids)
    assert identity(np.float32(16777217)) is None
    assert identity(np.float32(16777215)) == "16777215"
    assert as_column(np.array([2.0**24, 7], dtype=np.float32)).identities().tolist() == [None, "7"]
    assert dpv.Parties(np.zeros((4, 1)), [0] * 4, groups=["NA", "1.10", "1.1", ""]).names == ("1.1", "1.10", "NA")


def test_one_moment_is_one_text() -> None:
    stamps = (
        "2024-05-01T10:00:00Z",
        "2024-05-01 10:00:00+00:00",
        "2024-05-01T12:00+0200",
        pd.Timestamp("2024-05-01 10:00Z"),
    )
    assert {text(stamp) for stamp in stamps} == {"2024-05-01T10:00:00Z"}
    assert text("2024-02-31T10:00+02:00") == "2024-02-31T10:00:00+02:00"


def test_the_first_line_of_a_file_is_quoted_nowhere(tmp_path: Path) -> None:
    (tmp_path / "cr.csv").write_bytes(b"a,b\r174,174\r1,2\r")
    (tmp_path / "none.csv").write_bytes(b"174,174\n1,2\n")
    for name in ("cr.csv", "none.csv"):
        with pytest.raises(dpv.DpvalueError) as caught:
            peek(tmp_path / name)
        assert "174" not in str(caught.value)


def test_archives_that_are_none(tmp_path: Path) -> None:
    good = io.BytesIO()
    np.save(good, np.zeros(3))
    for place, content in enumerate((good.getvalue().replace(b"'<f8'", b"',i8'"), good.getvalue().replace(b"}", b"("))):
        with zipfile.ZipFile(tmp_path / f"{place}.npz", "w") as archive:
            archive.writestr("X.npy", content)
        with pytest.raises(dpv.DpvalueError, match="is not an NPZ file of plain arrays"):
            peek(tmp_path / f"{place}.npz")


def test_what_is_too_large_for_single_precision_is_told_to_the_holder() -> None:
    X, y = TRAIN[0].copy(), TRAIN[1]
    X[4, 1] = 1e39
    assert [problem.row for problem in dpv.Parties(X, y).problems(TEST)] == [4]
    frame = pd.DataFrame(X, columns=list("abc")).assign(label=y)
    public = pd.DataFrame(TEST[0], columns=list("abc")).assign(label=TEST[1])
    parties = as_parties(frame, "label")
    assert [problem.row for problem in parties.problems(public, target="label", preprocess="columns")] == [4]
    assert dpv.Parties(sparse.csr_matrix(TRAIN[0]), y).problems(TEST) == ()


def test_persons_without_any_id_are_refused_in_words() -> None:
    parties = dpv.Parties(*TRAIN, groups=np.arange(40) % 2, persons=[None] * 40)
    with pytest.raises(dpv.DpvalueError, match="persons must hold at least one id"):
        dpv.value(parties, TEST, privacy=dpv.Privacy(unit="person"), progress=False)
