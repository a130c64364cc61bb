"""Lines of private text files: a record is one line, whatever is in it, and is taken apart alone.

Lines are split at line feeds before quotes are read, so that no cell of a line reaches into the next. A line that is
not a record of the table (a quote that does not close, too many or too few cells, NUL, bytes that are not UTF-8, longer
than a mebibyte) is one bad record: it counts as a line and contributes nothing. So does a blank line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

LONGEST_LINE = 2**20
BLOCK_BYTES = 2**23


@dataclass(frozen=True)
class Layout:
    """What the header of a text file says: the names of its columns and what parts them."""

    names: tuple[str, ...]
    separator: str

    def cells(self, line: bytes) -> list[str] | str:
        """Return the cells of a line; of a bad record a text that says what is wrong with it."""
        if len(line) > LONGEST_LINE:
            return "longer than a mebibyte"
        if b"\0" in line:
            return "holds a NUL byte"
        try:
            found = split_cells(line.decode("utf-8"), self.separator)
        except UnicodeDecodeError:
            return "not UTF-8"
        except csv.Error:
            return "quotes that do not close, or text beside them (private files are read line by line)"
        return (
            found if len(found) == len(self.names) else f"{len(found)} cell(s), not {len(self.names)} as in the header"
        )

    def guesses(self, line: bytes, name: str) -> tuple[str, str]:
        """Return what stands in the place of a column in a bad record: counted from the left, and from the right.

        Quotes are not read. Empty where there is nothing in that place.
        """
        cells = line[:LONGEST_LINE].decode("utf-8", errors="replace").split(self.separator)
        left = self.names.index(name)
        right = len(cells) - (len(self.names) - left)
        return tuple(cells[place].strip(' "\r') if 0 <= place < len(cells) else "" for place in (left, right))  # type: ignore[return-value]


def split_cells(line: str, separator: str) -> list[str]:
    """Return the cells of one line; raises csv.Error where quotes do not close or a text follows them."""
    line = line.removesuffix("\r")
    if '"' not in line:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))


def blocks(file: IO[bytes], size: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Yield the lines of what is left of a file, in blocks of about `size` bytes.

    Of a line that is too long only the beginning is kept, still too long for a record.
    """
    rest = b""
    while chunk := file.read(size):
        lines = chunk.split(b"\n")
        lines[0] = rest + lines[0]
        rest = lines.pop()[: LONGEST_LINE + 1]
        if lines:
            yield lines
    if rest:
        yield [rest]


def count_lines(file: IO[bytes]) -> int:
    """Return the number of lines of what is left of a file, without looking into any."""
    found, ends_open = 0, False
    while chunk := file.read(BLOCK_BYTES):
        found += chunk.count(b"\n")
        ends_open = not chunk.endswith(b"\n")
    return found + ends_open
