"""The output file of `paddlewheel score`. A killed run continues after the last written row.

Rows are written in order to `OUT.part`, a line of JSON for each row of the input. Its complete lines are the
finished rows. A line that a kill has cut off is removed, and its row is scored again. `OUT` itself appears
when all rows are written.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from pipeline.errors import ConfigError
from pipeline.offline.rows import CSV, JSONL, Row, detect_format, get_separator, pyarrow

ANSWER, ERROR = "answer", "error"
_BATCH_ROWS = 4096  # of Parquet
_json = msgspec.json

Columns = dict[str, Any]


class ScoredFile:
    """The output file of a scoring job, which may continue an earlier run.

    `done` is the number of rows already in the file.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, restart: bool) -> None:
        """Open the output file, and continue an earlier run if there is one.

        settings: options that a continued run shares with the earlier run. restart: discard the earlier run.
        Raise ConfigError if the file exists, another process writes it, or the earlier settings differ.
        """
        self.path = path
        self.format = detect_format(path)
        if self.format not in (JSONL, CSV):
            pyarrow()  # at once, not when all is done
        self._part = path.with_name(f"{path.name}.part")
        self._settings = path.with_name(f"{path.name}.part.json")
        if path.exists() and not restart:
            raise ConfigError(f"{path} is there already; name another file, or overwrite it with --restart")
        try:
            path.unlink(missing_ok=True)
            self._file = self._part.open("a+b")
        except OSError as exc:
            raise ConfigError(f"{exc.filename} can't be written: {exc.strerror}") from exc
        try:
            self._adopt_earlier_run(settings, restart)
        except ConfigError:
            self._file.close()
            raise

    def _adopt_earlier_run(self, settings: Mapping[str, Any], restart: bool) -> None:
        """Lock the partial file. Continue the earlier run, or discard it if `restart` is set."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise ConfigError(f"{self._part} is written by another process; wait for its end") from exc
        if restart:
            self._file.truncate(0)
        self.done = self._resume()
        self._agree(settings)

    def pass_by(self, rows: Iterator[Row]) -> None:
        """Skip the input rows that the earlier run has written.

        Raise ConfigError if they differ from the written rows: the input may only be changed from the first
        row on that is not written.
        """
        for number, written in enumerate(read_scored_lines(self._part), 1):
            row = next(rows, None)
            if row is None or not _matches_row(written, row):
                raise ConfigError(
                    f"{self._part}: row {number} of it is not that of the input, which was changed since; "
                    "begin anew with --restart"
                )

    def append(self, rows: Iterable[Columns]) -> None:
        """Append rows and flush them to disk. Raise ConfigError if writing fails."""
        try:
            self._file.write(b"".join([_json.encode(row) + b"\n" for row in rows]))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as exc:
            raise ConfigError(f"{self._part} can't be written on: {exc.strerror}") from exc

    def finish(self) -> None:
        """Convert the complete partial file to the output format, and rename it.

        The call may be repeated after a failure. Raise ConfigError for rows that do not fit the format, and
        if the file can't be written.
        """
        try:
            if self.format == JSONL:
                self._part.replace(self.path)
            else:
                write = _write_csv if self.format == CSV else _write_parquet
                temporary = self.path.with_name(f"{self.path.name}.tmp")
                write(temporary, lambda: map(flat, read_scored_lines(self._part)))
                temporary.replace(self.path)
                self._part.unlink()
            self._settings.unlink(missing_ok=True)
        except OSError as exc:
            raise ConfigError(f"{self.path} can't be written: {exc.strerror}") from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _resume(self) -> int:
        """Remove an incomplete last line of the partial file, and return the number of complete lines."""
        self._file.seek(0)
        count = end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            count, end = count + 1, end + len(line)
        self._file.truncate(end)
        return count

    def _agree(self, settings: Mapping[str, Any]) -> None:
        current = dict(settings)
        if not self.done:
            self._settings.write_bytes(_json.encode(current))
            return
        try:
            before = _json.decode(self._settings.read_bytes())
        except (OSError, msgspec.DecodeError):
            before = {}
        different = [name for name in current if before.get(name) != current[name]]
        if different:
            raise ConfigError(
                f"{self._part} is of a run with another {', '.join(different)}; go on with what that run had,"
                " or begin anew with --restart"
            )


def _matches_row(written: Columns, row: Row) -> bool:
    """Whether a written line belongs to this input row: the columns of both are equal."""
    columns = _json.decode(_json.encode(row.columns))  # of Parquet there are dates, say
    return all(written.get(name) == value for name, value in columns.items() if name != ERROR)


def read_scored_lines(path: Path) -> Iterator[Columns]:
    """Yield the rows of a JSON lines file written by `score`."""
    with path.open("rb") as file:
        yield from map(_json.decode, file)


def flat(row: Columns) -> Columns:
    """Return a row for CSV or Parquet: the keys of the answer become columns like `answer.label`."""
    columns: Columns = {}
    for name, value in row.items():
        if isinstance(value, dict):
            columns |= {f"{name}.{member}": member_value for member, member_value in value.items()}
        else:
            columns[name] = value
    return columns


def _write_csv(path: Path, rows: Callable[[], Iterable[Columns]]) -> None:
    names = list(dict.fromkeys(name for row in rows() for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=get_separator(path.with_suffix("")))
        writer.writerow(names)
        writer.writerows([_format_csv_cell(row.get(name)) for name in names] for row in rows())


def _format_csv_cell(value: Any) -> Any:
    if value is None:
        return ""
    return value if isinstance(value, str | int | float) else _json.encode(value).decode()


def _write_parquet(path: Path, rows: Callable[[], Iterable[Columns]]) -> None:
    arrow = pyarrow()
    schema = None
    try:
        for batch in _batches(rows()):
            batch_schema = _infer_schema(arrow, batch)
            schema = (
                batch_schema
                if schema is None
                else arrow.unify_schemas([schema, batch_schema], promote_options="permissive")
            )
        with contextlib.closing(arrow.parquet.ParquetWriter(path, schema or arrow.schema([]))) as writer:
            for batch in _batches(rows()):
                writer.write_table(arrow.Table.from_pylist(batch, schema=schema))
    except arrow.ArrowException as exc:
        raise ConfigError(f"{path}: the rows have no form in Parquet ({exc}); write .jsonl instead") from exc


def _infer_schema(arrow: Any, batch: list[Columns]) -> Any:
    """Return an Arrow schema with the columns of all rows. `from_pylist` uses the first row only."""
    names = dict.fromkeys(name for row in batch for name in row)
    return arrow.schema([(name, arrow.array([row.get(name) for row in batch]).type) for name in names])


def _batches(rows: Iterable[Columns]) -> Iterator[list[Columns]]:
    batch: list[Columns] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch
