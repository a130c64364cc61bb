"""Files that somebody else wrote: whatever they hold, one clear line or a harmless page, never a traceback."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.data.schema import Schema
from dpvalue.display import one_line, visible
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.progress import silent
from dpvalue.report import report_page
from dpvalue.report.record import LedgerState, Record
from dpvalue.runs import execute
from dpvalue.runs.config import make_config, read_config
from dpvalue.runs.execute import record_of_release, record_of_values
from dpvalue.runs.folder import keep_table, keep_values, open_folder, table_curves, values_frame
from dpvalue.runs.sources import GroundTruth

HOSTILE = "</script></title><script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m\x9b\u202e\nmore"
BAD: dict[str, Any] = {
    "null": None, "text": "text", "minus": -1, "zero": 0, "half": 0.5, "huge": 10**400, "nan": float("nan"),
    "true": True,    "list": [], "object": {}, "lists": [[1, "a"], None], "shape": [10**12, 10**12],
}  # fmt: skip
MOST = ("null", "text", "minus", "huge", "list", "object", "lists")
VALUED = ("values", "curves", "detection")
Path_ = tuple[str | int, ...]


def made_frame(rows: int, seed: int) -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(seed).normal(0, 1, (rows, 2)), columns=["a", "b"])
    return frame.assign(town=["x", "y"] * (rows // 2), label=(frame["a"] > 0).astype(int))


@pytest.fixture(scope="module")
def result() -> dpv.Result:
    train, test = made_frame(6, 0), made_frame(20, 1)
    schema = Schema().fit(test.drop(columns="label"))
    return dpv.value(
        train, test, target="label", groups=list("uvwxyz"), preprocess=schema, privacy=dpv.Privacy(3.0), noise="fast",
        semivalues=("shapley", "loo"), projection=dpv.Projection(1, steps=16), progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sound(result: dpv.Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, and its public file."""
    folder = tmp_path_factory.mktemp("sound")
    made_frame(20, 1).to_csv(folder / "test.csv", index=False)
    test = str(folder / "test.csv")
    config = make_config({"train": ["train.csv"], "test": test, "target": "label", "semivalue": ["shapley", "loo"]})
    record = record_of_release(config, result.table, dpv.plan(6, privacy=dpv.Privacy(3.0)))
    assert record.plan is not None
    planned = replace(record.plan, expected_auc=0.7, efficiency=0.5)
    record = replace(record, plan=planned, ledger=LedgerState(1.0, 2.0, "per party", "1:ab"))
    record = record_of_values(record, result, GroundTruth("wrong", np.arange(6) < 2), table_curves(result, silent))
    keep_table(folder / "results", record, result.table)
    keep_values(folder / "results", record, values_frame(result, silent))
    return folder / "results"


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "received"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, result: dpv.Result) -> None:
    """Values at once in `revalue`: what surrounds them is tried here."""
    values = values_frame(result, silent)
    monkeypatch.setattr(execute, "value_table", lambda *given: result)
    monkeypatch.setattr(execute, "values_frame", lambda *given: values)


def paths(content: Any, here: Path_ = ()) -> Iterator[Path_]:
    """The places in parsed JSON; of a list the first member."""
    inside: Any = content.items() if isinstance(content, dict) else list(enumerate(content))[:1]
    for name, part in inside:
        yield (*here, name)
        if isinstance(part, dict | list):
            yield from paths(part, (*here, name))


def put(content: Any, path: Path_, new: Any) -> Any:
    changed = copy.deepcopy(content)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    if new is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return changed


def put_in(record: Any, path: Path_, new: Any) -> Any:
    """A record with something else in a place, which nothing checks."""
    if not path:
        return new
    if isinstance(record, tuple):
        return (put_in(record[0], path[1:], new), *record[1:])
    return replace(record, **{str(path[0]): put_in(getattr(record, str(path[0])), path[1:], new)})


def at(content: Any, path: Path_) -> Any:
    for name in path:
        content = content[name]
    return content


def fails_clearly(*arguments: str) -> bool:
    """Whether a command refuses its input, in one line; anything but that or success fails the test."""
    done = CliRunner().invoke(app, list(arguments))
    if done.exit_code == 0:
        return False
    assert isinstance(done.exception, SystemExit), (arguments, repr(done.exception))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not set(done.stderr[:-1]) & set("\x1b\x9b\u202e")
    return True


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_every_field_of_run_json_may_be_missing_or_wrong(folder: Path) -> None:
    facts = json.loads((folder / "run.json").read_text())
    refused = 0
    for path in paths(facts):
        for name, new in {"missing": KeyError, **{name: BAD[name] for name in MOST}}.items():
            (folder / "run.json").write_text(json.dumps(put(facts, path, new)))
            bad = fails_clearly("report", str(folder))
            refused += bad
            if name in ("missing", "text") and path[0] not in VALUED and not bad:
                fails_clearly("revalue", str(folder), "--out", str(folder.parent / "again"), "--overwrite")
            if name == "missing" and path[0] in ("guarantee", *VALUED) and isinstance(path[-1], str):
                assert bad, path
    assert refused > 500


