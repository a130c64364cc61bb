"""Files of rows: what is read, what is peeked at, and how columns become numbers by the public file alone."""

from __future__ import annotations

import gzip
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zstandard

import dpvalue as dpv
from dpvalue.data import files
from dpvalue.data.binary_files import open_parquet
from dpvalue.data.conversions import as_column
from dpvalue.data.files import read_private, read_public
from dpvalue.data.schema import Schema, infer_task
from dpvalue.progress import silent
from dpvalue.runs.config import make_config, read_config
from dpvalue.runs.execute import execute
from dpvalue.runs.sources import open_run, party_names
from tests.datasets import peek

ROWS = pd.DataFrame({"a": [1.5, -2.0, 3.25], "town": ["x", "y, z", None], "label": [0, 1, 1]})


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, X=frame[["a"]].to_numpy(), label=frame["label"].to_numpy())
    else:
        frame.to_csv(path, index=False, sep={"semi": ";", "tab": "\t", "bar": "|"}.get(path.name.split(".")[0], ","))
    return path


@pytest.mark.parametrize(
    "name", ["comma.csv", "semi.csv", "tab.tsv", "bar.txt", "zipped.csv.gz", "packed.csv.zst", "rows.parquet"]
)
def test_every_format_is_read_and_peeked_at(name: str, tmp_path: Path) -> None:
    path = write(ROWS, tmp_path / name)
    (block,) = read_private(path, ["a", "town", "label"])
    for found in (read_public(path), block.columns):
        assert found.columns == ("a", "town", "label")
        np.testing.assert_array_equal(found["a"].numbers(), ROWS["a"])
        assert found["town"].texts().tolist() == ["x", "y, z", None]
        assert found["label"].texts().tolist() == ["0", "1", "1"]
    assert peek(path).columns == ("a", "town", "label")
    assert peek(path).rows == 3
    assert [one.columns.columns for one in read_private(path, ["label"])] == [("label",)]


def test_npz_arrays_become_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    np.savez(path, X=np.arange(6.0).reshape(3, 2), label=np.array([0, 1, 0]))
    assert peek(path).columns == ("X0", "X1", "label")
    assert read_public(path)["X1"].numbers().tolist() == [1.0, 3.0, 5.0]


def test_quoted_line_breaks_and_a_byte_order_mark(tmp_path: Path) -> None:
    """A public file may have them; of a private one every line is a record, blank ones as well."""
    path = tmp_path / "rows.csv"
    path.write_text('\ufefftext,label\n"two\nlines",1\n\n"one",0\n', encoding="utf-8")
    assert read_public(path)["text"].texts().tolist() == ["two\nlines", "one"]
    assert peek(path).columns == ("text", "label")
    (block,) = read_private(path, ["text", "label"])
    assert peek(path).rows == len(block.columns) == 4
    assert sorted(block.faults) == [0, 2]
    assert block.columns["text"].texts().tolist() == [None, 'lines"', None, "one"]


def test_a_peek_reads_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(ROWS, tmp_path / "rows.csv")
    monkeypatch.setattr(files, "_text_block", lambda *given: pytest.fail("cells were read"))
    assert peek(path).rows == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"a,b\n", "has a header and no rows"),
        (b"a,b,a\n1,2,3\n", "has several columns of the same name: columns 1 and 3"),
        (b"a,,c\n1,2,3\n", "has a column without a name"),
        (b"a,\xff\xfe\n1,2\n", "is not a text file in UTF-8"),
        (b'a,"b\n1,2\n', "is not a t"),
    ],
)
def test_bad_csv_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(content)
    for reader in (read_public, peek):
        with pytest.raises(dpv.DpvalueError, match=message) as caught:
            reader(path)
        assert "\n" not in str(caught.value)


