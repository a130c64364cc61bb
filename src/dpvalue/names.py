"""What parties may be called: names that a person can tell apart, on any screen.

Two names *agree* if they are the same after Unicode's NFKC, case folding, trimming, and without characters that are not
seen: "North", "ＮＯＲＴＨ" and "north " agree. So do whole numbers that are written differently: "7", "007" and "+7".
Names of one run must not agree. All letters of a name must be of one script, or of scripts that are written together
(the "highly restrictive" level of Unicode TR39: Latin with Japanese, Chinese or Korean), so that a Cyrillic letter in a
Latin word is refused. A letter's script is the first word of its Unicode name. Names of one script that look like
another's (a word of Cyrillic letters alone) are not noticed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote

from dpvalue.errors import DpvalueError
from dpvalue.printable import one_line

LONGEST_NAME = 400
"""Letters of a name that is compared by what it looks like; a longer one agrees with itself alone."""
_MOST_LETTERS = 100  # in the name of a file, where a letter that is not ASCII takes several
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_ANY_WHOLE = re.compile(r"([+-]?)0*([0-9]+)(?:\.0*)?")
_TOGETHER = (
    {"LATIN", "CJK", "HIRAGANA", "KATAKANA"},
    {"LATIN", "CJK", "BOPOMOFO"},
    {"LATIN", "CJK", "HANGUL"},
)
_SCRIPT = {"IDEOGRAPHIC": "CJK", "HENTAIGANA": "HIRAGANA"}
_NO_SCRIPT = ("", "MODIFIER", "KATAKANA-HIRAGANA")


def party_label(name: str) -> str | int:
    """Return a name as results show it: a whole number where that is written in the same way, else the text itself.

    >>> [party_label(name) for name in ("7", "-7", "007", "-0", "north")]
    [7, -7, '007', '-0', 'north']
    """
    if _WHOLE.fullmatch(name) is None:
        return name
    whole = int(name)
    return whole if str(whole) == name else name


@lru_cache(maxsize=2**14)
def look_of(name: str) -> str:
    """Return what names that agree have in common.

    >>> look_of("Ｎorth ") == look_of("north"), look_of("007") == look_of("7"), look_of("-0")
    (True, True, '0')
    """
    if len(name) > LONGEST_NAME:
        return name
    folded = name.casefold() if name.isascii() else _folded(name)
    seen = " ".join(folded.split())
    whole = _ANY_WHOLE.fullmatch(seen)
    if whole is None:
        return seen
    sign, digits = whole.groups()
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def require_name(what: str, name: str) -> None:
    """Raise for a name that mixes scripts."""
    if name.isascii() or len(name) > LONGEST_NAME:
        return
    scripts = {_script(letter) for letter in unicodedata.normalize("NFKC", name)} - {None}
    if len(scripts) > 1 and not any(scripts <= together for together in _TOGETHER):
        mixed = " and ".join(sorted(str(script).capitalize() for script in scripts))
        raise DpvalueError(f"{what} must not mix scripts, got {one_line(name)!r} of {mixed} letters")


def require_sendable(name: str) -> None:
    """Raise for a name that no party of a study may have: it is sent, printed, and names files."""
    if not name.strip() or not name.isprintable() or len(quote(name)) > _MOST_LETTERS:
        raise DpvalueError(f"party must be a name of at most {_MOST_LETTERS} plain letters that can be printed")
    require_name("party", name)


def require_names(what: str, names: Iterable[str | int]) -> None:
    """Raise for names of which one mixes scripts, or of which two agree."""
    known: dict[str, str] = {}
    for name in map(str, names):
        require_name(what, name)
        look = look_of(name)
        if look in known:
            raise agreeing(what, known[look], name)
        known[look] = name


def agreeing(what: str, name: str, other: str) -> DpvalueError:
    """Return the error for two names that agree."""
    return DpvalueError(f"{what} must be told apart by people: {one_line(name)!r} and {one_line(other)!r} agree")


def _folded(name: str) -> str:
    """A name in Unicode's form NFKC, its case folded, decimal digits in ASCII, without what is not seen."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    letters = []
    for letter in folded:
        if unicodedata.category(letter) == "Cf" or "\ufe00" <= letter <= "\ufe0f":
            continue
        digit = unicodedata.decimal(letter, None)
        letters.append(letter if digit is None else str(digit))
    return "".join(letters)


def _script(letter: str) -> str | None:
    """The script of a letter; None for what is no letter, and for letters of several scripts."""
    if unicodedata.category(letter)[0] != "L":
        return None
    word = unicodedata.name(letter, "").partition(" ")[0]
    return None if word in _NO_SCRIPT else _SCRIPT.get(word, word)
