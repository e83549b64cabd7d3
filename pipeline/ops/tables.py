"""Table preprocessing: turns rows of a request, as JSON columns or CSV, into input tensors of the model."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import InvalidInput, TooLarge
from pipeline.models.description import Column, TableInput
from pipeline.models.signature import Variable

Array = np.ndarray[Any, np.dtype[Any]]
Bounds = tuple[float, float]

CSV = "csv"  # the name under which hooks find the body of a request that is CSV
_EXCERPT_CHARS = 200  # of the known values, in a message
MAX_ROWS = 100_000  # of one request: each cell is an object of Python's


class TableReader:
    """Parses the table rows of a request, and stacks the columns into input tensors of the model."""

    def __init__(self, table: TableInput, feeds: Sequence[Variable]) -> None:
        self._columns = table.columns
        self._feeds = [feed for feed in feeds if any(c.feed == feed.alias for c in table.columns)]
        of_feeds = {feed.alias: _bounds(feed.numpy_dtype) for feed in self._feeds}
        self._bounds = {column.name: of_feeds[column.feed] for column in table.columns}

    def read_rows(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the model's input arrays by tensor name, with a row for each row of the table.

        Raises InvalidInput that names the row and the column.
        """
        body = inputs.get(CSV)  # no bytes under this name: a column that is called so
        is_csv = isinstance(body, bytes | bytearray | memoryview)
        cells = _of_csv(body, self._columns) if is_csv else self._of_values(inputs)
        arrays = {
            column.name: _build_column_array(column, cells[column.name], self._bounds[column.name])
            for column in self._columns
        }
        return {feed.alias: self._feed(feed, arrays) for feed in self._feeds}

    def _feed(self, feed: Variable, arrays: Mapping[str, Array]) -> Array:
        columns = [arrays[column.name] for column in self._columns if column.feed == feed.alias]
        if len(feed.shape) == 1:
            return columns[0].astype(feed.numpy_dtype)
        return np.stack(columns, axis=1).astype(feed.numpy_dtype)

    def _of_values(self, inputs: Mapping[str, Any]) -> dict[str, list[Any]]:
        names = [column.name for column in self._columns]
        missing = [name for name in names if name not in inputs]
        if missing:
            raise InvalidInput(f"column {missing[0]!r} is missing; a row has the columns {', '.join(names)}")
        cells = {column.name: _list_cells(inputs[column.name], column) for column in self._columns}
        counts = {name: len(values) for name, values in cells.items()}
        if len(set(counts.values())) > 1:
            rows = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InvalidInput(f"the columns have unequal numbers of rows: {rows}")
        if not next(iter(counts.values())):
            raise InvalidInput("the request has no row")
        return cells


def _list_cells(value: Any, column: Column) -> list[Any]:
    """Return the cells of one column: from a tensor, a list, a JSON list as text, or a single value."""
    if isinstance(value, np.ndarray):
        return value.ravel().tolist()
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text.startswith("[") and (column.type != "text" or text.startswith(('["', "[null"))):
            try:
                values = json.loads(text)
            except (ValueError, RecursionError):
                raise InvalidInput(f"column {column.name!r} is no list of values in JSON") from None
            return values if isinstance(values, list) else [values]
        return [value if column.type == "text" else None if text == "null" else text]
    return [value]


def _of_csv(data: Any, columns: Sequence[Column]) -> dict[str, list[Any]]:
    """Parse a CSV body with a header line into cells by column. Unknown columns are ignored."""
    try:
        text = bytes(data).decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"the CSV is no UTF-8: {exc.reason} at byte {exc.start}") from None
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    cells: dict[str, list[Any]] = {column.name: [] for column in columns}
    try:
        header = [name.strip() for name in next(lines, [])]
        places = {name: _place(name, header) for name in cells}
        for row in lines:
            if not row:
                continue
            if len(row) != len(header):
                raise InvalidInput(
                    f"line {lines.line_num} of the CSV has {len(row)} cells, its first line {len(header)}"
                )
            for name, place in places.items():
                cells[name].append(row[place])
            if len(cells[columns[0].name]) > MAX_ROWS:
                raise TooLarge(f"the CSV has over {MAX_ROWS} rows; send it in parts")
    except csv.Error as exc:
        raise InvalidInput(f"line {lines.line_num} of the CSV can't be read: {exc}") from None
    if not cells[columns[0].name]:
        raise InvalidInput("the CSV has no row below the names of its columns")
    return cells


def _place(name: str, header: Sequence[str]) -> int:
    places = [place for place, title in enumerate(header) if title == name]
    if len(places) == 1:
        return places[0]
    wrong = "names no column" if not places else "names two columns"
    raise InvalidInput(f"the first line of the CSV {wrong} {name!r}; it has {', '.join(header)[:200]}")


def _bounds(dtype: np.dtype[Any]) -> Bounds:
    """Return the smallest and the largest value of a dtype, as `int` for integer dtypes."""
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    of = np.finfo(dtype if dtype.kind == "f" else np.float32)
    return float(of.min), float(of.max)


def _build_column_array(column: Column, cells: Sequence[Any], bounds: Bounds) -> Array:
    values = [_parse_number_cell(column, cell, row, bounds) for row, cell in enumerate(cells)]
    return np.array(values, object if column.type == "text" else None)


def _parse_number_cell(column: Column, cell: Any, row: int, bounds: Bounds) -> Any:
    if column.type == "text":
        return _parse_text_cell(column, cell, row)
    if _is_missing(column, cell):
        if column.missing == "nan":
            return math.nan
        raise _wrong(column, row, "is empty")
    try:
        number = float(cell) if column.type == "number" else int(cell)
    except (TypeError, ValueError, OverflowError):
        raise _wrong(column, row, f"is {str(cell)[:40]!r}, which is no {column.type}") from None
    if isinstance(number, float) and math.isnan(number) and column.missing == "refuse":
        raise _wrong(column, row, "is no number (NaN)")
    if number < bounds[0] or number > bounds[1]:  # NaN is neither
        raise _wrong(column, row, f"is {str(cell)[:40]}, beyond what a model takes")
    cut_off = isinstance(cell, float) and number != cell and column.type == "integer"
    if cut_off or (isinstance(bounds[1], int) and number != int(number)):
        raise _wrong(column, row, f"is {str(cell)[:40]}, which is no integer")
    return number


def _is_missing(column: Column, cell: Any) -> bool:
    """Return whether a cell is null or empty. For integer columns, NaN also counts as missing."""
    if isinstance(cell, float):
        return math.isnan(cell) and column.type == "integer"
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _parse_text_cell(column: Column, cell: Any, row: int) -> str:
    text = "" if cell is None else _decoded_text(column, cell, row)
    if not column.values or text in column.values or (not text and column.missing == "nan"):
        return text
    allowed = ", ".join(column.values)[:_EXCERPT_CHARS]
    raise _wrong(column, row, f"is {text[:40]!r}, which the model does not know; it knows {allowed}")


def _decoded_text(column: Column, cell: Any, row: int) -> str:
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError:
            raise _wrong(column, row, "is no UTF-8") from None
    if not isinstance(cell, str):
        raise _wrong(column, row, f"is a {type(cell).__name__}, which is no text")
    return cell


def _wrong(column: Column, row: int, what: str) -> InvalidInput:
    return InvalidInput(f"row {row}: column {column.name!r} {what}")