def test_a_public_file_must_be_a_table(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for content, message in (
        (b"a,b\n1,\xff\xfe\n", "is not a text file in UTF-8"),
        (b"a,b\n1,2\n1,2,3,4\n", "is not a table: row 2 has 4 cells, the header 2"),
        (b"a,b\n1\n", "is not a table: row 1 has 1 cells, the header 2"),
        (b'a,b\n1,"2\n', "is not a table: unexpected end of data"),
    ):
        path.write_bytes(content)
        with pytest.raises(dpv.DpvalueError, match=message):
            read_public(path)
        assert peek(path).rows == 1 + (b"4" in content)


def test_other_bad_files(tmp_path: Path) -> None:
    for name in ("rows.parquet", "rows.npz", "rows.csv.gz", "rows.csv.zst"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 nonsense")
        with pytest.raises(dpv.DpvalueError, match="is not a"):
            peek(tmp_path / name)
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 5000)
    (tmp_path / "cut.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(dpv.DpvalueError, match="is not a whole gzip file"):
        peek(tmp_path / "cut.csv.gz")
    packed = zstandard.compress(b"a,b\n" + b"".join(b"%d,2\n" % row for row in range(90_000)))
    for cut in (len(packed) - 1, len(packed) // 2):
        (tmp_path / "cut.csv.zst").write_bytes(packed[:cut])
        with pytest.raises(dpv.DpvalueError, match="is not a whole zstd file"):
            peek(tmp_path / "cut.csv.zst")
    (tmp_path / "cut.csv.zst").write_bytes(packed + zstandard.compress(b"7,7\n"))  # two frames
    assert peek(tmp_path / "cut.csv.zst").rows == 90_001
    np.savez(tmp_path / "objects.npz", X=np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(dpv.DpvalueError, match="is not an NPZ file of plain arrays"):
        peek(tmp_path / "objects.npz")
    with pytest.raises(dpv.DpvalueError, match="there is no file"):
        peek(tmp_path / "missing.csv")
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    header = (
        b"\x93NUMPY\x01\x00v\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117)
        + b"\n"
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("X.npy", header + bytes(80))
    for name in ("array.npz", "huge.npz"):
        with pytest.raises(dpv.DpvalueError, match="is not an NPZ file of plain arrays"):
            peek(tmp_path / name)


def test_the_schema_is_that_of_the_public_file() -> None:
    public = pd.DataFrame(
        {"n": [0.0, 2.0, np.nan, 4.0], "b": [True, False, True, True], "c": ["u", " v ", None, "u"], "k": [7, 7, 7, 7]}
    )
    schema = Schema().fit(public)
    found = schema.transform(public)
    filled = np.array([0.0, 2.0, 2.0, 4.0])
    np.testing.assert_allclose(found[:, 0], (filled - filled.mean()) / filled.std())
    np.testing.assert_array_equal(found[:, 2:4], [[1, 0], [0, 1], [0, 0], [1, 0]])
    np.testing.assert_array_equal(found[:, 4], 0.0)  # a constant column says nothing
    other = pd.DataFrame(
        {"n": ["oops", 6.0, None], "b": [None, False, "true"], "c": ["u", "v", "never seen"], "k": [7, 8, 9]}
    )
    private = schema.transform(other)
    assert np.isnan(private[0]).all()  # a word among numbers: such a row counts for nothing
    np.testing.assert_allclose(private[2, 0], found[2, 0])  # a missing number
    np.testing.assert_array_equal(private[1:, 2:4], [[0, 1], [0, 0]])
    again = Schema.from_json(schema.to_json())
    np.testing.assert_array_equal(again.transform(other), private)
    assert str(schema) == "3 numeric and 1 categorical columns"


def test_numbers_may_be_taken_as_they_are() -> None:
    """In Python and from files: a missing number is the public median, and texts are refused."""
    public = pd.DataFrame({"n": [0.0, 2.0, np.nan, 7.0], "k": [7, 7, 7, 8]})
    found = Schema(scaled=False).fit(public).transform(public)
    np.testing.assert_array_equal(found, [[0, 7], [2, 7], [2, 7], [7, 8]])
    assert np.isnan(Schema(scaled=False).fit(public).transform(pd.DataFrame({"n": ["oops"], "k": [1]}))).all()
    labels = np.array([0, 1, 0, 1])
    encoding = dpv.Utility(public, labels).encoding("logistic", "numbers")
    np.testing.assert_array_equal(encoding.features(public, "rows"), found)
    with pytest.raises(
        dpv.DpvalueError, match="the column 't' of the public file does not hold numbers: preprocess 'n"
    ):
        dpv.Utility(public.assign(t=list("abab")), labels).encoding("logistic", "numbers")
    with pytest.raises(dpv.DpvalueError, match="preprocess='numbers' is for frames"):
        dpv.Utility(np.zeros((4, 2)), labels).encoding("logistic", "numbers")


def test_what_a_schema_cannot_take() -> None:
    names = pd.DataFrame({"name": [f"person {i}" for i in range(60)]})
    with pytest.raises(dpv.DpvalueError, match=r"column 'name' holds 60 different texts.*--drop name"):
        Schema().fit(names)
    with pytest.raises(dpv.DpvalueError, match="column 'n' of the public file holds infinite values"):
        Schema().fit(pd.DataFrame({"n": [1.0, np.inf]}))
    schema = Schema().fit(pd.DataFrame({"n": [1.0, 2.0]}))
    assert np.isnan(schema.transform(pd.DataFrame({"n": [1.0, -np.inf, 1e308]}))).ravel().tolist() == [
        False,
        True,
        False,
    ]
    with pytest.raises(dpv.DpvalueError, match="no column but the target"):
        Schema().fit(pd.DataFrame(index=[0, 1]))


@pytest.mark.parametrize(
    ("target", "task"),
    [
        (pd.Series(["a", "b"]), "classification"),
        (pd.Series([True, False]), "classification"),
        (pd.Series([0, 1, 2]), "classification"),
        (pd.Series([0.0, 1.0, np.nan]), "classification"),
        (pd.Series([0.5, 1.0]), "regression"),
        (pd.Series(range(21)), "regression"),
    ],
)
def test_the_task_is_inferred(target: Any, task: str) -> None:
    assert infer_task(as_column(target)) == task


def test_options_survive_toml(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "train": ["a.csv", "b \"quoted\".csv", "\U0001f600\\u\x7f\n.csv"], "test": "päth.csv", "target": "label",
        "epsilon": 2, "drop": ["x"], "semivalue": ["beta(4,1)", "loo"], "unit": "record", "seed": 7,
        "schedule": "lagged", "model": "linear", "metric": "r2", "preprocess": "numbers",
    }  # fmt: skip
    config = make_config(given)
    (tmp_path / "run.toml").write_text(config.to_toml(), encoding="utf-8")
    assert make_config(read_config(tmp_path / "run.toml")) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": "1"}, "epsilon must be a number, got '1'"),
        ({"epsilon": -1.0}, "epsilon must be positive, got -1.0"),
        ({"seed": 1.5}, "seed must be a whole number below 2.63, got 1.5"),
        ({"semivalue": "loo"}, "semivalue must be a list of texts"),
        ({"private": "no"}, "private must be true or false"),
        ({"epsilom": 1}, "unknown option 'epsilom'"),
        ({"target": None}, "target must be"),
        ({"unit": "person"}, "person must be given for unit person: the column of persons' ids"),
        ({"task": "sorting"}, "task must be one of"),
        ({"model": "cnn"}, "model must be one of auto, logistic, linear, trees; got 'cnn'"),
        ({"metric": "f1"}, "metric must be one of loss, accuracy, balanced_accuracy, auc, mse, mae, r2; got 'f1'"),
        ({"preprocess": "scaled"}, "preprocess must be one of columns, numbers; got 'scaled'"),
        (
            {"model": "linear", "metric": "auc"},
            "must fit the same task: model linear is for regression, metric auc is for classification",
        ),
        ({"head": "kept"}, "head needs a ledger"),
        ({"ledger": "x", "private": False}, "ledger must not be given without privacy"),
        ({"train": ["a", "b"], "group": "g"}, "group must not be given with several files"),
    ],
)
def test_bad_options(change: dict[str, Any], message: str) -> None:
    given = {"train": ["a.csv"], "test": "b.csv", "target": "label", **change}
    with pytest.raises(dpv.DpvalueError, match=message):
        make_config({name: one for name, one in given.items() if one is not None})
    with pytest.raises(dpv.DpvalueError, match="cannot be read as TOML"):
        read_config(Path("no such file"))


def test_parties_are_named_by_their_files() -> None:
    assert party_names(("x/a.csv", "y/b.csv.gz")) == ["a", "b"]
    assert party_names(("x/a.csv", "y/a.csv")) == ["x/a.csv", "y/a.csv"]


def test_opening_a_job_reads_no_private_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public = pd.DataFrame({"a": np.arange(20.0), "label": np.arange(20) % 2})
    write(public, tmp_path / "test.csv")
    write(public, tmp_path / "train.csv")
    config = make_config(
        {"train": [str(tmp_path / "train.csv")], "test": str(tmp_path / "test.csv"), "target": "label"}
    )
    original = files._text_block
    seen: list[int] = []

    def spy(lines: list[bytes], *given: Any) -> Any:
        seen.append(len(lines))
        return original(lines, *given)

    monkeypatch.setattr(files, "_text_block", spy)
    job = open_run(config)
    plan = job.plan()
    assert plan.sizes.parties == 20
    assert seen == []
    job.read()
    assert seen == [20]


WATCHED: dict[str, int] = {}


@pytest.fixture(scope="module")
def opens() -> dict[str, int]:
    """How often each watched file was opened; a hook cannot be taken away, so that it stays."""

    def count(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str | Path) and str(given[0]) in WATCHED:
            WATCHED[str(given[0])] += 1

    sys.addaudithook(count)
    return WATCHED


FEW: dict[str, Any] = {}
MANY = {"group": "site", "truth": "wrong", "person": "who", "unit": "person"}


@pytest.mark.parametrize(
    ("ending", "options"),
    [
        pytest.param("csv", FEW, marks=pytest.mark.slow),  # a whole run, as with many options
        *((ending, FEW) for ending in ("csv.gz", "npz", "parquet")),
        *((ending, MANY) for ending in ("csv", "csv.gz", "npz", "parquet")),
    ],
)
def test_private_files_are_opened_once_for_what_is_public_and_once_for_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: dict[str, int], ending: str, options: dict[str, Any]
) -> None:
    rows = pd.DataFrame({"a": np.arange(24.0), "label": np.arange(24) % 2, "site": np.arange(24) // 6})
    rows = rows.assign(wrong=(rows["site"] == 2).astype(int), who=np.arange(24) // 2)
    rows[["a", "label"]].to_csv(tmp_path / "test.csv", index=False)
    path = tmp_path / f"train.{ending}"
    if ending == "npz":
        np.savez(path, **{str(name): rows[name].to_numpy() for name in rows.columns})  # type: ignore[arg-type]
    else:
        write(rows, path)
    asked: list[list[str]] = []
    original, original_parquet = files._text_block, open_parquet

    def spy(lines: list[bytes], layout: Any, names: list[str], group: str | None) -> Any:
        asked.append(list(names))
        return original(lines, layout, names, group)

    def count(parquet: Path) -> Any:  # pyarrow opens files itself, unseen by hooks
        opens[str(parquet)] += 1
        return original_parquet(parquet)

    monkeypatch.setattr(files, "_text_block", spy)
    monkeypatch.setattr(files, "open_parquet", count)
    opens[str(path)] = 0
    config = make_config({"train": [str(path)], "test": str(tmp_path / "test.csv"), "target": "label", **options})
    job = open_run(config)
    assert opens[str(path)] == 1
    assert asked == ([["site", "who"]] if options and "csv" in ending else [])
    if ending == "csv":  # all of a run
        done = execute(job, job.plan(), tmp_path / "results", silent)
        assert (done.record.detection is not None) == bool(options)
    else:
        assert (job.read()[1] is not None) == bool(options)
    assert opens[str(path)] == 2


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_frames_with_texts_from_python(kind: str) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"a": generator.normal(0, 1, 60), "town": generator.choice(["x", "y"], 60)})
    frame["label"] = np.where(frame["a"] + (frame["town"] == "x") > 0.5, "yes", "no")
    frame.loc[3, "a"] = np.nan
    train, test = frame.iloc[:40].reset_index(drop=True), frame.iloc[40:].reset_index(drop=True)
    data: tuple[Any, Any] = (train, test)
    if kind == "polars":
        polars = pytest.importorskip("polars")
        data = polars.from_pandas(train), polars.from_pandas(test)
    settings: dict[str, Any] = {
        "target": "label", "preprocess": "columns", "noise": "fast", "progress": False, "clip": 1.0, "projection": None,
    }  # fmt: skip
    result = dpv.value(*data, **settings)
    assert result.table.n == 40
    assert np.isfinite(result.values["shapley"]).all()
    with pytest.raises(
        dpv.DpvalueError, match="preprocess must be columns, numbers, a scikit-learn transformer or None"
    ):
        dpv.value(*data, **{**settings, "preprocess": "rows"})
    with pytest.raises(dpv.DpvalueError, match="preprocess='columns' is for frames"):
        dpv.value((np.zeros((4, 1)), [0, 1, 0, 1]), (np.zeros((4, 1)), [0, 1, 0, 1]), preprocess="columns")


def job_of(folder: Path, **options: Any) -> Any:
    return open_run(make_config({"test": str(folder / "public.csv"), "target": "label", **options}))


def test_one_blank_cell_leaves_everybody_else_alone(tmp_path: Path) -> None:
    """Grades are whole numbers in the private file and categories in the public one: "2" must not become "2.0"."""
    generator = np.random.default_rng(0)
    public = pd.DataFrame({"grade": ["1", "2", "3", "none"] * 10, "label": [0, 1] * 20})
    public.to_csv(tmp_path / "public.csv", index=False)
    private = pd.DataFrame({"grade": generator.integers(1, 4, 200), "label": generator.integers(2, size=200)})
    encoded = []
    for blank in (False, True):
        cells = private.astype(object)
        if blank:
            cells.loc[7, "grade"] = None
        cells.to_csv(tmp_path / "train.csv", index=False)
        encoded.append(job_of(tmp_path, train=[str(tmp_path / "train.csv")]).read()[0].X.numbers)
    moved = (encoded[0] != encoded[1]).any(axis=1)
    assert np.flatnonzero(moved).tolist() == [7]
    assert encoded[0].sum() == 200  # and the grades are categories, each of them known


def test_patients_are_the_same_persons_in_every_file(tmp_path: Path) -> None:
    """One file holds a text among its ids: the others' "007", 7 and 7.0 are the same person all the same."""
    pd.DataFrame({"a": range(20), "label": [0, 1] * 10}).to_csv(tmp_path / "public.csv", index=False)
    frame = pd.DataFrame({"a": range(29), "label": [0, 1] * 14 + [0]})
    frame.assign(who=[f"{number:03d}" for number in range(29)]).to_csv(tmp_path / "padded.csv", index=False)
    frame.assign(who=[float(number) for number in range(29)]).to_csv(tmp_path / "floats.csv", index=False)
    frame.assign(who=range(29)).to_parquet(tmp_path / "whole.parquet")
    frame.assign(who=[str(number) for number in range(28)] + ["walk-in"]).to_csv(tmp_path / "texts.csv", index=False)
    files = [str(tmp_path / name) for name in ("padded.csv", "floats.csv", "whole.parquet", "texts.csv")]
    parties = job_of(tmp_path, train=files, person="who", unit="person", parties_per_person=4).read()[0]
    person = parties.person_of_row.reshape(4, 29)
    assert (person[0] == person[1]).all()
    assert (person[0] == person[2]).all()
    assert (person[0][:28] == person[3][:28]).all()
    assert person[3][28] not in person[0]
    assert parties.units("person").tolist() == [29, 29, 29, 29]
