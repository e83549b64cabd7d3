"""`paddlewheel score`: sends all rows of a file to a service or a model, and writes the answers to a file."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from pipeline.errors import ConfigError, ServingError
from pipeline.offline.rows import CSV, Row, RowFile
from pipeline.offline.scored_file import ANSWER, ERROR, ScoredFile
from pipeline.offline.target import REQUEST_ROWS, Refused, Target, answer_rows

MAX_WINDOW_CHARS = 32 << 20  # so that a window of long texts stays small in memory
REQUEST_CHARS = 8192  # rows x the longest of them: as many characters as a worker runs tokens at once


def windows(rows: Iterable[Row], most_rows: int) -> Iterator[list[Row]]:
    """Group rows into windows of at most `most_rows` rows, or fewer if the rows are long.

    The rows of a window are sorted by length, sent and written together.
    """
    window: list[Row] = []
    chars = 0
    for row in rows:
        window.append(row)
        chars += estimate_length(row.columns)
        if len(window) == most_rows or chars > MAX_WINDOW_CHARS:
            yield window
            window, chars = [], 0
    if window:
        yield window


def split_window(inputs: Sequence[Mapping[str, Any]], most_rows: int) -> list[list[int]]:
    """Split the rows of a window into requests of similar length. Return the row indexes of each request.

    The longest rows are sent first. Otherwise the last request could be a long one while other connections
    are idle.
    """
    lengths = [estimate_length(columns) for columns in inputs]
    order = sorted(range(len(inputs)), key=lambda at: -lengths[at])
    requests: list[list[int]] = []
    max_rows = 0
    for at in order:
        if not requests or len(requests[-1]) >= max_rows:
            requests.append([])
            max_rows = max(1, min(most_rows, REQUEST_CHARS // max(1, lengths[at])))
        requests[-1].append(at)
    return requests


def estimate_length(columns: Mapping[str, Any]) -> int:
    """Return a row's length for sorting: the characters of its texts and the elements of its lists."""
    return sum(len(value) for value in columns.values() if isinstance(value, str | list))


STOP, WRITE = "stop", "write"
WINDOW_ROWS = 4096
_AHEAD = 2  # concurrent windows, so that no connection idles at the end of a window
_NUMBERS: Mapping[str, Callable[[str], Any]] = {"F": float, "I": int, "U": int}  # by the datatype's beginning
_TRUTH = {"true": True, "1": True, "false": False, "0": False}

RequestHook = Callable[[float, int], None]


@dataclass(frozen=True)
class Job:
    """A scoring job: input file, output file and options."""

    source: Path
    out: Path
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of each request
    keys: Mapping[str, str] = field(default_factory=dict)  # column by input, if their names differ
    errors: str = STOP  # a refused row stops the run (STOP), or is written with its error (WRITE)
    answers: str = ANSWER  # name of the column with the answers
    restart: bool = False
    window_rows: int = WINDOW_ROWS
    request_rows: int = REQUEST_ROWS
    on_request: RequestHook = lambda took_s, rows: None  # called after each request

    def settings(self, target: Target) -> dict[str, Any]:
        """Return the settings that must not change when an interrupted job is continued.

        `target` is the service or model that scores the rows.
        """
        return {
            "target": target.described,
            "parameters": dict(self.parameters),
            "keys": dict(self.keys),
            "field": self.answers,
        }


class BadRow(ServingError):
    """Raised for a row that can't be scored, if the options let bad rows stop the job.

    The command exits with code 1.
    """

    exit_code = 1


@dataclass
class Scored:
    """Result of a scoring job: numbers of rows, and the seconds it took."""

    before: int  # rows of earlier runs
    rows: int = 0
    failed: int = 0
    took_s: float = 0.0

    def format_summary(self, out: Path) -> str:
        """Return a one-line summary of the job for the console."""
        rate = self.rows / self.took_s if self.took_s else 0.0
        parts = [f"{self.before + self.rows:,} rows in {out}"]
        if self.before:
            parts.append(f"{self.before:,} of them from an earlier run")
        parts.append(f"{self.rows:,} in {self.took_s:,.1f} s ({rate:,.0f} rows/s)")
        if self.failed:
            parts.append(f"{self.failed:,} with an error in place of the answer")
        return "; ".join(parts)


def score_file(job: Job, target: Target, console: Console) -> Scored:
    """Score all rows that an earlier run has not scored, and write them to the output file.

    `target` is the service or model that scores the rows. Raise ConfigError, BadRow or Unanswered.
    """
    rows = RowFile(job.source)
    with ScoredFile(job.out, job.settings(target), restart=job.restart) as out:
        scored = Scored(out.done)
        began = time.monotonic()
        with _progress(console) as progress:
            task = progress.add_task("", total=rows.total, completed=0, rows=0)
            for written in _write_all(job, target, rows, out):
                scored.rows += len(written)
                scored.failed += sum(ERROR in row and job.answers not in row for row in written)
                progress.update(task, completed=rows.done, rows=scored.before + scored.rows)
        scored.took_s = time.monotonic() - began
        out.finish()
    return scored


