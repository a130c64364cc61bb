r"""What parties may be called: names that a person can tell apart, on any screen and in a spreadsheet.

Two names *agree* if they are the same after Unicode's NFKC, case folding, trimming, and without characters that are not
seen: "North", "ＮＯＲＴＨ" and "north " agree. So do whole numbers that are written differently: "7", "007" and "+7".
Names of one run must not agree. All letters of a name must be of one script, or of scripts that are written together
(the "highly restrictive" level of Unicode TR39: Latin with Japanese, Chinese or Korean), so that a Cyrillic letter in a
Latin word is refused. A letter's script is the first word of its Unicode name. Names of one script that look like
another's (a word of Cyrillic letters alone) are not noticed.

Whoever writes a party's name chooses it. A spreadsheet calculates a cell that begins with `=`, `+`, `-` or `@`, also
after spaces, and some obey control characters. So, in this order,

1. what would steer a terminal or a page (`dpvalue.display`), a tab or a line break is written `\xNN` or `\uNNNN`; a
   backslash that would read as the beginning of such a number is written `\x5c`;
2. a text that would be a formula, with or without apostrophes before it, gets one more apostrophe in front.

`name_of` undoes both. A whole number is a number, also below zero: it stays as it is.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote

from dpvalue.display import one_line
from dpvalue.errors import DpvalueError

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
    folded = name.casefold() if name.isascii() else _fold(name)
    visible = " ".join(folded.split())
    whole = _ANY_WHOLE.fullmatch(visible)
    if whole is None:
        return visible
    sign, digits = whole.groups()
    return f"-{digits}" if sign == "-" and digits != "0" else digits


def require_name(what: str, name: str) -> None:
    """Raise for a name that mixes scripts."""
    if name.isascii() or len(name) > LONGEST_NAME:
        return
    scripts = {_script(letter) for letter in unicodedata.normalize("NFKC", name)} - {None}
    if len(scripts) > 1 and not any(scripts <= scripts_together for scripts_together in _TOGETHER):
        mixed = " and ".join(sorted(str(script).capitalize() for script in scripts))
        raise DpvalueError(f"{what} must not mix scripts, got {one_line(name)!r} of {mixed} letters")


def require_sendable(name: str) -> None:
    """Raise for a name that no party of a study may have: it is sent, printed, and names files."""
    if not name.strip() or not name.isprintable() or len(quote(name)) > _MOST_LETTERS:
        raise DpvalueError(f"party must be a name of at most {_MOST_LETTERS} plain letters that can be printed")
    require_name("party", name)


def require_names(what: str, names: Iterable[str | int]) -> None:
    """Raise for names of which one mixes scripts, or of which two agree."""
    by_look: dict[str, str] = {}
    for name in map(str, names):
        require_name(what, name)
        look = look_of(name)
        if look in by_look:
            raise names_agree_error(what, by_look[look], name)
        by_look[look] = name


def names_agree_error(what: str, name: str, other: str) -> DpvalueError:
    """Return the error for two names that agree."""
    return DpvalueError(f"{what} must be clearly different, got {one_line(name)!r} and {one_line(other)!r}")


def _fold(name: str) -> str:
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


_NUMBER = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4}))")

_AMBIGUOUS = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4})")

_FORMULA = re.compile(
    "'*[\\s\ufeff\u200b\u2060]*[=+\\-@\uff1d\uff0b\uff0d\uff20]"
)  # the wide ones are formulas to some, too


def escaped(name: str) -> str:
    r"""Return a name on one line, with nothing in it that steers; other names give other texts.

    >>> print(escaped("a\x1b[31mb"), escaped("a\\x1bb"))
    a\x1b[31mb a\x5cx1bb
    """
    return one_line(_AMBIGUOUS.sub(r"\\x5c", name))


def cell_of(name: str | int) -> str | int:
    r"""Return the name of a party as a cell.

    >>> cell_of('=HYPERLINK("http://x")'), cell_of("north"), cell_of(-7)
    ('\'=HYPERLINK("http://x")', 'north', -7)
    """
    if not isinstance(name, str):
        return name
    text = escaped(name)
    return f"'{text}" if _FORMULA.match(text) else text


def name_of(cell: str) -> str | int:
    """Return the name of a party from its cell: a whole number where the cell is one.

    >>> name_of("'=1+1"), name_of("north"), name_of("-7")
    ('=1+1', 'north', -7)
    """
    label = party_label(cell)
    if isinstance(label, int):
        return label
    text = cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell
    return _NUMBER.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
