"""Which records parties hold that others lack: from noisy counts, no more than they say, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpvalue as dpv
from dpvalue.methods.trees import Trees
from tests import fields

ENGINE = dpv.Local(device="cpu")
GENERATOR = np.random.default_rng(0)


def people(rows: int) -> pd.DataFrame:
    """Ages and towns; the label is about age."""
    frame = pd.DataFrame({"age": GENERATOR.integers(20, 80, rows), "town": GENERATOR.choice(["Ayr", "Bath"], rows)})
    return frame.assign(ill=np.where(frame["age"] + GENERATOR.normal(0, 6, rows) > 50, "yes", "no"))


@pytest.fixture(scope="module")
def frames() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Records of which the site `old` has nearly all above 50, and a public set."""
    frame = people(4000)
    others = GENERATOR.choice(["a", "b", "c"], len(frame))
    is_old = (frame["age"] > 50) & (GENERATOR.random(len(frame)) < 0.9)
    return frame.assign(site=np.where(is_old, "old", others)), people(400)


def result_for(frames: Any, privacy: dpv.Privacy | None, **given: Any) -> dpv.Result:
    settings: dict[str, Any] = {"model": "trees", "noise": "fast", "engine": ENGINE, "preprocess": "columns", **given}
    private, public = frames
    return dpv.value(private, public, target="ill", groups="site", privacy=privacy, progress=False, **settings)


def test_the_owner_of_a_region_and_of_a_class_is_named(frames: Any) -> None:
    for privacy in (None, dpv.Privacy(4.0, 1e-5, unit="record")):
        found = result_for(frames, privacy).coverage()
        assert {holding.party for holding in found} == {"old"}
        told = " ".join(map(str, found))
        assert "of class yes" in told
        assert "with age above " in told
        region = next(holding for holding in found if "age" in holding.cell)
        edge = float(region.cell.split()[-1])
        assert 40 < edge < 60
        private = frames[0]
        inside = private["age"] > edge
        true = float((inside & (private["site"] == "old")).sum() / inside.sum())
        assert region.low - 1e-4 <= true <= region.high + 1e-4
        assert region.share == pytest.approx(true, abs=0.1)
        assert region.of_all == pytest.approx((private["site"] == "old").mean(), abs=1e-4)
        if privacy is None:
            assert region.share == pytest.approx(true, abs=1e-4)
            assert region.low == region.high == region.share
        assert f"{region.share:.0%}" in str(region)


def test_noise_makes_no_statement() -> None:
    """Parties that are all alike, at little budget, many times: nothing is said of any."""
    frame, public = people(600), people(200)
    private = frame.assign(site=np.arange(600) % 4)
    for seed in range(12):
        assert result_for((private, public), dpv.Privacy(0.3, 1e-5, unit="record"), seed=seed).coverage() == ()


def test_intervals_hold_the_truth_and_shrink_with_the_budget(frames: Any) -> None:
    private = frames[0]
    widths = []
    for epsilon in (0.5, 2.0, 8.0):
        off, wide = [], []
        for seed in range(8):
            for holding in result_for(frames, dpv.Privacy(epsilon, 1e-5, unit="record"), seed=seed).coverage():
                if "class yes" in holding.cell:
                    true = float((private["site"][private["ill"] == "yes"] == "old").mean())
                    off.append(not holding.low <= true <= holding.high)
                    wide.append(holding.high - holding.low)
        assert sum(off) <= 1
        widths.append(np.mean(wide) if wide else 1.0)
    assert widths[0] > widths[1] > widths[2]


def test_words_of_features_of_arrays_and_categories() -> None:
    generator = np.random.default_rng(1)
    x = generator.uniform(0, 1, (1200, 2))
    y = (x[:, 1] > 0.6).astype(int)
    sites = np.where(y[:1000] == 1, 2, np.arange(1000) % 2)
    found = dpv.value(
        (x[:1000], y[:1000]), (x[1000:], y[1000:]), groups=sites, privacy=None, model="trees", progress=False
    ).coverage()
    assert "2" in {holding.party for holding in found}
    assert any("with feature 1 above 0." in holding.cell or holding.cell == "of class 1" for holding in found)
    towns = people(2000)
    towns["ill"] = np.where(towns["town"] == "Bath", "yes", "no")
    owned = towns.assign(site=np.where(towns["town"] == "Bath", "west", np.where(towns.index % 2, "n", "s")))
    public = people(300)
    public["ill"] = np.where(public["town"] == "Bath", "yes", "no")
    told = [str(holding) for holding in result_for((owned, public), None).coverage()]
    assert any("west holds 100% (100% to 100%) of all records" in text for text in told)
    assert any("town 'Bath'" in text or "town not 'Ayr'" in text or "class yes" in text for text in told)


def test_releases_alone_are_read_and_many_parties_are_not_told_of(frames: Any) -> None:
    result = result_for(frames, dpv.Privacy(4.0, 1e-5, unit="record"))
    method = result.table.method
    assert isinstance(method, Trees)
    assert method.coverage(result.table) == result.coverage()
    private, public = frames
    many = private.assign(site=np.arange(len(private)) % 40)
    assert result_for((many, public), dpv.Privacy(4.0, 1e-5, unit="record")).coverage() == ()
    assert (
        dpv.value(
            private,
            public,
            target="ill",
            groups="site",
            privacy=None,
            progress=False,
            preprocess="columns",
            engine=ENGINE,
        ).coverage()
        == ()
    )


def test_the_report_shows_coverage(frames: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from dpvalue.cli import app

    monkeypatch.chdir(tmp_path)
    frames[0].to_csv("private.csv", index=False)
    frames[1].to_csv("public.csv", index=False)
    run = ["run", "private.csv", "--test", "public.csv", "--target", "ill", "--group", "site", "--model", "trees"]
    done = CliRunner().invoke(
        app, [*run, "--unit", "record", "--epsilon", "4", "--delta", "1e-5", "--yes", "--out", "results"]
    )
    assert done.exit_code == 0, done.output
    page = Path("results/report.html").read_text()
    assert "<h2>Coverage</h2>" in page
    assert "old holds " in page
    assert "of all records with age above" in page
    listed = fields.listed((Path(__file__).parents[2] / "docs" / "privacy-proof.md").read_text())
    for name in ("run.json", "report.html", "table.safetensors"):
        assert fields.of_file(name, (Path("results") / name).read_bytes()) - listed == set()
    again = CliRunner().invoke(app, ["report", "results"])
    assert again.exit_code == 0
    assert Path("results/report.html").read_text() == page
    more = CliRunner().invoke(app, ["revalue", "results", "--metric", "accuracy"])
    assert more.exit_code == 0, more.output
    linear = CliRunner().invoke(
        app, [*run[:-1], "logistic", "--unit", "record", "--delta", "1e-5", "--yes", "--force", "--out", "other"]
    )
    assert linear.exit_code == 0, linear.output
    assert "<h2>Coverage</h2>" not in Path("other/report.html").read_text()
