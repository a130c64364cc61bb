"""Results: frames, errors due to noise, saving and loading, valuing again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

import dpvalue as dpv
from dpvalue import streams
from dpvalue.party import interleaved
from dpvalue.privacy.noise import FastNoise
from dpvalue.protocol.archive import as_text, digest
from dpvalue.runs import rounds
from tests.datasets import Arrays, classification

SETTINGS: dict[str, Any] = {"clip": 1.0, "learning_rate": 0.2, "noise": "fast", "progress": False}
FIXED: dict[str, Any] = {**SETTINGS, "projection": None}  # nothing is left to choose, which takes most of the time


@pytest.fixture(name="data")
def made_data() -> tuple[Arrays, Arrays]:
    return classification(20)


@pytest.fixture(name="result")
def made_result(data: tuple[Arrays, Arrays]) -> dpv.Result:
    return dpv.value(*data, semivalues=("shapley", "loo"), privacy=dpv.Privacy(4.0), **SETTINGS)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def test_frame_and_top(result: dpv.Result) -> None:
    frame = result.frame()
    assert list(frame.columns) == ["party", "size", "shapley", "shapley_mc_error", "loo", "loo_mc_error", "rank"]
    assert frame["shapley"].tolist() == result.values["shapley"].tolist()
    noisy = result.frame(noise=True)
    assert noisy["shapley_noise"].tolist() == result.noise_std()["shapley"].tolist()
    assert list(noisy.columns)[1:7] == [
        "size",
        "shapley",
        "shapley_mc_error",
        "shapley_noise",
        "shapley_low",
        "shapley_high",
    ]
    assert list(noisy.columns)[-3:] == ["rank", "rank_low", "rank_high"]
    best = int(np.argmax(result.values["shapley"]))
    assert frame["rank"][best] == 1
    assert sorted(frame["rank"]) == list(range(1, 21))
    assert result.top(3)["party"][0] == best
    assert result.top(2, "loo", lowest=True)["party"][0] == int(np.argmin(result.values["loo"]))
    with pytest.raises(dpv.DpvalueError, match="semivalue must be one of shapley, loo"):
        result.top(3, "banzhaf")


def test_a_rank_of_a_missing_value_is_missing(data: tuple[Arrays, Arrays]) -> None:
    result = dpv.value(*data, semivalues="loo", privacy=None, permutations=3, **SETTINGS)
    frame = result.frame()
    assert (frame["rank"].isna() == frame["loo"].isna()).all()
    assert frame["rank"].isna().sum() >= 17
    assert (result.counts["loo"] == 0).sum() >= 17


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": dpv.Privacy(30.0), "projection": None, "clip": 1.0, "learning_rate": 0.2},
        {"privacy": dpv.Privacy(4.0), "projection": dpv.Projection(steps=16)},
    ],
    ids=["gaussian", "laplace"],
)
def test_noise_std_is_the_spread_of_values_over_fresh_releases(
    data: tuple[Arrays, Arrays], settings: dict[str, Any]
) -> None:
    """Measured on values of many runs, which a user never gets to see; both errors are of the same party."""
    schedule = dpv.Schedule("replay", tolerance=0.5)
    runs = [dpv.value(*data, progress=False, schedule=schedule, **settings) for _ in range(60)]
    spread = np.std([run.values["shapley"] for run in runs], axis=0, ddof=1)
    claimed = np.mean([run.noise_std()["shapley"] for run in runs[:10]], axis=0)
    assert np.median(claimed / spread) == pytest.approx(1.0, abs=0.25)


def test_noise_std_without_privacy_is_zero(data: tuple[Arrays, Arrays]) -> None:
    result = dpv.value(*data, privacy=None, permutations=4, **SETTINGS)
    assert (result.noise_std()["shapley"] == 0).all()


def test_noise_std_of_a_game_that_was_enumerated() -> None:
    train, test = classification(6)
    result = dpv.value(train, test, semivalues=("shapley", "loo"), privacy=dpv.Privacy(8.0), **FIXED)
    assert result.walks == 0
    assert (result.noise_std()["shapley"] > 0).all()


def test_save_and_load(result: dpv.Result, data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    path = tmp_path / "values.safetensors"
    result.save(path)
    assert list(tmp_path.iterdir()) == [path]
    loaded = dpv.load(path)
    assert isinstance(loaded, dpv.Result)
    for name in ("shapley", "loo"):
        for field in ("values", "std_errors", "counts", "sample_variances"):
            np.testing.assert_array_equal(getattr(loaded, field)[name], getattr(result, field)[name])
    assert loaded.guarantee == result.guarantee
    assert loaded.table.schedule == result.table.schedule
    assert loaded.table.names == result.table.names
    assert torch.equal(loaded.table.rows, result.table.rows)
    again = loaded.revalue(data[1], semivalues=("shapley", "loo"), progress=False)
    np.testing.assert_array_equal(again.values["shapley"], result.values["shapley"])
    np.testing.assert_array_equal(loaded.noise_std(utility=data[1])["loo"], result.noise_std()["loo"])
    with pytest.raises(dpv.DpvalueError, match="utility must be given"):
        loaded.noise_std()


def test_revalue_reads_no_private_data_and_takes_another_public_set(result: dpv.Result) -> None:
    other = classification(20, seed=5)[1]
    again = result.revalue(dpv.Utility(*other, metric="accuracy"), semivalues="beta(4,1)", progress=False)
    assert again.guarantee == result.guarantee
    assert again.table is result.table
    assert set(again.values) == {"beta(4,1)"}


def test_a_table_alone_is_saved_and_loaded(data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    table = dpv.release(*data, **FIXED)
    table.save(tmp_path / "table")
    loaded = dpv.load(tmp_path / "table")
    assert isinstance(loaded, dpv.Table)
    assert torch.equal(loaded.rows, table.rows)
    np.testing.assert_array_equal(
        loaded.value(data[1], progress=False).values["shapley"], table.value(data[1], progress=False).values["shapley"]
    )


def test_a_custom_model_is_passed_again_and_checked(data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    result = dpv.value(*data, model=network, **FIXED)
    result.save(tmp_path / "file")
    bare = dpv.load(tmp_path / "file")
    assert isinstance(bare, dpv.Result)
    with pytest.raises(dpv.DpvalueError, match="pass it again with load"):
        bare.revalue(data[1], progress=False)
    loaded = dpv.load(tmp_path / "file", model=network)
    assert isinstance(loaded, dpv.Result)
    again = loaded.revalue(data[1], progress=False)
    np.testing.assert_array_equal(again.values["shapley"], result.values["shapley"])
    other = dpv.load(tmp_path / "file", model=lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
    assert isinstance(other, dpv.Result)
    with pytest.raises(dpv.DpvalueError, match="digest differs"):
        other.revalue(data[1], progress=False)


def test_a_transformer_is_passed_again(data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    result = dpv.value(*data, preprocess=StandardScaler(), **FIXED)
    assert result.revalue(data[1], progress=False).values["shapley"].tolist() == result.values["shapley"].tolist()
    result.save(tmp_path / "file")
    loaded = dpv.load(tmp_path / "file")
    assert isinstance(loaded, dpv.Result)
    with pytest.raises(dpv.DpvalueError, match="pass the fitted one"):
        loaded.revalue(data[1], progress=False)
    loaded = dpv.load(tmp_path / "file", preprocess=StandardScaler().fit(data[1][0]))
    assert isinstance(loaded, dpv.Result)
    np.testing.assert_array_equal(loaded.revalue(data[1], progress=False).values["shapley"], result.values["shapley"])


def test_a_custom_semivalue_keeps_its_values(data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    half = dpv.Semivalue("early", lambda n: np.where(np.arange(n) < n // 2, 2.0, 0.0))
    result = dpv.value(*data, semivalues=half, **FIXED)
    result.save(tmp_path / "file")
    loaded = dpv.load(tmp_path / "file")
    assert isinstance(loaded, dpv.Result)
    np.testing.assert_array_equal(loaded.values["early"], result.values["early"])
    with pytest.raises(dpv.DpvalueError, match="pass the Semivalue again"):
        loaded.noise_std(utility=data[1])


def test_files_hold_no_rows_of_any_data_set(data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    """Neither private nor public rows, nor the seed of secure noise, are in the file's tensors or header."""
    result = dpv.value(*data, **{**SETTINGS, "noise": "secure"})
    result.save(tmp_path / "file")
    tensors = safetensors.torch.load_file(tmp_path / "file")
    assert set(tensors) == {
        "rows",
        "initial",
        "basis",
        "noise_std",
        "sizes",
        "values.0",
        "std_errors.0",
        "counts.0",
        "sample_variances.0",
    }
    content = (tmp_path / "file").read_bytes()
    for rows, _ in data:
        for row in rows:
            assert row.tobytes() not in content
            assert row.astype(np.float32).tobytes() not in content


