"""Conversions of pandas, polars, Arrow and arrays to columns of cells.

Each conversion depends on one cell and on the public type and length of its column. No cell makes a conversion raise,
warn or convert the rest of the column differently: not bytes that are not UTF-8, a year beyond Python's dates, or a
number beyond a double. A text that is too long is cut before it is copied (`dpvalue.data.cells`).
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from dpvalue.arrays import Array, Bools
from dpvalue.data.cells import LONGEST_CELL, MOST_BYTES, decode
from dpvalue.data.columns import Column, Columns
from dpvalue.errors import DpvalueError

_UUID = "arrow.uuid"


def as_columns(data: Any) -> Columns:
    """Return a frame of pandas or polars as columns of cells."""
    if isinstance(data, Columns):
        return data
    is_arrow = hasattr(data, "column_names") and hasattr(data, "to_batches")
    names = [str(name) for name in (data.column_names if is_arrow else data.columns)]
    _require_different(names)
    if is_arrow:
        return Columns({name: of_arrow(column) for name, column in zip(names, data.columns, strict=True)})
    if hasattr(data, "get_columns"):  # polars
        return Columns({name: of_polars(column) for name, column in zip(names, data.get_columns(), strict=True)})
    return Columns({name: of_pandas(data.iloc[:, place]) for place, name in enumerate(names)})


def _require_different(names: list[str]) -> None:
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise DpvalueError(f"a frame must not have several columns named {duplicates[0]!r}")


def of_pandas(series: Any) -> Column:
    """Return a pandas series as a column."""
    kind, name = series.dtype, type(series.dtype).__name__
    if isinstance(kind, np.dtype) and kind.kind in "biuf":
        return of_array(series.to_numpy())
    if name == "ArrowDtype" or (name == "StringDtype" and kind.storage == "pyarrow"):
        return of_arrow(series.array.__arrow_array__())
    if name == "CategoricalDtype":
        categories = of_pandas(kind.categories.to_series()).cells
        plain = categories if isinstance(categories, list) else categories.tolist()
        return of_cells([None if place < 0 else plain[place] for place in series.cat.codes.tolist()])
    if name == "DatetimeTZDtype":
        return of_cells([_in_zone(moment, kind.tz) for moment in series.dt.tz_convert("UTC").astype(object).tolist()])
    return of_cells(series.astype(object).tolist())


def _in_zone(moment: Any, zone: Any) -> Any:
    """A time in its zone; in UTC for a year beyond Python's dates."""
    try:
        return moment.tz_convert(zone)
    except (NotImplementedError, OverflowError, ValueError):
        return moment


def of_polars(series: Any) -> Column:
    """Return a polars series as a column."""
    import polars

    kind = series.dtype
    if (kind.is_integer() and "128" not in str(kind)) or kind.is_float():
        missing = series.is_null().to_numpy()
        return Column(series.fill_null(0).to_numpy(), missing if missing.any() else None)
    if kind.is_temporal():
        return _moments(series)
    if kind.is_nested():
        return of_cells([None] * len(series))
    if kind in (polars.Categorical, polars.Enum):
        series = series.cast(polars.String)
    if series.dtype in (polars.String, polars.Binary):
        raw = series.cast(polars.Binary)
        if (raw.bin.size().max() or 0) > MOST_BYTES:
            raw = raw.bin.slice(0, MOST_BYTES + 1)
        return of_cells(_decode_cells(raw.to_list()) if series.dtype == polars.String else raw.to_list())
    return of_cells(series.to_list())


def _decode_cells(cells: list[bytes | None]) -> list[str | None]:
    return [None if cell is None else decode(cell) for cell in cells]


def _moments(series: Any) -> Column:
    """Dates and times of polars as texts, through whole numbers: polars converts only years of Python's dates."""
    missing, kind = series.is_null().to_numpy(), str(series.dtype)
    whole = series.to_physical().cast(int).fill_null(0).to_numpy()
    if not kind.startswith("Date"):  # times of day and durations are numbers
        return Column(whole, missing)
    unit = "D" if kind == "Date" else str(series.dtype.time_unit)
    zone = "Z" if kind != "Date" and series.dtype.time_zone else ""
    texts = whole.astype(np.int64).astype(f"datetime64[{unit}]").astype(str)
    return of_cells(
        [None if absent else f"{moment}{zone}" for moment, absent in zip(texts.tolist(), missing, strict=True)]
    )


def of_arrow(column: Any) -> Column:
    """Return a column of an Arrow table, or of a Parquet file."""
    from pyarrow import types

    column = _storage(column)
    kind = column.type
    if types.is_integer(kind) or (types.is_floating(kind) and not types.is_float16(kind)):
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        return Column(column.fill_null(0).to_numpy(), missing)
    if types.is_dictionary(kind):
        return _of_dictionary(column)
    if types.is_nested(kind) or types.is_interval(kind):
        return of_cells([None] * len(column))
    if types.is_temporal(kind):  # Python's own dates end with the year 9999: one cell could stop all others
        return of_cells(_moments_as_texts(column).to_pylist())
    return of_cells(_cells(column))


def _storage(column: Any) -> Any:
    """The storage of a column of an extension type; UUIDs and booleans keep their type."""
    from pyarrow import BaseExtensionType, chunked_array

    while isinstance(column.type, BaseExtensionType) and column.type.extension_name not in (_UUID, "arrow.bool8"):
        pieces = [piece.storage for piece in _pieces(column)]
        column = chunked_array(pieces, type=column.type.storage_type)
    return column


