"""Nothing but the releases: with the mechanism's output held fixed, one unit's data changes nothing that comes out."""

from __future__ import annotations

import logging
import secrets
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import StandardScaler
from torch import Tensor

import dpvalue as dpv
from dpvalue.party.contributions import Contributions
from dpvalue.party.factored import OuterProducts
from dpvalue.runs.config import make_config
from dpvalue.runs.execute import execute
from dpvalue.runs.sources import open_run
from tests.datasets import classification
from tests.held import Keys, emptied

TRAIN, TEST = classification(12, classes=2)
GROUPS, PERSONS = np.repeat([0, 1, 2, 3], 3), np.arange(12) // 2 * 2


class Held(Keys):
    """Keys that repeat, and the kinds of contributions that were released."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: set[type] = set()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Hold the mechanism's output fixed: all runs as ever, but what is released is the same noise around zero."""
    found = Held()
    monkeypatch.setattr(secrets, "randbits", found)
    release = Contributions.release

    def released(self: Contributions, clipped: Any, noise: Tensor | None, who: Tensor, grid: Any) -> Any:
        release(self, clipped, None if noise is None else noise.clone(), who, grid)
        found.kinds.add(type(clipped))
        return release(self, emptied(clipped), noise, who, grid)

    monkeypatch.setattr(Contributions, "release", released)
    return found


@dataclass(frozen=True)
class Private:
    """The parties' rows, and which of them are one protected unit."""

    X: Any
    y: Any
    unit: str

    def changed(self, how: str) -> Private:
        rows = {"party": GROUPS == 0, "record": np.arange(12) == 0, "person": PERSONS == 0}[self.unit]
        X, y = self.X.copy(), self.y.copy()
        if how == "other label":
            y[rows] = 1 - y[rows]
        else:
            X[rows] = {"huge": 1e6, "zero": 0.0, "overflow": 1e39, "mean": X.mean(0), "negative": -X[rows]}[how]
        return replace(self, X=X, y=y)

    def given(self) -> dict[str, Any]:
        spread = 2 if self.unit == "person" else 1
        privacy = dpv.Privacy(2.0, 1e-4, self.unit, parties_per_person=spread)
        return {"parties": (self.X, self.y), "groups": GROUPS, "persons": PERSONS, "privacy": privacy}


Entry = Callable[[dict[str, Any], dict[str, Any], Path], Any]


def told(found: Any, folder: Path) -> list[Any]:
    """All that a result tells: what it prints, its numbers, and its file."""
    texts = [repr(found), str(found)]
    if isinstance(found, dpv.Plan):
        texts.append(str({name: part for name, part in vars(found).items() if name != "prepared"}))
    if hasattr(found, "save"):
        found.save(folder / "saved")
        texts += [str((folder / "saved").read_bytes()), repr(dpv.load(folder / "saved"))]
    if isinstance(found, dpv.Result):
        texts += [found.frame(noise=True).to_csv(), str(found.revalue(TEST, semivalues="banzhaf").values)]
    for name in ("scores", "guarantee", "expected_auc"):
        texts.append(str(getattr(found, name, None)))
    return texts


