"""The report as one HTML page: verdict, values, guarantee, curves, ceilings and settings."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from dpvalue.arrays import Floats
from dpvalue.detection import is_useful
from dpvalue.display import MOST_NAMED, counted, safe
from dpvalue.errors import DpvalueError
from dpvalue.games.solving import MOST_PLAYERS_ENUMERATED
from dpvalue.methods.scores import Scores
from dpvalue.report.figures import (
    LARGEST,
    Bar,
    Line,
    bars,
    histogram,
    line_chart,
    shown_columns,
    table_data,
    table_section,
)
from dpvalue.report.glossary import TERMS, tooltip
from dpvalue.report.record import Record, Valuation
from dpvalue.values.payouts import amount

if TYPE_CHECKING:
    import pandas


def policy(style: str, script: str) -> str:
    """Return a Content-Security-Policy that allows the page's own style and script by digest, and nothing else."""
    style, script = (b64encode(sha256(text.encode()).digest()).decode() for text in (style, script))
    return (
        f"default-src 'none'; style-src 'sha256-{style}'; script-src 'sha256-{script}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


_MOST_POINTS = 1000

_PROTECTED = {"party": "all data of each party", "record": "each record", "person": "all records of each person"}

_CURVES = {"removal": "as parties are removed.", "addition": "as parties are added."}


def report_page(values: pandas.DataFrame, record: Record) -> str:
    """Return the report as HTML, from `values.csv` and `run.json` of an output folder."""
    if record.values is None:
        raise DpvalueError("a report needs values, and this run has none yet")
    names, pay = record.values.semivalues, record.values.pay
    columns = shown_columns(values, names, "person" if record.guarantee.unit == "person" else "record", pay)
    few = len(values) <= MOST_NAMED
    sections = [
        _verdict(record.values),
        _bars(values, names[0], pay) if few else _curve(values, names[0], record),
        table_section(values, columns),
        _coverage(record.values),
        _promise(record),
        _federated(record),
        _tasks(record),
        _detection(record),
        _ceilings(record),
        _repeat(record),
        _glossary(),
    ]
    assets = files("dpvalue.report")
    style, script = (f"\n{(assets / name).read_text(encoding='utf-8')}" for name in ("style.css", "table.js"))
    title = f"Data values of {len(values)} parties"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{safe(title)}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{safe(title)}</h1>
<p class="soft">{safe(_summary(record, record.values, len(values)))}</p>
{"".join(section for section in sections if section)}
</main>
<script type="application/json" id="rows">{table_data(values, columns)}</script>
<script>{script}</script>
</body>
</html>
"""


def _summary(record: Record, values: Valuation, parties: int) -> str:
    walked = f"{counted(values.walks, 'permutation')}" if values.walks else "exact"
    if values.game:
        walked += f". Each party {values.game}"
    elif not values.walks:
        few = parties <= MOST_PLAYERS_ENUMERATED
        walked = "exact, over all coalitions" if few else "exact expectations over all coalitions"
    return (
        f"Value of each party's data to a {record.trained.model} model ({record.trained.task}). "
        f"Utility: {values.utility}. Semivalues: {', '.join(values.semivalues)}; {walked}. Created {record.made} with "
        f"dpvalue {record.versions.dpvalue}."
    )


def _promise(record: Record) -> str:
    spent, ledger = record.guarantee, record.ledger
    sentence = safe(spent)
    if spent.unit is None:
        return f'<section class="promise none"><h2>Guarantee</h2><p class="big">{sentence}</p></section>'
    numbers = {
        "protected": ("unit", _PROTECTED[spent.unit]),
        "neighbours": ("neighbours", f"{spent.neighbours}"),
        "epsilon": ("epsilon", f"{spent.epsilon:.4g}"),
        "delta": ("delta", f"{spent.delta:.4g}"),
        "mu": ("mu", "none (pure)" if spent.mu is None else f"{spent.mu:.4g}"),
        "mechanism": ("mechanism", f"{spent.mechanism}, {counted(spent.releases, 'release')} per party"),
        "noise multiplier": ("noise multiplier", f"{spent.noise_multiplier:.4g}"),
        "attacker's advantage": ("attacker's advantage", f"at most {spent.advantage:.2g}"),
    }
    if ledger is not None:
        numbers["ledger: spent"] = "ledger", f"epsilon = {ledger.spent:.4g} of {ledger.epsilon:.4g}"
        numbers["ledger: head"] = "head", ledger.head[:20] + "..."
    return f'<section class="promise"><h2>Guarantee</h2><p>{sentence}</p>{_terms(numbers)}</section>'


def _federated(record: Record) -> str:
    """The participants of a study, and the rejected releases."""
    study, protects = record.federated, record.guarantee.unit
    terms = {"party": "party", "persons" if protects == "person" else "records": "unit", "releases": "release"}
    if study is None:
        return ""
    cells = []
    for party in study.answered:
        key = f"{party.key[:20]}..." if party.key else "not signed"
        cells.append((party.party, f"{party.units:,}", f"{party.rounds} of {study.rounds}", key))
    heads = "".join(f"<th{tooltip(term)}>{head}</th>" for head, term in terms.items()) + "<th>signed by</th>"
    rows = "".join("<tr>" + "".join(f"<td>{safe(cell)}</td>" for cell in line) + "</tr>" for line in cells)
    text = (
        "Each party released from its own machine, with its own noise. Parties report their own sizes. A party that "
        "releases false data makes the values wrong. It does not affect the privacy of others."
    )
    lost = "".join(f"<li>{safe(f'{gone.party}, round {gone.round}: {gone.why}')}</li>" for gone in study.rejected)
    return (
        f"<section><h2>Participants</h2><p>{text}</p><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody>"
        f"</table>{f'<p>Rejected releases:</p><ul>{lost}</ul>' if lost else ''}</section>"
    )


def _verdict(values: Valuation) -> str:
    *said, about = values.verdict or ("",)
    lines = "".join(f"<p>{safe(sentence)}</p>" for sentence in said)
    return f'<section class="verdict"><h2>Verdict</h2>{lines}<p class="soft">{safe(about)}</p></section>'


def _bars(values: pandas.DataFrame, name: str, pay: float | None) -> str:
    """Bars of values by party, highest first, and bars of payouts."""
    frame = values.sort_values(name, ascending=False, kind="stable")
    names = [str(party) for party in frame["party"]]
    worth, low, high = _with_interval(frame, name)
    styles = np.where(low > 0, "", np.where(high < 0, "low", "random"))
    drawn = [
        Bar(party, *edges, f"{edges[0]:+.3g} ({edges[1]:+.2g} to {edges[2]:+.2g})", str(style))
        for party, edges, style in zip(names, zip(worth, low, high, strict=True), styles, strict=True)
    ]
    keys = [("bar", "improves the model"), ("bar low", "harms the model"), ("bar random", "inconclusive")]
    figures = _figure("values-chart", f"{name} values, highest first", drawn)
    if pay is not None and "payout" in frame:
        paid = []
        for party, *edges in zip(names, *_with_interval(frame, "payout"), strict=True):
            share, low_share, high_share = (float(edge) for edge in edges)
            words = f"{amount(share, pay)} ({amount(low_share, pay)} to {amount(high_share, pay)})"
            paid.append(Bar(party, share, low_share, high_share, words, ""))
        title = f"Shares of {amount(pay, pay)} in proportion to values; values below zero count as zero"
        figures += _figure("payouts-chart", title, paid)
    return f'<section><h2>Values</h2>{_keys(keys)}<div class="stack">{figures}</div></section>'


def _coverage(values: Valuation) -> str:
    """Who holds what others lack, with bars of the noise."""
    if not values.coverage:
        return ""
    drawn = []
    for held in values.coverage:
        words = f"{held.share:.0%} ({held.low:.0%} to {held.high:.0%})"
        drawn.append(Bar(f"{held.party}: {held.cell}", held.share, held.low, held.high, words, ""))
    lines = "".join(f"<li>{safe(held)}</li>" for held in values.coverage)
    figure = _figure("coverage-chart", "Shares of all records with the same features or class", drawn)
    return f'<section><h2>Coverage</h2><ul>{lines}</ul><div class="stack">{figure}</div></section>'


def _figure(name: str, title: str, drawn: list[Bar]) -> str:
    text = f"{title}. Lines are 95% intervals."
    return f"<figure>{bars(name, title, drawn)}<figcaption>{safe(text)}</figcaption></figure>"


def _with_interval(frame: pandas.DataFrame, name: str) -> tuple[Floats, Floats, Floats]:
    """A column and the ends of its interval; without an interval, the column itself."""
    middle = _numbers(frame, name)
    low, high = (_numbers(frame, f"{name}_{end}") if f"{name}_{end}" in frame else middle for end in ("low", "high"))
    return middle, low, high


def _curve(values: pandas.DataFrame, name: str, record: Record) -> str:
    shown = values.sort_values(name, ascending=False, kind="stable")
    if len(shown) > _MOST_POINTS:
        shown = shown.iloc[np.linspace(0, len(shown) - 1, _MOST_POINTS).astype(int)]
    place = _numbers(shown, "rank")
    y, errors, noise = (_numbers(shown, f"{name}{ending}") for ending in ("", "_mc_error", "_noise"))
    bands = [("noise", y - noise, y + noise), ("error", y - errors, y + errors)]
    line = Line(name, "", place, y, bands)
    chart = line_chart("values-chart", f"{name} values by rank", [line], "party, by rank", f"{name} value")
    typical_noise, typical_error = (_known(numbers, np.median) for numbers in (noise, errors))
    spread = _known(y, np.std)
    text = f"Values in descending order. Median DP noise {typical_noise:.3g}, Monte Carlo error "
    text += f"{typical_error:.3g}, standard deviation of the values {spread:.3g}."
    if record.guarantee.private and typical_noise > spread:
        text += " The noise exceeds this deviation: single values mean little."
    everyone = _numbers(values, name)
    bars = histogram(
        "histogram-chart", f"Distribution of {name} values", everyone[np.isfinite(everyone)], f"{name} value"
    )
    keys = [("line", name), ("band", "± DP noise (one standard deviation)"), ("band error", "± Monte Carlo error")]
    return (
        f"<section><h2>Values</h2>{_keys(keys)}"
        f'<div class="pair"><figure>{chart}<figcaption>{safe(text)}</figcaption></figure><figure>{bars}'
        "<figcaption>Number of parties by value. Classes are not shown: they are private."
        "</figcaption></figure></div></section>"
    )


def _tasks(record: Record) -> str:
    figures = []
    worth = "utility" if record.values is None or record.values.game != Scores.summary else Scores.worth_label
    for kind, how in _CURVES.items():
        text = f"{worth.capitalize()} {how}"
        curves = [curve for curve in record.curves if curve.kind == kind]
        if not curves:
            continue
        lines = []
        for curve in curves:
            x, y, spread = (np.array(numbers, dtype=float) for numbers in (curve.shares, curve.mean, curve.spread))
            bands = [("random", y - spread, y + spread)] if spread.any() else []
            lines.append(Line(curve.order, curve.order, x, y, bands))
        done = "removed" if kind == "removal" else "added"
        chart = line_chart(f"{kind}-chart", text, lines, f"share of parties {done}", worth)
        raw = "From the private table. Values and curves share its noise, which widens the gap between orders."
        if curves[0].retrained:
            raw = "Models are retrained on raw rows, without privacy."
        figures.append(f"<figure>{chart}<figcaption>{safe(text)} {safe(raw)}</figcaption></figure>")
    if not figures:
        return ""
    keys = [("line high", "highest values first"), ("line low", "lowest values first"), ("line random", "random order")]
    drawn = f'{_keys(keys)}<div class="pair">{"".join(figures)}</div>'
    return f"<section><h2>Removal and addition curves</h2>{drawn}</section>"


def _detection(record: Record) -> str:
    known = record.detection
    if known is None:
        return ""
    numbers = {
        f"AUC ({known.column})": ("AUC", f"{known.auc:.3f}"),
        f"precision in the {known.k} lowest": ("precision", f"{known.precision:.0%}"),
        "marked as corrupted": ("", known.corrupted),
        "by chance": ("", f"AUC 0.5, precision {known.chance:.0%}"),
    }
    return f"<section><h2>Detection of marked parties</h2>{_terms(numbers)}</section>"


def _ceilings(record: Record) -> str:
    plan, unit = record.plan, record.guarantee.unit
    if plan is None or unit is None:
        return ""
    expected, ceiling, many = plan.expected_auc, plan.ceiling, plan.records > 1
    units = {"party": "parties", "record": "records", "person": "persons"}[unit]
    rows = [f"This budget sets no useful limit on the detection of single corrupted {units}."]
    if is_useful(ceiling):
        rows = [
            f"Without a trusted curator, this budget allows a mean AUC of at most {ceiling:.3f} for the detection of "
            f"single corrupted {units}."
        ]
    meter = ""
    if expected is not None:
        planted = "half of their labels wrong" if many else "a wrong label"
        rows.append(f"Expected AUC for parties with {planted}: {expected:.3f}, from the rehearsal.")
        if plan.efficiency is not None:
            share = max(0.0, min(1.0, plan.efficiency))
            meter = (
                '<svg class="meter" viewBox="0 0 100 1" preserveAspectRatio="none" role="img">'
                f"<title>{share:.0%} of the ceiling</title>"
                f'<rect width="{100 * share:.0f}" height="1"/></svg>'
                f"<p>{share:.0%} of the way from chance to the ceiling.</p>"
            )
    rows.append(plan.advice)
    return f"<section><h2>Budget and ceilings</h2>{''.join(f'<p>{safe(row)}</p>' for row in rows)}{meter}</section>"


def _repeat(record: Record) -> str:
    return (
        "<section><h2>Settings</h2>"
        f"<p>{safe(record.trained.how)}. Public seed {safe(record.trained.seed)}.</p>"
        f"<pre>{safe(record.toml)}</pre></section>"
    )


def _terms(numbers: dict[str, tuple[str, str]]) -> str:
    """A list of names and numbers, each with a term of the glossary (or none)."""
    items = (
        f"<div><dt{tooltip(term) if term else ''}>{safe(name)}</dt><dd>{safe(number)}</dd></div>"
        for name, (term, number) in numbers.items()
    )
    return f"<dl>{''.join(items)}</dl>"


def _glossary() -> str:
    """All terms that tooltips explain, for readers without a mouse."""
    terms = "".join(f"<li><b>{safe(term)}</b>: {safe(meaning)}</li>" for term, meaning in TERMS.items())
    return f"<section><details><summary>Glossary</summary><ul>{terms}</ul></details></section>"


def _keys(keys: list[tuple[str, str]]) -> str:
    def sample(style: str) -> str:
        if style.startswith("line"):
            return f'<svg aria-hidden="true" viewBox="0 0 36 12"><path class="{style}" d="M0 6H36"/></svg>'
        return f'<svg aria-hidden="true" viewBox="0 0 36 12"><rect class="{style}" width="36" height="12"/></svg>'

    return '<ul class="keys">' + "".join(f"<li>{sample(style)}{safe(text)}</li>" for style, text in keys) + "</ul>"


def _numbers(frame: pandas.DataFrame, column: str) -> Floats:
    """A column as numbers, NaN for what cannot be drawn; zeros where there is none."""
    if column not in frame:
        return np.zeros(len(frame))
    numbers: Floats = frame[column].to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.abs(numbers) < LARGEST, numbers, np.nan)


def _known(numbers: Floats, summary: Callable[[Floats], Any]) -> float:
    """A summary of the numbers that are not missing; NaN if all are."""
    present = numbers[~np.isnan(numbers)]
    return float(summary(present)) if len(present) else float("nan")