def _pieces(column: Any) -> list[Any]:
    return list(column.chunks) if hasattr(column, "chunks") else [column]


def _of_dictionary(column: Any) -> Column:
    """A dictionary-encoded column; each text of the dictionary is decoded once."""
    from pyarrow import types

    value = column.type.value_type
    if not _is_text(value) and not _is_bytes(value):
        return of_arrow(column.cast(value)) if not types.is_nested(value) else of_cells([None] * len(column))
    cells: list[Any] = []
    for piece in _pieces(column):
        known = _cells(piece.dictionary)
        cells += [None if place is None else known[place] for place in piece.indices.to_pylist()]
    return of_cells(cells)


def _moments_as_texts(column: Any) -> Any:
    from pyarrow import ArrowInvalid, timestamp

    try:
        return column.cast("string")
    except ArrowInvalid:  # of a time zone that is not known, whatever the cells are
        return column.cast(timestamp(column.type.unit, "UTC")).cast("string")


def _cells(column: Any) -> list[Any]:
    """The cells of an Arrow column. Texts are decoded one by one, because Arrow decodes all or none."""
    from pyarrow import compute

    is_text = _is_text(column.type)
    if not is_text and not _is_bytes(column.type):
        return list(column.to_pylist())
    raw = column.cast("binary" if str(column.type) in ("string", "binary") else "large_binary")
    if (compute.max(compute.binary_length(raw)).as_py() or 0) > MOST_BYTES:
        raw = compute.binary_slice(raw, 0, MOST_BYTES + 1)
    return _decode_cells(raw.to_pylist()) if is_text else list(raw.to_pylist())


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def of_array(array: Array) -> Column:
    """Return a flat NumPy array as a column."""
    if isinstance(array, np.ma.MaskedArray):
        return _of_masked(array)
    kind = array.dtype.kind
    if kind in "biuf":
        if array.dtype.itemsize > 8:
            with np.errstate(all="ignore"):  # a private cell must not warn
                array = array.astype(np.float64)
        return Column(array)
    if kind in "US":
        array = truncate(array)
    if kind == "U":
        array = _replace_invalid(array)
    if kind == "M" and np.datetime_data(array.dtype)[0] == "generic":  # a number of no unit is no time
        return of_cells([None if absent else () for absent in np.isnat(array).tolist()])
    return of_cells(list(array) if kind == "M" else array.tolist())


def _of_masked(array: Any) -> Column:
    column, hidden = of_array(array.data), np.ma.getmaskarray(array)
    if isinstance(column.cells, list):
        return of_cells([None if absent else cell for cell, absent in zip(column.cells, hidden, strict=True)])
    return Column(column.cells, hidden)


def truncate(array: Array) -> Array:
    """Return an array of texts or bytes, each cut to one character or byte beyond the limit of readable cells.

    In a NumPy array each text takes as much memory as the longest.
    """
    letter, most = (np.dtype(np.uint32), LONGEST_CELL) if array.dtype.kind == "U" else (np.dtype(np.uint8), MOST_BYTES)
    width = array.dtype.itemsize // letter.itemsize
    if width <= most + 1:
        return array
    letters = np.ascontiguousarray(array).view(letter).reshape(*array.shape, width)
    shortened = letters[..., : most + 1].copy()
    mark = letter.type(ord("x"))  # where a text goes on: it must not end here
    mark = mark.byteswap() if array.dtype.byteorder == ">" else mark
    shortened[..., most] = np.where((letters[..., most:] != 0).any(axis=-1), mark, 0)
    return shortened.view(np.dtype(f"{array.dtype.byteorder}{array.dtype.kind}{most + 1}")).reshape(array.shape)


def _replace_invalid(array: Array) -> Array:
    """Texts without invalid code points: NumPy stores them, and Python raises for the whole array."""
    width = array.dtype.itemsize // 4
    if not width or not len(array):
        return array
    letters = np.ascontiguousarray(array).view(np.uint32).reshape(len(array), width)
    if array.dtype.byteorder == ">":
        letters = letters.byteswap()
    bad = np.asarray((letters > 0x10FFFF).any(axis=1))
    return _replace_rows(array, bad) if bad.any() else array


def _replace_rows(array: Array, bad: Bools) -> Array:
    texts = np.empty(len(array), dtype=object)
    texts[~bad] = array[~bad].tolist()
    texts[bad] = "\ufffd"
    return texts


def of_cells(cells: list[Any]) -> Column:
    """Return cells of a typed format as a column; it is a column of texts if any cell is a text."""
    return Column(cells, None, any(isinstance(cell, str | bytes) for cell in cells))


def as_column(raw: Any) -> Column:
    """Return labels or ids as a column, from a column, a series, an array, a tensor or a list."""
    if isinstance(raw, Column):
        return raw
    if hasattr(raw, "iloc"):
        return of_pandas(raw)
    if hasattr(raw, "is_null") and hasattr(raw, "to_list"):
        return of_polars(raw)
    if hasattr(raw, "detach"):
        raw = raw.detach().cpu().numpy()
    return of_array(raw) if isinstance(raw, np.ndarray) else of_cells(list(raw))