def value_(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    return dpv.value(given.pop("parties"), TEST, **given, **settings)


def ledger_for(given: dict[str, Any], folder: Path, epsilon: float) -> dpv.Ledger:
    budget = replace(given["privacy"], epsilon=epsilon)
    return dpv.Ledger.create(folder / "ledger", budget, "me", parties=range(4) if budget.unit == "party" else None)


def with_ledger(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    ledger = ledger_for(given, folder, 9.0)
    found = dpv.value(given.pop("parties"), TEST, ledger=ledger, **given, **settings)
    entries = [replace(entry, time="", digest="") for entry in ledger.entries()]
    return found, entries, ledger.spent_epsilon


def release_(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    return dpv.release(given.pop("parties"), TEST, **given, **settings)


def screening(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    kept = {name: settings[name] for name in ("noise", "preprocess", "seed") if name in settings}
    return dpv.baselines.public_loss(given.pop("parties"), TEST, **given, **kept)


def planned(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    return dpv.plan(given.pop("parties"), TEST, **given)


def audited(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    return dpv.audit(given.pop("parties"), TEST, runs=60, clip=1.0, projection=None, **given, progress=False)


def wrapped(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    X, y = given["parties"]
    parties = dpv.Parties(X, y, given["groups"], given["persons"])
    return dpv.release(parties, TEST, privacy=given["privacy"], **settings), repr(parties), str(parties)


def from_files(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    """All of `dpvalue run`: every file of its folder."""
    X, y = given["parties"]
    names = [f"f{i}" for i in range(X.shape[1])]
    train = pd.DataFrame(X, columns=names).assign(label=y, site=GROUPS, who=PERSONS)
    train.to_csv(folder / "train.csv", index=False)
    pd.DataFrame(TEST[0], columns=names).assign(label=TEST[1]).to_csv(folder / "test.csv", index=False)
    privacy = given["privacy"]
    config = make_config({
        "train": [str(folder / "train.csv")], "test": str(folder / "test.csv"), "target": "label", "group": "site",
        "person": "who", "unit": privacy.unit, "parties_per_person": privacy.parties_per_person, "epsilon": 2.0,
        "delta": 1e-4,
    })  # fmt: skip
    job = open_run(config)
    done = execute(job, job.plan(), folder / "results", settings["progress"])
    assert done.record.plan is not None
    files = sorted(file.name for file in (folder / "results").iterdir())
    kept = [(folder / "results" / name).read_text() for name in ("values.csv",)]
    return str(done.record).replace(str(folder), ""), str(files), str(kept), repr(job).replace(str(folder), "")


def failing(**wrong: Any) -> Entry:
    def entry(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
        with pytest.raises(dpv.DpvalueError) as caught:
            value_(given, {**settings, **wrong}, folder)
        return type(caught.value).__name__, str(caught.value)

    return entry


def broken_metric(outputs: Any, labels: Any) -> float:
    return 1 / 0


def over_budget(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    ledger = ledger_for(given, folder, 0.1)
    return failing(ledger=ledger)(given, settings, folder)


def refused_metric(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    given = dict(given)
    with pytest.raises(ZeroDivisionError) as caught:
        dpv.value(given.pop("parties"), dpv.Utility(*TEST, metric=broken_metric), **given, **settings)
    return type(caught.value).__name__, str(caught.value)


def of_single_rows(given: dict[str, Any], settings: dict[str, Any], folder: Path) -> Any:
    return value_({**given, "groups": None}, settings, folder)


PAPER = {"schedule": "running-mean", "permutations": 4}
CHOSEN = {"clip": "auto", "projection": "auto"}
ENTRIES: dict[str, tuple[Entry, dict[str, Any]]] = {
    "value": (value_, {}),
    "value, everything chosen": (value_, CHOSEN),
    "value, one direction": (value_, {"projection": dpv.Projection(1, steps=16), "clip": "auto", "noise": "fast"}),
    "value, fast": (value_, {"noise": "fast"}),
    "value, running-mean": (value_, PAPER),
    "value, running-mean, fast": (value_, {**PAPER, "noise": "fast"}),
    "value, running-mean, fast, single rows": (of_single_rows, {**PAPER, "noise": "fast"}),
    "value, running-mean, fast, single rows, compiled": (of_single_rows, {**PAPER, "noise": "fast"}),
    "value, optimal": (value_, {**PAPER, "schedule": "optimal"}),
    "value, decaying": (value_, {**PAPER, "schedule": "decaying"}),
    "value, lagged": (value_, {"schedule": dpv.Schedule("lagged", rounds=2, probes=2), "permutations": 4}),
    "value, two semivalues": (value_, {"semivalues": ("loo", "beta(4,1)")}),
    "ledger": (with_ledger, {}),
    "ledger, running-mean": (with_ledger, PAPER),
    "release": (release_, {}),
    "parties printed": (wrapped, {}),
    "screening": (screening, {}),
    "plan": (planned, {}),
    "files": (from_files, {}),
    "audit": (audited, {}),
    "too many directions": (failing(projection=dpv.Projection(99)), {}),
    "bad permutations": (failing(schedule=dpv.Schedule("lagged", rounds=2, probes=3), permutations=4), {}),
    "a metric that raises": (refused_metric, PAPER),
    "budget exceeded": (over_budget, {}),
}  # fmt: skip


SLOW = ("value, everything chosen", "value, one direction", "plan", "screening", "audit", "files")


@dataclass
class Outside:
    """Everything that a caller, a log or a terminal sees of one call."""

    progress: list[Any]
    logs: list[str]
    warned: list[str]
    printed: Any = None
    told: Any = None


def observe(entry: Entry, private: Private, settings: dict[str, Any], folder: Path, keys: Held, capsys: Any) -> Outside:
    keys.count = 0
    seen = Outside([], [], [])
    folder.mkdir()
    handler = logging.Handler()
    handler.emit = lambda record: seen.logs.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    defaults: dict[str, Any] = {
        "preprocess": StandardScaler(), "seed": 3, "progress": lambda *step: seen.progress.append(step),
        "clip": 1.0, "projection": None,
    }  # fmt: skip
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = entry(private.given(), {**defaults, **settings}, folder)
            parts = found if isinstance(found, tuple) else (found,)
            seen.told = [told(part, folder) for part in parts]
        seen.warned = [str(one.message) for one in caught]
    finally:
        root.removeHandler(handler)
        root.setLevel(before)
    seen.printed = tuple(capsys.readouterr())
    return seen


CHANGES = ("huge", "zero", "overflow", "mean", "negative", "other label")


@pytest.mark.parametrize("unit", ["party", "record", "person"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ENTRIES]
)
def test_one_unit_changes_nothing_else(
    name: str,
    unit: str,
    keys: Held,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry, settings = ENTRIES[name]
    monkeypatch.setenv("DPVALUE_COMPILED", "1" if name.endswith("compiled") else "0")
    private = Private(*TRAIN, unit)
    if name.endswith("compiled"):  # numba logs what it compiles, in whichever run is the first of a new checkout
        observe(entry, private, settings, tmp_path / "compiling", keys, capsys)
    first = observe(entry, private, settings, tmp_path / "first", keys, capsys)
    assert first.told
    if name.startswith(("value", "release")):
        assert first.progress
        assert first.logs
    for how in CHANGES:
        other = observe(entry, private.changed(how), settings, tmp_path / how.replace(" ", "-"), keys, capsys)
        assert other == first, how
    if name.startswith("value, running-mean, fast, single rows"):  # the engine's fastest path passes there as well
        assert keys.kinds == {Tensor if unit == "person" else OuterProducts}


@pytest.fixture
def marked() -> tuple[Any, bytes]:
    """Private rows that hold one recognisable number."""
    mark = 1234.5678901234567
    X, y = TRAIN[0].copy(), TRAIN[1].copy()
    X[0, :] = mark
    return (X, y), np.float64(mark).tobytes()


def test_saved_files_hold_no_private_data(marked: Any, tmp_path: Path) -> None:
    private, pattern = marked
    result = dpv.value(private, TEST, noise="fast", progress=False, preprocess=StandardScaler())
    result.save(tmp_path / "result")
    result.table.save(tmp_path / "table")
    ledger = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(1.0, 1e-4), "me")
    dpv.value(private, TEST, privacy=dpv.Privacy(1.0, 1e-4), progress=False, ledger=ledger)
    known = [row.astype(kind).tobytes() for row in private[0] for kind in (np.float64, np.float32)]
    for file in tmp_path.iterdir():
        content = file.read_bytes()
        assert pattern not in content
        assert b"1234.567" not in content
        assert not [row for row in known if row in content], file
