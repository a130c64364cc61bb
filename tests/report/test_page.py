"""The report in a real browser: it loads, draws, sorts and filters, in light and dark and on a phone."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpvalue as dpv
from dpvalue.data.parties import as_parties
from dpvalue.data.schema import Schema
from dpvalue.names import cell_of, escaped, name_of
from dpvalue.progress import silent
from dpvalue.report import report_page
from dpvalue.report.figures import Bar, Line, _ticks, bars, histogram, line_chart
from dpvalue.report.record import Record
from dpvalue.runs.config import make_config
from dpvalue.runs.execute import record_of_release, record_of_values
from dpvalue.runs.folder import table_curves, values_frame
from dpvalue.runs.sources import GroundTruth
from tests.datasets import regression
from tests.runs.test_folder import NAMES

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needs_browser = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and os.environ.get("CI") != "true",
    reason="no Chromium (Debian: chromium, chromium-driver)",
)


@pytest.fixture(scope="module")
def page() -> str:
    """The report of a small private run, with a hostile name among the parties."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(0, 1, (160, 3)), columns=["a", "b", "c"])
    frame["label"] = (frame["a"] > 0).astype(int)
    names = [f"party {i:02d}" for i in range(79)] + ["</script><b>x"]
    groups = np.array(names)[np.arange(80)]
    train, test = frame[:80], frame[80:].reset_index(drop=True)
    schema = Schema().fit(test.drop(columns="label"))
    plan = dpv.plan(
        train, test, target="label", groups=groups, preprocess=schema, privacy=dpv.Privacy(3.0), noise="fast"
    )
    result = plan.value(as_parties(train, "label", groups), semivalues=("shapley", "banzhaf"), progress=False)
    config = make_config({"train": ["train.csv"], "test": "test.csv", "target": "label"})
    known, curves = GroundTruth("wrong", np.arange(80) < 8), table_curves(result, silent)
    record = record_of_values(record_of_release(config, result.table, plan), result, known, curves)
    assert Record.from_json(json.loads(json.dumps(record.to_json())), "run.json") == record
    return report_page(values_frame(result, silent), record)


def test_the_page_needs_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r"""(src|href)=["'](?!data:)""", page)
    assert "http" not in re.sub(r"<!doctype.*?>|http-equiv", "", page)
    assert not re.search(r"<[^>]*\s(style|on\w+)=", page)  # the policy would not let it
    assert "<b>x" not in page  # a name is no markup
    assert page.count("<svg id=") == 4
    for text in ("Guarantee", "epsilon = 3", "Detection of marked parties", "Budget and ceilings", "DP noise"):
        assert text in page


def test_the_page_of_scores_says_what_is_valued() -> None:
    train, test = regression(40, test=60)
    result = dpv.value(
        train, test, model="linear", privacy=dpv.Privacy(4.0), noise="fast", progress=False,
        projection=dpv.Projection(1, "loss"),
    )  # fmt: skip
    config = make_config({"train": ["train.csv"], "test": "test.csv", "target": "label"})
    record = record_of_values(record_of_release(config, result.table, None), result, None, table_curves(result, silent))
    assert Record.from_json(json.loads(json.dumps(record.to_json())), "run.json") == record
    page = report_page(values_frame(result, silent), record)
    assert "exact. Each party released a score: what is valued is the sum of scores, an additive game." in page
    assert "Sum of scores as parties are removed." in page
    assert "utility</text>" not in page


@pytest.fixture(scope="module")
def few() -> str:
    """The report of six named parties of 10 to 60 records, one with bad labels, who share a total."""
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(generator.normal(0, 1, (330, 3)), columns=["a", "b", "c"])
    frame["label"] = (frame["a"] + 0.5 * frame["b"] > 0).astype(int)
    names = ["Charité", "=cmd|'x'!A1", "north & south", 'a "b" c', "</script><b>x", "bad, labels"]
    train, test = frame[:210].copy(), frame[210:].reset_index(drop=True)
    groups = np.repeat(names, [10, 20, 30, 40, 50, 60])
    train.loc[150:, "label"] = 1 - train.loc[150:, "label"]
    schema = Schema().fit(test.drop(columns="label"))
    result = dpv.value(
        train, test, target="label", groups=groups, preprocess=schema, privacy=dpv.Privacy(8.0, unit="record"),
        noise="fast", progress=False,
    )  # fmt: skip
    config = make_config({"train": ["train.csv"], "test": "test.csv", "target": "label", "pay": 1000.0})
    record = record_of_values(record_of_release(config, result.table, None), result, None, [], 1000.0)
    assert Record.from_json(json.loads(json.dumps(record.to_json())), "run.json") == record
    return report_page(values_frame(result, silent, 1000.0), record)