def _write_all(job: Job, target: Target, rows: RowFile, out: ScoredFile) -> Iterator[list[dict[str, Any]]]:
    """Score the remaining rows and write them in the order of the input.

    Yield the written lines of each window.
    """
    remaining, cells = iter(rows), rows.format == CSV
    out.pass_by(remaining)
    with ThreadPoolExecutor(target.callers) as pool:
        under_way: deque[_Window] = deque()
        try:
            for window in windows(remaining, job.window_rows):
                under_way.append(_Window(job, target, window, pool, cells=cells))
                if len(under_way) == _AHEAD:
                    yield from _written(under_way.popleft(), job, out)
            while under_way:
                yield from _written(under_way.popleft(), job, out)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _written(window: _Window, job: Job, out: ScoredFile) -> Iterator[list[dict[str, Any]]]:
    """Write the scored rows of a window, and yield them.

    If bad rows stop the job, write only the rows before the first bad row, and raise BadRow.
    """
    results = window.results()
    bad = next((at for at, result in enumerate(results) if isinstance(result, ServingError)), None)
    if job.errors == STOP and bad is not None:
        out.append(map(window.line, range(bad), results[:bad]))
        row, error = window.rows[bad], results[bad]
        raise BadRow(
            f"{job.source}, {row.where}: {error.message}\nThe {row.number - 1:,} rows before it are written. "
            "Mend it and call this again; or have such rows written with their error: --errors write"
        )
    lines = [window.line(at, result) for at, result in enumerate(results)]
    out.append(lines)
    yield lines


class _Window:
    """A group of rows that is being scored, in concurrent requests of rows of similar length."""

    def __init__(
        self, job: Job, target: Target, rows: Sequence[Row], pool: ThreadPoolExecutor, *, cells: bool
    ) -> None:
        """Send the rows of the window.

        `cells` tells whether columns are CSV texts, which are parsed if the model expects numbers.
        """
        self.rows = rows
        self._job = job
        self._target = target
        self._inputs: list[dict[str, Any] | Refused] = [self._build_input(row, cells) for row in rows]
        good = [at for at, row_inputs in enumerate(self._inputs) if not isinstance(row_inputs, Refused)]
        requests = split_window([self._get_inputs(at) for at in good], job.request_rows)
        self._requests: list[tuple[list[int], Future[list[Any]]]] = [
            (places, pool.submit(self._ask, places))
            for places in ([good[at] for at in request] for request in requests)
        ]

    def results(self) -> list[Any]:
        """Wait for the requests, and return the answer or the error of each row. Raise Unanswered."""
        results: list[Any] = list(self._inputs)
        for places, answers in self._requests:
            for at, answer in zip(places, answers.result(), strict=True):
                results[at] = answer
        return results

    def line(self, at: int, result: Any) -> dict[str, Any]:
        """Return the columns to write for a row: its input columns, and the model's answer or the error.

        `at` is the row's index in the window.
        """
        columns = dict(self.rows[at].columns)
        if isinstance(result, ServingError):
            return {**columns, ERROR: f"{self.rows[at].where}: {result.message}"}
        return {**columns, self._job.answers: result}

    def _ask(self, places: list[int]) -> list[Any]:
        began = time.monotonic()
        answers = answer_rows(self._target, [self._get_inputs(at) for at in places], self._job.parameters)
        self._job.on_request(time.monotonic() - began, len(places))
        return answers

    def _get_inputs(self, at: int) -> dict[str, Any]:
        inputs = self._inputs[at]
        assert not isinstance(inputs, Refused)
        return inputs

    def _build_input(self, row: Row, cells: bool) -> dict[str, Any] | Refused:
        """Return the model inputs of a row, or an error.

        Raise ConfigError if the answer would replace a column of the row.
        """
        if row.fault:
            return Refused(row.fault)
        if self._job.answers in row.columns:
            raise ConfigError(
                f"{self._job.source} has a column {self._job.answers!r} already; name the answer otherwise: "
                "--field NAME"
            )
        datatypes, keys = self._target.inputs, self._job.keys
        inputs: dict[str, Any] = {}
        for name in dict.fromkeys((*datatypes, *keys)) or row.columns:
            column = keys.get(name, name)
            if column in row.columns:
                value = row.columns[column]
                value = _of_cell(value, datatypes.get(name, "")) if cells else value
                is_nan = isinstance(value, float) and math.isnan(value)
                inputs[name] = None if is_nan else value  # JSON has no NaN
            elif name in keys:
                return Refused(f"has no column {column!r}, only {', '.join(row.columns)}")
        if inputs:
            return inputs
        return Refused(
            f"has no column {' or '.join(map(repr, datatypes))}, only {', '.join(row.columns)}; say which is "
            f"meant: --key {next(iter(datatypes), 'text')}=COLUMN"
        )


def _of_cell(cell: str, datatype: str) -> Any:
    """Parse a CSV cell as a value of a KServe datatype.

    Texts that can't be parsed are returned unchanged, so that the model rejects them. An empty cell for a
    number becomes None (missing).
    """
    if not cell.strip() and datatype[:1] in _NUMBERS:
        return None
    if datatype == "BOOL":
        return _TRUTH.get(cell.lower(), cell)
    try:
        return _NUMBERS.get(datatype[:1], str)(cell)
    except ValueError:
        return cell


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.fields[rows]:,} rows"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