def test_altered_truncated_and_foreign_files_are_refused(result: dpv.Result, tmp_path: Path) -> None:
    path = tmp_path / "file"
    result.save(path)
    content = path.read_bytes()
    (tmp_path / "cut").write_bytes(content[:-10])
    flipped = bytearray(content)
    flipped[-3] ^= 1
    (tmp_path / "flipped").write_bytes(flipped)
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00]\x94.")
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "foreign")
    (tmp_path / "older").write_bytes(content.replace(b'\\"format\\": 9', b'\\"format\\": 8'))
    altered = content.replace(b'\\"epsilon\\": 4.0', b'\\"epsilon\\": 0.1')
    assert altered != content
    (tmp_path / "altered").write_bytes(altered)
    hollow = as_text(
        {"format": dpv.Table.archive.version, "kind": dpv.Table.archive.kind, "header": {}, "digest": digest({}, {})}
    )
    (tmp_path / "hollow").write_bytes(safetensors.torch.save({}, {"dpvalue": hollow}))
    (tmp_path / "strange").write_bytes(safetensors.torch.save({}, {"dpvalue": "[1, 2"}))
    for name, message in {
        "cut": "not a dpvalue file, or is truncated", "flipped": "altered", "pickle": "not a dpvalue file",
        "foreign": "must have dpvalue format 9 of a table, got none",
        "older": "must have dpvalue format 9 of a table, got 8",
        "altered": "altered", "missing": "path must be a file", "hollow": "not a whole dpvalue file: names is missing",
        "strange": "has been damaged",
    }.items():  # fmt: skip
        with pytest.raises(dpv.DpvalueError, match=message) as caught:
            dpv.load(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_the_same_result_makes_the_same_bytes(result: dpv.Result, tmp_path: Path) -> None:
    contents = set()
    for number in range(8):
        result.save(tmp_path / str(number))
        contents.add((tmp_path / str(number)).read_bytes())
    assert len(contents) == 1


def test_a_failed_save_leaves_nothing_behind(result: dpv.Result, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        result.save(tmp_path / "taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


def test_the_file_of_a_simulation_does_not_hold_the_seed_of_its_noise(
    data: tuple[Arrays, Arrays], tmp_path: Path
) -> None:
    result = dpv.value(*data, seed=123456789, **FIXED)
    result.save(tmp_path / "file")
    assert b"123456789" not in (tmp_path / "file").read_bytes()
    assert result.table.seed != 123456789
    assert "simulation" in repr(result.table)


@pytest.mark.parametrize("given", [{}, {"schedule": "running-mean", "permutations": 3}], ids=["replay", "walks"])
def test_with_the_noise_of_a_simulation_held_fixed_its_seed_changes_no_saved_byte(
    data: tuple[Arrays, Arrays], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """A small seed must not be found by trying them on what is beside the rows: that takes a blink."""
    stream, rows = FastNoise.stream, FastNoise.rows
    fixed = FastNoise(1)
    monkeypatch.setattr(FastNoise, "stream", lambda self, *which: stream(fixed, *which))
    monkeypatch.setattr(FastNoise, "rows", lambda self, *which: rows(fixed, *which))
    for walking in (rounds, interleaved):  # they decide at which models the rows are released
        monkeypatch.setattr(walking, "permutations", lambda seed, *which: streams.permutations(0, *which))
    for seed in range(4):
        table = dpv.release(*data, seed=seed, privacy=dpv.Privacy(4.0), projection=None, **{**SETTINGS, **given})
        table.save(tmp_path / str(seed))
    assert len({(tmp_path / str(seed)).read_bytes() for seed in range(4)}) == 1


def test_a_simulation_repeats_and_other_seeds_walk_otherwise(data: tuple[Arrays, Arrays]) -> None:
    first, again, other = (dpv.value(*data, seed=seed, privacy=dpv.Privacy(4.0), **FIXED) for seed in (1, 1, 5))
    assert first.table.seed == again.table.seed != other.table.seed
    np.testing.assert_array_equal(first.values["shapley"], again.values["shapley"])


def test_numpy_numbers_are_numbers(data: tuple[Arrays, Arrays], tmp_path: Path) -> None:
    privacy = dpv.Privacy(epsilon=np.float32(2.0), delta=np.float64(1e-5))  # type: ignore[arg-type]
    result = dpv.value(*data, privacy=privacy, permutations=np.int64(20), **SETTINGS)  # type: ignore[arg-type]
    result.save(tmp_path / "file")
    assert dpv.load(tmp_path / "file").guarantee.epsilon == 2.0


def test_a_table_of_many_starts_cannot_be_replayed(data: tuple[Arrays, Arrays]) -> None:
    schedule = dpv.Schedule("running-mean", fresh_start=True)
    result = dpv.value(*data, model=network, schedule=schedule, permutations=3, **SETTINGS)
    with pytest.raises(dpv.DpvalueError, match="fresh_start cannot be replayed"):
        result.revalue(data[1], progress=False)
    with pytest.raises(dpv.DpvalueError, match="fresh_start cannot be replayed"):
        result.noise_std()


def test_a_repr_shows_the_highest_and_the_lowest_values(result: dpv.Result) -> None:
    values = result.values["shapley"]
    first, second, *_, last = np.argsort(-values, kind="stable")
    said = f"{first} = {values[first]:.3g}, {second} = {values[second]:.3g}, ..., {last} = {values[last]:.3g}"
    assert repr(result).startswith(f"Result(20 parties, shapley: {said}; loo: ")
    assert repr(result).endswith(", epsilon = 4, delta = 0 per party, simulation)")
    assert "20 parties x 1," in repr(result.table)


def test_a_result_is_a_mapping_of_parties(result: dpv.Result) -> None:
    assert len(result) == 20
    assert list(result) == list(result.keys()) == list(result.table.names) == list(range(20))
    assert result[3] == {name: float(values[3]) for name, values in result.values.items()}
    assert result["3"] == result[np.int64(3)] == result[3]  # type: ignore[index]
    assert dict(result) == dict(result.items()) == {name: result[name] for name in range(20)}
    known: list[object] = [3, "3", np.int64(0)]
    unknown: list[object] = [20, "20", "", True, None, 3.5]
    assert [name in result for name in known + unknown] == [True] * 3 + [False] * 6
    assert str(result.compare("3", 4, draws=2)) == str(result.compare(3, 4, draws=2))


def test_a_party_that_there_is_not_is_named_with_those_that_are_like_it(data: tuple[Arrays, Arrays]) -> None:
    groups = np.array(["north clinic", "south clinic", "city hospital", "2"])[np.arange(len(data[0][1])) % 4]
    result = dpv.value(*data, groups=groups, privacy=None, progress=False)
    assert list(result) == [2, "city hospital", "north clinic", "south clinic"]
    with pytest.raises(dpv.DpvalueError, match=r"party must be one of 'north clinic', .*, \.\.\.; got 'nroth clinic'"):
        result["nroth clinic"]
    with pytest.raises(KeyError) as caught:
        result["zzz"]
    assert str(caught.value) == ("party must be one of 2, 'city hospital', 'north clinic', 'south clinic'; got 'zzz'")
    with pytest.raises(dpv.DpvalueError, match="got True"):
        result[True]
    with pytest.raises(dpv.DpvalueError, match="party must be one of"):
        result.compare("north clinic", "nroth clinic")


@pytest.mark.parametrize("task", ["classification", "regression", "person", "none"])
def test_what_columns_became_is_in_the_file(task: str, tmp_path: Path) -> None:
    """A user of preprocess="columns" never held a transformer that could be passed again."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(50, 2)), columns=["a", "b"])
    frame["town"] = np.where(generator.random(50) < 0.5, "north", "south")
    frame["label"] = frame["b"] if task == "regression" else (frame["a"] > 0).astype(int)
    private, public = frame[:24], frame[24:].reset_index(drop=True)
    settings: dict[str, Any] = {"target": "label", "preprocess": "columns", "noise": "fast", "progress": False}
    if task == "person":
        private = private.assign(who=np.arange(24) % 9)
        settings |= {"groups": np.arange(24) % 4, "persons": "who", "privacy": dpv.Privacy(4.0, unit="person")}
    if task == "none":
        settings |= {"privacy": None, "permutations": 10}
    model = "linear" if task == "regression" else "logistic"
    result = dpv.value(private, public, model=model, **settings)
    result.save(tmp_path / "file")
    loaded = dpv.load(tmp_path / "file")
    assert isinstance(loaded, dpv.Result)
    ask: dict[str, Any] = {"target": "label", "permutations": 10, "progress": False}
    np.testing.assert_array_equal(
        loaded.revalue(public, **ask).values["shapley"], result.revalue(public, **ask).values["shapley"]
    )
    with pytest.raises(dpv.DpvalueError, match="the file holds its own"):
        dpv.load(tmp_path / "file", preprocess=StandardScaler())
    with pytest.raises(dpv.DpvalueError, match="columns of the public set"):
        loaded.revalue(public.drop(columns="town"), **ask)
