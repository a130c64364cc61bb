"""What a file holds that somebody else may have written: parsed, then checked field by field before anything uses it.

A check takes the name of a field and what was found there, and raises one line that says what it must be. `read` makes
a frozen dataclass of stored data, and derives the checks from the types of its fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from dataclasses import fields as fields_of
from pathlib import Path
from reprlib import repr as short
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

from dpvalue.errors import LARGEST_WHOLE, DpvalueError

Check = Callable[[str, Any], None]
Kind = TypeVar("Kind")
_MOST_DEPTH = 32
_LARGEST = 1e300  # leaves room to compute with; no number of ours is near


def read_text(path: Path) -> str:
    """Return the text of a file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # not there, not UTF-8, or no name of a file
        raise DpvalueError(f"{path} cannot be read as text: {error}") from None


def parse_json(text: str, what: str) -> Any:
    """Return what a JSON text holds; `what` names it in errors."""
    return parse(json.loads, text, what, "has been damaged")


def parse(loads: Callable[[str], Any], text: str, what: str, trouble: str) -> Any:
    """Return what a parser makes of a text; errors say that `what` has this `trouble`."""
    try:
        parsed = loads(text)
    except RecursionError:
        raise DpvalueError(f"{what} {trouble}: it is nested too deeply") from None
    except ValueError as error:  # not of that kind, or a number of thousands of digits
        raise DpvalueError(f"{what} {trouble}: {error}") from None
    require_shallow(parsed, what)
    return parsed


@contextmanager
def refuse_unreadable(what: str) -> Iterator[None]:
    """Turn whatever reading a stranger's bytes raises into a `DpvalueError`; trouble with this machine stays itself."""
    try:
        yield
    except (DpvalueError, OSError):
        raise
    except Exception as error:
        raise DpvalueError(f"{what} cannot be read: {type(error).__name__}") from error


def require_shallow(value: Any, what: str) -> None:
    """Raise if parsed data is nested deeper than anything of ours, or holds a text that cannot be written again."""
    level = [value]
    for _ in range(_MOST_DEPTH):
        for item in level:
            for text in [item] if isinstance(item, str) else item if isinstance(item, dict) else ():
                if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                    raise DpvalueError(f"{what} has been damaged: {short(text)} is not a text in Unicode")
        arguments = [
            item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)
        ]
        level = [part for parts in arguments for part in parts]
        if not level:
            return
    raise DpvalueError(f"{what} has been damaged: it is nested too deeply")


def build(kind: Callable[..., Kind], name: str, value: Any) -> Kind:
    """Return the value that stored fields describe; `kind` checks what they hold."""
    try:
        return kind(**value)
    except TypeError:  # no object, or not of its fields
        raise DpvalueError(f"{name} cannot be read, got {short(value)}") from None


def read(kind: type[Kind], value: Any, name: str = "") -> Kind:
    """Return stored data as a value of a type, checked by what the type says; `name` is its place, for errors.

    Types are those of JSON, `X | None`, `tuple[X, ...]` and dataclasses of them, whose fields may be left out if they
    have a default, and whose `__post_init__` may raise. In `Annotated[X, check]`, the check comes first; of a number or
    a text it is the only one.
    """
    return cast(Kind, _read(kind, name, value))