class Skeleton(HTMLParser):
    """The elements of a page and the attributes of each, without its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, [name for name, _ in attrs], dict(attrs).get("class") if tag == "path" else None))


def harmless(page: str, like: str) -> bool:
    return Skeleton(page).found == Skeleton(like).found and not set(page) & set("\x1b\x9b\u202e")


@pytest.mark.slow
def test_no_text_of_run_json_becomes_markup(folder: Path) -> None:
    facts = json.loads((folder / "run.json").read_text())
    values = pd.read_csv(folder / "values.csv")
    clean = report_page(values, Record.from_json(facts, "run.json"))
    shown = 0
    for path in paths(facts):
        (folder / "run.json").write_text(json.dumps(put(facts, path, HOSTILE)))
        (folder / "report.html").unlink(missing_ok=True)
        if not fails_clearly("report", str(folder)):
            page = (folder / "report.html").read_text()
            assert harmless(page, clean), path
            shown += "alert(1)" in page
    assert shown >= 8


def test_the_page_itself_escapes_whatever_it_is_given(folder: Path) -> None:
    facts = json.loads((folder / "run.json").read_text())
    record, values = Record.from_json(facts, "run.json"), pd.read_csv(folder / "values.csv")
    clean = [(tag, names) for tag, names, _ in Skeleton(report_page(values, record)).found]
    chosen = ("unit", "neighbours", "kind")  # the page looks these up, so that nothing else passes
    tried = 0
    for path in paths(facts):
        free = isinstance(at(facts, path), str) or path[-1] == "seed"
        if free and path[0] != "values" and path[-1] not in chosen:
            page = report_page(values, put_in(record, path, HOSTILE))
            assert [(tag, names) for tag, names, _ in Skeleton(page).found] == clean, path
            assert "\x1b" not in page
            tried += 1
    assert tried > 15


def test_names_of_parties_are_shown_and_not_obeyed(folder: Path) -> None:
    values = pd.read_csv(folder / "values.csv")
    clean = report_page(values, Record.from_json(json.loads((folder / "run.json").read_text()), "run.json"))
    values["party"] = [HOSTILE, *values["party"][1:]]
    values.to_csv(folder / "values.csv", index=False)
    assert not fails_clearly("report", str(folder))
    page = (folder / "report.html").read_text()
    assert harmless(page, clean)
    assert "alert(1)" in page
    assert HOSTILE in open_folder(folder).values()["party"].tolist()  # the data itself stays as it is


@pytest.mark.parametrize("content", [
    b"", b"\x00\xff\xfe", b"party\n", b"party,rank\na,1\n", b'"', b"a,b\n1,2,3,4\n1\n",
    b"party,shapley,shapley_mc_error,loo,loo_mc_error,rank\n",
    b"party,shapley,shapley_mc_error,loo,loo_mc_error,rank\nx,<b>,1,1,1,1\n",
    b"party,shapley,shapley_mc_error,loo,loo_mc_error,rank\nx,1,1,1,1," + b"9" * 5000 + b"\n",
])  # fmt: skip
def test_damaged_values(folder: Path, content: bytes) -> None:
    (folder / "values.csv").write_bytes(content)
    assert fails_clearly("report", str(folder))


def test_values_at_the_ends_of_what_a_number_holds(folder: Path) -> None:
    values = pd.read_csv(folder / "values.csv")
    for numbers in ([1e308, -1e308], [np.inf, np.nan], [1.0, np.nextafter(1.0, 2.0)], [0.0, 5e-324], [np.nan, np.nan]):
        changed = values.assign(shapley=(numbers * 3)[:6], shapley_noise=numbers[0], rank=numbers[1])
        changed.to_csv(folder / "values.csv", index=False)
        assert not fails_clearly("report", str(folder))


NESTED = 100_000


@pytest.mark.parametrize("text", [
    "[" * NESTED, "[" * NESTED + "]" * NESTED, '{"a":' * 500 + "1" + "}" * 500, "1" * 5000, "null", "[]", "{}", '{"',
    '{"made": "\\ud800"}',
])  # fmt: skip
def test_json_that_is_damaged_or_nested(folder: Path, text: str) -> None:
    (folder / "run.json").write_text(text)
    assert fails_clearly("report", str(folder))
    assert fails_clearly("revalue", str(folder))


@pytest.mark.parametrize(("path", "new", "message"), [
    (("made",), KeyError, "made is missing"),
    (("versions", "torch"), 2, "versions.torch must be a text, got 2"),
    (("toml",), "train = 1", "train must be a list of texts, got 1"),
    (("toml",), "=", "toml cannot be read as TOML: Invalid statement (at line 1, column 1)"),
    (("trained", "seed"), -1, "trained.seed must be a whole number of at least 0, got -1"),
    (("guarantee", "unit"), "town", "guarantee.unit must be one of party, record, person, got 'town'"),
    (("plan", "records"), 0, "plan.records must be a whole number of at least 1, got 0"),
    (("values",), None, "values must be there where values.csv is, got null"),
    (("values", "semivalues"), [], "values: semivalues must name at least one semivalue, got none"),
    (("values", "semivalues"), "loo", "values.semivalues must be a list, got 'loo'"),
    (("curves", 0, "order"), "up", "curves[0].order must be one of high, low, random, got 'up'"),
    (("curves", 0, "mean"), [], "curves[0]: shares, mean and spread must have the same length of at least 1"),
    (("curves", 0, "shares", 0), None, "curves[0].shares[0] must be a number, got None"),
    (("detection", "auc"), float("inf"), "detection.auc must be a number, got inf"),
    (("values", "pay"), -5, "values.pay must be a positive number, got -5"),
    (("values", "verdict"), ["fine", 7], "values.verdict[1] must be a text, got 7"),
])  # fmt: skip
def test_what_is_wrong_is_told_by_its_place(folder: Path, path: Path_, new: Any, message: str) -> None:
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(put(facts, path, new)))
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.stderr == f"error: {folder / 'run.json'} has been damaged: {message}\n"


@pytest.mark.parametrize("other", [0, 1, 3, "2", None, KeyError])
def test_another_format_is_refused(folder: Path, other: Any) -> None:
    facts = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(put(facts, ("format",), other)))
    done = CliRunner().invoke(app, ["revalue", str(folder)])
    shown = None if other is KeyError else other
    assert done.stderr == f"error: {folder / 'run.json'} must have dpvalue format 2, got {shown!r}\n"


@pytest.mark.parametrize("text", [
    "a = " + "[" * NESTED + "]" * NESTED, ".".join("a" * 5000) + " = 1", "seed = " + "1" * 5000, "= 1",
    "epsilon = 1\x1b[31m", "train = [[[1]]]", "'\x1b[31m' = 1", "epsilon = nan",
    f"train = 'a'\ntest = 'b'\ntarget = 'c'\nepsilon = {10**400}",
])  # fmt: skip
def test_toml_that_is_damaged_or_nested(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    assert fails_clearly("run", "--config", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out"), "--yes")
    (tmp_path / "latin.toml").write_bytes(b"\xff")
    with pytest.raises(dpv.DpvalueError, match="cannot be read as TOML"):
        read_config(tmp_path / "latin.toml")


def used(path: Path) -> str | None:
    """Load a file and do with it what a user would; return what was refused, in one line."""
    try:
        found = dpv.load(path)
        assert repr(found)
        assert str(found.guarantee)
        table = found.table if isinstance(found, dpv.Result) else found
        valued = table.value(made_frame(20, 1), target="label", progress=False, permutations=4)
        assert len(valued.frame(noise=True, draws=2))
    except dpv.DpvalueError as error:
        return str(error)
    return None


def test_every_field_of_a_saved_file_may_be_missing_or_wrong(result: dpv.Result, tmp_path: Path) -> None:
    """With a digest that is right: whoever can write a file can make one."""
    result.save(tmp_path / "file")
    assert used(tmp_path / "file") is None
    header, tensors = dpv.Table.archive.read(tmp_path / "file")
    refused = 0
    for path in paths(header):
        for new in (KeyError, *BAD.values()):
            dpv.Table.archive.write(tmp_path / "changed", put(header, path, new), tensors)
            refused += used(tmp_path / "changed") is not None
    assert refused > 300
    for name, tensor in tensors.items():
        for other in (tensor[:0], tensor[None], torch.zeros(0, 10**12)):
            dpv.Table.archive.write(tmp_path / "changed", header, {**tensors, name: other})
            assert used(tmp_path / "changed"), (name, other.shape)
        for kind in (torch.bfloat16, torch.bool, torch.int32, torch.complex64, torch.float8_e5m2):
            content = safetensors.torch.save({**tensors, name: tensor.to(kind)}, {"dpvalue": "{}"})
            (tmp_path / "changed").write_bytes(content)
            assert used(tmp_path / "changed"), (name, kind)
        left = {one: tensors[one] for one in tensors if one != name}
        dpv.Table.archive.write(tmp_path / "changed", header, left)
        assert used(tmp_path / "changed"), name


def test_no_boolean_and_no_number_beyond_int64_is_a_whole_number(result: dpv.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "file")
    header, tensors = dpv.Table.archive.read(tmp_path / "file")
    wrong: tuple[Any, ...] = (True, 2**63, 10**30, 1.0)
    for name in wrong:
        dpv.Table.archive.write(tmp_path / "changed", put(header, ("names", 0), name), tensors)
        with pytest.raises(dpv.DpvalueError, match=r"names\[0\] must be a text or a whole number"):
            dpv.load(tmp_path / "changed")
    given: dict[str, Any] = {"train": ["a.csv"], "test": "b.csv", "target": "y"}
    for option in ("seed", "permutations", "parties_per_person"):
        for value in wrong:
            with pytest.raises(dpv.DpvalueError, match=f"{option} must be a whole number below"):
                make_config({**given, option: value})
    for sizes in ([True, 5], [10**30, 5]):
        with pytest.raises(dpv.DpvalueError, match="sizes must be a list of whole numbers below"):
            make_config({"sizes": sizes, "test": "b.csv", "target": "y"})
    with pytest.raises(dpv.DpvalueError, match="noise_multiplier must be positive, got False"):
        Mechanism(1.0, False, "party", "zero_out")


def test_bytes_of_a_saved_file_may_be_wrong(result: dpv.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(content)
        changed[generator.integers(min(len(content), 3000))] = generator.integers(256)
        (tmp_path / "changed").write_bytes(changed[: generator.integers(1, len(content) + 1)])
        if (tmp_path / "changed").read_bytes() != content:
            with pytest.raises(dpv.DpvalueError):
                dpv.load(tmp_path / "changed")


@pytest.mark.parametrize("text", ["[" * NESTED, '{"a":' * 500 + "1" + "}" * 500, "1" * 5000, "[1]", "null"])
def test_the_header_of_a_saved_file_may_be_nested(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_bytes(safetensors.torch.save({"a": torch.zeros(1)}, {"dpvalue": text}))
    with pytest.raises(dpv.DpvalueError):
        dpv.load(tmp_path / "file")


def test_a_tensor_that_claims_a_large_shape(tmp_path: Path) -> None:
    head = json.dumps({"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "file").write_bytes(len(head).to_bytes(8, "little") + head + bytes(4))
    with pytest.raises(dpv.DpvalueError, match="not a dpvalue file"):
        dpv.load(tmp_path / "file")


def test_what_steers_a_terminal_is_written_out() -> None:
    assert visible("a\x1b[2Jb\x9bc\u202ed\x7f\r") == "a\\x1b[2Jb\\x9bc\\u202ed\\x7f\\x0d"
    assert visible("naïve 日本 👩‍🔬\n\t±") == "naïve 日本 👩‍🔬\n\t±"
    assert one_line("a\nb\tc") == "a\\x0ab\\x09c"
    assert visible("\udc80").encode() == b"\\udc80"


@pytest.mark.usefixtures("quick")
def test_no_name_reaches_the_terminal_raw(folder: Path, monkeypatch: pytest.MonkeyPatch, result: dpv.Result) -> None:
    values = values_frame(result, silent)
    values["party"] = [HOSTILE, ":warning: [bold]x[/bold]", *values["party"][2:]]
    monkeypatch.setattr(execute, "values_frame", lambda *given: values)
    out = folder.parent / "again"
    done = CliRunner().invoke(app, ["revalue", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.stderr
    assert "\\x1b[31m\\x9b\\u202e\\x0amore" in "".join(done.stdout.split())  # a long name takes several lines
    assert ":warning: [bold]x[/bold]" in done.stdout  # nor is it markup
    assert not set(done.stdout) & set("\x1b\x9b\u202e")
    assert HOSTILE in open_folder(out).values()["party"].tolist()
    assert not set((out / "values.csv").read_text()) & set("\x1b\x9b\u202e")
    assert fails_clearly("report", str(folder.parent / "\x1b[31mred\nerror: two"))
