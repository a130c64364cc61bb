"""What a file holds that somebody else may have written: parsed, then checked field by field before anything uses it.

A check takes the name of a field and what was found there, and raises one line that says what it must be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

from dpvalue.errors import DpvalueError
from dpvalue.privacy.budget import ACCOUNTINGS, NEIGHBOURS, UNITS, Guarantee
from dpvalue.privacy.laws import LAWS

Check = Callable[[str, Any], None]
Kind = TypeVar("Kind")
_MOST_DEPTH = 32
_LARGEST = 1e300  # leaves room to compute with; no number of ours is near


def read_text(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DpvalueError(f"{path} cannot be read as text: {error}") from None


def parse_json(text: str, what: str) -> Any:
    """Return what a JSON text holds; `what` names it in errors."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise DpvalueError(f"{what} has been damaged: it is nested too deeply") from None
    except ValueError as error:  # not JSON, or a number of thousands of digits
        raise DpvalueError(f"{what} has been damaged: {error}") from None
    require_shallow(found, what)
    return found


def require_shallow(found: Any, what: str) -> None:
    """Raise if parsed data is nested deeper than anything of ours, or holds a text that cannot be written again."""
    level = [found]
    for _ in range(_MOST_DEPTH):
        for one in level:
            for text in [one] if isinstance(one, str) else one if isinstance(one, dict) else ():
                if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                    raise DpvalueError(f"{what} has been damaged: {short(text)} is not a text in Unicode")
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [part for parts in inside for part in parts]
        if not level:
            return
    raise DpvalueError(f"{what} has been damaged: it is nested too deeply")


def build(kind: Callable[..., Kind], name: str, found: Any) -> Kind:
    """Return the value that stored fields describe; `kind` checks what they hold."""
    try:
        return kind(**found)
    except TypeError:  # no object, or not of its fields
        raise DpvalueError(f"{name} cannot be read, got {short(found)}") from None


def must_be(words: str, ok: Callable[[Any], bool]) -> Check:
    """Return a check that something `ok`; `words` complete "must be ..."."""

    def check(name: str, found: Any) -> None:
        if not ok(found):
            raise DpvalueError(f"{name} must be {words}, got {short(found)}")

    return check


def one_of(options: Iterable[str]) -> Check:
    """Return a check for one of some texts."""
    allowed = tuple(options)
    return must_be(f"one of {', '.join(allowed)}", lambda found: isinstance(found, str) and found in allowed)


def maybe(check: Check) -> Check:
    """Return a check that null passes as well."""
    return lambda name, found: None if found is None else check(name, found)


def each(check: Check, least: int = 0) -> Check:
    """Return a check of every member of a list of at least so many."""
    is_list = must_be(
        f"a list of {least} or more" if least else "a list", lambda x: isinstance(x, list) and len(x) >= least
    )

    def check_all(name: str, found: Any) -> None:
        is_list(name, found)
        for place, one in enumerate(found):
            check(f"{name}[{place}]", one)

    return check_all


def fields(**checks: Check) -> Check:
    """Return a check of an object that has these fields, and maybe others."""

    def check(name: str, found: Any) -> None:
        OBJECT(name, found)
        for field, one in checks.items():
            place = f"{name}.{field}" if name else field
            if field not in found:
                raise DpvalueError(f"{place} is missing")
            one(place, found[field])

    return check


def is_number(found: Any) -> bool:
    """Whether something is a number that can be computed with."""
    return isinstance(found, int | float) and not isinstance(found, bool) and -_LARGEST <= found <= _LARGEST


def _is_whole(found: Any) -> bool:
    return isinstance(found, int) and is_number(found)


def _check_guarantee(name: str, found: Any) -> None:
    fields(private=FLAG)(name, found)
    if found["private"]:
        _spent(name, found)
    elif found != asdict(Guarantee(private=False)):
        raise DpvalueError(f"{name} must hold no numbers without privacy, got {short(found)}")


OBJECT = must_be("an object", lambda found: isinstance(found, dict))
TEXT = must_be("a text", lambda found: isinstance(found, str))
FLAG = must_be("true or false", lambda found: isinstance(found, bool))
NUMBER = must_be("a number", is_number)
ANY_NUMBER = must_be("a number, or not a number", lambda found: is_number(found) or isinstance(found, float))
POSITIVE = must_be("a positive number", lambda found: is_number(found) and found > 0)
WHOLE = must_be("a whole number of at least 0", lambda found: _is_whole(found) and found >= 0)
COUNT = must_be("a whole number of at least 1", lambda found: _is_whole(found) and found >= 1)
_spent = fields(
    unit=one_of(UNITS),
    neighbours=one_of(NEIGHBOURS),
    epsilon=POSITIVE,
    delta=must_be("at least 0 and below 1", lambda found: is_number(found) and 0 <= found < 1),
    mu=maybe(POSITIVE),
    mechanism=lambda name, found: one_of(law.capitalize() for law in LAWS)(name, found),
    accounting=one_of(ACCOUNTINGS),
    claimed_epsilon=maybe(POSITIVE),
    noise_multiplier=POSITIVE,
    releases=COUNT,
    clip=POSITIVE,
    advantage=NUMBER,
    parties_per_person=COUNT,
    simulation=FLAG,
    ledger=maybe(TEXT),
    returned=maybe(TEXT),
    parties=maybe(TEXT),
    person=maybe(TEXT),
)
GUARANTEE: Check = _check_guarantee


def _column(name: str, found: Any) -> None:
    fields(name=TEXT)(name, found)
    names, check = _CATEGORICAL if "categories" in found else _NUMERIC
    check(name, found)
    if set(found) != names:
        raise DpvalueError(f"{name} must have the fields {', '.join(sorted(names))}, got {', '.join(found)}")


_CATEGORICAL: tuple[set[str], Check] = ({"name", "categories"}, fields(categories=each(TEXT, least=1)))
_NUMERIC: tuple[set[str], Check] = (
    {"name", "missing", "mean", "scale"},
    fields(missing=NUMBER, mean=NUMBER, scale=must_be("a number other than 0", lambda x: is_number(x) and x != 0)),
)
SCHEMA = each(_column, least=1)
"""Of `Schema.to_json`."""