def test_few_parties_are_bars_with_names_and_the_verdict_comes_first(few: str) -> None:
    assert few.index("Verdict") < few.index('id="values-chart"') < few.index('id="parties"') < few.index("Guarantee")
    assert few.count('<span class="name"') == 12
    assert few.count('<path class="whisker"') == 12
    assert "Shares of 1,000.00 in proportion to values" in few
    assert "bad, labels harms the model" in few
    assert "The error of the game itself is not included" in few
    assert few.count('class="bar low"') == 2  # in the key, and the one of bad labels
    assert "<b>x" not in few
    for head in ("records", "per record", "payout", "DP noise"):
        assert f">{head}</button>" in few


def test_bars_stand_where_values_are() -> None:
    drawn = bars(
        "id", "a title", [Bar("x", 1.0, 0.5, 2.0, "one", ""), Bar("y", -2.0, -2.0, float("nan"), "two", "low")]
    )
    one, two = re.findall(r'<rect class="bar \w*" x="([\d.]+)" y="3" width="([\d.]+)"', drawn)
    assert (float(one[0]), float(one[1])) == (500, 250)
    assert (float(two[0]), float(two[1])) == (0, 500)
    assert 'd="M625.0 9H1000.0M' in drawn
    assert "nan" not in drawn
    assert bars("id", "t", [Bar("x", 0.0, 0.0, 0.0, "", "")])


@needs_browser
def test_the_table_can_be_saved(browser: Any, few: str, tmp_path: Path) -> None:
    """As values.csv holds it: no name is a formula."""
    show(browser, few, tmp_path)
    browser.execute_script("URL.createObjectURL = (file) => { window.saved = file; return 'data:,'; };")
    browser.find_element("id", "save").click()
    text = browser.execute_async_script("const [done] = arguments; window.saved.text().then(done)")
    saved = pd.read_csv(io.StringIO(text.removeprefix("\ufeff")))
    assert list(saved.columns)[:6] == ["party", "rank", "size", "shapley", "shapley_low", "shapley_high"]
    assert saved["payout"].sum() == pytest.approx(1000)
    assert saved["rank"].tolist() == [1, 2, 3, 4, 5, 6]
    expected = {"Charité", "'=cmd|'x'!A1", "north & south", 'a "b" c', "</script><b>x", "bad, labels"}
    assert set(saved["party"]) == expected
    assert [row[0] for row in rows(browser)] == [name_of(name) for name in saved["party"]]  # the best first
    script = next(script for script in re.findall(r"<script>(.*?)</script>", few, re.DOTALL))
    same = re.search(r"formula = (/.*/)\.test", script)
    assert same
    judged = browser.execute_script(
        f"return arguments[0].map((name) => {same[1]}.test(name))", list(map(escaped, NAMES))
    )
    assert judged == [str(cell_of(name)) != escaped(name) for name in NAMES]
    assert browser.get_log("browser") == []


INTRUDE = """
const [done] = arguments, blocked = [];
document.addEventListener("securitypolicyviolation", (event) => blocked.push(event.effectiveDirective));
const add = (tag, what) => document.body.append(Object.assign(document.createElement(tag), what));
add("script", { textContent: "window.intruded = 1" });
add("img", { src: "x.png" });
add("style", { textContent: "h1 { color: red }" });
document.querySelector("h1").setAttribute("onclick", "window.intruded = 2");
document.querySelector("h1").click();
fetch("x.json").catch(() => 0);
setTimeout(() => done([blocked, window.intruded || 0, getComputedStyle(document.querySelector("h1")).color]), 300);
"""


@needs_browser
def test_a_browser_runs_nothing_else_on_the_page(browser: Any, few: str, tmp_path: Path) -> None:
    """Its own style and script work, as the other tests see; whatever got into it would not."""
    show(browser, few, tmp_path)
    assert browser.get_log("browser") == []
    blocked, intruded, colour = browser.execute_async_script(INTRUDE)
    wanted = {"script-src-elem", "script-src-attr", "img-src", "style-src-elem", "connect-src"}
    assert set(blocked) >= wanted - {"connect-src"}
    assert (intruded, colour) == (0, browser.execute_script("return getComputedStyle(document.body).color"))
    assert all("Content Security Policy" in entry["message"] for entry in browser.get_log("browser"))


