"""The names of all fields of an output: what a file, a message or a page has places for, whatever stands in them."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
import tomllib
from html import unescape
from pathlib import PurePath
from typing import Any

from dpvalue.protocol.archive import read_metadata
from dpvalue.protocol.transport import Question, Reply

Fields = set[tuple[str, str]]
"""Pairs of an output and a field of it."""
SHARED = {"guarantee": "guarantee", "table": "table"}  # values that several outputs hold, under a name of their own
ARCHIVES = {".job": "job", ".request": "request", ".release": "release", ".safetensors": "table"}


def of_json(output: str, value: Any, path: str = "") -> Fields:
    """The fields of a JSON value; those of the items of a list are those of one item."""
    name = path.rpartition(".")[2]
    if (name in SHARED and path != name) or (name == "guarantee" and output != "guarantee"):
        output, path = SHARED[name], ""
    if isinstance(value, dict):
        return set().union(*(of_json(output, part, f"{path}.{key}".strip(".")) for key, part in value.items()))
    if isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        return set().union(*(of_json(output, part, path) for part in value))
    return {(output, path or "NAME")}


def of_archive(output: str, content: bytes) -> Fields:
    """The fields of a file of tensors: those of its header, its seal, and the names of its tensors."""
    stored = read_metadata(content, output)
    found = of_json(output, stored.pop("header"))
    found |= {(output, f"file.{name}") for name in stored if name != "seal"}
    found |= {(output, f"seal.{name}") for name in stored.get("seal", {})}
    size = int.from_bytes(content[:8], "little")
    for name in json.loads(content[8 : 8 + size]):
        if name != "__metadata__":
            table = name.startswith("table.")
            plain = re.sub(r"\.\d+$", "", name.removeprefix("table."))
            found.add(("table" if table else output, f"tensor {plain}"))
    return found


def of_ledger(dump: list[str]) -> Fields:
    """The columns of a ledger, and the fields of what is JSON in them."""
    found: Fields = set()
    with sqlite3.connect(":memory:") as database:
        database.executescript("\n".join(dump))
        for kind, name in database.execute("SELECT type, name FROM sqlite_master").fetchall():
            if kind != "table":
                continue
            rows = database.execute(f"SELECT * FROM {name}")
            columns = [column[0] for column in rows.description]
            found |= {("ledger", f"{name}.{column}") for column in columns}
            for row in rows.fetchall():
                for column, cell in zip(columns, row, strict=True):
                    if isinstance(cell, str) and cell.startswith("{"):
                        found |= of_json("ledger", json.loads(cell), f"{name}.{column}")
    return found


def of_page(page: str) -> Fields:
    """The headings, terms and column heads of a report."""
    texts = re.findall(r"<(?:h1|h2|dt|th)[^>]*>(.*?)</(?:h1|h2|dt|th)>", page, re.DOTALL)
    plain = (unescape(re.sub(r"<[^>]*>", "", text)) for text in texts)
    kinds = r"\b(shapley|banzhaf|loo|beta\(.*?\))"
    found = {("report.html", re.sub(kinds, "VALUE", re.sub(r"\d[\d,]*", "N", text))) for text in plain}
    found |= {("report.html", f"chart {name}") for name in re.findall(r'<(?:svg|ol) id="([^"]*)"', page)}
    rows = json.loads(re.findall(r'id="rows">(.*?)</script>', page)[0])
    return found | {("report.html", f"rows {name}") for name in rows} | of_columns("values.csv", rows["columns"])


def of_columns(output: str, names: list[str]) -> Fields:
    """Columns, with one name for all semivalues."""
    return {(output, re.sub(r"^(shapley|banzhaf|loo|beta\(.*?\))", "VALUE", name)) for name in names}


def of_file(path: str, content: Any) -> Fields:
    """The fields of a file, by its name; its name is one as well."""
    place = PurePath(path)
    if place.suffix == ".ledger":
        return of_ledger(content)
    if place.suffix in ARCHIVES:
        return of_archive(ARCHIVES[place.suffix], content)
    if place.suffix == ".html":
        return of_page(content.decode())
    if place.suffix == ".csv":
        return of_columns("values.csv", next(csv.reader(io.StringIO(content.decode()))))
    if place.suffix == ".toml":
        return of_json(place.name, tomllib.loads(content.decode()))
    if place.name == "nodes.json":
        return {("nodes.json", "NODE") for _ in json.loads(content)}
    if place.suffix == ".jsonl":
        return set().union(*(of_json(place.name, json.loads(line)) for line in content.decode().splitlines()))
    if place.suffix == ".json":
        return of_json(place.name, json.loads(content))
    if place.name.startswith("release-"):
        return of_json("checkpoint", json.loads(content.partition(b"\n")[0])) | {("checkpoint", "bytes")}
    return {(place.suffix or place.name, "line")}


def of_terminal(printed: str, known: set[str], prefixes: list[str]) -> Fields:
    """The beginnings of lines, as `prefixes` have them, or else the whole line; the heads of tables.

    Lines that are in `known` stand in a field of a file as well.
    """
    found: Fields = set()
    for line in printed.splitlines():
        text = line.strip()
        if not text or text in known or not set(text) - set("─"):
            continue
        if line.startswith("  ") and not text[0].isdigit():
            found |= of_columns("terminal", [f"column {head}" for head in re.split(r"\s{2,}", text)])
        elif not line.startswith("  "):
            plain = re.sub(
                r"\S+\.(key|ledger|release|request)\b", "FILE", re.sub(r"\b(shapley|banzhaf)\b", "VALUE", text)
            )
            plain = re.sub(r"\d+", "N", plain)
            found.add(("terminal", next((prefix for prefix in prefixes if plain.startswith(prefix)), plain)))
    return found


def of_messages(messages: list[Question | Reply]) -> Fields:
    """The fields of messages over Flower, and of what they carry."""
    found: Fields = set()
    for message in messages:
        found |= {(f"message {type(message).__name__}", name) for name in vars(message)}
        for name, content in vars(message).items():
            if isinstance(content, bytes) and content:
                found |= of_archive(name, content)
    return found


def listed(page: str) -> Fields:
    """The fields in the table of a page: `outputs` | `fields` | what they come from."""
    found: Fields = set()
    lines = iter(page.splitlines())
    for line in lines:
        if line.startswith("| output | fields |"):
            break
    for line in lines:
        if not line.startswith("|"):
            break
        outputs, _, fields = line.partition(" | ")
        fields = fields.rpartition(" | ")[0]
        for output in re.findall(r"`([^`]*)`", outputs):
            found |= {(output, field) for field in re.findall(r"`([^`]*)`", fields)}
    return found
