"""`paddlewheel score`: the answers of a service or a model to all rows of a file."""

from __future__ import annotations

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
from pipeline.offline.target import Refused, Target, answer_rows

MOST_WINDOW_CHARS = 32 << 20  # so that a window of long texts stays small in memory
REQUEST_ROWS = 128  # as many as four batches: what a request costs by itself is a tenth of 32 short rows
REQUEST_CHARS = 8192  # rows x the longest of them: as many characters as a worker runs tokens at once


def windows(rows: Iterable[Row], most_rows: int) -> Iterator[list[Row]]:
    """Rows one after another, so many at once, fewer where they are long."""
    window: list[Row] = []
    chars = 0
    for row in rows:
        window.append(row)
        chars += estimate_length(row.columns)
        if len(window) == most_rows or chars > MOST_WINDOW_CHARS:
            yield window
            window, chars = [], 0
    if window:
        yield window


def split_window(inputs: Sequence[Mapping[str, Any]], most_rows: int) -> list[list[int]]:
    """The rows of a window in requests, as indices: rows of like length together, the longest first.

    The longest first, so that the last of several connections are not busy with them alone.
    """
    lengths = [estimate_length(one) for one in inputs]
    order = sorted(range(len(inputs)), key=lambda at: -lengths[at])
    requests: list[list[int]] = []
    most = 0
    for at in order:
        if not requests or len(requests[-1]) >= most:
            requests.append([])
            most = max(1, min(most_rows, REQUEST_CHARS // max(1, lengths[at])))
        requests[-1].append(at)
    return requests


def estimate_length(columns: Mapping[str, Any]) -> int:
    """How long a row is: the characters of its texts, the elements of its lists."""
    return sum(len(value) for value in columns.values() if isinstance(value, str | list))


STOP, WRITE = "stop", "write"
WINDOW_ROWS = 4096
_AHEAD = 2  # windows that are asked at once, so that the end of one keeps nobody waiting
_NUMBERS: Mapping[str, Callable[[str], Any]] = {"F": float, "I": int, "U": int}  # by the datatype's beginning
_TRUTH = {"true": True, "1": True, "false": False, "0": False}

Asked = Callable[[float, int], None]


@dataclass(frozen=True)
class Job:
    """What is scored.

    keys: the column of an input, by the input's name, where the two differ. errors: what becomes of a row
    that can't be answered: the run stops, or the row is written with its error. answers: under which name
    they are written. asked: called with the seconds and the rows of each request.
    """

    source: Path
    out: Path
    parameters: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    errors: str = STOP
    answers: str = ANSWER
    restart: bool = False
    window_rows: int = WINDOW_ROWS
    request_rows: int = REQUEST_ROWS
    asked: Asked = lambda took_s, rows: None

    def settings(self, target: Target) -> dict[str, Any]:
        """What a run that goes on has in common with the one before it."""
        return {
            "target": target.described,
            "parameters": dict(self.parameters),
            "keys": dict(self.keys),
            "field": self.answers,
        }


class BadRow(ServingError):
    """A row that can't be answered, where that ends the run."""

    exit_code = 1


@dataclass
class Scored:
    """What a run has done. before: rows that an earlier run had done."""

    before: int
    rows: int = 0
    failed: int = 0
    took_s: float = 0.0

    def told(self, out: Path) -> str:
        rate = self.rows / self.took_s if self.took_s else 0.0
        parts = [f"{self.before + self.rows:,} rows in {out}"]
        if self.before:
            parts.append(f"{self.before:,} of them from an earlier run")
        parts.append(f"{self.rows:,} in {self.took_s:,.1f} s ({rate:,.0f} rows/s)")
        if self.failed:
            parts.append(f"{self.failed:,} with an error in place of the answer")
        return "; ".join(parts)


def score(job: Job, target: Target, console: Console) -> Scored:
    """Ask for all rows that are not done yet. Raises ConfigError, BadRow, Unanswered."""
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
    """Write window after window, in the order of the input, and give what was written of each."""
    left, cells = iter(rows), rows.format == CSV
    out.pass_by(left)
    with ThreadPoolExecutor(target.callers) as pool:
        under_way: deque[_Window] = deque()
        try:
            for window in windows(left, job.window_rows):
                under_way.append(_Window(job, target, window, pool, cells=cells))
                if len(under_way) == _AHEAD:
                    yield from _written(under_way.popleft(), job, out)
            while under_way:
                yield from _written(under_way.popleft(), job, out)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _written(window: _Window, job: Job, out: ScoredFile) -> Iterator[list[dict[str, Any]]]:
    """Write the rows of a window, those before a bad one where that ends the run."""
    results = window.results()
    bad = next((at for at, one in enumerate(results) if isinstance(one, ServingError)), None)
    if job.errors == STOP and bad is not None:
        out.write(map(window.line, range(bad), results[:bad]))
        row, error = window.rows[bad], results[bad]
        raise BadRow(
            f"{job.source}, {row.where}: {error.message}\nThe {row.number - 1:,} rows before it are written. "
            "Mend it and call this again; or have such rows written with their error: --errors write"
        )
    lines = [window.line(at, one) for at, one in enumerate(results)]
    out.write(lines)
    yield lines


class _Window:
    """Rows that are asked together, in requests of rows of like length."""

    def __init__(
        self, job: Job, target: Target, rows: Sequence[Row], pool: ThreadPoolExecutor, *, cells: bool
    ) -> None:
        """cells: the columns are texts, which are numbers where the target wants such."""
        self.rows = rows
        self._job = job
        self._target = target
        self._inputs: list[dict[str, Any] | Refused] = [self._build_input(row, cells) for row in rows]
        good = [at for at, one in enumerate(self._inputs) if not isinstance(one, Refused)]
        requests = split_window([self._asked(at) for at in good], job.request_rows)
        self._requests: list[tuple[list[int], Future[list[Any]]]] = [
            (places, pool.submit(self._ask, places))
            for places in ([good[at] for at in request] for request in requests)
        ]

    def results(self) -> list[Any]:
        """Of each row its answer, or the error in its place. Raises Unanswered."""
        found: list[Any] = list(self._inputs)
        for places, answers in self._requests:
            for at, answer in zip(places, answers.result(), strict=True):
                found[at] = answer
        return found

    def line(self, at: int, result: Any) -> dict[str, Any]:
        """What is written for a row."""
        columns = dict(self.rows[at].columns)
        if isinstance(result, ServingError):
            return {**columns, ERROR: f"{self.rows[at].where}: {result.message}"}
        return {**columns, self._job.answers: result}

    def _ask(self, places: list[int]) -> list[Any]:
        began = time.monotonic()
        answers = answer_rows(self._target, [self._asked(at) for at in places], self._job.parameters)
        self._job.asked(time.monotonic() - began, len(places))
        return answers

    def _asked(self, at: int) -> dict[str, Any]:
        inputs = self._inputs[at]
        assert not isinstance(inputs, Refused)
        return inputs

    def _build_input(self, row: Row, cells: bool) -> dict[str, Any] | Refused:
        """What of a row is asked; or why it can't be. Raises ConfigError for a column that would be lost."""
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
                inputs[name] = _of_cell(value, datatypes.get(name, "")) if cells else value
            elif name in keys:
                return Refused(f"has no column {column!r}, only {', '.join(row.columns)}")
        if inputs:
            return inputs
        return Refused(
            f"has no column {' or '.join(map(repr, datatypes))}, only {', '.join(row.columns)}; say which is "
            f"meant: --key {next(iter(datatypes), 'text')}=COLUMN"
        )


def _of_cell(cell: str, datatype: str) -> Any:
    """The value of a cell for an input of this datatype; what is no number is for the target to refuse."""
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
