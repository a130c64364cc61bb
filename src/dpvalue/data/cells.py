"""Parsing of cells: the canonical text, the number and the identity of one cell, whatever file it comes from.

Each function parses one cell alone, so no cell affects how another is parsed.

The canonical text of a cell:

- *missing* (None): None, NaN, NaT, and the texts of `MISSING` (empty, NA, NULL, ?, ...).
- a whole number: its digits, without leading zeros, plus sign or empty fraction: 7, 7.0, "7", "007" and "+7." are "7".
- any other number: Python's shortest form of the nearest double: "0.50" and 0.5 are "0.5", "1e3" is "1000".
- true and false, in any case, are "true" and "false".
- a date or a time of ISO 8601: "2024-05-01"; "2024-05-01 10:00" is "2024-05-01T10:00:00"; at midnight the date alone;
  with a zone, the time in UTC.
- any other text: itself, in Unicode's form NFC, without white space around it. Bytes are read as UTF-8; what is not
  UTF-8 in them is U+FFFD.

A text of more than `LONGEST_CELL` characters, or with more than `MOST_MARKS` combining marks in a row, is *unreadable*:
it has no canonical text, is no number and no identity, and is not missing. The limits bound the time that Unicode
normalisation takes, which grows with the square of a run of marks.

A text of more than 400 characters is no number and no date. As a *number*, a cell is a double; true and false are 1 and
0. What is missing is NaN; what is not a finite number (a word, a date, 1e400, infinity) is infinite.

As an *identity* (an id, the name of a party) only whole numbers have another form than their text: 7, "7.0" and "007"
are "7", but "1.10", "12e5" and "TRUE" stay as they are. A float that is too large to tell whole numbers apart
(2^53, for float32 2^24) is no identity. The name of a party is missing only if it is empty; "NA" is a name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import inf, isfinite, nan
from typing import Any
from uuid import UUID

import numpy as np

LONGEST_CELL = 2**16
"""The length of the longest readable text, in characters."""

MOST_BYTES = 4 * LONGEST_CELL
"""The size of the longest readable text in UTF-8, in bytes. A reader may cut a longer text to one byte more."""

MOST_MARKS = 30
"""The largest number of consecutive combining marks, as in Unicode's stream-safe format (UAX 15)."""

_MARKS_WITHOUT_CLASS = "\u0f73\u0f75\u0f81"  # they become two marks each, and have no combining class of their own


def is_readable(cell: str) -> bool:
    r"""Return whether a text is within the limits.

    >>> [is_readable(cell) for cell in ("north", "x" * 70_000, "a" + "\u0301" * 30, "a" + "\u0301" * 31)]
    [True, False, True, False]
    """
    return len(cell) <= LONGEST_CELL and not _stacks_marks(cell)


def readable(cell: str) -> str | None:
    """Return a text in Unicode's form NFC, without surrounding white space; None if it is unreadable.

    Lone surrogates are replaced by U+FFFD. The result is readable itself: normalisation may lengthen a text, and ids
    are parsed twice.
    """
    if not is_readable(cell):
        return None
    cell = cell.strip()
    if cell.isascii():
        return cell
    whole = cell.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    canonical = unicodedata.normalize("NFC", whole)
    return canonical if is_readable(canonical) else None


def decode(cell: bytes) -> str:
    """Return bytes as text in UTF-8, with U+FFFD for invalid bytes. A cell that is too long stays too long."""
    return cell[: MOST_BYTES + 1].decode("utf-8", errors="replace")


def _stacks_marks(cell: str) -> bool:
    """Whether a text has more than `MOST_MARKS` consecutive combining marks."""
    if len(cell) <= MOST_MARKS or cell.isascii():
        return False
    run = 0
    for letter in cell:
        run = run + 1 if unicodedata.combining(letter) or letter in _MARKS_WITHOUT_CLASS else 0
        if run > MOST_MARKS:
            return True
    return False


MISSING = frozenset(
    (
        "", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "NaT", "<NA>", "#N/A",
        "#N/A N/A", "#NA", "?", "-1.#IND", "1.#IND", "-1.#QNAN", "1.#QNAN",
    )
)  # fmt: skip

_BOOLEANS = {"true": 1.0, "false": 0.0}

_INFINITE = ("inf", "infinity")

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?", re.ASCII)

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)

_LARGE_FLOAT = re.compile(r"[+-]?[0-9](?:\.[0-9]+)?e\+[0-9]+", re.ASCII)  # as programs write floats from 1e16 on

_LONGEST = 400

_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?(Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.ASCII,
)

