"""Lines of private text files: each line is one record and is parsed alone.

Lines are split at line feeds before quotes are parsed, so no cell extends into the next line. A malformed line (an
unclosed quote, a wrong number of cells, NUL, bytes that are not UTF-8, more than a mebibyte) and a blank line are bad
records: they count as records and contribute zero.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dpvalue.display import counted
from dpvalue.errors import DpvalueError

LONGEST_LINE = 2**20
BLOCK_BYTES = 2**17  # small: what is made of a block should stay in the cache
_COUNTED_BYTES = 2**23
_END = 2**12
_PIECE = 2**11  # bytes of a zstd file, which may decompress to 30,000 times as many
_CUT = b"\0cut\0"  # no record holds a NUL
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))


@dataclass(frozen=True)
class Layout:
    """The header of a text file: the names of its columns and the separator."""

    names: tuple[str, ...]
    separator: str

    def cells(self, line: bytes) -> list[str] | str:
        """Return the cells of a line; for a bad record, a text that says what is wrong."""
        if _CUT in line or len(line) > LONGEST_LINE:
            return "longer than a mebibyte"
        if not line.strip():
            return "a blank line"
        if b"\0" in line:
            return "holds a NUL byte"
        try:
            cells = split_cells(line.decode("utf-8"), self.separator)
        except UnicodeDecodeError:
            return "not UTF-8"
        except csv.Error:
            return "quotes that do not close, or text beside them (private files are read line by line)"
        if len(cells) == len(self.names):
            return cells
        return f"{counted(len(cells), 'cell')}, not {len(self.names)} as in the header"

    def guesses(self, line: bytes, name: str) -> tuple[str, ...]:
        """Return the possible cells of a column in a bad record, the most likely first.

        The first column is at the beginning of the line and the last column at its end, whatever the rest of the line
        holds. Cells of other columns are counted from the nearer end, then from the other end.
        """
        text = line.decode("utf-8", errors="replace").removesuffix("\r")
        place, last = self.names.index(name), len(self.names) - 1
        if place == 0:
            return (_first_cell(text, self.separator),)
        if place == last:
            return (_last_cell(text, self.separator),)
        cells = [cell.strip(' "') for cell in text.split(self.separator)]
        ends = (place, len(cells) - 1 - (last - place))
        nearer_first = ends if place <= last / 2 else ends[::-1]
        return tuple(cells[at] for at in nearer_first if 0 <= at < len(cells))


def _first_cell(text: str, separator: str) -> str:
    """The first cell of a line, as `split_cells` reads it; empty for an unclosed quote."""
    text = text.lstrip(" ")
    if not text.startswith('"'):
        return text.split(separator)[0]
    quoted = re.match(r'"((?:[^"]|"")*+)"', text)
    rest = "" if quoted is None else text[quoted.end() :]
    return quoted[1].replace('""', '"') if quoted is not None and rest[:1] in ("", separator) else ""


def _last_cell(text: str, separator: str) -> str:
    """The last cell of a line; it is quoted if it ends with a quote and another quote follows a separator."""
    unquoted = text.rsplit(separator, 1)[-1]
    if not text.endswith('"') or len(text) < 2:
        return unquoted
    at = len(text) - 2
    while at >= 0:
        if text[at] != '"':
            at -= 1
        elif text[at - 1 : at] == '"':
            at -= 2
        else:
            before = text[:at].rstrip(" ")
            return text[at + 1 : -1].replace('""', '"') if not before or before.endswith(separator) else unquoted
    return unquoted


def split_cells(line: str, separator: str) -> list[str]:
    """Return the cells of one line; raise csv.Error for an unclosed quote or text after a quote."""
    line = line.removesuffix("\r").replace("\r", " ")
    if '"' not in line:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True, strict=True))


def blocks(file: IO[bytes], size: int = BLOCK_BYTES) -> Iterator[list[bytes]]:
    """Yield the remaining lines of a file, in blocks of about `size` bytes.

    Of a line that is too long for a record only the beginning and the end are kept.
    """
    rest = b""
    while chunk := file.read(size):
        lines = chunk.split(b"\n")
        lines[0] = rest + lines[0]
        rest = _shorten(lines.pop())
        if lines:
            yield [_shorten(line) for line in lines]
    if rest:
        yield [rest]


def _shorten(line: bytes) -> bytes:
    return line if len(line) <= LONGEST_LINE and _CUT not in line else line[:_END] + _CUT + line[-_END:]


def count_lines(file: IO[bytes]) -> int:
    """Return the number of remaining lines of a file; parses none of them."""
    lines, ends_open = 0, False
    while chunk := file.read(_COUNTED_BYTES):
        lines += chunk.count(b"\n")
        ends_open = not chunk.endswith(b"\n")
    return lines + ends_open


class _ZstdReader(io.RawIOBase):
    """A reader of a zstd file, frame by frame; EOFError for a truncated or damaged file."""

    def __init__(self, path: Path) -> None:
        from zstandard import ZstdDecompressor, ZstdError

        self._start, self._error = ZstdDecompressor().decompressobj, ZstdError
        self._file, self._frame = path.open("rb"), self._start()
        self._compressed, self._decompressed = b"", memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Copy decompressed bytes into a buffer; return their number, 0 at the end of the file."""
        while not self._decompressed:
            if self._frame.eof:
                self._compressed = self._frame.unused_data or self._file.read(_PIECE)
                if not self._compressed:
                    return 0
                self._frame = self._start()
            else:
                self._compressed = self._file.read(_PIECE)
            try:
                self._decompressed = memoryview(self._frame.decompress(self._compressed))  # of which a slice is no copy
            except self._error:
                raise EOFError from None
            if not self._compressed and not self._frame.eof:
                raise EOFError
        count = min(len(buffer), len(self._decompressed))
        buffer[:count], self._decompressed = self._decompressed[:count], self._decompressed[count:]
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_zstd(path: Path, mode: str) -> IO[bytes]:
    """Open a zstd file to read what it decompresses to."""
    try:
        return io.BufferedReader(_ZstdReader(path))
    except ModuleNotFoundError:
        raise DpvalueError("reading zstd needs zstandard: pip install 'dpvalue[zstd]'") from None