@needs_browser
@pytest.mark.parametrize("width", [1100, 390], ids=["desk", "phone"])
def test_bars_are_readable_everywhere(browser: Any, few: str, tmp_path: Path, width: int) -> None:
    show(browser, few, tmp_path, width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(CONTRAST) >= 4.5
    wide = "return [...document.querySelectorAll('.bars svg')].map((s) => s.getBoundingClientRect().width)"
    assert min(browser.execute_script(wide)) > 200


def test_charts_put_points_where_they_belong() -> None:
    line = Line("x", "", np.array([0.0, 1.0]), np.array([0.0, 10.0]))
    drawn = line_chart("id", "a title", [line], "x axis", "y axis")
    ((x0, y0), (x1, y1)) = [
        tuple(map(float, pair.split())) for pair in re.findall(r'class="line " d="M([\d. ]+)L([\d. ]+)"', drawn)[0]
    ]
    assert x1 > x0
    assert y1 < y0  # up is more
    assert "<title" in drawn
    bars = re.findall(r"<title>(\d+) parties", histogram("id", "t", np.array([0.0, 0.0, 0.0, 1.0]), "v"))
    assert sorted(map(int, bars)) == [1, 3]
    assert _ticks(-0.2, 0.9) == [-0.2, 0.0, 0.2, 0.4, 0.6, 0.8]
    assert line_chart("id", "t", [Line("flat", "", np.arange(3.0), np.full(3, np.nan))], "x", "y")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
        "--disable-background-networking", "--disable-component-update", "--window-size=1100,1400",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    yield driver
    driver.quit()


def show(browser: Any, page: str, folder: Path, width: int = 1100, dark: bool = False) -> None:
    file = folder / "report.html"
    file.write_text(page, encoding="utf-8")
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(file.as_uri())


def rows(browser: Any) -> list[list[str]]:
    script = "return [...document.querySelectorAll('#parties tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
    found: list[list[str]] = browser.execute_script(script)
    return found


@needs_browser
def test_it_loads_sorts_and_filters(browser: Any, page: str, tmp_path: Path) -> None:
    show(browser, page, tmp_path)
    assert browser.get_log("browser") == []
    assert browser.title == "Data values of 80 parties"
    shown = rows(browser)
    assert len(shown) == 50
    assert [int(row[1]) for row in shown] == list(range(80, 30, -1))  # the lowest values first
    heads = browser.find_elements("css selector", "#parties th button")
    heads[1].click()
    assert [int(row[1]) for row in rows(browser)[:3]] == [1, 2, 3]
    assert browser.find_elements("css selector", "th[aria-sort=ascending]")
    values = [float(row[2]) for row in rows(browser)]
    assert values == sorted(values, reverse=True)
    browser.find_element("id", "more").click()
    assert len(rows(browser)) == 80
    search = browser.find_element("id", "search")
    search.send_keys("party 07")
    assert [row[0] for row in rows(browser)] == ["party 07"]
    assert browser.find_element("id", "shown").text == "1 of 1 parties"
    search.clear()
    search.send_keys("</SCRIPT>")
    assert [row[0] for row in rows(browser)] == ["</script><b>x"]
    assert browser.get_log("browser") == []


@needs_browser
def test_the_keyboard_reaches_everything(browser: Any, page: str, tmp_path: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    show(browser, page, tmp_path)
    browser.find_element("id", "search").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.get_attribute("id") == "save"
    browser.switch_to.active_element.send_keys(Keys.TAB, Keys.TAB)  # the table, then its first button
    focused = browser.switch_to.active_element
    assert focused.tag_name == "button"
    focused.send_keys(Keys.ENTER)
    assert rows(browser)[0][0] == "</script><b>x"
    assert browser.execute_script("return document.querySelector('label[for=search]') !== null")
    unnamed = "return [...document.querySelectorAll('svg[role=img]')].filter(s => !s.querySelector('title')).length"
    assert browser.execute_script(unnamed) == 0


CONTRAST = """
const light = (c) => { const v = c.match(/[\\d.]+/g).slice(0, 3).map(Number).map((x) => x / 255)
  .map((x) => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
const behind = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
  if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
const texts = document.querySelectorAll('p, dt, dd, td, th button, figcaption, li, li span, .tick, .label');
return Math.min(...[...texts].map((e) => {
  const style = getComputedStyle(e), ink = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
  const [a, b] = [light(ink), light(behind(e))].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05); }));
"""


@needs_browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1100, 390], ids=["desk", "phone"])
def test_it_is_readable_everywhere(browser: Any, page: str, tmp_path: Path, width: int, dark: bool) -> None:
    show(browser, page, tmp_path, width, dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # nothing sticks out
    assert browser.execute_script(CONTRAST) >= 4.5
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 23, 26)") is dark
    heights = "return [...document.querySelectorAll('svg.chart')].map((s) => s.getBoundingClientRect().height)"
    assert min(browser.execute_script(heights)) > 100
    marks = "return document.querySelectorAll('svg.chart .line, svg.chart .bar').length"
    assert browser.execute_script(marks) > 10
    assert len(browser.get_screenshot_as_png()) > 20_000