_MOST_BITS = 4096


def text(cell: Any) -> str | None:
    """Return the canonical text of a cell; None if it is missing, unreadable or not a scalar.

    >>> [text(cell) for cell in (7, 7.0, " 007 ", "7.50", True, "TRUE", "2024-05-01 00:00:00", "NA", "north")]
    ['7', '7', '7', '7.5', 'true', 'true', '2024-05-01', None, 'north']
    """
    if isinstance(cell, str):
        return _text(cell)
    plain = _plain(cell)
    if plain is None or isinstance(plain, str):
        return None if plain is None else _text(plain)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, int):
        return str(plain) if plain.bit_length() <= _MOST_BITS else None
    return _of_double(plain)


def number(cell: Any) -> float:
    """Return a cell as a number: NaN if it is missing, infinity if it is not a finite number.

    >>> [number(cell) for cell in ("1.5", True, "false", "", "1e400", "maybe", -inf)]
    [1.5, 1.0, 0.0, nan, inf, inf, inf]
    """
    if isinstance(cell, str):
        return _number(cell)
    plain = _plain(cell)
    if plain is None:
        return nan if is_missing(cell) else inf
    if isinstance(plain, str):
        return _number(plain)
    if isinstance(plain, int) and plain.bit_length() > 1023:  # too large for a double
        return inf
    double = float(plain)
    return double if isfinite(double) else inf


def identity(cell: Any) -> str | None:
    """Return the canonical form of an id; None if it is missing, or a float too large for exact whole numbers.

    >>> [identity(cell) for cell in ("007", 7.0, 2**60, 2.0**60, "1.2e+18", "12e5", "A-7", "1.10", "NA")]
    ['7', '7', '1152921504606846976', None, None, '12e5', 'A-7', '1.10', None]
    """
    return None if is_missing(cell) else party_name(cell)


def party_name(cell: Any) -> str | None:
    """Return the canonical form of a party's name; None if it is empty, unreadable, or too large a float.

    >>> [party_name(cell) for cell in ("007", "NA", "", None, " north ", 3)]
    ['7', 'NA', None, None, 'north', '3']
    """
    exact = 2.0 ** min(53, np.finfo(cell.dtype).nmant + 1 if isinstance(cell, np.floating) else 53)
    plain = cell if isinstance(cell, str) else _plain(cell)
    if isinstance(plain, str):
        canonical = readable(plain)
        if canonical is None:
            return None
        plain = canonical
        whole = _WHOLE.fullmatch(plain) if len(plain) <= _LONGEST else None
        if whole is not None and ("." not in plain or abs(float(plain)) < exact):
            return text(plain)
        written_as_float = whole is not None or (len(plain) <= _LONGEST and _LARGE_FLOAT.fullmatch(plain) is not None)
        return None if written_as_float else plain or None
    if isinstance(plain, float) and abs(plain) >= exact:
        return None
    return text(plain)


def is_missing(cell: Any) -> bool:
    """Return whether a cell is missing, and not merely unreadable."""
    if isinstance(cell, bytes):
        cell = decode(cell)
    if isinstance(cell, str):
        return len(cell) <= LONGEST_CELL and cell.strip() in MISSING
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(cell, Decimal):
        return cell.is_nan()  # to compare one that signals would raise
    return isinstance(cell, float | np.floating | np.datetime64) and bool(cell != cell)


def is_infinite(cell: Any) -> bool:
    """Return whether a cell is an infinite number, or a number too large for a double."""
    if isinstance(cell, str):
        if len(cell) > LONGEST_CELL or len(cell := cell.strip()) > _LONGEST:
            return False
        return number(cell) == inf and (_NUMBER.fullmatch(cell) is not None or cell.lower().lstrip("+-") in _INFINITE)
    return isinstance(_plain(cell), int | float) and number(cell) == inf


def parse_cells(cells: list[Any], parse: Callable[[Any], Any]) -> list[Any]:
    """Return `parse(cell)` of each cell; equal texts are parsed once."""
    if set(map(type, cells)) <= {str, type(None)}:
        parsed = {cell: parse(cell) for cell in set(cells)}
        return list(map(parsed.__getitem__, cells))
    # Equal cells are parsed one by one: 1, 1.0 and True are equal in Python but have different texts.
    return [parse(cell) for cell in cells]