def _read(kind: Any, name: str, value: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        _PLAIN[kind](name, value)
    elif origin is Annotated:
        arguments[1](name, value)
        return value if arguments[0] in _PLAIN else _read(arguments[0], name, value)
    elif origin is tuple:
        LIST(name, value)
        return tuple(_read(arguments[0], f"{name}[{place}]", member) for place, member in enumerate(value))
    elif is_dataclass(kind):
        return _read_fields(kind, name, value)
    else:  # X | None
        return None if value is None else _read(arguments[0], name, value)
    return value


def _read_fields(kind: Any, name: str, value: Any) -> Any:
    OBJECT(name or "its content", value)
    types = get_type_hints(kind, include_extras=True)
    parts = {}
    for field in fields_of(kind):
        place = f"{name}.{field.name}" if name else field.name
        if field.name in value:
            parts[field.name] = _read(types[field.name], place, value[field.name])
        elif field.default is MISSING:
            raise DpvalueError(f"{place} is missing")
    try:
        return kind(**parts)
    except DpvalueError as error:
        raise DpvalueError(f"{name}: {error}" if name else str(error)) from None


def must_be(words: str, ok: Callable[[Any], bool]) -> Check:
    """Return a check that something `ok`; `words` complete "must be ..."."""

    def check(name: str, value: Any) -> None:
        if not ok(value):
            raise DpvalueError(f"{name} must be {words}, got {short(value)}")

    return check


def choice_of(options: Iterable[str]) -> Check:
    """Return a check for one of some texts."""
    allowed = tuple(options)
    return must_be(f"one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed)


def optional(check: Check) -> Check:
    """Return a check that null passes as well."""
    return lambda name, value: None if value is None else check(name, value)


def list_of(check: Check, least: int = 0) -> Check:
    """Return a check of every member of a list of at least so many."""
    is_list = must_be(
        f"a list of {least} or more" if least else "a list", lambda x: isinstance(x, list) and len(x) >= least
    )

    def check_all(name: str, value: Any) -> None:
        is_list(name, value)
        for place, item in enumerate(value):
            check(f"{name}[{place}]", item)

    return check_all


def fields(**checks: Check) -> Check:
    """Return a check of an object that has these fields, and maybe others."""

    def check(name: str, value: Any) -> None:
        OBJECT(name, value)
        for field, item in checks.items():
            place = f"{name}.{field}" if name else field
            if field not in value:
                raise DpvalueError(f"{place} is missing")
            item(place, value[field])

    return check


def is_number(value: Any) -> bool:
    """Whether something is a number that can be computed with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_LARGEST <= value <= _LARGEST


def is_whole(value: Any) -> bool:
    """Whether something is a whole number, of either sign, that fits int64."""
    return _is_integer(value) and -LARGEST_WHOLE <= value <= LARGEST_WHOLE


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(least: int) -> Check:
    """A check for a whole number that fits int64."""
    large = must_be("a whole number below 2^63", lambda value: value <= LARGEST_WHOLE)
    count = must_be(f"a whole number of at least {least}", lambda value: _is_integer(value) and value >= least)

    def check(name: str, value: Any) -> None:
        count(name, value)
        large(name, value)

    return check


LIST = must_be("a list", lambda value: isinstance(value, list))
OBJECT = must_be("an object", lambda value: isinstance(value, dict))
TEXT = must_be("a text", lambda value: isinstance(value, str))
FLAG = must_be("true or false", lambda value: isinstance(value, bool))
NUMBER = must_be("a number", is_number)
ANY_NUMBER = must_be("a number, or not a number", lambda value: is_number(value) or isinstance(value, float))
POSITIVE = must_be("a positive number", lambda value: is_number(value) and value > 0)
WHOLE = _count(0)
COUNT = _count(1)
_PLAIN: dict[Any, Check] = {str: TEXT, bool: FLAG, float: NUMBER, int: WHOLE}


def _column(name: str, value: Any) -> None:
    fields(name=TEXT)(name, value)
    names, check = _CATEGORICAL if "categories" in value else _NUMERIC
    check(name, value)
    if set(value) != names:
        raise DpvalueError(f"{name} must have the fields {', '.join(sorted(names))}, got {', '.join(value)}")


_CATEGORICAL: tuple[set[str], Check] = ({"name", "categories"}, fields(categories=list_of(TEXT, least=1)))
_NUMERIC: tuple[set[str], Check] = (
    {"name", "missing", "mean", "scale"},
    fields(missing=NUMBER, mean=NUMBER, scale=must_be("a number other than 0", lambda x: is_number(x) and x != 0)),
)
SCHEMA = list_of(_column, least=1)
"""Of `Schema.to_json`."""
