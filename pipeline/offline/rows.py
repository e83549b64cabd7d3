"""Reads the rows of an input file for offline scoring, one by one: JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from pipeline.errors import ConfigError

JSONL, CSV, PARQUET = "JSON lines", "CSV", "Parquet"
_FORMATS = {".jsonl": JSONL, ".ndjson": JSONL, ".json": JSONL, ".csv": CSV, ".tsv": CSV, ".parquet": PARQUET}


def detect_format(path: Path) -> str:
    """Return the format of a file by its suffix: JSONL, CSV or PARQUET.

    Raise ConfigError for other suffixes.
    """
    file_format = _FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise ConfigError(f"{path}: its rows can't be told by its name; it ends with {', '.join(_FORMATS)}")
    return file_format


def get_separator(path: Path) -> str:
    """Return the cell separator of a CSV file by its suffix: a tab for .tsv, else a comma."""
    return "\t" if path.suffix.lower() == ".tsv" else ","


def pyarrow() -> Any:
    """Import and return pyarrow. Raise ConfigError, with the pip command, if it is not installed."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as exc:
        raise ConfigError(
            "Parquet is read and written by pyarrow, which is not installed here: pip install pyarrow"
        ) from exc
    return pyarrow


MAX_ROW_BYTES = 16 << 20
_BATCH_ROWS = 1024  # of Parquet that are decoded together
_EXCERPT_CHARS = 100  # characters of a broken line in a message

_decode = msgspec.json.decode


class Row(NamedTuple):
    """A row of the input file: its columns, and its position for error messages."""

    number: int  # counted from 1
    where: str  # line or row, for messages
    columns: Mapping[str, Any]  # by name; empty if the row is broken
    fault: str = ""  # the error of a broken row


class RowFile:
    """An input file of rows to be scored. Iteration yields all rows, including broken rows."""

    def __init__(self, path: Path) -> None:
        """Open the file. Raise ConfigError for a missing file and for an unknown format."""
        self.path = path
        self.format = detect_format(path)
        self.done = 0  # progress in bytes, with Parquet in rows
        if not path.is_file():
            raise ConfigError(f"{path} is not a file; name one with a row on each line, e.g. rows.jsonl")
        self.total = path.stat().st_size
        self._parquet = None
        if self.format not in (JSONL, CSV):
            self._parquet = _open_parquet(path)
            self.total = self._parquet.metadata.num_rows

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows. Raise ConfigError if the file becomes unreadable."""
        if self._parquet is not None:
            return self._rows_of_parquet()
        return self._json_lines() if self.format == JSONL else self._rows_of_csv()

    def _lines(self, file: BinaryIO) -> Iterator[tuple[bytes, bool]]:
        """Yield each line that is not blank, and whether it is complete: overlong lines are cut."""
        while line := file.readline(MAX_ROW_BYTES):
            part = line
            while len(part) == MAX_ROW_BYTES and not part.endswith(b"\n"):
                self.done += len(part)
                part = file.readline(MAX_ROW_BYTES)
            complete = part is line
            self.done += len(part)
            self._line += 1
            if line.strip():
                yield line, complete

    def _json_lines(self) -> Iterator[Row]:
        self._line = 0
        with self.path.open("rb") as file:
            for number, (line, complete) in enumerate(self._lines(file), 1):
                where = f"line {self._line}"
                yield _parse_row(number, where, line) if complete else Row(number, where, {}, _TOO_LONG)

    def _rows_of_csv(self) -> Iterator[Row]:
        csv.field_size_limit(MAX_ROW_BYTES)
        with (
            self.path.open("rb") as encode_element,
            io.TextIOWrapper(encode_element, "utf-8-sig", "surrogateescape", newline="") as file,
        ):
            reader = csv.reader(file, delimiter=get_separator(self.path), strict=True)
            header = _header(self.path, reader)
            number = 0
            while True:
                number += 1
                where = f"line {reader.line_num + 1}"
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as exc:
                    yield Row(number, where, {}, f"is no CSV: {exc}")
                    continue
                # The text layer reads ahead, so that this is a little early.
                self.done = encode_element.tell()
                if not cells:
                    number -= 1
                    continue
                yield _row_of_cells(number, where, header, cells)

    def _rows_of_parquet(self) -> Iterator[Row]:
        assert self._parquet is not None
        number = 0
        batches = self._parquet.iter_batches(batch_size=_BATCH_ROWS)
        while True:
            try:
                batch = next(batches, None)
            except (OSError, pyarrow().ArrowException) as exc:
                raise ConfigError(f"{self.path} can't be read on after row {number}: {exc}") from exc
            if batch is None:
                return
            for columns in batch.to_pylist():
                number += 1
                self.done = number
                yield Row(number, f"row {number}", columns)


_TOO_LONG = f"has more than {MAX_ROW_BYTES >> 20} MiB"


def _parse_row(number: int, where: str, line: bytes) -> Row:
    try:
        columns = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        excerpt = line[:_EXCERPT_CHARS].decode("utf-8", "replace").strip()
        return Row(number, where, {}, f"is no JSON ({exc}): {excerpt}")
    if type(columns) is not dict:
        return Row(number, where, {}, f"is {type(columns).__name__} in JSON, not an object with columns")
    return Row(number, where, columns)


def _header(path: Path, reader: Iterator[list[str]]) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as exc:
        raise ConfigError(f"{path}: its first line is no CSV: {exc}") from exc
    try:
        "".join(header).encode()
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{path}: its first line is no UTF-8; save the file as UTF-8") from exc
    twice = next((name for name in header if header.count(name) > 1), None)
    if not header or twice is not None:
        problem = "is empty" if not header else f"names {twice!r} twice"
        raise ConfigError(f"{path}: its first line {problem}; it names each column once")
    return header


def _row_of_cells(number: int, where: str, header: list[str], cells: list[str]) -> Row:
    if len(cells) != len(header):
        return Row(number, where, {}, f"has {len(cells)} cells; the first line names {len(header)} columns")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return Row(number, where, {}, "is no UTF-8")
    return Row(number, where, dict(zip(header, cells, strict=True)))


def _open_parquet(path: Path) -> Any:
    library = pyarrow()
    try:
        return library.parquet.ParquetFile(path)
    except (OSError, library.ArrowException) as exc:
        raise ConfigError(f"{path} can't be read as Parquet: {exc}") from exc