def index_of(names: tuple[Any, ...]) -> dict[str, int]:
    """Return the place of each public name (class, category) by canonical text; "true" and "1" are synonyms.

    >>> index_of(("no", "yes"))
    {'no': 0, 'yes': 1}
    >>> index_of((0, 1))["true"], index_of((False, True))["1"]
    (1, 1)
    """
    places: dict[str, int] = {}
    for place, name in enumerate(names):
        places.setdefault(text(name) or "", place)
    for word, digit in (("true", "1"), ("false", "0")):
        if word in places or digit in places:
            places.setdefault(word, places.get(digit, -1))
            places.setdefault(digit, places[word])
    places.pop("", None)
    return places


def _plain(cell: Any) -> str | bool | int | float | None:
    """A cell that is not a text as a plain Python value; None if it is missing or not a scalar."""
    if isinstance(cell, np.floating):
        cell = float(cell)
    elif isinstance(cell, np.generic) and not isinstance(cell, np.datetime64):
        cell = cell.item()
    if isinstance(cell, bool | int | float | str):
        return None if cell != cell else cell  # NaN
    if isinstance(cell, bytes):
        return decode(cell)
    if is_missing(cell):
        return None
    if isinstance(cell, datetime | date | time):
        return cell.isoformat()
    if isinstance(cell, np.datetime64 | Decimal | UUID):
        return str(cell)
    return None


def word(cell: Any) -> str | None:
    """Return a cell as a transformer of texts gets it: a text unchanged, anything else in canonical form.

    >>> [word(cell) for cell in ("007", 7.0, None)]
    ['007', '7', None]
    """
    if isinstance(cell, str):
        return cell if is_readable(cell) else None
    return text(cell)


def _text(cell: str) -> str | None:
    canonical = readable(cell)
    if canonical is None or canonical in MISSING:
        return None
    cell = canonical
    if len(cell) > _LONGEST:  # keeps regular expressions off very long texts
        return cell
    whole = _WHOLE.fullmatch(cell)
    if whole is not None:
        sign, digits = whole.groups()
        return f"-{digits}" if sign == "-" and digits != "0" else digits
    if _NUMBER.fullmatch(cell) is not None:
        return _of_double(float(cell)) if isfinite(float(cell)) else cell
    if cell.lower() in _BOOLEANS:
        return cell.lower()
    moment = _TIME.fullmatch(cell)
    return cell if moment is None else _of_moment(*moment.groups())


def parse_numbers(cells: list[Any]) -> list[float]:
    """Return `number(cell)` of each cell; fast for texts that are plain numbers.

    >>> parse_numbers(["1.5", " 2 ", "", "1_000", "inf", "nan", None, True])
    [1.5, 2.0, nan, inf, inf, nan, nan, 1.0]
    """
    if set(map(type, cells)) <= {str} and max(map(len, cells), default=0) <= _LONGEST:
        letters = "".join(cells)
        if letters.isascii() and "_" not in letters:
            try:
                plain = list(map(float, cells))  # takes what `number` takes, and words for what is not finite
            except ValueError:
                pass
            else:
                return plain if all(map(isfinite, plain)) else [number(cell) for cell in cells]
    return [number(cell) for cell in cells]


def _number(cell: str) -> float:
    if len(cell) > LONGEST_CELL:
        return inf
    try:  # most are plain numbers: Python takes these, and in ASCII without "_" nothing else that is finite
        double = float(cell)
        if isfinite(double) and len(cell) <= _LONGEST and cell.isascii() and "_" not in cell:
            return double
    except ValueError:
        pass
    cell = cell.strip()
    if cell in MISSING:
        return nan
    if len(cell) > _LONGEST:
        return inf
    if _NUMBER.fullmatch(cell) is not None:
        double = float(cell)
        return double if isfinite(double) else inf
    return _BOOLEANS.get(cell.lower(), inf)


def _of_double(double: float) -> str:
    return str(int(double)) if isfinite(double) and double.is_integer() else repr(double)


def _of_moment(day: str, clock: str, seconds: str | None, fraction: str | None, zone: str | None) -> str:
    fraction = (fraction or "").rstrip("0")
    if zone not in (None, "Z"):
        try:
            utc = datetime.fromisoformat(f"{day}T{clock}:{seconds or '00'}{zone}").astimezone(UTC)
            day, clock, seconds = f"{utc:%Y-%m-%d}", f"{utc:%H:%M}", f"{utc:%S}"
            zone = "Z"
        except (ValueError, OverflowError):  # no such day, or at the end of Python's years: the text stays
            pass
    if zone is None and clock == "00:00" and (seconds or "00") == "00" and not fraction:
        return day
    return f"{day}T{clock}:{seconds or '00'}{'.' + fraction if fraction else ''}{zone or ''}"
