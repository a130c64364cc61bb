"""What came to a coordinator and does not count: one line each, in a file that whoever sends most cannot make large."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from dpvalue.durable import write_whole
from dpvalue.printable import one_line
from dpvalue.stored import TEXT, WHOLE, fields, parse_json, read_text

MOST_BYTES = 2**18
"""Of all lines together; what comes after is not listed, and the last line says so."""
_MOST_LETTERS, _MOST_REASON = 100, 400
_LINE = fields(party=TEXT, round=WHOLE, why=TEXT)


@dataclass(frozen=True)
class Receipt:
    """What became of something that came: whose it was, of which round, and why it does not count; empty if it does."""

    party: str
    round: int
    why: str = ""


_MORE = Receipt("?", 0, "more came that does not count, and is not listed")


@dataclass(frozen=True)
class Rejections:
    """The file `rejected.jsonl` of a study. What was sent is not kept, but for a short text that says what was wrong.

    Args:
        path: where it is.
    """

    path: Path

    def add(self, receipt: Receipt) -> Receipt:
        """List what does not count, once, while there is room; return it, its texts cut to what a line holds."""
        shown = Receipt(_cut(receipt.party, _MOST_LETTERS), receipt.round, _cut(receipt.why, _MOST_REASON))
        lines, line, more = self._lines(), _written(shown), _written(_MORE)
        if line in lines or more in lines:
            return shown
        room = MOST_BYTES - sum(map(len, lines)) - len(lines) - len(more) - 1
        kept = [*lines, line if len(line) < room else more]
        write_whole(self.path, "".join(f"{one}\n" for one in kept).encode())
        return shown

    def all(self) -> list[Receipt]:
        """Return what is listed."""
        found = [parse_json(line, str(self.path)) for line in self._lines()]
        for line in found:
            _LINE(str(self.path), line)
        return [Receipt(line["party"], line["round"], line["why"]) for line in found]

    def _lines(self) -> list[str]:
        return read_text(self.path).splitlines() if self.path.is_file() else []


def _written(receipt: Receipt) -> str:
    return json.dumps(asdict(receipt))


def _cut(text: str, most: int) -> str:
    shown = one_line(text)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
